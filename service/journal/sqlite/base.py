"""Base class of the parts of `SqliteJournal`, and decorators that make a transaction a method."""

import sqlite3
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from dualstream.service.journal.protocol import Limits
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread
from dualstream.service.journal.sqlite.log import HeadCache
from dualstream.service.journal.sqlite.steady_clock import SteadyClock
from dualstream.service.journal.sqlite.wal import Checkpointer, FileChecks


class SqlitePart:
    """A part of `SqliteJournal`: some methods of the journal."""

    _path: str
    _limits: Limits
    _heads: HeadCache
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
    """Run the function in the reading thread, in a transaction (`ConnectionThread.read`).

    Callers of the method omit the connection, which the function takes after `self`.
    """

    @wraps(function)
    async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reader.read(lambda db: function(self, db, *args, **kwargs))

    return method


def writes(function: _Function[Self, P, T]) -> _Method[Self, P, T]:
    """As `reads`, in the writing thread, in a transaction of its own.

    Raises JournalUnavailable if the file may not be written to.
    """

    @wraps(function)
    async def method(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._checks.check()
        return await self._writer.write(lambda db: function(self, db, *args, **kwargs))

    return method
