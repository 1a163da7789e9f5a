"""DCD: dual coordinate descent with shrinking, for hinge and squared hinge.

Hsieh, Chang, Lin, Keerthi, Sundararajan, "A dual coordinate descent method for large-scale linear
SVM" (2008), Algorithm 3 and appendix, as in LIBLINEAR: a new random order in each pass, and rows
that stay at a bound are skipped until the rest is solved. With visits="cyclic" and newton=False it
is the algorithm of Danda and Naik, "Dual Descent Method", section V. Their alpha_i is C b_i with
b_i = y_i lambda_i in [0, U], U = 1 for the hinge and infinite for its square, and C_i = a_i =
c_i / (rho Delta).

For the squared hinge, passes soon identify the active rows but converge slowly in the last digits
of b_i. With few columns, equations in all active b_i at once are solved after the first passes
(finite_newton.py). Their solution is accepted only if it increases the dual.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers import jit
from dualstream.solvers.offline.dual_sweep import AHEAD, CURVATURE, DUAL, LABEL, STEP
from dualstream.solvers.offline.finite_newton import FiniteNewton
from dualstream.solvers.offline.method import Method, Start, first_duals
from dualstream.solvers.offline.options import CYCLIC, PERMUTED, RANDOM
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.row_order import shuffle
from dualstream.solvers.rows.scalar import prefetch

ORDERS = (PERMUTED, CYCLIC, RANDOM)
_PERMUTED, _RANDOM = 0, 2
# Outputs of the passes in `out`.
_MAX_GRADIENT, _MIN_GRADIENT, _GAP, _ACTIVE = range(4)
_SOLVED = 1e-12
_SHARE_AT_ONCE, _VISITS_AT_ONCE = 8, 4_000
"""Passes over few rows are run together, with visits up to an eighth of all rows or up to the
second number: reacquiring the interpreter lock after each pass would cost more."""
_PASSES = 0.25
"""Passes before a step on all active rows, as a multiple of the step's cost in passes."""
_STEPS = 50
"""Maximum number of such steps. Finitely many suffice, but rounding may hide the last one."""


