"""Truncated gradient, FOBOS, and SGD with lambda |w|_1: steps sqrt(2 / t) / gamma.

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis), eq.
(2.7), after Langford et al. (2009): the step t on a row (h, y) of weight c is

    w <- w - alpha_t c Q'(h.w; y) h,   alpha_t = sqrt(2 / t) / gamma
    where t is a multiple of `period`, each w_j then becomes
        0                      if |w_j| <= cut_t,  with cut_t = alpha_t lambda period
        w_j - cut_t sgn(w_j)   if cut_t < |w_j| <= theta
        w_j                    otherwise

FOBOS, eq. (2.6), is this with period 1 and theta infinite, for lambda |w|_1 + sigma |w|^2 / 2; with
sigma each w_j is then divided by 1 + alpha_t sigma. `sgd_l1` is the SGD of section 2.6.2, which
takes the subgradient lambda sgn(w_j) instead of a threshold:

    w <- w - alpha_t (c Q'(h.w; y) h + lambda sgn(w))

t counts rows of positive weight. The intercept is penalised like any other weight.

A weight is brought up to date when it is read. It is `scale` times a stored v; `scale` is the
product of the divisions. While |w_j| <= theta, all missed truncations are one soft threshold of v
by their sum: the total of all thresholds so far is stored, and with each such weight the total at
its last update. Beyond theta a weight does not change unless the first missed threshold, the
largest, reaches it: with such a weight the number of thresholds at its last update is stored. The
weights of `sgd_l1` keep changing sign around 0, so it visits all of them at each row.

With `average` the primal average of the weights is served: see online/lazy_average.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_slope, loss_value
from dualstream.solvers.online import lazy_average as lazy
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner, loss_of
from dualstream.solvers.protocols.learner import RESULTS, Outcome, State
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import CACHED, prefetch, shrink

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
CUT_SUM, SCALE = range(2)
LAMBDA, GAMMA, THETA, BIAS, SIGMA, PULL, LOSS = range(2, 9)
N_FLOATS = LOSS + 6
assert SAMPLES == 0
STEPS = 1
PERIOD, BINARY = range(2, 4)
N_INTS = 4


class TruncatedGradient(TableLearner):
    """The learner of `algorithm: truncated_gradient`, `fobos` and `sgd_l1`; `spec` is resolved."""

    STATE_FLOATS = {"cut_sum": CUT_SUM}
    STATE_INTS = {"samples": SAMPLES, "steps": STEPS}
    COLUMNS = ("w", "mark", "z", "seen")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        loss, average = loss_of(spec), spec.get("average")
        super().__init__(spec, loss, N_FLOATS, N_INTS, 4 if average and average["kappa"] else 2)
        self._average = lazy.LazyAverage(average, self._features.width)
        theta = spec.get("theta")
        floats, ints = self._floats, self._ints
        # `sgd_l1` has no thresholds.
        floats[PULL if spec["algorithm"] == "sgd_l1" else LAMBDA] = spec["lambda"]
        floats[GAMMA] = spec["gamma"]
        floats[SCALE], floats[SIGMA] = 1.0, spec.get("sigma", 0.0)
        if floats[SIGMA] > 0.0:
            self.STATE_FLOATS = {"scale": SCALE, **self.STATE_FLOATS}  # type: ignore[misc]
        floats[THETA] = math.inf if theta is None else theta
        floats[BIAS], floats[LOSS:] = self._features.bias, loss.numbers
        ints[PERIOD], ints[BINARY] = spec.get("period", 1), self._binary

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        learn_rows(
            batch.arrays, out.arrays, self._w, self._floats, self._ints,
            *self._average.arrays,
        )  # fmt: skip

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._w, self._floats, self._ints,
            *self._average.arrays,
        )  # fmt: skip
        return scores

    def _served_of(self, rows: Floats) -> Floats:
        served = np.empty(len(rows))
        all_weights(rows, self._floats, self._ints, *self._average.arrays, served)
        return served

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from weights of a refit; t and the step sqrt(2 / t) / gamma do not change.

        lambda |w|_1 gives no bound on the distance to the best weights from a small gap, so there
        is no better step to restart with.
        """
        cuts = self._ints[STEPS] // self._ints[PERIOD]
        is_cut = np.abs(weights) <= self._floats[THETA]
        self._floats[SCALE] = 1.0
        self._w[:, 0] = weights
        self._w[:, 1] = np.where(is_cut, self._floats[CUT_SUM], float(cuts))
        if self._average.is_on:
            # The average of these weights alone.
            self._w[:, 2], self._w[:, 3] = weights, 0.0
            self._average.restart(float(self._floats[CUT_SUM]))

    def state(self) -> State:
        """See Learner."""
        return super().state() | self._average.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        self._average.check(state)
        super().restore(state)
        self._average.restore(state)


