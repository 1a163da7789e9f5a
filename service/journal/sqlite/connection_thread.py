"""Thread that owns a SQLite connection; groups waiting tasks into transactions."""

import asyncio
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from dualstream.service.journal.protocol import JournalUnavailable, OutcomeUnknown

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]

# Waiting tasks are grouped up to this number and size; a larger task is alone.
MAX_GROUP_TASKS = 64
MAX_GROUP_BYTES = 1 << 20
READING_S = 0.001
"""Maximum time for which a group of reads is extended before its results are returned."""


def in_write(db: sqlite3.Connection, task: Task[T], path: str) -> T:
    """Run the task in one transaction that takes the write lock at its beginning.

    Raises JournalUnavailable (nothing was done), OutcomeUnknown, and the task's exceptions.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        result = task(db)
    except sqlite3.Error as error:
        _undo(db, [task])
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error
    except BaseException:
        _undo(db, [task])
        raise
    _commit(db, [task], path)
    return result


class GroupTask(ABC, Generic[T]):
    """A task that is executed together with others of its class."""

    __slots__ = ()

    def __call__(self, db: sqlite3.Connection) -> T:
        [outcome] = self.run_group(db, [self])
        if isinstance(outcome, BaseException):
            raise outcome
        done: T = outcome
        return done

    @staticmethod
    @abstractmethod
    def run_group(db: sqlite3.Connection, tasks: Sequence[Any]) -> list[Any]:
        """Result, or exception without changes, of each task, in their order.

        If it raises itself, the caller rolls its changes back.
        """

    @abstractmethod
    def on_rollback(self) -> None:
        """Called when the task's transaction was, or may have been, rolled back."""


def in_one_write(db: sqlite3.Connection, tasks: Sequence[Task[Any]], path: str) -> list[Any]:
    """Run the tasks one after the other in one transaction; return each one's result or exception.

    Each task is atomic by itself: one that raises before it changes anything leaves nothing to
    undo. If a task raises after a change, or SQLite fails, the transaction is rolled back and each
    task is run in a transaction of its own.

    Raises, for all tasks, JournalUnavailable (nothing was done) and OutcomeUnknown.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error
    try:
        outcomes = _outcomes(db, tasks)
    except BaseException:
        _undo(db, tasks)
        return [_outcome(partial(in_write, db, task, path)) for task in tasks]
    _commit(db, tasks, path)
    return outcomes


def _outcomes(db: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> list[Any]:
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


def _unless_changed(db: sqlite3.Connection, task: Task[T]) -> T | BaseException:
    before = db.total_changes
    try:
        return task(db)
    except sqlite3.Error:
        raise
    except BaseException as error:
        if db.total_changes != before:
            raise
        return error


def _outcome(task: Callable[[], T]) -> T | BaseException:
    try:
        return task()
    except BaseException as error:
        return error


def in_read(db: sqlite3.Connection, task: Task[T], path: str) -> T:
    """Run the task in one read transaction, which sees one moment of the store.

    Raises JournalUnavailable, and the task's exceptions.
    """
    try:
        db.execute("BEGIN")
        return task(db)
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error
    finally:
        _roll_back(db)


def in_one_read(db: sqlite3.Connection, tasks: Sequence[Task[Any]], path: str) -> list[Any]:
    """Run the tasks in one read transaction; return each one's result or exception.

    Later tasks find pages in the cache that earlier ones have read. It stops after READING_S, or if
    SQLite fails: then it returns the outcomes of the first tasks, at least one.
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
        unavailable = JournalUnavailable(f"SQLite, {path}: {error}")
        unavailable.__cause__ = error
        outcomes.append(unavailable)
    finally:
        _roll_back(db)
    return outcomes


def _commit(db: sqlite3.Connection, tasks: Sequence[Task[Any]], path: str) -> None:
    """Commit. Raises JournalUnavailable (nothing was done), OutcomeUnknown."""
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _undo(db, tasks)
        # After a failed write or sync the commit may be in the file, and effective after a crash.
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
            raise OutcomeUnknown(f"SQLite, {path}: {error}") from error
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error


def _undo(db: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> None:
    _roll_back(db)
    for task in tasks:
        if isinstance(task, GroupTask):
            task.on_rollback()


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")


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


def _done(db: sqlite3.Connection, jobs: list[_Job], path: str) -> list[Any]:
    """Outcome of each job; of slow reads, only of the first ones."""
    tasks = [job.task for job in jobs]
    match jobs[0].kind:
        case _Kind.ALONE:
            return [tasks[0](db)]
        case _Kind.READ:
            return in_one_read(db, tasks, path)
        case _Kind.WRITE if len(tasks) == 1:
            return [in_write(db, tasks[0], path)]
        case _Kind.WRITE:
            return in_one_write(db, tasks, path)


def _deliver(jobs: list[_Job], outcomes: list[Any]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=False):
        if job.future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
