"""The logistic dual steps of all members of a row, vectorized.

`logistic_root` solves one step with iterations that depend on each other, so a processor
waits for each. Here every iteration runs for four members at a time. The result for one member does
not depend on the others.
"""

from dualstream.solvers.jit import F8, F8_2D, kernel
from dualstream.solvers.rows.scalar import exp_of, log_of, sigmoid_of

# Rows of `lanes`: inputs, outputs, and intermediate values.
C, S, U, B, CONJUGATE, LOW, HIGH, STEP, OPEN = range(9)
N_LANES = 9

_MAX_STEPS = 100
FARTHEST = 700.0
"""Beyond it a sigmoid is 0 or 1, and its exponential is not a normal number."""


@kernel(inline=True, apart=True)
def begin_roots(c: F8, s: F8, u: F8, low: F8, high: F8, last: F8, is_open: F8) -> None:
    """A bracket and a first guess for each member, as in `loss_kernels.logistic_root`."""
    for j in range(c.shape[0]):
        lo = -c[j] - s[j]
        nearer = -log_of(1.0 + s[j]) - max(c[j], 0.0) - 1.0
        lo = max(lo, nearer) if s[j] > 2.0 else lo
        hi = min(-c[j], max(0.0, -c[j] - 0.5 * s[j]))
        guess = 0.5 - 0.5 * c[j] / (1.0 + abs(c[j]))
        first = -c[j] - s[j] * guess / (1.0 + s[j] * guess * (1.0 - guess))
        is_inside = (lo < first) & (first < hi)
        u[j] = first if is_inside else lo + 0.5 * (hi - lo)
        low[j], high[j], last[j], is_open[j] = lo, hi, hi - lo, 1.0


@kernel(inline=True, apart=True)
def step_roots(c: F8, s: F8, u: F8, share: F8, low: F8, high: F8, last: F8, is_open: F8) -> float:
    """One iteration for every unconverged member; returns how many remain."""
    for j in range(c.shape[0]):
        here = u[j]
        b = sigmoid_of(max(min(here, FARTHEST), -FARTHEST))
        residual = here + c[j] + s[j] * b
        lo = low[j] if residual > 0.0 else here
        hi = here if residual > 0.0 else high[j]
        b1 = b * (1.0 - b)
        b2, b3 = b1 * (1.0 - 2.0 * b), b1 * (1.0 - 6.0 * b1)
        slope = 1.0 + s[j] * b1
        # As in loss_kernels.logistic_root, with one division.
        curved = residual * s[j] * b2
        step = -residual * (6.0 * slope * slope - 3.0 * curved)
        step /= 6.0 * slope * (slope * slope - curved) + residual * residual * s[j] * b3
        is_last = abs(step) <= 1e-4
        nearer = min(b + step * (b1 + 0.5 * step * (b2 + step * b3 / 3.0)), 1.0)
        # Written so that a NaN step bisects.
        is_inside = (lo < here + step) & (here + step < hi)
        is_inside = is_inside & (2.0 * abs(step) <= abs(last[j]))
        careful = step if is_inside else lo + 0.5 * (hi - lo) - here
        step = step if is_last else careful
        is_stuck = here + step == here
        was_open = is_open[j] > 0.0
        share[j] = (nearer if is_last else b) if was_open else share[j]
        u[j] = here + step if was_open else here
        low[j], high[j], last[j] = lo, hi, step
        is_open[j] = 0.0 if is_last | is_stuck else is_open[j]
    left = 0.0
    for j in range(c.shape[0]):
        left += is_open[j]
    return left


@kernel(inline=True, apart=True)
def conjugates(u: F8, b: F8, out: F8) -> None:
    """b log b + (1 - b) log(1 - b) for b = sigmoid(u), as b u - log(1 + e^u)."""
    for j in range(u.shape[0]):
        e = exp_of(-min(abs(u[j]), FARTHEST))
        out[j] = b[j] * u[j] - (max(u[j], 0.0) + log_of(1.0 + e))


@kernel(inline=True, inner=False)
def logistic_roots(n: int, lanes: F8_2D) -> None:
    """U and B = sigmoid(U) at the root of u + C + S sigmoid(u), for n members, and CONJUGATE.

    lanes (N_LANES, room): C and S >= 0 are inputs. If one is not finite, the result is NaN.
    """
    c, s, u, b = lanes[C, :n], lanes[S, :n], lanes[U, :n], lanes[B, :n]
    low, high, last, is_open = lanes[LOW, :n], lanes[HIGH, :n], lanes[STEP, :n], lanes[OPEN, :n]
    begin_roots(c, s, u, low, high, last, is_open)
    for _ in range(_MAX_STEPS):
        if step_roots(c, s, u, b, low, high, last, is_open) == 0.0:
            break
    conjugates(u, b, lanes[CONJUGATE, :n])
