"""Forks: any evidence that the store lost what a replica applied stops it from serving.

The evidence is not only in entries read and appended in order. It is also in answers that arrive
while the replica learns, and in positions that the store does not hold.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import dualstream.service.replica.replica
from dualstream.service.features import ALL
from dualstream.service.features.certificate import series
from dualstream.service.features.certificate.reference_optimum import Reference, References
from dualstream.service.features.members.controls import Demote
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.jobs.follower import Follower
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import (
    AppendRequest,
    JournalUnavailable,
    LogPosition,
    MissingPosition,
    OutcomeUnknown,
)
from dualstream.service.models.deps import SolverThread
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.versions import take_version
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.groups import BULK_ROWS
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.solvers import RefitError
from tests.service.features.unlearning.support import learn, of_five, registry_on, unlearning
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
from tests.support import PATIENCE_S


async def append_elsewhere(bench: Bench, nonce: int, rows: int) -> None:
    where = (bench.replica.id, bench.replica.incarnation, nonce.to_bytes(16, "big"), 10**9)
    await bench.faulty.journal.append(
        AppendRequest(*where, request(f"elsewhere {nonce}", rows).parts)
    )


async def is_served(replica: Replica) -> bool:
    try:
        async with replica.serving():
            return True
    except JournalUnavailable:
        return False


async def until_served(replica: Replica) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_served(replica):
            await asyncio.sleep(0.001)


def test_rows_across_its_position_reveal_a_fork(tmp_path, monkeypatch):
    """They were appended ahead; then it read rows of other writers, which are lost by then.

    A front that fails lets it read on.
    """

    async def scenario(bench: Bench) -> None:
        async def read(reading: Callable[[], Awaitable[Any]]) -> None:
            while bench.committer._ahead is None:
                await asyncio.sleep(0)
            await append_elsewhere(bench, 1, 3)
            await reading()
            lose(tmp_path, 1)
            lost.set()

        await bench.send("one")
        bench.faulty.may_go_on = lost = asyncio.Event()
        failing(monkeypatch, lambda committer: read(lambda: committer._catch_up(None)))
        front, later = await front_and_behind(bench, "k")
        for future in (front, later):
            with pytest.raises(OutcomeUnknown):
                await future
        assert not await is_served(bench.replica)
        await bench.committer.refresh()
        assert await is_served(bench.replica)

    run(tmp_path, scenario, [Fault.NONE, Fault.NONE, Fault.DELAYED])


def test_what_is_answered_to_its_predecessor_shows_it(tmp_path, monkeypatch):
    """The predecessor was evicted with bulk rows in flight, which show the loss."""
    loaded: list[Committer] = []
    shown = []

    async def scenario(bench: Bench) -> None:
        def on_late() -> None:
            loaded[0].check_again()
            shown.append(loaded[0]._replica.is_forked)

        async def succeeded(_: Committer) -> None:
            while bench.committer._ahead is None:
                await asyncio.sleep(0)
            bench.committer.refuse("another one is loaded", on_late)
            replica = Replica(await bench.faulty.get("m"), ALL)
            await recover(replica, bench.faulty)
            loaded.append(Committer(bench.faulty, replica, 5.0))
            lose(tmp_path, 1)
            lost.set()

        await bench.send("one")
        bench.faulty.may_go_on = lost = asyncio.Event()
        failing(monkeypatch, succeeded)
        for got in await front_and_behind(bench):
            with pytest.raises(OutcomeUnknown):
                await got
        replica = loaded[0]._replica
        await until_served(replica)
        assert replica.seq == 1 + MORE

    run(tmp_path, scenario, [Fault.NONE, Fault.NONE, Fault.DELAYED])
    assert shown == [True]


def test_the_page_that_is_read_ahead_shows_it(tmp_path, monkeypatch):
    """It is there while the one before it is learned, in slices."""
    served = []

    async def scenario(bench: Bench) -> None:
        await bench.send("one")
        await append_elsewhere(bench, 1, BULK_ROWS)
        await append_elsewhere(bench, 2, 5)
        learn_in_slices(bench.replica)
        monkeypatch.setattr(dualstream.service.replica.replica, "READ_BYTES", 2000)
        read, run_in_thread, came = (
            Replica._read,
            dualstream.service.replica.replica.run_in_thread,
            asyncio.Event(),
        )

        async def lost(self: Replica, journal: Any, after: int) -> Any:
            if after == 1 or came.is_set():
                return await read(self, journal, after)
            lose(tmp_path, 2)
            await append_elsewhere(bench, 3, MORE)
            page = await read(self, journal, after)
            came.set()
            return page

        async def behind(*args: Any) -> Any:
            await came.wait()
            async with asyncio.timeout(PATIENCE_S):
                while not served and not bench.replica.is_forked:
                    await asyncio.sleep(0.001)
            served.append(bench.replica.is_forked)
            return await run_in_thread(*args)

        monkeypatch.setattr(Replica, "_read", lost)
        monkeypatch.setattr(dualstream.service.replica.replica, "run_in_thread", behind)
        await bench.committer.refresh()
        assert bench.replica.seq == 1 + MORE
        assert await is_served(bench.replica)

    run(tmp_path, scenario)
    assert served[0] is True


def test_a_page_that_comes_late_leaves_a_rebuilt_replica_alone(tmp_path, monkeypatch):
    """The one before it failed, and what was read ahead is nobody's any more."""

    async def scenario(bench: Bench) -> None:
        await bench.send("one")
        await append_elsewhere(bench, 1, BULK_ROWS)
        await append_elsewhere(bench, 2, 5)
        monkeypatch.setattr(dualstream.service.replica.replica, "READ_BYTES", 2000)
        read, apply, may_come, late = Replica._read, Replica.apply, asyncio.Event(), []

        async def waits(self: Replica, journal: Any, after: int) -> Any:
            if after == 1 or late:
                return await read(self, journal, after)
            lose(tmp_path, 2)
            await append_elsewhere(bench, 3, MORE)
            late.append(after)
            await may_come.wait()
            return await read(self, journal, after)

        async def fails(self: Replica, *args: Any) -> None:
            while not late:
                await asyncio.sleep(0)
            monkeypatch.setattr(Replica, "apply", apply)
            raise JournalUnavailable("planted")

        monkeypatch.setattr(Replica, "_read", waits)
        monkeypatch.setattr(Replica, "apply", fails)
        with pytest.raises(JournalUnavailable):
            await bench.committer.refresh()
        await bench.committer.refresh()
        assert bench.replica.seq == 1 + MORE
        may_come.set()
        await asyncio.sleep(0.05)
        assert await is_served(bench.replica)

    run(tmp_path, scenario)


