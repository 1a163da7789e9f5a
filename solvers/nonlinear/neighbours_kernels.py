"""Kernels of neighbours.

In every kernel, for S columns and a ring of W rows
    k         see dense_columns.py, then ROWS (in the ring), AT (the place of the next) and SAMPLES
    mean      (2,)    of the labels so far, and their weight; with a third number, SQUARE, the mean
                      square of the errors, labels are learned as within `reach` roots of it
    moments   (3, S)  see standardise.py
    ring      (S, W)  float32, standardised values
    about     (2, W)  label and weight of each row
    distances (W + LANES,)   float32, scratch
    near      (2, K)  scratch: distance and place of the nearest rows
"""

import math

import numpy as np

from dualstream.solvers.jit import F4, F4_2D, F8, F8_2D, I8, RO_F8, RO_I4, RO_I8, f4, kernel
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    N_OF_COLUMNS,
    REVIEW_ROWS,
    SINCE_REVIEW,
    count_features,
    dense_row,
)
from dualstream.solvers.nonlinear.standardise import count_moments, standardised
from dualstream.solvers.rows.scalar import clip, log1pexp

ROWS, AT, SAMPLES = range(N_OF_COLUMNS, N_OF_COLUMNS + 3)
N_INTS = N_OF_COLUMNS + 3
LABEL, WEIGHT = range(2)
SQUARE = 2
DONE, NEEDS_COLUMN, NEEDS_REVIEW = range(3)
"""Why `learn_rows` returns: NEEDS_REVIEW comes after the row, NEEDS_COLUMN before it."""

START = 0.3
"""Added to the weights of each class."""
LANES = 64
"""Groups of rows whose least distances bound the distances of the nearest rows."""
_BLOCK, _RATE = 16, 0.01


@kernel(inline=True, apart=True)
def add_squares(n: int, value: f4, column: F4, distances: F4) -> None:
    """distances (n,) += (value - column)^2. Each sum is a row's own: nothing is reduced."""
    for r in range(n):
        apart = value - column[r]
        distances[r] += apart * apart


@kernel(inline=True, apart=True)
def add_four_squares(
    n: int, v0: f4, v1: f4, v2: f4, v3: f4, c0: F4, c1: F4, c2: F4, c3: F4, distances: F4
) -> None:
    """As four calls of `add_squares`, but the sums are read and written once."""
    for r in range(n):
        a0, a1, a2, a3 = v0 - c0[r], v1 - c1[r], v2 - c2[r], v3 - c3[r]
        distances[r] = distances[r] + a0 * a0 + a1 * a1 + a2 * a2 + a3 * a3


@kernel(inline=True)
def insert(distance: float, place: int, count: int, near: F8_2D) -> int:
    """Enter a row among the `count` nearest so far; their new number. Of ties the first stays."""
    most = near.shape[1]
    if count < most:
        p = count
        count += 1
    elif distance < near[0, most - 1]:
        p = most - 1
    else:
        return count
    while p > 0 and near[0, p - 1] > distance:
        near[0, p], near[1, p] = near[0, p - 1], near[1, p - 1]
        p -= 1
    near[0, p], near[1, p] = distance, place
    return count


@kernel(inline=True, apart=True)
def lower(distances: F4, least: F4) -> None:
    """least (LANES,) = the smaller one of both."""
    for lane in range(LANES):
        least[lane] = min(least[lane], distances[lane])


@kernel(inline=True)
def limit_of(n: int, distances: F4, near: F8_2D) -> f4:
    """A distance within which the nearest rows are; `near` is overwritten.

    Of LANES groups of rows, the least distances of K groups bound that of the K-th nearest row.
    """
    least, count = distances[-LANES:], 0
    for lane in range(LANES):
        least[lane] = np.inf
    for first in range(0, n - LANES + 1, LANES):
        lower(distances[first : first + LANES], least)
    for lane in range(LANES):
        count = insert(least[lane], lane, count, near)
    return np.float32(near[0, count - 1] if count == near.shape[1] else np.inf)


@kernel(inline=True)
def count_within(distances: F4, limit: f4) -> int:
    """How many distances are not above the limit."""
    within = 0
    for r in range(distances.shape[0]):
        within += 1 if distances[r] <= limit else 0
    return within


