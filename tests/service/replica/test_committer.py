"""Groups over a store that loses answers, refuses, or is slow: nothing lost, nothing doubled."""

import asyncio
from typing import Any

import numpy as np
import pytest

from dualstream.service.concurrency import run_to_completion
from dualstream.service.features import ALL
from dualstream.service.features.members.controls import Demote
from dualstream.service.journal.chain import OURS
from dualstream.service.journal.protocol import (
    AppendRequest,
    JournalUnavailable,
    Limits,
    LogPosition,
    NewPendingRow,
    NonceForgotten,
    OutcomeUnknown,
    Part,
    TooManyPendingRows,
)
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.groups import BULK_ROWS, GROUP_ROWS
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest, Request
from dualstream.solvers import Batch
from tests.service.journal.faulty import Fault
from tests.service.replica.committer_bench import Bench, lose, request, run


def test_request_queued_at_a_refusing_replica_reports_no_effect(tmp_path):
    """And who comes later; what is under way is brought to its end."""

    async def scenario(bench: Bench) -> None:
        bench.faulty.may_go_on = asyncio.Event()
        under_way = asyncio.create_task(bench.send("first"))
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(bench.send("second"))
        refreshing = asyncio.create_task(bench.committer.refresh())
        await asyncio.sleep(0.01)
        assert not under_way.done()
        bench.committer.refuse("another one is loaded")
        bench.faulty.may_go_on.set()
        assert (await under_way).position.seq == 1
        for refused in (waiting, bench.send("third"), refreshing, bench.committer.refresh()):
            with pytest.raises(JournalUnavailable, match="another one is loaded"):
                await refused
        assert bench.committer.is_idle and bench.replica.seq == 1

    run(tmp_path, scenario, [Fault.DELAYED])


def test_queued_requests_share_one_append(tmp_path):
    async def scenario(bench: Bench) -> None:
        await asyncio.gather(*(bench.send(f"k{n}") for n in range(50)))

    bench = run(tmp_path, scenario, [Fault.LATE])
    assert bench.groups == [50]


def test_rows_of_others_and_own_ones_are_learned_in_one_pass(tmp_path, monkeypatch):
    learned = []

    async def scenario(bench: Bench) -> None:
        replica = bench.replica
        learn = replica._learn_slice

        async def append_another(number: int) -> None:
            nonce = number.to_bytes(16, "big")
            parts = request(f"other{number}", 5).parts
            await bench.faulty.append(
                AppendRequest(replica.id, replica.incarnation, nonce, 10**9, parts)
            )

        def watched(batch: Batch) -> Any:
            learned.append(len(batch))
            return learn(batch)

        monkeypatch.setattr(replica, "_learn_slice", watched)
        for number in range(3):
            await append_another(number)
        receipt = await bench.send("own", 4)
        assert (receipt.position.first_seq, receipt.position.seq) == (16, 19)
        assert receipt.scores is not None
        assert len(receipt.scores) == 4
        # What was left out of a group is not in its entry.
        await append_another(3)
        again, new = await asyncio.gather(bench.send("own", 4), bench.send("new"))
        assert again.position.duplicate
        assert (new.position.seq, replica.seq) == (25, 25)

    run(tmp_path, scenario)
    assert learned == [19, 5, 1]


