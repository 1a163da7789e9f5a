"""Kernels of splines.

In every kernel, for S columns and KNOTS knots a column
    k        see dense_columns.py, then ROWS to SAMPLES below
    f        (3,)        the intercept and its curvature, see below
    knots (S, KNOTS), n_knots (S,)   the function of each column is linear between its knots and
                         constant beyond the outer ones
    ordinates, curvatures (S KNOTS,)   the function and its curvature at each knot
    ring     (W, S)      float32: values of the last rows, from which knots are placed
    at, share (R, S)     of R rows, for each column that has knots: the knot below the value, as an
                         index of `ordinates`, and how far the value is from there to the next knot
    used     (R,)        columns in use after each of these rows
"""

import math

import numpy as np

from dualstream.solvers.jit import F4, F4_2D, F8, F8_2D, I8, I8_2D, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import logistic_root
from dualstream.solvers.nonlinear import dense_columns
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid

ROWS, RING_AT, LEARNED, NEXT_KNOTS = range(
    dense_columns.N_OF_COLUMNS, dense_columns.N_OF_COLUMNS + 4
)
"""Rows in the ring, the place of the next, rows learned, and the number of these at which knots are
placed next."""
N_INTS = dense_columns.N_OF_COLUMNS + 4
INTERCEPT, CURVATURE, MEAN_SQUARE = range(3)
"""MEAN_SQUARE: for numbers, of the running errors."""
N_FLOATS = 3
KNOTS = 16
DONE, NEEDS_COLUMN, NEEDS_KNOTS, NEEDS_REVIEW = range(4)
"""Why `locate_rows` returns; only NEEDS_COLUMN comes before the row."""

_DAMPING, _RATE = 0.1, 0.01


@kernel
def locate_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    weights: RO_F8,
    start: int,
    keys: I8,
    columns: I8,
    counts: I8,
    k: I8,
    x: F8,
    knots: F8_2D,
    n_knots: I8,
    ring: F4_2D,
    at: I8_2D,
    share: F8_2D,
    used: I8,
) -> tuple[int, int]:
    """Locate at most R rows from `start` on among the knots, and enter those of positive weight in
    the ring; the next row and why it stopped.
    """
    end = min(weights.shape[0], start + used.shape[0])
    for i in range(start, end):
        learns, row = weights[i] > 0.0, i - start
        if learns and (
            dense_columns.count_features(
                indices, indptr[i], indptr[i + 1], ring.shape[1], keys, columns, counts, k
            )
            == 0
        ):
            return i, NEEDS_COLUMN
        dense_columns.dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        used[row], q = k[dense_columns.COLUMNS], 0
        for j in range(k[dense_columns.COLUMNS]):
            if n_knots[j] == 0:
                continue
            low, high = 0, n_knots[j] - 1
            part = 0.0
            if high > 0:
                while high - low > 1:
                    middle = (low + high) >> 1
                    if x[j] >= knots[j, middle]:
                        low = middle
                    else:
                        high = middle
                part = clip((x[j] - knots[j, low]) / (knots[j, low + 1] - knots[j, low]), 0.0, 1.0)
            at[row, q], share[row, q] = KNOTS * j + low, part
            q += 1
        if not learns:
            continue
        for j in range(k[dense_columns.COLUMNS]):
            ring[k[RING_AT], j] = x[j]
        k[RING_AT] = k[RING_AT] + 1 if k[RING_AT] + 1 < ring.shape[0] else 0
        k[ROWS] = min(k[ROWS] + 1, ring.shape[0])
        k[LEARNED] += 1
        if k[dense_columns.SINCE_REVIEW] >= dense_columns.REVIEW_ROWS:
            return i + 1, NEEDS_REVIEW
        if k[LEARNED] >= k[NEXT_KNOTS]:
            return i + 1, NEEDS_KNOTS
    return end, DONE


@kernel(inline=True)
def score_at(with_knots: int, at: RO_I8, share: RO_F8, f: RO_F8, ordinates: RO_F8) -> float:
    """The score of one row."""
    score = float(f[INTERCEPT])
    for q in range(with_knots):
        score += (1.0 - share[q]) * ordinates[at[q]]
        if share[q] > 0.0:
            score += share[q] * ordinates[at[q] + 1]
    return score


@kernel(inline=True)
def curve(knot: int, part: float, c: float, decay: float, curvatures: F8) -> float:
    """Add to the curvature of a knot; the square of the step's direction in the row, 0 for none."""
    if part == 0.0:
        return 0.0
    curvatures[knot] = decay * curvatures[knot] + c * part * part
    return float(part * part / (_DAMPING + curvatures[knot]))


