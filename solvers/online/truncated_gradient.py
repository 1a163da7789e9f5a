"""Truncated gradient, and FOBOS for lambda |w|_1: gradient steps with soft thresholds.

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis), eq.
(2.7), after Langford et al. (2009): the step t on a row (h, y) of weight c is

    w <- w - alpha_t c Q'(h.w; y) h,   alpha_t = sqrt(2 / t) / gamma
    where t is a multiple of `period`, each w_j then becomes
        0                      if |w_j| <= cut_t,  with cut_t = alpha_t lambda period
        w_j - cut_t sgn(w_j)   if cut_t < |w_j| <= theta
        w_j                    otherwise

FOBOS, eq. (2.6), is this with period 1 and theta infinite. t counts rows of positive weight. The
intercept is truncated like any other weight.

A weight is brought up to date when it is read. While |w_j| <= theta, all missed truncations are one
soft threshold by their sum: the total of all thresholds so far is stored, and with each such weight
the total at its last update. Beyond theta a weight does not change unless the first missed
threshold, the largest, reaches it: with such a weight the number of thresholds at its last update
is stored.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.learner import Outcome
from dualstream.solvers.core.scalar import loss_slope, loss_value, prefetch, shrink
from dualstream.solvers.core.table_learner import SAMPLES, TableLearner, loss_of
from dualstream.solvers.jit import (
    B1,
    F8,
    F8_2D,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    Flags,
    Floats,
    Indices,
    Ints,
    f8,
    i8,
    kernel,
    void,
)

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
CUT_SUM = 0
LAMBDA, GAMMA, THETA, BIAS, LOSS = range(1, 6)
N_FLOATS = LOSS + 6
assert SAMPLES == 0
STEPS = 1
PERIOD, BINARY = range(2, 4)
N_INTS = 4

_CACHED = 32_768
_SMALL_STEP = 1e190
_INFINITY = math.inf


class TruncatedGradient(TableLearner):
    """The learner of `algorithm: truncated_gradient` and `fobos`; `spec` is resolved."""

    STATE_FLOATS = {"cut_sum": CUT_SUM}
    STATE_INTS = {"samples": SAMPLES, "steps": STEPS}
    COLUMNS = ("w", "mark")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        loss = loss_of(spec)
        super().__init__(spec, loss, N_FLOATS, N_INTS, 2)
        theta = spec.get("theta")
        floats, ints = self._floats, self._ints
        floats[LAMBDA], floats[GAMMA] = spec["lambda"], spec["gamma"]
        floats[THETA] = math.inf if theta is None else theta
        floats[BIAS], floats[LOSS:] = self._features.bias, loss.numbers
        ints[PERIOD], ints[BINARY] = spec.get("period", 1), self._binary

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        learn_rows(
            batch.indptr, batch.indices, batch.values, batch.labels, batch.weights,
            out.scores, out.losses, out.updated, out.rejected, self._w, self._floats, self._ints,
        )  # fmt: skip

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._w, self._floats, self._ints
        )
        return scores

    def _served_of(self, rows: Floats) -> Floats:
        served = np.empty(len(rows))
        current_weights(rows, self._floats, self._ints, served)
        return served

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from weights of a refit; t and the step sqrt(2 / t) / gamma do not change.

        lambda |w|_1 gives no bound on the distance to the best weights from a small gap, so there
        is no better step to restart with.
        """
        cuts = self._ints[STEPS] // self._ints[PERIOD]
        is_cut = np.abs(weights) <= self._floats[THETA]
        self._w[:, 0] = weights
        self._w[:, 1] = np.where(is_cut, self._floats[CUT_SUM], float(cuts))


@kernel(f8(f8, f8, f8, i8, f8, f8, i8))
def current(
    w: float, mark: float, cut_sum: float, cuts: int, theta: float, first_cut: float, period: int
) -> float:
    """The current value of a weight: `w` as last written, after all truncations since.

    mark        the sum of the thresholds then, or if |w| > theta their number
    first_cut   alpha_t lambda period for t = 1: the threshold at t is that divided by sqrt(t)
    """
    if abs(w) <= theta:
        return shrink(w, cut_sum - mark)
    if mark < cuts and abs(w) <= first_cut / math.sqrt((mark + 1.0) * period):
        return 0.0
    return w


@kernel(void(RO_F8_2D, RO_F8, RO_I8, F8))
def current_weights(w: Floats, f: Floats, k: Ints, out: Floats) -> None:
    """All current weights, (width,)."""
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * k[PERIOD]
    cuts = k[STEPS] // k[PERIOD]
    for j in range(out.shape[0]):
        out[j] = current(w[j, 0], w[j, 1], f[CUT_SUM], cuts, f[THETA], first_cut, k[PERIOD])


