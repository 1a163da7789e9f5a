"""The two windows of a column that its stability index compares, as shares of rows by value.

See stability_index.py: the past is the long window without the short one.
"""

from collections.abc import Callable

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.profile import kernels as k
from dualstream.solvers.profile.column import Bin

MISSING, MISSING_OR_ZERO, ZERO = "(missing)", "(missing or 0)", "0"
"""What rows without the column stand for."""
OTHER_VALUES = "(other values)"
_DIGITS = 4


def number_bins(clock: Floats, cells: Floats, absent: str) -> list[Bin]:
    """Bins of numbers in ascending order, without those that no row is in; then missing values.

    clock, cells  see kernels.py; those of one column
    absent        what rows without the column stand for
    """
    shares = _number_shares(clock, cells)
    # Below the first edge, at it, between it and the next one, and so on.
    edges = [None, *cells[k.BODY : k.BODY + k.EDGES].tolist(), None]
    bins: list[Bin] = [
        (None, edges[(at + 1) // 2], edges[at // 2 + 1], *share)
        for at, share in enumerate(shares[:-2].tolist())
    ]
    # A missing value or a text in a row; a row without the column.
    bins.append((MISSING, None, None, *shares[-2].tolist()))
    if absent == ZERO:
        bins.append((None, 0.0, 0.0, *shares[-1].tolist()))
    else:
        bins.append((absent, None, None, *shares[-1].tolist()))
    return [one for one in bins if one[-2] or one[-1]]


def boolean_bins(clock: Floats, cells: Floats, absent: str) -> list[Bin]:
    """True, `absent`, and missing values."""
    shares = _number_shares(clock, cells)
    named = [("true", shares[:-2].sum(axis=0)), (absent, shares[-1]), (MISSING, shares[-2])]
    return [(text, None, None, *share.tolist()) for text, share in named if share.any()]


def category_bins(clock: Floats, cells: Floats, value_of: Callable[[int], str]) -> list[Bin]:
    """The most frequent values, those that share a bin together; then the others, and missing."""
    first = k.CATEGORIES_FROM
    sums = cells[first : first + 2 * k.CATEGORY_BINS].reshape(-1, 2)
    shares = _shares(clock, cells, sums, cells[[k.SHORT_HELD, k.LONG_HELD]])
    top = cells[k.TOP_FROM : k.TOP_FROM + 3 * k.TOP].reshape(-1, 3)
    names: dict[int, list[str]] = {}
    for key in top[np.argsort(-top[:, 1], kind="stable"), 0].tolist():
        if key:
            names.setdefault(k.category_bin(int(key) - 1), []).append(value_of(int(key) - 1))
    others = [at for at in range(k.CATEGORY_BINS) if at not in names]
    named = [(", ".join(values), shares[at]) for at, values in names.items()]
    named += [(OTHER_VALUES, shares[others].sum(axis=0)), (MISSING, shares[-1])]
    return [(text, None, None, *share.tolist()) for text, share in named if share.any()]


def _number_shares(clock: Floats, cells: Floats) -> Floats:
    first = k.NUMBERS_FROM
    sums = cells[first : first + 2 * k.NUMBER_BINS].reshape(-1, 2)
    return _shares(clock, cells, sums, sums.sum(axis=0))


def _shares(clock: Floats, cells: Floats, sums: Floats, present: Floats) -> Floats:
    """(bins + 1, 2): shares before and in the recent window; the last one of rows without the
    column.

    sums     (bins, 2): weights in the short and in the long window
    present  (2,): weights of rows with the column
    """
    totals = clock[[k.SHORT_TOTAL, k.LONG_TOTAL]] - cells[[k.SHORT_START, k.LONG_START]]
    weights = np.vstack([sums, np.maximum(totals - present, 0.0)]) / clock[[k.SHORT, k.LONG]]
    recent = weights[:, 0]
    both = np.stack([np.maximum(weights[:, 1] - recent, 0.0), recent], axis=1)
    shares: Floats = np.round(both / np.maximum(both.sum(axis=0), 1e-300), _DIGITS)
    return shares
