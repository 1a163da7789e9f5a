"""Scalar functions of losses and steps; kernels of other files may call these (SHARED_KERNELS).

A loss is six numbers, not code (see losses.py): `logistic` (1.0 or 0.0), `margin` (1.0 or 0.0),
`eps`, `gamma`, `lo`, `hi`. With sgn = y and t = 1 for a margin loss, sgn = 1 and t = y for the
others, and r = t - sgn z, every piecewise quadratic loss is

    Q(z; y)   = max over lo <= b <= hi of  b r - eps |b| - gamma b^2 / 2
    Q*(-tau)  = -t b + eps |b| + gamma b^2 / 2,   b = sgn tau

where Q* is the convex conjugate of Q( . ; y). The logistic loss has Q = log(1 + exp(-y z)) and
Q*(-tau) = b log b + (1 - b) log(1 - b), b = y tau in [0, 1].
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

from dualstream.solvers.jit import (
    DISABLED,
    F8,
    I4,
    RO_F8,
    Floats,
    Indices,
    b1,
    f8,
    i8,
    kernel,
    types,
    void,
)

_MAGIC = 6755399441055744.0
"""1.5 * 2^52: adding a number of up to 51 bits leaves that number, rounded, in the low bits."""
_MAGIC_BITS = 0x4338000000000000
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG2_E = 1.4426950408889634
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD

# A mean square below this has no square root that is safe to divide by.
_TINY = 1e-290
_LARGE = 1e300


@kernel(f8(f8, f8, f8))
def clip(x: float, lo: float, hi: float) -> float:
    """x moved into [lo, hi]."""
    if x < lo:
        return lo
    if x > hi:
        return hi
    return x


@kernel(f8(f8, f8))
def soft(x: float, eps: float) -> float:
    """Soft threshold: x moved towards 0 by eps, but not past 0."""
    if x > eps:
        return x - eps
    if x < -eps:
        return x + eps
    return 0.0


@kernel(f8(f8))
def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for any x without overflow."""
    e = math.exp(-abs(x))
    # Selects between two numbers rather than two branches, which no processor could predict.
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@kernel(f8(f8))
def log1pexp(x: float) -> float:
    """log(1 + exp(x)), for any x without overflow."""
    if x > 0.0:
        return x + math.log1p(math.exp(-x))
    return math.log1p(math.exp(x))


@kernel(f8(f8))
def xlogx(x: float) -> float:
    """x log x, with 0 log 0 = 0."""
    return x * math.log(x) if x > 0.0 else 0.0


@kernel(types.UniTuple(f8, 2)(f8, f8), inner=True)
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


@kernel(types.UniTuple(f8, 2)(f8, f8))
def logistic_step(c: float, s: float) -> tuple[float, float]:
    """b = sigmoid(u) at the root of logistic_root, and b log b + (1 - b) log(1 - b)."""
    u, b = logistic_root(c, s)
    # log b - log(1 - b) = u, so one logarithm is enough: the one without cancellation.
    if u < 0.0:
        return b, math.log1p(-b) + b * u
    return b, math.log(b) - (1.0 - b) * u


