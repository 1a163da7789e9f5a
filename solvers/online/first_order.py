"""Stochastic gradient descent: SGD, its proximal form SPG, and OGD.

| algorithm | step t on a row (h, y) of weight c                                               |
|-----------|----------------------------------------------------------------------------------|
| sgd       | w <- (1 - mu rho) w - mu c Q'(h.w; y) h, the slope at the old weights            |
| spg       | w <- (1 - mu rho) w - mu c Q'(h.w; y) h, the slope at the new weights            |
| ogd       | w <- w + c (C / sqrt t) y h where 1 - y h.w > 0                                  |

The first two are eqs. (32) and (33) of Ying, Yuan, Sayed, "Online dual coordinate ascent learning"
(2016), for R = |w|^2 / 2; the second is the dual step of that paper with mu in place of alpha(N).
OGD is that of Zinkevich (2003) for the hinge loss, as in the appendix of Le Thi, Ho, "Online
learning based on online DCA and application to online classification" (2020); t counts all rows of
positive weight.

w is stored as `scale` v, so the factor 1 - mu rho costs O(1). The average, sum_n kappa^(N-n) w_n /
S_N, is stored as k (P v + z) / S, and P v is moved into z when `scale` is small: see
averaged_table.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.losses.loss_kernels import dual_argmin, loss_at, loss_slope, loss_value
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.online import averaged_table as table
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner, loss_of
from dualstream.solvers.protocols.learner import RESULTS, Outcome
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import CACHED, SMALL_NORM, SMALL_STEP, prefetch, prior_odds

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
SCALE, AVG_P, AVG_K, AVG_S = range(4)
KEEP, STEP, KAPPA, BIAS, LOSS = range(4, 9)
POSITIVE = LOSS + 6
"""Weights of positive and of negative labels so far, state of `intercept: prior`."""
N_FLOATS = POSITIVE + 2
assert SAMPLES == 0
STEPS = 1
AVERAGED, BINARY, RULE, PRIOR = range(2, 6)
N_INTS = 6
SGD, SPG, OGD = range(3)


class FirstOrder(TableLearner):
    """The learner of `algorithm: sgd`, `spg` and `ogd`; `spec` is resolved."""

    STATE_FLOATS = {"scale": SCALE, "average_p": AVG_P, "average_k": AVG_K, "average_s": AVG_S}
    STATE_INTS = {"samples": SAMPLES, "steps": STEPS}
    COLUMNS = ("v", "z")
    PRIOR_AT = POSITIVE

    def __init__(self, spec: Mapping[str, Any]) -> None:
        rule = ("sgd", "spg", "ogd").index(spec["algorithm"])
        loss = make_loss("hinge") if rule == OGD else loss_of(spec)
        average = spec.get("average")
        # kappa = 0 averages one iterate: the last one, which is served anyway.
        kappa = average["kappa"] if average else 0.0
        super().__init__(spec, loss, N_FLOATS, N_INTS, 2 if kappa > 0.0 else 1)
        floats, ints = self._floats, self._ints
        floats[SCALE] = floats[AVG_K] = 1.0
        if rule == OGD:
            floats[KEEP], floats[STEP] = 1.0, spec["C"]
        else:
            floats[KEEP], floats[STEP] = 1.0 - spec["mu"] * spec["rho"], spec["mu"]
        floats[KAPPA], floats[BIAS] = kappa, self._features.bias
        floats[LOSS:POSITIVE] = loss.numbers
        ints[AVERAGED], ints[BINARY], ints[RULE] = kappa > 0.0, self._binary, rule
        ints[PRIOR] = self._features.has_prior

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        learn_rows(batch.arrays, out.arrays, self._w, self._floats, self._ints)

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._w, self._floats, self._ints
        )
        return scores

    def _served_of(self, rows: Floats) -> Floats:
        fv, fz = served_factors(self._floats, self._ints)
        served: Floats = fv * rows[:, 0] + fz * rows[:, -1]
        return served

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from weights of a refit; the constant step mu does not change."""
        floats = self._floats
        self._w[:, 0], floats[SCALE] = weights, 1.0
        if self._ints[AVERAGED]:
            self._w[:, 1] = 0.0
            # The average of these weights alone.
            floats[AVG_P] = floats[AVG_K] = floats[AVG_S] = 1.0


@kernel
def served_factors(f: RO_F8, k: RO_I8) -> tuple[float, float]:
    """fv and fz: the served weights are fv v + fz z."""
    if k[AVERAGED] != 0:
        fz = f[AVG_K] / f[AVG_S] if f[AVG_S] > 0.0 else 0.0
        return fz * f[AVG_P], fz
    return f[SCALE], 0.0


