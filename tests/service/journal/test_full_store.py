"""A store without room: a writing ping finds it, and deletions make room."""

import sqlite3
from pathlib import Path

import pytest

from dualstream.service.journal import make_journal, open_journal, sqlite_path
from dualstream.service.journal.audit import SERVER
from dualstream.service.journal.protocol import JournalError, JournalUnavailable
from dualstream.service.journal.redis.announcer import channel_of
from dualstream.service.journal.redis.keys_and_values import keys_of
from tests.redis_server import redis_or_skip
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


async def test_a_full_redis_is_found_by_a_writing_ping_and_deletes_models() -> None:
    with redis_or_skip() as server:
        async with Store(server.url).journal() as journal:
            log = await Log.create(journal)
            await log.append(rows(1))
            await journal.ping(writes=True)
            journal_client = journal._others
            await journal_client.call("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(JournalError, match="maxmemory"):
                await log.append(rows(2))
            await journal.ping()
            with pytest.raises(JournalUnavailable, match="maxmemory"):
                await journal.ping(writes=True)
            await journal.delete(log.model, log.incarnation, SERVER.change("delete"))
            assert await journal.count() == 0
            await journal_client.call("CONFIG", "SET", "maxmemory", "0")
            await journal.ping(writes=True)
            assert await journal_client.call("XLEN", keys_of(log.model).audit) == 1


async def test_a_full_sqlite_file_is_found_by_a_writing_ping(tmp_path: Path) -> None:
    journal = await open_journal(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        await journal.ping(writes=True)

        def refuse(db: sqlite3.Connection) -> None:
            writing = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
            db.set_authorizer(lambda action, *_: int(action in writing))

        await journal._writer.run(refuse)
        await journal.ping()
        with pytest.raises(JournalUnavailable):
            await journal.ping(writes=True)
    finally:
        await journal.close()


def test_databases_of_a_server_have_their_own_channels() -> None:
    assert len({channel_of(database) for database in range(16)}) == 16
    assert channel_of(0) == "ds:appends"


@pytest.mark.parametrize("name", ["a#1.db", "a?x=1.db", "a b%.db", "ä;1.db"])
async def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/{name.replace('%', '%25')}"
    assert sqlite_path(url) == f"{tmp_path}/{name}"
    journal = await open_journal(url)
    await journal.close()
    assert name in {path.name for path in tmp_path.iterdir()}
    assert make_journal(url, None, journal._limits) is not None
