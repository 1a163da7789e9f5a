"""The last rows that a portfolio learned, as they came in: what a new member begins with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.batch import Batch
from solvers.errors import CorruptState, SolverError
from solvers.learner import State

_PIECES = 64


class RetainedRows:
    """At most `retain` rows of positive weight, oldest first; twice as many in memory."""

    def __init__(self, dim: int, retain: int) -> None:
        self._retain = retain
        self._nothing = Batch.from_csr([0], [], [], [], dim=dim)
        self._pieces: list[Batch] = []
        self._held = 0

    def add(self, batch: Batch) -> None:
        """Retain the rows of a batch that count."""
        rows = batch if batch.weights.all() else batch.take(batch.weights > 0.0)
        if len(rows) == 0:
            return
        newest = rows[max(0, len(rows) - self._retain) :]
        # A cut of a larger batch would keep all of it in memory.
        self._pieces.append(newest if len(batch) == 1 else _copied(newest))
        self._held += len(newest)
        if len(self._pieces) > _PIECES or self._held > 2 * self._retain:
            self._pieces = [_copied(self.rows())]
            self._held = len(self._pieces[0])

    def rows(self) -> Batch:
        """All that is retained."""
        joined = Batch.concat(self._pieces or [self._nothing])
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
        self._pieces = [rows] if len(rows) else []
        self._held = len(rows)


def _copied(rows: Batch) -> Batch:
    """The same rows, holding nothing else in memory."""
    return rows.take(np.arange(len(rows)))
