"""How far a replica lags behind the heads that this process has seen."""

import time
from typing import NamedTuple

from dualstream.service.journal.protocol import Revision

MAX_HEARD = 1000


class LagView(NamedTuple):
    """How far a replica is behind what this process has heard of."""

    seconds: float
    records: int


class Lag:
    """The heads that this process has heard of and its replica has not applied yet.

    fresh_at   when the replica was last known to hold all that the journal held
    stood      at which revision of the store it stood at its head, and at which seq
    """

    def __init__(self) -> None:
        self._heard: list[tuple[int, float]] = []
        self.fresh_at = time.monotonic()
        self.stood: tuple[Revision, int] | None = None

    def hear(self, seq: int) -> None:
        """The journal ends at `seq` or later."""
        if seq > self.head():
            if len(self._heard) == MAX_HEARD:
                self._heard.pop()
            self._heard.append((seq, time.monotonic()))

    def correct(self, seq: int, asked_at: float) -> None:
        """The journal ended at `seq` after `asked_at`: what was heard before of more is gone."""
        while self._heard and self._heard[-1][0] > seq and self._heard[-1][1] < asked_at:
            self._heard.pop()

    def head(self) -> int:
        """The last seq heard of, 0 where nothing is waited for."""
        return self._heard[-1][0] if self._heard else 0

    def at(self, seq: int) -> LagView:
        """What a replica at `seq` lacks: since when, and how many records."""
        while self._heard and self._heard[0][0] <= seq:
            self.fresh_at = max(self.fresh_at, self._heard.pop(0)[1])
        if not self._heard:
            return LagView(0.0, 0)
        return LagView(time.monotonic() - self._heard[0][1], self._heard[-1][0] - seq)
