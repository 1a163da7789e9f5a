"""WaitingRequests: requests whose rows wait to be journalled and applied."""

import asyncio
from collections.abc import Callable
from typing import Any

from dualstream.service.journal.protocol import OutcomeUnknown


class WaitingRequests:
    """The waiting requests of a process, oldest first. Admission control reads their waits.

    timeout_s    how long a request waits for its rows to be journalled and applied
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s, self._clock = timeout_s, clock
        # By ticket: since when, and their future.
        self._requests: dict[int, tuple[float, asyncio.Future[Any]]] = {}
        self._last_ticket = 0
        # The wait of the request that left last, and when it left.
        self.last_wait_s, self.last_left_at = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def oldest_s(self) -> float:
        """How long the oldest request has waited."""
        first = next(iter(self._requests.values()), None)
        return 0.0 if first is None else self._clock() - first[0]

    def enter(self, future: "asyncio.Future[Any]") -> int:
        """Count a request until `leave` is called with the returned ticket."""
        self._last_ticket = ticket = self._last_ticket + 1
        self._requests[ticket] = self._clock(), future
        return ticket

    def leave(self, ticket: int) -> None:
        """Stop counting a request."""
        self.last_left_at = self._clock()
        self.last_wait_s = self.last_left_at - self._requests.pop(ticket)[0]

    def expire(self) -> None:
        """Fail requests that have waited longer than the timeout: their outcome is unknown."""
        now = self._clock()
        for since, future in self._requests.values():
            if now - since <= self.timeout_s:
                return
            if not future.done():
                reason = f"the rows were not learned within {self.timeout_s:g} s, but may still be"
                future.set_exception(OutcomeUnknown(reason))
