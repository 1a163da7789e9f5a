"""WaitingRequests: requests whose rows wait to be journalled and applied."""

import asyncio
from collections.abc import Callable
from typing import Any

from dualstream.service.journal.protocol import OutcomeUnknown


class Ticket:
    """Requests that wait together: their number, since when, and their future once it exists."""

    __slots__ = ("count", "future", "since")

    def __init__(self, since: float) -> None:
        self.since, self.count = since, 0
        self.future: asyncio.Future[Any] | None = None


class WaitingRequests:
    """The waiting requests of a process, oldest first. Admission control reads their waits.

    timeout_s    how long a request waits for its rows to be journalled and applied
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s, self._clock = timeout_s, clock
        self._tickets: dict[Ticket, None] = {}
        self._count = 0
        # The wait of the request that left last, and when it left.
        self.last_wait_s, self.last_left_at = 0.0, 0.0

    def __len__(self) -> int:
        return self._count

    @property
    def oldest_s(self) -> float:
        """How long the oldest request has waited."""
        first = next(iter(self._tickets), None)
        return 0.0 if first is None else self._clock() - first.since

    def enter(self) -> Ticket:
        """Count a request until `leave` is called with the returned ticket."""
        ticket = Ticket(self._clock())
        self._tickets[ticket] = None
        self.count(ticket, 1)
        return ticket

    def count(self, ticket: Ticket, requests: int) -> None:
        """Count this number of requests, which wait together, for a ticket."""
        self._count += requests - ticket.count
        ticket.count = requests

    def leave(self, ticket: Ticket) -> None:
        """Stop counting the requests of a ticket."""
        del self._tickets[ticket]
        self._count -= ticket.count
        self.last_left_at = self._clock()
        self.last_wait_s = self.last_left_at - ticket.since

    def expire(self) -> None:
        """Fail requests that have waited longer than the timeout: their outcome is unknown."""
        now = self._clock()
        for ticket in self._tickets:
            if now - ticket.since <= self.timeout_s:
                return
            future = ticket.future
            if future is not None and not future.done():
                reason = f"the rows were not learned within {self.timeout_s:g} s, but may still be"
                future.set_exception(OutcomeUnknown(reason))
