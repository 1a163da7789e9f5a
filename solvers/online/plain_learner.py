"""PlainLearner: learners whose weights are `scale` times a vector v, without a choice of loss.

An algorithm that rescales its weights then changes one number. `scale` stays 1 for the others. The
last entry of v is the intercept's.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.scalar import CACHED, SMALL_NORM, SMALL_STEP, prefetch, scaled_norm

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


# Prefetch distance, in entries.
_AHEAD = np.uint64(64)

TINY_SQUARE = 1e-280
"""Below it, a sum of squares has lost digits to underflow."""


@kernel(inline=True)
def row_products(
    indices: RO_I4, values: RO_F8, begin: int, end: int, v: RO_F8, table: F8_2D, bias: float
) -> tuple[float, float]:
    """h.v and h.h of the row of entries `begin` to `end`; `table` is v as a matrix."""
    dot, hh = 0.0, 0.0
    if v.shape[0] > CACHED:
        # While this sum waits for its terms, weights that are needed soon are prefetched.
        final = np.uint64(max(1, indices.shape[0]) - 1)
        for p in range(np.uint64(begin), np.uint64(end)):
            prefetch(table, indices[min(p + _AHEAD, final)])
            x = values[p]
            dot += x * v[np.uint32(indices[p])]
            hh += x * x
    else:
        for p in range(np.uint64(begin), np.uint64(end)):
            x = values[p]
            dot += x * v[np.uint32(indices[p])]
            hh += x * x
    return dot + bias * v[v.shape[0] - 1], hh + bias * bias


@kernel(inline=True)
def norm_of(values: RO_F8, begin: int, end: int, bias: float, hh: float) -> float:
    """|h| of a row, given h.h."""
    return math.sqrt(hh) if hh >= TINY_SQUARE else scaled_norm(values, begin, end, bias)


@kernel(inline=True)
def stays_finite(
    indices: RO_I4, values: RO_F8, begin: int, end: int, v: RO_F8, bias: float, g: float, hh: float
) -> bool:
    """Whether v + g h is finite at the entries of the row, for a finite g."""
    if abs(g) < SMALL_STEP and hh < SMALL_NORM:
        return True
    finite = abs(v[v.shape[0] - 1] + g * bias) < math.inf
    for p in range(np.uint64(begin), np.uint64(end)):
        finite = finite and abs(v[np.uint32(indices[p])] + g * values[p]) < math.inf
    return bool(finite)


@kernel(inline=True)
def add_row(
    indices: RO_I4, values: RO_F8, begin: int, end: int, v: F8, bias: float, g: float
) -> None:
    """v += g h."""
    for p in range(np.uint64(begin), np.uint64(end)):
        v[np.uint32(indices[p])] += g * values[p]
    v[v.shape[0] - 1] += g * bias


@kernel
def score_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, scores: F8, v: RO_F8, scale: float, bias: float
) -> None:
    """Scores (n,) by the weights scale v, summed in the same order as every learning kernel."""
    end_of_v = v.shape[0] - 1
    for i in range(scores.shape[0]):
        dot = 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            dot += values[p] * v[np.uint32(indices[p])]
        dot += bias * v[end_of_v]
        scores[i] = scale * dot
