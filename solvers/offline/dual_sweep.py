"""Kernel of sequential steps on single dual variables (l2), shared by several methods."""

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I4_2D, RO_I8, RO_I8_2D, kernel
from dualstream.solvers.losses.loss_kernels import dual_argmin, loss_at
from dualstream.solvers.rows.scalar import prefetch

LABEL, STEP, CURVATURE, DUAL = range(4)
"""Columns of `table`: one cache line has all numbers of a row's step."""

# Prefetch distance, in visits: rows are visited in random order, so their entries are prefetched
# this far ahead, and their positions twice as far.
AHEAD = 12


@kernel
def sweep(
    indptr: RO_I8_2D,
    indices: RO_I4_2D,
    values: RO_F8_2D,
    loss: RO_F8,
    bias: float,
    order: RO_I8,
    w: F8,
    table: F8_2D,
) -> float:
    """Dual steps on the rows of `order`; return sum of a_i times the gap of row i as visited.

    tau_i <- argmin of  Q*(-tau; y_i) + tau m + s_i tau^2 / 2,  m = h_i.w - s_i tau_i
    w     <- w + a_i (change of tau_i) h_i

    With s_i = a_i |h_i|^2 that is the exact maximum over tau_i (SDCA), with s_i = 0 the step of
    ASPDC, tau_i = -Q'(h_i.w). For the logistic loss the returned number is NaN.

    indptr, indices, values   columns
    loss  (6,)      see losses.Loss.numbers
    order (k,)      rows to visit; repeats allowed
    w (dim + 1,)    updated
    table (n, 4)    y_i, a_i, s_i, tau_i, of which the last is updated
    """
    last = w.shape[0] - 1
    numbers = loss_at(loss, 0)
    logistic, margin, eps, gamma, _, _ = numbers
    gap = 0.0
    count = order.shape[0]
    for k in range(count):
        if k + 2 * AHEAD < count:
            prefetch(indptr, order[k + 2 * AHEAD])
            prefetch(table, order[k + AHEAD])
            at = indptr[order[k + AHEAD], 0]
            prefetch(indices, at)
            prefetch(values, at)
            prefetch(values, at + 8)
        i = order[k]
        begin, end = indptr[i, 0], indptr[i + 1, 0]
        y, a, s, old = table[i, 0], table[i, 1], table[i, 2], table[i, 3]
        # Two sums, because each addition waits for the previous one.
        z, z2 = bias * w[last], 0.0
        p = begin
        while p + 1 < end:
            z += values[p, 0] * w[indices[p, 0]]
            z2 += values[p + 1, 0] * w[indices[p + 1, 0]]
            p += 2
        if p < end:
            z += values[p, 0] * w[indices[p, 0]]
        z += z2
        new = dual_argmin(z - s * old, s, y, numbers)
        if logistic == 0.0:
            best = dual_argmin(z, 0.0, y, numbers)
            # phi(tau) = -Q*(-tau) - tau z is largest at `best`, where it is Q(z).
            sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
            r, b, b_best = t - sgn * z, sgn * old, sgn * best
            at_best = b_best * r - eps * abs(b_best) - 0.5 * gamma * b_best * b_best
            gap += a * (at_best - (b * r - eps * abs(b) - 0.5 * gamma * b * b))
        if new != old:
            table[i, 3] = new
            step = a * (new - old)
            for p in range(begin, end):
                w[indices[p, 0]] += step * values[p, 0]
            w[last] += step * bias
    return gap if logistic == 0.0 else float("nan")