@kernel(inline=True)
def nearest(n: int, distances: F4, near: F8_2D) -> int:
    """Fill `near` with the nearest rows, nearest first; their number. Ties: the lower place."""
    limit, count = limit_of(n, distances, near), 0
    for first in range(0, n, _BLOCK):
        block = distances[first : min(first + _BLOCK, n)]
        if count_within(block, limit) > 0:
            for r in range(block.shape[0]):
                if block[r] <= limit:
                    count = insert(block[r], first + r, count, near)
    return count


@kernel(inline=True)
def find_near(x: F8, k: I8, moments: F8_2D, ring: F4_2D, distances: F4, near: F8_2D) -> int:
    """Fill `near` with the rows nearest to one dense row x; their number."""
    n = k[ROWS]
    for r in range(n):
        distances[r] = np.float32(0.0)
    fours = k[COLUMNS] & ~3
    for j in range(0, fours, 4):
        add_four_squares(
            n,
            np.float32(standardised(x[j], j, moments)),
            np.float32(standardised(x[j + 1], j + 1, moments)),
            np.float32(standardised(x[j + 2], j + 2, moments)),
            np.float32(standardised(x[j + 3], j + 3, moments)),
            ring[j],
            ring[j + 1],
            ring[j + 2],
            ring[j + 3],
            distances,
        )
    for j in range(fours, k[COLUMNS]):
        add_squares(n, np.float32(standardised(x[j], j, moments)), ring[j], distances)
    return nearest(n, distances, near)


@kernel(inline=True)
def score_of(
    x: F8,
    is_binary: bool,
    sharpness: float,
    k: I8,
    mean: F8,
    moments: F8_2D,
    ring: F4_2D,
    about: F8_2D,
    distances: F4,
    near: F8_2D,
) -> float:
    """The score of one dense row x."""
    if k[ROWS] == 0:
        return 0.0
    count = find_near(x, k, moments, ring, distances, near)
    width = near[0, count - 1] + 1e-9
    positive = negative = 0.0
    for p in range(count):
        r = int(near[1, p])
        share = about[WEIGHT, r] * math.exp(-sharpness * near[0, p] / width)
        if not is_binary:
            # Not the distance from the mean, in which a broken label leaves no digit of others.
            positive += share * about[LABEL, r]
            negative += share
        elif about[LABEL, r] > 0.0:
            positive += share
        else:
            negative += share
    if is_binary:
        return math.log((START + positive) / (START + negative))
    return float(positive / negative) if negative > 0.0 else float(mean[0])


@kernel(inline=True)
def enter_values(at: int, x: F8, k: I8, moments: F8_2D, ring: F4_2D) -> None:
    """Count a dense row x in the moments, and write it to place `at` of the ring."""
    count_moments(k[COLUMNS], x, moments)
    for j in range(k[COLUMNS]):
        ring[j, at] = standardised(x[j], j, moments)
    k[AT] = at + 1 if at + 1 < ring.shape[1] else 0
    k[ROWS] = min(k[ROWS] + 1, ring.shape[1])


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    start: int,
    scores: F8,
    losses: F8,
    is_binary: bool,
    reach: float,
    sharpness: float,
    keys: I8,
    columns: I8,
    counts: I8,
    k: I8,
    mean: F8,
    x: F8,
    moments: F8_2D,
    ring: F4_2D,
    about: F8_2D,
    distances: F4,
    near: F8_2D,
) -> tuple[int, int]:
    """Score rows from `start` on and enter them in the ring; the next row and why it stopped."""
    for i in range(start, labels.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        if learns and (
            count_features(indices, begin, end, ring.shape[0], keys, columns, counts, k) == 0
        ):
            return i, NEEDS_COLUMN
        dense_row(indices, values, begin, end, keys, columns, k, x)
        score = score_of(x, is_binary, sharpness, k, mean, moments, ring, about, distances, near)
        y = labels[i]
        scores[i] = score
        if is_binary:
            losses[i] = log1pexp(-score if y > 0.0 else score)
        else:
            losses[i] = 0.5 * (y - score) * (y - score)
        k[SAMPLES] += 1
        if not learns:
            continue
        if is_binary:
            y = 1.0 if y > 0.0 else -1.0
        elif mean.shape[0] > SQUARE and k[ROWS] > 0:
            scale = math.sqrt(mean[SQUARE])
            if scale > 0.0:
                y = clip(y, score - reach * scale, score + reach * scale)
            rate = max(1.0 / k[ROWS], _RATE)
            mean[SQUARE] += rate * ((y - score) * (y - score) - mean[SQUARE])
        at = k[AT]
        enter_values(at, x, k, moments, ring)
        about[LABEL, at], about[WEIGHT, at] = y, weights[i]
        mean[1] += weights[i]
        mean[0] += weights[i] / mean[1] * (y - mean[0])
        if k[SINCE_REVIEW] >= REVIEW_ROWS:
            return i + 1, NEEDS_REVIEW
    return labels.shape[0], DONE


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8,
    is_binary: bool,
    sharpness: float,
    keys: I8,
    columns: I8,
    k: I8,
    mean: F8,
    x: F8,
    moments: F8_2D,
    ring: F4_2D,
    about: F8_2D,
    distances: F4,
    near: F8_2D,
) -> None:
    """Scores (n,) of rows."""
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        scores[i] = score_of(
            x, is_binary, sharpness, k, mean, moments, ring, about, distances, near
        )


