"""Whether a process computes as the states of its store were computed: the numeric identity."""

import logging
import time

from dualstream.service.journal.protocol import Journal, JournalUnavailable
from dualstream.solvers import numeric_identity

log = logging.getLogger("dualstream.identity")


class OtherIdentity(JournalUnavailable):
    """The store's states were computed by another kind of machine, or another version."""


class StoreIdentity:
    """That of a process, held against the one in force in its store: at its start and ever after.

    A store may be taken over while others still serve it, though they were to be stopped. What
    they hold is no longer what the store's snapshots lead to, and two snapshots of theirs, with the
    trim behind them, would leave nothing that whoever took it over can begin from. So one that
    finds another identity in force serves nothing more for as long as it runs.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._mine = self._in_force = numeric_identity()
        self.trouble: str | None = None
        """Why the store is not this process' any more; None while it is."""

    async def claim(self) -> bool:
        """Put it in force where the store has none; whether it is the one in force.

        Another one is in force for this process, too, until that adopts the store.
        """
        self._in_force = await self._journal.claim_identity(self._mine)
        self.trouble = None
        return self._in_force == self._mine

    async def adopt(self) -> None:
        """Put it in force in the place of the other one."""
        theirs = self._in_force
        await self._journal.adopt_identity(self._mine)
        self._in_force = self._mine
        log.warning("adopted the store: it was written as %r and is now %r", theirs, self._mine)

    async def look(self) -> None:
        """See that none other has been put in force; to be called before a snapshot is written.

        Raises OtherIdentity, JournalUnavailable, and what claiming it anew raises in a store that
        has lost all.
        """
        self.check()
        found = await self._journal.identity() or await self._journal.claim_identity(self._mine)
        if found not in (self._mine, self._in_force):
            self._in_force = found
            self.trouble = self.difference()
            log.error("no longer ready: %s", self.trouble)
        self.check()

    def check(self) -> None:
        """Raises OtherIdentity where the last look, or one before, has found another in force."""
        if self.trouble is not None:
            raise OtherIdentity(self.trouble)

    def difference(self) -> str:
        """What keeps this process from serving a store of another identity."""
        return (
            f"this process computes as {self._mine!r}, the store was written as "
            f"{self._in_force!r}; set DUALSTREAM_CPU to the CPU named there, or run the version "
            "that wrote it; or stop every other worker and take the store over by one with --adopt"
        )


STALE_S = 5.0
"""So long after a state was last known to be the journal's newest it is told as stale.

The store is asked each second: five looks in a row have failed then.
"""


class StoreStatus:
    """Kept by whoever asks the store; those who answer requests only look here."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._trouble: str | None = None
        self._reached_at = time.monotonic()
        self.durability = b"unknown"
        """What the store keeps, as it was read at its last connect."""

    def reached(self, asked_at: float) -> None:
        """The store answered, and takes appends, at some time after `asked_at`."""
        self._trouble = None
        self._reached_at = asked_at
        self.durability = self._journal.durability().encode()

    def failed(self, error: Exception) -> None:
        """The store cannot be used, or not for appends."""
        self._trouble = str(error) or type(error).__name__

    @property
    def trouble(self) -> str | None:
        """What keeps the store from being used; None while nothing does."""
        away_s = time.monotonic() - self._reached_at
        if self._trouble is None and away_s > STALE_S:
            return f"the store has not answered for {away_s:.0f} s"
        return self._trouble
