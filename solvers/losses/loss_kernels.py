"""Losses in kernels: value, slope, conjugate, and the exact dual step of one row in closed form.

A loss is six numbers, not code (see losses.py): `logistic` (1.0 or 0.0), `margin` (1.0 or 0.0),
`eps`, `gamma`, `lo`, `hi`. With sgn = y and t = 1 for a margin loss, sgn = 1 and t = y for the
others, and r = t - sgn z, every piecewise quadratic loss is

    Q(z; y)   = max over lo <= b <= hi of  b r - eps |b| - gamma b^2 / 2
    Q*(-tau)  = -t b + eps |b| + gamma b^2 / 2,   b = sgn tau

where Q* is the convex conjugate of Q( . ; y). The logistic loss has Q = log(1 + exp(-y z)) and
Q*(-tau) = b log b + (1 - b) log(1 - b), b = y tau in [0, 1].
"""

import math

import numpy as np

from dualstream.solvers.jit import RO_F8, kernel
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid, soft, xlogx


@kernel(inner=True)
def logistic_root(c: float, s: float) -> tuple[float, float]:
    """The root u of F(u) = u + c + s sigmoid(u), and b = sigmoid(u).

    For finite c and s >= 0. Householder's method of order three (Householder 1970, section 4.4)
    inside a bracket; it bisects if a step is not half of the one before. Where s sigmoid(u) is
    exponential, unbracketed steps stay near one unit, however far the root is. The exponential
    dominates the cost, so the number of steps matters. Solving for u = logit(b) rather than b keeps
    b exact within rounding of 0 and 1.
    """
    lo = -c - s
    if s > 2.0:
        lo = max(lo, -math.log1p(s) - max(c, 0.0) - 1.0)
    hi = min(-c, max(0.0, -c - 0.5 * s))
    # One Newton step from -c, with a rational approximation of the sigmoid.
    guess = 0.5 - 0.5 * c / (1.0 + abs(c))
    u = -c - s * guess / (1.0 + s * guess * (1.0 - guess))
    if not lo < u < hi:
        u = lo + 0.5 * (hi - lo)
    b = sigmoid(u)
    last = hi - lo
    for _ in range(100):
        residual = u + c + s * b
        if residual > 0.0:
            hi = u
        else:
            lo = u
        # Derivatives of the sigmoid, and of F.
        b1 = b * (1.0 - b)
        b2, b3 = b1 * (1.0 - 2.0 * b), b1 * (1.0 - 6.0 * b1)
        slope = 1.0 + s * b1
        newton = -residual / slope
        bent = newton * s * b2
        step = newton * (6.0 * slope + 3.0 * bent)
        step /= 6.0 * slope + 6.0 * bent + newton * newton * s * b3
        # The remaining error is about the fourth power of the step, in u and relative in b.
        if abs(step) <= 1e-4:
            u += step
            b += step * (b1 + 0.5 * step * (b2 + step * b3 / 3.0))
            break
        # Written so that a NaN step bisects.
        if not (lo < u + step < hi and 2.0 * abs(step) <= abs(last)):
            step = lo + 0.5 * (hi - lo) - u
        last = step
        if u + step == u:
            break
        u += step
        b = sigmoid(u)
    return u, min(b, 1.0)


@kernel
def logistic_step(c: float, s: float) -> tuple[float, float]:
    """b = sigmoid(u) at the root of logistic_root, and b log b + (1 - b) log(1 - b)."""
    u, b = logistic_root(c, s)
    # log b - log(1 - b) = u, so one logarithm is enough: the one without cancellation.
    if u < 0.0:
        return b, math.log1p(-b) + b * u
    return b, math.log(b) - (1.0 - b) * u


@kernel(inner=True)
def best_b(r: float, curvature: float, eps: float, lo: float, hi: float) -> float:
    """argmax over lo <= b <= hi of  b r - eps |b| - curvature b^2 / 2; the smallest |b| at a tie.

    Curvature 0 is the limit of small curvatures: an end of [lo, hi], or 0.
    """
    x = soft(r, eps)
    if curvature > 0.0:
        return clip(x / curvature, lo, hi)
    if x > 0.0:
        return hi
    if x < 0.0:
        return lo
    return 0.0


LossNumbers = tuple[float, float, float, float, float, float]
"""logistic, margin, eps, gamma, lo and hi."""


