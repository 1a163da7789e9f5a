"""Job: background work of one model. Refits, guard rollbacks and unlearn clean-ups are jobs."""

import asyncio
from collections.abc import Sequence, Sized
from typing import Any, TypeVar

from dualstream.service.replica.replica import Replica


class Job:
    """All work of one kind for one model. The model makes it when it is first needed."""

    _task: asyncio.Task[None] | None = None

    def __init__(self, model: Any) -> None:
        """A job holds its model by a weak reference: a model that is evicted is freed at once."""

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """Is work due because of records after `since`? It is 0 when the model was just loaded."""
        return False

    @property
    def is_busy(self) -> bool:
        """Is work under way? The model then stays in memory."""
        return self._task is not None

    def begin_due(self) -> None:
        """Start the work that `is_due` found."""
        self.on_advance()

    def on_advance(self) -> None:
        """Called between two groups: start what has become due."""

    def roots(self) -> Sequence[Sized]:
        """Objects whose memory counts."""
        return ()

    def stop(self) -> None:
        """Leave unfinished work to the process that loads the model next."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop and wait."""
        if self._task is not None:
            self.stop()
            await asyncio.wait([self._task])


AnyJob = TypeVar("AnyJob", bound=Job)