@kernel
def current(
    w: float, mark: float, cut_sum: float, cuts: int, theta: float, first_cut: float, period: int
) -> float:
    """The current v of a weight: `w` as last written, after all truncations since.

    mark        the sum of the thresholds then, or if |w| > theta their number
    first_cut   alpha_t lambda period for t = 1: the threshold at t is that divided by sqrt(t)
    """
    if abs(w) <= theta:
        return shrink(w, cut_sum - mark)
    if mark < cuts and abs(w) <= first_cut / math.sqrt((mark + 1.0) * period):
        return 0.0
    return w


@kernel(inline=True)
def total(w: RO_F8_2D, j: int, f: RO_F8, k: RO_I8, steps: int, sums: RO_F8_2D, now: int) -> float:
    """The sum of w_j over all steps so far, of which `now` are in `sums`: see lazy_average.py."""
    v, mark, seen, theta, period = w[j, 0], w[j, 1], w[j, 3], f[THETA], k[PERIOD]
    if abs(v) <= theta:
        return float(w[j, 2] + lazy.lazy_sum(v, mark, seen, sums, now))
    last, next_cut = now, (mark + 1.0) * period
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * period
    if next_cut <= steps and abs(v) <= first_cut / math.sqrt(next_cut):
        # 0 from the step next_cut on.
        last = max(int(seen), int(next_cut) - 1 - (steps - now))
    return float(w[j, 2] + v * (sums[last, 0] - sums[int(seen), 0]))


@kernel
def all_weights(w: RO_F8_2D, f: RO_F8, k: RO_I8, sums: RO_F8_2D, scalars: RO_F8, out: F8) -> None:
    """All served weights, (width,): the current ones or the averages."""
    period, steps, theta = k[PERIOD], k[STEPS], f[THETA]
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * period
    cuts, unit, now = steps // period, lazy.unit_of(scalars), int(scalars[lazy.NOW])
    for j in range(out.shape[0]):
        if w.shape[1] == 4:
            out[j] = unit * total(w, j, f, k, steps, sums, now)
        else:
            at = current(w[j, 0], w[j, 1], f[CUT_SUM], cuts, theta, first_cut, period)
            out[j] = f[SCALE] * at


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8,
    w: RO_F8_2D,
    f: RO_F8,
    k: RO_I8,
    sums: RO_F8_2D,
    scalars: RO_F8,
) -> None:
    """Scores (n,), summed like in learn_rows."""
    cut_sum, theta, period, steps = f[CUT_SUM], f[THETA], k[PERIOD], k[STEPS]
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * period
    cuts, end = steps // period, w.shape[0] - 1
    averaged, unit, now = w.shape[1] == 4, lazy.unit_of(scalars), int(scalars[lazy.NOW])
    for i in range(scores.shape[0]):
        score = 0.0
        if averaged:
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                score += values[p] * total(w, indices[p], f, k, steps, sums, now)
            scores[i] = unit * (score + f[BIAS] * total(w, end, f, k, steps, sums, now))
            continue
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            x, j = values[p], np.uint32(indices[p])
            score += x * current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
        at_end = current(w[end, 0], w[end, 1], cut_sum, cuts, theta, first_cut, period)
        scores[i] = f[SCALE] * (score + f[BIAS] * at_end)


@kernel
def settle(w: F8_2D, f: F8, k: RO_I8, sums: F8_2D, scalars: F8) -> None:
    """Begin new prefix sums, with every sum so far in its z in the unit of the next step.

    If `scale` is not 1, every weight is brought up to date, and `scale` becomes 1.
    """
    period, steps, theta, cut_sum, scale = k[PERIOD], k[STEPS], f[THETA], f[CUT_SUM], f[SCALE]
    first_cut = math.sqrt(2.0) / f[GAMMA] * f[LAMBDA] * period
    cuts, unit, now = steps // period, scalars[lazy.K] * scalars[lazy.KAPPA], int(scalars[lazy.NOW])
    for j in range(w.shape[0]):
        if w.shape[1] == 4:
            w[j, 2], w[j, 3] = total(w, j, f, k, steps, sums, now) * unit, 0.0
        if scale != 1.0:
            at = current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
            w[j, 0], w[j, 1] = scale * at, 0.0
    if scale != 1.0:
        f[SCALE], f[CUT_SUM] = 1.0, 0.0
    lazy.settle_sums(sums, scalars, f[CUT_SUM])


@kernel(inner=True)
def pull_all(w: F8_2D, by: float, sums: RO_F8_2D, now: int) -> None:
    """w_j -= by sgn(w_j) for all weights, which have no thresholds."""
    for j in range(w.shape[0]):
        if w[j, 0] != 0.0:
            if w.shape[1] == 4:
                w[j, 2] += w[j, 0] * (sums[now, 0] - sums[int(w[j, 3]), 0])
                w[j, 3] = now
            w[j, 0] -= by if w[j, 0] > 0.0 else -by


