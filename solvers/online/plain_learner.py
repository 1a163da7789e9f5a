"""PlainLearner: learners whose weights are `scale` times a vector v, without a choice of loss.

An algorithm that rescales its weights then changes one number. `scale` stays 1 for the others. The
last entry of v is the intercept's.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import F8, RO_F8, RO_I4, RO_I8, Floats, Indices, Ints, f8, kernel, void
from dualstream.solvers.losses.losses import make_loss
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner
from dualstream.solvers.rows.batch import Batch

SCALE = 0
"""Index of `scale` among a learner's floats."""
ROUNDS = SAMPLES + 1
"""Index, among a learner's integers, of the number of learned rows with a weight above 0."""


class PlainLearner(TableLearner):
    """The Learner protocol, except `_learn_rows`."""

    COLUMNS = ("v",)

    def __init__(self, spec: Mapping[str, Any], floats: int, ints: int) -> None:
        super().__init__(spec, make_loss("hinge"), floats, ints, 1)
        self._floats[SCALE] = 1.0
        # A view of the same memory without the second axis, which saves kernels a multiplication.
        self._v = self._w.reshape(-1)

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores,
            self._v, float(self._floats[SCALE]), self._features.bias,
        )  # fmt: skip
        return scores

    def _served_of(self, rows: Floats) -> Floats:
        served: Floats = self._floats[SCALE] * rows[:, 0]
        return served


@kernel(void(RO_I8, RO_I4, RO_F8, F8, RO_F8, f8, f8))
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    scores: Floats,
    v: Floats,
    scale: float,
    bias: float,
) -> None:
    """Scores (n,) by the weights scale v, summed in the same order as every learning kernel."""
    end_of_v = v.shape[0] - 1
    for i in range(scores.shape[0]):
        dot = 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            dot += values[p] * v[np.uint32(indices[p])]
        dot += bias * v[end_of_v]
        scores[i] = scale * dot
