"""SDCA: stochastic dual coordinate ascent, for every loss.

Shalev-Shwartz, Zhang, "Stochastic dual coordinate ascent methods for regularized loss minimization"
(2013). The dual never decreases. Rows are visited in a new random order each epoch; drawing with
replacement, as in the paper, takes up to twice as many epochs.

For the hinge and its square in permuted order, SDCA delegates to dcd.py: the same steps, with
shrinking and a final solve for all active rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline import dcd
from dualstream.solvers.offline.dual_sweep import CURVATURE, DUAL, LABEL, STEP, sweep
from dualstream.solvers.offline.method import Method, Run, Start, first_duals
from dualstream.solvers.offline.options import PERMUTED
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.row_order import Visits


class Ascent:
    """A run; see method.Run."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem = problem
        self._table = np.zeros((problem.n, 4))
        self._table[:, LABEL] = problem.labels
        self._table[:, STEP] = problem.batch.weights / (problem.rho * problem.total)
        self._table[:, CURVATURE] = self._table[:, STEP] * problem.square_norms()
        self._visits = Visits(problem.visited, options["visits"], rng)
        self._table[:, DUAL] = first_duals(problem, start)
        self.weights = problem.from_duals(self.duals)
        self.promise = float("nan")

    @property
    def duals(self) -> Floats:
        return np.ascontiguousarray(self._table[:, DUAL])

    def advance(self) -> float:
        problem = self._problem
        self.promise = problem.rho * sweep(
            *problem.columns,
            problem.numbers,
            problem.bias,
            self._visits.epoch(),
            self.weights,
            self._table,
        )
        return 1.0

    def bounds(self) -> Bounds:
        """Bounds of weights recomputed from the dual variables, so rounding errors do not
        accumulate."""
        duals = self.duals
        self.weights = self._problem.from_duals(duals)
        return self._problem.bounds(self.weights, duals, self.weights)


def begin(
    problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
) -> Run:
    """A run of the class that suits this problem."""
    steps_are_dcds = problem.loss.name in dcd.METHOD.losses and options["visits"] == PERMUTED
    return (dcd.Descent if steps_are_dcds else Ascent)(problem, start, options, rng)


METHOD = Method(begin=begin, takes_fixed=True)