class Descent:
    """A run; see method.Run."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem, self._rng = problem, rng
        self._table = np.zeros((problem.n, 4))
        self._table[:, LABEL] = problem.labels
        self._table[:, STEP] = problem.batch.weights / (problem.rho * problem.total)
        self._table[:, CURVATURE] = problem.square_norms()
        self._order = problem.visited.copy()
        self._active = len(self._order)
        self._visits: str = options["visits"]
        # A skipped row changes the order of the others.
        self._shrinking: bool = options["shrinking"] and self._visits != CYCLIC
        self._out = np.zeros(4)
        self._table[:, DUAL] = problem.labels * first_duals(problem, start)
        self.weights = problem.from_duals(self.duals)
        self.promise = math.nan
        self._forget()
        self._newton: FiniteNewton | None = None
        self._passes, self._due = 0, 1.0
        self._dual = math.nan
        self._steps = _STEPS
        if not options["newton"] or problem.loss.gamma == 0.0:
            self._due = math.inf

    @property
    def duals(self) -> jit.Floats:
        return self._problem.labels * self._table[:, DUAL]

    def _forget(self) -> None:
        """Restart with all rows and without bounds for shrinking."""
        self._active = len(self._order)
        self._max_gradient, self._min_gradient = math.inf, -math.inf

    def advance(self) -> float:
        if self._passes >= self._due:
            epochs = self._step()
            if epochs:
                return epochs
        self._passes += 1
        return self._pass()

    def _step(self) -> float:
        """A step on all active rows; 0 if not available."""
        if self._newton is None:
            newton = FiniteNewton(self._problem, self.weights)
            self._due = _PASSES * newton.cost
            if self._passes < self._due:
                return 0.0
            self._newton = newton
        point = self._newton.step() if self._steps else None
        if point is None:
            self._due = math.inf
            return 0.0
        self._steps -= 1
        problem = self._problem
        if math.isnan(self._dual):
            self._dual = problem.bounds(self.weights, self.duals, self.weights).dual
        bounds = problem.bounds(point.dashed, problem.labels * point.multipliers, point.dashed)
        if bounds.dual > self._dual:
            self._dual = bounds.dual
            self._table[:, DUAL], self.weights = point.multipliers, point.dashed
            self.promise = bounds.gap
            self._forget()
        return point.epochs

    def _pass(self) -> float:
        problem, count = self._problem, len(self._order)
        at_once = max(self._active, count // _SHARE_AT_ONCE, min(count, _VISITS_AT_ONCE))
        visits = descend(
            *problem.columns,
            problem.bias,
            problem.loss.gamma,
            problem.loss.hi,
            self._order,
            self._active,
            self._rng.random(at_once),
            ORDERS.index(self._visits),
            self._shrinking,
            self._max_gradient,
            self._min_gradient,
            self.weights,
            self._table,
            self._out,
        )
        self.promise = self._out[_GAP] * problem.rho
        self._max_gradient, self._min_gradient = self._out[_MAX_GRADIENT], self._out[_MIN_GRADIENT]
        self._active = int(self._out[_ACTIVE])
        if self._active == 0:
            self._forget()
        return visits / max(1, count)

    def bounds(self) -> Bounds:
        """Bounds from all rows; skipped rows that contribute to the gap return."""
        duals = self.duals
        self.weights = self._problem.from_duals(duals)
        bounds = self._problem.bounds(self.weights, duals, self.weights)
        if not bounds.gap <= 2.0 * self.promise:
            self._forget()
        return bounds


@jit.kernel
def descend(
    indptr: jit.RO_I8_2D,
    indices: jit.RO_I4_2D,
    values: jit.RO_F8_2D,
    bias: float,
    gamma: float,
    hi: float,
    order: jit.I8,
    active: int,
    draws: jit.RO_F8,
    visiting: int,
    shrinking: bool,
    most_before: float,
    least_before: float,
    w: jit.F8,
    table: jit.F8_2D,
    out: jit.F8,
) -> int:
    """Passes over order[:active], one or as many as there are `draws` for; return all visits.

    Minimises  sum_i a_i (gamma b_i^2 / 2 - b_i) + |w|^2 / 2,  w = sum_i a_i b_i y_i h_i + ...,
    over 0 <= b_i <= hi, one b_i after the other, exactly.

    indptr, indices, values     columns
    order  (k,) updated         rows that are shrunk move to the end
    draws  (active or more,)    in [0, 1): a pass takes one for each row
    visiting                    index in ORDERS
    most_before, least_before   bounds of the projected gradient in the pass before
    w      (dim + 1,) updated
    table  (n, 4)               y_i, a_i, |h_i|^2, b_i, of which the last is updated
    out    (4,)                 bounds for the next pass; sum of a_i times the gap of row i at
                                its last visit; number of rows left, 0: restart with all
    """
    last, visits = w.shape[0] - 1, 0
    while True:
        if visiting == _PERMUTED:
            shuffle(order, active, draws[visits:])
        first, taken = visits, 0
        visits += active
        most, least, gap = -np.inf, np.inf, 0.0
        s = 0
        while s < active:
            if visiting == _RANDOM:
                j = int(draws[first + taken] * active)
                order[s], order[j] = order[j], order[s]
                taken += 1
            if s + 2 * AHEAD < active:
                prefetch(indptr, order[s + 2 * AHEAD])
                prefetch(table, order[s + AHEAD])
                at = indptr[order[s + AHEAD], 0]
                prefetch(indices, at)
                prefetch(values, at)
                prefetch(values, at + 8)
            i = order[s]
            begin, end = indptr[i, 0], indptr[i + 1, 0]
            y, a, q, old = table[i, 0], table[i, 1], table[i, 2], table[i, 3]
            # Two sums, because each addition waits for the previous one.
            z, z2 = bias * w[last], 0.0
            p = begin
            while p + 1 < end:
                z += values[p, 0] * w[indices[p, 0]]
                z2 += values[p + 1, 0] * w[indices[p + 1, 0]]
                p += 2
            if p < end:
                z += values[p, 0] * w[indices[p, 0]]
            r = 1.0 - y * (z + z2)
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
            # max over b of b r - gamma b^2 / 2, minus the same at the current b.
            best = r / gamma if gamma > 0.0 else hi
            best = min(max(best, 0.0), hi) if r > 0.0 else 0.0
            gap += a * (best * r - 0.5 * gamma * best * best - old * (r - 0.5 * gamma * old))
            if abs(projected) > 1e-12:
                curvature = a * q + gamma
                new = old - g / curvature if curvature > 0.0 else hi
                new = min(max(new, 0.0), hi)
                table[i, 3] = new
                step = (new - old) * a * y
                for p in range(begin, end):
                    w[indices[p, 0]] += step * values[p, 0]
                w[last] += step * bias
            s += 1
        if not shrinking or most - least <= _SOLVED:
            active = 0
        most_before = most if most > 0.0 else np.inf
        least_before = least if least < 0.0 else -np.inf
        if active == 0 or visits + active > draws.shape[0]:
            break
    out[0], out[1], out[2], out[3] = most_before, least_before, gap, active
    return visits


METHOD = Method(begin=Descent, losses=("hinge", "squared_hinge"), takes_fixed=True)
