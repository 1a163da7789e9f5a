"""Thread that owns a SQLite connection and runs tasks; groups waiting tasks into transactions."""

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

# Waiting tasks are grouped up to this number and size; a larger task is alone.
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
    """Bytes written, approximately."""

    def admits(self, other: "_Job", size: int) -> bool:
        """May the other job share this one's transaction, which has `size` bytes so far?"""
        if other.kind is not self.kind or other.loop is not self.loop:
            return False
        return size + other.size <= MAX_GROUP_BYTES


class ConnectionThread:
    """Runs tasks in its own thread; an exception goes to the task's caller alone.

    The thread is woken once for all tasks of one event-loop iteration: waking takes longer than a
    small task, and on a single core it interrupts the event loop.

    path   file name for the exceptions of `read` and `write`
    """

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], path: str = ""
    ) -> None:
        self._connect = connect
        self._path = path
        self._jobs: deque[_Job | None] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        # The loop that will wake the thread at the end of its iteration.
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
        """Run a task; return its result or raise its exception.

        A task that has started is finished even if its caller is cancelled.

        Raises JournalUnavailable once stopped.
        """
        return self._put(task, _Kind.ALONE)

    def write(self, task: Task[T], size: int) -> "asyncio.Future[T]":
        """As `run`, for a task that writes about `size` bytes, in a transaction.

        It shares the transaction with other such tasks that wait at the moment, and is atomic by
        itself; see `in_one_write`. A cancelled task may or may not be done.

        Raises JournalUnavailable (nothing was done), OutcomeUnknown.
        """
        return self._put(task, _Kind.WRITE, size)

    def read(self, task: Task[T]) -> "asyncio.Future[T]":
        """As `run`, for a task that reads, in a transaction that sees one moment of the store.

        It shares the transaction with other such tasks that wait at the moment; see `in_one_read`.

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
        """Finish waiting tasks, close the connection, end the thread."""
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
            # A group of slow reads returns only its first outcomes; the others run next.
            self._jobs.extendleft(reversed(jobs[len(outcomes) :]))
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                jobs[0].loop.call_soon_threadsafe(_deliver, jobs, outcomes)
            del jobs, outcomes
        if connection is not None:
            connection.close()

    def _take(self) -> list[_Job]:
        """The next job, with those waiting that share its transaction; empty at the end."""
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
    """Outcome of each job; of slow reads, only of the first ones."""
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
