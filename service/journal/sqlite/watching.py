"""Whether others have committed anything, asked of SQLite only when they may have.

Whoever commits writes into the log first, which shows in its size and times. To look at these takes
some microseconds; to ask the connection takes two threads their turns. What is in the log counts
from a moment later: at `full` the disk is waited for in between. And the times that a file system
tells go by some milliseconds, so that a second write may leave them as they are.
"""

import math
import os
import sqlite3
import time
from collections.abc import Callable

from service.journal.protocol import JournalUnavailable

WATCH_S, REST_S = 0.05, 0.1
"""How often the log is looked at, and once it has not changed for RESTING_S."""
RESTING_S = 5.0
SETTLED_S = 0.25
"""Once the log has stayed as it is for so long, all that is in it counts, most likely."""
ASKED_S = 0.5
"""SQLite is asked so often at least."""


def log_of(path: str) -> str:
    """The path of the write-ahead log: SQLite has it beside the file that links lead to."""
    return f"{os.path.realpath(path)}-wal"


class LogWatch:
    """The write-ahead log of the file at `path`."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log_of(path)
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._changed_at = self._asked_at = -math.inf

    def is_to_ask(self) -> bool:
        """Whether others may have committed something since this was so last."""
        now = self._clock()
        found = self._look()
        if found is None or found != self._seen:
            self._seen, self._changed_at = found, now
        if now >= self._changed_at + SETTLED_S and now < self._asked_at + ASKED_S:
            return False
        self._asked_at = now
        return True

    @property
    def pause_s(self) -> float:
        """Until the next look."""
        return REST_S if self._clock() >= self._changed_at + RESTING_S else WATCH_S

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._log)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def data_version(connection: sqlite3.Connection) -> int:
    """A number that is another one once another connection has committed something."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return version
