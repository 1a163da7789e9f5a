"""The problem of the linear methods (l2), and the bounds that certify a solution.

    min over w of  P(w) = (1/Delta) sum_i c_i Q(h_i.w; y_i) + rho |w|^2 / 2  -  (1/Delta) f.w
    max over lambda of  D(lambda) = -(1/Delta) sum_i c_i Q*(-lambda_i; y_i) - rho |w'|^2 / 2,
    w' = (f + sum_i c_i lambda_i h_i) / (rho Delta)

By default Delta is the sum of the c_i, and f is 0. If both are given, f is the contribution of rows
that are not given, with fixed dual variables, and Delta includes their weight. For any w and lambda

    P(w) - D(lambda) = (1/Delta) sum_i c_i [Q(z_i) + Q*(-lambda_i) + lambda_i z_i]
                       + rho |w - w'|^2 / 2,      z_i = h_i.w

and each of its terms is >= 0: the gap is never the difference of two large numbers.

Conversions: with n rows of weight 1, LIBLINEAR's C is 1 / (rho n), its objective is P / rho and its
alpha_i is C y_i lambda_i; lambda of the papers on SDCA is rho.
"""

from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats, Indices, Ints
from dualstream.solvers.losses.loss_table import Loss
from dualstream.solvers.offline import row_kernels as _rows
from dualstream.solvers.rows.batch import Batch


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a solution, all computed from the rows."""

    primal: float
    dual: float
    """A lower bound of the least primal."""
    gap: float
    """primal - dual, from terms that are each >= 0 if the method has dual variables."""


class Problem:
    """The rows of a batch, a loss, rho, and derived arrays."""

    def __init__(
        self,
        batch: Batch,
        labels: Floats,
        loss: Loss,
        rho: float,
        intercept: str,
        fixed: Floats | None = None,
        total: float | None = None,
    ) -> None:
        self.batch = batch
        self.labels = labels
        """(n,) -1 and 1 for margin losses."""
        self.loss = loss
        self.rho = rho
        self.intercept = intercept
        self.bias = 0.0 if intercept == "none" else 1.0
        self.fixed = fixed
        """(dim + 1,) the contribution f of rows that are not given, or None."""
        self.total = float(batch.weights.sum()) if total is None else total
        self.numbers = loss.numbers
        self.rows = (batch.indptr, batch.indices, batch.values)
        self.columns: tuple[Ints, Indices, Floats] = (
            batch.indptr.reshape(-1, 1),
            batch.indices.reshape(-1, 1),
            batch.values.reshape(-1, 1),
        )
        """The CSR arrays as columns, which kernels can prefetch."""
        self.visited: Ints = np.flatnonzero(batch.weights > 0.0)
        """Indices of the rows that count."""

    @property
    def n(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """Features, and one more for the intercept."""
        return self.batch.dim + 1

    def square_norms(self) -> Floats:
        """(n,) |h_i|^2."""
        out = np.empty(self.n)
        _rows.square_norms(self.batch.indptr, self.batch.values, self.bias, out)
        return out

    def scores(self, w: Floats) -> Floats:
        """(n,) h_i.w."""
        out = np.empty(self.n)
        _rows.scores_of(*self.rows, self.bias, w, out)
        return out

    def weighted_sum(self, duals: Floats) -> Floats:
        """(dim + 1,) f + sum_i c_i lambda_i h_i."""
        u = np.zeros(self.width) if self.fixed is None else self.fixed.copy()
        _rows.add_rows(*self.rows, self.bias, self.batch.weights * duals, u)
        return u

    def from_duals(self, duals: Floats) -> Floats:
        """(dim + 1,) w' of these dual variables."""
        u = self.weighted_sum(duals)
        u /= self.rho * self.total
        return u

    def duals_at(self, w: Floats) -> Floats:
        """(n,) dual variables for which the loss part of the gap at w is 0."""
        out = np.empty(self.n)
        _rows.duals_at(self.scores(w), self.labels, self.numbers, out)
        return out

    def clipped(self, duals: Floats) -> Floats:
        """The nearest valid dual variables."""
        signs = self.labels if self.loss.margin else np.ones(self.n)
        clipped: Floats = signs * np.clip(signs * duals, self.loss.lo, self.loss.hi)
        return clipped

    def loss_gap(self, w: Floats, duals: Floats) -> float:
        """The loss part of the gap: the whole gap if w = w'."""
        return float(self.sums(w, duals)[2]) / self.total

    def sums(self, w: Floats, duals: Floats) -> Floats:
        """(3,) sums of c_i times Q(z_i), Q*(-lambda_i), and the term of the gap of row i."""
        sums = np.empty(3)
        columns = self.labels, self.batch.weights, self.numbers
        _rows.sum_terms(self.scores(w), duals, *columns, sums)
        return sums

    def bounds(self, w: Floats, duals: Floats, dashed: Floats | None = None) -> Bounds:
        """Primal at w, dual at `duals`, and the gap; `dashed` is w' if known."""
        if dashed is None:
            dashed = self.from_duals(duals)
        values, conjugates, gaps = self.sums(w, duals) / self.total
        primal = values + 0.5 * self.rho * _square(w)
        if self.fixed is not None:
            primal -= float(np.sum(self.fixed * w)) / self.total
        dual = -conjugates - 0.5 * self.rho * _square(dashed)
        gap = gaps + 0.5 * self.rho * _square(w - dashed)
        return Bounds(float(primal), float(dual), float(gap))


def _square(w: Floats) -> float:
    return float(np.sum(w * w))
