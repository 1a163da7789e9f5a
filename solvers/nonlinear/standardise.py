"""Running moments of dense columns, for learners that measure distances or place knots.

moments (3, S) of each column: COUNT of rows so far, MEAN, and MEAN_SQUARE, the mean square distance
from the mean. A row enters with weight max(1 / rows, 1 / MEMORY), so that a scale that was right
long ago does not stay. A value further than REACH standard deviations from the mean enters as one
at that distance: one broken reading changes the scale by little.
"""

import math

from dualstream.solvers.jit import F8, F8_2D, kernel
from dualstream.solvers.rows.scalar import clip

COUNT, MEAN, MEAN_SQUARE = range(3)
N_MOMENTS = 3

MEMORY = 2000.0
REACH = 8.0


@kernel(inline=True, inner=False)
def count_moments(n: int, x: F8, moments: F8_2D) -> None:
    """Count one row of n columns."""
    for j in range(n):
        rows = moments[COUNT, j] + 1.0
        rate = max(1.0 / rows, 1.0 / MEMORY)
        mean, square = moments[MEAN, j], moments[MEAN_SQUARE, j]
        value = x[j]
        if rows > 10.0 and square > 0.0:
            reach = REACH * math.sqrt(square)
            value = clip(value, mean - reach, mean + reach)
        apart = value - mean
        moments[COUNT, j] = rows
        moments[MEAN, j] = mean + rate * apart
        moments[MEAN_SQUARE, j] = square + rate * ((1.0 - rate) * apart * apart - square)


@kernel(inline=True, inner=False)
def standardised(value: float, j: int, moments: F8_2D) -> float:
    """The distance of a value of column j from its mean, in standard deviations, at most REACH."""
    square = moments[MEAN_SQUARE, j]
    if not square > 0.0:
        return 0.0
    return clip((value - moments[MEAN, j]) / math.sqrt(square), -REACH, REACH)