@kernel
def learn_rows(
    labels: RO_F8,
    weights: RO_F8,
    start: int,
    end: int,
    learned: int,
    scores: F8,
    losses: F8,
    is_binary: bool,
    reach: float,
    decay: float,
    with_knots: int,
    at: I8_2D,
    share: F8_2D,
    used: I8,
    f: F8,
    ordinates: F8,
    curvatures: F8,
) -> None:
    """Score rows `start` to `end` and take their Newton steps, after `learned` rows.

    The step is implicit: for classes the root of the dual step along the diagonal Newton direction,
    for numbers the error divided by 1 plus its square. A target counts as one within `reach` root
    mean square errors of the score. The intercept starts as the first target.
    """
    for i in range(start, end):
        knot, part = at[i - start], share[i - start]
        c, y = weights[i], labels[i]
        score = score_at(with_knots, knot, part, f, ordinates)
        scores[i] = score
        if is_binary:
            losses[i] = log1pexp(-score if y > 0.0 else score)
        else:
            losses[i] = 0.5 * (y - score) * (y - score)
        if not c > 0.0:
            continue
        target, bend = y, c
        if is_binary:
            p = sigmoid(score)
            bend = c * p * (1.0 - p)
        else:
            if learned == 0:
                f[INTERCEPT] = score = y
            scale = math.sqrt(f[MEAN_SQUARE])
            if scale > 0.0:
                target = clip(y, score - reach * scale, score + reach * scale)
            error = target - score
            rate = max(1.0 / (learned + 1.0), _RATE)
            f[MEAN_SQUARE] += rate * (error * error - f[MEAN_SQUARE])
        learned += 1
        of_column = 1.0 / math.sqrt(max(1.0, float(used[i - start])))
        f[CURVATURE] = decay * f[CURVATURE] + bend
        square = 1.0 / (_DAMPING + f[CURVATURE])
        for q in range(with_knots):
            low, high = (1.0 - part[q]) * of_column, part[q] * of_column
            square += curve(knot[q], low, bend, decay, curvatures)
            if part[q] > 0.0:
                square += curve(knot[q] + 1, high, bend, decay, curvatures)
        if is_binary:
            sign = 1.0 if y > 0.0 else -1.0
            _, dual = logistic_root(sign * score, c * square)
            step = c * sign * dual
        else:
            step = c * (target - score) / (1.0 + c * square)
        f[INTERCEPT] += step / (_DAMPING + f[CURVATURE])
        for q in range(with_knots):
            low, high = (1.0 - part[q]) * of_column, part[q] * of_column
            if low > 0.0:
                ordinates[knot[q]] += step * low * of_column / (_DAMPING + curvatures[knot[q]])
            if high > 0.0:
                above = _DAMPING + curvatures[knot[q] + 1]
                ordinates[knot[q] + 1] += step * high * of_column / above


@kernel
def place_knots(values: F4, knots: F8) -> int:
    """Place knots (KNOTS,) at quantiles of sorted values (n > 0), the rest 0; their number."""
    n, count = values.shape[0], 0
    for q in range(KNOTS):
        knots[q] = 0.0
    for q in range(KNOTS):
        value = np.float64(values[q * (n - 1) // (KNOTS - 1)])
        if count == 0 or value > knots[count - 1]:
            knots[count] = value
            count += 1
    return count


@kernel
def carry_over(n_old: int, old: RO_F8, count: int, new: RO_F8, ordinates: F8, out: F8) -> None:
    """Move the `ordinates` (KNOTS,) of a function from `n_old` old knots to `count` new ones.

    out (KNOTS,) is scratch.
    """
    for q in range(KNOTS):
        out[q] = 0.0
        if q < count and n_old == 1:
            out[q] = ordinates[0]
        elif q < count and n_old > 1:
            a = 0
            while a < n_old - 2 and new[q] >= old[a + 1]:
                a += 1
            part = clip((new[q] - old[a]) / (old[a + 1] - old[a]), 0.0, 1.0)
            out[q] = (1.0 - part) * ordinates[a] + part * ordinates[a + 1]
    for q in range(KNOTS):
        ordinates[q] = out[q]


@kernel
def score_rows(
    with_knots: int, at: I8_2D, share: F8_2D, f: RO_F8, ordinates: RO_F8, scores: F8
) -> None:
    """Scores (R,) of rows."""
    for i in range(scores.shape[0]):
        scores[i] = score_at(with_knots, at[i], share[i], f, ordinates)
