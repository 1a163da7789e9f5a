"""Thread that owns a SQLite connection; groups waiting tasks into transactions."""

import asyncio
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from dualstream.service.journal.protocol import JournalError, JournalUnavailable, OutcomeUnknown

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]

# Waiting tasks are grouped up to this number and size; a larger task is alone.
MAX_GROUP_TASKS = 64
MAX_GROUP_BYTES = 1 << 20
READING_S = 0.001
"""Maximum time for which a group of reads is extended before its results are returned."""


class GroupTask(ABC, Generic[T]):
    """A task that is executed together with others of its class."""

    __slots__ = ()

    @staticmethod
    @abstractmethod
    def run_group(db: sqlite3.Connection, tasks: Sequence[Any]) -> list[Any]:
        """Result, or exception without changes, of each task, in their order.

        If it raises itself, the caller rolls its changes back.
        """


AnyTask = Task[T] | GroupTask[T]


class _Job(NamedTuple):
    task: AnyTask[Any]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    run: Callable[[sqlite3.Connection, Sequence[Any]], list[Any]]
    """Runs this task and others: the outcomes of the first ones, at least one."""
    size: int
    """Bytes written, approximately."""

    def admits(self, other: "_Job", size: int) -> bool:
        """May the other job share this one's transaction, which has `size` bytes so far?"""
        if other.run != self.run or other.loop is not self.loop:
            return False
        return size + other.size <= MAX_GROUP_BYTES


class ConnectionThread:
    """Runs tasks in its own thread; an exception goes to the task's caller alone.

    The thread is woken once for all tasks of one event-loop iteration: waking takes longer than a
    small task, and on a single core it interrupts the event loop.

    path         file name for the exceptions of `read` and `write`
    on_rollback  called when a transaction of `write` was, or may have been, rolled back
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        path: str = "",
        on_rollback: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._path, self._on_rollback = path, on_rollback
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
        return self._put(task, _run_alone, MAX_GROUP_BYTES + 1)

    def write(self, task: AnyTask[T], size: int = MAX_GROUP_BYTES) -> "asyncio.Future[T]":
        """As `run`, for a task that writes about `size` bytes, in a transaction.

        It shares the transaction with other such tasks that wait at the moment, up to
        MAX_GROUP_BYTES, and is atomic by itself. A cancelled task may or may not be done.

        Raises JournalUnavailable (nothing was done), OutcomeUnknown.
        """
        return self._put(task, self._write_all, size)

    def read(self, task: Task[T]) -> "asyncio.Future[T]":
        """As `run`, for a task that reads, in a transaction that sees one moment of the store.

        It shares the transaction with other such tasks that wait at the moment.

        Raises JournalUnavailable.
        """
        return self._put(task, self._read_all, 0)

    def _put(self, task: AnyTask[T], run: Any, size: int) -> "asyncio.Future[T]":
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.append(_Job(task, future, loop, run, size))
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
                outcomes = jobs[0].run(connection, [job.task for job in jobs])
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
        while waiting and len(jobs) < MAX_GROUP_TASKS:
            following = waiting[0]
            if following is None or not job.admits(following, size):
                break
            jobs.append(following)
            size += following.size
            waiting.popleft()
        return jobs

    def _write_all(self, db: sqlite3.Connection, tasks: Sequence[AnyTask[Any]]) -> list[Any]:
        """Run the tasks one after the other in one transaction; return their outcomes.

        Each task is atomic by itself: one that raises before it changes anything leaves nothing to
        undo. If a task raises after a change, or SQLite fails, the transaction is rolled back and
        each task is run in a transaction of its own.
        """
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._undo(db)  # a transaction whose rollback failed must not stay open
            return [self._failure(JournalUnavailable, error)] * len(tasks)
        try:
            outcomes = _outcomes(db, tasks)
        except BaseException as error:
            self._undo(db)
            if len(tasks) > 1:
                return [outcome for task in tasks for outcome in self._write_all(db, [task])]
            is_of_sqlite = isinstance(error, sqlite3.Error)
            return [self._failure(JournalUnavailable, error) if is_of_sqlite else error]
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo(db)
            # After a failed write or sync the commit may be in the file, and effective after a
            # crash.
            is_unknown = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR
            kind = OutcomeUnknown if is_unknown else JournalUnavailable
            return [self._failure(kind, error)] * len(tasks)
        return outcomes

    def _read_all(self, db: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> list[Any]:
        """Run the tasks in one read transaction; return their outcomes.

        Later tasks find pages in the cache that earlier ones have read. It stops after READING_S,
        or if SQLite fails: then it returns the outcomes of the first tasks, at least one.
        """
        outcomes: list[Any] = []
        until = time.monotonic() + READING_S
        try:
            db.execute("BEGIN")
            for task in tasks:
                outcomes.append(_unless_changed(db, task))
                if time.monotonic() > until:
                    break
        except sqlite3.Error as error:
            outcomes.append(self._failure(JournalUnavailable, error))
        finally:
            _roll_back(db)
        return outcomes

    def _undo(self, db: sqlite3.Connection) -> None:
        _roll_back(db)
        self._on_rollback()

    def _failure(self, kind: type[JournalError], error: BaseException) -> JournalError:
        failure = kind(f"SQLite, {self._path}: {error}")
        failure.__cause__ = error
        return failure


def _run_alone(db: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> list[Any]:
    return [tasks[0](db)]


def _outcomes(db: sqlite3.Connection, tasks: Sequence[AnyTask[Any]]) -> list[Any]:
    """Result, or exception without changes, of each task.

    Raises the exception of a task that has changed something, and sqlite3.Error.
    """
    outcomes: list[Any] = []
    for kind, batch in groupby(tasks, type):
        if issubclass(kind, GroupTask):
            outcomes += kind.run_group(db, list(batch))
        else:
            outcomes += [_unless_changed(db, task) for task in batch]
    return outcomes


def _unless_changed(db: sqlite3.Connection, task: Any) -> Any:
    before = db.total_changes
    try:
        return task(db)
    except sqlite3.Error:
        raise
    except BaseException as error:
        if db.total_changes != before:
            raise
        return error


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")


def _deliver(jobs: list[_Job], outcomes: list[Any]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=False):
        if job.future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