def test_few_rows_start_no_task_after_duplicates_or_reported_ones(tmp_path):
    async def scenario(bench: Bench) -> None:
        tasks = []

        def made(loop: Any, coro: Any, **options: Any) -> Any:
            tasks.append(coro)
            return asyncio.Task(coro, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(made)
        # Which has no task for an append, either.
        bench.committer._journal = bench.faulty.journal
        submit = bench.committer.submit
        seqs = [(await one).position.seq for one in [*map(submit, map(request, "ab"))]]
        journal, replica = bench.faulty.journal, bench.replica
        other = request("other", 5).parts
        await journal.append(
            AppendRequest(replica.id, replica.incarnation, bytes(16), 10**9, other)
        )
        seqs.append((await submit(request("c"))).position.seq)
        await bench.committer.drain()
        asyncio.get_running_loop().set_task_factory(None)
        assert seqs == [1, 2, 8]
        assert not tasks

    assert run(tmp_path, scenario).groups == [2, 1]


def test_requests_that_arrive_meanwhile_form_the_next_group(tmp_path):
    async def scenario(bench: Bench) -> None:
        first = asyncio.create_task(bench.send("first"))
        await asyncio.sleep(0.002)
        await asyncio.gather(first, *(bench.send(f"k{n}") for n in range(20)))

    bench = run(tmp_path, scenario, [Fault.DELAYED])
    assert bench.groups == [1, 20]


def test_group_is_bounded_and_a_larger_request_is_alone(tmp_path):
    async def scenario(bench: Bench) -> None:
        await asyncio.gather(
            bench.send("a", 10), bench.send("big", GROUP_ROWS + 1), bench.send("b"), bench.send("c")
        )

    assert run(tmp_path, scenario).groups == [10, GROUP_ROWS + 1, 2]


def test_rows_in_bulk_are_appended_while_those_in_front_are_learned(tmp_path, monkeypatch):
    learned = []

    async def scenario(bench: Bench) -> None:
        replica, learn = bench.replica, bench.replica._learn
        sent = [request(name, GROUP_ROWS) for name in "abc"]
        stands = [asyncio.Event() for _ in sent]
        for one, event in zip(sent, stands, strict=True):
            one.on_journalled = event.set

        async def watched(batch: Batch) -> Any:
            learned.append(len(batch))
            if len(learned) == 2:  # what another process appends is between this one and the next
                nonce, parts = bytes(16), request("other", 5).parts
                await bench.faulty.append(
                    AppendRequest(replica.id, replica.incarnation, nonce, 10**9, parts)
                )
                last.append(bench.committer.submit(sent[2]))
            if len(learned) <= 2:
                await asyncio.wait_for(stands[len(learned)].wait(), 60)
            return await learn(batch)

        monkeypatch.setattr(replica, "_learn", watched)
        last: list[Any] = []
        first = await asyncio.gather(*map(bench.committer.submit, sent[:2]))
        results = [*first, *await asyncio.gather(*last)]
        ends = [GROUP_ROWS, 2 * GROUP_ROWS, 3 * GROUP_ROWS + 5]
        assert [receipt.position.seq for receipt in results] == ends
        assert all(len(receipt.scores) == GROUP_ROWS for receipt in results)

    run(tmp_path, scenario)
    assert learned == [GROUP_ROWS, GROUP_ROWS, GROUP_ROWS + 5]


def test_callback_of_journalled_rows_can_submit_before_they_are_learned(tmp_path, monkeypatch):
    """An upload: the store works on its next chunk while one is learned."""
    done = []

    async def scenario(bench: Bench) -> None:
        learn, append = bench.replica._learn, bench.faulty.append
        first, second, stands = request("a", BULK_ROWS), request("b", BULK_ROWS), asyncio.Event()
        first.on_journalled, first.is_followed = stands.set, True

        async def learns(batch: Batch) -> Any:
            done.append("learn")
            return await learn(batch)

        async def appends(*args: Any) -> Any:
            done.append("append")
            return await append(*args)

        async def submit() -> Any:
            return await bench.committer.submit(second)

        async def follow() -> Any:
            await stands.wait()
            return await run_to_completion(submit())

        monkeypatch.setattr(bench.replica, "_learn", learns)
        monkeypatch.setattr(bench.faulty, "append", appends)
        await asyncio.gather(bench.committer.submit(first), asyncio.create_task(follow()))

    assert run(tmp_path, scenario).replica.seq == 2 * BULK_ROWS
    assert done == ["append", "append", "learn", "learn"]


def test_contradicting_append_is_not_followed_while_it_is_learned(tmp_path):
    async def scenario(bench: Bench) -> None:
        await bench.send("k", BULK_ROWS)
        other = request("x", BULK_ROWS)
        other = Request.of(other.rows, make_key(KeyKind.REQUEST, "k"), b"g" * 16)
        other.on_journalled = lambda: pytest.fail("it is in conflict")
        assert (await bench.committer.submit(other)).position.conflict

    assert run(tmp_path, scenario).replica.seq == BULK_ROWS


def test_answers_are_cut_from_the_group_in_order(tmp_path):
    async def scenario(bench: Bench) -> None:
        receipts = await asyncio.gather(*(bench.send(f"k{n}", n) for n in (3, 1, 5)))
        assert [r.position.first_seq for r in receipts] == [1, 4, 5]
        alone = Replica(await bench.faulty.get("m"), ALL)
        for n, receipt in zip((3, 1, 5), receipts, strict=True):
            rows = request(f"k{n}", n).rows
            outcome = await alone._learn(rows)
            assert receipt.scores == outcome.scores.tolist()
            assert receipt.losses == outcome.losses.tolist()

    run(tmp_path, scenario)


@pytest.mark.parametrize("fault", [Fault.UNANSWERED, Fault.LOST])
def test_append_of_unknown_outcome_is_repeated_and_not_doubled(tmp_path, fault):
    async def scenario(bench: Bench) -> None:
        receipts = await asyncio.gather(*(bench.send(f"k{n}") for n in range(5)))
        assert [r.position.seq for r in receipts] == [1, 2, 3, 4, 5]
        assert all(r.scores is not None for r in receipts)

    bench = run(tmp_path, scenario, [fault, Fault.UNANSWERED, Fault.REFUSED, fault])
    assert bench.replica.seq == 5


@pytest.mark.parametrize("key", [None, "key"])
def test_an_append_is_not_doubled_though_many_come_before_it_is_repeated(tmp_path, key):
    """More than the store keeps nonces of."""
    limits = Limits(nonces=50)
    others = limits.nonces + 1

    async def scenario(bench: Bench) -> None:
        record = await bench.faulty.get("m")
        await bench.committer.submit(request("first"))
        append, done = bench.faulty.append, asyncio.Event()

        async def unanswered(*args: Any) -> Any:
            bench.faulty.append = append
            appended = await append(*args)
            for _ in range(others):
                part = request(None).parts[0]
                await append(
                    AppendRequest(record.id, record.incarnation, OURS.make(), appended.seq, [part])
                )
            done.set()
            raise OutcomeUnknown("planted")

        bench.faulty.append = unanswered
        receipt = await bench.committer.submit(request(key))
        assert done.is_set()
        assert (receipt.position.seq, receipt.position.duplicate) == (2, False)
        assert (await bench.faulty.get("m")).seq == others + 2

    assert run(tmp_path, scenario, timeout_s=60.0, limits=limits).replica.seq == others + 2


@pytest.mark.parametrize("key", [None, "key"])
def test_where_nobody_can_tell_any_more_that_is_said_or_it_is_asked_for_by_its_key(tmp_path, key):
    async def scenario(bench: Bench) -> None:
        append, query = bench.faulty.append, list[Any]()

        async def forgotten(request: AppendRequest) -> Any:
            query.append(request.repeats)
            if request.repeats is not None:
                raise NonceForgotten("m")
            appended = await append(request)
            if len(query) == 1:
                raise OutcomeUnknown("planted")
            return appended

        bench.faulty.append = forgotten
        position = LogPosition(bench.replica.seq, bench.replica.chain)
        if key is None:
            with pytest.raises(OutcomeUnknown, match="outcome .* is unknown"):
                await bench.committer.submit(request(key))
            assert query == [None, position]
        else:
            assert (await bench.send(key)).position.seq == 1
            assert query == [None, position, None]

    run(tmp_path, scenario)


def test_refused_append_fails_its_group_alone(tmp_path):
    async def scenario(bench: Bench) -> None:
        with pytest.raises(JournalUnavailable):
            await bench.committer.submit(request("refused"))
        assert (await bench.send("next")).position.seq == 1

    run(tmp_path, scenario, [Fault.REFUSED])


def test_too_many_pending_rows_fail_only_the_requests_that_store_some(tmp_path, monkeypatch):
    async def scenario(bench: Bench) -> None:
        append = bench.faulty.append

        async def full(wanted: AppendRequest) -> Any:
            if any(part.pending is not None for part in wanted.parts):
                raise TooManyPendingRows("m", 3, 3, 1000)
            return await append(wanted)

        monkeypatch.setattr(bench.faulty, "append", full)
        key = make_key(KeyKind.LABEL, "a")
        storing = request(None)
        parts = [Part(storing.parts[0].body, 1, key, pending=NewPendingRow(key, b"row"))]
        too_many = [bench.committer.submit(Request(parts, storing.rows)) for _ in range(2)]
        others = [asyncio.create_task(bench.send(key)) for key in "bc"]
        for future in too_many:
            with pytest.raises(TooManyPendingRows):
                await future
        assert [(await other).position.seq for other in others] == [1, 2]

    bench = run(tmp_path, scenario)
    assert bench.groups == [2]


def test_outcome_still_unknown_at_the_deadline_is_said_and_can_be_repeated(tmp_path):
    async def scenario(bench: Bench) -> None:
        with pytest.raises(OutcomeUnknown):
            await bench.committer.submit(request("k"))
        bench.faulty.faults = iter(())
        # It was done: the client's repetition is a duplicate, and the state has the row once.
        receipt = await bench.send("k")
        assert receipt.position.duplicate and receipt.position.seq == 1
        assert (await bench.send("other")).position.seq == 2

    run(tmp_path, scenario, [Fault.UNANSWERED] * 100, timeout_s=0.02)


def test_keys_within_one_group_are_taken_once(tmp_path):
    async def scenario(bench: Bench) -> None:
        first, second, third = await asyncio.gather(
            bench.send("k", 2), bench.send("k", 2), bench.send("other")
        )
        assert not first.position.duplicate and second.position.duplicate
        assert second.position.seq == first.position.seq == 2
        assert second.scores is None and first.scores is not None
        assert third.position.seq == 3

    run(tmp_path, scenario)


def test_same_key_with_other_rows_is_a_conflict(tmp_path):
    async def scenario(bench: Bench) -> None:
        await bench.send("k")
        other = Request.of(request("x").rows, make_key(KeyKind.REQUEST, "k"), b"g" * 16)
        receipt = await bench.committer.submit(other)
        assert receipt.position.conflict and receipt.scores is None

    assert run(tmp_path, scenario).replica.seq == 1


@pytest.mark.parametrize("broken", [("on_group",), ("on_advance",), ("on_advance", "on_failure")])
def test_failing_group_listener_delays_no_request(tmp_path, monkeypatch, broken):
    async def scenario(bench: Bench) -> None:
        async with asyncio.timeout(60):
            with monkeypatch.context() as planted:
                for name in broken:
                    planted.setattr(bench, name, _breaks)
                await asyncio.wait([bench.committer.submit(request("first"))])
            assert (await bench.send("next")).position.seq == 2

    run(tmp_path, scenario)


def test_a_group_that_cannot_even_be_sent_fails_alone(tmp_path, monkeypatch):
    async def scenario(bench: Bench) -> None:
        async with asyncio.timeout(60):
            with monkeypatch.context() as planted:
                planted.setattr(ControlRequest, "change", property(_breaks))
                with pytest.raises(ValueError, match="planted"):
                    await bench.committer.submit(ControlRequest.of(Demote()))
            assert (await bench.send("next")).position.seq == 1

    run(tmp_path, scenario)


def _breaks(*_: Any) -> None:
    raise ValueError("planted")


def test_queue_drains_after_all_its_clients_disconnected(tmp_path):
    async def scenario(bench: Bench) -> None:
        async with bench.committer.between_groups():
            leaving = bench.committer.submit(request("leaving"))
            for _ in range(5):  # it has gathered, and waits for its turn
                await asyncio.sleep(0)
            leaving.cancel()
            draining = asyncio.create_task(bench.committer.drain())
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await draining
        assert (await bench.send("next")).position.seq == 1

    run(tmp_path, scenario)


def test_client_that_left_does_not_take_its_group_along(tmp_path):
    async def scenario(bench: Bench) -> None:
        leaving = asyncio.create_task(bench.send("leaving"))
        staying = asyncio.create_task(bench.send("staying"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).position.seq == 2

    run(tmp_path, scenario, [Fault.LATE])


@pytest.mark.parametrize(("requests", "most"), [(15, 3), (3, 2 * BULK_ROWS)])
def test_many_faults_in_any_order(tmp_path, requests, most):
    rng = np.random.default_rng(3)
    kinds = [Fault.NONE, Fault.LOST, Fault.UNANSWERED, Fault.LATE, Fault.DELAYED]
    faults = [kinds[k] for k in rng.integers(0, len(kinds), 400)]

    async def client(bench: Bench, name: int) -> None:
        for n in range(requests):
            await bench.send(f"{name}-{n}", most * (1 + n % 3) // 3)

    async def scenario(bench: Bench) -> None:
        bench.faulty.delay_s = 0.001
        await asyncio.gather(*(client(bench, name) for name in range(8)))

    bench = run(tmp_path, scenario, faults)
    rows = sum(most * (1 + n % 3) // 3 for n in range(requests))
    assert bench.replica.seq == 8 * rows


def test_snapshot_that_fails_does_not_stop_the_committer(tmp_path, caplog):
    async def scenario(bench: Bench) -> None:
        def fail(before: int, after: int) -> None:
            raise RuntimeError("planted")

        bench.on_advance = fail
        assert (await bench.send("a")).position.seq == 1
        assert (await bench.send("b")).position.seq == 2

    run(tmp_path, scenario)
    assert "planted" in caplog.text


def test_rows_that_are_known_to_be_lost_are_not_acknowledged(tmp_path, monkeypatch):
    """Other rows took their positions in the journal."""

    async def scenario(bench: Bench) -> None:
        journal = bench.faulty.journal
        other = Replica(await journal.get("m"), ALL)
        await bench.send("one")
        await bench.send("lost")
        lose(tmp_path, 1)
        base, left = journal.base, ["once"]

        async def lose_and_read(model: str) -> Any:
            if left:
                left.pop()
                lose(tmp_path, 1)
                await recover(other, journal)
                await Committer(journal, other, 5.0).submit(request("another"))
            return await base(model)

        monkeypatch.setattr(journal, "base", lose_and_read)
        with pytest.raises(OutcomeUnknown, match="has lost this append"):
            await bench.committer.submit(request("two"))
        assert not left and bench.replica.seq == 2
        bench.acknowledged.pop()  # what was lost

    run(tmp_path, scenario)
