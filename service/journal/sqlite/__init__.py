"""SQLite store of the journal: one file, no server; several processes may share it."""

from dualstream.service.journal.sqlite.store import SqliteJournal

__all__ = ["SqliteJournal"]
