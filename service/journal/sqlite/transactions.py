"""Tasks as transactions: one that reads, one that writes, and several that write together."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from service.journal.protocol import JournalUnavailable, OutcomeUnknown

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], T]


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
        _commit(connection, path)
        return result

    return transaction


def in_one_write(tasks: Sequence[Task[Any]], path: str) -> Task[list[Any]]:
    """The tasks one after the other in one transaction: what each returns, or raises.

    Each is all or none for itself, as if it were alone: what one raises undoes that one. Where
    SQLite fails in one, everything is undone, and each is done in a transaction of its own.

    Raises, of all of them, JournalUnavailable (nothing was done) and OutcomeUnknown.
    """

    def transaction(connection: sqlite3.Connection) -> list[Any]:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise JournalUnavailable(f"SQLite, {path}: {error}") from error
        try:
            outcomes = [_in_savepoint(connection, task) for task in tasks]
        except sqlite3.Error:
            _roll_back(connection)
            return [_outcome(connection, in_write(task, path)) for task in tasks]
        _commit(connection, path)
        return outcomes

    return transaction


def _in_savepoint(connection: sqlite3.Connection, task: Task[T]) -> T | BaseException:
    """What the task returns, or raises, having done nothing then. Raises sqlite3.Error."""
    connection.execute("SAVEPOINT task")
    try:
        outcome: T | BaseException = task(connection)
    except sqlite3.Error:
        raise
    except BaseException as error:
        connection.execute("ROLLBACK TO task")
        outcome = error
    connection.execute("RELEASE task")
    return outcome


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


def _commit(connection: sqlite3.Connection, path: str) -> None:
    """Raises JournalUnavailable (nothing was done), OutcomeUnknown."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(connection)
        # A failed write or sync may leave the commit in the file, to be found after a crash.
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
            raise OutcomeUnknown(f"SQLite, {path}: {error}") from error
        raise JournalUnavailable(f"SQLite, {path}: {error}") from error


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
