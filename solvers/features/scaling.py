"""Balanced scaling: each column by its own running moments, label-free, O(entries of the row).

Over the t rows so far, including this row, column j has c_j non-zeros with mean mu_j and sum of
squared deviations M_j (Welford 1962). The scaled row is

    sparse column   h_j = (x_j / rms_j) (c_j / t)^(-power),   rms_j^2 = M_j / c_j + mu_j^2
    dense column    h_j = (x_j - mean_j) / std_j,             also where x_j = 0
                    mean_j = mu_j c_j / t
                    var_j  = M_j / t + (c_j / t) (1 - c_j / t) mu_j^2

From row 21 on, a column that is not 0 in the row and has c_j >= t / 2 becomes dense; a dense one
with c_j < t / 4 becomes sparse. Scaling by s_j multiplies the step of coordinate j by s_j^2, so
power 1/4 gives the 1 / sqrt(count) of AdaGrad (Duchi, Hazan, Singer 2011) to a learner with one
step for all coordinates. With `moments: false`, h_j = x_j (c_j / t)^(-power) and no column becomes
dense. This stage is not part of the learners' papers.

Regression portfolios clip a value first: to within 8 deviations sqrt(M_j / min(c_j, 1024)) of mu_j,
of the rows before it, or 8 |mu_j| in a constant column. So one broken reading, such as 1e4 among
values near 1, does not make the other values of its column vanish; see column_table.py.

A column is 0 if its variance is rounding error (var_j <= 1e-30 of the mean square), or if its
squares are too small (below 1e-290).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers import jit
from dualstream.solvers.errors import CorruptState
from dualstream.solvers.features.stage import grown
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import BalancedForm
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows import scalar
from dualstream.solvers.rows.batch import Batch

# Scalars of a stage: rows counted, dense columns, and the two of its specification.
_T, _DENSE, _POWER = range(3)
# Columns of `columns`.
_COUNT, _MEAN, _M, _IS_DENSE = range(4)


class Balanced:
    """The stage `scaling: balanced`. 32 bytes per column (8 without moments)."""

    def __init__(self, dim: int, power: float, moments: bool) -> None:
        self.dim = dim
        self._numbers = np.array([0.0, 0.0, power])
        self._columns = np.zeros((dim, 4 if moments else 1))
        self._dense = np.empty(16, np.int32)
        self._undo: tuple[Batch, jit.Floats, jit.Floats, jit.Indices] | None = None

    def learn(self, batch: Batch) -> Batch:
        """See Stage."""
        dense = self._dense[: int(self._numbers[_DENSE])].copy()
        before, numbers = np.empty((batch.nnz, 2)), self._numbers.copy()
        self._undo = batch, before, numbers, dense
        return self._transformed(batch, before, batch.weights, self._numbers)

    def peek(self, batch: Batch) -> Batch:
        """See Stage."""
        nothing = np.empty((batch.nnz, 2))
        return self._transformed(batch, nothing, np.zeros(len(batch)), self._numbers)

    def _transformed(
        self, batch: Batch, before: jit.Floats, weights: jit.Floats, numbers: jit.Floats
    ) -> Batch:
        n = len(batch)
        indptr = np.zeros(n + 1, np.int64)
        room = batch.nnz + n * int(numbers[_DENSE]) + 64
        indices, values = np.empty(room, np.int32), np.empty(room)
        row = 0
        while True:
            row = scale_rows(
                batch.indptr, batch.indices, batch.values, weights, row,
                self._columns, self._dense, numbers, before, indptr, indices, values,
            )  # fmt: skip
            used = int(indptr[row])
            if row == n:
                return batch.with_rows(indptr, indices[:used], values[:used], self.dim)
            dense = int(numbers[_DENSE])
            most = dense + int(batch.indptr[row + 1] - batch.indptr[row])
            if most > len(self._dense):
                self._dense = grown(self._dense, dense, most)
            if used + most > len(values):
                indices = grown(indices, used, used + most)
                values = grown(values, used, used + most)

    def undo(self) -> None:
        """See Stage."""
        assert self._undo is not None
        batch, before, numbers, dense = self._undo
        unscale_rows(
            batch.indptr, batch.indices, batch.weights, before, self._columns,
            self._dense[: int(self._numbers[_DENSE])], dense,
        )  # fmt: skip
        self._dense[: len(dense)] = dense
        self._numbers[:] = numbers
        self._undo = None

    def form(self) -> BalancedForm:
        """See Stage."""
        touched = np.flatnonzero(self._columns[:, _COUNT])
        columns = np.zeros((len(touched), 4))
        columns[:, : self._columns.shape[1]] = self._columns[touched]
        return BalancedForm(
            rows=float(self._numbers[_T]),
            power=float(self._numbers[_POWER]),
            moments=self._columns.shape[1] == 4,
            columns=touched,
            counts=columns[:, _COUNT].copy(),
            means=columns[:, _MEAN].copy(),
            deviations=columns[:, _M].copy(),
            dense=columns[:, _IS_DENSE] != 0.0,
        )

    def state(self) -> State:
        """See Stage: only columns that were ever not 0."""
        touched = np.flatnonzero(self._columns[:, _COUNT])
        return {
            "rows": np.array(self._numbers[_T]),
            "touched": touched,
            "columns": self._columns[touched],
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Stage."""
        check_arrays(state, {"rows": (), "touched": (len(np.atleast_1d(state.get("touched", 0))),)})
        touched = state["touched"].astype(np.int64)
        check_arrays(state, {"columns": (len(touched), self._columns.shape[1])})
        columns = state["columns"]
        rising = bool(np.all(touched[1:] > touched[:-1]))
        inside = len(touched) == 0 or (touched[0] >= 0 and touched[-1] < self.dim)
        if not (rising and inside and bool(np.all(columns[:, _COUNT] >= 1.0))):
            raise CorruptState("the scaled columns are damaged")
        self._columns[:] = 0.0
        self._columns[touched] = columns
        dense = touched[columns[:, _IS_DENSE] != 0.0] if columns.shape[1] == 4 else touched[:0]
        self._dense = np.empty(max(16, len(dense)), np.int32)
        self._dense[: len(dense)] = dense
        self._numbers[_T], self._numbers[_DENSE] = float(state["rows"]), len(dense)
        self._undo = None


