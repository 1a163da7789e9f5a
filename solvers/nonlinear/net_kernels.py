"""Kernels of the net: score a row, then take its AdaGrad step.

In every kernel, for H units in the first hidden layer and L in the second
    table     (slots, 2 H + ...)  see features/column_table.py: the block of a feature has its
                                  weights to the H units, and their sums of squared gradients
    first     (2, H)     bias of each unit, and its sum
    second    (H, 2 L)   weights from each first unit to the L second ones, and their sums
    third     (4, L)     bias of each second unit and its sum, its weight in the score and its sum
    f, k                 as in column_table.py, then SQUARES to SUM_OF_BIAS
    room of scratch      idx, val (room,), z, dz (H,), q, dq (L,)
"""

import math

import numpy as np

from dualstream.solvers.features.column_table import (
    HELD,
    N_INTS,
    ROWS,
    SAMPLES,
    SUMS,
    USED,
    emit_row,
    position_of,
)
from dualstream.solvers.jit import F8, F8_2D, I4, I4_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, kernel
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid

# Further floats of the state: the sum of |h|^2 of the rows; of the targets the weight, the mean and
# the mean square distance from it; the bias of the score and its sum of squares.
SQUARES, TARGETS, MEAN, SPREAD, BIAS, SUM_OF_BIAS = range(SUMS, SUMS + 6)
N_FLOATS = SUMS + 6

MAX_FEATURES = 4096
"""Features that the net reads: the first of the stream."""
START = 1e-2
"""Start of the sums of squares, as of AdaGrad (Duchi, Hazan, Singer, 2011)."""
LARGEST_INPUT, _RATE = 8.0, 1e-3
FAR = 8.0
"""Reach of a column's values, see column_table.limit_entries."""

__all__ = ["N_INTS", "learn_rows", "score_rows"]


@kernel(inline=True, apart=True)
def descend(x: float, step: float, slopes: F8, weights: F8, sums: F8) -> None:
    """An AdaGrad step of weights whose gradients are x times `slopes`."""
    for k in range(weights.shape[0]):
        gradient = slopes[k] * x
        sums[k] += gradient * gradient
        weights[k] -= step * gradient / math.sqrt(sums[k])


@kernel(inline=True, apart=True)
def add_times(x: float, weights: F8, out: F8) -> None:
    """out += x weights."""
    for k in range(out.shape[0]):
        out[k] += x * weights[k]


@kernel(inline=True)
def known_entries(
    indices: RO_I4, values: RO_F8, begin: int, end: int, buckets: I4_2D, free: int, idx: I4, val: F8
) -> int:
    """Copy the entries of a row whose feature has a slot, or gets one of `free` more."""
    n = 0
    for p in range(begin, end):
        if buckets[position_of(buckets, int(indices[p])), 0] == 0:
            if free == 0:
                continue
            free -= 1
        idx[n], val[n] = indices[p], values[p]
        n += 1
    return n


@kernel(inline=True)
def start_weights(
    first: int, used: int, touched: I4, table: F8_2D, units: int, seed: int, size: float
) -> None:
    """Draw the weights of slots `first` to `used`."""
    for slot in range(first, used):
        for k in range(units):
            number = np.int64(touched[slot]) * units + k
            table[slot, k] = drawn_number(seed, int(number)) * size


@kernel(inline=True)
def forward_hidden(
    n: int, slots: I8, h: F8, table: F8_2D, first: F8_2D, second: F8_2D, biases: F8, z: F8, q: F8
) -> None:
    """z and q are the outputs of the hidden units for n entries h; biases (L,) of the second."""
    units, last = z.shape[0], q.shape[0]
    for j in range(units):
        z[j] = first[0, j]
    for p in range(n):
        h[p] = clip(h[p], -LARGEST_INPUT, LARGEST_INPUT)
        if slots[p] >= 0 and h[p] != 0.0:
            add_times(h[p], table[slots[p], :units], z)
    for i in range(last):
        q[i] = biases[i]
    for j in range(units):
        z[j] = max(z[j], 0.0)
        if z[j] > 0.0:
            add_times(z[j], second[j, :last], q)
    for i in range(last):
        q[i] = max(q[i], 0.0)


@kernel(inline=True)
def forward(
    n: int,
    slots: I8,
    h: F8,
    table: F8_2D,
    first: F8_2D,
    second: F8_2D,
    third: F8_2D,
    bias: float,
    z: F8,
    q: F8,
) -> float:
    """The net's output for n entries h; z and q are the outputs of the hidden units."""
    forward_hidden(n, slots, h, table, first, second, third[0], z, q)
    out = bias
    for i in range(q.shape[0]):
        out += third[2, i] * q[i]
    return out


@kernel(inline=True)
def backward_hidden(
    step: float,
    n: int,
    slots: I8,
    h: F8,
    table: F8_2D,
    first: F8_2D,
    second: F8_2D,
    biases: F8,
    sums: F8,
    z: F8,
    dz: F8,
    dq: F8,
) -> None:
    """A step of all weights before the second units; dq (L,) are the derivatives by their sums."""
    units, last = z.shape[0], dq.shape[0]
    for j in range(units):
        dz[j] = 0.0
        if z[j] > 0.0:
            # Four sums, because each addition waits for the previous one.
            s0 = s1 = s2 = s3 = 0.0
            whole = last - last % 4
            for i in range(0, whole, 4):
                s0 += dq[i] * second[j, i]
                s1 += dq[i + 1] * second[j, i + 1]
                s2 += dq[i + 2] * second[j, i + 2]
                s3 += dq[i + 3] * second[j, i + 3]
            for i in range(whole, last):
                s0 += dq[i] * second[j, i]
            dz[j] = (s0 + s1) + (s2 + s3)
            descend(z[j], step, dq, second[j, :last], second[j, last:])
    descend(1.0, step, dq, biases, sums)
    descend(1.0, step, dz, first[0], first[1])
    for p in range(n):
        if slots[p] >= 0 and h[p] != 0.0:
            block = table[slots[p]]
            descend(h[p], step, dz, block[:units], block[units : 2 * units])