@kernel(inline=True)
def class_odds(sharpness: float, count: int, about: F8_2D, near: F8_2D, out: F8) -> None:
    """out (1 + K,): the log odds of each class by the votes of the rows in `near`.

    Sums are in the order of the rows, as `score_of` adds them for one class against the rest.
    """
    width = near[0, count - 1] + 1e-9
    total = 0.0
    for p in range(count):
        near[0, p] = about[WEIGHT, int(near[1, p])] * math.exp(-sharpness * near[0, p] / width)
        near[1, p] = about[LABEL, int(near[1, p])]
        total += near[0, p]
    without = math.log(START / (START + total))
    for c in range(out.shape[0]):
        out[c] = without
    for p in range(count):
        label = near[1, p]
        positive = negative = 0.0
        is_first = True
        for q in range(count):
            if near[1, q] == label:
                positive += near[0, q]
                is_first = is_first and q >= p
            else:
                negative += near[0, q]
        if is_first:
            out[1 + int(label)] = math.log((START + positive) / (START + negative))


@kernel
def learn_classes(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    class_ids: RO_I8,
    weights: RO_F8,
    start: int,
    scores: F8_2D,
    sharpness: float,
    keys: I8,
    columns: I8,
    counts: I8,
    k: I8,
    x: F8,
    moments: F8_2D,
    ring: F4_2D,
    about: F8_2D,
    distances: F4,
    near: F8_2D,
) -> tuple[int, int]:
    """As `learn_rows`, for classes: class_ids (n,), scores (n, 1 + K)."""
    for i in range(start, weights.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        if learns and (
            count_features(indices, begin, end, ring.shape[0], keys, columns, counts, k) == 0
        ):
            return i, NEEDS_COLUMN
        dense_row(indices, values, begin, end, keys, columns, k, x)
        if k[ROWS] > 0:
            count = find_near(x, k, moments, ring, distances, near)
            class_odds(sharpness, count, about, near, scores[i])
        k[SAMPLES] += 1
        if not learns:
            continue
        at = k[AT]
        enter_values(at, x, k, moments, ring)
        about[LABEL, at], about[WEIGHT, at] = class_ids[i], weights[i]
        if k[SINCE_REVIEW] >= REVIEW_ROWS:
            return i + 1, NEEDS_REVIEW
    return weights.shape[0], DONE


@kernel
def score_classes(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8_2D,
    sharpness: float,
    keys: I8,
    columns: I8,
    k: I8,
    x: F8,
    moments: F8_2D,
    ring: F4_2D,
    about: F8_2D,
    distances: F4,
    near: F8_2D,
) -> None:
    """Scores (n, 1 + K) of rows, which are 0 before."""
    if k[ROWS] == 0:
        return
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        count = find_near(x, k, moments, ring, distances, near)
        class_odds(sharpness, count, about, near, scores[i])
