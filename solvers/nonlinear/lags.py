"""Lags: the last targets as columns of boosted trees.

With `lags: 3` trees can split three columns after those of the features, at the indices that follow
them:

    label.1     the last target
    label.1-label.2, label.2-label.3     the steps that led to it

A row has those columns whose targets are there. Rows of weight 0 leave no target. Rows with late
labels have no columns and leave no target: the last known target is an old one then, and trees that
use it err more.

On a stream in random order the columns are noise, which makes trees worse. So a tree may split them
only if targets follow each other: among the last rows of the ring, the target before a row is
nearer to its target than the one OLDER rows before, CLEARLY more often than not. In random order
both are nearer equally often.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, RO_I4, RO_I8, RO_U1, Bytes, kernel
from dualstream.solvers.nonlinear.spec import MAX_LAGS
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

OLDER, COMPARED = 32, 2048
CLEARLY = 4.0
"""In standard deviations of chance."""

_READ, _ENTERS, _LATE = 0, 1, 2
"""A row has columns and leaves no target; it has columns and leaves its target; neither."""


class Lags:
    """The last targets, and the columns of the next row; `count` columns from index `width` on."""

    def __init__(self, width: int, count: int) -> None:
        self.width, self.count = width, count
        self._recent = np.zeros(MAX_LAGS)
        """A ring: target number i is at i modulo MAX_LAGS."""
        self._targets = np.zeros(1, np.int64)

    def learn(self, batch: Batch) -> Batch:
        """The rows with their columns, each before its target enters."""
        kinds = np.where(batch.weights > 0.0, _ENTERS, _READ).astype(np.uint8)
        if batch.served is not None:
            kinds[~np.isnan(batch.served)] = _LATE
        return self._with_columns(batch, kinds)

    def peek(self, batch: Batch) -> Batch:
        """The rows with the columns of the next row; no target enters."""
        return self._with_columns(batch, np.full(len(batch), _READ, np.uint8))

    def _with_columns(self, batch: Batch, kinds: Bytes) -> Batch:
        if not self.count:
            return batch
        room = batch.nnz + len(batch) * self.count
        indptr = np.zeros(len(batch) + 1, np.int64)
        indices, values = np.empty(room, np.int32), np.empty(room)
        used = add_columns(
            batch.indptr, batch.indices, batch.values, batch.labels, kinds, self.width, self.count,
            self._recent, self._targets, indptr, indices, values,
        )  # fmt: skip
        return batch.with_rows(indptr, indices[:used], values[:used], self.width + self.count)

    def state(self) -> State:
        """See Learner."""
        return {"last_targets": self._recent.copy(), "targets": np.array(self._targets[0])}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"last_targets": (MAX_LAGS,), "targets": ()})
        if state["targets"] < 0:
            raise CorruptState("the last targets are damaged")
        self._recent[:], self._targets[0] = state["last_targets"], state["targets"]


@kernel
def follow_each_other(rows: F8_2D, column: int, n: int, at: int) -> bool:
    """Whether targets are clearly nearer to the one before than to the one OLDER rows before.

    rows  a ring; its last n <= COMPARED rows end before row `at`, and have targets in `column`
    """
    size, nearer = rows.shape[0], 0
    for i in range(at - n + OLDER, at):
        y = rows[i % size, column]
        to_last = abs(y - rows[(i - 1) % size, column])
        to_older = abs(y - rows[(i - OLDER) % size, column])
        nearer += int(to_last < to_older) - int(to_older < to_last)
    return nearer > 0 and nearer >= CLEARLY * math.sqrt(n - OLDER)


@kernel
def add_columns(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    kinds: RO_U1,
    width: int,
    count: int,
    recent: F8,
    targets: I8,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """Add the columns to rows. Returns the number of entries.

    kinds    (n,)  of _READ, _ENTERS, _LATE
    recent         see Lags
    targets  (1,)  how many have entered
    out_*          the rows, as in Batch, with room for all columns
    """
    at = 0
    for i in range(kinds.shape[0]):
        for p in range(indptr[i], indptr[i + 1]):
            out_indices[at], out_values[at] = indices[p], values[p]
            at += 1
        last = targets[0] - 1
        for c in range(min(count, targets[0]) if kinds[i] != _LATE else 0):
            x = recent[(last - c) % MAX_LAGS]
            if c > 0:
                x = recent[(last - c + 1) % MAX_LAGS] - x
            if x != 0.0:
                out_indices[at], out_values[at] = width + c, x
                at += 1
        out_indptr[i + 1] = at
        if kinds[i] == _ENTERS:
            recent[(last + 1) % MAX_LAGS] = labels[i]
            targets[0] += 1
    return at
