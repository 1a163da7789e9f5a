"""Transactions: one read, one write, or several writes grouped into one commit."""

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic, TypeVar

from dualstream.service.journal.protocol import JournalUnavailable, OutcomeUnknown

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]

READING_S = 0.001
"""Maximum time for which a group of reads is extended before its results are returned."""


def in_write(task: Task[T], path: str) -> Task[T]:
    """Run the task in one transaction that takes the write lock at its beginning.

    Raises JournalUnavailable (nothing was done), OutcomeUnknown, and the task's exceptions.
    """

    def transaction(connection: sqlite3.Connection) -> T:
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = task(connection)
        except sqlite3.Error as error:
            _undo(connection, [task])
            raise JournalUnavailable(f"SQLite, {path}: {error}") from error
        except BaseException:
            _undo(connection, [task])
            raise
        _commit(connection, [task], path)
        return result

    return transaction


class GroupTask(ABC, Generic[T]):
    """A task that is executed together with others of its class."""

    __slots__ = ()

    def __call__(self, connection: sqlite3.Connection) -> T:
        [outcome] = self.run_group(connection, [self])
        if isinstance(outcome, BaseException):
            raise outcome
        done: T = outcome
        return done

    @staticmethod
    @abstractmethod
    def run_group(connection: sqlite3.Connection, tasks: Sequence[Any]) -> list[Any]:
        """Result, or exception without changes, of each task, in their order.

        If it raises itself, the caller rolls its changes back.
        """

    @abstractmethod
    def on_rollback(self) -> None:
        """Called when the task's transaction was, or may have been, rolled back."""


def in_one_write(tasks: Sequence[Task[Any]], path: str) -> Task[list[Any]]:
    """Run the tasks one after the other in one transaction; return each one's result or exception.

    Each task is atomic by itself: one that raises before it changes anything leaves nothing to
    undo. If a task raises after a change, or SQLite fails, the transaction is rolled back and each
    task is run in a transaction of its own.

    Raises, for all tasks, JournalUnavailable (nothing was done) and OutcomeUnknown.
    """

    def transaction(connection: sqlite3.Connection) -> list[Any]:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise JournalUnavailable(f"SQLite, {path}: {error}") from error
        try:
            outcomes = _outcomes(connection, tasks)
        except BaseException:
            _undo(connection, tasks)
            return [_outcome(connection, in_write(task, path)) for task in tasks]
        _commit(connection, tasks, path)
        return outcomes

    return transaction


def _outcomes(connection: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> list[Any]:
    """Result, or exception without changes, of each task.

    Raises the exception of a task that has changed something, and sqlite3.Error.
    """
    outcomes: list[Any] = []
    for kind, batch in groupby(tasks, type):
        if issubclass(kind, GroupTask):
            outcomes += kind.run_group(connection, list(batch))
        else:
            outcomes += [_unless_changed(connection, task) for task in batch]
    return outcomes


def _unless_changed(connection: sqlite3.Connection, task: Task[T]) -> T | BaseException:
    before = connection.total_changes
    try:
        return task(connection)
    except sqlite3.Error:
        raise
    except BaseException as error:
        if connection.total_changes != before:
            raise
        return error


def _outcome(connection: sqlite3.Connection, task: Task[T]) -> T | BaseException:
    try:
        return task(connection)
    except BaseException as error:
        return error


def in_read(task: Task[T], path: str) -> Task[T]:
    """Run the task in one read transaction, which sees one moment of the store.

    Raises JournalUnavailable, and the task's exceptions.
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


def in_one_read(tasks: Sequence[Task[Any]], path: str) -> Task[list[Any]]:
    """Run the tasks in one read transaction; return each one's result or exception.

    Later tasks find pages in the cache that earlier ones have read. It stops after READING_S, or if
    SQLite fails: then it returns the outcomes of the first tasks, at least one.
    """

    def transaction(connection: sqlite3.Connection) -> list[Any]:
        outcomes: list[Any] = []
        until = time.monotonic() + READING_S
        try:
            connection.execute("BEGIN")
            for task in tasks:
                outcomes.append(_unless_changed(connection, task))
                if time.monotonic() > until:
                    break
        except sqlite3.Error as error:
            outcomes.append(_unavailable(path, error))
        finally:
            _roll_back(connection)
        return outcomes

    return transaction


def _unavailable(path: str, error: sqlite3.Error) -> JournalUnavailable:
    unavailable = JournalUnavailable(f"SQLite, {path}: {error}")
    unavailable.__cause__ = error
    return unavailable


def _commit(connection: sqlite3.Connection, tasks: Sequence[Task[Any]], path: str) -> None:
    """Commit. Raises JournalUnavailable (nothing was done), OutcomeUnknown."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _undo(connection, tasks)
        # After a failed write or sync the commit may be in the file, and effective after a crash.
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
            raise OutcomeUnknown(f"SQLite, {path}: {error}") from error
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error


def _undo(connection: sqlite3.Connection, tasks: Sequence[Task[Any]]) -> None:
    _roll_back(connection)
    for task in tasks:
        if isinstance(task, GroupTask):
            task.on_rollback()


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