def test_a_head_that_was_asked_for_before_clears_no_suspicion(tmp_path, monkeypatch):
    """The store loses records once it has shown the head, and that is suspected by then."""

    async def scenario(bench: Bench) -> None:
        await bench.send("one")
        await bench.committer.submit(request("two", 3))
        catch_up = Replica.catch_up

        async def lost(self: Replica, *args: Any) -> None:
            monkeypatch.setattr(Replica, "catch_up", catch_up)
            lose(tmp_path, 1)
            bench.committer.suspect()
            await catch_up(self, *args)

        monkeypatch.setattr(Replica, "catch_up", lost)
        await bench.committer.refresh()
        assert bench.replica.seq == 1
        assert await is_served(bench.replica)

    run(tmp_path, scenario)


def test_a_control_whose_state_the_store_does_not_hold_shows_it(tmp_path):
    async def scenario(bench: Bench) -> None:
        await bench.send("one")
        await bench.committer.submit(request("two", 3))
        position = LogPosition(bench.replica.seq, bench.replica.chain)
        lose(tmp_path, 1)
        with pytest.raises(MissingPosition):
            await bench.committer.submit(ControlRequest.of(Demote(), held=position))
        assert bench.replica.seq == 1
        assert await is_served(bench.replica)

    run(tmp_path, scenario)


