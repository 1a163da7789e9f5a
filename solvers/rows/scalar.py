"""Kernels of numbers, and of the entries of a row. Those of the losses are in loss_kernels.py."""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

from dualstream.solvers.jit import DISABLED, F8, I4, RO_F8, Floats, kernel, types

MAGIC = 6755399441055744.0
"""1.5 * 2^52: adding a number of up to 51 bits leaves that number, rounded, in the low bits."""
_MAGIC_BITS = 0x4338000000000000
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG2_E = 1.4426950408889634
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD

CACHED = 32_768
"""Numbers that fit into a first or second level cache. For larger tables kernels `prefetch`."""
FIRST_DENSE_ROW = 21.0
"""First row at which a column can become dense under balanced scaling; see features/scaling.py."""
SMALL_STEP, SMALL_NORM = 1e90, 1e180
"""Limits of g and |h|^2 within which g h keeps a finite number finite: it is below half a unit in
the last place of the largest number."""
TINY = 1e-290
"""A mean square below this has no square root that is safe to divide by."""
_LARGE = 1e300


@kernel
def clip(x: float, lo: float, hi: float) -> float:
    """x moved into [lo, hi]."""
    if x < lo:
        return lo
    if x > hi:
        return hi
    return x


@kernel
def prior_odds(f: RO_F8, at: int) -> float:
    """Log odds of the labels so far: f[at], f[at + 1] are the weights of positive and negative
    ones."""
    return math.log((f[at] + 0.5) / (f[at + 1] + 0.5))


@kernel
def soft(x: float, eps: float) -> float:
    """Soft threshold: x moved towards 0 by eps, but not past 0."""
    if x > eps:
        return x - eps
    if x < -eps:
        return x + eps
    return 0.0


@kernel
def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for any x without overflow."""
    e = math.exp(-abs(x))
    # Selects between two numbers rather than two branches, which no processor could predict.
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@kernel
def log1pexp(x: float) -> float:
    """log(1 + exp(x)), for any x without overflow."""
    if x > 0.0:
        return x + math.log1p(math.exp(-x))
    return math.log1p(math.exp(x))


@kernel
def xlogx(x: float) -> float:
    """x log x, with 0 log 0 = 0."""
    return x * math.log(x) if x > 0.0 else 0.0


@kernel
def sort_row(indices: I4, values: F8, start: int, end: int) -> None:
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
        address = builder.gep(array.data, [builder.mul(arguments[1], columns)])
        pointer = builder.bitcast(address, cgutils.voidptr_t)
        i32 = ir.IntType(32)
        asked = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        call = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), asked)
        read, keep, is_data = (ir.Constant(i32, number) for number in (0, 3, 1))
        builder.call(call, [pointer, read, keep, is_data])
        return context.get_dummy_value()

    return types.void(matrix, types.int64), generate


def _no_prefetch(matrix: Floats, row: int) -> None:
    """Without a compiler there is no prefetch."""


prefetch: Any = _no_prefetch if DISABLED else intrinsic(_prefetch)
"""For tables larger than a cache: loads the next rows while the current one is used."""


@kernel
def unknown_label(labels: RO_F8, binary: bool) -> int:
    """First row with a label that is invalid for the task, or -1. Invalid: NaN; for binary all but
    -1, 0, 1."""
    for i in range(labels.shape[0]):
        y = labels[i]
        if y != y or (binary and not (y == 1.0 or y == -1.0 or y == 0.0)):
            return i
    return -1


@kernel(inner=True)
def scaled_norm(values: RO_F8, begin: int, end: int, bias: float) -> float:
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


@kernel
def shrink(x: float, eps: float) -> float:
    """Soft threshold for finite x and eps >= 0, without an unpredictable branch."""
    at_least = x if x > -eps else -eps
    return x - (at_least if at_least < eps else eps)


@kernel(inner=True)
def balance(share: float, power: float) -> float:
    """share^(-power): the factor of a sparse column under balanced scaling."""
    if power == 0.25:
        return math.sqrt(math.sqrt(1.0 / share))
    if power == 0.0:
        return 1.0
    return math.exp(-power * math.log(share))


@kernel(inner=True)
def dense_value(x: float, t: float, c: float, mu: float, m: float) -> float:
    """h_j of a dense column x of balanced scaling, see features/scaling.py."""
    share = c / t
    square = m / t + share * mu * mu
    var = m / t + share * (1.0 - share) * mu * mu
    if var <= 1e-30 * square or var < TINY:
        return 0.0
    return (x - mu * share) / math.sqrt(var)


@kernel(inner=True)
def sparse_ratio(x: float, c: float, mu: float, m: float) -> float:
    """x / rms_j of a sparse column, see features/scaling.py."""
    square = m / c + mu * mu
    if square < TINY:
        return 0.0
    return x / math.sqrt(square)


@kernel(inner=True)
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


@kernel(inline=True, inner=False)
def exp_of(x: float) -> float:
    """exp(x) for x in [-708, 709], to about one unit in the last place; NaN for NaN.

    For loops over the members of a portfolio: sums and products only, which LLVM vectorizes by
    four. Calls of the C library run one after the other.
    """
    shifted = x * _LOG2_E + MAGIC
    n = shifted - MAGIC
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


@kernel(inline=True, inner=False)
def log_of(x: float) -> float:
    """log(x) for a normal x > 0, to about one unit in the last place; see exp_of."""
    bits = bits_of(x)
    e = (bits - _ROOT_HALF_BITS) >> 52
    m: float = float_of(bits - (e << 52))
    n: float = float_of(e + _MAGIC_BITS) - MAGIC
    s: float = (m - 1.0) / (m + 1.0)
    s2 = s * s
    s4 = s2 * s2
    low = (1.0 / 3.0 + s2 * (1.0 / 5.0)) + s4 * (1.0 / 7.0 + s2 * (1.0 / 9.0))
    mid = (1.0 / 11.0 + s2 * (1.0 / 13.0)) + s4 * (1.0 / 15.0 + s2 * (1.0 / 17.0))
    high = 1.0 / 19.0 + s2 * (1.0 / 21.0)
    p = low + s4 * s4 * (mid + s4 * s4 * high)
    return n * _LN2_HIGH + (2.0 * s + (2.0 * s * s2 * p + n * _LN2_LOW))


@kernel(inline=True, inner=False)
def sigmoid_of(x: float) -> float:
    """sigmoid(x) for |x| <= 708; see exp_of."""
    e = exp_of(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@kernel
def fold(v: F8, scale: float) -> float:
    """v *= scale; return |v|^2, which may be infinite or NaN."""
    total = 0.0
    for j in range(v.shape[0]):
        v[j] *= scale
        total += v[j] * v[j]
    return min(total, _LARGE)
