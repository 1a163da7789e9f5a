"""What a process knows of its store: when it answered, what it keeps, what is wrong with it."""

import time

from service.journal.protocol import Journal

STALE_S = 5.0
"""So long after a state was last known to be the journal's newest it is told as stale.

The store is asked each second: five looks in a row have failed then.
"""


class Contact:
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