@kernel(void(RO_I8, RO_I4, RO_F8, F8, RO_F8_2D, RO_F8, RO_I8))
def score_rows(
    indptr: Ints, indices: Indices, values: Floats, scores: Floats, w: Floats, f: Floats, k: Ints
) -> None:
    """Scores (n,), summed like in learn_rows."""
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * k[PERIOD]
    cut_sum, theta, period = f[CUT_SUM], f[THETA], k[PERIOD]
    cuts, end = k[STEPS] // period, w.shape[0] - 1
    intercept = current(w[end, 0], w[end, 1], cut_sum, cuts, theta, first_cut, period)
    for i in range(scores.shape[0]):
        score = 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            x, j = values[p], np.uint32(indices[p])
            score += x * current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
        scores[i] = score + f[BIAS] * intercept


@kernel(void(RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, F8, F8, B1, B1, F8_2D, F8, I8))
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    labels: Floats,
    weights: Floats,
    scores: Floats,
    losses: Floats,
    updated: Flags,
    rejected: Flags,
    w: Floats,
    f: Floats,
    k: Ints,
) -> None:
    """Score and learn every row: the step in the module docstring.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    indptr, indices, values, labels, weights   see Batch; labels are valid for the task
    scores, losses, updated, rejected          (n,) written; the flags must be False initially
    w       (width, 2)               weights as last written, and their marks; see `current`
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    Cost O(entries) per row.
    """
    cut_sum, gamma_star, theta, bias = f[CUT_SUM], f[GAMMA], f[THETA], f[BIAS]
    logistic, margin, eps, gamma = f[LOSS], f[LOSS + 1], f[LOSS + 2], f[LOSS + 3]
    b_lo, b_hi = f[LOSS + 4], f[LOSS + 5]
    samples, steps, period, binary = k[SAMPLES], k[STEPS], k[PERIOD], k[BINARY] != 0
    first_cut = math.sqrt(2.0) / gamma_star * f[LAMBDA] * period
    cuts = steps // period
    until_cut = period - (steps - cuts * period)
    n, end_of_w = labels.shape[0], w.shape[0] - 1
    is_far = 2 * w.shape[0] > _CACHED

    for i in range(n):
        begin, end = indptr[i], indptr[i + 1]
        if is_far and i + 1 < n:
            for p in range(end, indptr[i + 2]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        score = 0.0
        for p in range(np.uint64(begin), np.uint64(end)):
            x, j = values[p], np.uint32(indices[p])
            score += x * current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
        at_end = current(w[end_of_w, 0], w[end_of_w, 1], cut_sum, cuts, theta, first_cut, period)
        score += bias * at_end
        loss = loss_value(score, y, logistic, margin, eps, gamma, b_lo, b_hi)
        slope = loss_slope(score, y, logistic, margin, eps, gamma, b_lo, b_hi)
        alpha = math.sqrt(2.0 / (steps + 1.0)) / gamma_star
        g = alpha * c * slope
        finite = abs(score) < _INFINITY and loss < _INFINITY and abs(g) < _INFINITY
        # Write nothing until all numbers are known to be finite. The weights are finite, and a step
        # below 1e290 cannot make them infinite. No entry is beyond 1e100.
        if finite and not abs(g) < _SMALL_STEP:
            finite = abs(g) < 1e290
            for p in range(begin, end):
                finite = finite and abs(g * values[p]) < 1e290
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue
        scores[i], losses[i] = score, loss
        samples += 1
        if c == 0.0:
            continue

        steps += 1
        until_cut -= 1
        cut, new_sum, new_cuts = 0.0, cut_sum, cuts
        if until_cut == 0:
            new_cuts += 1
            until_cut = period
            cut = first_cut / math.sqrt(float(new_cuts) * period)
            new_sum += cut
        if g != 0.0:
            for p in range(np.uint64(begin), np.uint64(end)):
                x, j = values[p], np.uint32(indices[p])
                at = current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period) - g * x
                if abs(at) <= max(theta, cut):
                    at = shrink(at, cut)
                w[j, 0] = at
                w[j, 1] = new_sum if abs(at) <= theta else float(new_cuts)
            if bias != 0.0:
                at = at_end - g * bias
                if abs(at) <= max(theta, cut):
                    at = shrink(at, cut)
                w[end_of_w, 0] = at
                w[end_of_w, 1] = new_sum if abs(at) <= theta else float(new_cuts)
            updated[i] = end > begin or bias != 0.0
        cut_sum, cuts = new_sum, new_cuts

    f[CUT_SUM] = cut_sum
    k[SAMPLES], k[STEPS] = samples, steps
