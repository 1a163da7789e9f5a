"""Base class of the parts of `SqliteJournal`, and decorators that make a transaction a method."""

import sqlite3
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from dualstream.service.journal.protocol import Limits
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread, in_read, in_write
from dualstream.service.journal.sqlite.file_checks import FileChecks
from dualstream.service.journal.sqlite.log import KnownHeads
from dualstream.service.journal.sqlite.steady_clock import SteadyClock
from dualstream.service.journal.sqlite.wal import Checkpointer


class SqlitePart:
    """A part of `SqliteJournal`: some methods of the journal."""

    _path: str
    _limits: Limits
    _heads: KnownHeads
    _writer: ConnectionThread
    _reader: ConnectionThread
    _checkpointer: Checkpointer
    _checks: FileChecks
    _clock: SteadyClock


Self = TypeVar("Self", bound=SqlitePart)
P = ParamSpec("P")
T = TypeVar("T")
_Function = Callable[Concatenate[Self, sqlite3.Connection, P], T]
_Method = Callable[Concatenate[Self, P], Coroutine[Any, Any, T]]


def reads(function: _Function[Self, P, T]) -> _Method[Self, P, T]:
    """Run the function in the reading thread, in a transaction (`in_read`).

    Callers of the method omit the connection, which the function takes after `self`.
    """

    @wraps(function)
    async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def task(connection: sqlite3.Connection) -> T:
            return function(self, connection, *args, **kwargs)

        return await self._reader.run(lambda db: in_read(db, task, self._path))

    return method


def writes(function: _Function[Self, P, T]) -> _Method[Self, P, T]:
    """As `reads`, in the writing thread (`in_write`), unless the file may not be written to."""

    @wraps(function)
    async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def task(connection: sqlite3.Connection) -> T:
            return function(self, connection, *args, **kwargs)

        self._checks.check()
        return await self._writer.run(lambda db: in_write(db, task, self._path))

    return method
