"""Dual coordinate descent with shrinking, for hinge and squared hinge.

Hsieh, Chang, Lin, Keerthi, Sundararajan, "A dual coordinate descent method for large-scale linear
SVM" (2008), Algorithm 3 and appendix, as LIBLINEAR runs it: random order, and rows that stay at a
bound leave the pass until the rest is solved. Their alpha_i is C b_i with b_i = y_i lambda_i in
[0, U], U = 1 for the hinge and infinite for its square, and C_i = a_i = c_i / (rho Delta).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from solvers._jit import F8, I8, RO_F8, RO_I4, RO_I8, Floats, Indices, Ints, f8, i8, kernel
from solvers.offline._shuffle import shuffle
from solvers.offline.methods import Method, Option, Start
from solvers.offline.problem import Bounds, Problem

# What a pass leaves in `out`.
_MOST, _LEAST, _GAP = range(3)
_IN_A_PASS = 1e-12


class Descent:
    """A run; see methods.Run."""

    def __init__(
        self,
        problem: Problem,
        start: Start,
        options: Mapping[str, Any],
        rng: np.random.Generator,
    ) -> None:
        self._problem, self._rng = problem, rng
        self._steps = problem.batch.weights / (problem.rho * problem.total)
        self._norms = problem.square_norms()
        self._order = problem.visited.copy()
        self._active = len(self._order)
        self._shrinking: bool = options["shrinking"]
        self._out = np.zeros(3)
        self._b = np.zeros(problem.n)
        if start.duals is not None:
            self._b = problem.labels * problem.clipped(start.duals)
        elif start.weights is not None:
            self._b = problem.labels * problem.duals_at(start.weights)
        self.weights = problem.from_duals(self.duals)
        self.promise = math.nan
        self._forget()

    @property
    def duals(self) -> Floats:
        return self._problem.labels * self._b

    def _forget(self) -> None:
        """Begin again with all rows and no idea of which may be left out."""
        self._active = len(self._order)
        self._most, self._least = math.inf, -math.inf

    def advance(self) -> float:
        active = self._active
        shuffle(self._order, active, self._rng.random(active))
        problem = self._problem
        self._active = descend(
            *problem.rows,
            problem.labels,
            self._steps,
            self._norms,
            problem.bias,
            problem.loss.gamma,
            problem.loss.hi,
            self._order,
            active,
            self._most,
            self._least,
            self.weights,
            self._b,
            self._out,
        )
        self.promise = self._out[_GAP] * problem.rho
        most, least = self._out[_MOST], self._out[_LEAST]
        if not self._shrinking or most - least <= _IN_A_PASS or self._active == 0:
            self._forget()
        else:
            self._most = most if most > 0.0 else math.inf
            self._least = least if least < 0.0 else -math.inf
        return active / max(1, len(self._order))

    def bounds(self) -> Bounds:
        """Of all rows, also those that were left out; they come back for the passes after it."""
        self._forget()
        duals = self.duals
        self.weights = self._problem.from_duals(duals)
        return self._problem.bounds(self.weights, duals, self.weights)


@kernel(i8(RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, RO_F8, f8, f8, f8, I8, i8, f8, f8, F8, F8, F8))
def descend(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    y: Floats,
    a: Floats,
    q: Floats,
    bias: float,
    gamma: float,
    hi: float,
    order: Ints,
    active: int,
    most_before: float,
    least_before: float,
    w: Floats,
    b: Floats,
    out: Floats,
) -> int:
    """One pass over order[:active]; return how many rows are left for the next one.

    Minimises  sum_i a_i (gamma b_i^2 / 2 - b_i) + |w|^2 / 2,  w = sum_i a_i b_i y_i h_i + ...,
    over 0 <= b_i <= hi, one b_i after the other, exactly.

    y, a, q (n,)         labels, a_i, |h_i|^2
    order  (k,) updated  rows that leave go behind those that stay
    most_before, least_before   bounds of the projected gradient in the pass before
    w (dim + 1,), b (n,) updated
    out (3,)             bounds of the projected gradient; sum of a_i times the gap of row i as met
    """
    last = w.shape[0] - 1
    most, least, gap = -np.inf, np.inf, 0.0
    s = 0
    while s < active:
        i = order[s]
        begin, end = indptr[i], indptr[i + 1]
        # Two sums: one addition need not wait for the one before.
        z, z2 = bias * w[last], 0.0
        p = begin
        while p + 1 < end:
            z += values[p] * w[indices[p]]
            z2 += values[p + 1] * w[indices[p + 1]]
            p += 2
        if p < end:
            z += values[p] * w[indices[p]]
        r = 1.0 - y[i] * (z + z2)
        old = b[i]
        g = gamma * old - r
        projected = g
        if old == 0.0:
            if g > most_before:
                active -= 1
                order[s], order[active] = order[active], i
                continue
            projected = min(g, 0.0)
        elif old == hi:
            if g < least_before:
                active -= 1
                order[s], order[active] = order[active], i
                continue
            projected = max(g, 0.0)
        most, least = max(most, projected), min(least, projected)
        # max over b of b r - gamma b^2 / 2, less the same at b as it is.
        best = r / gamma if gamma > 0.0 else hi
        best = min(max(best, 0.0), hi) if r > 0.0 else 0.0
        gap += a[i] * (best * r - 0.5 * gamma * best * best - old * (r - 0.5 * gamma * old))
        if abs(projected) > 1e-12:
            curvature = a[i] * q[i] + gamma
            new = old - g / curvature if curvature > 0.0 else hi
            new = min(max(new, 0.0), hi)
            b[i] = new
            step = (new - old) * a[i] * y[i]
            for p in range(begin, end):
                w[indices[p]] += step * values[p]
            w[last] += step * bias
        s += 1
    out[0], out[1], out[2] = most, least, gap
    return active


METHOD = Method(
    begin=Descent,
    losses=("hinge", "squared_hinge"),
    options={"shrinking": Option(True)},
    takes_fixed=True,
)
