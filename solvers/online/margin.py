"""Perceptron, ROMMA, ALMA and Passive-Aggressive: one step per row whose margin is too small.

As in the appendix of Le Thi, Ho, "Online learning based on online DCA and application to online
classification" (2020), with m = y w.x:

    perceptron           if m <= 0:  w += y x
    romma                if m <= 0:  w = the vector of least norm with y w.x >= 1 and
                         w.w_t >= |w_t|^2 (Li, Long 2002); the first one is y x, and where x and
                         w_t are parallel (to 1e-6 rad) there is no step
    alma                 if (1 - alpha) B sqrt((p - 1) / k) > m / |x|, B = 1 / alpha:
                         w += C / sqrt((p - 1) k) y x / |x|, then w /= max(1, |w|), and k += 1,
                         k = 1 at first; |x| is left out unless `normalize`
    passive_aggressive   if l = max(0, 1 - m) > 0:  w += tau y x with (Crammer et al. 2006)
                         pa: tau = l / |x|^2; pa1: at most C; pa2: tau = l / (|x|^2 + 1 / (2 C))

On labels that no weights separate, ROMMA's |w| grows without bound, by a factor at each mistake.
Above 1e120, where the 1 of its margin is far below rounding for any ordinary row, w is divided by
2^256, which changes no prediction then or later.

The appendix has k = k + l_t for ALMA; Gentile (2002) and the published results have k + 1, which is
used here. Its p only scales the steps: all norms are the 2-norm. A row of zeros never causes a
step.

A row of weight c multiplies its loss by c: its C is c C (alma, pa1, pa2), its y x is c y x
(perceptron). Algorithms without a factor of the loss (romma, pa) move the share min(1, c) of the
way to the new weights, because there the same row again causes no step; k grows by that share too.
The loss of an Outcome is the hinge loss max(0, 1 - m), for every algorithm.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I8, Floats, kernel
from dualstream.solvers.online import plain_learner as plain
from dualstream.solvers.online.plain_learner import ROUNDS, SCALE, TINY_SQUARE, PlainLearner
from dualstream.solvers.online.table_learner import SAMPLES
from dualstream.solvers.protocols.learner import RESULTS, Outcome
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import fold

# Indices of a learner's scalars: first its state, then constants of its specification.
assert (SCALE, SAMPLES, ROUNDS) == (0, 0, 1)
NORM2, STEPS, SUMMED = range(1, 4)
C, ALPHA, P, BIAS = range(4, 8)
N_FLOATS = 8
KIND, NORMALIZE, RESUM_EVERY = range(2, 5)
N_INTS = 5
PERCEPTRON, PA, PA1, PA2, ROMMA, ALMA = range(6)

# sin^2 of an angle that counts as 0.
_PARALLEL = 1e-12
# The relative error of ROMMA's |w|^2 grows like |w|^2; after this growth it is recomputed.
_GROWTH = 1e3
_MIN_SCALE, _MAX_SCALE = 1e-30, 1e30
# ROMMA's |w|^2 from which w is multiplied by _SMALLER.
_OUTSIZED, _SMALLER = 1e240, 2.0**-256


class Perceptron(PlainLearner):
    """The learner of `algorithm: perceptron`; `spec` is resolved."""

    kind: ClassVar[int] = PERCEPTRON
    STATE_FLOATS = {}
    STATE_INTS = {"samples": SAMPLES, "rounds": ROUNDS}

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec, N_FLOATS, N_INTS)
        self._floats[C], self._floats[P] = spec.get("C", math.inf), 2.0
        self._floats[ALPHA], self._floats[STEPS] = 1.0, 1.0
        self._floats[BIAS] = self._features.bias
        self._ints[KIND] = self.kind
        self._ints[RESUM_EVERY] = max(1000, self._features.width)

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        learn_rows(batch.arrays, out.arrays, self._v, self._w, self._floats, self._ints)


class PassiveAggressive(Perceptron):
    """The learner of `algorithm: passive_aggressive`."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._ints[KIND] = {"pa": PA, "pa1": PA1, "pa2": PA2}[spec["variant"]]

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from weights of a refit; there is no step size to adjust."""
        self._v[:] = weights


class Romma(Perceptron):
    """The learner of `algorithm: romma`. Its weights are scale v."""

    kind = ROMMA
    STATE_FLOATS = {"scale": SCALE, "norm_squared": NORM2, "norm_squared_summed": SUMMED}


class Alma(Romma):
    """The learner of `algorithm: alma`. Its weights are scale v."""

    kind = ALMA
    STATE_FLOATS = {"scale": SCALE, "norm_squared": NORM2, "k": STEPS}

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._floats[ALPHA], self._floats[P] = spec["alpha"], spec["p"]
        self._ints[NORMALIZE] = spec["normalize"]


@kernel(inner=True)
def additive_step(
    m: float, loss: float, x2: float, norm: float, kind: int, c_step: float, c: float
) -> float:
    """beta of w += beta y x for perceptron and PA; 0 for no step."""
    if kind == PERCEPTRON:
        return c if m <= 0.0 else 0.0
    if loss == 0.0:
        return 0.0
    if kind == PA2:
        return loss / (x2 + 0.5 / (c * c_step))
    full = loss / x2 if x2 >= TINY_SQUARE else loss / norm / norm
    return min(1.0, c) * full if kind == PA else min(c * c_step, full)


@kernel(inner=True)
def romma_step(m: float, norm: float, ww: float, share: float) -> tuple[float, float, float]:
    """a, beta and |w'|^2 of w' = a w + beta y x; a = 1 and beta = 0 for no step.

    The appendix's fractions over |x|^2 |w|^2 sin^2, with lengths and the cosine in place of fourth
    powers, which would overflow. By the two constraints, both tight, the whole step has |w'|^2 =
    (|w|^2 + (1 - 2 m) / |x|^2) / sin^2, a sum without cancellation.
    """
    if ww == 0.0:
        return 1.0, share, (share * norm) * (share * norm)
    length = math.sqrt(ww)
    cosine = m / norm / length
    sin2 = (1.0 - cosine) * (1.0 + cosine)
    if sin2 <= _PARALLEL:
        return 1.0, 0.0, ww
    a = (1.0 - cosine / (norm * length)) / sin2
    beta = (1.0 - m) / norm / norm / sin2
    whole = (ww + (1.0 - 2.0 * m) / norm / norm) / sin2
    return 1.0 + share * (a - 1.0), share * beta, ww + share * share * (whole - ww)


@kernel
def learn_rows(rows: ROWS, out: RESULTS, v: F8, table: F8_2D, f: F8, k: I8) -> None:
    """Score and learn all rows; labels are -1, 0 or 1.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; its flags must be False initially
    v       (width,)      the weights over `scale`; the last is the intercept's
    table   (width, 1)    the same memory
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    Cost O(entries) per row. ROMMA and ALMA process all of v every RESUM_EVERY >= width rows, when
    scale leaves [1e-30, 1e30], and when ROMMA's |w|^2 has grown a thousandfold.
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    n = labels.shape[0]
    scale, ww, steps, summed = f[SCALE], f[NORM2], f[STEPS], f[SUMMED]
    samples, rounds = k[SAMPLES], k[ROUNDS]
    c_step, bias, kind = f[C], f[BIAS], k[KIND]
    is_derived = kind == ROMMA or kind == ALMA
    normalize = k[NORMALIZE] != 0
    alma_margin = (1.0 - f[ALPHA]) / f[ALPHA] * math.sqrt(f[P] - 1.0)
    alma_step = c_step / math.sqrt(f[P] - 1.0)
    until_fold = k[RESUM_EVERY] - rounds % k[RESUM_EVERY]

    for i in range(n):
        begin, end = indptr[i], indptr[i + 1]
        y, c = labels[i], weights[i]
        if y == 0.0:
            y = -1.0

        dot, x2 = plain.row_products(indices, values, begin, end, v, table, bias)
        score = scale * dot
        m = y * score
        loss = max(0.0, 1.0 - m)
        norm = plain.norm_of(values, begin, end, bias, x2)
        finite = abs(score) < math.inf

        # The step: w' = shrink (a w + beta y x).
        a, beta, shrink, new_ww = 1.0, 0.0, 1.0, ww
        share = min(1.0, c)
        if c > 0.0 and norm > 0.0 and finite:
            if not is_derived:
                beta = additive_step(m, loss, x2, norm, kind, c_step, c)
            elif kind == ROMMA:
                if m <= 0.0:
                    a, beta, new_ww = romma_step(m, norm, ww, share)
            else:
                d = norm if normalize else 1.0
                root = math.sqrt(steps)
                if alma_margin / root > m / d:
                    beta = c * alma_step / root / d
                    long = beta * norm
                    new_ww = ww + 2.0 * beta * m + long * long
                    if new_ww < 0.0:
                        new_ww = 0.0
                    if new_ww > 1.0:
                        shrink = 1.0 / math.sqrt(new_ww)

        if beta != 0.0:
            # Write nothing until all numbers are known to be finite.
            old_scale = scale * a
            new_scale = old_scale * shrink
            g = y * beta / old_scale
            finite = abs(g) < math.inf and new_ww < math.inf and 0.0 < new_scale < math.inf
            finite = finite and plain.stays_finite(indices, values, begin, end, v, bias, g, x2)
            if finite:
                plain.add_row(indices, values, begin, end, v, bias, g)
                updated[i] = True
                if is_derived:
                    scale, ww = new_scale, new_ww
                    if kind == ALMA:
                        ww, steps = min(ww, 1.0), steps + share
                    elif ww > _OUTSIZED:
                        scale *= _SMALLER
                        ww *= _SMALLER * _SMALLER
                    is_due = kind == ROMMA and ww > _GROWTH * summed
                    if is_due or not _MIN_SCALE < scale < _MAX_SCALE:
                        ww = summed = fold(v, scale)
                        scale = 1.0
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue
        scores[i], losses[i] = score, loss
        samples += 1
        if c == 0.0:
            continue
        rounds += 1
        until_fold -= 1
        if until_fold == 0:
            until_fold = k[RESUM_EVERY]
            if is_derived:
                ww = summed = fold(v, scale)
                scale = 1.0

    f[SCALE], f[NORM2], f[STEPS], f[SUMMED] = scale, ww, steps, summed
    k[SAMPLES], k[ROUNDS] = samples, rounds
