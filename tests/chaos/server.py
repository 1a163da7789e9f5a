"""`dualstream serve` with planted faults that cannot be caused from outside.

DUALSTREAM_FULL_MARK   while this file exists, SQLite may not add a page
DUALSTREAM_CRASH_MARK  see crash_points.py
MOST_MODELS            number of models that fit into the memory of a worker, if set
"""

import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

from dualstream.service.cli import app
from dualstream.service.models.cache import ModelCache
from dualstream.service.server import workers
from tests.chaos.crash_points import plant, strike

MARK = Path(os.environ.get("DUALSTREAM_FULL_MARK", "/nonexistent"))
ALL_PAGES = 1 << 30
MOST_MODELS = int(os.environ.get("MOST_MODELS", "0"))


class Planted(sqlite3.Connection):
    """A connection whose file does not grow while MARK exists, and that may die in a commit."""

    is_full = False

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        if statement == "BEGIN IMMEDIATE" and MARK.exists() != self.is_full:
            self.is_full = not self.is_full
            # SQLite raises the limit to the present size, so 1 means no growth.
            super().execute(f"PRAGMA max_page_count = {1 if self.is_full else ALL_PAGES}")
        if statement != "COMMIT":
            return super().execute(statement, *args)
        strike("COMMIT is about to be")
        done = super().execute(statement, *args)
        strike("COMMIT is done")
        return done


# Workers import this module, too: multiprocessing makes their main module the server's.
sqlite3.connect = partial(sqlite3.connect, factory=Planted)  # type: ignore[assignment]
plant()
if MOST_MODELS:
    ModelCache._is_over = lambda cache, count, size: count > MOST_MODELS
# A planted crash ends a worker soon after its start.
workers.SHORT_LIFE_S = 0.0

if __name__ == "__main__":
    app()
