"""A tree grown leaf by leaf from raw rows, for tests of boosted trees.

Bins are not modelled: with at most 32 distinct values a column every split is possible.
"""

import numpy as np

RIDGE, LEAST_ROWS = 1.0, 10


def unit_of(weights):
    """The weight of as many equal rows as tell as much as these."""
    return (weights**2).sum() / weights.sum()


def partition(rows, slopes, bends, most_leaves, least_gain, ridge=RIDGE):
    """[(rows of a leaf, conditions on them)], by the derivatives (n,) of all rows."""
    x = np.array(rows)
    leaves, conditions = [np.arange(len(x))], [[]]
    while len(leaves) < most_leaves:
        results = [
            (*best_split(x, slopes, bends, mine, ridge), at) for at, mine in enumerate(leaves)
        ]
        gain, column, edge, at = max(results, key=lambda one: one[0])
        if gain <= least_gain:
            break
        mine = leaves[at]
        below = x[mine, column] <= edge
        leaves[at] = mine[below]
        leaves.append(mine[~below])
        conditions.append([*conditions[at], (column, edge, False)])
        conditions[at] = [*conditions[at], (column, edge, True)]
    return list(zip(leaves, conditions, strict=True))


def best_split(x, slopes, bends, rows, ridge):
    """Gain, column and edge of the best split of these rows; gain 0 for none."""
    g, h = slopes[rows], bends[rows]
    whole, bend, count = g.sum(), h.sum(), len(rows)
    now = whole**2 / (bend + ridge)
    best = (0.0, -1, 0.0)
    least = 0.999999 * LEAST_ROWS * bend / count
    if count < 2 * LEAST_ROWS:
        return best
    for column in range(x.shape[1]):
        values = np.unique(x[:, column])
        for edge in 0.5 * (values[1:] + values[:-1]):
            low = x[rows, column] <= edge
            a, b = g[low].sum(), h[low].sum()
            if not (least <= b <= bend - least and 0 < low.sum() < count):
                continue
            gain = a**2 / (b + ridge) + (whole - a) ** 2 / (bend - b + ridge) - now
            if gain > best[0] + 1e-9:
                best = (gain, column, edge)
    return best


def tree_of(conditions, values):
    """The function of a row that returns the value of its leaf."""

    def tree(row):
        for of_leaf, value in zip(conditions, values, strict=True):
            if all((row[column] <= edge) == low for column, edge, low in of_leaf):
                return value
        raise AssertionError("no leaf")

    return tree
