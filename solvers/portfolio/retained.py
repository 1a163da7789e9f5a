"""The last rows that a portfolio learned, as they came in: what a new member begins with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.batch import Batch
from solvers.errors import CorruptState, SolverError
from solvers.learner import State

_PIECES = 64
"""Batches that are joined at a time."""


class RetainedRows:
    """At most `retain` rows of positive weight, oldest first; twice as many in memory."""

    def __init__(self, dim: int, retain: int) -> None:
        self._retain = retain
        self._nothing = Batch.from_csr([0], [], [], [], dim=dim)
        # Batches as they came, and the rows before them in longer pieces: a join of everything for
        # some batches of a single row would cost more than these rows are learned in.
        self._newest: list[Batch] = []
        self._pieces: list[Batch] = []
        self._held = 0

    def add(self, batch: Batch) -> None:
        """Retain the rows of a batch that count."""
        n = len(batch)
        rows = batch if np.count_nonzero(batch.weights) == n else batch.take(batch.weights > 0.0)
        n = len(rows)
        if n == 0:
            return
        if n > self._retain:
            rows, n = rows[n - self._retain :], self._retain
        # A cut of a larger batch would keep all of it in memory.
        is_cut = len(batch) > 1 or _is_cut(rows)
        self._newest.append(rows.copied() if is_cut else rows)
        self._held += n
        if self._held > 2 * self._retain:
            self._pieces, self._newest = [self.rows().copied()], []
            self._held = len(self._pieces[0])
        elif len(self._newest) == _PIECES:
            self._pieces.append(Batch.concat(self._newest))
            self._newest = []

    def rows(self) -> Batch:
        """All that is retained."""
        joined = Batch.concat([*self._pieces, *self._newest] or [self._nothing])
        return joined[max(0, len(joined) - self._retain) :]

    def state(self) -> State:
        """See Learner."""
        rows = self.rows()
        return {
            "indptr": rows.indptr.copy(),
            "indices": rows.indices.astype(np.int64),
            "values": rows.values.copy(),
            "labels": rows.labels.copy(),
            "weights": rows.weights.copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        names = ("indptr", "indices", "values", "labels", "weights")
        for name in names:
            if name not in state:
                raise CorruptState(f"the state has no {name}")
        indptr, indices, values, labels, weights = (np.array(state[name]) for name in names)
        dim = self._nothing.dim
        try:
            rows = Batch(indptr, indices.astype(np.int32), values, labels, weights, dim)
        except SolverError as error:
            raise CorruptState(f"the retained rows are damaged: {error}") from error
        if len(rows) > self._retain or not np.isfinite(rows.labels).all():
            raise CorruptState("the retained rows are damaged")
        self._newest, self._pieces = [], [rows] if len(rows) else []
        self._held = len(rows)


def _is_cut(rows: Batch) -> bool:
    """Whether the rows are a part of larger arrays."""
    return any(
        isinstance(array.base, np.ndarray) and array.base.nbytes > 2 * array.nbytes + 4096
        for array in (rows.values, rows.labels)
    )
