"""Kernels of the net with an output for each class.

In every kernel, besides the arrays of net_kernels.py, for 1 + K outputs (see class_scorer.py)
    biases   (2, L)        bias of each second unit, and its sum of squared gradients
    outputs  (R, 2 L + 2)  R >= 1 + K: the weights from the L second units, the bias, and their sums
    p        (1 + K,)      scratch
"""

import math

from dualstream.solvers.features.column_table import HELD, ROWS, SAMPLES, USED, emit_row
from dualstream.solvers.jit import F8, F8_2D, I4, I4_2D, I8, RO_F8, RO_F8_2D, RO_I4, RO_I8, kernel
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


@kernel(inline=True)
def margins_of(outputs: F8_2D, q: F8, out: F8) -> None:
    """out (1 + K,): the margin of each output for the second units q (L,)."""
    last = q.shape[0]
    for c in range(out.shape[0]):
        weights, margin = outputs[c], outputs[c, last]
        for i in range(last):
            margin += weights[i] * q[i]
        out[c] = margin


@kernel(inline=True)
def descend_outputs(
    target: int, weight: float, step: float, outputs: F8_2D, p: F8, q: F8, dq: F8
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


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    class_ids: RO_I8,
    weights: RO_F8,
    start: int,
    scores: F8_2D,
    step: float,
    seed: int,
    slot_of: I4_2D,
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
    biases: F8_2D,
    outputs: F8_2D,
    p: F8,
    z: F8,
    q: F8,
    dz: F8,
    dq: F8,
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


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    scores: F8_2D,
    slot_of: I4_2D,
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
    biases: F8_2D,
    outputs: F8_2D,
    z: F8,
    q: F8,
) -> None:
    """Margins (n, 1 + K) of rows; the scratch arrays have room."""
    for i in range(scores.shape[0]):
        n = emit_row(
            indices, values, indptr[i], indptr[i + 1], False, FAR, slot_of, touched, table, dense,
            is_here, f, k, bases, starts, z.shape[0], slots, e, h,
        )  # fmt: skip
        forward_hidden(n, slots, h[0], table, first, second, biases[0], z, q)
        margins_of(outputs, q, scores[i])