@kernel(inline=True)
def loss_at(numbers: RO_F8, at: int) -> LossNumbers:
    """The loss whose numbers begin at numbers[at]."""
    return (
        numbers[at], numbers[at + 1], numbers[at + 2],
        numbers[at + 3], numbers[at + 4], numbers[at + 5],
    )  # fmt: skip


@kernel
def loss_value(z: float, y: float, loss: LossNumbers) -> float:
    """Q(z; y)."""
    logistic, margin, eps, gamma, lo, hi = loss
    if logistic != 0.0:
        return log1pexp(-y * z)
    r = 1.0 - y * z if margin != 0.0 else y - z
    b = best_b(r, gamma, eps, lo, hi)
    return b * r - eps * abs(b) - 0.5 * gamma * b * b


@kernel
def loss_slope(z: float, y: float, loss: LossNumbers) -> float:
    """An element of the subdifferential of Q( . ; y) at z.

    At a kink: the element nearest 0; for margin losses the one that still corrects the row, as in
    Ying, Yuan, Sayed, "Online dual coordinate ascent learning", eq. (46).
    """
    logistic, margin, eps, gamma, lo, hi = loss
    if logistic != 0.0:
        return -y * sigmoid(-y * z)
    r = 1.0 - y * z if margin != 0.0 else y - z
    if margin == 0.0:
        return -best_b(r, gamma, eps, lo, hi)
    if r == 0.0 and gamma == 0.0:
        return -y * hi
    return -y * best_b(r, gamma, eps, lo, hi)


@kernel
def loss_conjugate(tau: float, y: float, loss: LossNumbers) -> float:
    """Q*(-tau; y) for a tau in its domain."""
    logistic, margin, eps, gamma, _, _ = loss
    b = y * tau if margin != 0.0 else tau
    if logistic != 0.0:
        return xlogx(b) + xlogx(1.0 - b)
    t = 1.0 if margin != 0.0 else y
    return -t * b + eps * abs(b) + 0.5 * gamma * b * b


@kernel
def dual_step(m: float, s: float, y: float, loss: LossNumbers) -> tuple[float, float]:
    """tau = argmin of  Q*(-tau; y) + tau m + s tau^2 / 2  for s >= 0, and Q*(-tau; y).

    The dual coordinate of one row (eq. (26a) of the same paper, times Delta_N / delta_n, for the l2
    regularizer): m is the row's score before the step, s = a |h|^2. For s = 0 it is the limit s ->
    0, the element of -dQ(m; y) nearest 0, so a row of zeros adds nothing to the gap.
    """
    logistic, margin, eps, gamma, lo, hi = loss
    if logistic != 0.0:
        b, conjugate = logistic_step(y * m, s)
        return y * b, conjugate
    sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
    b = best_b(t - sgn * m, s + gamma, eps, lo, hi)
    return sgn * b, eps * abs(b) + 0.5 * gamma * b * b - t * b


@kernel
def gap_term(z: float, tau: float, y: float, loss: LossNumbers) -> float:
    """Q(z; y) + Q*(-tau; y) + tau z, a row's contribution to the duality gap; never below 0.

    Infinite where a term overflows: the true sum is unknown then, and a bound must not be below it.
    """
    value = loss_value(z, y, loss)
    conjugate = loss_conjugate(tau, y, loss)
    total = value + conjugate + tau * z
    if total != total:
        return np.inf
    return max(0.0, total)


@kernel
def loss_curvature(z: float, y: float, loss: LossNumbers) -> float:
    """Second derivative of Q( . ; y) at z; 0 where it jumps, and for gamma = 0."""
    logistic, margin, eps, gamma, lo, hi = loss
    if logistic != 0.0:
        b = sigmoid(-y * z)
        return b * (1.0 - b)
    r = 1.0 - y * z if margin != 0.0 else y - z
    b = best_b(r, gamma, eps, lo, hi)
    return 1.0 / gamma if gamma > 0.0 and b != 0.0 and lo < b < hi else 0.0


@kernel
def dual_argmin(m: float, s: float, y: float, loss: LossNumbers) -> float:
    """The first result of dual_step, for callers that do not need Q*."""
    logistic, margin, eps, gamma, lo, hi = loss
    if logistic != 0.0:
        _, b = logistic_root(y * m, s)
        return y * b
    sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
    return sgn * best_b(t - sgn * m, s + gamma, eps, lo, hi)
