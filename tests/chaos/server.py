"""`dualstream serve`, with faults planted that a process cannot have from outside.

DUALSTREAM_FULL_MARK   as long as this file exists, SQLite may not take one more page
"""

import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

from service.cli import app

MARK = Path(os.environ.get("DUALSTREAM_FULL_MARK", "/nonexistent"))
ALL_PAGES = 1 << 30


class Bounded(sqlite3.Connection):
    """A connection whose file does not grow while MARK exists."""

    is_full = False

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        if statement == "BEGIN IMMEDIATE" and MARK.exists() != self.is_full:
            self.is_full = not self.is_full
            # Never less than the file has: 1 stands for what it has now.
            super().execute(f"PRAGMA max_page_count = {1 if self.is_full else ALL_PAGES}")
        return super().execute(statement, *given)


# Workers import this module, too: multiprocessing makes their main module the server's.
sqlite3.connect = partial(sqlite3.connect, factory=Bounded)  # type: ignore[assignment]

if __name__ == "__main__":
    app()