@kernel
def score_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, scores: F8, w: RO_F8_2D, f: RO_F8, k: RO_I8
) -> None:
    """Scores (n,) by the served weights, summed like in learn_rows."""
    fv, fz = served_factors(f, k)
    for i in range(scores.shape[0]):
        dv, dz, _ = table.row_products(indices, values, indptr[i], indptr[i + 1], w, f[BIAS])
        scores[i] = fv * dv + fz * dz
        if k[PRIOR] != 0:
            scores[i] += prior_odds(f, POSITIVE)


@kernel
def learn_rows(rows: ROWS, out: RESULTS, w: F8_2D, f: F8, k: I8) -> None:
    """Score and learn every row: the step of the table in the module docstring.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; labels are valid for the task, flags False initially
    w       (width, 1 or 2)          v, and z where averaged; the last row is the intercept's
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    Cost O(entries) per row, and O(width) once per 1e3-fold decay of `scale` (1e30 if not averaged).
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    scale, avg_p, avg_k, avg_s = f[SCALE], f[AVG_P], f[AVG_K], f[AVG_S]
    keep, step, kappa, bias = f[KEEP], f[STEP], f[KAPPA], f[BIAS]
    numbers = loss_at(f, LOSS)
    samples, steps = k[SAMPLES], k[STEPS]
    averaged, binary, rule = k[AVERAGED] != 0, k[BINARY] != 0, k[RULE]
    flush_below = 1e-3 if averaged else 1e-30
    fv, fz = served_factors(f, k)
    n = labels.shape[0]
    is_far = w.shape[0] * w.shape[1] > CACHED
    has_prior, odds = k[PRIOR] != 0, 0.0

    for i in range(n):
        begin, end = indptr[i], indptr[i + 1]
        if is_far and i + 1 < n:
            for p in range(end, indptr[i + 2]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        # The score, by the served weights.
        dv, dz, hh = table.row_products(indices, values, begin, end, w, bias)
        score = fv * dv + fz * dz
        if has_prior:
            odds = prior_odds(f, POSITIVE)
            score += odds
        loss = loss_value(score, y, numbers)
        scores[i], losses[i] = score, loss
        if not (abs(score) < math.inf and loss < math.inf):
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue
        if c == 0.0:
            samples += 1
            continue

        # The step.
        new_scale = keep * scale
        m, s = scale * dv, 0.0
        if has_prior:
            m += odds
        if rule == SGD:
            tau = -loss_slope(m, y, numbers)
            size = step * c * tau
        elif rule == SPG:
            m, s = new_scale * dv, step * c * hh
            if has_prior:
                m += odds
            tau = dual_argmin(m, s, y, numbers)
            size = step * c * tau
        else:
            size = c * (step / math.sqrt(steps + 1.0)) * y if loss > 0.0 else 0.0
        is_due = new_scale < flush_below
        shrink, new_p = 1.0, avg_p
        if is_due:
            shrink, new_scale, new_p = new_scale, 1.0, 0.0
        g = size / new_scale
        pg = new_p * g
        new_k = fade = avg_k * kappa
        if averaged:
            if fade < 1e-100:
                new_p *= fade
                new_k = 1.0
            new_p += new_scale / new_k

        # Write nothing until all numbers are known to be finite.
        finite = (
            abs(m) < math.inf
            and s < math.inf
            and abs(g) < math.inf
            and abs(pg) < math.inf
            and new_p < math.inf
        )
        if finite and not (abs(g) < SMALL_STEP and abs(pg) < SMALL_STEP and hh < SMALL_NORM):
            finite = table.stays_finite(indices, values, begin, end, w, bias, g, pg, shrink)
        if finite and is_due and averaged:
            finite = table.flush_is_finite(w, avg_p)
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue

        # Write the result.
        if is_due:
            table.flush(w, avg_p, shrink)
        if averaged and new_k != fade:
            pg *= fade
            table.scale_average(w, fade)
        if g != 0.0:
            table.add_row(indices, values, begin, end, w, bias, g, pg)
            updated[i] = end > begin or bias != 0.0
        if has_prior:
            f[POSITIVE if y > 0.0 else POSITIVE + 1] += c
        samples += 1
        steps += 1
        scale, avg_p, avg_k = new_scale, new_p, new_k
        if averaged:
            avg_s = kappa * avg_s + 1.0
            fz = avg_k / avg_s
            fv = fz * avg_p
        else:
            fv = scale

    f[SCALE], f[AVG_P], f[AVG_K], f[AVG_S] = scale, avg_p, avg_k, avg_s
    k[SAMPLES], k[STEPS] = samples, steps
