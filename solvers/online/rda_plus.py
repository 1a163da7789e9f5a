"""RDA+: RDA with a local phase that solves for the weights on the identified support.

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis),
Algorithm 2, for an unbounded stream that is not stored: the rows N of the local phase are the last
`retain` rows.

When: the last `stable` iterates, w_(j+1) among them, have one sign pattern, as in line 9, and there
are `retain` rows (the thesis requires one pass over all rows, so there `retain` is their number).
After each attempt, run or skipped, the next is at twice as many steps at the earliest. So local
phases become rare as the stream grows, and their cost is amortised over all earlier rows. Where a
weight became 0 in rows that do not have its feature, the pattern is checked again only after as
many rows as there are active features, so that checks cost O(1) per row.

What: the minimum of the mean loss over N plus the regularizer, by offline/proximal_newton.py, over
the features that occur in N: from the pattern, with those at 0 whose mean gradient is beyond
`safeguard` lambda (2.46), then those that the gradient at the minimum shows to be missing.

Whether: while N is at least half of all rows learned, always, as in the thesis. Later RDA has seen
rows that N no longer contains. Then the minimum over the older half of N must first predict the
newer half at least as well as RDA itself did when those rows arrived. On a stationary stream RDA
continues undisturbed; after a change, RDA restarts from the minimum over N.

Then RDA continues from there: the sums of gradients are set such that its iterate is the minimum
found, G_j = t times the gradient at the minimum for weights at 0, and -(w_j (sigma t + 2 c_h
beta_t) + t lambda sgn w_j) for the others. Features that do not occur in N keep theirs. All this is
a function of the learned rows alone.

The row that ends a stable phase waits for the local phase: a few ms for tens of active features on
1,000 rows, seconds for MAX_MEMBERS dense ones. With more there is no local phase.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_I4, U1, Floats, Indices, Ints, kernel
from dualstream.solvers.offline import proximal_newton
from dualstream.solvers.online.dual_averaging import (
    BIAS,
    FIRST,
    IS_PLUS,
    LAMBDA,
    LAST,
    LAST_CHANGE,
    LISTED,
    NEGATIVE,
    NEXT_TRY,
    NONE,
    ON_LIST,
    POSITIVE,
    RECENT,
    RETAIN,
    SIGMA,
    SIGN_BITS,
    STABLE,
    STEPS,
    DualAveraging,
    inverse_curvatures,
)
from dualstream.solvers.online.forgetting_windows import DUAL, LABEL, WEIGHT
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.sparse_support import LocalPhases
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.scalar import clip

# Sums of gradients are kept far from overflow.
_MAX_SUM = 1e200
_RING = ("indptr", "indices", "values", "labels", "weights", "losses")


class DualAveragingPlus(DualAveraging):
    """The learner of `algorithm: rda_plus`; `spec` is resolved."""

    STATE_INTS = {**DualAveraging.STATE_INTS, "next_try": NEXT_TRY}
    SIGNS = np.uint8(SIGN_BITS | ON_LIST)

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        ints = self._ints
        ints[IS_PLUS], ints[RETAIN], ints[STABLE] = 1, spec["retain"], spec["stable"]
        ints[NEXT_TRY] = spec["retain"]
        self._listed = np.zeros(self._features.width, np.int32)
        # Not part of the state.
        self._outcomes = {"accepted": 0, "refused": 0, "unsolved": 0}

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py: the row that starts a local phase."""
        ints = self._ints
        steps = int(ints[STEPS]) + rows
        return steps >= max(int(ints[NEXT_TRY]), int(ints[LAST_CHANGE] + ints[STABLE]) - 1)

    def _local_phase(self) -> None:
        ints, ring = self._ints, self._ring
        first, last, steps = int(ints[FIRST]), int(ints[LAST]), int(ints[STEPS])
        ints[NEXT_TRY] = 2 * steps
        start, end = ring.starts[first], ring.starts[last]
        columns = np.unique(ring.indices[start:end])
        coordinates = np.append(columns, self._features.dim)
        if steps > 2 * (last - first):
            middle = (first + last) // 2
            older = self._minimum(self._rows(first, middle, columns), coordinates)
            newer = ring.rows[middle:last]
            if older is None:
                self._outcomes["unsolved"] += 1
                return
            if proximal_newton.mean_loss(
                self._rows(middle, last, columns), self._loss.numbers, older.weights
            ) > weighted_mean(newer[:, DUAL].copy(), newer[:, WEIGHT].copy()):
                self._outcomes["refused"] += 1
                return
        optimum = self._minimum(self._rows(first, last, columns), coordinates)
        self._outcomes["unsolved" if optimum is None else "accepted"] += 1
        if optimum is not None:
            hand_back(
                columns, optimum.weights, optimum.gradient,
                *inverse_curvatures(steps, self._floats, ints),
                self._w, self._signs, self._floats, ints,
            )  # fmt: skip
            listed = np.flatnonzero(self._signs)
            self._listed[: len(listed)] = listed
            ints[LISTED] = len(listed)

    def local_phases(self) -> LocalPhases:
        """Outcomes of the local phases of this object, and delta. O(dim + retained entries)."""
        return LocalPhases(
            self._delta(), **self._outcomes, max_features=proximal_newton.MAX_MEMBERS
        )

    def _delta(self) -> float | None:
        ints, ring = self._ints, self._ring
        first, last = int(ints[FIRST]), int(ints[LAST])
        if first == last:
            return None
        entries = ring.indices[ring.starts[first] : ring.starts[last]]
        # A coordinate that is 0, and in no retained row, counts as 0.
        used = np.append(self._served()[:-1] != 0.0, False)
        used[entries] = True
        columns = np.flatnonzero(used).astype(np.int32)
        rows, lam = self._rows(first, last, columns), float(self._floats[LAMBDA])
        weights = self._served_of(self._w[np.append(columns, self._features.dim)])
        scores, gradient = np.empty(len(rows.labels)), np.empty(len(weights))
        sigma = float(self._floats[SIGMA])
        proximal_newton.evaluate(
            rows.arguments, self._loss.numbers, lam, sigma, weights, scores, gradient
        )
        has_one = rows.bias != 0.0
        share = (len(columns) + has_one) / (self._features.dim + has_one)
        return proximal_newton.optimality(weights, gradient, lam, rows.bias) * math.sqrt(share)

    def _rows(self, first: int, last: int, columns: Indices) -> proximal_newton.Rows:
        """Retained rows, with their entries renumbered within `columns`."""
        ring = self._ring
        start, end = ring.starts[first], ring.starts[last]
        return proximal_newton.Rows(
            ring.starts[first : last + 1] - start,
            np.searchsorted(columns, ring.indices[start:end]).astype(np.int32),
            ring.values[start:end],
            ring.rows[first:last, LABEL].copy(),
            ring.rows[first:last, WEIGHT].copy(),
            len(columns),
            float(self._floats[BIAS]),
        )

    def _minimum(
        self, rows: proximal_newton.Rows, coordinates: Ints
    ) -> proximal_newton.Optimum | None:
        """Minimum over some rows, from the current weights; `coordinates` of their columns and
        intercept."""
        lam, sigma = float(self._floats[LAMBDA]), float(self._floats[SIGMA])
        weights = self._served_of(self._w[coordinates])
        mean = np.abs(self._w[coordinates[:-1], 0]) / int(self._ints[STEPS])
        members = (weights[:-1] != 0.0) | (mean > self.spec["safeguard"] * lam)
        objective = proximal_newton.Objective(self._loss.numbers, lam, sigma)
        minimum = proximal_newton.minimise(rows, objective, weights, members, self.spec["tol"])
        if minimum is None:
            return None
        small = (
            np.all(np.abs(column) < _MAX_SUM) for column in (minimum.weights, minimum.gradient)
        )
        return minimum if all(small) else None

    def state(self) -> State:
        """See Learner."""
        ring = self._ring.state(int(self._ints[FIRST]), int(self._ints[LAST]))
        ring["ring_losses"] = ring.pop("ring_duals")
        listed = self._listed[: self._ints[LISTED]].astype(np.int64)
        return super().state() | ring | {"listed": listed}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            (*self.STATE_FLOATS, *self.STATE_INTS), ()
        )
        shapes["signs"] = self._signs.shape
        shapes["gradient_sum"] = (self._features.width,)
        check_arrays(state, shapes)
        for name in ("listed", *(f"ring_{part}" for part in _RING)):
            if name not in state:
                raise CorruptState(f"the state has no {name}")
        listed, losses = np.asarray(state["listed"]), np.asarray(state["ring_losses"])
        on_list = np.asarray(state["signs"]) >= ON_LIST
        if not np.array_equal(np.sort(listed), np.flatnonzero(on_list)):
            raise CorruptState("the list of active weights does not fit their signs")
        if not is_storable(losses):
            raise CorruptState("ring_losses is not finite")
        # The last check that can fail, except those that super() repeats: negative counts.
        if any(int(state[name]) < 0 for name in self.STATE_INTS):
            raise CorruptState("a count is negative")
        rows = self._ring.restore({**state, "ring_duals": losses}, self._features.dim)
        super().restore(state)
        self._ints[FIRST], self._ints[LAST], self._ints[LISTED] = 0, rows, len(listed)
        self._listed[: len(listed)] = listed


