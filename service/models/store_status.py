"""Is the store reachable, and were its states computed with this numeric identity?"""

import logging
import time

from dualstream.service.journal.protocol import Journal, JournalUnavailable
from dualstream.solvers import numeric_identity

log = logging.getLogger("dualstream.readiness")


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
        identity = await self._journal.identity() or await self._journal.claim_identity(self._mine)
        if identity not in (self._mine, self._stored):
            self._stored = identity
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
