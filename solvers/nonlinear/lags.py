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
from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.nonlinear.spec import MAX_LAGS
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

OLDER, COMPARED = 32, 2048
CLEARLY = 4.0
"""In standard deviations of chance."""

_NOT_SERVED = np.empty(0)


class Lags:
    """The last targets, and the columns of the next row; `count` columns from index `width` on."""

    def __init__(self, width: int, count: int) -> None:
        self.width, self.count = width, count
        self._recent = np.zeros(MAX_LAGS)
        """A ring: target number i is at i modulo MAX_LAGS."""
        self._targets = np.zeros(1, np.int64)

    def learn(self, batch: Batch) -> Batch:
        """The rows with their columns, each before its target enters."""
        return self._with_columns(batch, True)

    def peek(self, batch: Batch) -> Batch:
        """The rows with the columns of the next row; no target enters."""
        return self._with_columns(batch, False)

    def _with_columns(self, batch: Batch, learns: bool) -> Batch:
        if not self.count:
            return batch
        n = len(batch.labels)
        room = len(batch.values) + n * self.count
        indptr = np.zeros(n + 1, np.int64)
        indices, values = np.empty(room, np.int32), np.empty(room)
        served = _NOT_SERVED if batch.served is None else batch.served
        used = add_columns(
            batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, served, learns,
            self.width, self.count, self._recent, self._targets, indptr, indices, values,
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
    size, nearer, now, older = rows.shape[0], 0, at - n + OLDER, at - n
    for _ in range(n - OLDER):
        # Without a division for each row.
        y, last = rows[now, column], rows[now - 1, column]
        to_last, to_older = abs(y - last), abs(y - rows[older, column])
        nearer += int(to_last < to_older) - int(to_older < to_last)
        now, older = now + 1, older + 1
        now, older = now if now < size else 0, older if older < size else 0
    return nearer > 0 and nearer >= CLEARLY * math.sqrt(n - OLDER)


@kernel
def add_columns(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    served: RO_F8,
    learns: bool,
    width: int,
    count: int,
    recent: F8,
    targets: I8,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """Add the columns to rows. Returns the number of entries.

    served   (n,)  as in Batch, or (0,)
    learns         whether targets enter
    recent         see Lags
    targets  (1,)  how many have entered
    out_*          the rows, as in Batch, with room for all columns
    """
    at = 0
    for i in range(labels.shape[0]):
        for p in range(indptr[i], indptr[i + 1]):
            out_indices[at], out_values[at] = indices[p], values[p]
            at += 1
        is_late = served.shape[0] > 0 and not np.isnan(served[i])
        last = targets[0] - 1
        for c in range(0 if is_late else min(count, targets[0])):
            x = recent[(last - c) % MAX_LAGS]
            if c > 0:
                x = recent[(last - c + 1) % MAX_LAGS] - x
            if x != 0.0:
                out_indices[at], out_values[at] = width + c, x
                at += 1
        out_indptr[i + 1] = at
        if learns and weights[i] > 0.0 and not is_late:
            recent[(last + 1) % MAX_LAGS] = labels[i]
            targets[0] += 1
    return at
