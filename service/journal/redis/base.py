"""Base class of the parts of `RedisJournal`."""

from collections.abc import Sequence
from typing import Any

from dualstream.service.journal.protocol import Limits, ModelChanged
from dualstream.service.journal.redis.cluster import ClusterConnections
from dualstream.service.journal.redis.connection import RedisConnection
from dualstream.service.journal.redis.scripts import Argument, Script

Connections = RedisConnection | ClusterConnections


class RedisPart:
    """A part of `RedisJournal`: some methods of the journal."""

    _appends: Connections
    _others: Connections
    _limits: Limits
    _key_ttl_ms: int

    async def _run(
        self,
        model: str,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        is_read: bool = False,
    ) -> Any:
        """Run a script and return its answer. Raises ModelChanged, and as `Connections.run`."""
        answer = await self._others.run(script, keys, arguments, is_read)
        refuse(model, answer)
        return answer


def refuse(model: str, answer: list[Any]) -> None:
    """Raise ModelChanged if the script found another incarnation."""
    if answer[0] == 1:
        raise ModelChanged(model)
