"""Timeline of progressive metrics: cumulative sums at evenly spaced rows.

At most POINTS of them, whatever the length of the stream: when full, every second point is dropped
and the spacing doubles. Point k is at row k times the spacing, so the metrics between any two
points are the difference of their sums.
"""

from collections.abc import Mapping
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

POINTS = 256
_MIN_CAPACITY = 16
"""Initial capacity in points; it doubles when full."""
HELD, SPACING = range(2)


class Timeline:
    """Points of `columns` sums each.

    points  (room, columns)  the sums at rows spacing, 2 spacing ...; the first `held` are used
    place   (2,) int64       HELD, and SPACING: learned rows from one point to the next

    Kernels that count rows add the points (progressive.add_row) and stop when there is no room.
    """

    def __init__(self, columns: int) -> None:
        self.points = np.zeros((_MIN_CAPACITY, columns))
        self.place = np.array([0, 1], np.int64)

    @property
    def sums(self) -> Floats:
        """(points, columns): the sums at rows spacing, 2 spacing ..."""
        return self.points[: int(self.place[HELD])]

    @property
    def bytes_held(self) -> int:
        """What it takes of memory."""
        return getsizeof(self.points) + getsizeof(self.place)

    def make_room(self, rows: int) -> None:
        """Make room for the points of this many more rows, at least one if it is full."""
        count, spacing = self.place.tolist()
        room, columns = self.points.shape
        needed = min(POINTS, count + max(1, rows // spacing))
        if needed <= room:
            return
        while room < needed:
            room *= 2
        points = np.zeros((room, columns))
        points[:count] = self.points[:count]
        self.points = points

    def state(self) -> State:
        """The state, as copies."""
        return {"timeline_sums": self.sums.copy()}

    @classmethod
    def of(cls, state: Mapping[str, npt.NDArray[Any]], rows: int, columns: int) -> "Timeline":
        """A Timeline with the state of `rows` learned rows. Raises CorruptState."""
        timeline, spacing = cls(columns), 1
        while rows // spacing >= POINTS:
            spacing *= 2
        count = rows // spacing
        timeline.place[SPACING] = spacing
        timeline.make_room(rows)
        timeline.place[HELD] = count
        check_arrays(state, {"timeline_sums": (count, columns)})
        timeline.points[:count] = state["timeline_sums"]
        return timeline
