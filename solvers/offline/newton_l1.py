"""l1-regularised problems by the proximal Newton method of RDA+, on all coordinates.

    P(w) = (1/Delta) sum_i c_i Q(h_i.w; y_i) + rho |w|_1,   a free intercept or none

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis),
section 2.5, with the proximal Newton method of proximal_newton.py. An epoch is one round: the
minimum over a set of coordinates, and then the coordinates with the largest violations of the
gradient condition join the set.

The gap is that of lambda_i = -Q'(h_i.w; y_i), moved and shrunk until feasible:

    D(lambda) = -(1/Delta) sum_i c_i Q*(-lambda_i; y_i),
    |(1/Delta) sum_i c_i lambda_i h_i|_j <= rho, and sum_i c_i lambda_i = 0 with a free intercept.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline import row_kernels as _rows
from dualstream.solvers.offline.method import Method, Start
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.proximal_newton import Objective, Rows, minimise_over
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES

_MIN_NEW = 50
"""Coordinates that may join the set in a round; or as many as the set has."""
_ZERO_GAP = 1e-12
"""A gap that counts as 0: with one class and a free intercept the least objective is 0."""


class Newton:
    """A run; see method.Run."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem, self._most = problem, options["members"]
        batch = problem.batch
        # The mean in proximal_newton is over n rows.
        weights = batch.weights * (problem.n / problem.total)
        self._rows = Rows(
            batch.indptr, batch.indices, batch.values, problem.labels, weights,
            batch.dim, problem.bias,
        )  # fmt: skip
        self._objective = Objective(problem.numbers, problem.rho, 0.0)
        self.weights = np.zeros(problem.width)
        if start.weights is not None:
            self.weights = start.weights.copy()
        self._primal, self._gradient, self.duals = self._at(self.weights)
        self._steepest = max(float(np.abs(self._gradient).max()), problem.rho)
        self._members = self.weights[:-1] != 0.0
        self._lower = self._bound(self.duals)
        if start.duals is not None:
            self._take(self._allowed(problem.clipped(start.duals)))
        self._is_over = False

    @property
    def promise(self) -> float:
        return self._primal - self._lower

    def bounds(self) -> Bounds:
        return Bounds(self._primal, self._lower, max(self._primal - self._lower, 0.0))

    def advance(self) -> float:
        if self._is_over:
            return 0.0
        self._grow()
        minimum = minimise_over(
            self._rows, self._objective, self.weights, self._members,
            1e-13 * self._steepest, self._most,
        )  # fmt: skip
        if minimum is None:
            self._is_over = True
            return 0.0
        primal, gradient, duals = self._at(minimum.optimum.weights)
        if primal <= self._primal:
            self.weights, self._primal, self._gradient = minimum.optimum.weights, primal, gradient
        self._take(duals)
        self._is_over = not self._missing().any()
        return 1.0

    def _missing(self) -> Any:
        excess = np.abs(self._gradient[:-1]) - self._problem.rho
        return ~self._members & (excess > 1e-13 * self._steepest)

    def _grow(self) -> None:
        """Add the coordinates whose gradient is furthest beyond rho."""
        missing = np.flatnonzero(self._missing())
        room = max(_MIN_NEW, int(np.count_nonzero(self._members)))
        order = np.argsort(-np.abs(self._gradient[missing]), kind="stable")
        self._members[missing[order[:room]]] = True

    def _take(self, duals: Floats) -> None:
        lower = self._bound(duals)
        if lower > self._lower:
            self._lower, self.duals = lower, duals

    def _at(self, weights: Floats) -> tuple[float, Floats, Floats]:
        """The objective, the gradient of its smooth part, and feasible dual variables."""
        problem = self._problem
        slopes = problem.duals_at(weights)
        sums = np.empty(3)
        _rows.sum_terms(
            problem.scores(weights), slopes, problem.labels, problem.batch.weights,
            problem.numbers, sums,
        )  # fmt: skip
        primal = sums[0] / problem.total + problem.rho * float(np.abs(weights[:-1]).sum())
        gradient = -self._combined(slopes)
        return float(primal), gradient, self._allowed(slopes)

    def _combined(self, duals: Floats) -> Floats:
        """(dim + 1,): (1/Delta) sum_i c_i lambda_i h_i."""
        problem = self._problem
        out = np.zeros(problem.width)
        shares = problem.batch.weights * duals / problem.total
        _rows.add_rows(*problem.rows, problem.bias, shares, out)
        return out

    def _allowed(self, duals: Floats) -> Floats:
        """Feasible dual variables near these."""
        problem = self._problem
        weights, signs = problem.batch.weights, problem.labels
        if problem.bias != 0.0:
            if problem.loss.margin:
                # Shrink those of the class with the larger sum, so b_i = y_i lambda_i stays in its
                # domain.
                positive = float(np.sum(weights * duals, where=signs > 0.0))
                negative = -float(np.sum(weights * duals, where=signs < 0.0))
                less = min(positive, negative)
                shares = np.array([less / (negative or 1.0), less / (positive or 1.0)])
                duals = duals * shares[(signs > 0.0).astype(np.int64)]
            else:
                duals = duals - float(np.sum(weights * duals)) / float(weights.sum())
                largest = float(np.abs(duals[weights > 0.0]).max(initial=0.0))
                if largest > problem.loss.hi:
                    duals = duals * (problem.loss.hi / largest)
        beyond = float(np.abs(self._combined(duals)[:-1]).max(initial=0.0))
        if beyond > problem.rho:
            duals = duals * (problem.rho / beyond)
        return problem.clipped(duals)

    def _bound(self, duals: Floats) -> float:
        """D of feasible dual variables."""
        problem = self._problem
        sums = np.empty(3)
        _rows.sum_terms(
            np.zeros(problem.n), duals, problem.labels, problem.batch.weights,
            problem.numbers, sums,
        )  # fmt: skip
        lower = -float(sums[1]) / problem.total
        return lower if math.isfinite(lower) else -math.inf


METHOD = Method(
    begin=Newton,
    losses=SMOOTH_LOSSES,
    regularizers=("l1",),
    intercepts={"penalized": "the intercept stays out of |w|_1 here; a feature 1 is penalised"},
    least_gap=_ZERO_GAP,
    is_seen_through=True,
)
