"""Nystroem features of the kernel exp(-gamma |x - z|^2), from landmarks of the stream.

With landmarks S and a pivoted Cholesky factor of K_SS = L L' (in the order of the pivots), phi(x) =
L^(-1) k_S(x) has phi(x)'phi(z) = k_S(x)' K_SS^(-1) k_S(z): the kernel of Williams and Seeger,
"Using the Nystroem method to speed up kernel machines" (2001), and of (3.20) of the thesis up to a
rotation. Pivots below 1e-12 of the first are dropped with their landmarks, so the rank, the number
of features in use, may be below the number of landmarks.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.features.fourier import with_dense_rows
from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import NystroemForm
from dualstream.solvers.protocols.state_numbers import check_arrays, rows_of_state
from dualstream.solvers.rows.batch import Batch

RANK_CUT = 1e-12
_ROWS = ("indptr", "indices", "values")


class Nystroem:
    """The stage `map: nystroem`: rows of `components` features, the first `rank` of them in use.

    It cannot transform rows before it has landmarks. 8 rank^2 / 2 operations per row.
    """

    def __init__(self, dim: int, components: int, gamma: float) -> None:
        self.dim = dim
        self.components = components
        self.gamma = gamma
        self._factor = np.zeros((0, 0))
        self._take_landmarks(Batch.from_csr([0], [], [], dim=dim))

    @property
    def rank(self) -> int:
        """Features in use; 0 before there are landmarks."""
        return len(self._factor)

    def set_landmarks(self, rows: Batch) -> None:
        """Use these rows, at most `components`, as landmarks."""
        self._take_landmarks(rows)
        gram = np.empty((len(rows), len(rows)))
        self._kernel_rows(rows, gram)
        factor, order = np.zeros(gram.shape), np.arange(len(rows))
        rank = pivoted_cholesky(gram, factor, order, RANK_CUT)
        self._take_landmarks(rows.take(order[:rank]))
        self._factor = np.ascontiguousarray(factor[:rank, :rank])

    def _take_landmarks(self, rows: Batch) -> None:
        """Store landmarks by column, because rows are compared with all of them at once."""
        self._landmarks = rows
        order = np.argsort(rows.indices, kind="stable")
        owners = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        self._columns = np.zeros(self.dim + 1, np.int64)
        np.cumsum(np.bincount(rows.indices, minlength=self.dim), out=self._columns[1:])
        self._owners, self._values = owners[order], rows.values[order]
        self._norms = np.empty(len(rows))
        row_norms(rows.indptr, rows.values, self._norms)

    def _kernel_rows(self, rows: Batch, out: Floats) -> None:
        kernel_rows(
            rows.indptr, rows.indices, rows.values,
            self._columns, self._owners, self._values, self._norms, self.gamma, out,
        )  # fmt: skip

    def learn(self, batch: Batch) -> Batch:
        """See Stage."""
        return self.peek(batch)

    def peek(self, batch: Batch) -> Batch:
        """See Stage."""
        out = np.zeros((len(batch), self.components))
        near = np.empty((len(batch), self.rank))
        self._kernel_rows(batch, near)
        solve_rows(self._factor, near, out)
        return with_dense_rows(batch, out)

    def undo(self) -> None:
        """See Stage: rows change nothing."""

    def form(self) -> NystroemForm:
        """See Stage."""
        factor = self._factor.copy()
        return NystroemForm(self._landmarks, factor, self.gamma, self.components)

    def state(self) -> State:
        """See Stage."""
        rows = self._landmarks
        return {
            "factor": self._factor.copy(),
            "indptr": rows.indptr.copy(),
            "indices": rows.indices.astype(np.int64),
            "values": rows.values.copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Stage."""
        try:
            indptr, indices, values = (state[name].copy() for name in _ROWS)
        except KeyError as error:
            raise CorruptState(f"the landmarks are damaged: {error!r}") from error
        n = len(indptr) - 1
        columns = (indptr, indices, values, np.zeros(n), np.ones(n))
        rows = rows_of_state("landmarks", columns, self.dim)
        if len(rows) > self.components:
            raise CorruptState(f"{len(rows)} landmarks where at most {self.components} are kept")
        check_arrays(state, {"factor": (len(rows), len(rows))})
        if not np.all(np.diagonal(state["factor"]) > 0.0):
            raise CorruptState("the factor of the landmarks is damaged")
        self._take_landmarks(rows)
        self._factor = np.array(state["factor"], np.float64, order="C")


@kernel
def row_norms(indptr: RO_I8, values: RO_F8, out: F8) -> None:
    """out (n,) = |x|^2 of each row."""
    for i in range(out.shape[0]):
        out[i] = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            out[i] += values[p] * values[p]


@kernel
def kernel_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    columns: RO_I8,
    owners: RO_I8,
    column_values: RO_F8,
    norms: RO_F8,
    gamma: float,
    out: F8_2D,
) -> None:
    """out (n, s) = exp(-gamma |x - z|^2) of each row x and each of s landmarks z.

    columns (dim + 1,)  column j of the landmarks has entries columns[j] to columns[j + 1]
    owners, column_values   the landmark of an entry, and its value
    norms   (s,)        |z|^2. A row equal to a landmark has distance 0: the same terms in order.
    """
    s = norms.shape[0]
    for i in range(out.shape[0]):
        square = 0.0
        for k in range(s):
            out[i, k] = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            x, j = values[p], indices[p]
            square += x * x
            for q in range(columns[j], columns[j + 1]):
                out[i, owners[q]] += x * column_values[q]
        for k in range(s):
            distance = square + norms[k] - 2.0 * out[i, k]
            out[i, k] = math.exp(-gamma * max(distance, 0.0))


@kernel
def pivoted_cholesky(gram: RO_F8_2D, factor: F8_2D, order: I8, cut: float) -> int:
    """gram[order, order] = L L' for the first r of `order`; return the rank r.

    gram   (s, s)           positive semidefinite
    factor (s, s), zeros    on return its first r rows and columns are L
    order  (s,), 0 to s - 1 on return the pivots come first, largest remaining diagonal at each step
    Stops before a pivot below `cut` times the first. O(s r^2), in one order of summation.
    """
    s = order.shape[0]
    first = 0.0
    for k in range(s):
        best, largest = k, -1.0
        for i in range(k, s):
            left = gram[order[i], order[i]]
            for j in range(k):
                left -= factor[i, j] * factor[i, j]
            if left > largest:
                best, largest = i, left
        if k == 0:
            first = largest
        if not largest > cut * first:
            return int(k)
        order[k], order[best] = order[best], order[k]
        for j in range(k):
            factor[k, j], factor[best, j] = factor[best, j], factor[k, j]
        pivot = math.sqrt(largest)
        factor[k, k] = pivot
        for i in range(k + 1, s):
            rest = gram[order[i], order[k]]
            for j in range(k):
                rest -= factor[i, j] * factor[k, j]
            factor[i, k] = rest / pivot
    return int(s)


@kernel
def solve_rows(factor: RO_F8_2D, near: RO_F8_2D, out: F8_2D) -> None:
    """out (n, >= r): L^(-1) k for each row k of `near` (n, r), forward substitution."""
    r = factor.shape[0]
    for i in range(near.shape[0]):
        for k in range(r):
            rest = near[i, k]
            for j in range(k):
                rest -= factor[k, j] * out[i, j]
            out[i, k] = rest / factor[k, k]
