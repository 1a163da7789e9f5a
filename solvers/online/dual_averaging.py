"""RDA: regularized dual averaging of all gradients.

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis), eq.
(2.4), after Xiao (2010):

    w_(t+1) = argmin  <G_t / t, w> + Psi(w) + (beta_t / t) h(w),   G_t = sum of the gradients
            = soft(-G_t, t lambda) / (sigma t + 2 c_h beta_t)

for Psi(w) = lambda |w|_1 + sigma |w|^2 / 2, with h = c_h |w|^2: c_h = 1 in the thesis and 1/2 in
Xiao's paper, so gamma in the one is half of gamma in the other. beta_t is gamma sqrt(t), or sigma
(1 + ln t) for a strongly convex Psi. The intercept is free: for it lambda = sigma = 0, but h pulls
it towards 0, or with `intercept: prior` towards the log odds of the labels. A row's weight
multiplies its gradient; t counts rows of positive weight.

Weights are computed on reading and only G is stored, so a row costs O(entries). With `average` the
primal average of the weights is served, as in section 2.6.2 of the thesis: online/lazy_average.py
sums the weights that no row touches. The sign pattern remains that of the iterates.

**The sign pattern.** A weight is active where |G_j| > t lambda. As t grows, a weight that no row
touches can only become 0, first at the least t with t lambda >= |G_j|. So its sign at the last
touch is stored with G_j. This determines, whenever it is read, whether and at which row it became 0
since. The history is exact, without any work per row for untouched weights.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I4,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    RO_U1,
    U1,
    Floats,
    kernel,
)
from dualstream.solvers.losses.loss_kernels import loss_at, loss_slope, loss_value
from dualstream.solvers.online import lazy_average as lazy
from dualstream.solvers.online.forgetting_windows import RING, Ring, retain_row
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner, loss_of
from dualstream.solvers.protocols.learner import RESULTS, Outcome, State
from dualstream.solvers.protocols.sparse_support import Support
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import CACHED, prefetch, prior_odds, shrink

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
RECENT = 0
LAMBDA, SIGMA, PROX, BETA, BIAS, LOSS = range(1, 7)
COUNTS = LOSS + 6
"""Weights of positive and of negative labels so far, state of `intercept: prior`."""
N_FLOATS = COUNTS + 2
assert SAMPLES == 0
STEPS, LAST_CHANGE, NEXT_TRY, LISTED, FIRST, LAST, WANTS = range(1, 8)
BINARY, LOGARITHMIC, IS_PLUS, RETAIN, STABLE, PRIOR = range(8, 14)
N_INTS = 14


# Reasons for which learn_rows stops.
NOTHING, ROOM, LOCAL_PHASE = range(3)

# The sign of a weight; RDA+ adds ON_LIST for those on its list.
NONE, POSITIVE, NEGATIVE = range(3)
SIGN_BITS, ON_LIST = 3, 4

_FADE = 0.999
_LOG_FADE = math.log(_FADE)


class DualAveraging(TableLearner):
    """The learner of `algorithm: rda`; `spec` is resolved."""

    STATE_FLOATS = {"recent_changes": RECENT}
    STATE_INTS = {"samples": SAMPLES, "steps": STEPS, "last_change": LAST_CHANGE}
    COLUMNS = ("gradient_sum", "z", "seen")
    SIGNS = np.uint8(SIGN_BITS)
    PRIOR_AT = COUNTS

    def __init__(self, spec: Mapping[str, Any]) -> None:
        loss = loss_of(spec)
        average = spec.get("average")
        super().__init__(spec, loss, N_FLOATS, N_INTS, 3 if average and average["kappa"] else 1)
        self._average = lazy.LazyAverage(average, self._features.width)
        regularizer, schedule = spec["regularizer"], spec["schedule"]
        floats, ints = self._floats, self._ints
        floats[LAMBDA] = regularizer.get("lambda", 0.0)
        floats[SIGMA] = regularizer.get("sigma", 0.0)
        floats[PROX] = 2.0 if spec["prox"] == "thesis" else 1.0
        ints[LOGARITHMIC] = schedule["kind"] == "log"
        floats[BETA] = schedule["sigma" if ints[LOGARITHMIC] else "gamma"]
        floats[BIAS], floats[LOSS:COUNTS] = self._features.bias, loss.numbers
        ints[BINARY], ints[PRIOR] = self._binary, self._features.has_prior
        self._ring = Ring(spec.get("retain", 0))
        self._signs = np.zeros(self._features.dim, np.uint8)
        self._listed = np.empty(0, np.int32)

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        n, row, ints, ring = len(batch.labels), 0, self._ints, self._ring
        average = self._average
        while True:
            row = learn_rows(
                batch.arrays, row, out.arrays, self._w, self._signs, self._floats, ints,
                average.sums, average.scalars, ring.arrays, self._listed,
            )  # fmt: skip
            if ints[WANTS] == ROOM:
                first, last = int(ints[FIRST]), int(ints[LAST])
                ring.make_room(first, last, int(batch.indptr[row + 1] - batch.indptr[row]))
                ints[FIRST], ints[LAST] = 0, last - first
            elif ints[WANTS] == LOCAL_PHASE:
                self._local_phase()
            elif row == n:
                return

    def _local_phase(self) -> None:
        """Hook of RDA+: called when the sign pattern has been constant for long enough."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores,
            self._w, self._floats, self._ints, *self._average.arrays,
        )  # fmt: skip
        return scores

    def _served_of(self, rows: Floats) -> Floats:
        served = np.empty(len(rows))
        if self._average.is_on:
            average_weights(rows, *self._average.arrays, served)
        else:
            current_weights(rows, self._floats, self._ints, served)
        return served

    def state(self) -> State:
        """See Learner."""
        return super().state() | {"signs": self._signs.copy()} | self._average.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        check_arrays(state, {"signs": self._signs.shape})
        signs = np.asarray(state["signs"])
        if signs.dtype != np.uint8 or np.any(signs & ~self.SIGNS):
            raise CorruptState("signs contains an invalid sign")
        self._average.check(state)
        super().restore(state)
        self._average.restore(state)
        self._signs[:] = signs

    def support(self) -> Support:
        """The features in use, and since when the iterates have had their signs. O(dim)."""
        (served,) = self.served_weights()
        active, weights = served.sparse()
        last_change, recent = pattern_history(self._w, self._signs, self._floats, self._ints)
        zero_weight_rows = self.samples - int(self._ints[STEPS])
        since = last_change + zero_weight_rows if last_change else 0
        return Support(active + 1, weights, since, recent)


