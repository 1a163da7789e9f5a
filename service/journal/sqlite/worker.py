"""A thread that owns a connection and does one task after the other."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from service.journal.protocol import JournalUnavailable, OutcomeUnknown

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]
_Job = tuple[Task[Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Worker:
    """Runs tasks in a thread of its own; a failed one is delivered to its caller alone."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._is_closed = False

    async def start(self) -> None:
        """Start the thread and connect.

        Raises JournalUnavailable, StoreTooNew.
        """
        self._thread.start()
        await self.run(lambda connection: None)

    async def run(self, task: Task[T]) -> T:
        """Return what `task` returns, or raise what it raises.

        A task that was taken up is finished even when its caller is cancelled.

        Raises JournalUnavailable once stopped.
        """
        if self._is_closed:
            raise JournalUnavailable("the journal is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((task, future, loop))
        return await future

    async def stop(self) -> None:
        """Finish what waits, close the connection, end the thread."""
        self._is_closed = True
        if self._thread.is_alive():
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self._jobs.get()) is not None:
            task, future, loop = job
            try:
                connection = connection or self._connect()
                outcome, is_error = task(connection), False
            except BaseException as error:
                outcome, is_error = error, True
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_deliver, future, outcome, is_error)
            del job, task, future, outcome
        if connection is not None:
            connection.close()


def _deliver(future: "asyncio.Future[Any]", outcome: Any, is_error: bool) -> None:
    if future.cancelled():
        return
    if is_error:
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def in_write(task: Task[T], path: str) -> Task[T]:
    """The task as one transaction that has the write lock from its beginning.

    Raises JournalUnavailable (nothing was done), OutcomeUnknown, and what `task` raises.
    """

    def transaction(connection: sqlite3.Connection) -> T:
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = task(connection)
        except sqlite3.Error as error:
            _roll_back(connection)
            raise JournalUnavailable(f"SQLite, {path}: {error}") from error
        except BaseException:
            _roll_back(connection)
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            raise _commit_error(error, path) from error
        return result

    return transaction


def in_read(task: Task[T], path: str) -> Task[T]:
    """The task as one transaction that sees one moment of the store.

    Raises JournalUnavailable, and what `task` raises.
    """

    def transaction(connection: sqlite3.Connection) -> T:
        try:
            connection.execute("BEGIN")
            return task(connection)
        except sqlite3.Error as error:
            raise JournalUnavailable(f"SQLite, {path}: {error}") from error
        finally:
            _roll_back(connection)

    return transaction


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _commit_error(error: sqlite3.Error, path: str) -> Exception:
    """A failed write or sync may leave the commit in the file, to be found after a crash."""
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
        return OutcomeUnknown(f"SQLite, {path}: {error}")
    return JournalUnavailable(f"SQLite, {path}: {error}")
