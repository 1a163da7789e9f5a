"""Averages of lazily updated weights, in O(log steps) per entry of a row.

The average after step N is  sum_s kappa^(N - s) w_s / S_N,  over the weights w_s after each step s.
Between two writes of a weight,

    w_s = a_s sgn(v) max(0, |v| + mark - C_s)

where v and mark are stored with the weight, and the scale a_s and the non-decreasing threshold C_s
are the same for all weights. So its sum over steps follows from prefix sums of a_s and a_s C_s, and
from the first step with C_s >= |v| + mark, which bisection finds.

The prefix sums begin at a step at which all weights were settled, at most `window_of(width)` steps
ago. With each weight the learner stores z, its sum up to its last write, and `seen`, the step of
that write. So the average of a weight that never left 0 is 0 exactly. Terms are in units of K,
which is kappa to the number of these steps: they only ever grow.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, Floats, kernel
from dualstream.solvers.protocols.state_numbers import check_arrays

# Indices of the scalars: steps since weights were settled, kappa to that power, S_N, kappa.
NOW, K, S, KAPPA = range(4)

MAX_STEP = 1e140
"""Learners of averages reject rows with a larger step: then no sum can overflow."""
_SMALL_STEP, _MAX_PLAIN_STEP = 1e190, 1e290
_LEAST_K = 1e-100


def window_of(width: int) -> int:
    """Maximum number of steps between two passes over all weights: O(1) for each row."""
    return max(256, width // 256)


class LazyAverage:
    """Prefix sums and scalars of one average; empty and unused if kappa is 0.

    sums     (window + 1, 3)   sum of a_s, sum of a_s (C_s - C_0), C_s, after 0, 1, ... NOW steps
    scalars  (4,)              see the constants at the top of this file
    """

    def __init__(self, average: Mapping[str, Any] | None, width: int) -> None:
        kappa = average["kappa"] if average else 0.0
        self.is_on, self._width = kappa > 0.0, width
        self.sums = np.zeros((window_of(width) + 1 if self.is_on else 1, 3))
        self.scalars = np.array([0.0, 1.0, 0.0, kappa])

    @property
    def arrays(self) -> tuple[Floats, Floats]:
        return self.sums, self.scalars

    def restart(self, threshold: float) -> None:
        """Begin with an average of one iterate: its weights are z, `seen` is 0, `threshold` C_0."""
        self.scalars[:KAPPA] = 0.0, 1.0, 1.0
        self.sums[0] = 0.0, 0.0, threshold

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for the state of a learner; none if unused."""
        if not self.is_on:
            return {}
        return {"average_sums": self.sums.copy(), "average": self.scalars[:KAPPA].copy()}

    def check(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raise CorruptState unless `restore` accepts the state."""
        if not self.is_on:
            return
        shapes = {"average_sums": self.sums.shape, "average": (KAPPA,), "seen": (self._width,)}
        check_arrays(state, shapes)
        now, k, s = np.asarray(state["average"])
        seen = np.asarray(state["seen"])
        # Kernels follow `now` and `seen` as indices.
        if not (now in range(len(self.sums)) and 0.0 < k <= 1.0 and s >= 0.0):
            raise CorruptState("average is out of range")
        if np.any((seen < 0.0) | (seen > now) | (seen != np.floor(seen))):
            raise CorruptState("seen has a step that average_sums does not have")

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take what `state` returned, after `check`."""
        if self.is_on:
            self.sums[:], self.scalars[:KAPPA] = state["average_sums"], state["average"]


@kernel(inner=True)
def lazy_sum(v: float, mark: float, seen: float, sums: RO_F8_2D, now: int) -> float:
    """Sum over the steps after `seen` up to `now` of a_s sgn(v) max(0, |v| + mark - C_s)."""
    if v == 0.0:
        return 0.0
    begin, last = int(seen), now
    reach = abs(v) + mark
    if not sums[now, 2] < reach:
        # The last step at which the weight was not 0 yet.
        first = begin
        while first < last:
            middle = (first + last + 1) // 2
            if sums[middle, 2] < reach:
                first = middle
            else:
                last = middle - 1
    total: float = (reach - sums[0, 2]) * (sums[last, 0] - sums[begin, 0])
    total -= sums[last, 1] - sums[begin, 1]
    return total if v > 0.0 else -total


@kernel(inner=True)
def unit_of(scalars: RO_F8) -> float:
    """The factor between sums and averages: K / S_N, or 0 before the first step."""
    return float(scalars[K] / scalars[S]) if scalars[S] > 0.0 else 0.0


@kernel(inline=True)
def fits(values: RO_F8, begin: int, end: int, g: float, m: float, averaged: bool) -> bool:
    """Whether the step g h, of the score m, leaves finite weights and sums finite.

    A step below 1e290 cannot make them infinite. No entry is beyond 1e100.
    """
    if not averaged and abs(g) < _SMALL_STEP:
        return True
    most = MAX_STEP if averaged else _MAX_PLAIN_STEP
    finite = abs(g) < most and abs(m) < math.inf
    for p in range(begin, end):
        finite = finite and abs(g * values[p]) < most
    return finite


@kernel
def is_due(sums: RO_F8_2D, scalars: RO_F8) -> bool:
    """Must all weights be settled before the next step?"""
    unit: float = scalars[K] * scalars[KAPPA]
    return int(scalars[NOW]) + 1 == sums.shape[0] or unit < _LEAST_K


@kernel(inner=True)
def settle_sums(sums: F8_2D, scalars: F8, threshold: float) -> None:
    """Begin new prefix sums, after the caller added the old ones to each z; each `seen` is 0."""
    sums[0, 0] = sums[0, 1] = 0.0
    sums[0, 2] = threshold
    scalars[NOW] = 0.0


@kernel(inner=True)
def add_step(scale: float, threshold: float, unit: float, sums: F8_2D, scalars: F8) -> None:
    """Append a step with a_s = scale, C_s = threshold and K = unit."""
    now = int(scalars[NOW])
    a = scale / unit
    sums[now + 1, 0] = sums[now, 0] + a
    sums[now + 1, 1] = sums[now, 1] + a * (threshold - sums[0, 2])
    sums[now + 1, 2] = threshold
    scalars[NOW], scalars[K] = now + 1.0, unit
    scalars[S] = scalars[KAPPA] * scalars[S] + 1.0
