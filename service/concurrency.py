"""Worker threads, background tasks and a lock: every thread pool and shielded task of the server.

Work on many small arrays takes and releases the interpreter's lock (GIL) at every array. Several
threads with such work hand the lock to each other and to the event loop thousands of times a
second: eight models loaded at once took ten times as long as one after the other. So a
`SingleThread` does one piece of work after another, and `run_in_thread` has one for the process.

`Pace` decides which work on rows is short enough for the event loop, and where longer work is split
into slices. `LoopWatch` measures how long the event loop was blocked.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType, coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

log = logging.getLogger("dualstream.event_loop")

P = ParamSpec("P")
T = TypeVar("T")

# The event loop holds only weak references to its tasks.
_tasks: set["asyncio.Task[Any]"] = set()


class SingleThread:
    """A thread that runs one piece of work after another; `niceness` lowers its priority."""

    def __init__(self, name: str, niceness: int = 0) -> None:
        initializer = partial(lower_priority, niceness) if niceness else None
        self._pool = ThreadPoolExecutor(1, name, initializer)

    async def run(self, work: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Return what `work` returns. It is finished even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Drop the work that waits. The thread ends after the work that it does now."""
        self._pool.shutdown(wait=False, cancel_futures=True)


run_in_thread = SingleThread("arrays").run
"""Run short work on arrays in the thread that the whole process shares for it."""
run_long_in_thread = SingleThread("long rows").run
"""As `run_in_thread`, for work of more than LONG_S. Short work does not wait for it."""
run_view_in_thread = SingleThread("views").run
"""As `run_in_thread`, for views of large states."""
run_copy_in_thread = SingleThread("copies").run
"""As `run_in_thread`, for encoding and reading copies of states, which may take seconds."""


async def run_short_here(is_short: bool, work: Callable[..., T], *args: Any) -> T:
    """Run work in the event loop if it is short, else in a thread of the default pool."""
    return work(*args) if is_short else await asyncio.to_thread(work, *args)


def lower_priority(niceness: int) -> None:
    """Set the niceness of the calling thread; on Linux each thread has its own.

    Learning and predictions come first. On a busy core a thread of niceness 5 takes up to a quarter
    of the core, one of 10 a tenth, one of 19 a hundredth.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def background_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a task that the caller need not keep or await. Its error is not logged."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_forget)
    return task


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. It runs to its end even if the caller is cancelled."""
    return await asyncio.shield(background_task(work))


