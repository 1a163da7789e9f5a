"""`solve`: the best linear model for a fixed set of rows, with a certificate."""

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidRow, InvalidSpec, NotConverged, ShapeMismatch
from dualstream.solvers.jit import Floats
from dualstream.solvers.losses.loss_table import PARAMETERS, Loss, make_loss
from dualstream.solvers.losses.spec import read_loss
from dualstream.solvers.offline.options import with_defaults
from dualstream.solvers.offline.solution import Progress, Solution
from dualstream.solvers.protocols.certificate import relative_gap
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec_fields import read_choice, read_kind, read_number

if TYPE_CHECKING:
    from dualstream.solvers.offline.method import Method, Run, Start
    from dualstream.solvers.offline.problem import Bounds, Problem

Callback = Callable[[Progress], Any]

INTERCEPTS = ("none", "penalized", "free")
_RHO = (1e-100, 1e100, "a number in [1e-100, 1e100]")
_TOL = (0.0, 1.0, "a number in [0, 1]")
_EPOCHS = (1.0, 1e12, "a number in [1, 1e12]")
_TOTAL = (1e-100, 1e200, "a number in [1e-100, 1e200]")

# Growth factor of the epochs between two evaluations of the gap, for methods without an estimate.
_GROWTH = 1.2
# An evaluation costs about one epoch: do it only if the gap may be small, and not too often.
_MAY_BE = 1.5


