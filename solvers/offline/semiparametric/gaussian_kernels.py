"""Gaussian kernel exp(-gamma |x - z|^2) between sparse rows."""

import math

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_I4, RO_I8, kernel


@kernel(inline=True)
def squared_distance(
    indices: RO_I4,
    values: RO_F8,
    p: int,
    p_end: int,
    other_indices: RO_I4,
    other_values: RO_F8,
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


@kernel
def fill_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, rows: RO_I8, gamma: float, out: F8_2D
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


@kernel
def fill_square(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, rows: RO_I8, gamma: float, out: F8_2D
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


@kernel
def expand(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    support_indptr: RO_I8,
    support_indices: RO_I4,
    support_values: RO_F8,
    delta: RO_F8,
    gamma: float,
    out: F8,
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
