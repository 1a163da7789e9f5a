"""The result of solve_semiparametric."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import ShapeMismatch
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.interior_point import combined
from dualstream.solvers.offline.semiparametric.basis import Constant, Term, evaluate
from dualstream.solvers.offline.semiparametric.window import expansion
from dualstream.solvers.offline.solution import Trace
from dualstream.solvers.protocols.certificate import relative_gap
from dualstream.solvers.rows.batch import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Semiparametric:
    """h(x) = sum_i delta_i k(x, x_i) + sum_j beta_j psi_j(x), and bounds of its objective.

    Contains only numbers, rows and named terms: enough to journal it and to predict with it.
    """

    names: tuple[str, ...]
    """Names of the kept terms, in order."""
    dropped: tuple[str, ...]
    """Terms that on these rows are zero or depend on earlier ones."""
    beta: Floats
    """(K,): coefficients of the kept terms."""
    beta_is_unique: bool
    """Whether the rows off their bounds determine beta; else other coefficients are
    equally good.
    """
    delta: Floats
    """(n,): the kernel expansion over the given rows, 0 outside the support."""
    support: Batch
    """The rows with delta != 0."""
    basis: tuple[Term, ...]
    """The kept terms."""
    kernel_gamma: float
    primal: float
    """The objective."""
    dual: float
    """A lower bound of the objective over all h; -inf if the run ended before it had one."""
    outer: int
    """Working sets solved, or interior point runs."""
    steps: int
    """Steps within them."""
    residual: float
    """The largest violation of the conditions of optimality (4.4), in units of y."""
    status: str
    """`converged` (relative gap <= tol), `stalled` or `cancelled`."""
    method: str
    trace: Trace = field(default=(), repr=False)

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def gap(self) -> float:
        """primal - dual, at least 0 despite rounding."""
        return max(self.primal - self.dual, 0.0)

    @property
    def relative_gap(self) -> float:
        """gap / max(|primal|, |dual|)."""
        return relative_gap(self.gap, self.primal, self.dual)

    @property
    def coefficients(self) -> dict[str, float]:
        """beta by name."""
        return dict(zip(self.names, self.beta.tolist(), strict=True))

    @property
    def intercept(self) -> float:
        """The coefficient of the constant, 0 without one."""
        constants = [
            b for t, b in zip(self.basis, self.beta, strict=True) if isinstance(t, Constant)
        ]
        return float(constants[0]) if constants else 0.0

    def kernel_part(self, x: Batch | npt.ArrayLike) -> Floats:
        """(n,): <w, phi(x)> = sum_i delta_i k(x, x_i). Raises ShapeMismatch."""
        rows = self._rows(x)
        out = np.empty(len(rows))
        weights = self.delta[np.flatnonzero(self.delta)]
        expansion(rows, self.support, weights, self.kernel_gamma, out)
        return out

    def predict(self, x: Batch | npt.ArrayLike, columns: npt.ArrayLike | None = None) -> Floats:
        """(n,): h(x). Raises ShapeMismatch; InvalidSpec if a term is not finite.

        columns (n, K): the basis at these rows, if the basis was given as columns
        """
        rows = self._rows(x)
        columns_given = None if columns is None else np.asarray(columns, np.float64)
        count = len(self.names) + len(self.dropped)
        if columns_given is not None and columns_given.shape != (len(rows), count):
            raise ShapeMismatch(
                f"columns have shape {columns_given.shape}, expected {(len(rows), count)}"
            )
        parametric: Floats = combined(self.beta, evaluate(self.basis, rows, columns_given))
        return self.kernel_part(rows) + parametric

    def _rows(self, x: Batch | npt.ArrayLike) -> Batch:
        rows = x if isinstance(x, Batch) else Batch.from_dense(x)
        if rows.dim != self.support.dim:
            raise ShapeMismatch(f"rows of width {rows.dim}, expected {self.support.dim}")
        return rows
