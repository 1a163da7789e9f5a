"""Solving the problem that O-DCA has on its retained rows, on a copy of its state.

    max over the lambda of the retained rows of
        -(1/Delta) sum_n delta_n Q*(-lambda_n) - rho R*(w'),  w' = u / (rho Delta)

with the part of u from all other rows held fixed: for a sliding window the whole problem. Each
epoch visits every row once, in an order drawn anew, and takes the exact step in its coordinate,
which for l2 is SDCA (Shalev-Shwartz and Zhang, 2013) with lambda = rho; see `_odca.visit_row`. The
kernels release the GIL.

A `reference` is the same for the retained rows alone, without the part of all other rows: its dual
value is a lower bound of what any weights reach on these rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.certificate import Certificate, row_sums, summed
from dualstream.solvers.core.errors import RefitError, SolverError
from dualstream.solvers.core.learner import State
from dualstream.solvers.core.refit_methods import why_not_method
from dualstream.solvers.core.regularizers import l2_sums
from dualstream.solvers.core.windows import DUAL, LABEL, WEIGHT
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.solution import Progress
from dualstream.solvers.offline.solve import solve
from dualstream.solvers.online.dual_ascent import (
    general_kernels as _odca_general,
    kernels as _odca,
)
from dualstream.solvers.online.dual_ascent.kernels import (
    BIAS,
    DELTA,
    ENTROPY,
    LAST,
    LENGTH,
    LOSS,
    RHO,
    SCALE,
    STRENGTH,
)
from dualstream.solvers.online.dual_ascent.learner import DualAscent
from dualstream.solvers.online.dual_ascent.refit import prints_of, row_losses, take_in
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from dualstream.solvers.online.dual_ascent.unlearn import (
    first_that_counts,
    forget_average,
    sum_anew,
    sum_of,
)

# Coordinates that one visit may touch, summed over a piece: some 10 ms of work.
_PIECE = 2_000_000

Problems = Sequence[tuple[Mapping[str, Any], State]]
"""See refit.problems_of."""


@dataclass(frozen=True, slots=True)
class Refitted:
    """What a refit has computed, of the window as it was."""

    prints: Floats
    """(problems, n): one for each row that counts, the oldest first; see `_refit.prints_of`."""
    duals: Floats
    """(problems, n): the new dual variables."""
    epochs: int
    certificate: Certificate
    """Of the window with these dual variables, all averages restarted."""
    converged: bool
    """Whether the relative gap has come down to the tolerance."""

    @property
    def arrays(self) -> dict[str, Floats]:
        """What is journalled."""
        return {"prints": self.prints, "duals": self.duals}

    @property
    def dropped(self) -> None:
        """A linear model has no named functions."""

    @property
    def coefficients_are_unique(self) -> None:
        """As `dropped`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The least possible objective on the retained rows alone."""

    lower: float
    """No weights have a smaller objective than this."""
    found: float
    """The objective of the weights that were found: lower <= optimum <= found."""
    served: float
    """That of the weights which the model serves."""
    losses: Floats
    """(n,): of each row that counts, at the weights that were found, the oldest first."""
    epochs: int
    converged: bool


class WindowProblem(DualAscent):
    """A copy of a learner, whose dual variables are changed in its place."""

    def __init__(self, spec: Mapping[str, Any], state: State) -> None:
        super().__init__(spec)
        self.restore(state)
        self.served = self._weights()
        """(width,): the weights that the learner serves, the intercept's last."""
        self.first = first_that_counts(self._ints)
        self.rows = int(self._ints[LAST]) - self.first
        self._restart_average()

    def leave_alone(self) -> None:
        """Let the retained rows be all rows, with the rho that the learner has at present."""
        floats = self._floats
        room = _odca.rho_delta(floats[RHO], floats[STRENGTH], floats[DELTA])
        floats[RHO], floats[STRENGTH] = room / floats[DELTA], 0.0
        sum_anew(self._ring, self._w, floats, self._ints)
        self._restart_average()

    def _restart_average(self) -> None:
        forget_average(self._w, self._floats)
        self._begin_average()

    def visit_all(self, first: int, epochs: int, is_cancelled: Callable[[], bool]) -> bool:
        """Visit each row once in each of some epochs, in the order that the number of each decides.

        False where it was cancelled. The GIL is taken once for each piece of work, so that who
        answers requests meanwhile seldom waits for it.
        """
        touched = len(self._w) if self._ints[ENTROPY] else 100
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
                    visits, begin, min(begin + piece, len(visits)), *ring.arrays,
                    self._w, self._floats, self._ints,
                )  # fmt: skip
        return True

    def solve(
        self,
        method: str,
        tol: float,
        max_epochs: int,
        is_cancelled: Callable[[float, Progress], bool],
    ) -> int | None:
        """Take the dual variables that an offline method finds, and tell of its epochs.

        None where it was cancelled: what was reached by then is taken. `is_cancelled` is told how
        many epochs there were so far, and how far this run is. Raises RefitError where the method
        cannot solve the window.
        """
        floats, ring = self._floats, self._ring
        first, last = self.first, self.first + self.rows
        starts, columns, indices, values = ring.rows_between(first, last)
        decay = self._window.beta ** np.arange(self.rows - 1, -1, -1.0)
        room = _odca.rho_delta(floats[RHO], floats[STRENGTH], floats[DELTA])
        rows = Batch.from_csr(
            starts, indices, values, columns[:, LABEL], columns[:, WEIGHT] * decay,
            dim=len(self._w) - 1,
        )  # fmt: skip
        duals, epochs = self.duals(), 0.0
        asked: dict[str, Any] = {
            "loss": self.spec["loss"],
            "rho": room / floats[DELTA],
            "max_epochs": max_epochs,
            "intercept": "penalized" if floats[BIAS] else "none",
            "callback": lambda progress: is_cancelled(epochs + progress.epochs, progress),
        }
        if not self._ints[LENGTH]:
            held = np.zeros(len(self._w))
            sum_of(ring, floats, held, first, last)
            asked["fixed"] = floats[SCALE] * self._w[:, 0] - held
            asked["total"] = float(floats[DELTA])
        # The gap there is of a primal without what the other rows lose: the learner's decides.
        inner = tol
        while epochs < max_epochs and self.certify().relative_gap > tol:
            try:
                found = solve(rows, method, duals=duals, tol=inner, **asked)
            except SolverError as error:
                raise RefitError(f"{method} cannot solve the window: {error}") from error
            assert found.duals is not None
            duals, epochs, inner = found.duals, epochs + max(1.0, found.epochs), inner / 4.0
            take_in(self.prints(), duals, 1.0, ring, self._w, floats, self._ints)
            if found.status == "cancelled":
                return None
        return math.ceil(epochs)

    def certify(self) -> Certificate:
        """The certificate of the iterate."""
        self._restart_average()
        return self.certificate()

    def prints(self) -> Floats:
        """(rows,)"""
        return prints_of(self._ring, self.first, self.first + self.rows)

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
            floats[BIAS], self._window.beta, self._loss.numbers, sums,
        )  # fmt: skip
        if self._is_l2:
            l2_sums(w, 1.0, 0.0, 0.0, regularizer)
        else:
            factor = _odca_general.dashed_factor(floats)
            _odca_general.regularizer_sums(
                self._w, weights, floats, self._ints, factor, regularizer
            )
        room = _odca.rho_delta(floats[RHO], floats[STRENGTH], floats[DELTA])
        return float(sums[2] / sums[0] + room / floats[DELTA] * regularizer[0])

    def add_losses(self, out: Floats) -> None:
        """out (rows,) += the loss of each row at the iterate."""
        self._restart_average()
        ring, floats = self._ring, self._floats
        row_losses(*ring.arrays, self.first, self._weights(), floats[BIAS], floats[LOSS:], out)


