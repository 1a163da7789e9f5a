"""Drift of a column: the population stability index of its last rows against its own past.

PSI = sum over the bins of (p - q) log(p / q), with p the shares of the short window and q those of
the long window without the short one, less its mean on a column that does not move. kernels.py
fills the bins of both windows.
"""

import math

from dualstream.solvers.jit import F8, F8_2D, I8, I8_2D, kernel
from dualstream.solvers.profile import kernels

MIN_ROWS = 2_000
"""Rows in a column's windows before its stability index is computed."""
SMOOTHING = 0.01
"""Share of a distribution that is spread evenly over the bins."""


@kernel(inline=True)
def _term(p: float, q: float, even: float, noise: float) -> float:
    """A bin's part of the index, less its mean by chance: p has the variance noise * q * (1 - q).

    A share near `even` has no rows, so no chance either.
    """
    return (p - q) * math.log(p / q) - noise * (1.0 - q) * (q - even) / q


@kernel(inline=True)
def _index_of(
    cell: F8,
    first: int,
    bins: int,
    short_absent: float,
    long_absent: float,
    short_unit: float,
    long_unit: float,
) -> float:
    """Population stability index of two windows whose bins begin at `first`.

    The units make the weight of the last row 1 in both windows. So the past, which is the long
    window without the short one, has no weight below 0, and none for the last row.
    """
    recent_sum = short_absent * short_unit
    past_absent = max(0.0, long_absent * long_unit - recent_sum)
    past_sum = past_absent
    for at in range(first, first + 2 * bins, 2):
        recent = cell[at] * short_unit
        recent_sum += recent
        past_sum += max(0.0, cell[at + 1] * long_unit - recent)
    if not (recent_sum > 0.0 and past_sum > 0.0):
        return 0.0
    even = SMOOTHING / (bins + 1)
    to_recent, to_past = (1.0 - SMOOTHING) / recent_sum, (1.0 - SMOOTHING) / past_sum
    # The shares of a window of weights w^t have the variance of 2 / (1 - w) rows.
    noise = 0.5 / recent_sum + 0.5 / past_sum
    p = short_absent * short_unit * to_recent + even
    q = past_absent * to_past + even
    index = _term(p, q, even, noise)
    for at in range(first, first + 2 * bins, 2):
        recent = cell[at] * short_unit
        p = recent * to_recent + even
        q = max(0.0, cell[at + 1] * long_unit - recent) * to_past + even
        index += _term(p, q, even, noise)
    return max(0.0, index)


@kernel
def stability_indices(clock: F8, sizes: I8, counts: I8_2D, cells: F8_2D, out: F8) -> None:
    """Population stability index of each column; NaN for times and before MIN_ROWS rows.

    out  (columns,)
    """
    short_unit, long_unit = 1.0 / clock[kernels.SHORT], 1.0 / clock[kernels.LONG]
    for column in range(out.shape[0]):
        count, cell = counts[column], cells[column]
        out[column] = math.nan
        binned = count[kernels.BINNED_ROW]
        if binned == kernels.NOT_SEEN or sizes[kernels.LEARNED] - binned < MIN_ROWS:
            continue
        # Rows without the column: what the window has, and the column does not.
        short = clock[kernels.SHORT_TOTAL] - cell[kernels.SHORT_START]
        long = clock[kernels.LONG_TOTAL] - cell[kernels.LONG_START]
        if count[kernels.KIND] == kernels.CATEGORY:
            first, bins = kernels.CATEGORIES_FROM, kernels.CATEGORY_BINS
            short -= cell[kernels.SHORT_HELD]
            long -= cell[kernels.LONG_HELD]
        else:
            first, bins = kernels.NUMBERS_FROM, kernels.NUMBER_BINS
            for at in range(first, first + 2 * bins, 2):
                short -= cell[at]
                long -= cell[at + 1]
        short, long = max(0.0, short), max(0.0, long)
        out[column] = _index_of(cell, first, bins, short, long, short_unit, long_unit)
