"""Replica lag: how far a replica is behind the journal heads that this process has seen."""

import time
from typing import NamedTuple

from dualstream.service.journal.protocol import Revision

MAX_HEADS = 1000


class LagView(NamedTuple):
    """Replica lag: seconds since the oldest head that is not applied, and missing records."""

    seconds: float
    records: int


class Lag:
    """Journal heads that this process has seen and its replica has not applied.

    fresh_at    when the replica was last known to have applied the whole journal
    confirmed   store revision and seq at which the replica was found at the journal's head
    """

    def __init__(self) -> None:
        self._heads: list[tuple[int, float]] = []
        self.fresh_at = time.monotonic()
        self.confirmed: tuple[Revision, int] | None = None

    def observe(self, seq: int) -> None:
        """The journal ends at `seq` or later."""
        if seq > self.head():
            if len(self._heads) == MAX_HEADS:
                self._heads.pop()
            self._heads.append((seq, time.monotonic()))

    def correct(self, seq: int, asked_at: float) -> None:
        """The journal ended at `seq` after `asked_at`: drop larger heads seen before that."""
        while self._heads and self._heads[-1][0] > seq and self._heads[-1][1] < asked_at:
            self._heads.pop()

    def head(self) -> int:
        """The largest seq seen, 0 if all are applied."""
        return self._heads[-1][0] if self._heads else 0

    def at(self, seq: int) -> LagView:
        """Lag of a replica at `seq`."""
        while self._heads and self._heads[0][0] <= seq:
            self.fresh_at = max(self.fresh_at, self._heads.pop(0)[1])
        if not self._heads:
            return LagView(0.0, 0)
        return LagView(time.monotonic() - self._heads[0][1], self._heads[-1][0] - seq)
