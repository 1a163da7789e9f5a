"""Refit of a learner whose state is its weights, on rows that it has learned.

    min over w of  (1/n) sum_i c_i Q(h_i.w; y_i) + rho R(w)

h_i are n rows of weight c_i > 0 as the feature stages transform them now, so the result suits the
rows to come. Q, R and rho are those of the learner's own steps:

| algorithm                         | Q                      | R         | rho     |
|-----------------------------------|------------------------|-----------|---------|
| sgd, spg                          | its loss               | w^2 / 2   | rho     |
| asset                             | its loss               | w^2 / 2   | lambda  |
| truncated_gradient, fobos, sgd_l1 | its loss               | norm 1    | lambda  |
| fobos with lambda 0               | its loss               | w^2 / 2   | sigma   |
| passive_aggressive, pa1, pa2      | hinge, squared hinge   | w^2 / 2   | 1/(C n) |

PA has no published objective. Its step on a row is the first dual step on it in the problem |w|^2 /
2 + C sum of the losses (Shalev-Shwartz and Singer, "A primal-dual perspective of online learning
algorithms", 2007), so this is the problem that it makes one pass over.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import RefitError, SolverError
from dualstream.solvers.jit import Floats
from dualstream.solvers.losses.loss_table import NONSMOOTH_LOSSES
from dualstream.solvers.offline import Progress, Solution, solve
from dualstream.solvers.offline.problem import Problem
from dualstream.solvers.offline.refit_methods import SPARSE_STEPS, regularizer_of, takes_weights
from dualstream.solvers.offline.row_kernels import sum_terms
from dualstream.solvers.online.table_learner import loss_of
from dualstream.solvers.protocols.certificate import relative_gap
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.refit_weights import reach_of, taking_weights, weights_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec.make_learner import make_learner


@dataclass(frozen=True, slots=True)
class Objective:
    """Q, R and rho of the table above."""

    loss: str | Mapping[str, Any]
    rho: float
    intercept: str
    """`none`, `penalized` or `free`, bounded by `most`."""
    regularizer: str = "l2"
    most: float = math.inf

    @classmethod
    def of(cls, spec: Mapping[str, Any], rows: int) -> "Objective":
        """The objective of a resolved specification, for this number of rows of weight above 0."""
        assert takes_weights(spec)
        algorithm = spec["algorithm"]
        intercept = "penalized" if spec["intercept"] else "none"
        if algorithm == "asset":
            loss, bound = spec.get("loss", "hinge"), spec["bound"]
            if bound is not None:
                return cls(loss, spec["lambda"], "free", most=bound)
            return cls(loss, spec["lambda"], intercept)
        if algorithm == "passive_aggressive":
            loss = "hinge" if spec["variant"] == "pa1" else "squared_hinge"
            return cls(loss, 1.0 / (spec["C"] * rows), intercept)
        if algorithm in SPARSE_STEPS:
            kind = regularizer_of(spec)
            return cls(spec["loss"], spec["lambda" if kind == "l1" else "sigma"], intercept, kind)
        return cls(spec["loss"], spec["rho"], intercept)

    @property
    def is_smooth(self) -> bool:
        loss = self.loss if isinstance(self.loss, str) else self.loss["kind"]
        return loss not in NONSMOOTH_LOSSES


@dataclass(frozen=True, slots=True)
class Solved:
    """The solution of one problem, and a bound on its distance to the optimum."""

    weights: Floats
    """(width,), the intercept last."""
    primal: float
    """The learner's objective at these weights ..."""
    dual: float
    """... a lower bound of it ..."""
    before: float
    """... and its value at the weights that the learner serves."""
    reach: float
    """Bound on the distance to the best weights; 0 if R gives none."""
    is_converged: bool


