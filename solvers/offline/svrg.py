"""SVRG: stochastic variance reduced gradients of the primal, for smooth losses.

Johnson, Zhang, "Accelerating stochastic gradient descent using predictive variance reduction"
(2013), with the last iterate as the next anchor (their option I): a full gradient, then 2n steps of
size eta = step / L, L = max_i c_i |h_i|^2 n / (Delta gamma) + rho. The dual variables that certify
its weights are lambda_i = -Q'(h_i.w).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline import row_kernels as _rows
from dualstream.solvers.offline.lazy_updates import Affine
from dualstream.solvers.offline.method import Method, Start
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES, largest_share, modulus
from dualstream.solvers.offline.row_order import Visits
from dualstream.solvers.offline.svrg_kernel import svrg_epoch, weighted_slopes

_V, _MU = 0, 1


class VarianceReduced:
    """A run; see method.Run."""

    promise = math.nan

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem = problem
        n = problem.n
        self._k = n * problem.batch.weights / problem.total
        lipschitz = n * largest_share(problem, problem.square_norms()) / modulus(problem)
        self._eta = options["step"] / (lipschitz + problem.rho)
        minus_log_q = -math.log1p(-self._eta * problem.rho)
        self._powers = Affine.of(minus_log_q, problem.rho, n + 1)
        self._visits = Visits(problem.visited, options["visits"], rng)
        self._epochs_a_stage: int = options["stage_epochs"]
        self._epochs_left = 0
        self._anchor = np.zeros(problem.width)
        if start.weights is not None:
            self._anchor = start.weights.copy()
        elif start.duals is not None:
            self._anchor = problem.from_duals(problem.clipped(start.duals))
        self._anchored = np.zeros(n)
        self._state = np.zeros((problem.width, 3))
        self.duals = np.zeros(n)

    @property
    def weights(self) -> Floats:
        return self._anchor + self._state[:, _V]

    def advance(self) -> float:
        if self._epochs_left == 0:
            self._set_anchor()
            self._epochs_left = self._epochs_a_stage
            return 1.0
        problem = self._problem
        svrg_epoch(
            *problem.rows,
            problem.labels,
            self._k,
            problem.numbers,
            problem.bias,
            self._eta,
            self._visits.epoch(),
            self._anchored,
            self._powers.low,
            self._powers.high,
            self._state,
        )
        self._epochs_left -= 1
        return 1.0

    def _set_anchor(self) -> None:
        problem = self._problem
        self._anchor = self.weights
        self._anchored = problem.scores(self._anchor)
        slopes = np.empty(problem.n)
        columns = problem.labels, problem.batch.weights, problem.numbers
        weighted_slopes(self._anchored, *columns, slopes)
        gradient = np.zeros(problem.width)
        _rows.add_rows(*problem.rows, problem.bias, slopes, gradient)
        self._state[:, _V] = 0.0
        self._state[:, _MU] = gradient / problem.total + problem.rho * self._anchor

    def bounds(self) -> Bounds:
        self.duals = self._problem.duals_at(self.weights)
        return self._problem.bounds(self.weights, self.duals)


METHOD = Method(begin=VarianceReduced, losses=SMOOTH_LOSSES)
