"""The journal in one SQLite file: needs no server, and several processes may share it."""

from dualstream.service.journal.sqlite.store import SqliteJournal

__all__ = ["SqliteJournal"]
