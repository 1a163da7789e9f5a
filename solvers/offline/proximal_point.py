"""Proximal point stages: the base of ASPDC-i and ASDCA.

Stage s approximately solves  min over w of  P(w) + kappa |w - z_s|^2 / 2  by dual steps, with

    w = (kappa z_s + rho w') / (rho + kappa),   a_i = c_i / ((rho + kappa) Delta)

and keeps the dual variables. z_1 = 0; the choice of the next z distinguishes the methods.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.dual_sweep import CURVATURE, DUAL, LABEL, STEP, sweep
from dualstream.solvers.offline.method import Start, first_duals
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.row_order import Visits

SMOOTH_LOSSES = ("squared_hinge", "smooth_hinge", "logistic", "squared", "huber")


def modulus(problem: Problem) -> float:
    """gamma of a loss whose derivative has the Lipschitz constant 1 / gamma."""
    return 4.0 if problem.loss.logistic else problem.loss.gamma


def largest_share(problem: Problem, norms: Floats) -> float:
    """max_i c_i |h_i|^2 / Delta: R^2 / n if all rows have weight 1."""
    return float(np.max(problem.batch.weights * norms)) / problem.total


class Stages:
    """A run; see method.Run. Subclasses define `next_centre` and `choose_kappa`."""

    keeps_curvature = True
    """Whether steps are exact; otherwise the step of ASPDC, without the term of |h_i|^2."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem = problem
        norms = problem.square_norms()
        self.kappa = self.choose_kappa(largest_share(problem, norms) / modulus(problem))
        steps = problem.batch.weights / ((problem.rho + self.kappa) * problem.total)
        self._table = np.zeros((problem.n, 4))
        self._table[:, LABEL], self._table[:, STEP] = problem.labels, steps
        if self.keeps_curvature:
            self._table[:, CURVATURE] = steps * norms
        self._visits = Visits(problem.visited, options["visits"], rng)
        self._stage_epochs: int = options["stage_epochs"]
        self._epochs_left = self._stage_epochs
        self._table[:, DUAL] = first_duals(problem, start)
        self._centre = np.zeros(problem.width)
        if start.duals is not None or start.weights is not None:
            self._centre = problem.from_duals(self.duals)
        self._last = self._centre.copy()
        self.weights = (
            self.kappa * self._centre + problem.rho * problem.from_duals(self.duals)
        ) / (problem.rho + self.kappa)

    @property
    def duals(self) -> Floats:
        return np.ascontiguousarray(self._table[:, DUAL])

    def choose_kappa(self, least: float) -> float:
        """kappa; the loss is well-conditioned for rho + kappa = `least` or a small multiple."""
        raise NotImplementedError

    def next_centre(self, w: Floats, last: Floats) -> Floats:
        """z of the next stage, from the final weights of this stage and of the previous one."""
        raise NotImplementedError

    def stage_is_over(self) -> bool:
        """Whether the stage ends; called after each epoch."""
        self._epochs_left -= 1
        return bool(self._epochs_left <= 0)

    @property
    def promise(self) -> float:
        return math.nan

    def advance(self) -> float:
        if self._epochs_left == 0:
            self._begin_stage()
        problem = self._problem
        sweep(
            *problem.columns,
            problem.numbers,
            problem.bias,
            self._visits.epoch(),
            self.weights,
            self._table,
        )
        if self.stage_is_over():
            self._epochs_left = 0
        return 1.0

    def _begin_stage(self) -> None:
        self._epochs_left = self._stage_epochs
        ended = self.weights
        before, self._centre = self._centre, self.next_centre(ended, self._last)
        share = self.kappa / (self._problem.rho + self.kappa)
        self._last, self.weights = ended, ended + share * (self._centre - before)

    def bounds(self) -> Bounds:
        """Bounds of the original problem: its dual is at w', not at the weights of the stage."""
        return self._problem.bounds(self.weights, self.duals)