def solve(
    batch: Batch,
    method: str = "sdca",
    *,
    loss: str | Mapping[str, Any] = "hinge",
    regularizer: str | Mapping[str, Any] | None = None,
    rho: float = 1e-3,
    tol: float = 1e-3,
    seed: int = 0,
    intercept: str = "none",
    max_epochs: float = 10_000,
    duals: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    fixed: npt.ArrayLike | None = None,
    total: float | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> Solution:
    """Minimise the mean loss of rows plus rho |w|^2 / 2 until the gap is proved to be small.

    P(w) = (1/Delta) sum_i c_i Q(h_i.w; y_i) + rho |w|^2 / 2, c_i the weights of the rows and Delta
    their sum. With weights 1 and C of LIBLINEAR: rho = 1 / (C n).

    method      see `method_registry.METHODS`
    regularizer l2; for newton_l1 l1: rho |w|_1 in place of rho |w|^2 / 2
    loss        a name, or an object with `kind` and the loss's parameter
    tol         largest relative gap: (primal - dual) / max(|primal|, |dual|)
    intercept   `none`; `penalized`: of a last feature 1, as in learners; `free`: without penalty
    max_epochs  an epoch is as much work as one step on each row
    duals       (n,) starting point: dual variables lambda of the rows, or
    weights     (dim,) or (dim + 1,): weights, then the intercept
    fixed       (dim,) or (dim + 1,): fixed sum of c lambda h of rows that are not given;
                then `total` is Delta, including the weight of those rows
    callback    called with a Progress at least once per epoch; returning True ends the run
    options     of the method, see options.py

    The same arguments give the same bits, except for seconds. Raises InvalidSpec, InvalidRow (a
    label that is invalid for the loss), ShapeMismatch; NotConverged if numbers overflow.
    """
    from dualstream.solvers.offline.method import Start
    from dualstream.solvers.offline.method_registry import method_of

    chosen = method_of(method)
    problem = problem_of(batch, method, chosen, loss, regularizer, rho, intercept, fixed, total)
    if duals is not None and weights is not None:
        raise InvalidSpec("/weights", "given", "left out if duals are given")
    start = Start(
        None if duals is None else _vector(duals, "duals", (problem.n,)),
        None if weights is None else _widened(weights, "weights", problem),
    )
    settings = with_defaults(method, options)
    tol = read_number({"tol": tol}, "", "tol", 0.0, *_TOL)
    max_epochs = read_number({"max_epochs": max_epochs}, "", "max_epochs", 1.0, *_EPOCHS)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidSpec("/seed", seed, "a whole number >= 0")
    if len(problem.visited) == 0:
        raise InvalidSpec("/batch", f"{problem.n} rows", "at least one row with a weight above 0")
    # Numbers out of range are detected in the results.
    with np.errstate(all="ignore"):
        loop = _Loop(method, chosen, problem, start, settings, seed)
        return loop.run(tol, max_epochs, callback)


class _Loop:
    """Runs a method until it is good enough, and reports progress."""

    def __init__(
        self,
        name: str,
        method: "Method",
        problem: "Problem",
        start: "Start",
        options: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._name, self._method, self._problem = name, method, problem
        began = time.perf_counter()
        self._run: Run = method.begin(problem, start, options, np.random.default_rng(seed))
        self._seconds = time.perf_counter() - began
        self._epochs = 0.0
        self._trace: list[Progress] = []
        self._looked_at = 0.0
        self._promised = math.inf

    def run(self, tol: float, max_epochs: float, callback: Callback | None) -> Solution:
        status = "converged" if self._is_done(tol) else ""
        while not status:
            began = time.perf_counter()
            epochs = self._run.advance()
            self._epochs += epochs
            self._seconds += time.perf_counter() - began
            is_last = self._epochs >= max_epochs or epochs == 0.0
            if (is_last or self._is_time_to_look(tol)) and self._is_done(tol):
                status = "converged"
            elif is_last:
                status = "max_epochs" if epochs else "stalled"
            if callback is not None and callback(self._now()) is True and not status:
                self._is_done(tol)
                status = "cancelled"
        return self._solution(status)

    def _is_time_to_look(self, tol: float) -> bool:
        if self._method.is_seen_through:
            return True
        due = self._epochs >= max(self._looked_at + 1.0, _GROWTH * self._looked_at)
        promise, last = self._run.promise, self._trace[-1]
        if math.isnan(promise):
            return due
        if promise > _MAY_BE * tol * max(abs(last.primal), abs(last.dual)):
            # Rare evaluations, only for the callback: they do not end the run.
            return self._epochs >= 4.0 * self._looked_at + 1.0
        return due or promise < 0.8 * self._promised

    def _is_done(self, tol: float) -> bool:
        """Compute the bounds; whether their gap is small enough."""
        bounds = self._run.bounds()
        if not math.isfinite(bounds.primal + bounds.dual + bounds.gap):
            raise NotConverged(
                f"{self._name} exceeded the range of float64 after {self._epochs:g} "
                f"epochs: rho = {self._problem.rho:g} does not suit rows of this size"
            )
        self._looked_at, self._promised = self._epochs, self._run.promise
        self._trace.append(self._now(bounds))
        is_none = bounds.gap <= self._method.least_gap
        return is_none or relative_gap(bounds.gap, bounds.primal, bounds.dual) <= tol

    def _now(self, bounds: "Bounds | Progress | None" = None) -> Progress:
        bounds_now = self._trace[-1] if bounds is None else bounds
        return Progress(
            self._epochs, self._seconds, bounds_now.primal, bounds_now.dual, bounds_now.gap
        )

    def _solution(self, status: str) -> Solution:
        last, run = self._trace[-1], self._run
        return Solution(
            run.weights[:-1].copy(),
            float(run.weights[-1]),
            last.primal,
            last.dual,
            last.gap,
            self._epochs,
            status,
            self._name,
            _of_rows(self._problem, run.duals),
            tuple(self._trace),
        )


def problem_of(
    batch: Batch,
    name: str,
    method: "Method",
    loss: str | Mapping[str, Any],
    regularizer: str | Mapping[str, Any] | None,
    rho: float,
    intercept: str,
    fixed: npt.ArrayLike | None,
    total: float | None,
) -> "Problem":
    """The problem of these arguments of `solve`. Raises as `solve`."""
    from dualstream.solvers.offline.problem import Problem

    read = read_loss({"loss": loss}, "binary")
    kind = read["kind"]
    if kind not in method.losses:
        raise InvalidSpec("/loss", kind, f"one of {', '.join(method.losses)} for {name}")
    made = make_loss(kind, read[PARAMETERS[kind].name] if kind in PARAMETERS else None)
    kinds = {one: () for one in method.regularizers}
    first = method.regularizers[0]
    read_kind({"regularizer": regularizer or first}, "regularizer", first, kinds)
    rho = read_number({"rho": rho}, "", "rho", 1.0, *_RHO)
    read_choice({"intercept": intercept}, "intercept", "none", INTERCEPTS)
    if intercept in method.intercepts:
        reason = f"another one for {name}: {method.intercepts[intercept]}"
        raise InvalidSpec("/intercept", intercept, reason)
    labels = _labels(batch, made)
    if (fixed is None) != (total is None):
        raise InvalidSpec("/total", total, "given if and only if fixed is given")
    if fixed is None or total is None:
        return Problem(batch, labels, made, rho, intercept)
    if not method.takes_fixed:
        raise InvalidSpec("/fixed", "given", f"left out for {name}")
    least = float(batch.weights.sum())
    if not total >= least * (1 - 1e-9):
        raise InvalidSpec("/total", total, f"at least the weight of the rows, {least:g}")
    total = read_number({"total": total}, "", "total", 1.0, *_TOTAL)
    problem = Problem(batch, labels, made, rho, intercept, total=total)
    problem.fixed = _widened(fixed, "fixed", problem)
    return problem


def _labels(batch: Batch, loss: Loss) -> Floats:
    """(n,) the labels as the loss takes them. Raises InvalidRow."""
    labels = batch.labels
    bad = np.isnan(labels)
    if loss.margin:
        labels = np.where(labels == 0.0, -1.0, labels)
        bad |= np.abs(labels) != 1.0
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        allowed = "-1 (or 0) and 1" if loss.margin else "numbers"
        raise InvalidRow(row, f"{loss.name} takes the labels {allowed}, got {batch.labels[row]:g}")
    return np.ascontiguousarray(labels)


def _vector(values: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> Floats:
    vector = np.array(values, np.float64)
    if vector.shape != shape:
        raise ShapeMismatch(f"{name} have shape {vector.shape}, expected {shape}")
    if not np.isfinite(vector).all():
        raise InvalidSpec(f"/{name}", "a number that is not finite", "finite numbers")
    return vector


def _widened(values: npt.ArrayLike, name: str, problem: "Problem") -> Floats:
    """(dim + 1,) with 0 for a missing intercept."""
    vector = np.array(values, np.float64)
    if vector.shape == (problem.width - 1,):
        vector = np.append(vector, 0.0)
    vector = _vector(vector, name, (problem.width,))
    if problem.intercept == "none" and vector[-1] != 0.0:
        raise InvalidSpec(f"/{name}", float(vector[-1]), "0 at the intercept: the model has none")
    return vector


def _of_rows(problem: "Problem", duals: Floats | None) -> Floats | None:
    return None if duals is None else np.where(problem.batch.weights > 0.0, duals, 0.0)
