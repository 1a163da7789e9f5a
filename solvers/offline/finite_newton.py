"""Finite Newton method for the squared hinge: exact steps on all active rows at once.

Keerthi and DeCoste, "A modified finite Newton method for fast solution of large scale linear SVMs"
(2005), after Mangasarian (2002): for a fixed set of active rows, those with y z < 1, the squared
hinge is a quadratic, whose minimum is the solution of

    (rho I + sum of a_i h_i h_i' over active rows) w = sum of a_i y_i h_i + f / Delta,
    a_i = c_i / (gamma Delta)

An exact line search towards it decreases the objective even if the active set changes. If the set
does not change, the step is the last one. In the dual it is the exact solution in all b_i that are
not at their bound: b_i = (1 - y_i z_i) / gamma.
"""

from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.dense_algebra import dot, factor, solve_factored
from dualstream.solvers.offline.finite_newton_kernels import normal_equations, step_length
from dualstream.solvers.offline.problem import Problem

_MAX_COLUMNS = 1000
"""Maximum number of columns: the matrix is that wide, and its factorisation costs the cube."""
_MIN_STEP = 1e-15
"""A step below this share of the weights counts as none."""


@dataclass(frozen=True, slots=True)
class Point:
    """Result of a step."""

    multipliers: Floats
    """(n,) b_i of the rows at these weights."""
    gap: float
    """That of the weights and these dual variables: rho |w - w'|^2 / 2."""
    dashed: Floats
    """(dim + 1,) w' of the dual variables."""
    epochs: float
    """Cost of the step, in passes."""


class FiniteNewton:
    """Consecutive steps, starting at some weights (dim + 1,)."""

    def __init__(self, problem: Problem, weights: Floats) -> None:
        batch = problem.batch
        self._problem = problem
        occurs = np.zeros(problem.width, bool)
        occurs[batch.indices] = occurs[-1] = True
        self._columns = np.flatnonzero(occurs)
        self._indices = (np.cumsum(occurs) - 1).astype(np.int32)[batch.indices]
        self._costs = batch.weights / (problem.loss.gamma * problem.total)
        self._fixed = np.zeros(len(self._columns))
        if problem.fixed is not None:
            self._fixed = problem.fixed[self._columns] / problem.total
            self._off = problem.fixed / (problem.rho * problem.total)
        self._lengths = np.diff(batch.indptr) + 1.0
        self._weights = weights.copy()
        if problem.fixed is not None:
            # The best weights of columns that do not occur are known.
            self._weights[~occurs] = self._off[~occurs]
        self._short = 1.0 - problem.labels * problem.scores(self._weights)
        self._value = np.inf

    @property
    def cost(self) -> float:
        """Cost of a step in passes; infinite with too many columns."""
        is_too_wide = len(self._columns) > _MAX_COLUMNS
        return np.inf if is_too_wide else self._passes(self._lengths)

    def _passes(self, lengths: Floats) -> float:
        """Cost in passes of a step whose active rows have this many entries."""
        work = 0.5 * float((lengths * lengths).sum()) + len(self._columns) ** 3 / 3.0
        return 2.0 + work / (2.0 * float(self._lengths.sum()))

    def step(self) -> Point | None:
        """The next step; None if none decreases the objective beyond rounding."""
        problem, k = self._problem, len(self._columns)
        batch, labels, rho = problem.batch, problem.labels, problem.rho
        matrix, right = np.zeros((k, k)), self._fixed.copy()
        matrix[np.diag_indices(k)] = rho
        normal_equations(
            batch.indptr, self._indices, batch.values, problem.bias, labels, self._costs,
            self._short, matrix, right,
        )  # fmt: skip
        if not factor(matrix):
            return None
        solve_factored(matrix, right[None, :])
        before = self._weights[self._columns]
        move = right - before
        if not np.isfinite(move).all() or dot(move, move) <= _MIN_STEP**2 * dot(before, before):
            return None
        towards = np.zeros(problem.width)
        towards[self._columns] = move
        change = -labels * problem.scores(towards)
        slope = rho * dot(before, move) - dot(self._fixed, move)
        t = step_length(self._short, change, self._costs, slope, rho * dot(move, move))
        self._weights = self._weights + t * towards
        epochs = self._passes(self._lengths[self._short > 0.0])
        self._short = 1.0 - labels * problem.scores(self._weights)
        active = np.maximum(self._short, 0.0)
        after = before + t * move
        value = 0.5 * (dot(self._costs * active, active) + rho * dot(after, after))
        value -= dot(self._fixed, after)
        if not value < self._value:
            return None
        self._value = value
        multipliers = active / problem.loss.gamma
        dashed = problem.from_duals(labels * multipliers)
        off = self._weights - dashed
        return Point(multipliers, 0.5 * rho * dot(off, off), dashed, epochs)
