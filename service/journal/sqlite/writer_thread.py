"""A thread that owns a connection and does one task after the other."""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.sqlite.transactions import (
    Task,
    in_one_read,
    in_one_write,
    in_write,
)

T = TypeVar("T")

# What waits joins a transaction until it has so many tasks or bytes; a larger task is alone.
MAX_GROUP_TASKS = 64
MAX_GROUP_BYTES = 1 << 20


class _Kind(Enum):
    ALONE = auto()
    """A task that shares no transaction."""
    READ = auto()
    WRITE = auto()


class _Job(NamedTuple):
    task: Task[Any]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    kind: _Kind
    size: int = 0
    """About how many bytes it writes."""

    def admits(self, other: "_Job", size: int) -> bool:
        """Whether the other one goes into the transaction that this one began, of `size` bytes."""
        if other.kind is not self.kind or other.loop is not self.loop:
            return False
        return size + other.size <= MAX_GROUP_BYTES


class ConnectionThread:
    """Runs tasks in a thread of its own; a failed one is delivered to its caller alone.

    The thread is woken once for all tasks of one turn of the event loop: that takes longer than a
    small task does, and where both have one core the loop is interrupted by it.

    path   names the file, in what `read` and `write` raise
    """

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], path: str = ""
    ) -> None:
        self._connect = connect
        self._path = path
        self._jobs: deque[_Job | None] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        # The loop that is going to wake the thread at the end of this turn.
        self._waking: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._is_closed = False

    async def start(self) -> None:
        """Start the thread and connect.

        Raises JournalUnavailable, StoreTooNew.
        """
        self._thread.start()
        await self.run(lambda connection: None)

    def run(self, task: Task[T]) -> "asyncio.Future[T]":
        """What `task` returns, or raises.

        A task that was taken up is finished even when its caller is cancelled.

        Raises JournalUnavailable once stopped.
        """
        return self._put(task, _Kind.ALONE)

    def write(self, task: Task[T], size: int) -> "asyncio.Future[T]":
        """As `run`, for a task that writes about `size` bytes, in a transaction.

        It shares the transaction with other such tasks that wait just now, and it is all or none
        for itself; see `in_one_write`. One that is cancelled may or may not be done.

        Raises JournalUnavailable (nothing was done), OutcomeUnknown.
        """
        return self._put(task, _Kind.WRITE, size)

    def read(self, task: Task[T]) -> "asyncio.Future[T]":
        """As `run`, for a task that reads, in a transaction that sees one moment of the store.

        It shares the transaction with other such tasks that wait just now; see `in_one_read`.

        Raises JournalUnavailable.
        """
        return self._put(task, _Kind.READ)

    def _put(self, task: Task[T], kind: _Kind, size: int = 0) -> "asyncio.Future[T]":
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.append(_Job(task, future, loop, kind, size))
        if self._waking is not loop:
            self._waking = loop
            loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        self._waking = None
        self._wakes.put(None)

    async def stop(self) -> None:
        """Finish what waits, close the connection, end the thread."""
        self._is_closed = True
        if self._thread.is_alive():
            self._jobs.append(None)
            self._wake()
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while jobs := self._take():
            outcomes: list[Any]
            try:
                connection = connection or self._connect()
                outcomes = _done(connection, jobs, self._path)
            except BaseException as error:
                outcomes = [error] * len(jobs)
            # Of reads that took long the first ones alone are done.
            self._jobs.extendleft(reversed(jobs[len(outcomes) :]))
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                jobs[0].loop.call_soon_threadsafe(_deliver, jobs, outcomes)
            del jobs, outcomes
        if connection is not None:
            connection.close()

    def _take(self) -> list[_Job]:
        """The next task, with those that wait and share its transaction; none at the end."""
        waiting = self._jobs
        while not waiting:
            self._wakes.get()
        job = waiting.popleft()
        if job is None:
            return []
        jobs, size = [job], job.size
        while job.kind is not _Kind.ALONE and waiting and len(jobs) < MAX_GROUP_TASKS:
            following = waiting[0]
            if following is None or not job.admits(following, size):
                break
            jobs.append(following)
            size += following.size
            waiting.popleft()
        return jobs


def _done(connection: sqlite3.Connection, jobs: list[_Job], path: str) -> list[Any]:
    """What the task of each returned, or raised; of reads that took long, of the first ones."""
    tasks = [job.task for job in jobs]
    match jobs[0].kind:
        case _Kind.ALONE:
            return [tasks[0](connection)]
        case _Kind.READ:
            return in_one_read(tasks, path)(connection)
        case _Kind.WRITE if len(tasks) == 1:
            return [in_write(tasks[0], path)(connection)]
        case _Kind.WRITE:
            return in_one_write(tasks, path)(connection)


def _deliver(jobs: list[_Job], outcomes: list[Any]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=False):
        if job.future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