class Refitting:
    """A refit under way; `problems` are copies, which are its own from now on.

    tol         the relative gap to come down to, as certificates have it
    max_epochs  so many visits to each row at most
    method      one that fits the problem: see `refit_methods.why_not_method`
    alone       whether the retained rows are taken for all there are: for a reference

    Raises RefitError where no rows are retained.
    """

    def __init__(
        self,
        problems: Problems,
        tol: float,
        max_epochs: int,
        method: str = "sdca",
        *,
        alone: bool = False,
    ) -> None:
        self._problems = [WindowProblem(spec, state) for spec, state in problems]
        # Of several, the first is none of the known classes, which no certificate counts.
        self._counted = self._problems[1:] or self._problems
        self._tol, self.max_epochs, self._method = tol, max_epochs, method
        # What dcd takes it solves sooner, by the same steps: solve does so where it is asked for.
        self._is_by_passes = method == "sdca" and why_not_method(problems[0][0], "dcd") is not None
        if not self.rows:
            raise RefitError("no row is retained")
        if alone:
            for problem in self._problems:
                problem.leave_alone()
        self.epochs = 0
        self.certificate = self._before = self._certify()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._problems[0].rows

    @property
    def converged(self) -> bool:
        """Whether the gap has come down to the tolerance."""
        return self.certificate.relative_gap <= self._tol

    @property
    def relative_gap_before(self) -> float:
        """That of the window as it was."""
        return self._before.relative_gap

    @property
    def relative_gap(self) -> float:
        """That of the certificate."""
        return self.certificate.relative_gap

    @property
    def dual_before(self) -> float:
        """That of the window as it was."""
        return self._before.dual

    @property
    def dual(self) -> float:
        """That of the certificate."""
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
        """Go on until the gap is small or the epochs are over; False where it was cancelled.

        `is_cancelled` is asked every some milliseconds; `on_look` is told of each look at the gap:
        after the first epochs each, and then after a fifth more of them. By another method than
        passes it is told after each epoch or less, with the gap of the look before.
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
        """As `run`, by another method than these passes."""

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
            epochs = problem.solve(self._method, self._tol, self.max_epochs, went_on)
            self.certificate = self._certify()
            if epochs is None:
                return False
            self.epochs = max(self.epochs, epochs)
            on_look(self)
        return True

    def refitted(self) -> Refitted:
        """What was computed."""
        return Refitted(
            np.stack([problem.prints() for problem in self._problems]),
            np.stack([problem.duals() for problem in self._problems]),
            self.epochs,
            self.certificate,
            self.converged,
        )

    def reference(self) -> Reference:
        """What was found of the retained rows alone."""
        losses = np.zeros(self.rows)
        for problem in self._counted:
            problem.add_losses(losses)
        served = sum(problem.primal_at(problem.served) for problem in self._counted)
        lower, found = self.certificate.dual, self.certificate.primal
        return Reference(lower, found, max(served, lower), losses, self.epochs, self.converged)
