"""How the progressive metrics came to be what they are: sums at evenly spaced rows.

At most POINTS of them, whatever the length of the stream: once all places are taken every second
point goes, and from then on they are made half as often. Point k is of row k times the spacing, so
the metrics between any two points are the difference of their sums.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers._jit import Floats
from solvers.learner import State, check_arrays

POINTS = 256
_FEWEST = 16
"""Room is made for so many points, and for twice as many whenever it is full."""


class Timeline:
    """Points of `columns` sums each."""

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((_FEWEST, columns))
        self._held = 0
        self.spacing = 1
        """Learned rows from one point to the next."""

    @property
    def next_row(self) -> int:
        """The learned row after which the next point is due."""
        return self.spacing * (self._held + 1)

    @property
    def sums(self) -> Floats:
        """(points, columns): the sums at rows spacing, 2 spacing ..."""
        return self._sums[: self._held]

    def add(self, sums: Floats) -> None:
        """The point that is due; sums (columns,)."""
        if self._held == len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        self._sums[self._held] = sums
        self._held += 1
        if self._held == POINTS:
            self._held //= 2
            self._sums[: self._held] = self._sums[1::2]
            self.spacing *= 2

    def state(self) -> State:
        """All of it, as copies."""
        return {"timeline_sums": self.sums.copy()}

    @classmethod
    def of(cls, state: Mapping[str, npt.NDArray[Any]], rows: int, columns: int) -> "Timeline":
        """In the state of `rows` learned rows. Raises CorruptState.

        States of versions that made no points have sums of no rows in their place.
        """
        timeline = cls(columns)
        while rows // timeline.spacing >= POINTS:
            timeline.spacing *= 2
        timeline._held = held = rows // timeline.spacing
        while len(timeline._sums) < held:
            timeline._sums = np.concatenate([timeline._sums, np.zeros_like(timeline._sums)])
        if "timeline_sums" in state:
            check_arrays(state, {"timeline_sums": (held, columns)})
            timeline._sums[:held] = state["timeline_sums"]
        return timeline
