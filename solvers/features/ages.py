"""Ages: how much older a row's time is than the newest time learned so far.

For the feature `at.age` of a column of times `at`, which is the time in seconds in the raw row,

    age = log(1 + newest - time),   newest = the largest time of the learned rows and of this one

so a time that is itself the newest has the age 0, an hour 8.2 and a year 17.3. Rows of weight 0 do
not move `newest`, and neither does a prediction. A row with a late label has moved it when it was
predicted, and has the age of that moment: see history/learner.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, RO_U1, Bytes, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.hashing import hash_names

_NEVER = -1e300
"""Newest time before the first row, earlier than any value of a row."""


_READ, _MOVE, _SERVED = 0, 1, 2
"""A row changes nothing; it moves the newest time; it has the age that it was served with."""


class Ages:
    """The stage of ages; one float for each feature (k,), given as increasing indices."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        names = age_features(spec)
        self._features = np.unique(hash_names(names, spec["features"]["bits"])).astype(np.int32)
        self._newest = np.full(len(self._features), _NEVER)

    def learn(self, batch: Batch) -> Batch:
        """See PastStage."""
        moves = batch.weights > 0.0
        if not moves.all():
            moves |= np.isnan(batch.labels)  # observed
        kinds = moves.astype(np.uint8)
        if batch.served is not None:
            kinds[~np.isnan(batch.served) & ~np.isnan(batch.labels)] = _SERVED
        return self._transformed(batch, kinds)

    def peek(self, batch: Batch) -> Batch:
        """See PastStage."""
        return self._transformed(batch, np.zeros(len(batch), np.uint8))

    def _transformed(self, batch: Batch, kinds: Bytes) -> Batch:
        indptr = np.zeros(len(batch) + 1, np.int64)
        indices, values = np.empty(batch.nnz, np.int32), np.empty(batch.nnz)
        age_rows(
            batch.indptr, batch.indices, batch.values, kinds, self._features, self._newest,
            indptr, indices, values,
        )  # fmt: skip
        used = int(indptr[-1])
        return batch.with_rows(indptr, indices[:used], values[:used], batch.dim)

    def state(self) -> State:
        """See PastStage."""
        return {"newest": self._newest.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See PastStage."""
        check_arrays(state, {"newest": self._newest.shape})
        self._newest[:] = state["newest"]


@kernel
def age_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    kinds: RO_U1,
    features: RO_I4,
    newest: F8,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> None:
    """Replace times by ages.

    kinds             (n,)  of _READ, _MOVE, _SERVED
    features, newest  (k,)  increasing indices, and the newest time of each
    out_*                   the rows, as in Batch, with room for as many entries as the rows have
    """
    at = 0
    for i in range(kinds.shape[0]):
        c = 0
        for p in range(indptr[i], indptr[i + 1]):
            j, x = indices[p], values[p]
            while c < features.shape[0] and features[c] < j:
                c += 1
            if kinds[i] != _SERVED and c < features.shape[0] and features[c] == j:
                last = max(newest[c], x)
                if kinds[i] == _MOVE:
                    newest[c] = last
                x = math.log(1.0 + (last - x))
            if x != 0.0:
                out_indices[at], out_values[at] = j, x
                at += 1
        out_indptr[i + 1] = at
