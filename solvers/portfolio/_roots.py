"""The logistic dual steps of all members of a row at once.

`_scalar.logistic_root` solves one; its steps depend on each other, and a processor waits for each.
Here every step is taken for all members before the next one, first the exponentials and then the
arithmetic four members at a time. A member's result does not depend on who is solved with it.
"""

import math

from solvers._jit import F8, F8_2D, Floats, f8, i8, kernel, void
from solvers._scalar import sigmoid

# The rows of `lanes`: what is given, what comes back, and what stands between.
C, S, U, SHARE, LOW, HIGH, STEP, OPEN = range(8)
N_LANES = 8

_MOST_STEPS = 100


@kernel(void(F8, F8, F8, F8, F8, F8, F8), apart=True)
def begin_roots(
    c: Floats, s: Floats, u: Floats, low: Floats, high: Floats, last: Floats, is_open: Floats
) -> None:
    """A bracket and a first guess for each member, as in `_scalar.logistic_root`."""
    for j in range(c.shape[0]):
        low[j] = -c[j] - s[j]
        if s[j] > 2.0:
            low[j] = max(low[j], -math.log1p(s[j]) - max(c[j], 0.0) - 1.0)
    for j in range(c.shape[0]):
        hi = min(-c[j], max(0.0, -c[j] - 0.5 * s[j]))
        guess = 0.5 - 0.5 * c[j] / (1.0 + abs(c[j]))
        first = -c[j] - s[j] * guess / (1.0 + s[j] * guess * (1.0 - guess))
        is_inside = (low[j] < first) & (first < hi)
        u[j] = first if is_inside else low[j] + 0.5 * (hi - low[j])
        high[j] = hi
        last[j] = hi - low[j]
        is_open[j] = 1.0


@kernel(f8(F8, F8, F8, F8, F8, F8, F8, F8), apart=True)
def step_roots(
    c: Floats,
    s: Floats,
    u: Floats,
    b: Floats,
    low: Floats,
    high: Floats,
    last: Floats,
    is_open: Floats,
) -> float:
    """One step of every member that is open; returns how many still are."""
    left = 0.0
    for j in range(c.shape[0]):
        residual = u[j] + c[j] + s[j] * b[j]
        lo = low[j] if residual > 0.0 else u[j]
        hi = u[j] if residual > 0.0 else high[j]
        b1 = b[j] * (1.0 - b[j])
        b2, b3 = b1 * (1.0 - 2.0 * b[j]), b1 * (1.0 - 6.0 * b1)
        slope = 1.0 + s[j] * b1
        newton = -residual / slope
        bent = newton * s[j] * b2
        step = newton * (6.0 * slope + 3.0 * bent)
        step /= 6.0 * slope + 6.0 * bent + newton * newton * s[j] * b3
        is_last = abs(step) <= 1e-4
        nearer = min(b[j] + step * (b1 + 0.5 * step * (b2 + step * b3 / 3.0)), 1.0)
        # Written so that a step that is not a number bisects.
        is_inside = (lo < u[j] + step) & (u[j] + step < hi)
        is_inside = is_inside & (2.0 * abs(step) <= abs(last[j]))
        careful = step if is_inside else lo + 0.5 * (hi - lo) - u[j]
        step = step if is_last else careful
        is_stuck = u[j] + step == u[j]
        was_open = is_open[j] > 0.0
        b[j] = nearer if was_open & is_last else b[j]
        u[j] = u[j] + step if was_open else u[j]
        low[j], high[j], last[j] = lo, hi, step
        is_open[j] = 0.0 if is_last | is_stuck else is_open[j]
    for j in range(c.shape[0]):
        left += is_open[j]
    return left


@kernel(void(i8, F8_2D))
def logistic_roots(n: int, lanes: Floats) -> None:
    """U and SHARE = sigmoid(U) at the root of u + C + S sigmoid(u), for n members.

    lanes (N_LANES, room): C and S >= 0 are given; finite, else what comes back is not a number.
    """
    c, s, u, b = lanes[C, :n], lanes[S, :n], lanes[U, :n], lanes[SHARE, :n]
    low, high, last, is_open = lanes[LOW, :n], lanes[HIGH, :n], lanes[STEP, :n], lanes[OPEN, :n]
    begin_roots(c, s, u, low, high, last, is_open)
    for _ in range(_MOST_STEPS):
        for j in range(n):
            if is_open[j] > 0.0:
                b[j] = sigmoid(u[j])
        if step_roots(c, s, u, b, low, high, last, is_open) == 0.0:
            return
