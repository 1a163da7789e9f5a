"""A Redis killed in the midst of writing an append to its log, and killed again later.

What a script writes lies between MULTI and EXEC there. Where the log ends between them in the midst
of a command, Redis 7 takes that command's first bytes off at its start and leaves what is before
it: the next append's EXEC ends both. So the start after that one does first what was torn.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis import Redis

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Change, Journal, JournalUnavailable
from tests.history import check_history
from tests.redis_server import RedisServer, redis_or_skip
from tests.redis_sets import until
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows
from tests.service.journal.support import check_audit

pytestmark = pytest.mark.anyio

CUTS = 12


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_or_skip(appendfsync="always") as server:
        yield server


def persistence(server: RedisServer) -> dict[str, Any]:
    with Redis(port=server.port) as client:
        result: dict[str, Any] = client.info("persistence")
        return result


def has_rewritten(server: RedisServer) -> bool:
    """Has the server rewritten its log since its start?"""
    return bool(persistence(server)["aof_last_rewrite_time_sec"] >= 0)


def tail_of(server: RedisServer) -> Path:
    """The file that the server appends to."""
    *_, last = sorted(Path(server.directory, "appendonlydir").glob("*.incr.aof"))
    return last


def is_rewriting(server: RedisServer) -> bool:
    return bool(persistence(server)["aof_rewrite_in_progress"])


def is_done(server: RedisServer) -> bool:
    """Whether it rewrites nothing, nor is about to."""
    got = persistence(server)
    return not (got["aof_rewrite_in_progress"] or got["aof_rewrite_scheduled"])


async def restart(server: RedisServer, journal: Journal) -> None:
    server.start()
    await available(journal)


async def available(journal: Journal) -> None:
    while True:
        with suppress(JournalUnavailable):  # as the connection to the one that was killed
            return await journal.ping()


async def refused(journal: Journal) -> None:
    """Return once it says why nothing is written; of a connection that broke it tells before."""
    got = ""
    while "about to rewrite its log" not in got:
        with pytest.raises(JournalUnavailable) as refusal:
            await journal.ping()
        got = str(refusal.value)


async def append(log: Log, tag: int) -> None:
    await log.append(rows(tag, id=str(tag)), change=Change("append", detail={"first": tag}))


class Torn:
    """A server whose log holds one append, and another one that may be torn anywhere."""

    def __init__(self, server: RedisServer, before: int) -> None:
        server.kill()
        self._server = server
        self._kept = Path(server.directory, "kept")
        self.data = tail_of(server).read_bytes()
        commands = re.finditer(rb"\*\d+\r\n", self.data[before:])
        somewhere = Random(1).choices(range(before + 1, len(self.data)), k=CUTS)
        self.cuts = [before + command.start() + 2 for command in commands] + somewhere
        shutil.copytree(tail_of(server).parent, self._kept)

    def cut(self, at: int) -> None:
        """Let the log end there."""
        files = self._kept.with_name("appendonlydir")
        shutil.rmtree(files)
        shutil.copytree(self._kept, files)
        tail_of(self._server).write_bytes(self.data[:at])


async def torn_log(server: RedisServer, journal: Journal) -> tuple[Torn, Log]:
    log = await Log.create(journal)
    until(lambda: has_rewritten(server), "a rewritten log")
    await append(log, 1)
    before = tail_of(server).stat().st_size
    await append(log, 2)
    return Torn(server, before), log


async def check_held(journal: Journal, log: Log, *tags: int) -> None:
    assert await log.tags() == list(tags)
    await check_history(journal, log.model, [])
    await check_audit(journal, log.model)


async def test_an_append_that_was_torn_takes_no_later_one_s_place(server: RedisServer):
    async with Store(server.url).journal() as journal:
        torn, log = await torn_log(server, journal)
        for tag, cut in enumerate(torn.cuts, start=1000):
            torn.cut(cut)
            await restart(server, journal)
            log = Log(journal, await journal.get(log.model))
            await append(log, tag)
            server.kill()
            await restart(server, journal)
            await check_held(journal, log, 1, tag)
            await append(log, 2)
            await check_held(journal, log, 1, tag, 2)
            server.kill()


async def test_server_killed_while_rewriting_its_log_loses_nothing(server: RedisServer):
    async with Store(server.url).journal() as journal:
        torn, log = await torn_log(server, journal)
        for tag, cut in enumerate(torn.cuts[-3:], start=1000):
            torn.cut(cut)
            server.options["rdb-key-save-delay"] = "10000000"
            await restart(server, journal)
            log = Log(journal, await journal.get(log.model))
            await append(log, tag)
            assert is_rewriting(server)
            server.kill()
            del server.options["rdb-key-save-delay"]
            await restart(server, journal)
            await check_held(journal, log, 1, tag)
            server.kill()


async def test_nothing_is_written_while_another_child_delays_the_log_rewrite(server: RedisServer):
    async with Store(server.url).journal() as journal:
        torn, log = await torn_log(server, journal)
        for tag, cut in enumerate(torn.cuts[-3:], start=1000):
            torn.cut(cut)
            server.options["rdb-key-save-delay"] = "10000000"
            server.start()
            with Redis(port=server.port) as client:
                client.bgsave()
                for _ in range(2):  # by the first one the rewrite is scheduled
                    await refused(journal)
                    with pytest.raises(JournalUnavailable, match="about to rewrite its log"):
                        await append(log, tag)
                client.config_set("rdb-key-save-delay", "0")
            server.end_child()
            await available(journal)
            assert is_rewriting(server) or has_rewritten(server)
            log = Log(journal, await journal.get(log.model))
            await append(log, tag)
            server.kill()
            del server.options["rdb-key-save-delay"]
            await restart(server, journal)
            await check_held(journal, log, 1, tag)
            server.kill()


async def test_a_replica_that_is_promoted_takes_nothing_before_its_log_has_what_was_synced(
    server: RedisServer,
):
    async with Store(server.url).journal():
        until(lambda: has_rewritten(server), "a rewritten log")
    with redis_or_skip(**{"repl-diskless-sync-delay": "0"}) as primary:
        async with Store(primary.url).journal() as journal:
            log = await Log.create(journal)
            await append(log, 1)
        with Redis(port=server.port) as client:
            client.config_set("rdb-key-save-delay", "10000000")
            client.replicaof("127.0.0.1", primary.port)
            until(lambda: client.info("replication")["master_link_status"] == "up", "a full sync")
            client.config_set("rdb-key-save-delay", "0")
            client.replicaof("NO", "ONE")
    assert is_rewriting(server)
    with pytest.raises(JournalUnavailable, match="a replica before, is not done with rewriting"):
        await open_journal(server.url, "always")
    server.end_child()  # Redis rewrites its log
    until(lambda: is_done(server), "a rewritten log")
    async with Store(server.url).journal() as journal:
        log = Log(journal, await journal.get(log.model))
        await append(log, 2)
        server.kill()
        await restart(server, journal)
        await check_held(journal, log, 1, 2)


def times_rewritten(server: RedisServer) -> int:
    return int(tail_of(server).name.split(".")[2]) - 1


async def test_log_is_rewritten_once_after_each_start(server: RedisServer):
    for starts in (1, 2):
        for _ in range(2):
            async with Store(server.url).journal() as journal:
                await journal.ping()
                until(lambda: has_rewritten(server), "a rewritten log")
        assert times_rewritten(server) == starts
        server.kill()
        server.start()


async def test_server_that_refuses_torn_logs_does_not_rewrite_its_log():
    with redis_or_skip(**{"aof-load-truncated": "no"}) as server:
        async with Store(server.url).journal() as journal:
            await append(await Log.create(journal), 1)
            assert times_rewritten(server) == 0


async def test_server_that_cannot_rewrite_its_log_serves_with_a_warning(
    server: RedisServer, caplog: pytest.LogCaptureFixture
):
    with Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "default", "-bgrewriteaof")
    for _ in range(2):
        async with Store(server.url).journal() as journal:
            assert journal.durability() == "always"
            assert await journal.list() == []
    (got,) = [one.getMessage() for one in caplog.records if one.name == "dualstream.redis"]
    assert "set aof-load-truncated no" in got and "bgrewriteaof" in got
