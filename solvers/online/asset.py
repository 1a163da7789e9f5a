"""ASSET and ASSET*: projected stochastic subgradient steps for a support vector machine.

    min over g, b of  (lambda / 2) |g|^2 + mean of l(y (g'h + b)),   l hinge by default

Lee and Wright, "ASSET: Approximate stochastic subgradient estimation training for support vector
machines" (2012), and Algorithm 3 of Lee's thesis (2011); h is a row after its feature map. With R,
D_Z = sqrt(R^2 + B^2) (R without a bound), D_G, and step j = 1, 2, ... over rows of positive weight
c,

    eta_j = D_Z / (D_G sqrt(j))       ASSET  (`step: sqrt`)
    eta_j = 1 / (lambda j)            ASSET* (`step: strongly_convex`), without b
    g <- (1 - eta lambda) g - eta c y h l'(y (g'h + b)), then projected to the ball |g| <= R
    b <- b - eta c y [the same], then clipped to [-B, B]

Equation (3.1) takes any convex loss l of the margin. So `loss` is any loss that is a function of
y z for y = -1 or 1: all but `quantile`. A regression has no margin. The thesis gives R and D_G for
the hinge loss, l' = -1 where the margin is below 1:

    R = 1 / sqrt(lambda),   D_G^2 = the mean of |h|^2 (+ 1 with b or a constant 1)

Here they follow from what they stand for. Strong duality gives lambda |g|^2 <= l(0) at the optimum,
so R = sqrt(l(0) / lambda). D_G^2 bounds the mean of |l' h|^2 over all |g| <= R and |b| <= B, eq.
(3.24): with the largest |l'|, which for `squared` and `squared_hinge` grows as a + a (R |h| + B).

With `bound` B the intercept is b, not penalised. Without it the intercept is a last coordinate of
1, as for all learners. D_G^2 is a running mean over the first 100 rows and is fixed afterwards,
because a stream has no mean known in advance. `average: {"from": K}` serves the mean of the
iterates from step K on, weighted by eta, as in the paper; `{"kappa": k}` serves the fading average
of all learners.

A refit can replace g (`_take_weights`). Then D, an upper bound of the distance to the best weights,
replaces D_Z, and j restarts.

g is stored as `scale` v, and the average as k (P v + z) / S with P v moved into z when `scale` is
small: see averaged_table.py. |g|^2 is updated with each step and recomputed
from time to time.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, RefitError
from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, Floats, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_slope, loss_value
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.online import averaged_table as table
from dualstream.solvers.online.table_learner import SAMPLES, TableLearner, loss_of
from dualstream.solvers.protocols.learner import RESULTS, Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import SMALL_NORM, SMALL_STEP, clip

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
SCALE, SQUARE, NORM_SUM, AVG_P, AVG_K, AVG_S, B, AVG_B = range(8)
LAMBDA, KAPPA, BOUND, BIAS = range(8, 12)
# D, which replaces D_Z after a refit; 0 before.
DISTANCE = 12
# R; the largest |l'| is SLOPE + GROWTH |z|.
RADIUS, SLOPE, GROWTH, LOSS = range(13, 17)
N_FLOATS = LOSS + 6
assert SAMPLES == 0
STEPS, NORM_ROWS = 1, 2
AVERAGED, FROM, STRONGLY_CONVEX, RESUM_EVERY, HINGE = range(3, 8)
N_INTS = 8

# Number of rows in the mean D_G^2, and the minimum of that mean.
NORM_OF = 100
_MIN_SQUARE = 1e-12


class Asset(TableLearner):
    """The learner of `algorithm: asset`; `spec` is resolved."""

    STATE_FLOATS = {
        "scale": SCALE,
        "square": SQUARE,
        "norm_sum": NORM_SUM,
        "average_p": AVG_P,
        "average_k": AVG_K,
        "average_s": AVG_S,
        "b": B,
        "average_b": AVG_B,
    }
    STATE_INTS = {"samples": SAMPLES, "steps": STEPS, "norm_rows": NORM_ROWS}
    COLUMNS = ("v", "z")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        average = spec["average"] or {"kappa": 0.0}
        # kappa = 0 averages one iterate: the last one, which is served anyway.
        averaged = average.get("kappa") != 0.0
        loss = loss_of(spec) if "loss" in spec else make_loss("hinge")
        super().__init__(spec, loss, N_FLOATS, N_INTS, 2 if averaged else 1)
        floats, ints = self._floats, self._ints
        floats[RADIUS] = math.sqrt(loss.value(0.0, 1.0)) / math.sqrt(spec["lambda"])
        is_bounded = math.isfinite(loss.hi)
        floats[SLOPE] = loss.hi if is_bounded else 1.0 / loss.gamma
        floats[GROWTH], floats[LOSS:] = 0.0 if is_bounded else floats[SLOPE], loss.numbers
        ints[HINGE] = loss.name == "hinge"
        floats[SCALE] = floats[AVG_K] = 1.0
        floats[LAMBDA], floats[KAPPA] = spec["lambda"], average.get("kappa", 1.0)
        floats[BOUND] = spec["bound"] or 0.0
        floats[BIAS] = 0.0 if spec["bound"] else self._features.bias
        ints[AVERAGED], ints[FROM] = averaged, average.get("from", 0)
        ints[STRONGLY_CONVEX] = spec["step"] == "strongly_convex"
        ints[RESUM_EVERY] = max(10_000, self._features.width)

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
        fv, fz, b = served_factors(self._floats, self._ints)
        served: Floats = fv * rows[:, 0] + fz * rows[:, -1]
        served[-1] += b
        return served

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from weights of a refit, with smaller steps: steps of D_Z would undo them.

        `sqrt`: D = reach replaces D_Z, and j restarts at 1. `strongly_convex`: a step 1 / (lambda
        j) makes a row the j-th part of the weights, so j continues from `rows`.
        """
        floats, ints = self._floats, self._ints
        self._w[:] = 0.0
        self._w[:, 0], floats[SCALE], floats[B] = weights, 1.0, 0.0
        radius = floats[RADIUS]
        if (bound := floats[BOUND]) > 0.0:
            floats[B] = min(max(float(weights[-1]), -bound), bound)
            self._w[-1, 0] = 0.0
        square = square_of(self._w)
        if not square < math.inf:
            raise RefitError("the weights are too large")
        if square > radius * radius:
            floats[SCALE] = radius / math.sqrt(square)
            square = radius * radius
        floats[SQUARE] = square
        # The average of these weights alone; with `from`, of none yet.
        counts = 1.0 if ints[AVERAGED] and not ints[FROM] else 0.0
        floats[AVG_P], floats[AVG_K], floats[AVG_S] = counts * floats[SCALE], 1.0, counts
        floats[AVG_B] = counts * floats[B]
        if ints[STRONGLY_CONVEX]:
            ints[STEPS] = rows
        else:
            ints[STEPS] = 0
            cold = math.sqrt(radius * radius + bound * bound)
            floats[DISTANCE] = min(max(reach, 1e-150), cold)

    def state(self) -> State:
        """See Learner. D is included once it exists."""
        state = super().state()
        if self._floats[DISTANCE] > 0.0:
            state["distance"] = np.array(self._floats[DISTANCE])
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        has_distance = "distance" in state
        if has_distance:
            check_arrays(state, {"distance": ()})
            if not state["distance"] > 0.0:
                raise CorruptState(f"distance is {float(state['distance'])}")
        super().restore(state)
        self._floats[DISTANCE] = state["distance"] if has_distance else 0.0


