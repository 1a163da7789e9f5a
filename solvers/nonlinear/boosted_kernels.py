"""Kernels of boosted trees: scoring a row, entering it in the ring, and bins of columns.

growth_kernels.py has those that grow a tree.

In every kernel, for S columns of the ring (at least those in use) and T trees
    k        (N_INTS,)   see dense_columns.py and ROWS to SAMPLES below
    f        (N_FLOATS,) see BASE to MEAN below
    x        (S,)        one row, see dense_columns.dense_row
    codes    (W, S)      uint8: the bin of each value of the last rows, a ring
    sample   (M, S)      float32: the values of rows 0, stride, 2 stride, ... of the ring
    about    (W, 3)      of each row: TARGET, WEIGHT and MARGIN, its score by the present trees
    leaves   (W, T)      uint8: the node that the row reached in each tree
    edges    (S, bins), n_edges (S,)   thresholds between the bins of a column; a value is in
                         bin b if b edges are less than it
    feature, left (T, N) int32, threshold, value (T, N)   trees: a node with feature >= 0 is split,
                         its children are left (value <= threshold) and left + 1
"""

import math

import numpy as np

from dualstream.solvers.jit import (
    F4,
    F4_2D,
    F8,
    F8_2D,
    I4,
    I4_2D,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    U1,
    U1_2D,
    kernel,
)
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    N_OF_COLUMNS,
    REVIEW_ROWS,
    SINCE_REVIEW,
    count_learned,
    dense_row,
    give_columns,
)
from dualstream.solvers.nonlinear.lags import (
    count_lags,
    enter_target,
    give_lag_columns,
    lags_of_row,
    set_lags,
)
from dualstream.solvers.rows.scalar import clip, log1pexp

MAX_BINS = 256
MAX_SAMPLE = 2048
"""Rows of the ring whose values are kept: bins are made from them."""
UNKNOWN = 255
"""No leaf: the tree did not grow on the row. A tree has fewer nodes."""

(
    ROWS, AT, SINCE_TREE, TREES, OLDEST, GROWN, LEARNED, NEXT_BINS, SAMPLES, GROW_ROWS,
    SPLITS,
) = range(N_OF_COLUMNS, N_OF_COLUMNS + 11)  # fmt: skip
"""Rows in the ring, the place of the next one, rows since the last tree, living trees, the oldest
of them, trees grown so far, rows learned (of a weight above 0), the number of these at which all
bins are made again, and all rows. While a tree grows during several rows: rows in the ring when it
began, and how many rows it has grown with.
"""
N_INTS = N_OF_COLUMNS + 11

BASE, MEAN_SQUARE, MEAN_WEIGHT = range(3)
"""The score without trees; regression: the mean squared error, with weight 0.01 on the newest."""
N_FLOATS = 3

TARGET, WEIGHT, MARGIN = range(3)
N_ABOUT = 3

DONE, NEEDS_COLUMN, NEEDS_ROW, NEEDS_TREE, NEEDS_REVIEW = range(5)
"""Why `learn_rows` returns: NEEDS_TREE and NEEDS_REVIEW come after the row, the others before."""

_RATE = 0.01
_HEAVIEST, _MOST_WEIGHT, _WEIGHT_RATE = 1e6, 1000.0, 1e-3


@kernel(inline=True)
def margin_of(
    x: F8, trees: int, base: float, feature: I4_2D, threshold: F8_2D, left: I4_2D, value: F8_2D
) -> float:
    """The score of one row."""
    margin = base
    for t in range(trees):
        node = 0
        while feature[t, node] >= 0:
            node = left[t, node] + (1 if x[feature[t, node]] > threshold[t, node] else 0)
        margin += value[t, node]
    return margin


@kernel(inline=True)
def bin_among(x: float, edges: RO_F8, n: int) -> int:
    """The number of edges that are less than x.

    A count is faster than a binary search, whose branches cannot be predicted.
    """
    below = 0
    for b in range(n):
        below += 1 if x > edges[b] else 0
    return below


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    served: RO_F8,
    scores: F8,
    width: int,
    lags: int,
    recent: F8,
    targets: I8,
    keys: I8,
    columns: I8,
    k: I8,
    f: F8,
    x: F8,
    feature: I4_2D,
    threshold: F8_2D,
    left: I4_2D,
    value: F8_2D,
) -> None:
    """Scores (n,) of rows; x has the last one. See learn_rows."""
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
        n_lags = lags_of_row(i, served, lags, targets)
        set_lags(n_lags, width, recent, targets, keys, columns, x)
        scores[i] = margin_of(x, k[TREES], f[BASE], feature, threshold, left, value)


@kernel(inline=True)
def limited_weight(weight: float, k: I8, f: F8) -> float:
    """The weight that the next row of the ring counts with; updates MEAN_WEIGHT.

    One row of a huge weight would hide all others from the histograms.
    """
    weight = min(weight, _HEAVIEST)
    rate = max(1.0 / (k[LEARNED] + 1.0), _WEIGHT_RATE)
    if k[LEARNED] > 0:
        weight = min(weight, _MOST_WEIGHT * f[MEAN_WEIGHT])
    f[MEAN_WEIGHT] += rate * (weight - f[MEAN_WEIGHT])
    return weight


