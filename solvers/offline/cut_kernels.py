"""Cutting plane kernels: the line search, and the cuts at a point."""

import math

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_I4, RO_I8, U1, kernel


@kernel
def line_search(
    margins: RO_F8, moves: RO_F8, costs: RO_F8, slope: float, curve: float, steps: F8, jumps: F8
) -> float:
    """argmin over k >= 0 of  slope k + curve k^2 / 2 + sum_i costs_i max(0, 1 - m_i - k moves_i).

    Franc, Sonnenburg (2008), without sorting. The derivative is piecewise linear and rises by
    costs_i |moves_i| where row i begins or ceases to count. The piece where it crosses 0 is found
    by quickselect. A row with margin 1 counts from there on if its margin falls.

    margins, moves, costs (n,);  places, jumps (n,) scratch. Cost O(n) on average.
    """
    count, at_zero, size = 0, slope, abs(slope)
    for i in range(margins.shape[0]):
        move, rest = costs[i] * moves[i], 1.0 - margins[i]
        if rest > 0.0 or (rest == 0.0 and move < 0.0):
            at_zero -= move
        size += abs(move)
        if move != 0.0:
            step = rest / moves[i]
            if step > 0.0:
                steps[count], jumps[count] = step, abs(move)
                count += 1
    # Slopes of this size are rounding errors: a flat piece has no distant crossing.
    noise = 1e-15 * size
    if not at_zero < -noise:
        return 0.0
    # The derivative just after `low` is at_low < 0; steps[a:b] are the breakpoints beyond `low`.
    low, at_low, a, b = 0.0, at_zero, 0, count
    high = math.inf
    while a < b:
        x, y, z = steps[a], steps[(a + b) // 2], steps[b - 1]
        pivot = max(min(x, y), min(max(x, y), z))
        # Below the pivot: a to i; at it: i to j; above it: end to b.
        i, j, end = a, a, b
        before = at_low + curve * (pivot - low)
        at_pivot = 0.0
        while j < end:
            x, jump = steps[j], jumps[j]
            if x < pivot:
                steps[j], jumps[j] = steps[i], jumps[i]
                steps[i], jumps[i] = x, jump
                before += jump
                i += 1
                j += 1
            elif x > pivot:
                end -= 1
                steps[j], jumps[j] = steps[end], jumps[end]
                steps[end], jumps[end] = x, jump
            else:
                at_pivot += jump
                j += 1
        if before >= -noise:
            b, high = i, pivot
        elif before + at_pivot >= -noise:
            return float(pivot)
        else:
            low, at_low, a = pivot, before + at_pivot, end
    if curve > 0.0:
        return float(min(low - at_low / curve, high))
    return float(low)


@kernel
def cuts_at(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    bias: float,
    labels: RO_F8,
    costs: RO_F8,
    margins: RO_F8,
    parts: int,
    planes: F8_2D,
    offsets: F8,
    sizes: I8,
    active: U1,
) -> None:
    """The cut of each part of the rows at the point with these margins y_i h_i.w.

    Row i belongs to part i mod `parts`, and counts if its margin is below 1.

    planes  (parts, width + 1)   sum of costs_i y_i h_i; the last coordinate is the intercept's
    offsets (parts,)             sum of costs_i;  sizes (parts,) number of rows
    active  (n,)                 1 for rows that count
    Cost O(entries of the rows that count).
    """
    width = planes.shape[1] - 1
    planes[:, :] = 0.0
    offsets[:] = 0.0
    sizes[:] = 0
    for i in range(margins.shape[0]):
        active[i] = 0
        if margins[i] < 1.0:
            active[i] = 1
            part, x = i % parts, costs[i] * labels[i]
            offsets[part] += costs[i]
            sizes[part] += 1
            for p in range(indptr[i], indptr[i + 1]):
                planes[part, indices[p]] += x * values[p]
            planes[part, width] += x * bias
