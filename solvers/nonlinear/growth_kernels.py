"""Kernels that grow one boosted tree, during one or several rows: see boosted_growth.py.

Arrays are those of boosted_kernels.py. A tree grows on the gradients at the rows of the ring, leaf
by leaf: packed gradients are summed in each bin of a column, and the best edge of a bin splits.
"""

import math

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I4, I8, I8_2D, RO_F8, RO_I8, U1, U1_2D, kernel
from dualstream.solvers.nonlinear.boosted_kernels import MARGIN, TARGET, WEIGHT
from dualstream.solvers.rows.scalar import clip, sigmoid

_MOST_VALUE = 6.0
"""Largest step of a leaf for classes, in log odds, before it is multiplied by the step."""
_LARGEST_SUM, _TINY, _LOW = 2.0**30, 1e-290, 0xFFFFFFFF
_MOST_KEY = 2**63 - 1


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
def partition(
    first: int, end: int, column: int, edge: int, codes: U1_2D, order: I4, right: I4
) -> int:
    """Put rows of order[first:end] whose bin is at most `edge` first; their number.

    right    is overwritten
    """
    # Unsigned, because numba looks at the sign of each other index.
    one, zero, j = np.uint64(1), np.uint64(0), np.uint64(column)
    start, middle, beyond = np.uint64(first), np.uint64(first), zero
    for a in range(start, np.uint64(end)):
        # Both are written, since a branch on the data would be mispredicted.
        r = order[a]
        is_left = one if codes[np.uint64(r), j] <= edge else zero
        order[middle] = right[beyond] = r
        middle += is_left
        beyond += one - is_left
    for a in range(beyond):
        order[middle + a] = right[a]
    return int(np.int64(middle - start))


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
        middle = first + partition(first, end, column, edge, codes, order, right)
        beyond = end - middle
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