@kernel
def weight_unit(about: F8_2D) -> float:
    """sum w^2 / sum w of rows: the weight of as many equal rows as tell as much as these (Kish,
    "Survey Sampling", 1965, section 11.7)."""
    total, squares = 0.0, 0.0
    for r in range(about.shape[0]):
        total += about[r, WEIGHT]
        squares += about[r, WEIGHT] * about[r, WEIGHT]
    return squares / total if squares > 1e-290 else total / about.shape[0]


@kernel
def stride_of(n: int) -> int:
    """Rows of the ring for each row of the sample, if the ring has n rows."""
    stride = 1
    while n > MAX_SAMPLE * stride:
        stride *= 2
    return stride


@kernel(inline=True)
def enter_row(
    at: int, x: F8, codes: U1_2D, sample: F4_2D, edges: F8_2D, n_edges: I8, k: I8
) -> None:
    """Write the bins of a row, and its values if the sample has it."""
    stride = stride_of(k[ROWS])
    if at == MAX_SAMPLE * stride:
        # The ring gets longer than the sample spans: every other row of the sample stays.
        for i in range(1, MAX_SAMPLE // 2):
            for j in range(k[COLUMNS]):
                sample[i, j] = sample[2 * i, j]
        stride *= 2
    for j in range(k[COLUMNS]):
        codes[at, j] = bin_among(x[j], edges[j], n_edges[j])
    if at % stride == 0:
        for j in range(k[COLUMNS]):
            sample[at // stride, j] = x[j]


@kernel(inline=True)
def count_row(window: int, first_tree: int, renewal: int, k: I8) -> int:
    """Count a row that was written at AT; what is due then: a review, a tree or nothing (DONE)."""
    k[AT] = k[AT] + 1 if k[AT] + 1 < window else 0
    if k[ROWS] < window:
        k[ROWS] += 1
    k[LEARNED] += 1
    k[SINCE_TREE] += 1
    if k[SINCE_REVIEW] >= REVIEW_ROWS:
        return NEEDS_REVIEW
    if k[GROW_ROWS] > 0:
        return NEEDS_TREE
    if k[LEARNED] >= first_tree and k[SINCE_TREE] * renewal >= k[ROWS]:
        return NEEDS_TREE
    return DONE


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    served: RO_F8,
    start: int,
    scores: F8,
    losses: F8,
    is_binary: bool,
    reach: float,
    window: int,
    first_tree: int,
    renewal: int,
    width: int,
    lags: int,
    recent: F8,
    targets: I8,
    keys: I8,
    columns: I8,
    counts: I8,
    k: I8,
    f: F8,
    x: F8,
    codes: U1_2D,
    sample: F4_2D,
    about: F8_2D,
    leaves: U1_2D,
    edges: F8_2D,
    n_edges: I8,
    feature: I4_2D,
    threshold: F8_2D,
    left: I4_2D,
    value: F8_2D,
) -> tuple[int, int]:
    """Score rows from `start` on and enter them in the ring; the next row and why it stopped.

    reach       root mean square errors from the margin within which a target counts
    window      rows that the ring may hold, when it is as wide as now
    renewal     a tree is due after a `renewal`-th of the ring's rows
    width, lags, recent, targets   see lags.Lags
    """
    for i in range(start, labels.shape[0]):
        begin, end, room = indptr[i], indptr[i + 1], codes.shape[1]
        learns = weights[i] > 0.0
        n_lags = lags_of_row(i, served, lags, targets)
        if learns:
            if k[ROWS] < window and k[ROWS] == codes.shape[0]:
                return i, NEEDS_ROW
            if give_columns(indices, begin, end, room, keys, columns, k) == 0:
                return i, NEEDS_COLUMN
            if give_lag_columns(n_lags, room, width, recent, targets, keys, columns, k) == 0:
                return i, NEEDS_COLUMN
            count_learned(indices, begin, end, keys, counts, k)
            count_lags(n_lags, width, recent, targets, keys, counts)
        dense_row(indices, values, begin, end, keys, columns, k, x)
        set_lags(n_lags, width, recent, targets, keys, columns, x)
        at, margin = k[AT], f[BASE]
        for t in range(k[TREES]):
            node = 0
            while feature[t, node] >= 0:
                node = left[t, node] + (1 if x[feature[t, node]] > threshold[t, node] else 0)
            margin += value[t, node]
            if learns:
                leaves[at, t] = node
        scores[i] = margin
        y = labels[i]
        if is_binary:
            losses[i] = log1pexp(-margin if y > 0.0 else margin)
        else:
            losses[i] = 0.5 * (y - margin) * (y - margin)
        k[SAMPLES] += 1
        if not learns:
            continue
        enter_row(at, x, codes, sample, edges, n_edges, k)
        if n_lags >= 0:
            enter_target(y, recent, targets)
        target = y
        if is_binary:
            target = 1.0 if y > 0.0 else 0.0
        elif k[TREES] > 0:
            scale = math.sqrt(f[MEAN_SQUARE])
            if scale > 0.0:
                target = clip(y, margin - reach * scale, margin + reach * scale)
            error = target - margin
            f[MEAN_SQUARE] += _RATE * (error * error - f[MEAN_SQUARE])
        weight = limited_weight(weights[i], k, f)
        about[at, TARGET], about[at, WEIGHT], about[at, MARGIN] = target, weight, margin
        why = count_row(window, first_tree, renewal, k)
        if why != DONE:
            return i + 1, why
    return labels.shape[0], DONE


@kernel
def quantile_edges(values: F4, bins: int, edges: F8) -> int:
    """Edges between distinct values, sorted, with about equally many in each bin; their number."""
    n = values.shape[0]
    distinct = 1
    for i in range(1, n):
        if values[i] != values[i - 1]:
            distinct += 1
    want = 0.0 if distinct <= bins else n / bins
    count, in_bin = 0, 0
    for i in range(1, n):
        in_bin += 1
        if values[i] != values[i - 1] and in_bin >= want and count < bins - 1:
            edges[count] = 0.5 * (np.float64(values[i]) + np.float64(values[i - 1]))
            count += 1
            in_bin = 0
    return count


@kernel
def code_column(values: F4, codes: U1_2D, j: int, edges: RO_F8, n_edges: int) -> None:
    """The bins of column j of the first rows, given their values."""
    for r in range(values.shape[0]):
        codes[r, j] = bin_among(np.float64(values[r]), edges, n_edges)


@kernel
def shared_bins(values: F4, edges: RO_F8, n_edges: int) -> float:
    """Pairs of sorted values that differ and are in one bin."""
    pairs, in_bin, equal, b = 0.0, 0, 0, 0
    for i in range(values.shape[0]):
        before = b
        while b < n_edges and np.float64(values[i]) > edges[b]:
            b += 1
        if b != before:
            in_bin = equal = 0
        elif i > 0 and values[i] != values[i - 1]:
            equal = 0
        pairs += in_bin - equal
        in_bin += 1
        equal += 1
    return pairs


@kernel
def recode_column(
    values: F4,
    codes: U1_2D,
    n: int,
    j: int,
    old: RO_F8,
    n_old: int,
    edges: RO_F8,
    n_edges: int,
    code_of: U1,
) -> None:
    """Bins of column j of the first n rows from their old ones, as their values are forgotten.

    All values of an old bin count as the one in its middle.

    values     a sorted sample of the column
    code_of    (MAX_BINS,) is overwritten
    """
    first = 0
    for b in range(n_old + 1):
        end = first
        while end < values.shape[0] and (b == n_old or np.float64(values[end]) <= old[b]):
            end += 1
        if end > first:
            middle = np.float64(values[(first + end) // 2])
        elif 0 < b < n_old:
            middle = 0.5 * (old[b - 1] + old[b])
        else:
            middle = old[min(b, n_old - 1)]
        code_of[b] = bin_among(middle, edges, n_edges)
        first = end
    for r in range(n):
        codes[r, j] = code_of[codes[r, j]]


@kernel
def drop_tree(about: F8_2D, leaves: U1_2D, tree: int, value: F8_2D) -> None:
    """Subtract a tree from the margins of the first rows."""
    for r in range(about.shape[0]):
        about[r, MARGIN] -= value[tree, leaves[r, tree]]


@kernel
def replace_tree(
    codes: U1_2D,
    leaves: U1_2D,
    about: F8_2D,
    n: int,
    tree: int,
    is_taken: bool,
    base_step: float,
    edges: F8_2D,
    n_edges: I8,
    feature: I4,
    threshold: F8,
    left: I4,
    value: F8,
    leaf_of: U1,
    cuts: U1,
    old: F8,
) -> None:
    """Subtract a tree, if there was one, from the margins of the first n rows, and add a new one.

    leaf_of    leaves of the first rows in the new tree, or UNKNOWN
    old        (N,) values of the old tree
    cuts       (N,) is overwritten
    """
    for node in range(feature.shape[0]):
        j = feature[node]
        if j >= 0:
            cuts[node] = bin_among(threshold[node], edges[j], n_edges[j])
    for r in range(n):
        margin = about[r, MARGIN]
        if is_taken:
            margin -= old[leaves[r, tree]]
        node = int(leaf_of[r]) if r < leaf_of.shape[0] else UNKNOWN
        if node == UNKNOWN:
            node = 0
            while feature[node] >= 0:
                node = left[node] + (1 if codes[r, feature[node]] > cuts[node] else 0)
        leaves[r, tree] = node
        about[r, MARGIN] = margin + base_step + value[node]
