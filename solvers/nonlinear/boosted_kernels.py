"""Kernels of boosted trees: scoring a row, bins of columns, and growing one tree on the ring.

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
    I8_2D,
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
    count_features,
    dense_row,
)
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid

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
_MOST_VALUE = 6.0
"""Largest step of a leaf for classes, in log odds, before it is multiplied by the step."""
_LARGEST_SUM, _TINY, _LOW = 2.0**30, 1e-290, 0xFFFFFFFF
_MOST_KEY = 2**63 - 1


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
    scores: F8,
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
    """Scores (n,) of rows."""
    for i in range(scores.shape[0]):
        dense_row(indices, values, indptr[i], indptr[i + 1], keys, columns, k, x)
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
    start: int,
    scores: F8,
    losses: F8,
    is_binary: bool,
    reach: float,
    window: int,
    first_tree: int,
    renewal: int,
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
    """
    for i in range(start, labels.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        if learns:
            if k[ROWS] < window and k[ROWS] == codes.shape[0]:
                return i, NEEDS_ROW
            if count_features(indices, begin, end, codes.shape[1], keys, columns, counts, k) == 0:
                return i, NEEDS_COLUMN
        dense_row(indices, values, begin, end, keys, columns, k, x)
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


def most_value(is_binary: bool) -> float:
    """The largest step of a leaf; numbers have no limit."""
    return _MOST_VALUE if is_binary else math.inf


@kernel
def move_base(about: F8_2D, n: int, is_binary: bool) -> float:
    """Move all margins by the same step towards the best one, and return it.

    For numbers the weighted mean of the errors, for classes one Newton step.
    """
    slope = curvature = 0.0
    for r in range(n):
        c, margin = about[r, WEIGHT], about[r, MARGIN]
        if is_binary:
            p = sigmoid(margin)
            slope += c * (about[r, TARGET] - p)
            curvature += c * p * (1.0 - p)
        else:
            slope += c * (about[r, TARGET] - margin)
            curvature += c
    step = slope / curvature if curvature > 0.0 else 0.0
    if is_binary:
        step = clip(step, -1.0, 1.0)
    for r in range(n):
        about[r, MARGIN] += step
    return step


@kernel
def slopes_of(about: F8_2D, n: int, is_binary: bool, slopes: F8, curvatures: F8) -> None:
    """Gradient and second derivative of each row's loss by its margin, times its weight."""
    for r in range(n):
        c = about[r, WEIGHT]
        if is_binary:
            p = sigmoid(about[r, MARGIN])
            slopes[r] = c * (p - about[r, TARGET])
            curvatures[r] = c * p * (1.0 - p)
        else:
            slopes[r] = c * (about[r, MARGIN] - about[r, TARGET])
            curvatures[r] = c


@kernel
def pack_slopes(slopes: RO_F8, curvatures: RO_F8, packed: I8, units: F8) -> float:
    """Pack gradients and second derivatives (n,); returns the largest gradient.

    packed (n,) has both as whole numbers of units[0] and units[1], the gradient in the upper 32
    bits, so that one addition counts a row in a bin, and sums do not depend on their order. The
    units are such that a sum of all n rows fits.
    """
    n = slopes.shape[0]
    steepest = bend = 0.0
    for r in range(n):
        steepest = max(steepest, abs(slopes[r]))
        bend = max(bend, curvatures[r])
    units[0] = max(steepest, _TINY) * n / _LARGEST_SUM
    units[1] = max(bend, _TINY) * n / _LARGEST_SUM
    for r in range(n):
        slope = np.int64(math.floor(slopes[r] / units[0] + 0.5))
        packed[r] = (slope << 32) + np.int64(math.floor(curvatures[r] / units[1] + 0.5))
    return steepest


# Numbers of a leaf while its tree grows, in `grown`: its rows are FIRST to END of `order`; its node
# and its histogram; sums of its gradients and second derivatives; its best split.
FIRST, END, NODE, HISTOGRAM, SLOPE, CURVATURE, GAIN, COLUMN, EDGE = range(9)
N_GROWN = 9
LEAVES, NODES = range(2)
"""Numbers of a growing tree, in `size`."""


@kernel(inline=True)
def clear_histogram(histogram: I8, used: RO_I8, n_edges: RO_I8, n_used: int) -> None:
    """Empty a histogram: packed sums for each column, in equal parts of the array."""
    bins = histogram.shape[0] // max(1, n_used)
    for q in range(n_used):
        for b in range(n_edges[used[q]] + 1):
            histogram[np.uint64(bins * q + b)] = 0


@kernel(inline=True, apart=True)
def subtract_histogram(whole: I8, part: I8, used: RO_I8, n_edges: RO_I8, n_used: int) -> None:
    """whole -= part."""
    bins = whole.shape[0] // max(1, n_used)
    for q in range(n_used):
        line = np.uint64(bins * q)
        for b in range(np.uint64(n_edges[used[q]] + 1)):
            whole[line + b] -= part[line + b]


@kernel(inline=True)
def fill_histogram(
    histogram: I8,
    sign: int,
    first: int,
    end: int,
    order: I4,
    codes: U1_2D,
    used: RO_I8,
    n_used: int,
    packed: RO_I8,
) -> None:
    """Add rows order[first:end] to a histogram; subtract them with sign -1."""
    # Columns are drawn in increasing order, so all are used if the last is the one of its place.
    is_all = n_used > 0 and used[n_used - 1] == n_used - 1
    bins = np.uint64(histogram.shape[0] // max(1, n_used))
    for a in range(first, end):
        r = np.uint64(order[a])
        row, number = codes[r], sign * packed[r]
        line = np.uint64(0)
        if is_all:
            for q in range(np.uint64(n_used)):
                histogram[line + np.uint64(row[q])] += number
                line += bins
        else:
            for q in range(n_used):
                histogram[line + np.uint64(row[np.uint64(used[q])])] += number
                line += bins


@kernel(inline=True, apart=True)
def gains_of(
    n: int,
    slope: float,
    whole: float,
    ridge: float,
    least: float,
    most: float,
    g: F8,
    h: F8,
    gains: F8,
) -> None:
    """gains (n,): what a split with g and h on one side gains, 0 where a side is too small."""
    for b in range(n):
        side, other = h[b] + ridge, whole - h[b]
        rest = slope - g[b]
        # One division instead of two: they take most of the time of a small leaf.
        gain = (g[b] * g[b] * other + rest * rest * side) / (side * other)
        gains[b] = gain if (h[b] >= least) & (h[b] <= most) else 0.0


@kernel(inline=True)
def best_split(
    histograms: I8_2D,
    leaf: int,
    used: RO_I8,
    n_edges: RO_I8,
    n_used: int,
    grown: F8_2D,
    sums: F8_2D,
    least_rows: float,
    ridge: float,
    units: F8,
) -> None:
    """Set GAIN, COLUMN and EDGE of a leaf: the split that lowers the loss most, gain 0 for none.

    The rows of a side are estimated by its share of the second derivatives.
    """
    grown[leaf, GAIN] = 0.0
    count = grown[leaf, END] - grown[leaf, FIRST]
    slope, curvature = grown[leaf, SLOPE], grown[leaf, CURVATURE]
    # A little less, as packed numbers are rounded.
    least = 0.999999 * least_rows * curvature / count
    if count < 2.0 * least_rows or not least > 0.0:
        return
    most, whole = curvature - least, curvature + ridge
    now = slope * slope / whole
    best, column, edge = now, -1, 0
    histogram = histograms[int(grown[leaf, HISTOGRAM])]
    bins = histogram.shape[0] // max(1, n_used)
    for q in range(n_used):
        total, n = 0, n_edges[used[q]]
        for b in range(n):
            total += histogram[np.uint64(bins * q + b)]
            sums[0, b] = units[0] * (total >> 32)
            sums[1, b] = units[1] * (total & _LOW)
        gains_of(n, slope, whole, ridge, least, most, sums[0], sums[1], sums[2])
        for b in range(n):
            if sums[2, b] > best:
                best, column, edge = sums[2, b], used[q], b
    grown[leaf, GAIN], grown[leaf, COLUMN], grown[leaf, EDGE] = best - now, column, edge


@kernel(inline=True)
def sort_key(bits: int) -> int:
    """A whole number in the order of the float with these bits (IEEE 754)."""
    return bits ^ ((bits >> 63) & _MOST_KEY)


@kernel
def median_of(values: F8, weights: RO_F8, order: I4, first: int, end: int) -> float:
    """The weighted median of values[r] for rows r in order[first:end], which it partitions.

    The range of keys is halved until one is left, at most 64 times. If rows of exactly half the
    weight are not above that one, it is the mean of this and the next value.
    """
    bits, last = values.view(np.int64), end
    half, low, high = 0.0, _MOST_KEY, -_MOST_KEY
    for a in range(first, end):
        key = sort_key(bits[order[a]])
        low, high = min(low, key), max(high, key)
        half += 0.5 * weights[order[a]]
    while low < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        split, below, low_end, high_start = first, 0.0, low, high
        for a in range(first, end):
            # Without branches, which cannot be predicted here.
            r = order[a]
            key = sort_key(bits[r])
            is_low = key <= middle
            order[a], order[split] = order[split], r
            split += 1 if is_low else 0
            below += weights[r] if is_low else 0.0
            low_end = max(low_end, key if is_low else low)
            high_start = min(high_start, high if is_low else key)
        if below >= half:
            end, high = split, low_end
        else:
            first, low = split, high_start
            half -= below
    median, weight = values[order[first]], 0.0
    for a in range(first, end):
        weight += weights[order[a]]
    if weight != half or end == last:
        return float(median)
    above = values[order[end]]
    for a in range(end + 1, last):
        above = min(above, values[order[a]])
    return float(0.5 * (median + above))


@kernel
def split_leaf(
    codes: U1_2D,
    slopes: RO_F8,
    curvatures: RO_F8,
    packed: RO_I8,
    units: F8,
    used: RO_I8,
    edges: F8_2D,
    n_edges: I8,
    ridge: float,
    least_rows: float,
    least_gain: float,
    order: I4,
    right: I4,
    histograms: I8_2D,
    grown: F8_2D,
    sums: F8_2D,
    size: I8,
    feature: I4,
    threshold: F8,
    left: I4,
) -> int:
    """Split the leaf of a growing tree that gains most; the number of its rows, or 0.

    A tree without nodes becomes one leaf instead. It has at most L leaves.

    slopes, curvatures, packed   (n,) of the first rows of the ring
    used       the columns that it may split
    order      its rows, below n, leaf by leaf
    grown      (L, N_GROWN); size (2,) its LEAVES and NODES, 0 before
    feature, threshold, left     (N,) its nodes; feature is -1 before
    right, histograms (L, len(used) bins), sums (3, MAX_BINS)   scratch, kept between calls
    """
    n_leaves, n_nodes, most_leaves = size[LEAVES], size[NODES], grown.shape[0]
    n_used = used.shape[0]
    if n_leaves == 0:
        slope = curvature = 0.0
        for a in range(order.shape[0]):
            slope += slopes[order[a]]
            curvature += curvatures[order[a]]
        n = order.shape[0]
        grown[0, FIRST], grown[0, END], grown[0, NODE], grown[0, HISTOGRAM] = 0, n, 0, 0
        grown[0, SLOPE], grown[0, CURVATURE] = slope, curvature
        clear_histogram(histograms[0], used, n_edges, n_used)
        fill_histogram(histograms[0], 1, 0, n, order, codes, used, n_used, packed)
        best_split(histograms, 0, used, n_edges, n_used, grown, sums, least_rows, ridge, units)
        size[LEAVES] = size[NODES] = 1
        return int(n)
    while n_leaves < most_leaves:
        best, top = -1, least_gain
        for leaf in range(n_leaves):
            if grown[leaf, GAIN] > top:
                best, top = leaf, grown[leaf, GAIN]
        if best < 0:
            break
        first, end = int(grown[best, FIRST]), int(grown[best, END])
        column, edge, node = (
            int(grown[best, COLUMN]),
            int(grown[best, EDGE]),
            int(grown[best, NODE]),
        )
        middle, beyond = first, 0
        for a in range(first, end):
            # Both are written, since a branch on the data would be mispredicted.
            r = order[a]
            is_left = 1 if codes[r, column] <= edge else 0
            order[middle] = right[beyond] = r
            middle += is_left
            beyond += 1 - is_left
        for a in range(beyond):
            order[middle + a] = right[a]
        if middle == first or beyond == 0:
            # The sums of an empty side can differ from 0 by their rounding errors.
            grown[best, GAIN] = 0.0
            continue
        feature[node], threshold[node] = column, edges[column, edge]
        left[node] = n_nodes
        new = n_leaves
        grown[new, FIRST], grown[new, END], grown[new, NODE] = middle, end, n_nodes + 1
        grown[best, END], grown[best, NODE] = middle, n_nodes
        size[LEAVES], size[NODES] = n_leaves + 1, n_nodes + 2
        small, large = (best, new) if middle - first <= end - middle else (new, best)
        slope = curvature = 0.0
        small_first, small_end = int(grown[small, FIRST]), int(grown[small, END])
        for a in range(small_first, small_end):
            slope += slopes[order[a]]
            curvature += curvatures[order[a]]
        whole, bend = grown[best, SLOPE], grown[best, CURVATURE]
        grown[small, SLOPE], grown[small, CURVATURE] = slope, curvature
        grown[large, SLOPE], grown[large, CURVATURE] = whole - slope, bend - curvature
        grown[small, GAIN] = grown[large, GAIN] = 0.0
        if size[LEAVES] == most_leaves:
            return int(end - first)
        # The smaller child is counted; the other one is the difference, in the parent's histogram.
        parent = int(grown[best, HISTOGRAM])
        grown[large, HISTOGRAM], grown[small, HISTOGRAM] = parent, new
        if small_end - small_first >= 2.0 * least_rows:
            clear_histogram(histograms[new], used, n_edges, n_used)
            fill_histogram(
                histograms[new], 1, small_first, small_end, order, codes, used, n_used, packed
            )  # fmt: skip
            subtract_histogram(histograms[parent], histograms[new], used, n_edges, n_used)
            best_split(
                histograms, small, used, n_edges, n_used, grown, sums, least_rows, ridge, units
            )
        elif grown[large, END] - grown[large, FIRST] >= 2.0 * least_rows:
            fill_histogram(
                histograms[parent], -1, small_first, small_end, order, codes, used, n_used, packed
            )  # fmt: skip
        best_split(histograms, large, used, n_edges, n_used, grown, sums, least_rows, ridge, units)
        return int(end - first)
    return 0


@kernel
def grow_tree(
    most_rows: int,
    codes: U1_2D,
    slopes: RO_F8,
    curvatures: RO_F8,
    packed: RO_I8,
    units: F8,
    used: RO_I8,
    edges: F8_2D,
    n_edges: I8,
    ridge: float,
    least_rows: float,
    least_gain: float,
    order: I4,
    right: I4,
    histograms: I8_2D,
    grown: F8_2D,
    sums: F8_2D,
    size: I8,
    feature: I4,
    threshold: F8,
    left: I4,
) -> bool:
    """Split leaves until these have `most_rows` rows; False if the tree is complete."""
    rows = 0
    while rows < most_rows:
        split = split_leaf(
            codes, slopes, curvatures, packed, units, used, edges, n_edges, ridge, least_rows,
            least_gain, order, right, histograms, grown, sums, size, feature, threshold, left,
        )  # fmt: skip
        if split == 0:
            return False
        rows += split
    return True


@kernel
def value_leaves(
    errors: F8,
    curvatures: RO_F8,
    step: float,
    ridge: float,
    most_value: float,
    order: I4,
    grown: F8_2D,
    n_leaves: int,
    value: F8,
    leaf_of: U1,
) -> None:
    """The values (N,) of the leaves of a tree that has grown, and the leaf of each of its rows.

    errors    (n,) whose medians are the values of the leaves; (0,) for Newton steps
    """
    for leaf in range(n_leaves):
        node = int(grown[leaf, NODE])
        first, end = int(grown[leaf, FIRST]), int(grown[leaf, END])
        if errors.shape[0] > 0:
            change = median_of(errors, curvatures, order, first, end)
        else:
            bend = max(grown[leaf, CURVATURE], 0.0)
            change = -grown[leaf, SLOPE] / (bend + ridge)
        value[node] = step * clip(change, -most_value, most_value)
        for a in range(first, end):
            leaf_of[order[a]] = node
