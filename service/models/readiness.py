"""Readiness: is the store there, is it of this numeric identity, are the first models loaded?"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from dualstream.service.journal.protocol import Journal, JournalError, JournalUnavailable
from dualstream.solvers import numeric_identity
from dualstream.wire.problems import unavailable

log = logging.getLogger("dualstream.readiness")

RETRY_S = 1.0


class OtherIdentity(JournalUnavailable):
    """The store's states were computed by another CPU type or another version."""


class StoreIdentity:
    """Compares the numeric identity of this process with the one in the store.

    A store may be adopted while other workers still serve it. The states of these workers no
    longer match the store's snapshots. Two of their snapshots, with the trim after them, would
    leave nothing that the adopting process can load. So a process that finds another identity
    stops serving until it is restarted.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._mine = self._stored = numeric_identity()
        self.trouble: str | None = None
        """Why this process may not serve the store. None if it may."""

    async def claim(self) -> bool:
        """Store the identity of this process if the store has none. Is it the one in the store?

        If not, this process uses the stored identity until it adopts the store.
        """
        self._stored = await self._journal.claim_identity(self._mine)
        self.trouble = None
        return self._stored == self._mine

    async def adopt(self) -> None:
        """Replace the identity in the store."""
        theirs = self._stored
        await self._journal.adopt_identity(self._mine)
        self._stored = self._mine
        log.warning("adopted the store: it was written as %r and is now %r", theirs, self._mine)

    async def verify(self) -> None:
        """Read the identity in the store again. Call this before a snapshot is written.

        Raises OtherIdentity, JournalUnavailable, and what `claim_identity` raises in an
        empty store.
        """
        self.check()
        found = await self._journal.identity() or await self._journal.claim_identity(self._mine)
        if found not in (self._mine, self._stored):
            self._stored = found
            self.trouble = self.difference()
            log.error("no longer ready: %s", self.trouble)
        self.check()

    def check(self) -> None:
        """Raise OtherIdentity if `verify` has found another identity."""
        if self.trouble is not None:
            raise OtherIdentity(self.trouble)

    def difference(self) -> str:
        """Why this process cannot serve the store, and what to do."""
        return (
            f"this process computes as {self._mine!r}, the store was written as "
            f"{self._stored!r}; set DUALSTREAM_CPU to the CPU named there, or run the version "
            "that wrote it; or stop all workers and start one with --adopt"
        )


STALE_S = 5.0
"""Age after which a state is reported as stale.

The store is asked every second: five queries in a row have failed then.
"""


class StoreStatus:
    """Is the store reachable? Background tasks write it; requests only read it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._trouble: str | None = None
        self._reached_at = time.monotonic()
        self.durability = b"unknown"
        """Durability of the store, as of the last connect."""

    def reached(self, asked_at: float) -> None:
        """The store answered and accepts appends, some time after `asked_at`."""
        self._trouble = None
        self._reached_at = asked_at
        self.durability = self._journal.durability().encode()

    def failed(self, error: Exception) -> None:
        """The store does not answer, or refuses appends."""
        self._trouble = str(error) or type(error).__name__

    @property
    def trouble(self) -> str | None:
        """Why the store cannot be used. None if it can."""
        away_s = time.monotonic() - self._reached_at
        if self._trouble is None and away_s > STALE_S:
            return f"the store has not answered for {away_s:.0f} s"
        return self._trouble


class Readiness:
    """Starts the process, with retries until the store is there, and knows why it is not ready.

    A ready process stays ready unless a process with another numeric identity adopts the store.
    """

    def __init__(
        self, identity: StoreIdentity, status: StoreStatus, bring_up: Callable[[], Awaitable[None]]
    ) -> None:
        self._identity, self._status, self._bring_up = identity, status, bring_up
        self.finished = asyncio.Event()
        self._waits_for: str | None = "starting"
        self.is_stopping = False
        """Does the process drain? It serves until it stops, but asks for no more requests."""

    @property
    def durability(self) -> bytes:
        """Durability of the store, as of the last connect."""
        return self._status.durability

    @property
    def reason(self) -> str | None:
        """Why the process is not ready. None if it is."""
        return self._waits_for or self._identity.trouble

    @property
    def is_ready(self) -> bool:
        return self.reason is None

    def check_ready(self) -> None:
        """Raise Problem 503 with the reason if the process is not ready."""
        reason = self.reason
        if reason is not None:
            raise unavailable(f"not ready: {reason}")

    async def run(self) -> None:
        """Return once the process can serve every readable model of the store."""
        while self._waits_for is not None:
            try:
                await self._bring_up()
                self._status.reached(time.monotonic())
                self._waits_for = None
            except JournalError as error:
                self._wait_for(str(error))
            except Exception as error:
                self._wait_for(f"{type(error).__name__}: {error}", trace=error)
            if self._waits_for is not None:
                await asyncio.sleep(RETRY_S)
        self.finished.set()

    def _wait_for(self, reason: str, trace: Exception | None = None) -> None:
        """Set the reason, and log it once."""
        if reason != self._waits_for:
            log.warning("not ready: %s", reason, exc_info=trace)
        self._waits_for = reason