@kernel(inline=True)
def backward(
    slope: float,
    step: float,
    n: int,
    slots: I8,
    h: F8,
    table: F8_2D,
    first: F8_2D,
    second: F8_2D,
    third: F8_2D,
    f: F8,
    z: F8,
    q: F8,
    dz: F8,
    dq: F8,
) -> None:
    """One step along the gradient, `slope` being the derivative of the loss by the output."""
    f[SUM_OF_BIAS] += slope * slope
    f[BIAS] -= step * slope / math.sqrt(f[SUM_OF_BIAS])
    for i in range(q.shape[0]):
        dq[i] = slope * third[2, i] if q[i] > 0.0 else 0.0
    descend(slope, step, q, third[2], third[3])
    backward_hidden(step, n, slots, h, table, first, second, third[0], third[1], z, dz, dq)


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    start: int,
    scores: F8,
    losses: F8,
    is_binary: bool,
    reach: float,
    step: float,
    seed: int,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    dense: I4,
    is_here: F8,
    f: F8,
    k: I8,
    bases: RO_F8_2D,
    starts: RO_F8,
    slots: I8,
    e: F8_2D,
    h: F8_2D,
    idx: I4,
    val: F8,
    first: F8_2D,
    second: F8_2D,
    third: F8_2D,
    z: F8,
    q: F8,
    dz: F8,
    dq: F8,
) -> int:
    """Score and learn rows `start` to n; return n, or the first row that needs more room.

    A target counts as one within `reach` root mean square distances of the targets' mean.
    """
    units = z.shape[0]
    for i in range(start, labels.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        c = weights[i]
        learns = c > 0.0
        entries = end - begin
        if k[HELD] + entries + 1 > slots.shape[0] or k[HELD] + entries > dense.shape[0]:
            return i
        free = min(entries, MAX_FEATURES + 1 - k[USED]) if learns else entries
        if learns and k[USED] + free > touched.shape[0]:
            return i
        n = known_entries(indices, values, begin, end, buckets, free, idx, val)
        used = k[USED]
        n = emit_row(
            idx, val, 0, n, learns, FAR, buckets, touched, table, dense, is_here, f, k, bases,
            starts, units, slots, e, h,
        )  # fmt: skip
        inputs = h[0]
        if learns:
            for p in range(n):
                f[SQUARES] += clip(inputs[p], -LARGEST_INPUT, LARGEST_INPUT) ** 2
        out = forward(n, slots, inputs, table, first, second, third, f[BIAS], z, q)
        y = labels[i]
        spread = math.sqrt(f[SPREAD])
        if is_binary:
            scores[i] = out
            losses[i] = log1pexp(-out if y > 0.0 else out)
        else:
            scores[i] = f[MEAN] + spread * out
            losses[i] = 0.5 * (y - scores[i]) * (y - scores[i])
        k[SAMPLES] += 1
        if not learns:
            continue
        slope = 0.0
        if is_binary:
            slope = sigmoid(out) - (1.0 if y > 0.0 else 0.0)
        else:
            near = y
            if spread > 0.0:
                near = clip(y, f[MEAN] - reach * spread, f[MEAN] + reach * spread)
                slope = clip(out - (near - f[MEAN]) / spread, -1.0, 1.0)
            f[TARGETS] += c
            share = max(c / f[TARGETS], min(_RATE * c, 0.5))
            apart = near - f[MEAN]
            f[MEAN] += share * apart
            f[SPREAD] += share * ((1.0 - share) * apart * apart - f[SPREAD])
        # The score ignores new features, like a prediction. They take no step in their first row.
        for p in range(n):
            if slots[p] >= used:
                inputs[p] = 0.0
        if slope != 0.0:
            backward(
                c * slope, step, n, slots, inputs, table, first, second, third, f, z, q, dz, dq
            )  # fmt: skip
        if k[USED] > used:
            size = 1.0 / math.sqrt(max(f[SQUARES] / f[ROWS], 1.0))
            start_weights(used, k[USED], touched, table, units, seed, size)
    return int(labels.shape[0])


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8,
    is_binary: bool,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    dense: I4,
    is_here: F8,
    f: F8,
    k: I8,
    bases: RO_F8_2D,
    starts: RO_F8,
    slots: I8,
    e: F8_2D,
    h: F8_2D,
    first: F8_2D,
    second: F8_2D,
    third: F8_2D,
    z: F8,
    q: F8,
) -> None:
    """Scores (n,) of rows; the scratch arrays have room."""
    for i in range(scores.shape[0]):
        n = emit_row(
            indices, values, indptr[i], indptr[i + 1], False, FAR, buckets, touched, table, dense,
            is_here, f, k, bases, starts, z.shape[0], slots, e, h,
        )  # fmt: skip
        out = forward(n, slots, h[0], table, first, second, third, f[BIAS], z, q)
        scores[i] = out if is_binary else f[MEAN] + math.sqrt(f[SPREAD]) * out
