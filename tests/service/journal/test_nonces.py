"""Which nonces can have been used, and what a repeated one is answered."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from dualstream.service.journal import chain
from dualstream.service.journal.chain import OURS, Nonces
from dualstream.service.journal.protocol import Appended, Journal, Limits
from dualstream.service.journal.sqlite import append
from dualstream.service.journal.sqlite.log import find_head
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, places, rows

pytestmark = pytest.mark.anyio


def test_own_nonces_are_first_once_and_others_never():
    mine, other = Nonces(), Nonces()
    made = [mine.make() for _ in range(10)]
    assert len(set(made)) == 10 and {len(nonce) for nonce in made} == {16}
    assert [mine.is_first(nonce) for nonce in reversed(made)] == [True] * 10
    assert [mine.is_first(nonce) for nonce in made] == [False] * 10
    assert not mine.is_first(other.make())
    assert not mine.is_first(os.urandom(16))


def test_nonces_of_which_nobody_knows_any_more_are_not_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chain, "RECENT_NUMBERS", 100)
    mine = Nonces()
    late, *made = [mine.make() for _ in range(1000)]
    assert all(mine.is_first(nonce) for nonce in made)
    assert not mine.is_first(late)
    assert not any(mine.is_first(nonce) for nonce in made)
    assert len(mine._used) <= 100


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # threads of other tests
def test_nonces_differ_in_threads_and_in_a_forked_process():
    mine = Nonces()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: mine.make(), range(1000)))
    assert len(set(made)) == 1000
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writes, OURS.make())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reads, 16)
    assert len(theirs) == 16
    assert theirs[:10] != OURS.make()[:10]
    os.close(reads), os.close(writes)


def outcome(appended: Appended) -> tuple:
    """An answer without what was unseen."""
    return appended.positions, appended.seq, appended.previous, appended.chain


async def appended_to(log: Log) -> tuple[list[bytes], list[Appended], list]:
    """Nonces, answers and parts of appends: new, in part new, with nothing new, and so on."""
    groups = [
        [rows(1, 2, id="a")],
        [rows(3)],
        [rows(1, 2, id="a"), rows(4)],
        [rows(1, 2, id="a")],
        [rows(5), rows(6)],
        [rows(7)],
    ]
    made = [OURS.make() for _ in groups]
    first = [
        await log.append(*group, nonce=nonce) for group, nonce in zip(groups, made, strict=True)
    ]
    return made, first, groups


@pytest.mark.parametrize("trimmed", [0, 2, 3, 4, 7])
async def test_repeated_appends_are_answered_as_at_first_though_their_entries_went(
    journal: Journal, trimmed: int
):
    log = await Log.create(journal)
    made, first, groups = await appended_to(log)
    for through in range(trimmed + 1):  # a step at a time: what one left the next one goes on from
        await journal.trim(log.model, log.incarnation, through)
    for _ in range(2):
        for nonce, before, group in zip(made, first, groups, strict=True):
            assert outcome(await log.append(*group, nonce=nonce)) == outcome(before)
    assert await log.last_seq() == 7


@pytest.mark.parametrize("id", [None, "a"])
async def test_repeated_first_append_after_a_trim_returns_the_first_answer(
    journal: Journal, id: str | None
):
    """No entry contains its previous chain."""
    log = await Log.create(journal)
    await log.append(rows(1))
    await journal.trim(log.model, log.incarnation, 1)
    nonce = OURS.make()
    first = await log.append(rows(2, id=id), nonce=nonce)
    assert first.previous
    assert outcome(await log.append(rows(2, id=id), nonce=nonce)) == outcome(first)


async def test_another_process_is_answered_too(store: Store):
    async with store.journal() as journal, store.journal() as other:
        log = await Log.create(journal)
        nonce = os.urandom(16)
        first = await log.append(rows(1), nonce=nonce)
        log.journal = other
        assert outcome(await log.append(rows(1), nonce=nonce)) == outcome(first)


async def test_a_log_of_a_program_that_kept_a_row_for_each_append_is_gone_on_with(
    sqlite_store: Store,
):
    async with sqlite_store.journal() as journal:
        log = await Log.create(journal)
        made, first, groups = await appended_to(log)

        def as_before(connection) -> None:  # type: ignore[no-untyped-def]
            head = find_head(connection, log.model, log.incarnation)
            results = [
                append._find_result(connection, head, log.incarnation, nonce, Limits())
                for nonce in made
            ]
            connection.execute("DELETE FROM nonces")
            for number, (nonce, result) in enumerate(zip(made, results, strict=True)):
                row = (head.model, nonce, number, append.pack_result(result))
                connection.execute("INSERT INTO nonces VALUES (?, ?, ?, ?)", row)
            # That program also trimmed the log, and stored nothing else.
            connection.execute("DELETE FROM entries WHERE seq <= 4")
            connection.execute("UPDATE heads SET trimmed = 4")

        await journal._writer.run(as_before)  # type: ignore[attr-defined]
        await log.append(rows(8))
        await journal.trim(log.model, log.incarnation, 7)
        for nonce, before, group in zip(made, first, groups, strict=True):
            assert outcome(await log.append(*group, nonce=nonce)) == outcome(before)
        assert places(await log.append(rows(9))) == [(9, 9, "new")]


async def test_first_appends_keep_no_row_of_their_nonce(sqlite_store: Store):
    async with sqlite_store.journal() as journal:
        log = await Log.create(journal)
        for tag in range(3):
            await log.append(rows(tag))
        rows_kept = "SELECT count(*) FROM nonces"
        run = journal._writer.run  # type: ignore[attr-defined]
        assert await run(lambda connection: connection.execute(rows_kept).fetchone()) == (0,)