@kernel
def inverse_curvatures(steps: int, f: RO_F8, k: RO_I8) -> tuple[float, float]:
    """Inverse of the divisor of -G: for penalised weights, and for the intercept."""
    if steps == 0:
        return 0.0, 0.0
    beta = f[BETA] * (math.sqrt(steps) if k[LOGARITHMIC] == 0 else 1.0 + math.log(steps))
    pull = f[PROX] * beta
    return 1.0 / (f[SIGMA] * steps + pull), 1.0 / pull


@kernel
def current_weights(w: RO_F8_2D, f: RO_F8, k: RO_I8, out: F8) -> None:
    """All current weights, (width,)."""
    inverse, inverse_free = inverse_curvatures(k[STEPS], f, k)
    cut, end = k[STEPS] * f[LAMBDA], out.shape[0] - 1
    for j in range(end):
        out[j] = inverse * shrink(-w[j, 0], cut)
    out[end] = -inverse_free * w[end, 0]


@kernel
def average_weights(w: RO_F8_2D, sums: RO_F8_2D, scalars: RO_F8, out: F8) -> None:
    """All averaged weights, (width,)."""
    unit, now, end = lazy.unit_of(scalars), int(scalars[lazy.NOW]), out.shape[0] - 1
    for j in range(end):
        out[j] = unit * (w[j, 1] + lazy.lazy_sum(-w[j, 0], 0.0, w[j, 2], sums, now))
    out[end] = unit * w[end, 1]


@kernel
def settle(w: F8_2D, sums: F8_2D, scalars: F8, cut: float) -> None:
    """Add to every z what its weight has summed to, in the unit of the next step."""
    unit, now, end = scalars[lazy.K] * scalars[lazy.KAPPA], int(scalars[lazy.NOW]), w.shape[0] - 1
    for j in range(end):
        w[j, 1] = (w[j, 1] + lazy.lazy_sum(-w[j, 0], 0.0, w[j, 2], sums, now)) * unit
        w[j, 2] = 0.0
    w[end, 1] *= unit
    lazy.settle_sums(sums, scalars, cut)


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
    inverse, inverse_free = inverse_curvatures(k[STEPS], f, k)
    cut, end_of_w, averaged = k[STEPS] * f[LAMBDA], w.shape[0] - 1, w.shape[1] == 3
    unit, now = lazy.unit_of(scalars), int(scalars[lazy.NOW])
    intercept = -inverse_free * w[end_of_w, 0]
    odds = prior_odds(f, COUNTS) if k[PRIOR] != 0 else 0.0
    for i in range(scores.shape[0]):
        dot = 0.0
        if averaged:
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                j = np.uint32(indices[p])
                dot += values[p] * (w[j, 1] + lazy.lazy_sum(-w[j, 0], 0.0, w[j, 2], sums, now))
            scores[i] = unit * (dot + f[BIAS] * w[end_of_w, 1]) + odds
            continue
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            dot += values[p] * shrink(-w[np.uint32(indices[p]), 0], cut)
        scores[i] = inverse * dot + f[BIAS] * intercept + odds