def start(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in this event-loop iteration. If it waits, a task runs the rest.

    Most short work does not wait, and a task costs about as much time as learning a row. Before its
    first wait the work has no current task; see `ensure_task`.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return
    task = asyncio.create_task(_run_rest(work, awaited))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def ensure_task() -> None:
    """Let the work that `start` runs become a task: `asyncio.timeout`, in stores, needs one."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


async def _run_rest(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _rest_of(work, awaited)


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Resume started work, which awaits the future `awaited`, or None: the next iteration."""
    if awaited is not None:
        # Another task that awaits the same future clears the mark of `await`.
        awaited._asyncio_future_blocking = True
    with contextlib.suppress(StopIteration):
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(value)


def _forget(task: "asyncio.Task[Any]") -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio logs an error that no caller awaits


class FifoLock:
    """Mutual exclusion in order of arrival.

    `release` hands the lock to the next waiter directly, so no later caller can overtake it.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Is the lock taken?"""
        return self._is_taken

    @property
    def has_waiters(self) -> bool:
        """Does a caller wait for the lock?"""
        return not all(future.done() for future in self._waiting)

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether it was."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def enqueue(self) -> "asyncio.Future[None]":
        """Wait for a lock that is taken: the future is done when the caller has it.

        Cancel the future to leave the queue.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def release(self) -> None:
        """Hand the lock to the next waiter that was not cancelled, or free it."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._is_taken = False

    async def __aenter__(self) -> None:
        """Take the lock, waiting if needed."""
        if self.try_acquire():
            return
        future = self.enqueue()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # cancelled after the lock was handed over
                self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.release()


def drop_traceback(error: BaseException | None) -> None:
    """Clear the traceback of an error that was reported, to free its frames.

    The frames refer to the request's data, and some of them to the error or its task. Only the
    garbage collector frees such a reference cycle, and it runs rarely.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# Shorter work runs in the event loop: starting a thread costs about 80 us, and then two threads
# pass the interpreter's lock to each other.
INLINE_S = 0.004
# Longer work is split into slices of this time, so that a prediction waits for one slice at most.
SLICE_S = 0.002
LONG_S = 0.02
"""A slice that may take longer has its own thread."""
MEASURED_ROWS = 8
"""A smaller batch of a cheap learner gives no useful measurement, and two clock calls cost time."""
COSTLY_ROW_S = 2e-4
"""From this time on, each row is measured."""
MIN_RATIO = 0.25
"""The event loop trusts a measurement below the estimate only so far: later rows may cost more."""
CALLS_PER_SLICE = 4
"""A slice takes at least as long as this number of calls without rows: else calls dominate."""


class RowCost(Protocol):
    """Estimated seconds of work on a batch; see `Cost` of the solvers."""

    call: float
    row: float
    entry: float
    peak: float
    is_even: bool
    is_plain: bool

    def seconds(self, rows: int, entries: int, new_classes: int = 0) -> float:
        """Seconds of one call."""


class Pace:
    """Time of work on rows: an estimate, corrected by measurements.

    It decides only where work runs and where batches are split. Neither changes a state.
    """

    __slots__ = ("_entry_s", "_room_s", "_row_s", "_size", "cost", "is_costly", "ratio")

    def __init__(self, cost: RowCost, ratio: float | None = None) -> None:
        self.ratio = ratio
        """Measured time / estimated time; None before the first measurement."""
        self._size = 0
        self.estimate(cost)

    def estimate(self, cost: RowCost) -> None:
        """Use another estimate; the ratio stays."""
        self.cost = cost
        # The first rows touch new memory.
        ratio = 2.0 if self.ratio is None else max(self.ratio, MIN_RATIO)
        self._row_s, self._entry_s = ratio * cost.row, ratio * cost.entry
        self._room_s = INLINE_S - ratio * cost.call if cost.peak * ratio <= LONG_S else -1.0
        self.is_costly = ratio * (cost.call + cost.row) > COSTLY_ROW_S

    def seconds(self, rows: int, entries: int, new_classes: int) -> float:
        """Time of one call, with a margin."""
        ratio = 2.0 if self.ratio is None else max(self.ratio, MIN_RATIO)
        return ratio * self.cost.seconds(rows, entries, new_classes)

    @property
    def row_s(self) -> float:
        """Seconds of a row of a long batch."""
        return (self.ratio or 1.0) * self.cost.row

    def is_short(self, rows: int, entries: int) -> bool:
        """Can the event loop do this work at once?"""
        return rows * self._row_s + entries * self._entry_s <= self._room_s

    def is_long(self, rows: int, entries: int, new_classes: int = 0) -> bool:
        """May this work take longer than LONG_S?"""
        return self.seconds(rows, entries, new_classes) > LONG_S or self.cost.peak > LONG_S

    def next_slice(self, rows: int, entries: int, new_classes: int = 0) -> int:
        """Number of rows of the next slice, out of `rows` rows with these entries and classes.

        Before the first measurement a slice is small, and a slice is at most twice as long as the
        one before.
        """
        cost, ratio = self.cost, self.ratio
        seconds = SLICE_S if ratio is not None else SLICE_S / 8
        seconds = max(seconds, min(CALLS_PER_SLICE * cost.call * (ratio or 1.0), LONG_S))
        whole = cost.seconds(rows, entries, new_classes)
        seconds = seconds / (ratio or 1.0) - cost.call
        size = int(seconds * rows / max(whole - cost.call, 1e-9))
        if self._size:
            size = min(size, 2 * self._size)
        self._size = max(1, min(size, rows))
        return self._size

    def measured(self, estimated: float, spent: float) -> None:
        """Correct the estimate by work that took `spent` seconds.

        Rows that take too long count at once. Otherwise the ratio follows slowly, because one wait
        for memory makes a model look slow.
        """
        latest, ratio = spent / estimated, self.ratio
        if ratio is None or (latest > ratio and spent > INLINE_S):
            self.ratio = latest
        else:
            self.ratio = ratio + (0.5 if latest < ratio else 0.2) * (latest - ratio)
        self.estimate(self.cost)


STALL_S = 0.25
"""A longer stall of the event loop is logged."""
BEAT_S = 0.05


class LoopWatch:
    """Measures how late the event loop runs a callback that is due every BEAT_S.

    A thread looks at the loop's thread while it is blocked, so that the log names the code.

    observe   called with the seconds of each delay
    """

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._due = float("inf")
        self._where = ""
        self._stopped = threading.Event()
        self._loop_thread = 0

    async def run(self) -> None:
        """Measure until the task is cancelled."""
        self._loop_thread = threading.get_ident()
        watching = threading.Thread(target=self._watch, name="loop watch", daemon=True)
        watching.start()
        try:
            while True:
                self._due = time.monotonic() + BEAT_S
                await asyncio.sleep(BEAT_S)
                self._saw(max(0.0, time.monotonic() - self._due))
        finally:
            self._due = float("inf")
            self._stopped.set()

    def _saw(self, late: float) -> None:
        self._observe(late)
        where, self._where = self._where, ""
        if late > STALL_S:
            log.warning(
                "the event loop was blocked for %.2f s in %s", late, where or "unknown code"
            )

    def _watch(self) -> None:
        while not self._stopped.wait(STALL_S / 2):
            if time.monotonic() - self._due > STALL_S / 2:
                # No variable: it keeps the frame, and a model in it, until the next stall.
                self._where = _innermost(sys._current_frames().get(self._loop_thread))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frame: FrameType | None) -> str:
    """The innermost function of this package in a stack, and the library function that it calls."""
    inside = ""
    for one in _frames(frame):
        module = str(one.f_globals.get("__name__", ""))
        if module.startswith("dualstream."):
            return f"{module}.{one.f_code.co_name}, line {one.f_lineno}{inside}"
        inside = inside or f" ({module}.{one.f_code.co_name})"
    return inside.strip()
