"""Bulk groups appended ahead: appended while the group in front of them is learned.

If the group in front fails, or the append is lost, the later groups still report their outcome, and
never acknowledge rows that the journal does not have.
"""

import asyncio
from typing import Any

import pytest

import dualstream.service.replica.replica
from dualstream.service.journal.protocol import AppendRequest, OutcomeUnknown
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.groups import BULK_ROWS
from tests.service.journal.faulty import Fault
from tests.service.replica.committer_bench import (
    MORE,
    Bench,
    failing,
    front_and_behind,
    learn_in_slices,
    lose,
    request,
    run,
)


async def stands_at(bench: Bench, seq: int) -> None:
    while (await bench.faulty.get("m")).seq < seq:
        await asyncio.sleep(0.001)


def test_their_outcome_is_unknown_where_the_front_was_not_learned(tmp_path, monkeypatch):
    """They are in the journal, and a repetition is a duplicate."""

    async def scenario(bench: Bench) -> None:
        failing(monkeypatch, lambda _: stands_at(bench, BULK_ROWS + MORE))
        for got in await front_and_behind(bench, "k"):
            with pytest.raises(OutcomeUnknown):
                await got
        again = await bench.committer.submit(request("behind k", MORE))
        assert again.position.duplicate
        assert bench.replica.seq == BULK_ROWS + MORE

    run(tmp_path, scenario)


def test_a_fork_that_their_append_shows_is_known_before_their_turn(tmp_path, monkeypatch):
    """Until then nothing is served that the journal has lost."""
    previous = []

    async def scenario(bench: Bench) -> None:
        apply = Committer._apply

        async def saw(self: Committer, *args: Any) -> Any:
            previous.append(bench.replica.is_forked)
            return await apply(self, *args)

        await bench.send("one")
        monkeypatch.setattr(Committer, "_apply", saw)
        first = request(None, BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(request(None, MORE))))
        submit, waits = bench.committer.submit, []  # type: ignore[var-annotated]
        front = submit(first)
        while not waits:
            await asyncio.sleep(0)
        receipt = await waits[0]
        assert (await front).position.seq == 1 + BULK_ROWS
        assert (receipt.position.first_seq, receipt.position.seq) == (2, 1 + MORE)

    run(tmp_path, scenario)
    assert previous == [False, True]


def test_an_answer_of_what_was_read_meanwhile_shows_no_fork(tmp_path, monkeypatch):
    """The front was lost; the same number of rows replaced it and was read."""

    async def scenario(bench: Bench) -> None:
        waits: list[Any] = []
        await bench.send("one")

        async def read(committer: Committer) -> None:
            while (await bench.faulty.get("m")).seq < 1 + BULK_ROWS:
                await asyncio.sleep(0.001)
            await committer._catch_up(None)
            read_it.set()

        failing(monkeypatch, read)
        bench.faulty.may_go_on = read_it = asyncio.Event()
        submit, first = bench.committer.submit, request("front", BULK_ROWS)
        again = request("behind", BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(again)))
        for future in (submit(first), None):
            with pytest.raises(OutcomeUnknown):
                await (future or waits[0])
        await bench.committer.drain()
        assert bench.replica.seq == 1 + BULK_ROWS
        assert not bench.replica.is_forked

    run(tmp_path, scenario, [Fault.NONE, Fault.NONE, Fault.LATE])


def test_repeated_answer_is_not_a_contradiction(tmp_path, monkeypatch):
    """All rows behind were known; others have appended since, and the replica has read that."""

    async def scenario(bench: Bench) -> None:
        async def read(committer: Committer) -> None:
            while bench.committer._ahead is None:
                await asyncio.sleep(0)
            await asyncio.wait([bench.committer._ahead.appending])
            where = (bench.replica.id, bench.replica.incarnation, bytes(16), 10**9)
            await bench.faulty.append(AppendRequest(*where, request("others", 3).parts))
            await committer._catch_up(None)

        await bench.send("behind k", MORE)
        failing(monkeypatch, read)
        front, later = await front_and_behind(bench, "k")
        for future in (front, later):
            with pytest.raises(OutcomeUnknown):
                await future
        assert not bench.replica.is_forked

    run(tmp_path, scenario)


def test_they_are_another_replicas_where_this_one_is_let_go_of(tmp_path, monkeypatch):
    """The replica loaded in its place learns them and counts the loss: otherwise both count it."""

    async def scenario(bench: Bench) -> None:
        async def refused(_: Committer) -> None:
            await stands_at(bench, BULK_ROWS + MORE)
            bench.committer.refuse("another one is loaded")

        failing(monkeypatch, refused)
        front, later = await front_and_behind(bench)
        with pytest.raises(OutcomeUnknown, match="planted"):
            await front
        with pytest.raises(OutcomeUnknown, match="another one is loaded"):
            await later
        await bench.committer.drain()
        assert bench.replica.seq == 0

    run(tmp_path, scenario)


def test_an_answer_that_comes_as_the_front_is_being_learned_shows_no_fork(tmp_path, monkeypatch):
    """The last slice has moved `seq`, and the chain value is not yet that of the front's end."""
    met = []

    async def scenario(bench: Bench) -> None:
        learn_in_slices(bench.replica)  # so that they are learned in slices, in a thread
        run_in_thread = dualstream.service.replica.replica.run_in_thread

        async def answered_first(*args: Any) -> Any:
            outcome = await run_in_thread(*args)
            ahead = bench.committer._ahead
            if ahead is not None and ahead.front.seq == bench.replica.seq:
                met.append(ahead)
                await asyncio.wait([ahead.appending])
            return outcome

        monkeypatch.setattr(dualstream.service.replica.replica, "run_in_thread", answered_first)
        for got in await front_and_behind(bench):
            await got
            assert not bench.replica.is_forked

    run(tmp_path, scenario, [Fault.NONE, Fault.LATE])
    assert met


def test_a_fork_that_their_append_shows_is_known_while_the_front_is_learned(tmp_path, monkeypatch):
    """Slices take time, and nothing lost is served during all of it."""
    met = []

    async def scenario(bench: Bench) -> None:
        learn_in_slices(bench.replica)
        run_in_thread = dualstream.service.replica.replica.run_in_thread

        async def lost_first(*args: Any) -> Any:
            ahead = bench.committer._ahead
            if ahead is not None and not met:
                await asyncio.wait([ahead.appending])
                met.append((bench.replica.seq, bench.replica.is_forked))
            return await run_in_thread(*args)

        monkeypatch.setattr(dualstream.service.replica.replica, "run_in_thread", lost_first)
        await bench.send("one")
        first = request(None, BULK_ROWS)
        first.on_journalled = lambda: (lose(tmp_path, 1), waits.append(submit(request(None, MORE))))
        submit, waits = bench.committer.submit, []  # type: ignore[var-annotated]
        await submit(first)
        receipt = await waits[0]
        assert (receipt.position.first_seq, receipt.position.seq) == (2, 1 + MORE)
        assert not bench.replica.is_forked

    run(tmp_path, scenario)
    assert met == [(1, True)]
