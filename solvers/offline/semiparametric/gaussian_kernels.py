"""Gaussian kernel exp(-gamma |x - z|^2) between sparse rows."""

import math

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    RO_F8,
    RO_I4,
    RO_I8,
    Floats,
    Indices,
    Ints,
    f8,
    i8,
    kernel,
    void,
)


@kernel(f8(RO_I4, RO_F8, i8, i8, RO_I4, RO_F8, i8, i8), inline=True)
def squared_distance(
    indices: Indices,
    values: Floats,
    p: int,
    p_end: int,
    other_indices: Indices,
    other_values: Floats,
    q: int,
    q_end: int,
) -> float:
    """|x - z|^2 of two sorted rows, summed from differences, because |x|^2 - 2 x.z + |z|^2
    cancels.
    """
    total = 0.0
    while p < p_end and q < q_end:
        j, i = indices[p], other_indices[q]
        if j == i:
            apart = values[p] - other_values[q]
            p += 1
            q += 1
        elif j < i:
            apart = values[p]
            p += 1
        else:
            apart = other_values[q]
            q += 1
        total += apart * apart
    while p < p_end:
        total += values[p] * values[p]
        p += 1
    while q < q_end:
        total += other_values[q] * other_values[q]
        q += 1
    return total


@kernel(void(RO_I8, RO_I4, RO_F8, RO_I8, f8, F8_2D))
def fill_rows(
    indptr: Ints, indices: Indices, values: Floats, rows: Ints, gamma: float, out: Floats
) -> None:
    """out[k, j] = k(x_rows[k], x_j), (len(rows), n)."""
    n = indptr.shape[0] - 1
    for k in range(rows.shape[0]):
        i = rows[k]
        for j in range(n):
            apart = squared_distance(
                indices, values, indptr[i], indptr[i + 1],
                indices, values, indptr[j], indptr[j + 1],
            )  # fmt: skip
            out[k, j] = math.exp(-gamma * apart)


@kernel(void(RO_I8, RO_I4, RO_F8, RO_I8, f8, F8_2D))
def fill_square(
    indptr: Ints, indices: Indices, values: Floats, rows: Ints, gamma: float, out: Floats
) -> None:
    """out[k, l] = k(x_rows[k], x_rows[l]), (len(rows), len(rows)), symmetric to the bit."""
    for k in range(rows.shape[0]):
        i = rows[k]
        out[k, k] = 1.0
        for m in range(k):
            j = rows[m]
            apart = squared_distance(
                indices, values, indptr[i], indptr[i + 1],
                indices, values, indptr[j], indptr[j + 1],
            )  # fmt: skip
            out[k, m] = out[m, k] = math.exp(-gamma * apart)


@kernel(void(RO_I8, RO_I4, RO_F8, RO_I8, RO_I4, RO_F8, RO_F8, f8, F8))
def expand(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    support_indptr: Ints,
    support_indices: Indices,
    support_values: Floats,
    delta: Floats,
    gamma: float,
    out: Floats,
) -> None:
    """out[i] = sum_j delta_j k(x_i, s_j), over the support rows s_j in order."""
    for i in range(indptr.shape[0] - 1):
        total = 0.0
        for j in range(delta.shape[0]):
            apart = squared_distance(
                indices, values, indptr[i], indptr[i + 1],
                support_indices, support_values, support_indptr[j], support_indptr[j + 1],
            )  # fmt: skip
            total += delta[j] * math.exp(-gamma * apart)
        out[i] = total
