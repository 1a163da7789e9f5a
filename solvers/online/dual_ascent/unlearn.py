"""Unlearning a retained row of O-DCA.

The result is the state of the same problem without the row: its parts delta lambda h, delta and
delta Q*(-lambda) are subtracted from u, Delta and the sum of conjugates. Every other row keeps its
dual variable and its delta. If every row that counts is retained, u and both sums are summed again
from the remaining rows, which leaves no rounding error of the row. A sliding window is the last of
the retained rows, so a row that had left it may return.
"""

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I4, I8, Floats, Ints, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_conjugate
from dualstream.solvers.online.dual_ascent import kernels as l2
from dualstream.solvers.online.forgetting_windows import WEIGHT, Ring

_NEGLIGIBLE = 1e-9
"""Rows that are not retained are negligible below this share of Delta."""
_ROUNDING = 1e-12
"""A coordinate of u that falls to this share of the subtracted amount is 0 up to rounding."""


@kernel
def sum_rows(
    first: int,
    last: int,
    only: int,
    beta: float,
    bias: float,
    loss: F8,
    starts: I8,
    indices: I4,
    values: F8,
    rows: F8_2D,
    u: F8,
    out: F8,
) -> None:
    """Parts of the state due to the retained rows `first` to `last`, or to row `only` if it is >=
    0.

    loss  (6,)      see losses.Loss.numbers
    u     (width,)  += the sum of delta lambda h, the newest first
    out   (4,)      sums of delta and delta Q*(-lambda); the sum of the sizes |delta lambda h| (see
                    kernels.size_of), and the number of sizes above 0
    Cost O(entries).
    """
    end_of_u = u.shape[0] - 1
    decay = 1.0
    delta_sum = conjugate_sum = size_sum = 0.0
    steps = 0
    for i in range(last - 1, first - 1, -1):
        delta = decay * rows[i, 1]
        decay *= beta
        if only >= 0 and i != only:
            continue
        y, dual = rows[i, 0], rows[i, 2]
        delta_sum += delta
        conjugate_sum += delta * loss_conjugate(dual, y, loss_at(loss, 0))
        g = delta * dual
        if g == 0.0:
            continue
        hh = bias * bias
        for p in range(starts[i], starts[i + 1]):
            u[indices[p]] += g * values[p]
            hh += values[p] * values[p]
        u[end_of_u] += g * bias
        size_sum += min(max(abs(g) * np.sqrt(hh), 1e-300), 1e300)
        steps += 1
    out[0], out[1], out[2], out[3] = delta_sum, conjugate_sum, size_sum, steps


def sum_of(
    ring: Ring, f: Floats, u: Floats, first: int, last: int, only: int = -1
) -> tuple[float, float, float, int]:
    """The sums of sum_rows; adds to u."""
    out = np.empty(4)
    loss = f[l2.LOSS : l2.POSITIVE]
    sum_rows(first, last, only, f[l2.BETA], f[l2.BIAS], loss, *ring.arrays, u, out)
    delta, conjugate, size, steps = out.tolist()
    return delta, conjugate, size, int(steps)


def first_that_counts(k: Ints) -> int:
    """The first retained row that is in the window."""
    first, last, length = int(k[l2.FIRST]), int(k[l2.LAST]), int(k[l2.LENGTH])
    return max(first, last - length) if length else first


def all_is_retained(ring: Ring, w: Floats, f: Floats, k: Ints) -> bool:
    """Whether every row that counts is retained: then u and both sums can be summed from rows."""
    if k[l2.LENGTH] > 0:
        return True
    delta, *_ = sum_of(ring, f, np.zeros(len(w)), int(k[l2.FIRST]), int(k[l2.LAST]))
    return bool(f[l2.DELTA] - delta <= _NEGLIGIBLE * f[l2.DELTA])


def recompute_sums(ring: Ring, w: Floats, f: Floats, k: Ints) -> None:
    """u, Delta and both sums from the retained rows that count, as if there were no others."""
    u = np.zeros(len(w))
    is_sliding = k[l2.LENGTH] > 0
    f[l2.DELTA], conjugate, size, steps = sum_of(ring, f, u, first_that_counts(k), int(k[l2.LAST]))
    w[:, 0], f[l2.SCALE] = u, 1.0
    # As in learn_rows: a sliding window's sum of conjugates is computed on demand.
    f[l2.CONJUGATE] = 0.0 if is_sliding else conjugate
    f[l2.IN_WINDOW], k[l2.N_STEPS] = (size, steps) if is_sliding else (0.0, 0)
    f[l2.EVICTED], k[l2.SINCE_RESUM] = 0.0, 0


def forget_average(w: Floats, f: Floats) -> None:
    """Reset the average to its initial, empty state."""
    w[:, 1:] = 0.0
    f[l2.AVG_P], f[l2.AVG_K], f[l2.AVG_S] = 0.0, 1.0, 0.0


def take_out(age: int, ring: Ring, w: Floats, f: Floats, k: Ints) -> None:
    """Remove the row that was learned `age` rows before the newest retained one from state and
    ring.

    w, f and k are those of kernels.py; the average restarts empty. The caller must check that the
    results are finite. O(width + entries retained).
    """
    first, last = int(k[l2.FIRST]), int(k[l2.LAST])
    at = last - 1 - age
    is_whole = all_is_retained(ring, w, f, k)
    if not is_whole:
        u = np.zeros(len(w))
        delta, conjugate, _, _ = sum_of(ring, f, u, first, last, at)
        part = u / f[l2.SCALE]
        v = w[:, 0] - part
        w[:, 0] = np.where(np.abs(v) <= _ROUNDING * np.abs(part), 0.0, v)
        f[l2.DELTA] -= delta
        f[l2.CONJUGATE] -= conjugate
    # These rows have one row less after them; the factor keeps their delta.
    ring.rows[first:at, WEIGHT] *= f[l2.BETA]
    ring.remove(first, last, at)
    k[l2.FIRST], k[l2.LAST] = 0, last - 1 - first
    if is_whole:
        recompute_sums(ring, w, f, k)
    forget_average(w, f)
