"""Lags: the last targets as columns of boosted trees.

With `lags: 3` trees can split three columns after those of the features, at the indices that follow
them:

    label.1     the last target
    label.1-label.2, label.2-label.3     the steps that led to it

A row has those columns whose targets are there. Rows of weight 0 leave no target. Rows with late
labels have no columns and leave no target: the last known target is an old one then, and trees that
use it err more.

On a stream in random order the columns are noise, which makes trees worse. So a tree may split them
only if targets follow each other: among the last rows of the ring, the target before a row is
nearer to its target than the one OLDER rows before, CLEARLY more often than not. In random order
both are nearer equally often.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, Floats, Ints, kernel
from dualstream.solvers.nonlinear.dense_columns import count_feature, give_column, set_value
from dualstream.solvers.nonlinear.spec import MAX_LAGS
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

OLDER, COMPARED = 32, 2048
CLEARLY = 4.0
"""In standard deviations of chance."""

NOT_SERVED = np.empty(0)
"""`Batch.served` of kernels, if no row has a late label."""


class Lags:
    """The last targets; those of the next row are `count` columns from index `width` on."""

    def __init__(self, width: int, count: int) -> None:
        self.width, self.count = width, count
        self._recent = np.zeros(MAX_LAGS)
        """A ring: target number i is at i modulo MAX_LAGS."""
        self._targets = np.zeros(1, np.int64)

    @property
    def arguments(self) -> tuple[int, int, Floats, Ints]:
        """As kernels take them: width, count, recent (MAX_LAGS,), targets (1,)."""
        return self.width, self.count, self._recent, self._targets

    def values(self) -> dict[int, float]:
        """The columns of the next row."""
        targets = int(self._targets[0])
        return {
            self.width + c: lag(c, self._recent, self._targets)
            for c in range(min(self.count, targets))
        }

    def state(self) -> State:
        """See Learner."""
        return {"last_targets": self._recent.copy(), "targets": np.array(self._targets[0])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"last_targets": (MAX_LAGS,), "targets": ()})
        if state["targets"] < 0:
            raise CorruptState("the last targets are damaged")
        self._recent[:], self._targets[0] = state["last_targets"], state["targets"]


@kernel
def follow_each_other(rows: F8_2D, column: int, n: int, at: int) -> bool:
    """Whether targets are clearly nearer to the one before than to the one OLDER rows before.

    rows  a ring; its last n <= COMPARED rows end before row `at`, and have targets in `column`
    """
    size, nearer, now, older = rows.shape[0], 0, at - n + OLDER, at - n
    for _ in range(n - OLDER):
        # Without a division for each row.
        y, last = rows[now, column], rows[now - 1, column]
        to_last, to_older = abs(y - last), abs(y - rows[older, column])
        nearer += int(to_last < to_older) - int(to_older < to_last)
        now, older = now + 1, older + 1
        now, older = now if now < size else 0, older if older < size else 0
    return nearer > 0 and nearer >= CLEARLY * math.sqrt(n - OLDER)


@kernel(inline=True)
def lags_of_row(i: int, served: RO_F8, count: int, targets: I8) -> int:
    """How many columns row i has; -1 if it leaves no target either, whatever its weight.

    served   (n,)  as in Batch, or (0,)
    targets  (1,)  how many have entered
    """
    if count == 0 or served.shape[0] > 0 and not np.isnan(served[i]):
        return -1
    return int(min(count, targets[0]))


@kernel(inline=True, inner=False)
def lag(c: int, recent: F8, targets: I8) -> float:
    """Column c of the next row."""
    last = targets[0] - 1
    x = recent[(last - c) % MAX_LAGS]
    return float(recent[(last - c + 1) % MAX_LAGS] - x if c > 0 else x)


@kernel(inline=True)
def give_lag_columns(
    n: int, room: int, width: int, recent: F8, targets: I8, keys: I8, columns: I8, k: I8
) -> int:
    """Give n lags their columns; 0 if one is needed beyond `room` columns, else 1."""
    for c in range(n):
        if lag(c, recent, targets) != 0.0:
            if give_column(width + c, room, keys, columns, k) == 0:
                return 0
    return 1


@kernel(inline=True)
def count_lags(n: int, width: int, recent: F8, targets: I8, keys: I8, counts: I8) -> None:
    """Count n lags of a learned row."""
    for c in range(n):
        if lag(c, recent, targets) != 0.0:
            count_feature(width + c, keys, counts)


@kernel(inline=True)
def set_lags(n: int, width: int, recent: F8, targets: I8, keys: I8, columns: I8, x: F8) -> None:
    """Set n lags in x, which has the other columns of the row, and 0 in these."""
    for c in range(n):
        value = lag(c, recent, targets)
        # Not -0.0.
        if value != 0.0:
            set_value(width + c, value, keys, columns, x)


@kernel(inline=True)
def enter_target(y: float, recent: F8, targets: I8) -> None:
    """Enter the target of a learned row."""
    recent[targets[0] % MAX_LAGS] = y
    targets[0] += 1