@kernel(f8(f8, f8, f8, f8, f8), inner=True)
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


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8))
def loss_value(
    z: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """Q(z; y)."""
    if logistic != 0.0:
        return log1pexp(-y * z)
    r = 1.0 - y * z if margin != 0.0 else y - z
    b = best_b(r, gamma, eps, lo, hi)
    return b * r - eps * abs(b) - 0.5 * gamma * b * b


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8))
def loss_slope(
    z: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """An element of the subdifferential of Q( . ; y) at z.

    At a kink: the element nearest 0; for margin losses the one that still corrects the row, as in
    Ying, Yuan, Sayed, "Online dual coordinate ascent learning", eq. (46).
    """
    if logistic != 0.0:
        return -y * sigmoid(-y * z)
    r = 1.0 - y * z if margin != 0.0 else y - z
    if margin == 0.0:
        return -best_b(r, gamma, eps, lo, hi)
    if r == 0.0 and gamma == 0.0:
        return -y * hi
    return -y * best_b(r, gamma, eps, lo, hi)


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8))
def loss_conjugate(
    tau: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """Q*(-tau; y) for a tau in its domain."""
    b = y * tau if margin != 0.0 else tau
    if logistic != 0.0:
        return xlogx(b) + xlogx(1.0 - b)
    t = 1.0 if margin != 0.0 else y
    return -t * b + eps * abs(b) + 0.5 * gamma * b * b


@kernel(types.UniTuple(f8, 2)(f8, f8, f8, f8, f8, f8, f8, f8, f8))
def dual_step(
    m: float,
    s: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> tuple[float, float]:
    """tau = argmin of  Q*(-tau; y) + tau m + s tau^2 / 2  for s >= 0, and Q*(-tau; y).

    The dual coordinate of one row (eq. (26a) of the same paper, times Delta_N / delta_n, for the l2
    regularizer): m is the row's score before the step, s = a |h|^2. For s = 0 it is the limit s ->
    0, the element of -dQ(m; y) nearest 0, so a row of zeros adds nothing to the gap.
    """
    if logistic != 0.0:
        b, conjugate = logistic_step(y * m, s)
        return y * b, conjugate
    sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
    b = best_b(t - sgn * m, s + gamma, eps, lo, hi)
    return sgn * b, eps * abs(b) + 0.5 * gamma * b * b - t * b


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8, f8))
def gap_term(
    z: float,
    tau: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """Q(z; y) + Q*(-tau; y) + tau z, a row's contribution to the duality gap; never below 0.

    Infinite where a term overflows: the true sum is unknown then, and a bound must not be below it.
    """
    value = loss_value(z, y, logistic, margin, eps, gamma, lo, hi)
    conjugate = loss_conjugate(tau, y, logistic, margin, eps, gamma, lo, hi)
    total = value + conjugate + tau * z
    if total != total:
        return np.inf
    return max(0.0, total)


@kernel(void(I4, F8, i8, i8))
def sort_row(indices: Indices, values: Floats, start: int, end: int) -> None:
    """Sort entries `start` to `end` of a row by index, in place: O(k log k), O(k) when sorted."""
    count = end - start
    if count <= 32:
        for p in range(start + 1, end):
            j, x = indices[p], values[p]
            q = p - 1
            while q >= start and indices[q] > j:
                indices[q + 1], values[q + 1] = indices[q], values[q]
                q -= 1
            indices[q + 1], values[q + 1] = j, x
        return
    # Heapsort: O(k log k) in the worst case.
    root, last = count // 2, count
    while last > 1:
        if root > 0:
            root -= 1
        else:
            last -= 1
            a, b = start, start + last
            indices[a], indices[b] = indices[b], indices[a]
            values[a], values[b] = values[b], values[a]
        j, x = indices[start + root], values[start + root]
        hole = root
        child = 2 * hole + 1
        while child < last:
            if child + 1 < last and indices[start + child + 1] > indices[start + child]:
                child += 1
            if indices[start + child] <= j:
                break
            indices[start + hole], values[start + hole] = (
                indices[start + child],
                values[start + child],
            )
            hole = child
            child = 2 * hole + 1
        indices[start + hole], values[start + hole] = j, x


def _prefetch(typing: Any, matrix: Any, row: Any) -> Any:
    """Prefetch the cache line of matrix[row, 0]; changes nothing and does not wait."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        columns = builder.extract_value(array.shape, 1)
        place = builder.gep(array.data, [builder.mul(arguments[1], columns)])
        pointer = builder.bitcast(place, cgutils.voidptr_t)
        i32 = ir.IntType(32)
        asked = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        call = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), asked)
        read, keep, is_data = (ir.Constant(i32, number) for number in (0, 3, 1))
        builder.call(call, [pointer, read, keep, is_data])
        return context.get_dummy_value()

    return void(matrix, i8), generate


def _no_prefetch(matrix: Floats, row: int) -> None:
    """Without a compiler there is no prefetch."""


prefetch: Any = _no_prefetch if DISABLED else intrinsic(_prefetch)
"""For tables larger than a cache: loads the next rows while the current one is used."""


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8))
def loss_curvature(
    z: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """Second derivative of Q( . ; y) at z; 0 where it jumps, and for gamma = 0."""
    if logistic != 0.0:
        b = sigmoid(-y * z)
        return b * (1.0 - b)
    r = 1.0 - y * z if margin != 0.0 else y - z
    b = best_b(r, gamma, eps, lo, hi)
    return 1.0 / gamma if gamma > 0.0 and b != 0.0 and lo < b < hi else 0.0


@kernel(i8(RO_F8, b1))
def unknown_label(labels: Floats, binary: bool) -> int:
    """First row with a label that is invalid for the task, or -1. Invalid: NaN; for binary all but
    -1, 0, 1."""
    for i in range(labels.shape[0]):
        y = labels[i]
        if y != y or (binary and not (y == 1.0 or y == -1.0 or y == 0.0)):
            return i
    return -1


@kernel(f8(RO_F8, i8, i8, f8), inner=True)
def scaled_norm(values: Floats, begin: int, end: int, bias: float) -> float:
    """The 2-norm of entries `begin` to `end` and `bias`, safe from underflow of the squares."""
    largest = abs(bias)
    for p in range(begin, end):
        largest = max(largest, abs(values[p]))
    if largest == 0.0:
        return 0.0
    total = (bias / largest) ** 2
    for p in range(begin, end):
        total += (values[p] / largest) ** 2
    return largest * math.sqrt(total)


@kernel(f8(f8, f8))
def shrink(x: float, eps: float) -> float:
    """Soft threshold for finite x and eps >= 0, without an unpredictable branch."""
    at_least = x if x > -eps else -eps
    return x - (at_least if at_least < eps else eps)


@kernel(f8(f8, f8, f8, f8, f8, f8, f8, f8, f8))
def dual_argmin(
    m: float,
    s: float,
    y: float,
    logistic: float,
    margin: float,
    eps: float,
    gamma: float,
    lo: float,
    hi: float,
) -> float:
    """The first result of dual_step, for callers that do not need Q*."""
    if logistic != 0.0:
        _, b = logistic_root(y * m, s)
        return y * b
    sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
    return sgn * best_b(t - sgn * m, s + gamma, eps, lo, hi)


@kernel(f8(f8, f8), inner=True)
def balance(share: float, power: float) -> float:
    """share^(-power): the factor of a sparse column under balanced scaling."""
    if power == 0.25:
        return math.sqrt(math.sqrt(1.0 / share))
    if power == 0.0:
        return 1.0
    return math.exp(-power * math.log(share))


@kernel(f8(f8, f8, f8, f8, f8), inner=True)
def dense_value(x: float, t: float, c: float, mu: float, m: float) -> float:
    """h_j of a dense column x of balanced scaling, see features/scaling.py."""
    share = c / t
    square = m / t + share * mu * mu
    var = m / t + share * (1.0 - share) * mu * mu
    if var <= 1e-30 * square or var < _TINY:
        return 0.0
    return (x - mu * share) / math.sqrt(var)


@kernel(f8(f8, f8, f8, f8), inner=True)
def sparse_ratio(x: float, c: float, mu: float, m: float) -> float:
    """x / rms_j of a sparse column, see features/scaling.py."""
    square = m / c + mu * mu
    if square < _TINY:
        return 0.0
    return x / math.sqrt(square)


@kernel(f8(f8, f8, f8, f8, f8, f8), inner=True)
def sparse_value(x: float, t: float, c: float, mu: float, m: float, power: float) -> float:
    """h_j of a sparse column x of balanced scaling, see features/scaling.py."""
    return sparse_ratio(x, c, mu, m) * balance(c / t, power)


def _bits_of(typing: Any, x: Any) -> Any:
    """The bits of a float64 as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


def _float_of(typing: Any, bits: Any) -> Any:
    """The float64 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _plain_bits_of(x: float) -> int:
    return int(np.float64(x).view(np.int64))


def _plain_float_of(bits: int) -> float:
    return float(np.uint64(bits & 0xFFFFFFFFFFFFFFFF).view(np.float64))


bits_of: Any = _plain_bits_of if DISABLED else intrinsic(_bits_of)
float_of: Any = _plain_float_of if DISABLED else intrinsic(_float_of)


@kernel(f8(f8), inline=True, inner=False)
def exp_of(x: float) -> float:
    """exp(x) for x in [-708, 709], to about one unit in the last place; NaN for NaN.

    For loops over the members of a portfolio: sums and products only, which LLVM vectorizes by
    four. Calls of the C library run one after the other.
    """
    shifted = x * _LOG2_E + _MAGIC
    n = shifted - _MAGIC
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (0.5 + r * (1.0 / 6.0)) + r2 * (1.0 / 24.0 + r * (1.0 / 120.0))
    mid = (1.0 / 720.0 + r * (1.0 / 5040.0)) + r2 * (1.0 / 40320.0 + r * (1.0 / 362880.0))
    high = (1.0 / 3628800.0 + r * (1.0 / 39916800.0)) + r2 * (
        1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
    )
    p = 1.0 + (r + r2 * (low + r4 * (mid + r4 * high)))
    scale: float = float_of((bits_of(shifted) + 1023) << 52)
    return p * scale


@kernel(f8(f8), inline=True, inner=False)
def log_of(x: float) -> float:
    """log(x) for a normal x > 0, to about one unit in the last place; see exp_of."""
    bits = bits_of(x)
    e = (bits - _ROOT_HALF_BITS) >> 52
    m: float = float_of(bits - (e << 52))
    n: float = float_of(e + _MAGIC_BITS) - _MAGIC
    s: float = (m - 1.0) / (m + 1.0)
    s2 = s * s
    s4 = s2 * s2
    low = (1.0 / 3.0 + s2 * (1.0 / 5.0)) + s4 * (1.0 / 7.0 + s2 * (1.0 / 9.0))
    mid = (1.0 / 11.0 + s2 * (1.0 / 13.0)) + s4 * (1.0 / 15.0 + s2 * (1.0 / 17.0))
    high = 1.0 / 19.0 + s2 * (1.0 / 21.0)
    p = low + s4 * s4 * (mid + s4 * s4 * high)
    return n * _LN2_HIGH + (2.0 * s + (2.0 * s * s2 * p + n * _LN2_LOW))


@kernel(f8(f8), inline=True, inner=False)
def sigmoid_of(x: float) -> float:
    """sigmoid(x) for |x| <= 708; see exp_of."""
    e = exp_of(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@kernel(f8(F8, f8))
def fold(v: Floats, scale: float) -> float:
    """v *= scale; return |v|^2, which may be infinite or NaN."""
    total = 0.0
    for j in range(v.shape[0]):
        v[j] *= scale
        total += v[j] * v[j]
    return min(total, _LARGE)
