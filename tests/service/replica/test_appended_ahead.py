"""Bulk groups appended ahead: appended while the group in front of them is learned.

If the group in front fails, or the append is lost, the later groups still report their outcome, and
never acknowledge rows that the journal does not have.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import dualstream.service.replica.replica
from dualstream.service.journal.protocol import AppendRequest, JournalUnavailable, OutcomeUnknown
from dualstream.service.replica.apply_or_rebuild import Applying
from dualstream.service.replica.groups import BULK_ROWS
from dualstream.service.replica.replica import Replica
from tests.service.journal.faulty import Fault
from tests.service.replica.test_committer import Bench, lose, request, run

MORE = BULK_ROWS + 5


async def stands_at(bench: Bench, seq: int) -> None:
    while (await bench.faulty.get("m")).seq < seq:
        await asyncio.sleep(0.001)


def failing(monkeypatch, meanwhile: Callable[[Applying], Awaitable[None]]) -> None:
    """Let this come in the place of what is learned first, and fail."""
    apply, left = Applying.apply, [JournalUnavailable("planted")]

    async def fail_once(self: Applying, *given: Any) -> Any:
        if not left:
            return await apply(self, *given)
        error = left.pop()
        await meanwhile(self)
        raise error

    monkeypatch.setattr(Applying, "apply", fail_once)


async def front_and_behind(
    bench: Bench, key: str | None = None
) -> tuple["asyncio.Future[Any]", "asyncio.Future[Any]"]:
    """Rows in bulk, and others that are submitted once these are journalled."""
    first, stands = request(key and f"front {key}", BULK_ROWS), asyncio.Event()
    first.on_journalled = stands.set
    front = bench.committer.submit(first)
    await stands.wait()
    return front, bench.committer.submit(request(key and f"behind {key}", MORE))


def test_they_are_not_told_undone_where_the_store_goes_away(tmp_path, monkeypatch):
    """They are asked for again, as the group in front of them has failed."""

    async def scenario(bench: Bench) -> None:
        failing(monkeypatch, lambda _: stands_at(bench, BULK_ROWS + MORE))
        for told in await front_and_behind(bench, "k"):
            with pytest.raises(OutcomeUnknown):
                await told
        again = await bench.committer.submit(request("behind k", MORE))
        assert again.placed.duplicate
        assert bench.replica.seq == BULK_ROWS + MORE

    run(tmp_path, scenario, [Fault.NONE, Fault.NONE, Fault.REFUSED])


def test_what_was_learned_of_them_is_not_told_once_it_is_lost(tmp_path, monkeypatch):
    """They are journalled again, and their receipts hold the new positions."""

    async def scenario(bench: Bench) -> None:
        await bench.send("one")

        async def read_and_lose(applying: Applying) -> None:
            await stands_at(bench, 1 + BULK_ROWS + MORE)
            await applying.catch_up(None)
            lose(tmp_path, 2)

        failing(monkeypatch, read_and_lose)
        front, behind = await front_and_behind(bench)
        with pytest.raises(OutcomeUnknown):
            await front
        receipt = await behind
        assert (receipt.placed.first_seq, receipt.placed.seq) == (2, 1 + MORE)
        alone = Replica(await bench.faulty.get("m"))
        await alone._learn(request("one").rows)
        outcome = await alone._learn(request(None, MORE).rows)
        assert np.array_equal(receipt.scores, outcome.scores)
        assert bench.replica.seq == 1 + MORE and not bench.replica.is_forked

    run(tmp_path, scenario)


def test_who_is_told_that_they_stand_elsewhere_is_known_to_be_forked(tmp_path, monkeypatch):
    """All of them were sent again by another worker, after they were lost: nothing is new."""
    known = []

    async def scenario(bench: Bench) -> None:
        catch_up = Applying.catch_up

        async def saw(self: Applying, seq: int | None) -> None:
            known.append(bench.replica.is_forked)
            await catch_up(self, seq)

        async def read_and_lose(applying: Applying) -> None:
            await stands_at(bench, 1 + BULK_ROWS + MORE)
            await catch_up(applying, None)
            lose(tmp_path, 2)
            model, again = (bench.replica.id, bench.replica.incarnation), request("behind k", MORE)
            await bench.faulty.append(AppendRequest(*model, bytes(16), 1, again.parts))

        await bench.send("one")
        monkeypatch.setattr(Applying, "catch_up", saw)
        failing(monkeypatch, read_and_lose)
        front, behind = await front_and_behind(bench, "k")
        with pytest.raises(OutcomeUnknown):
            await front
        receipt = await behind
        assert receipt.placed.duplicate
        assert (receipt.placed.first_seq, receipt.placed.seq) == (2, 1 + MORE)
        assert bench.replica.seq == 1 + MORE and not bench.replica.is_forked

    run(tmp_path, scenario)
    assert known == [True]


def test_what_was_learned_of_them_with_a_front_that_failed_is_told(tmp_path, monkeypatch):
    """The journal was read past both: nothing is read, learned or rebuilt once more."""

    async def scenario(bench: Bench) -> None:
        rebuilt = []
        monkeypatch.setattr(Applying, "_rebuild", lambda *given: rebuilt.append(given))

        async def read(applying: Applying) -> None:
            await stands_at(bench, BULK_ROWS + MORE)
            await applying.catch_up(None)

        failing(monkeypatch, read)
        front, behind = await front_and_behind(bench)
        with pytest.raises(OutcomeUnknown):
            await front
        receipt = await behind
        assert receipt.placed.seq == bench.replica.seq == BULK_ROWS + MORE
        alone = Replica(await bench.faulty.get("m"))
        await alone._learn(request(None, BULK_ROWS).rows)
        outcome = await alone._learn(request(None, MORE).rows)
        assert np.array_equal(receipt.scores, outcome.scores)
        assert not rebuilt

    run(tmp_path, scenario)


def test_a_fork_that_their_append_shows_is_known_before_their_turn(tmp_path, monkeypatch):
    """Until then nothing is served that the journal has lost."""
    known = []

    async def scenario(bench: Bench) -> None:
        apply = Applying.apply

        async def saw(self: Applying, *given: Any) -> Any:
            known.append(bench.replica.is_forked)
            return await apply(self, *given)

        monkeypatch.setattr(Applying, "apply", saw)
        await bench.send("one")
        first = request(None, BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(request(None, MORE))))
        submit, waits = bench.committer.submit, []  # type: ignore[var-annotated]
        front = submit(first)
        while not waits:
            await asyncio.sleep(0)
        receipt = await waits[0]
        assert (await front).placed.seq == 1 + BULK_ROWS
        assert (receipt.placed.first_seq, receipt.placed.seq) == (2, 1 + MORE)

    run(tmp_path, scenario)
    assert known == [False, True]


def test_an_answer_of_what_was_read_meanwhile_shows_no_fork(tmp_path, monkeypatch):
    """The front was lost; the same number of rows replaced it and was read."""

    async def scenario(bench: Bench) -> None:
        waits: list[Any] = []
        await bench.send("one")

        async def read(applying: Applying) -> None:
            while (await bench.faulty.get("m")).seq < 1 + BULK_ROWS:
                await asyncio.sleep(0.001)
            await applying.catch_up(None)

        failing(monkeypatch, read)
        bench.faulty.delay_s = 0.3
        submit, first = bench.committer.submit, request("front", BULK_ROWS)
        again = request("behind", BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(again)))
        with pytest.raises(OutcomeUnknown):
            await submit(first)
        receipt = await waits[0]
        await bench.committer.drain()
        assert receipt.placed.seq == 1 + BULK_ROWS == bench.replica.seq
        assert not bench.replica.is_forked

    run(tmp_path, scenario, [Fault.NONE, Fault.NONE, Fault.LATE])


def test_who_is_told_once_more_what_he_was_told_at_first_is_not_doubted(tmp_path, monkeypatch):
    """All rows behind were known; others have appended since, and the replica has read that."""
    known = []

    async def scenario(bench: Bench) -> None:
        catch_up = Applying.catch_up

        async def saw(self: Applying, seq: int | None) -> None:
            known.append(bench.replica.is_forked)
            await catch_up(self, seq)

        async def read(applying: Applying) -> None:
            while bench.committer._ahead is None:
                await asyncio.sleep(0)
            await asyncio.wait([bench.committer._ahead.appending])
            where = (bench.replica.id, bench.replica.incarnation, bytes(16), 10**9)
            await bench.faulty.append(AppendRequest(*where, request("others", 3).parts))
            await catch_up(applying, None)

        await bench.send("behind k", MORE)
        monkeypatch.setattr(Applying, "catch_up", saw)
        failing(monkeypatch, read)
        front, behind = await front_and_behind(bench, "k")
        with pytest.raises(OutcomeUnknown):
            await front
        assert (await behind).placed.duplicate

    run(tmp_path, scenario)
    assert known == [False]


def test_they_are_another_replicas_where_this_one_is_let_go_of(tmp_path, monkeypatch):
    """The replica loaded in its place learns them and counts the loss: otherwise both count it."""

    async def scenario(bench: Bench) -> None:
        async def refused(_: Applying) -> None:
            await stands_at(bench, BULK_ROWS + MORE)
            bench.committer.refuse("another one is loaded")

        failing(monkeypatch, refused)
        front, behind = await front_and_behind(bench)
        with pytest.raises(OutcomeUnknown, match="planted"):
            await front
        with pytest.raises(OutcomeUnknown, match="another one is loaded"):
            await behind
        await bench.committer.drain()
        assert bench.replica.seq == 0

    run(tmp_path, scenario)


def test_an_answer_that_comes_as_the_front_is_being_learned_shows_no_fork(tmp_path, monkeypatch):
    """The last slice has moved `seq`, and the chain value is not yet that of the front's end."""
    met = []

    async def scenario(bench: Bench) -> None:
        bench.replica._s_per_row = 1e-5  # so that they are learned in slices, in a thread
        run_in_thread = dualstream.service.replica.replica.run_in_thread

        async def answered_first(*given: Any) -> Any:
            outcome = await run_in_thread(*given)
            ahead = bench.committer._ahead
            if ahead is not None and ahead.front.seq == bench.replica.seq:
                met.append(ahead)
                await asyncio.wait([ahead.appending])
            return outcome

        monkeypatch.setattr(dualstream.service.replica.replica, "run_in_thread", answered_first)
        for told in await front_and_behind(bench):
            await told
            assert not bench.replica.is_forked

    run(tmp_path, scenario, [Fault.NONE, Fault.LATE])
    assert met


def test_a_fork_that_their_append_shows_is_known_while_the_front_is_learned(tmp_path, monkeypatch):
    """Slices take time, and nothing lost is served during all of it."""
    met = []

    async def scenario(bench: Bench) -> None:
        bench.replica._s_per_row = 1e-5
        run_in_thread = dualstream.service.replica.replica.run_in_thread

        async def lost_first(*given: Any) -> Any:
            ahead = bench.committer._ahead
            if ahead is not None and not met:
                await asyncio.wait([ahead.appending])
                met.append((bench.replica.seq, bench.replica.is_forked))
            return await run_in_thread(*given)

        monkeypatch.setattr(dualstream.service.replica.replica, "run_in_thread", lost_first)
        await bench.send("one")
        first = request(None, BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(request(None, MORE))))
        submit, waits = bench.committer.submit, []  # type: ignore[var-annotated]
        await submit(first)
        receipt = await waits[0]
        assert (receipt.placed.first_seq, receipt.placed.seq) == (2, 1 + MORE)
        assert not bench.replica.is_forked

    run(tmp_path, scenario)
    assert met == [(1, True)]
