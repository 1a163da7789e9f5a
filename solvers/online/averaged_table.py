"""Weights that decay, and their average, in O(entries) per row: kernels of such tables.

The weights are `scale` v, so that all of them decay in O(1). The average of the iterates,
sum_n kappa^(N-n) w_n / S_N, is stored as k (P v + z) / S: a step that adds g to v_j subtracts P g
from z_j, so both cost only the row's entries. Operations on all coordinates are rare enough to cost
nothing per row: when `scale` is below 1e-3, P v moves into z and the scale into v (otherwise the
rounding error of P v + z grows without bound when kappa > beta); and when k is below 1e-100, it
moves into z and P.

In every kernel
    w       (width, 1 or 2)   v, and z where averaged; the last row is the intercept's
    bias                      the last coordinate of every row: 1.0 or 0.0
"""

import math

import numpy as np

from dualstream.solvers.jit import F8_2D, RO_F8, RO_F8_2D, RO_I4, kernel


@kernel(inline=True)
def row_products(
    indices: RO_I4, values: RO_F8, begin: int, end: int, w: RO_F8_2D, bias: float
) -> tuple[float, float, float]:
    """h.v, h.z (0 without z) and h.h of the row of entries `begin` to `end`."""
    averaged = w.shape[1] == 2
    end_of_w = w.shape[0] - 1
    dv, dz, hh = 0.0, 0.0, 0.0
    # Unsigned, so that numba skips the check for negative indices.
    for p in range(np.uint64(begin), np.uint64(end)):
        x, j = values[p], np.uint32(indices[p])
        dv += x * w[j, 0]
        if averaged:
            dz += x * w[j, 1]
        hh += x * x
    if averaged:
        dz += bias * w[end_of_w, 1]
    return dv + bias * w[end_of_w, 0], dz, hh + bias * bias


@kernel(inline=True)
def add_row(
    indices: RO_I4, values: RO_F8, begin: int, end: int, w: F8_2D, bias: float, g: float, pg: float
) -> None:
    """v += g h, z -= pg h."""
    averaged = w.shape[1] == 2
    end_of_w = w.shape[0] - 1
    for p in range(np.uint64(begin), np.uint64(end)):
        x, j = values[p], np.uint32(indices[p])
        w[j, 0] += g * x
        if averaged:
            w[j, 1] -= pg * x
    w[end_of_w, 0] += g * bias
    if averaged:
        w[end_of_w, 1] -= pg * bias


@kernel(inner=True)
def stays_finite(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    w: RO_F8_2D,
    bias: float,
    g: float,
    pg: float,
    shrink: float,
) -> bool:
    """Whether shrink v + g h and z - pg h are finite at the entries of the row."""
    at_z = w.shape[1] - 1
    end_of_w = w.shape[0] - 1
    finite = (
        abs(w[end_of_w, 0] * shrink + g * bias) < math.inf
        and abs(w[end_of_w, at_z] - pg * bias) < math.inf
    )
    for p in range(begin, end):
        x, j = values[p], indices[p]
        finite = (
            finite
            and abs(w[j, 0] * shrink + g * x) < math.inf
            and abs(w[j, at_z] - pg * x) < math.inf
        )
    return bool(finite)


@kernel(inner=True)
def flush_is_finite(w: RO_F8_2D, p: float) -> bool:
    """Whether z + P v is finite."""
    finite = True
    for j in range(w.shape[0]):
        finite = finite and abs(w[j, 1] + p * w[j, 0]) < math.inf
    return finite


@kernel(inner=True)
def flush(w: F8_2D, p: float, scale: float) -> None:
    """z += P v, v *= scale: the same weights with P = 0 and scale 1."""
    averaged = w.shape[1] == 2
    for j in range(w.shape[0]):
        if averaged:
            w[j, 1] += p * w[j, 0]
        w[j, 0] *= scale


@kernel(inner=True)
def scale_average(w: F8_2D, k: float) -> None:
    """z *= k: the same average with k = 1."""
    for j in range(w.shape[0]):
        w[j, 1] *= k