class Refitting:
    """A running refit; see refit.RefitRun. `spec` and `state` are of the whole learner.

    rows        rows that it has learned; those with a weight and a score count
    tol         relative gap at which to stop
    max_epochs  maximum number of visits to each row
    options     of the method

    Raises RefitError if no row counts.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        state: State,
        rows: Batch,
        method: str,
        tol: float,
        max_epochs: int,
        options: Mapping[str, Any],
    ) -> None:
        learner = make_learner(spec)
        learner.restore(state)
        target = taking_weights(learner)
        counts = (rows.weights > 0.0) & np.isfinite(learner.predict(rows))
        self._rows, self._labels = target.window(rows.take(np.flatnonzero(counts)))
        self._served = target.served()
        if not len(self._rows):
            raise RefitError("no row that the model has learned is left in the journal")
        self._objective = Objective.of(spec, len(self._rows))
        self._loss = loss_of({"loss": self._objective.loss})
        self._method, self._tol, self._max_epochs = method, tol, max_epochs
        self._options = options
        self._solved: list[Solved] = []
        self.rows, self.epochs = len(self._rows), 0
        self.relative_gap_before: float | None = None
        self.relative_gap: float | None = None
        self.dual_before: float | None = None
        self.dual: float | None = None
        self.converged: bool | None = None

    def run(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_look: "Callable[[Refitting], None]" = lambda refitting: None,
    ) -> bool:
        """Solve all problems; False if cancelled.

        Raises RefitError if the method fails, or if the served weights are better.
        """
        for labels, served in zip(self._labels, self._served, strict=True):
            solution = self._solve(self._rows.with_labels(labels), served, is_cancelled, on_look)
            if solution is None:
                return False
            self._solved.append(solution)
        # With classes, the first problem is the prototype's, which is not served.
        counted = self._solved[1:] or self._solved
        primal = sum(one.primal for one in counted)
        before = sum(one.before for one in counted)
        self.dual = sum(one.dual for one in counted)
        self.relative_gap = relative_gap(max(primal - self.dual, 0.0), primal, self.dual)
        self.relative_gap_before = relative_gap(max(before - self.dual, 0.0), before, self.dual)
        self.converged = all(one.is_converged for one in self._solved)
        on_look(self)
        if not primal < before:
            raise RefitError(
                f"the served weights already have an objective of {before} on the window; "
                f"the refit found only {primal}"
            )
        return True

    def _solve(
        self,
        rows: Batch,
        served: Floats,
        is_cancelled: Callable[[], bool],
        on_look: "Callable[[Refitting], None]",
    ) -> Solved | None:
        objective, n = self._objective, len(rows)
        # The mean of `solve` is over the sum of the weights, here over the number of rows.
        share = float(rows.weights.sum()) / n
        epochs = self.epochs

        def look(progress: Progress) -> bool:
            self.epochs = epochs + math.ceil(progress.epochs)
            self.relative_gap, self.dual = progress.relative_gap, progress.dual * share
            on_look(self)
            return is_cancelled()

        is_l1 = objective.regularizer == "l1"
        asked: dict[str, Any] = {
            **self._options,
            "loss": objective.loss,
            "regularizer": objective.regularizer,
            "rho": objective.rho / share,
            "tol": self._tol,
            "max_epochs": self._max_epochs,
            "callback": look,
            # |w|_1 has no penalised intercept in `solve`: here the intercept is a feature.
            "intercept": "none" if is_l1 else objective.intercept,
        }
        has_one = is_l1 and objective.intercept == "penalized"
        if objective.is_smooth:
            # At a kink of the loss, weights do not determine dual variables: 0 is as good a start.
            asked["weights"] = served if has_one else served[:-1] if is_l1 else served
        try:
            solution = solve(_with_ones(rows) if has_one else rows, self._method, **asked)
        except SolverError as error:
            raise RefitError(f"{self._method} cannot solve the window: {error}") from error
        if solution.status == "cancelled":
            return None
        self.epochs = epochs + math.ceil(solution.epochs)
        return self._with_bounds(solution, rows, served, has_one, share)

    def _with_bounds(
        self, solution: Solution, rows: Batch, served: Floats, has_one: bool, share: float
    ) -> Solved:
        most = self._objective.most
        # The last feature, 1, is the intercept.
        weights = solution.weights if has_one else np.append(solution.weights, solution.intercept)
        weights[-1] = min(max(weights[-1], -most), most)
        primal = self._at(weights, rows)
        dual = solution.dual * share
        reach = 0.0
        if self._objective.regularizer == "l2":
            reach = reach_of(primal - dual, primal, self._objective.rho)
        before = self._at(served, rows)
        # If the free intercept exceeds its bounds, the bounds have a gap of their own.
        is_within = abs(solution.intercept) <= self._objective.most
        return Solved(weights, primal, dual, before, reach, solution.converged and is_within)

    def _at(self, w: Floats, rows: Batch) -> float:
        """The learner's objective at these weights."""
        objective = self._objective
        intercept = "penalized" if objective.intercept == "free" else objective.intercept
        problem = Problem(rows, rows.labels, self._loss, objective.rho, intercept)
        sums, scores = np.empty(3), problem.scores(w)
        columns = rows.labels, rows.weights, self._loss.numbers
        sum_terms(scores, np.zeros(len(rows)), *columns, sums)
        penalised = w[:-1] if objective.intercept == "free" else w
        size = np.abs(penalised) if objective.regularizer == "l1" else 0.5 * penalised**2
        return float(sums[0] / len(rows) + objective.rho * size.sum())

    def refitted(self) -> "Refitted":
        """The result."""
        return Refitted(
            np.stack([one.weights for one in self._solved]),
            np.array([one.reach for one in self._solved]),
            self.rows,
        )


@dataclass(frozen=True, slots=True)
class Refitted:
    """The result of a refit."""

    weights: Floats
    """(problems, width)"""
    reach: Floats
    """(problems,)"""
    rows: int

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The journalled arrays: the nonzero weights, problem by problem."""
        return weights_arrays(self.weights, self.reach, self.rows)

    @property
    def dropped(self) -> None:
        """A linear model has no named functions."""

    @property
    def coefficients_are_unique(self) -> None:
        """As `dropped`."""


def _with_ones(rows: Batch) -> Batch:
    """The same rows with a last feature 1."""
    ends, n = rows.indptr[1:], len(rows)
    return Batch.of_checked(
        rows.indptr + np.arange(n + 1),
        np.insert(rows.indices, ends, rows.dim),
        np.insert(rows.values, ends, 1.0),
        rows.labels,
        rows.weights,
        rows.dim + 1,
    )
