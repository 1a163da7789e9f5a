"""A learner of dual_ascent.py without the rows that it retains: for no window, or a decaying one.

The step of a row is that of the last iterate's numerator and Delta, which hold all that the rows
before it have done: Ying, Yuan, Sayed, "Online dual coordinate ascent learning" (2016),
eqs. (26a)-(26c).
"""

from sys import getsizeof

import numpy as np

from solvers import _odca
from solvers._jit import Floats, Ints
from solvers.batch import Batch
from solvers.errors import InvalidRow
from solvers.features import Features
from solvers.learner import Outcome

NO_RING = (np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0), np.empty((0, 3)))
"""The arrays of a ring, for a kernel that leaves them alone."""


class BareAscent:
    """See bare.py; arrays as in _odca.py, of which the places of retained rows mean nothing."""

    __slots__ = ("_features", "_floats", "_ints", "_w")

    def __init__(self, features: Features, w: Floats, floats: Floats, ints: Ints) -> None:
        self._features = features
        self._w, self._floats, self._ints = w, floats, ints

    @property
    def bytes_held(self) -> int:
        """What it takes of memory."""
        return sum(map(getsizeof, (self._w, self._floats, self._ints)))

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. O(entries) for each row, whatever the width."""
        self._features.check(batch)
        n = len(batch.labels)
        scores, losses = np.empty(n), np.empty(n)
        updated, rejected = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        # Each row's tau, which nobody asks for; room for one tells the kernel to retain no rows.
        taus = np.empty(max(1, n))
        stopped = _odca.learn_rows(
            batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, 0, n,
            scores, losses, updated, rejected, self._w, self._floats, self._ints, *NO_RING, taus,
        )  # fmt: skip
        if stopped < 0:
            raise unknown_label(-1 - stopped, batch, self._ints)
        return Outcome(scores, losses, updated, rejected)


def unknown_label(row: int, batch: Batch, ints: Ints) -> InvalidRow:
    """What to raise for a row whose label the task of a learner does not know."""
    return InvalidRow.of_label(row, float(batch.labels[row]), bool(ints[_odca.BINARY]))