@kernel
def served_factors(f: RO_F8, k: RO_I8) -> tuple[float, float, float]:
    """fv, fz and b: the served weights are fv v + fz z, and b is added to the score."""
    if k[AVERAGED] != 0 and f[AVG_S] > 0.0:
        fz = f[AVG_K] / f[AVG_S]
        return fz * f[AVG_P], fz, f[AVG_B] / f[AVG_S]
    return f[SCALE], 0.0, f[B]


@kernel
def score_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, scores: F8, w: RO_F8_2D, f: RO_F8, k: RO_I8
) -> None:
    """Scores (n,) by the served weights, summed like in learn_rows."""
    fv, fz, b = served_factors(f, k)
    for i in range(scores.shape[0]):
        dv, dz, _ = table.row_products(indices, values, indptr[i], indptr[i + 1], w, f[BIAS])
        scores[i] = fv * dv + fz * dz + b


@kernel
def square_of(w: RO_F8_2D) -> float:
    """|v|^2."""
    total = 0.0
    for j in range(w.shape[0]):
        total += w[j, 0] * w[j, 0]
    return total


@kernel
def learn_rows(rows: ROWS, out: RESULTS, w: F8_2D, f: F8, k: I8) -> None:
    """Score and learn every row: the step in the module docstring.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; labels are -1, 1, or 0 for -1, flags False initially
    w       (width, 1 or 2)          v, and z where averaged; the last row is the constant's
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    Cost O(entries) per row, and O(width) every RESUM_EVERY steps or when `scale` has decayed.
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    scale, square, norm_sum = f[SCALE], f[SQUARE], f[NORM_SUM]
    avg_p, avg_k, avg_s, b, avg_b = f[AVG_P], f[AVG_K], f[AVG_S], f[B], f[AVG_B]
    lam, kappa, bound, bias = f[LAMBDA], f[KAPPA], f[BOUND], f[BIAS]
    samples, steps, norm_rows = k[SAMPLES], k[STEPS], k[NORM_ROWS]
    averaged, first_averaged, is_strong = k[AVERAGED] != 0, k[FROM], k[STRONGLY_CONVEX] != 0
    numbers = loss_at(f, LOSS)
    radius, is_hinge = f[RADIUS], k[HINGE] != 0
    distance = math.sqrt(radius * radius + bound * bound)
    if f[DISTANCE] > 0.0:
        distance = f[DISTANCE]
    flush_below = 1e-3 if averaged else 1e-9
    fv, fz, served_b = served_factors(f, k)

    for i in range(labels.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        y, c = labels[i], weights[i]
        if y == 0.0:
            y = -1.0

        # The score, by the served weights.
        dv, dz, hh = table.row_products(indices, values, begin, end, w, bias)
        score = fv * dv + fz * dz + served_b
        if is_hinge:
            loss = max(0.0, 1.0 - y * score)
        else:
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
        new_norm_rows, new_norm_sum = norm_rows, norm_sum
        if norm_rows < NORM_OF:
            new_norm_rows += 1
            most = f[SLOPE] + f[GROWTH] * (radius * math.sqrt(hh) + bound)
            new_norm_sum += most * most * (hh + (1.0 if bound > 0.0 else 0.0))
        t = steps + 1.0
        if is_strong:
            eta, keep = 1.0 / (lam * t), 1.0 - 1.0 / t
        else:
            mean = max(new_norm_sum / new_norm_rows, _MIN_SQUARE)
            eta = distance / math.sqrt(mean * t)
            keep = 1.0 - eta * lam
        m = scale * dv
        if is_hinge:
            size = eta * c * y if y * (m + b) < 1.0 else 0.0
        else:
            size = -eta * c * loss_slope(m + b, y, numbers)
        new_scale = keep * scale
        is_due = abs(new_scale) < flush_below
        shrink, new_p = 1.0, avg_p
        if is_due:
            shrink, new_scale, new_p = new_scale, 1.0, 0.0
        g = size / new_scale
        pg = new_p * g
        new_square = max(keep * keep * square + 2.0 * size * keep * m + size * size * hh, 0.0)
        if new_square > radius * radius:
            new_scale *= radius / math.sqrt(new_square)
            new_square = radius * radius
        new_b = clip(b + size, -bound, bound)
        new_k = fade = avg_k * kappa
        counts = 0.0
        if averaged:
            if first_averaged == 0:
                counts = 1.0
            elif steps + 1 >= first_averaged:
                counts = eta
            if fade < 1e-100:
                new_p *= fade
                new_k = 1.0
            new_p += counts * new_scale / new_k
        new_s, new_avg_b = kappa * avg_s + counts, kappa * avg_b + counts * new_b

        # Write nothing until all numbers are known to be finite.
        finite = (
            abs(m) < math.inf
            and abs(g) < math.inf
            and abs(pg) < math.inf
            and abs(new_p) < math.inf
            and new_square < math.inf
            and new_norm_sum < math.inf
            and new_s < math.inf
            and abs(new_avg_b) < math.inf
            and new_scale != 0.0
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
            updated[i] = end > begin or bias != 0.0 or new_b != b
        samples += 1
        steps += 1
        scale, square, norm_sum, norm_rows = new_scale, new_square, new_norm_sum, new_norm_rows
        avg_p, avg_k, avg_s, b, avg_b = new_p, new_k, new_s, new_b, new_avg_b
        if steps % k[RESUM_EVERY] == 0:
            square = scale * scale * square_of(w)
        if averaged and avg_s > 0.0:
            fz = avg_k / avg_s
            fv, served_b = fz * avg_p, avg_b / avg_s
        else:
            fv, fz, served_b = scale, 0.0, b

    f[SCALE], f[SQUARE], f[NORM_SUM] = scale, square, norm_sum
    f[AVG_P], f[AVG_K], f[AVG_S], f[B], f[AVG_B] = avg_p, avg_k, avg_s, b, avg_b
    k[SAMPLES], k[STEPS], k[NORM_ROWS] = samples, steps, norm_rows