@jit.kernel(inner=True)
def without_rare(columns: jit.F8_2D, dense: jit.I4, n_dense: int, t: float) -> int:
    """Make dense columns with c_j < t / 4 sparse; return how many are left."""
    kept = 0
    for q in range(n_dense):
        j = dense[q]
        if 4.0 * columns[j, _COUNT] < t:
            columns[j, _IS_DENSE] = 0.0
        else:
            dense[kept] = j
            kept += 1
    return kept


@jit.kernel(inner=True)
def with_column(dense: jit.I4, n_dense: int, column: int) -> int:
    """Insert a column into the sorted list of dense ones; return their number."""
    q = n_dense
    while q > 0 and dense[q - 1] > column:
        dense[q] = dense[q - 1]
        q -= 1
    dense[q] = column
    return n_dense + 1


@jit.kernel
def scale_rows(
    indptr: jit.RO_I8,
    indices: jit.RO_I4,
    values: jit.RO_F8,
    weights: jit.RO_F8,
    start: int,
    columns: jit.F8_2D,
    dense: jit.I4,
    f: jit.F8,
    other: jit.F8_2D,
    out_indptr: jit.I8,
    out_indices: jit.I4,
    out_values: jit.F8,
) -> int:
    """Scale rows `start` to n; return n, or the first row that does not fit into an array.

    A row of weight 0 is scaled as if it counted, but does not count.

    columns  (dim, 4 or 1)  c_j, mu_j, M_j, 1.0 if dense; or c_j alone
    dense    (capacity,)    the dense columns, increasing; f[_DENSE] of them
    f        (3,)           see the constants at the top of this file
    other    (nnz, 2)       on return mu_j and M_j before the row was counted
    out_*                   the scaled rows, as in Batch; out_indptr[start] is an input
    Cost O(entries of the row + dense columns).
    """
    n = indptr.shape[0] - 1
    moments = columns.shape[1] == 4
    is_far = columns.shape[0] * columns.shape[1] > scalar.CACHED
    for i in range(start, n):
        begin, end = indptr[i], indptr[i + 1]
        if is_far and i + 1 < n:
            for p in range(end, indptr[i + 2]):
                scalar.prefetch(columns, indices[p])
        t, n_dense, power = f[_T] + 1.0, int(f[_DENSE]), f[_POWER]
        at = out_indptr[i]
        most = n_dense + end - begin
        if at + most > out_values.shape[0] or most > dense.shape[0]:
            return i
        if moments:
            for p in range(begin, end):
                x, j = values[p], indices[p]
                step = x - columns[j, _MEAN]
                mean = columns[j, _MEAN] + step / (columns[j, _COUNT] + 1.0)
                other[p, 0] = mean
                other[p, 1] = columns[j, _M] + step * (x - mean)

        # Merge entries and dense columns by index.
        settled = t >= scalar.FIRST_DENSE_ROW
        changed = False
        p, q = begin, 0
        while p < end or q < n_dense:
            if q < n_dense and (p == end or dense[q] < indices[p]):
                j = dense[q]
                q += 1
                c = columns[j, _COUNT]
                if 4.0 * c < t:
                    changed = True
                    continue
                h = scalar.dense_value(0.0, t, c, columns[j, _MEAN], columns[j, _M])
            else:
                j, x = indices[p], values[p]
                c = columns[j, _COUNT] + 1.0
                if not moments:
                    h = x * scalar.balance(c / t, power)
                else:
                    was_dense = q < n_dense and dense[q] == j
                    if was_dense:
                        q += 1
                    is_dense = (was_dense and 4.0 * c >= t) or (settled and 2.0 * c >= t)
                    changed = changed or is_dense != was_dense
                    if is_dense:
                        h = scalar.dense_value(x, t, c, other[p, 0], other[p, 1])
                    else:
                        h = scalar.sparse_value(x, t, c, other[p, 0], other[p, 1], power)
                p += 1
            if h != 0.0:
                out_indices[at], out_values[at] = j, h
                at += 1
        out_indptr[i + 1] = at

        if weights[i] == 0.0:
            continue
        f[_T] = t
        for p in range(begin, end):
            j = indices[p]
            columns[j, _COUNT] += 1.0
            if moments:
                mean, m = columns[j, _MEAN], columns[j, _M]
                columns[j, _MEAN], columns[j, _M] = other[p, 0], other[p, 1]
                other[p, 0], other[p, 1] = mean, m
        if changed:
            n_dense = without_rare(columns, dense, n_dense, t)
            for p in range(begin, end):
                j = indices[p]
                if columns[j, _IS_DENSE] == 0.0 and settled and 2.0 * columns[j, _COUNT] >= t:
                    columns[j, _IS_DENSE] = 1.0
                    n_dense = with_column(dense, n_dense, j)
            f[_DENSE] = n_dense
    return int(n)


@jit.kernel
def unscale_rows(
    indptr: jit.RO_I8,
    indices: jit.RO_I4,
    weights: jit.RO_F8,
    before: jit.RO_F8_2D,
    columns: jit.F8_2D,
    dense: jit.RO_I4,
    dense_before: jit.RO_I4,
) -> None:
    """Remove rows from the statistics, the last one first; see scale_rows."""
    moments = columns.shape[1] == 4
    for q in range(dense.shape[0]):
        columns[dense[q], _IS_DENSE] = 0.0
    for i in range(weights.shape[0] - 1, -1, -1):
        if weights[i] == 0.0:
            continue
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            columns[j, _COUNT] -= 1.0
            if moments:
                columns[j, _MEAN], columns[j, _M] = before[p, 0], before[p, 1]
    for q in range(dense_before.shape[0]):
        columns[dense_before[q], _IS_DENSE] = 1.0
