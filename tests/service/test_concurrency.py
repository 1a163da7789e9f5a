"""Threads that do one thing after another, and tasks that their callers may leave."""

import asyncio
import gc
import logging
import math
import threading
import time
import weakref
from itertools import pairwise

import pytest

from dualstream.service.concurrency import (
    BEAT_S,
    INLINE_S,
    SLICE_S,
    STALL_S,
    LoopWatch,
    Pace,
    background_task,
    ensure_task,
    log,
    run_in_thread,
    run_to_completion,
    start,
)
from dualstream.solvers.spec.cost import Cost
from tests.support import PATIENCE_S, until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_work_in_the_shared_thread_is_done_one_after_the_other():
    under_way, most, threads = 0, 0, set()

    def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threads.add(threading.get_ident())
        threading.Event().wait(0.001)
        under_way -= 1
        if number == 3:
            raise ValueError(number)
        return number

    got = await asyncio.gather(*(run_in_thread(work, n) for n in range(8)), return_exceptions=True)
    assert most == 1 and threading.get_ident() not in threads
    assert [n for n in got if isinstance(n, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(got[3], ValueError)


@pytest.mark.anyio
async def test_started_work_runs_at_once_and_becomes_a_task_when_it_waits():
    steps: list[object] = []
    shared = asyncio.get_running_loop().create_future()

    async def work() -> None:
        steps.append(asyncio.current_task())
        await ensure_task()
        steps.append(asyncio.current_task())
        await ensure_task()  # it is a task already
        async with asyncio.timeout(30):
            steps.append(await shared)
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 / 0)
        steps.append("end")

    asyncio.get_running_loop().call_soon(start, work())
    await asyncio.sleep(0)
    assert steps == [None]
    await asyncio.sleep(0)
    shared.set_result(5)
    while steps[-1] != "end":
        await asyncio.sleep(0)
    assert isinstance(steps[1], asyncio.Task) and steps[2:] == [5, "end"]


@pytest.mark.anyio
@pytest.mark.parametrize("is_done", [False, True])
async def test_started_work_awaits_a_future_that_others_await(is_done):
    """Its first future, which another task awaits in between."""
    shared = asyncio.get_running_loop().create_future()
    got: list[object] = []

    async def work() -> None:
        got.append(await shared)

    start(work())
    other = asyncio.create_task(work())
    if is_done:
        shared.set_result(7)
    await asyncio.sleep(0)
    if not is_done:
        shared.set_result(7)
    await other
    await asyncio.sleep(0)
    assert got == [7, 7]


@pytest.mark.anyio
async def test_started_work_is_cancelled_as_a_task_is():
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("closed")

    before = asyncio.all_tasks()
    start(work())
    await asyncio.sleep(0)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and ended == ["cancelled", "closed"]


@pytest.mark.anyio
async def test_work_continues_when_its_caller_is_cancelled():
    begun, free, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await free.wait()
        done.set()

    caller = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    free.set()
    async with asyncio.timeout(30):
        await done.wait()


@pytest.mark.anyio
async def test_an_error_that_nobody_awaits_is_not_logged_and_one_that_is_awaited_is_raised():
    logged = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def fail() -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        await run_to_completion(fail())
    task = background_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert logged == []


def sizes(pace: Pace, rows: int, seconds_of: float) -> list[int]:
    """Rows of the slices of a batch whose rows take `seconds_of` each."""
    results = []
    while rows:
        results.append(pace.next_slice(rows, 0))
        pace.measured(pace.cost.seconds(results[-1], 0), results[-1] * seconds_of)
        rows -= results[-1]
    return results


def test_the_first_slice_is_small_and_the_next_ones_follow_the_clock():
    estimate = Cost(call=1e-5, row=1e-5)
    as_estimated = sizes(Pace(estimate), 5000, 1e-5)
    assert as_estimated[0] <= 25 and all(b <= 2 * a for a, b in pairwise(as_estimated))
    assert 100 <= max(as_estimated) <= 400
    slow = sizes(Pace(estimate), 1000, 1e-2)  # a thousand times slower than estimated
    assert slow[0] <= 25 and max(slow[1:]) <= 2
    fast = sizes(Pace(estimate), 200_000, 1e-7)
    assert max(fast) * 1e-7 > SLICE_S / 2


def test_a_row_that_takes_too_long_counts_at_once_and_a_fast_one_slowly():
    pace = Pace(Cost(call=1e-5, row=1e-5))
    for _ in range(10):
        pace.measured(1e-3, 1e-3)
    assert pace.is_short(50, 0)
    pace.measured(1e-4, 1.0)
    assert not pace.is_short(1, 0) and pace.is_costly
    pace.measured(1.0, 1e-4)
    assert not pace.is_short(1, 0)
    for _ in range(20):
        pace.measured(1.0, 1e-4)
    # The loop trusts it only so far.
    assert pace.is_short(1000, 0) and not pace.is_short(2000, 0)


def test_a_row_that_may_start_long_work_is_not_short():
    assert not Pace(Cost(row=1e-6, peak=1.0)).is_short(1, 0)
    assert Pace(Cost(row=1e-6, peak=INLINE_S)).is_short(1, 0)
    assert not Pace(Cost(entry=1e-7)).is_short(1, 100_000)


@pytest.mark.anyio
async def test_a_blocked_event_loop_is_measured_and_logged_with_the_code(caplog):
    name = "test_a_blocked_event_loop_is_measured"
    seen: list[float] = []
    watch = LoopWatch(seen.append)
    watching = asyncio.create_task(watch.run())
    with caplog.at_level(logging.WARNING, "dualstream.event_loop"):
        while not seen:
            await asyncio.sleep(0.01)
        caplog.clear()
        measured, blocked_at = len(seen), time.monotonic()
        while name not in watch._where:  # its thread may be late
            assert time.monotonic() < blocked_at + 30
            time.sleep(STALL_S + BEAT_S)
        blocked_s = time.monotonic() - blocked_at
        while len(seen) == measured:
            await asyncio.sleep(0.01)
    watching.cancel()
    assert seen[measured] > blocked_s - BEAT_S
    logged = next(one.getMessage() for one in caplog.records if one.name == log.name)
    assert logged.startswith(f"the event loop was blocked for {seen[measured]:.2f} s in ")
    assert name in logged


class Large:
    """As a model: its memory counts."""


def test_the_watch_keeps_nothing_of_the_code_that_blocked_the_loop() -> None:
    def blocks(large: Large) -> weakref.ref[Large]:
        watch._where = ""
        until(lambda: watch._where)
        return weakref.ref(large)

    watch = LoopWatch(lambda late: None)

    async def scenario() -> None:
        watching = asyncio.create_task(watch.run())
        while not math.isfinite(watch._due):
            await asyncio.sleep(0)
        result = blocks(Large())
        # The thread of the watch may be on its way out of the look.
        deadline = time.monotonic() + PATIENCE_S
        while result() is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert result() is None
        watching.cancel()

    asyncio.run(scenario())
