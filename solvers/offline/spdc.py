"""SPDC: stochastic primal-dual coordinate method, for smooth losses.

Zhang, Xiao, "Stochastic primal-dual coordinate method for regularized empirical risk minimization"
(2015), Algorithm 1 with the parameters of its Theorem 1: a dual step on one row, a primal step of
all coordinates, and an extrapolation. A step costs O(entries of the row): coordinates that the row
lacks follow w <- (w + tau u) / (1 + rho tau), which has a closed form for any number of steps.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.lazy_updates import Affine
from dualstream.solvers.offline.method import Method, Start, first_duals
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES, modulus
from dualstream.solvers.offline.row_order import Visits
from dualstream.solvers.offline.spdc_kernel import spdc_epoch


class SaddlePoint:
    """A run; see method.Run."""

    promise = math.nan

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem = problem
        n, rho = problem.n, problem.rho
        self._k = n * problem.batch.weights / problem.total
        gamma = modulus(problem) / float(np.max(self._k))
        r = max(math.sqrt(float(np.max(problem.square_norms()))), 1e-150)
        tau = math.sqrt(gamma / (n * rho)) / (2.0 * r)
        self._sigma = math.sqrt(n * rho / gamma) / (2.0 * r)
        self._theta = 1.0 - 1.0 / (n + 2.0 * r * math.sqrt(n / (rho * gamma)))
        self._powers = Affine.of(math.log1p(rho * tau), rho, n + 1)
        self._visits = Visits(problem.visited, options["visits"], rng)
        self.duals = first_duals(problem, start)
        w = problem.from_duals(self.duals)
        self._state = np.zeros((problem.width, 4))
        self._state[:, 0] = self._state[:, 1] = w
        self._state[:, 2] = rho * w

    @property
    def weights(self) -> Floats:
        return np.ascontiguousarray(self._state[:, 0])

    def advance(self) -> float:
        problem = self._problem
        spdc_epoch(
            *problem.rows,
            problem.labels,
            self._k,
            problem.numbers,
            problem.bias,
            self._sigma,
            self._theta,
            self._visits.epoch(),
            self._powers.low,
            self._powers.high,
            self._state,
            self.duals,
        )
        return 1.0

    def bounds(self) -> Bounds:
        """Bounds of the current weights, which differ from those of the dual variables; u is
        recomputed."""
        dashed = self._problem.from_duals(self.duals)
        self._state[:, 2] = self._problem.rho * dashed
        return self._problem.bounds(self.weights, self.duals, dashed)


METHOD = Method(begin=SaddlePoint, losses=SMOOTH_LOSSES)