def of_five_and(
    tmp_path: Any, scenario: Callable[[Model, ModelRegistry, Any], Awaitable[None]]
) -> None:
    """Runs it on a model of five samples."""

    async def whole() -> None:
        journal = await open_journal(f"sqlite:///{tmp_path / 'c.db'}")
        try:
            registry = registry_on(journal)
            try:
                await scenario(await of_five(registry), registry, journal)
            finally:
                await registry.close()
        finally:
            await journal.close()

    asyncio.run(whole())


@pytest.mark.parametrize("what", ["snapshot", "version", "clean-up"])
def test_position_no_longer_in_the_lineage_reveals_a_fork(tmp_path, monkeypatch, what):
    """Of what was lost no snapshot is taken, and no version; nor is it served from then on."""

    async def scenario(model: Model, _: ModelRegistry, journal: Any) -> None:
        refresh = Committer.refresh
        served = []

        async def saw(self: Committer, seq: int | None = None) -> None:
            served.append(await is_served(model.replica))
            await refresh(self, seq)

        if what == "snapshot":
            lose(tmp_path, 1)
            monkeypatch.setattr(Committer, "refresh", saw)
            await model.snapshots._run(model.replica.capture(), lambda: None)
        elif what == "version":
            copy_put = journal.copy_put

            async def lost(*args: Any) -> str:
                lose(tmp_path, 1)
                monkeypatch.setattr(Committer, "refresh", saw)
                return await copy_put(*args)

            monkeypatch.setattr(journal, "copy_put", lost)
            with pytest.raises(MissingPosition):
                await take_version(model, journal, "v", "")
        else:
            await model.submit(ControlRequest.of(unlearning("1")))
            await learn(model, "5")
            lose(tmp_path, 1)
            monkeypatch.setattr(Committer, "refresh", saw)
            model.job(UnlearnCleanup).begin()
            async with asyncio.timeout(PATIENCE_S):
                while not served:
                    await asyncio.sleep(0.001)
        assert served[0] is False
        await until_served(model.replica)
        assert model.replica.seq == (6 if what == "clean-up" else 4)

    of_five_and(tmp_path, scenario)


def test_a_place_that_was_let_go_of_is_no_fork(tmp_path):
    """The store trimmed the journal past it; the head shows that the replica is not forked."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        position = await model.position()
        await learn(model, "5")
        await learn(model, "6")
        await model.snapshots.write()
        await journal.trim("m", model.record.incarnation, 7, behind=0)
        with pytest.raises(MissingPosition):
            await model.submit(ControlRequest.of(Demote(), held=position))
        assert await is_served(model.replica)
        assert registry.find("m") is model
        text = (await registry.counters.exposition(registry)).decode()
        assert 'dualstream_forks_total{model="m"}' not in text

    of_five_and(tmp_path, scenario)


def test_earlier_head_reveals_a_fork(tmp_path, monkeypatch):
    """Before the journal is read, which waits for a while, as rows may come."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        monkeypatch.setattr("dualstream.service.jobs.follower.PAUSE_S", 0.05)
        follower = Follower(registry, journal)
        lose(tmp_path, 1)
        await follower._check_heads()
        assert not await is_served(model.replica)
        await until_served(model.replica)
        assert model.replica.seq == 4

    of_five_and(tmp_path, scenario)