@kernel
def learn_rows(rows: ROWS, out: RESULTS, w: F8_2D, f: F8, k: I8, sums: F8_2D, scalars: F8) -> None:
    """Score and learn every row: the step in the module docstring.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; labels are valid for the task, flags False initially
    w       (width, 2 or 4)          v as last written, its mark (see `current`); if averaged also z
                                     and `seen`
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    sums, scalars                    see lazy_average.LazyAverage
    Cost O(entries) per row; O(entries log steps) if averaged; O(width) for sgd_l1. O(width) once
    per 1e30-fold decay of `scale` (1e3 if averaged).
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    gamma_star, theta, bias, lam = f[GAMMA], f[THETA], f[BIAS], f[LAMBDA]
    sigma, pull = f[SIGMA], f[PULL]
    numbers = loss_at(f, LOSS)
    samples, steps, period, binary = k[SAMPLES], k[STEPS], k[PERIOD], k[BINARY] != 0
    first_cut = math.sqrt(2.0) / gamma_star * lam * period
    cuts = steps // period
    until_cut = period - (steps - cuts * period)
    n, end_of_w = labels.shape[0], w.shape[0] - 1
    is_far = w.shape[1] * w.shape[0] > CACHED
    averaged, unit, now = w.shape[1] == 4, lazy.unit_of(scalars), int(scalars[lazy.NOW])
    settle_below = 1e-3 if averaged else 1e-30

    for i in range(n):
        cut_sum, scale = f[CUT_SUM], f[SCALE]
        begin, end = indptr[i], indptr[i + 1]
        if is_far and i + 1 < n:
            for p in range(end, indptr[i + 2]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        m = 0.0
        for p in range(np.uint64(begin), np.uint64(end)):
            x, j = values[p], np.uint32(indices[p])
            m += x * current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
        at_end = current(w[end_of_w, 0], w[end_of_w, 1], cut_sum, cuts, theta, first_cut, period)
        m = score = scale * (m + bias * at_end)
        if averaged:
            score = 0.0
            for p in range(np.uint64(begin), np.uint64(end)):
                score += values[p] * total(w, indices[p], f, k, steps, sums, now)
            score = unit * (score + bias * total(w, end_of_w, f, k, steps, sums, now))
        loss = loss_value(score, y, numbers)
        slope = loss_slope(m, y, numbers)
        alpha = math.sqrt(2.0 / (steps + 1.0)) / gamma_star
        g = alpha * c * slope
        finite = abs(score) < math.inf and loss < math.inf and abs(g) < math.inf
        # Write nothing until all numbers are known to be finite.
        finite = finite and lazy.fits(values, begin, end, g, m, averaged)
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue
        scores[i], losses[i] = score, loss
        samples += 1
        if c == 0.0:
            continue

        shrunk, new_unit = 1.0 + alpha * sigma, scalars[lazy.K] * scalars[lazy.KAPPA]
        if scale / shrunk < settle_below or (averaged and lazy.is_due(sums, scalars)):
            k[STEPS] = steps
            settle(w, f, k, sums, scalars)
            cut_sum, scale, new_unit, now = f[CUT_SUM], f[SCALE], 1.0, 0
        steps += 1
        until_cut -= 1
        cut, new_sum, new_cuts = 0.0, cut_sum, cuts
        if until_cut == 0:
            new_cuts += 1
            until_cut = period
            cut = first_cut / math.sqrt(float(new_cuts) * period)
            new_sum += cut / scale
        if pull > 0.0:
            pull_all(w, alpha * pull, sums, now)
        if g != 0.0:
            step, v_cut, most = g / scale, cut / scale, max(theta, cut)
            if averaged:
                for p in range(np.uint64(begin), np.uint64(end)):
                    j = np.uint32(indices[p])
                    w[j, 2], w[j, 3] = total(w, int(j), f, k, steps - 1, sums, now), now
                j = np.uint32(end_of_w)
                w[j, 2], w[j, 3] = total(w, end_of_w, f, k, steps - 1, sums, now), now
            for p in range(np.uint64(begin), np.uint64(end)):
                x, j = values[p], np.uint32(indices[p])
                at = current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period) - step * x
                if abs(at) <= most:
                    at = shrink(at, v_cut)
                w[j, 0] = at
                w[j, 1] = new_sum if abs(at) <= theta else float(new_cuts)
            if bias != 0.0:
                j = np.uint32(end_of_w)
                at = current(w[j, 0], w[j, 1], cut_sum, cuts, theta, first_cut, period)
                at -= step * bias
                if abs(at) <= most:
                    at = shrink(at, v_cut)
                w[j, 0] = at
                w[j, 1] = new_sum if abs(at) <= theta else float(new_cuts)
            updated[i] = end > begin or bias != 0.0
        cuts = new_cuts
        f[CUT_SUM], f[SCALE] = new_sum, scale / shrunk
        if averaged:
            lazy.add_step(f[SCALE], new_sum, new_unit, sums, scalars)
            unit, now = lazy.unit_of(scalars), now + 1

    k[SAMPLES], k[STEPS] = samples, steps
