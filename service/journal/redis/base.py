"""Base class of the parts of `RedisJournal`."""

from collections.abc import Sequence
from typing import Any

from dualstream.service.journal.protocol import Limits, ModelChanged
from dualstream.service.journal.redis.cluster import ClusterConnections
from dualstream.service.journal.redis.connection import RedisConnection
from dualstream.service.journal.redis.scripts import Argument, Script, pack

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
        """As `_run_script`, for a script that checks the incarnation. Raises ModelChanged, too."""
        answer = await self._run_script(script, keys, arguments, is_read)
        refuse(model, answer)
        return answer

    async def _run_script(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        is_read: bool = False,
    ) -> Any:
        """Run a script and return its answer; in a Cluster, all keys must be in one slot.

        Raises as `RedisConnection.run_packed`.
        """
        count, packed = 1 + len(keys) + len(arguments), pack((len(keys), *keys, *arguments))
        return await self._others.run_packed(keys[0], script, count, packed, is_read)


def refuse(model: str, answer: list[Any]) -> None:
    """Raise ModelChanged if the script found another incarnation."""
    if answer[0] == 1:
        raise ModelChanged(model)