@kernel(inner=True)
def became_zero(gradient: float, lam: float) -> int:
    """The least t with t lambda >= |G_j|, if there is one."""
    size = abs(gradient)
    t = math.ceil(size / lam)
    while t * lam < size:
        t += 1
    while t > 0 and (t - 1) * lam >= size:
        t -= 1
    return int(t)


@kernel
def pattern_history(w: RO_F8_2D, signs: RO_U1, f: RO_F8, k: RO_I8) -> tuple[int, float]:
    """The last step at which a sign changed, and the recent changes: see Support."""
    steps, last_change, recent = k[STEPS], k[LAST_CHANGE], f[RECENT]
    cut = steps * f[LAMBDA]
    for j in range(signs.shape[0]):
        if signs[j] & SIGN_BITS != NONE and abs(w[j, 0]) <= cut:
            when = became_zero(w[j, 0], f[LAMBDA])
            last_change = max(last_change, when)
            recent += math.exp((steps - when) * _LOG_FADE)
    return last_change, recent


@kernel
def sweep(w: F8_2D, signs: U1, f: F8, k: I8, listed: I4) -> None:
    """Record every listed weight that became 0; keep the active ones on the list."""
    steps, kept = k[STEPS], 0
    cut = steps * f[LAMBDA]
    for slot in range(k[LISTED]):
        j = listed[slot]
        was_active = signs[j] & SIGN_BITS != NONE
        if was_active and abs(w[j, 0]) > cut:
            listed[kept] = j
            kept += 1
            continue
        if was_active:
            when = became_zero(w[j, 0], f[LAMBDA])
            k[LAST_CHANGE] = max(k[LAST_CHANGE], when)
            f[RECENT] += math.exp((steps - when) * _LOG_FADE)
        signs[j] = NONE
    k[LISTED] = kept


