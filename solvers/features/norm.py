"""Row norms, without the intercept.

row      h / |h|; a row of zeros is unchanged
running  h / sqrt((1/t) sum of |h|^2 over rows 1 to t), including this row; unchanged if that is 0
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import NormForm
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

# Floats of a stage.
_T, _SUM = range(2)


class Norm:
    """The stages `norm: row` and `norm: running`; two floats."""

    def __init__(self, *, running: bool) -> None:
        self.running = running
        self._numbers = np.zeros(2)
        self._before = np.zeros(2)

    def learn(self, batch: Batch) -> Batch:
        """See Stage."""
        self._before[:] = self._numbers
        return self._transformed(batch, batch.weights)

    def peek(self, batch: Batch) -> Batch:
        """See Stage."""
        return self._transformed(batch, np.zeros(len(batch)))

    def _transformed(self, batch: Batch, weights: Floats) -> Batch:
        indptr = np.zeros(len(batch) + 1, np.int64)
        indices, values = np.empty(batch.nnz, np.int32), np.empty(batch.nnz)
        norm_rows(
            batch.indptr, batch.indices, batch.values, weights, self.running, self._numbers,
            indptr, indices, values,
        )  # fmt: skip
        used = int(indptr[-1])
        return batch.with_rows(indptr, indices[:used], values[:used], batch.dim)

    def undo(self) -> None:
        """See Stage."""
        self._numbers[:] = self._before

    def form(self) -> NormForm:
        """See Stage."""
        return NormForm(self.running, float(self._numbers[_T]), float(self._numbers[_SUM]))

    def state(self) -> State:
        """See Stage."""
        return {"numbers": self._numbers.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Stage."""
        check_arrays(state, {"numbers": (2,)})
        self._numbers[:] = state["numbers"]


@kernel
def norm_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    weights: RO_F8,
    running: bool,
    f: F8,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> None:
    """Divide each row by its norm, or by the root of the mean square norm so far.

    f      (2,)  rows counted, and the sum of |h|^2 over them; a row of weight 0 does not count
    out_*        the rows, as in Batch, with room for as many entries as the rows have
    """
    at = 0
    for i in range(weights.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        square = largest = 0.0
        for p in range(begin, end):
            square += values[p] * values[p]
            largest = max(largest, abs(values[p]))
        if running:
            t, total = f[_T] + 1.0, f[_SUM] + square
            size = math.sqrt(total / t)
            if weights[i] > 0.0:
                f[_T], f[_SUM] = t, total
        elif square < 1e-280 and largest > 0.0:
            # The squares are subnormal.
            square = 0.0
            for p in range(begin, end):
                square += (values[p] / largest) * (values[p] / largest)
            size = largest * math.sqrt(square)
        else:
            size = math.sqrt(square)
        for p in range(begin, end):
            h = values[p] / size if size > 0.0 else values[p]
            if h != 0.0:
                out_indices[at], out_values[at] = indices[p], h
                at += 1
        out_indptr[i + 1] = at
