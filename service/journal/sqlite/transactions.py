"""Tasks as transactions: one that reads, one that writes, and several that write run_group."""

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
"""Those whose reads are done wait so long, at most, for those of others to begin."""


def in_write(task: Task[T], path: str) -> Task[T]:
    """The task as one transaction that has the write lock from its beginning.

    Raises JournalUnavailable (nothing was done), OutcomeUnknown, and what `task` raises.
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
    """A task that is done in one go with others of its class."""

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
        """What each returns, or raises, having changed nothing then; in their order.

        Where it raises itself, what it has done is to be on_rollback.
        """

    @abstractmethod
    def on_rollback(self) -> None:
        """What it did in a transaction was on_rollback, or may have been."""


def in_one_write(tasks: Sequence[Task[Any]], path: str) -> Task[list[Any]]:
    """The tasks one after the other in one transaction: what each returns, or raises.

    Each is all or none for itself, as if it were alone: one that raises before it has changed
    anything leaves nothing to undo. Where one has, or SQLite fails, everything is on_rollback, and each
    is done in a transaction of its own.

    Raises, of all of them, JournalUnavailable (nothing was done) and OutcomeUnknown.
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
    """What each returns, or raises, having changed nothing then.

    Raises what one raises that has changed something, and sqlite3.Error.
    """
    outcomes: list[Any] = []
    for kind, some in groupby(tasks, type):
        if issubclass(kind, GroupTask):
            outcomes += kind.run_group(connection, list(some))
        else:
            outcomes += [_unless_changed(connection, task) for task in some]
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


def in_one_read(tasks: Sequence[Task[Any]], path: str) -> Task[list[Any]]:
    """The tasks one after the other in one transaction: what each returns, or raises.

    They find in memory what those before them have read. It ends after READING_S, or where SQLite
    fails: with the first ones then, one at least.
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
    """Raises JournalUnavailable (nothing was done), OutcomeUnknown."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _undo(connection, tasks)
        # A failed write or sync may leave the commit in the file, to be found after a crash.
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
