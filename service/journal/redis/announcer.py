"""Announces appends to other processes by PUBLISH, at most once per model and 50 ms.

Receiving a message takes a process longer than an append. With one message for each append,
messages would cost more than the appends as soon as several processes listen. A process that reads
up to the last announced seq has all entries before it.
"""

import asyncio
from contextlib import suppress

from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.redis.base import Connections

EVERY_S = 0.05


def channel_of(database: int) -> str:
    """The channel of a database. Redis channels are shared by all databases of a server."""
    return f"ds:appends:{database}" if database else "ds:appends"


class Announcer:
    """Publishes "<model> <seq>": the first append at once, appends that follow together."""

    def __init__(self, connection: Connections, channel: str) -> None:
        self._connection, self._channel = connection, channel
        self._due: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def announce(self, model: str, seq: int) -> None:
        """Announce that the model's log ends at `seq`."""
        self._due[model] = max(seq, self._due.get(model, 0))
        if self._task is None:
            self._task = asyncio.create_task(self._publish())

    async def close(self) -> None:
        """Return once everything due is published."""
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
        """Publish what is due. Failures are ignored: followers also poll the heads of logs."""
        due, self._due = self._due, {}
        with suppress(JournalError):
            for model, seq in due.items():
                await self._connection.call(
                    "PUBLISH", self._channel, f"{model} {seq}", is_read=True
                )
