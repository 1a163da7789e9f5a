"""Kernels of the net with an output for each class.

In every kernel, besides the arrays of net_kernels.py, for 1 + K outputs (see class_scorer.py)
    biases   (2, L)        bias of each second unit, and its sum of squared gradients
    outputs  (R, 2 L + 2)  R >= 1 + K: the weights from the L second units, the bias, and their sums
    p        (1 + K,)      scratch
"""

import math

from dualstream.solvers.features.column_table import HELD, ROWS, SAMPLES, USED, emit_row
from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I4,
    I4_2D,
    I8,
    RO_F8,
    RO_F8_2D,
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
from dualstream.solvers.nonlinear.net_kernels import (
    FAR,
    LARGEST_INPUT,
    MAX_FEATURES,
    SQUARES,
    add_times,
    backward_hidden,
    descend as adagrad_step,
    forward_hidden,
    known_entries,
    start_weights,
)
from dualstream.solvers.nonlinear.softmax import softmax
from dualstream.solvers.rows.scalar import clip


@kernel(void(F8_2D, F8, F8), inline=True)
def margins_of(outputs: Floats, q: Floats, out: Floats) -> None:
    """out (1 + K,): the margin of each output for the second units q (L,)."""
    last = q.shape[0]
    for c in range(out.shape[0]):
        weights, margin = outputs[c], outputs[c, last]
        for i in range(last):
            margin += weights[i] * q[i]
        out[c] = margin


@kernel(void(i8, f8, f8, F8_2D, F8, F8, F8), inline=True)
def descend_outputs(
    target: int, weight: float, step: float, outputs: Floats, p: Floats, q: Floats, dq: Floats
) -> None:
    """A step of the outputs' weights along the gradient of the softmax loss at probabilities p.

    dq (L,): the derivatives of the loss by the sums of the second units.
    """
    last = q.shape[0]
    for i in range(last):
        dq[i] = 0.0
    for c in range(p.shape[0]):
        weights = outputs[c]
        slope = weight * (p[c] - (1.0 if c == target else 0.0))
        if slope == 0.0:
            continue
        add_times(slope, weights[:last], dq)
        weights[2 * last + 1] += slope * slope
        weights[last] -= step * slope / math.sqrt(weights[2 * last + 1])
        adagrad_step(slope, step, q, weights[:last], weights[last + 1 : 2 * last + 1])
    for i in range(last):
        if not q[i] > 0.0:
            dq[i] = 0.0


@kernel(
    i8(
        RO_I8, RO_I4, RO_F8, RO_I8, RO_F8, i8, F8_2D, f8, i8, I4_2D, I4, F8_2D, I4, F8, F8, I8,
        RO_F8_2D, RO_F8, I8, F8_2D, F8_2D, I4, F8, F8_2D, F8_2D, F8_2D, F8_2D, F8, F8, F8, F8, F8,
    )
)  # fmt: skip
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    class_ids: Ints,
    weights: Floats,
    start: int,
    scores: Floats,
    step: float,
    seed: int,
    slot_of: Indices,
    touched: Indices,
    table: Floats,
    dense: Indices,
    is_here: Floats,
    f: Floats,
    k: Ints,
    bases: Floats,
    starts: Floats,
    slots: Ints,
    e: Floats,
    h: Floats,
    idx: Indices,
    val: Floats,
    first: Floats,
    second: Floats,
    biases: Floats,
    outputs: Floats,
    p: Floats,
    z: Floats,
    q: Floats,
    dz: Floats,
    dq: Floats,
) -> int:
    """As net_kernels.learn_rows; scores (n, 1 + K) are margins, class_ids (n,) the classes."""
    units = z.shape[0]
    for i in range(start, weights.shape[0]):
        begin, end = indptr[i], indptr[i + 1]
        learns = weights[i] > 0.0
        entries = end - begin
        if k[HELD] + entries + 1 > slots.shape[0] or k[HELD] + entries > dense.shape[0]:
            return i
        free = min(entries, MAX_FEATURES + 1 - k[USED]) if learns else entries
        if learns and k[USED] + free > touched.shape[0]:
            return i
        n = known_entries(indices, values, begin, end, slot_of, free, idx, val)
        used = k[USED]
        n = emit_row(
            idx, val, 0, n, learns, FAR, slot_of, touched, table, dense, is_here, f, k, bases,
            starts, units, slots, e, h,
        )  # fmt: skip
        inputs = h[0]
        if learns:
            for j in range(n):
                f[SQUARES] += clip(inputs[j], -LARGEST_INPUT, LARGEST_INPUT) ** 2
        forward_hidden(n, slots, inputs, table, first, second, biases[0], z, q)
        margins_of(outputs, q, scores[i])
        k[SAMPLES] += 1
        if not learns:
            continue
        # The score ignores new features, like a prediction. They take no step in their first row.
        for j in range(n):
            if slots[j] >= used:
                inputs[j] = 0.0
        softmax(scores[i], p)
        descend_outputs(1 + class_ids[i], weights[i], step, outputs, p, q, dq)
        backward_hidden(
            step, n, slots, inputs, table, first, second, biases[0], biases[1], z, dz, dq
        )  # fmt: skip
        if k[USED] > used:
            size = 1.0 / math.sqrt(max(f[SQUARES] / f[ROWS], 1.0))
            start_weights(used, k[USED], touched, table, units, seed, size)
    return int(weights.shape[0])


@kernel(
    void(
        RO_I8, RO_I4, RO_F8, F8_2D, I4_2D, I4, F8_2D, I4, F8, F8, I8, RO_F8_2D, RO_F8, I8, F8_2D,
        F8_2D, F8_2D, F8_2D, F8_2D, F8_2D, F8, F8,
    )
)  # fmt: skip
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    scores: Floats,
    slot_of: Indices,
    touched: Indices,
    table: Floats,
    dense: Indices,
    is_here: Floats,
    f: Floats,
    k: Ints,
    bases: Floats,
    starts: Floats,
    slots: Ints,
    e: Floats,
    h: Floats,
    first: Floats,
    second: Floats,
    biases: Floats,
    outputs: Floats,
    z: Floats,
    q: Floats,
) -> None:
    """Margins (n, 1 + K) of rows; the scratch arrays have room."""
    for i in range(scores.shape[0]):
        n = emit_row(
            indices, values, indptr[i], indptr[i + 1], False, FAR, slot_of, touched, table, dense,
            is_here, f, k, bases, starts, z.shape[0], slots, e, h,
        )  # fmt: skip
        forward_hidden(n, slots, h[0], table, first, second, biases[0], z, q)
        margins_of(outputs, q, scores[i])
