"""The journal in Redis 7 or newer: one step to many processes on many hosts."""

from dualstream.service.journal.redis.store import RedisJournal

__all__ = ["RedisJournal"]
