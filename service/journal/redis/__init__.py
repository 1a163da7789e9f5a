"""Redis store (7 or newer) of the journal: for many processes on many hosts."""

from dualstream.service.journal.redis.store import RedisJournal

__all__ = ["RedisJournal"]
