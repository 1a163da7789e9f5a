"""Kernels of splines.

In every kernel, for S columns and KNOTS knots a column
    k        see dense_columns.py, then ROWS to SAMPLES below
    f        (2,)        the intercept and its curvature
    knots, weights, curvatures (S, KNOTS), n_knots (S,)   the function of each column is linear
                         between its knots and constant beyond the outer ones
    ring     (W, S)      float32: values of the last rows, from which knots are placed
    at, share (S,)       scratch: the knot below a value, and how far it is from there to the next
"""

import math

import numpy as np

from dualstream.solvers.core.loss_steps import logistic_root
from dualstream.solvers.core.scalar import clip, log1pexp, sigmoid
from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    Floats,
    Indices,
    Ints,
    b1,
    f8,
    i8,
    kernel,
    types,
    void,
)
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    N_OF_COLUMNS,
    REVIEW_ROWS,
    SINCE_REVIEW,
    Singles,
    count_features,
    dense_row,
)

ROWS, RING_AT, LEARNED, NEXT_KNOTS, SAMPLES = range(N_OF_COLUMNS, N_OF_COLUMNS + 5)
"""Rows in the ring, the place of the next, rows learned, the number of these at which knots are
placed next, and all rows."""
N_INTS = N_OF_COLUMNS + 5
INTERCEPT, CURVATURE, MEAN_SQUARE = range(3)
"""MEAN_SQUARE: for numbers, of the running errors."""
N_FLOATS = 3
KNOTS = 16
DONE, NEEDS_COLUMN, NEEDS_KNOTS, NEEDS_REVIEW = range(4)
"""Why `learn_rows` returns; only NEEDS_COLUMN comes before the row."""

_DAMPING, _REACH, _RATE = 0.1, 50.0, 0.01
_F4, _F4_2D = types.float32[::1], types.float32[:, ::1]


@kernel(void(f8, i8, F8_2D, I8, I8, F8), inline=True)
def locate(value: float, j: int, knots: Floats, n_knots: Ints, at: Ints, share: Floats) -> None:
    """Set at[j] and share[j] for a value of column j."""
    low, high = 0, n_knots[j] - 1
    if high < 1:
        at[j], share[j] = 0, 0.0
        return
    while high - low > 1:
        middle = (low + high) >> 1
        if value >= knots[j, middle]:
            low = middle
        else:
            high = middle
    width = knots[j, low + 1] - knots[j, low]
    at[j], share[j] = low, clip((value - knots[j, low]) / width, 0.0, 1.0)


@kernel(f8(F8, I8, F8, F8_2D, I8, F8_2D, I8, F8), inline=True)
def score_of(
    x: Floats,
    k: Ints,
    f: Floats,
    knots: Floats,
    n_knots: Ints,
    weights: Floats,
    at: Ints,
    share: Floats,
) -> float:
    """The score of one dense row x; sets at and share."""
    score = float(f[INTERCEPT])
    for j in range(k[COLUMNS]):
        if n_knots[j] == 0:
            continue
        locate(x[j], j, knots, n_knots, at, share)
        score += (1.0 - share[j]) * weights[j, at[j]]
        if share[j] > 0.0:
            score += share[j] * weights[j, at[j] + 1]
    return score


@kernel(f8(i8, i8, f8, f8, f8, F8_2D), inline=True)
def curve(j: int, knot: int, part: float, c: float, decay: float, curvatures: Floats) -> float:
    """Add to the curvature of a knot; the square of the step's direction in the row, 0 for none."""
    if part == 0.0:
        return 0.0
    curvatures[j, knot] = decay * curvatures[j, knot] + c * part * part
    return float(part * part / (_DAMPING + curvatures[j, knot]))