@kernel
def learn_rows(
    rows: ROWS, start: int, out: RESULTS, w: F8_2D, signs: U1, f: F8, k: I8,
    sums: F8_2D, scalars: F8, ring: RING, listed: I4,
) -> int:  # fmt: skip
    """Score and learn rows `start` to n; return where it stopped, with the reason in k[WANTS].

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; labels are valid for the task, flags False initially
    w       (width, 1 or 3)          G, and z and `seen` where averaged; the intercept's row is last
    signs   (dim,) uint8             of every weight when last touched
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    sums, scalars                    see lazy_average.LazyAverage
    ring                             RDA+: see forgetting_windows.Ring; last column: losses
    listed  (width,)                 RDA+: the LISTED weights with that bit, in any order
    Cost O(entries) per row; if averaged, O(entries log steps).
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    ring_starts, ring_indices, ring_values, ring_rows = ring
    recent, lam, bias = f[RECENT], f[LAMBDA], f[BIAS]
    numbers = loss_at(f, LOSS)
    samples, steps, last_change, n_listed = k[SAMPLES], k[STEPS], k[LAST_CHANGE], k[LISTED]
    first, last = k[FIRST], k[LAST]
    binary, is_plus = k[BINARY] != 0, k[IS_PLUS] != 0
    inverse, inverse_free = inverse_curvatures(steps, f, k)
    cut = steps * lam
    n, end_of_w = labels.shape[0], w.shape[0] - 1
    is_far = w.shape[0] * w.shape[1] > CACHED
    wants = NOTHING
    averaged, unit, now = w.shape[1] == 3, lazy.unit_of(scalars), int(scalars[lazy.NOW])
    has_prior, odds = k[PRIOR] != 0, 0.0

    i = start
    while i < n:
        begin, end = indptr[i], indptr[i + 1]
        if is_plus and (
            last == ring_rows.shape[0] or ring_starts[last] + end - begin > ring_values.shape[0]
        ):
            wants = ROOM
            break
        if is_far and i + 1 < n:
            for p in range(end, indptr[i + 2]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        dot = 0.0
        for p in range(np.uint64(begin), np.uint64(end)):
            dot += values[p] * shrink(-w[np.uint32(indices[p]), 0], cut)
        if has_prior:
            odds = prior_odds(f, COUNTS)
        m = score = inverse * dot + bias * (-inverse_free * w[end_of_w, 0]) + odds
        if averaged:
            dot = 0.0
            for p in range(np.uint64(begin), np.uint64(end)):
                j = np.uint32(indices[p])
                dot += values[p] * (w[j, 1] + lazy.lazy_sum(-w[j, 0], 0.0, w[j, 2], sums, now))
            score = unit * (dot + bias * w[end_of_w, 1]) + odds
        loss = loss_value(score, y, numbers)
        g = c * loss_slope(m, y, numbers)
        finite = abs(score) < math.inf and loss < math.inf and abs(g) < math.inf
        # Write nothing until all numbers are known to be finite.
        finite = finite and lazy.fits(values, begin, end, g, m, averaged)
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue
        scores[i], losses[i] = score, loss
        samples += 1
        i += 1
        if c == 0.0:
            continue

        if has_prior:
            f[COUNTS if y > 0.0 else COUNTS + 1] += c
        steps += 1
        recent *= _FADE
        new_cut = steps * lam
        new_unit = scalars[lazy.K] * scalars[lazy.KAPPA]
        if averaged and lazy.is_due(sums, scalars):
            settle(w, sums, scalars, cut)
            new_unit, now = 1.0, 0
        if g != 0.0:
            for p in range(np.uint64(begin), np.uint64(end)):
                j = np.uint32(indices[p])
                old = w[j, 0]
                new = old + g * values[p]
                w[j, 0] = new
                if averaged:
                    w[j, 1] += lazy.lazy_sum(-old, 0.0, w[j, 2], sums, now)
                    w[j, 2] = now
                before = POSITIVE * (-old > cut) + NEGATIVE * (old > cut)
                after = POSITIVE * (-new > new_cut) + NEGATIVE * (new > new_cut)
                noted = signs[j] & SIGN_BITS
                if noted != before or noted != after:
                    if before == NONE and noted != NONE:
                        when = became_zero(old, lam)
                        last_change = max(last_change, when)
                        recent += math.exp((steps - when) * _LOG_FADE)
                    if before != after:
                        last_change = steps
                        recent += 1.0
                    if not is_plus:
                        signs[j] = after
                        continue
                    if signs[j] & ON_LIST == 0:
                        listed[n_listed] = j
                        n_listed += 1
                    signs[j] = after | ON_LIST
            w[end_of_w, 0] += g * bias
            updated[i - 1] = end > begin or bias != 0.0
        inverse, inverse_free = inverse_curvatures(steps, f, k)
        cut = new_cut
        if averaged:
            w[end_of_w, 1] -= inverse_free * w[end_of_w, 0] / new_unit
            lazy.add_step(inverse, cut, new_unit, sums, scalars)
            unit, now = lazy.unit_of(scalars), now + 1

        if not is_plus:
            continue
        retain_row(
            indices, values, begin, end, y, c, loss,
            last, ring_starts, ring_indices, ring_values, ring_rows,
        )  # fmt: skip
        last += 1
        if last - first > k[RETAIN]:
            first += 1
        # Iterates since the last change: also the one before this row, and the one after it.
        if steps >= k[NEXT_TRY] and steps - last_change + 1 >= k[STABLE]:
            # The known changes; now check the weights that no row touched.
            k[STEPS], k[LAST_CHANGE], k[LISTED], f[RECENT] = steps, last_change, n_listed, recent
            seen = n_listed
            sweep(w, signs, f, k, listed)
            last_change, n_listed, recent = k[LAST_CHANGE], k[LISTED], f[RECENT]
            if steps - last_change + 1 >= k[STABLE]:
                wants = LOCAL_PHASE
                break
            # Not before as many more rows as this took steps, so that it costs O(1) per row.
            k[NEXT_TRY] = steps + seen

    f[RECENT] = recent
    k[SAMPLES], k[STEPS], k[LAST_CHANGE], k[LISTED] = samples, steps, last_change, n_listed
    k[FIRST], k[LAST], k[WANTS] = first, last, wants
    return i
