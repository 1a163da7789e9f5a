"""One kernel for every method that steps on one dual variable after the other (l2)."""

from solvers._jit import (
    F8,
    RO_F8,
    RO_I4,
    RO_I8,
    Floats,
    Indices,
    Ints,
    f8,
    kernel,
)
from solvers._scalar import dual_argmin


@kernel(f8(RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, RO_F8, RO_F8, f8, RO_I8, F8, F8))
def sweep(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    y: Floats,
    a: Floats,
    s: Floats,
    loss: Floats,
    bias: float,
    order: Ints,
    w: Floats,
    tau: Floats,
) -> float:
    """Dual steps on the rows of `order`; return sum of a_i times the gap of row i as met.

    tau_i <- argmin of  Q*(-tau; y_i) + tau m + s_i tau^2 / 2,  m = h_i.w - s_i tau_i
    w     <- w + a_i (change of tau_i) h_i

    With s_i = a_i |h_i|^2 that is the exact maximum over tau_i (SDCA), with s_i = 0 the step of
    ASPDC, tau_i = -Q'(h_i.w). For the logistic loss the returned number is NaN.

    y, a, s (n,)   labels, a_i, s_i
    loss    (6,)   see losses.Loss.numbers
    order   (k,)   rows to visit; repeats allowed
    w (dim + 1,), tau (n,)  updated
    """
    last = w.shape[0] - 1
    logistic, margin, eps, gamma, lo, hi = loss[0], loss[1], loss[2], loss[3], loss[4], loss[5]
    gap = 0.0
    for k in range(order.shape[0]):
        i = order[k]
        begin, end = indptr[i], indptr[i + 1]
        # Two sums: one addition need not wait for the one before.
        z, z2 = bias * w[last], 0.0
        p = begin
        while p + 1 < end:
            z += values[p] * w[indices[p]]
            z2 += values[p + 1] * w[indices[p + 1]]
            p += 2
        if p < end:
            z += values[p] * w[indices[p]]
        z += z2
        old = tau[i]
        new = dual_argmin(z - s[i] * old, s[i], y[i], logistic, margin, eps, gamma, lo, hi)
        if logistic == 0.0:
            best = dual_argmin(z, 0.0, y[i], logistic, margin, eps, gamma, lo, hi)
            # phi(tau) = -Q*(-tau) - tau z is largest at `best`, where it is Q(z).
            sgn, t = (y[i], 1.0) if margin != 0.0 else (1.0, y[i])
            r, b, b_best = t - sgn * z, sgn * old, sgn * best
            at_best = b_best * r - eps * abs(b_best) - 0.5 * gamma * b_best * b_best
            gap += a[i] * (at_best - (b * r - eps * abs(b) - 0.5 * gamma * b * b))
        if new != old:
            tau[i] = new
            step = a[i] * (new - old)
            for p in range(begin, end):
                w[indices[p]] += step * values[p]
            w[last] += step * bias
    return gap if logistic == 0.0 else float("nan")
