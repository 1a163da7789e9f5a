"""Refit of O-DCA: solves the problem of its retained rows, on a copy of its state.

    max over the lambda of the retained rows of
        -(1/Delta) sum_n delta_n Q*(-lambda_n) - rho R*(w'),  w' = u / (rho Delta)

with the contribution of all other rows to u fixed; for a sliding window there are no others. Each
epoch visits every row once, in a new random order, with the exact step in its coordinate, which for
l2 is SDCA (Shalev-Shwartz and Zhang, 2013) with lambda = rho; see
online/dual_ascent/kernels.visit_row. The kernels release the GIL.

A `reference` solves the same problem for the retained rows alone, without the contribution of
others: its dual value is a lower bound of the objective of any weights on these rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dualstream.solvers.errors import RefitError, SolverError
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.refit_methods import why_not_method
from dualstream.solvers.offline.solution import Progress
from dualstream.solvers.offline.solve import solve
from dualstream.solvers.online.dual_ascent import general_kernels as _general, kernels as _l2
from dualstream.solvers.online.dual_ascent.learner import DualAscent
from dualstream.solvers.online.dual_ascent.refit import fingerprints_of, row_losses, take_in
from dualstream.solvers.online.dual_ascent.regularizers import l2_sums
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from dualstream.solvers.online.dual_ascent.unlearn import (
    first_that_counts,
    forget_average,
    recompute_sums,
    sum_of,
)
from dualstream.solvers.online.forgetting_windows import DUAL, LABEL, WEIGHT
from dualstream.solvers.protocols.certificate import Certificate, row_sums, summed
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import rows_of_state

# Maximum coordinates touched by the visits of one piece: about 10 ms of work.
_PIECE = 2_000_000

Problems = Sequence[tuple[Mapping[str, Any], State]]
"""See refit.problems_of."""


@dataclass(frozen=True, slots=True)
class Refitted:
    """The result of a refit, for the copied window."""

    fingerprints: Floats
    """(problems, n): a fingerprint of each row that counts, oldest first; see fingerprints_of."""
    duals: Floats
    """(problems, n): the new dual variables."""
    epochs: int
    certificate: Certificate
    """Certificate of the window with these dual variables, all averages restarted."""
    converged: bool
    """Whether the relative gap reached the tolerance."""

    @property
    def arrays(self) -> dict[str, Floats]:
        """The journalled arrays."""
        return {"fingerprints": self.fingerprints, "duals": self.duals}

    @property
    def dropped(self) -> None:
        """A linear model has no named functions."""

    @property
    def coefficients_are_unique(self) -> None:
        """As `dropped`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The least objective on the retained rows alone."""

    lower: float
    """A lower bound of the objective over all weights."""
    found: float
    """The objective of the solution: lower <= optimum <= found."""
    served: float
    """The objective of the weights that the model serves."""
    losses: Floats
    """(n,): loss of each row that counts, at the solution, oldest first."""
    epochs: int
    converged: bool


class WindowProblem(DualAscent):
    """A copy of a learner, whose dual variables are changed instead of the learner's."""

    def __init__(self, spec: Mapping[str, Any], state: State) -> None:
        super().__init__(spec)
        self.restore(state)
        self.served = self._weights()
        """(width,): the weights that the learner serves, the intercept's last."""
        self.first = first_that_counts(self._ints)
        self.rows = int(self._ints[_l2.LAST]) - self.first
        self._restart_average()

    def use_retained_only(self) -> None:
        """Treat the retained rows as all rows, with the learner's current rho."""
        floats = self._floats
        room = _l2.rho_delta(floats, floats[_l2.DELTA])
        floats[_l2.RHO], floats[_l2.STRENGTH] = room / floats[_l2.DELTA], 0.0
        recompute_sums(self._ring, self._w, floats, self._ints)
        self._restart_average()

    def _restart_average(self) -> None:
        forget_average(self._w, self._floats)
        self._begin_average()

    def visit_all(self, first: int, epochs: int, is_cancelled: Callable[[], bool]) -> bool:
        """Visit each row once per epoch; the epoch's number determines the order.

        False if cancelled. The GIL is taken once for each piece of work, which keeps delays of
        other threads short.
        """
        touched = len(self._w) if self._ints[_l2.ENTROPY] else 100
        piece = max(16, _PIECE // touched)
        at_once = max(1, piece // self.rows)
        ring = self._ring
        for epoch in range(first, first + epochs, at_once):
            count = min(at_once, first + epochs - epoch)
            drawn = draw_visits(0, epoch * self.rows, count * self.rows).reshape(count, self.rows)
            order = np.argsort(drawn, axis=1, kind="stable").ravel()
            visits = (order + 0.5) / self.rows
            for begin in range(0, len(visits), piece):
                if is_cancelled():
                    return False
                self._kernels.replay(
                    visits, begin, min(begin + piece, len(visits)), ring.arrays,
                    self._w, self._floats, self._ints,
                )  # fmt: skip
        return True

    def solve(
        self,
        method: str,
        options: Mapping[str, Any],
        tol: float,
        max_epochs: int,
        is_cancelled: Callable[[float, Progress], bool],
    ) -> int | None:
        """Take the dual variables of an offline method, and report its epochs.

        None if cancelled; the values reached by then are kept. `is_cancelled` receives the number
        of epochs so far, and this run's progress. Raises RefitError if the method cannot solve the
        window.
        """
        floats, ring = self._floats, self._ring
        first, last = self.first, self.first + self.rows
        starts, columns, indices, values = ring.rows_between(first, last)
        decay = self._window.beta ** np.arange(self.rows - 1, -1, -1.0)
        room = _l2.rho_delta(floats, floats[_l2.DELTA])
        about = columns[:, LABEL], columns[:, WEIGHT] * decay
        rows = rows_of_state("retained rows", (starts, indices, values, *about), len(self._w) - 1)
        duals, epochs = self.duals(), 0.0
        asked: dict[str, Any] = {
            **options,
            "loss": self.spec["loss"],
            "rho": room / floats[_l2.DELTA],
            "max_epochs": max_epochs,
            "intercept": "penalized" if floats[_l2.BIAS] else "none",
            "callback": lambda progress: is_cancelled(epochs + progress.epochs, progress),
        }
        if not self._ints[_l2.LENGTH]:
            fixed = np.zeros(len(self._w))
            sum_of(ring, floats, fixed, first, last)
            asked["fixed"] = floats[_l2.SCALE] * self._w[:, 0] - fixed
            asked["total"] = float(floats[_l2.DELTA])
        # That gap is of a primal without the losses of the other rows; the learner's certificate
        # decides.
        inner = tol
        while epochs < max_epochs and self.certify().relative_gap > tol:
            try:
                solution = solve(rows, method, duals=duals, tol=inner, **asked)
            except SolverError as error:
                raise RefitError(f"{method} cannot solve the window: {error}") from error
            assert solution.duals is not None
            duals, epochs, inner = solution.duals, epochs + max(1.0, solution.epochs), inner / 4.0
            take_in(self.fingerprints(), duals, 1.0, ring, self._w, floats, self._ints)
            if solution.status == "cancelled":
                return None
        return math.ceil(epochs)

    def certify(self) -> Certificate:
        """The certificate of the iterate."""
        self._restart_average()
        return self.certificate()

    def fingerprints(self) -> Floats:
        """(rows,)"""
        return fingerprints_of(self._ring, self.first, self.first + self.rows)

    def duals(self) -> Floats:
        """(rows,)"""
        duals: Floats = self._ring.rows[self.first : self.first + self.rows, DUAL].copy()
        return duals

    def primal_at(self, weights: Floats) -> float:
        """The objective of these weights (width,) on the retained rows."""
        floats, ring, w = self._floats, self._ring, weights.reshape(-1, 1)
        sums, regularizer = np.empty(4), np.empty(3)
        row_sums(
            *ring.arrays, self.first, self.first + self.rows, w, 1.0, 0.0,
            floats[_l2.BIAS], self._odds, self._window.beta, self._loss.numbers, sums,
        )  # fmt: skip
        if self._is_l2:
            l2_sums(w, 1.0, 0.0, 0.0, regularizer)
        else:
            factor, stop = _general.dashed_factor(floats), len(w) - (floats[_l2.BIAS] == 0.0)
            top, total = _general.shift_and_sum(self._w, floats, self._ints, factor)
            regularizer[:] = 0.0
            _general.add_regularizer(
                self._w[:stop], weights[:stop], floats, self._ints, factor, top, total, regularizer
            )
        room = _l2.rho_delta(floats, floats[_l2.DELTA])
        return float(sums[2] / sums[0] + room / floats[_l2.DELTA] * regularizer[0])

    def add_losses(self, out: Floats) -> None:
        """out (rows,) += the loss of each row at the iterate."""
        self._restart_average()
        ring, floats = self._ring, self._floats
        row_losses(
            *ring.arrays,
            self.first,
            self._weights(),
            floats[_l2.BIAS],
            self._odds,
            self._loss.numbers,
            out,
        )


class Refitting:
    """A running refit; `problems` are copies, which the refit owns.

    tol         relative gap at which to stop, as in certificates
    max_epochs  maximum number of visits to each row
    method      one that fits the problem: see `refit_methods.why_not_method`
    options     of the method
    alone       whether the retained rows are treated as all rows: for a reference

    Raises RefitError if no rows are retained.
    """

    def __init__(
        self,
        problems: Problems,
        tol: float,
        max_epochs: int,
        method: str = "sdca",
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        alone: bool = False,
    ) -> None:
        self._problems = [WindowProblem(spec, state) for spec, state in problems]
        # With classes, the first problem is the prototype's, which no certificate counts.
        self._counted = self._problems[1:] or self._problems
        self._tol, self.max_epochs, self._method, self._options = tol, max_epochs, method, options
        # dcd makes the same steps faster for the losses that it supports; `solve` delegates to it.
        by_dcd = why_not_method(problems[0][0], "dcd") is None
        self._is_by_passes = method == "sdca" and not by_dcd and not options
        if not self.rows:
            raise RefitError("no row is retained")
        if alone:
            for problem in self._problems:
                problem.use_retained_only()
        self.epochs = 0
        self.certificate = self._before = self._certify()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._problems[0].rows

    @property
    def converged(self) -> bool:
        """Whether the gap reached the tolerance."""
        return self.certificate.relative_gap <= self._tol

    @property
    def relative_gap_before(self) -> float:
        """Relative gap of the window before the refit."""
        return self._before.relative_gap

    @property
    def relative_gap(self) -> float:
        """Relative gap of the current certificate."""
        return self.certificate.relative_gap

    @property
    def dual_before(self) -> float:
        """Dual of the window before the refit."""
        return self._before.dual

    @property
    def dual(self) -> float:
        """Dual of the current certificate."""
        return self.certificate.dual

    def _certify(self) -> Certificate:
        certificate = summed([problem.certify() for problem in self._counted])
        assert certificate is not None
        return certificate

    def run(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_look: "Callable[[Refitting], None]" = lambda refitting: None,
    ) -> bool:
        """Run until the gap is small or the epochs are used up; False if cancelled.

        `is_cancelled` is called every few milliseconds. `on_look` is called at each evaluation of
        the gap: after each of the first epochs, then at intervals of a fifth more epochs. Methods
        other than passes call it after each epoch or less, with the gap of the last evaluation.
        """
        on_look(self)
        if not self._is_by_passes:
            return self._solve(is_cancelled, on_look)
        unfinished = list(self._problems)
        look = 1
        while unfinished and self.epochs < self.max_epochs:
            epochs = min(look, self.max_epochs) - self.epochs
            for problem in unfinished:
                if not problem.visit_all(self.epochs, epochs, is_cancelled):
                    return False
            self.epochs += epochs
            look = max(self.epochs + 1, int(1.2 * self.epochs))
            unfinished = [p for p in unfinished if p.certify().relative_gap > self._tol]
            self.certificate = self._certify()
            on_look(self)
        return True

    def _solve(
        self, is_cancelled: Callable[[], bool], on_look: "Callable[[Refitting], None]"
    ) -> bool:
        """`run` for methods other than passes."""

        def went_on(epochs: float, at: Progress) -> bool:
            self.epochs = max(self.epochs, math.ceil(epochs))
            if len(self._problems) == 1 and not self.certificate.estimate:
                self.certificate = replace(
                    self._before,
                    primal=at.primal,
                    dual=at.dual,
                    gap=at.gap,
                    relative_gap=at.relative_gap,
                )
            on_look(self)
            return is_cancelled()

        for problem in self._problems:
            epochs = problem.solve(self._method, self._options, self._tol, self.max_epochs, went_on)
            self.certificate = self._certify()
            if epochs is None:
                return False
            self.epochs = max(self.epochs, epochs)
            on_look(self)
        return True

    def refitted(self) -> Refitted:
        """The result."""
        return Refitted(
            np.stack([problem.fingerprints() for problem in self._problems]),
            np.stack([problem.duals() for problem in self._problems]),
            self.epochs,
            self.certificate,
            self.converged,
        )

    def reference(self) -> Reference:
        """The result for the retained rows alone."""
        losses = np.zeros(self.rows)
        for problem in self._counted:
            problem.add_losses(losses)
        served = sum(problem.primal_at(problem.served) for problem in self._counted)
        lower, optimum = self.certificate.dual, self.certificate.primal
        return Reference(lower, optimum, max(served, lower), losses, self.epochs, self.converged)
