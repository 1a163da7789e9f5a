"""RetainedRows: the last raw rows of a portfolio, on which a new member is trained."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.online.forgetting_windows import LABEL, WEIGHT, RowBuffer
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import is_storable, rows_of_state
from dualstream.solvers.rows.batch import Batch

_FIRST, _LAST = range(2)


class RetainedRows:
    """At most `retain` >= 1 rows of positive weight, oldest first; memory like a RowBuffer."""

    def __init__(self, dim: int, retain: int) -> None:
        self._dim, self._retain = dim, retain
        self._buffer = RowBuffer(retain, 2)
        self._k = np.zeros(2, np.int64)

    def add(self, batch: Batch) -> None:
        """Retain the rows of positive weight of a batch."""
        n, row = len(batch), 0
        if n > self._retain:
            row = first_of_last(batch.weights, self._retain)
        buffer, k = self._buffer, self._k
        while True:
            row = retain_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, row,
                self._retain, k, *buffer.arrays,
            )  # fmt: skip
            if row == n:
                return
            buffer.make_room(
                int(k[_FIRST]), int(k[_LAST]), int(batch.indptr[row + 1] - batch.indptr[row])
            )
            k[:] = 0, k[_LAST] - k[_FIRST]

    def rows(self) -> Batch:
        """All retained rows."""
        first, last = self._k.tolist()
        starts, rows, indices, values = self._buffer.rows_between(first, last)
        labels, weights = rows[:, LABEL].copy(), rows[:, WEIGHT].copy()
        return Batch(starts, indices, values, labels, weights, self._dim)

    def state(self) -> State:
        """See Learner."""
        rows = self.rows()
        return {
            "indptr": rows.indptr,
            "indices": rows.indices.astype(np.int64),
            "values": rows.values,
            "labels": rows.labels,
            "weights": rows.weights,
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        names = ("indptr", "indices", "values", "labels", "weights")
        for name in names:
            if name not in state:
                raise CorruptState(f"the state has no {name}")
        columns = tuple(np.array(state[name]) for name in names)
        rows = rows_of_state("retained rows", columns, self._dim)
        if len(rows) > self._retain or not is_storable(rows.labels):
            raise CorruptState("the retained rows are damaged")
        about = np.stack([rows.labels, rows.weights], axis=1)
        self._buffer.store(rows.indptr, about, rows.indices, rows.values)
        self._k[:] = 0, len(rows)


@kernel
def first_of_last(weights: RO_F8, retain: int) -> int:
    """The first of the last `retain` rows of positive weight."""
    left = retain
    for i in range(weights.shape[0] - 1, -1, -1):
        if weights[i] > 0.0:
            left -= 1
            if left == 0:
                return i
    return 0


@kernel
def retain_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    start: int,
    retain: int,
    k: I8,
    kept_starts: I8,
    kept_indices: I4,
    kept_values: F8,
    kept_rows: F8_2D,
) -> int:
    """Append rows `start` to n of positive weight; return n, or the first row that does not fit.

    k       (2,)  rows k[0] to k[1] of the buffer are retained
    kept_*        see windows.RowBuffer; its rows are LABEL, WEIGHT
    """
    for i in range(start, labels.shape[0]):
        if not weights[i] > 0.0:
            continue
        last, begin = k[_LAST], indptr[i]
        entries = indptr[i + 1] - begin
        if last == kept_rows.shape[0] or kept_starts[last] + entries > kept_indices.shape[0]:
            return i
        at = kept_starts[last]
        for p in range(entries):
            kept_indices[at + p] = indices[begin + p]
            kept_values[at + p] = values[begin + p]
        kept_starts[last + 1] = at + entries
        kept_rows[last, LABEL], kept_rows[last, WEIGHT] = labels[i], weights[i]
        k[_LAST] = last + 1
        if last + 1 - k[_FIRST] > retain:
            k[_FIRST] += 1
    return int(labels.shape[0])
