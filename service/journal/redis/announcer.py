"""Telling other processes of appends: each model at most once in some milliseconds.

To hear one message takes a process longer than to append; one for each append would cost more than
the appends themselves as soon as several processes listen. Whoever reads up to the last one told of
has read those before it.
"""

import asyncio
from contextlib import suppress

from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.redis.cluster import ClusterConnections
from dualstream.service.journal.redis.connection import RedisConnection

CHANNEL = "ds:appends"
EVERY_S = 0.05


class Announcer:
    """Publishes "<model> <seq>": the first append at once, those that follow it together."""

    def __init__(self, connection: RedisConnection | ClusterConnections) -> None:
        self._connection = connection
        self._due: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def announce(self, model: str, seq: int) -> None:
        """The model's log has come to `seq`."""
        self._due[model] = max(seq, self._due.get(model, 0))
        if self._task is None:
            self._task = asyncio.create_task(self._publish())

    async def close(self) -> None:
        """Return once what is due is told."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _publish(self) -> None:
        try:
            while self._due:
                await self._flush()
                await asyncio.sleep(EVERY_S)
        finally:
            self._task = None

    async def _flush(self) -> None:
        """What cannot be told now is found out by those who ask where the logs end."""
        due, self._due = self._due, {}
        with suppress(JournalError):
            for model, seq in due.items():
                await self._connection.call("PUBLISH", CHANNEL, f"{model} {seq}", is_read=True)