@kernel(
    types.UniTuple(i8, 2)(
        RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, i8, F8, F8, b1, f8, I8, I8, I8, I8, F8, F8, F8_2D, I8,
        F8_2D, F8_2D, _F4_2D, I8, F8,
    )
)  # fmt: skip
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    labels: Floats,
    weights: Floats,
    start: int,
    scores: Floats,
    losses: Floats,
    is_binary: bool,
    decay: float,
    keys: Ints,
    columns: Ints,
    counts: Ints,
    k: Ints,
    f: Floats,
    x: Floats,
    knots: Floats,
    n_knots: Ints,
    own: Floats,
    curvatures: Floats,
    ring: Singles,
    at: Ints,
    share: Floats,
) -> tuple[int, int]:
    """Score rows from `start` on and take their Newton steps; the next row and why it stopped.

    `own` are the weights of the knots. The step is implicit: for classes the root of the dual step
    along the diagonal Newton direction, for numbers the error divided by 1 plus its square.
    """
    for i in range(start, labels.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        c = weights[i]
        learns = c > 0.0
        if learns and (
            count_features(indices, begin, end, ring.shape[1], keys, columns, counts, k) == 0
        ):
            return i, NEEDS_COLUMN
        dense_row(indices, values, begin, end, keys, columns, k, x)
        score = score_of(x, k, f, knots, n_knots, own, at, share)
        y = labels[i]
        scores[i] = score
        if is_binary:
            losses[i] = log1pexp(-score if y > 0.0 else score)
        else:
            losses[i] = 0.5 * (y - score) * (y - score)
        k[SAMPLES] += 1
        if not learns:
            continue
        target, bend = y, c
        if is_binary:
            p = sigmoid(score)
            bend = c * p * (1.0 - p)
        else:
            scale = math.sqrt(f[MEAN_SQUARE])
            if scale > 0.0:
                target = clip(y, score - _REACH * scale, score + _REACH * scale)
            error = target - score
            rate = max(1.0 / (k[LEARNED] + 1.0), _RATE)
            f[MEAN_SQUARE] += rate * (error * error - f[MEAN_SQUARE])
        used = k[COLUMNS]
        of_column = 1.0 / math.sqrt(max(1.0, float(used)))
        f[CURVATURE] = decay * f[CURVATURE] + bend
        square = 1.0 / (_DAMPING + f[CURVATURE])
        for j in range(used):
            if n_knots[j] == 0:
                continue
            low, high = (1.0 - share[j]) * of_column, share[j] * of_column
            square += curve(j, at[j], low, bend, decay, curvatures)
            if share[j] > 0.0:
                square += curve(j, at[j] + 1, high, bend, decay, curvatures)
        if is_binary:
            sign = 1.0 if y > 0.0 else -1.0
            _, dual = logistic_root(sign * score, c * square)
            step = c * sign * dual
        else:
            step = c * (target - score) / (1.0 + c * square)
        f[INTERCEPT] += step / (_DAMPING + f[CURVATURE])
        for j in range(used):
            if n_knots[j] == 0:
                continue
            low, high = (1.0 - share[j]) * of_column, share[j] * of_column
            if low > 0.0:
                own[j, at[j]] += step * low * of_column / (_DAMPING + curvatures[j, at[j]])
            if high > 0.0:
                above = _DAMPING + curvatures[j, at[j] + 1]
                own[j, at[j] + 1] += step * high * of_column / above
        row = k[RING_AT]
        for j in range(used):
            ring[row, j] = x[j]
        k[RING_AT] = row + 1 if row + 1 < ring.shape[0] else 0
        k[ROWS] = min(k[ROWS] + 1, ring.shape[0])
        k[LEARNED] += 1
        if k[SINCE_REVIEW] >= REVIEW_ROWS:
            return i + 1, NEEDS_REVIEW
        if k[LEARNED] >= k[NEXT_KNOTS]:
            return i + 1, NEEDS_KNOTS
    return labels.shape[0], DONE


@kernel(void(i8, _F4, F8_2D, I8, F8_2D, F8_2D, F8_2D))
def place_knots(
    j: int,
    values: Singles,
    knots: Floats,
    n_knots: Ints,
    weights: Floats,
    curvatures: Floats,
    new: Floats,
) -> None:
    """Place the knots of column j at quantiles of sorted values (n > 0); its function stays.

    new (3, KNOTS) is scratch.
    """
    n, held, found = values.shape[0], n_knots[j], 0
    for q in range(KNOTS):
        value = np.float64(values[q * (n - 1) // (KNOTS - 1)])
        if found > 0 and not value > new[0, found - 1]:
            continue
        new[0, found], new[1, found], new[2, found] = value, 0.0, 0.0
        if held == 1:
            new[1, found], new[2, found] = weights[j, 0], curvatures[j, 0]
        elif held > 1:
            a = 0
            while a < held - 2 and value >= knots[j, a + 1]:
                a += 1
            part = clip((value - knots[j, a]) / (knots[j, a + 1] - knots[j, a]), 0.0, 1.0)
            new[1, found] = (1.0 - part) * weights[j, a] + part * weights[j, a + 1]
            new[2, found] = (1.0 - part) * curvatures[j, a] + part * curvatures[j, a + 1]
        found += 1
    for q in range(KNOTS):
        knots[j, q] = new[0, q] if q < found else 0.0
        weights[j, q] = new[1, q] if q < found else 0.0
        curvatures[j, q] = new[2, q] if q < found else 0.0
    n_knots[j] = found


@kernel(
    void(RO_I8, RO_I4, RO_F8, F8, I8, I8, I8, F8, F8, F8_2D, I8, F8_2D, I8, F8)
)  # fmt: skip
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    scores: Floats,
    keys: Ints,
    columns: Ints,
    k: Ints,
    f: Floats,
    x: Floats,
    knots: Floats,
    n_knots: Ints,
    own: Floats,
    at: Ints,
    share: Floats,
) -> None:
    """Scores (n,) of rows."""
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        scores[i] = score_of(x, k, f, knots, n_knots, own, at, share)