def test_replica_that_failed_within_a_row_is_rebuilt(tmp_path, monkeypatch):
    """The row is learned but not counted: applying the entry again learns it twice."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        progress = type(model.replica.progress)
        count, left = progress.count, [MemoryError("planted")]

        def fail_once(*args: Any) -> Any:
            if left:
                raise left.pop()
            return count(*args)

        monkeypatch.setattr(progress, "count", fail_once)
        with pytest.raises(MemoryError):
            await learn(model, "5")
        with pytest.raises(JournalUnavailable):
            await learn(model, "6")
        model = await registry.get("m")
        await learn(model, "6")
        alone = Replica(await journal.get("m"), ALL)
        await recover(alone, journal)
        live = model.replica.capture().snapshot_arrays
        for name, array in alone.capture().snapshot_arrays.items():
            assert live[name].tobytes() == array.tobytes(), name
        assert alone.learner.samples == 7

    of_five_and(tmp_path, scenario)


async def other_row(tmp_path: Any, model: Model) -> None:
    """The last row is lost and another one takes its seq."""
    lose(tmp_path, 1)
    await learn(model, "another")
    assert model.replica.seq == 5 and not model.replica.is_forked


async def reference_of(registry: ModelRegistry) -> Reference:
    """Without when it was found."""
    return replace(await (await registry.get("m")).job(References).find(), at=0.0)


async def fresh_reference(journal: Any) -> Reference:
    fresh = registry_on(journal)
    try:
        return await reference_of(fresh)
    finally:
        await fresh.close()


def test_reference_of_a_lost_row_is_computed_again(tmp_path):
    """At the same seq, where another row stands now."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        before = await reference_of(registry)
        assert before.position.seq == 5 and series.measure(model) is not None
        await other_row(tmp_path, model)
        assert series.measure(model) is None
        result = await reference_of(registry)
        assert result.position.seq == 5 and result.lower != before.lower
        assert result == await fresh_reference(journal)
        assert series.measure(model)[0] == result.lower
        kept = model.job(References).newest
        assert await model.job(References).find() is kept

    of_five_and(tmp_path, scenario)


def test_reference_is_computed_again_if_its_window_is_lost(tmp_path, monkeypatch):
    """The waiting client gets the optimum of the rows that exist."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        run, solved = SolverThread.run, []

        async def lost_meanwhile(self: SolverThread, *work: Any) -> Any:
            solved.append(await run(self, *work))
            if len(solved) == 1:
                await other_row(tmp_path, model)
            return solved[-1]

        monkeypatch.setattr(SolverThread, "run", lost_meanwhile)
        got = await asyncio.gather(reference_of(registry), reference_of(registry))
        assert len(solved) == 2 and got[0] == got[1] != replace(solved[0], at=0.0)
        assert got[0] == await fresh_reference(journal)
        assert model.job(References).newest is solved[1]

    of_five_and(tmp_path, scenario)


def test_there_is_no_telling_that_a_lost_window_had_no_rows(tmp_path, monkeypatch):
    """They were lost, and others learned, before the client was answered."""

    async def scenario(model: Model, registry: ModelRegistry, journal: Any) -> None:
        run, refused = SolverThread.run, []

        async def lost_meanwhile(self: SolverThread, *work: Any) -> Any:
            if not refused:
                refused.append(RefitError("no rows are retained"))
                await other_row(tmp_path, model)
                raise refused[0]
            return await run(self, *work)

        monkeypatch.setattr(SolverThread, "run", lost_meanwhile)
        assert await reference_of(registry) == await fresh_reference(journal)

    of_five_and(tmp_path, scenario)


def test_half_a_row_is_not_named(tmp_path, monkeypatch):
    """A group fails in the middle of a row, right before a version is taken."""

    async def scenario(model: Model, _: ModelRegistry, journal: Any) -> None:
        async def refreshed(*_: Any) -> None:
            with monkeypatch.context() as failing:
                failing.setattr(type(model.replica.progress), "count", fail)
                with pytest.raises(MemoryError):
                    await learn(model, "5")

        def fail(*_: Any) -> None:
            raise MemoryError("planted")

        monkeypatch.setattr(Model, "refresh", refreshed)
        with pytest.raises(JournalUnavailable):
            await take_version(model, journal, "v", "")
        assert await journal.versions("m", model.record.incarnation) == []

    of_five_and(tmp_path, scenario)