def weighted_mean(values: Floats, weights: Floats) -> float:
    """(1/n) sum_i c_i values_i, summed in order."""
    out = np.empty(1)
    sum_products(values, weights, out)
    return float(out[0]) / len(values)


@kernel
def sum_products(values: RO_F8, weights: RO_F8, out: F8) -> None:
    """out[0] = sum_i c_i values_i."""
    out[0] = 0.0
    for i in range(values.shape[0]):
        out[0] += weights[i] * values[i]


@kernel
def hand_back(
    columns: RO_I4,
    weights: RO_F8,
    gradient: RO_F8,
    inverse: float,
    inverse_free: float,
    w: F8_2D,
    signs: U1,
    f: F8,
    k: I8,
) -> None:
    """Set G of `columns` and the intercept such that RDA's iterate is `weights` there.

    columns                 (m,)        indices into w
    weights, gradient       (m + 1,)    see proximal_newton.Optimum
    inverse, inverse_free               see dual_averaging.inverse_curvatures
    w, signs                            see dual_averaging.learn_rows; signs are up to date
    """
    end, cut = columns.shape[0], k[STEPS] * f[LAMBDA]
    for position in range(end):
        j, weight = columns[position], weights[position]
        if weight == 0.0:
            g = clip(k[STEPS] * gradient[position], -cut, cut)
        else:
            g = -(weight / inverse + (cut if weight > 0.0 else -cut))
        after = POSITIVE if -g > cut else NEGATIVE if g > cut else NONE
        if after != signs[j] & SIGN_BITS:
            k[LAST_CHANGE] = k[STEPS]
            f[RECENT] += 1.0
        w[j, 0], signs[j] = g, after | ON_LIST if after != NONE else 0
    w[w.shape[0] - 1, 0] = -weights[end] / inverse_free
