"""Kernels of fused members: one pass over a row scores and learns it for all of them.

The *input* of a member is a base (column_table.py) and a norm, which is one factor for the whole
row. The intercept is a last coordinate of 1, neither scaled nor normed. With N the number of rows
of positive weight including this one, and c a row's weight, member k takes its score m before the
step, and the one-dimensional dual step tau of `loss_kernels.dual_step` with

    DUAL      s = c |h|^2 / C,            w += c tau h / C                    (O-DCA, C fixed)
    RISING    s = c |h|^2 / (C sqrt N),   u += c tau h,  w = u / (C sqrt N)   (rho = C / sqrt N)
    SPG       s = c |h|^2 / (C sqrt N),   w += c tau h / (C sqrt N)
    ADAGRAD   g = c Q'(m),  G_j += g^2 h_j^2,  s = c eta sum h_j^2 / sqrt G_j,
              w_j += c tau eta h_j / sqrt G_j
    NEWTON    S_j = gamma S_j + c Q'' h_j^2,  A_j = d + S_j,  s = c sum h_j^2 / A_j,
              w_j += c tau h_j / A_j;  Q'' is p (1 - p), or 1 for numbers

where |h|^2 includes the intercept. The first three are from Ying, Yuan, Sayed, "Online dual
coordinate ascent learning" (2016), eqs. (18)-(26) and (33). The others combine the dual step with
the diagonal of AdaGrad (Duchi, Hazan, Singer 2011) or of an online Newton step.

In every kernel, in addition to those of column_table.py
    what     (K, N_WHAT)    integers of each member, see below
    numbers  (K, N_NUMBERS) floats of each member
    duals    (K,)           sum of c Q*(-tau) of each member
    d        (3 second, room)  for ADAGRAD and NEWTON: G or S of each entry, the intercept's after
                            the last, then the directions, then their products with h
    steps    (N_STEPS, K)   the step of each member in this row, see below
    lanes    (N_LANES, room of K)  see logistic_roots.py
"""

import math

import numpy as np

from dualstream.solvers.features.column_table import (
    DELTA,
    FIRST,
    HELD,
    LAST,
    ROWS,
    SAMPLES,
    USED,
    emit_row,
    norm_row,
    prefetch_row,
)
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
    RO_I8_2D,
    kernel,
)
from dualstream.solvers.losses.loss_kernels import dual_step, gap_term, loss_at, loss_slope
from dualstream.solvers.portfolio.logistic_roots import (
    CONJUGATE as LANE_CONJUGATE,
    FARTHEST,
    B as LANE_B,
    C as LANE_C,
    S as LANE_S,
    logistic_roots,
)
from dualstream.solvers.portfolio.weighting_kernels import (
    IS_ACTIVE,
    LEARNS,
    RESETS,
    SCALE,
    TARGET,
    WAS_RESET,
    classify_row,
    regress_row,
    start_calibration,
)
from dualstream.solvers.rows.scalar import CACHED, clip, sigmoid_of

# Integers of a member (SECOND and DUAL_PLACE: -1 for none), then its floats.
BASE, INPUT, KIND, SECOND, DUAL_PLACE = range(5)
N_WHAT = 5
STRENGTH, DECAY, DAMPING, LOSS = range(4)
N_NUMBERS = LOSS + 6
IS_LOGISTIC, MARGIN, EPS, GAMMA, LO, HI = range(LOSS, N_NUMBERS)
DUAL, RISING, SPG, ADAGRAD, NEWTON = range(5)

# Columns of a retained row: label, weight, the factor of the bounds of tau (0: unbounded), and for
# each dual member its tau, its factor and its target.
LABEL, WEIGHT, BOUNDS, DUALS = range(4)
N_OF_DUAL = 3

# Rows of `steps`: the coefficient of the direction or of h; tau and Q*(-tau); s and h'd or |h|^2;
# the factor from tau to the coefficient; the member's lane.
COEFFICIENT, TAU, CONJUGATE, SIZE, NORM, FACTOR, LANE = range(7)
N_STEPS = 7

# A larger step means that the member has diverged; below it no sum of steps overflows.
_LARGEST_STEP = 1e150


@kernel(inline=True)
def score_entries(
    slots: RO_I8,
    h: F8_2D,
    n: int,
    table: F8_2D,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    factors: F8,
    scores: F8,
    row: float,
) -> None:
    """scores (K,) of the N-th row that counts; NaN for a score that is not finite."""
    for j in range(scores.shape[0]):
        row_values = h[what[j, BASE]]
        total = 0.0
        for p in range(n):
            if slots[p] >= 0:
                total += row_values[p] * table[slots[p], j]
        total = factors[what[j, INPUT]] * total + table[0, j]
        if what[j, KIND] == RISING:
            total /= numbers[j, STRENGTH] * math.sqrt(row)
        scores[j] = total if abs(total) < np.inf else np.nan


@kernel
def score_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    reach: float,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    dense: I4,
    is_here: F8,
    f: F8,
    k: I8,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    inputs: RO_I8_2D,
    bases: RO_F8_2D,
    starts: RO_F8,
    slots: I8,
    e: F8_2D,
    h: F8_2D,
    squares: F8,
    factors: F8,
    out: F8_2D,
) -> None:
    """out (n, K): the score of each row by each member, as if the row were learned next."""
    for i in range(out.shape[0]):
        n = emit_row(
            indices, values, indptr[i], indptr[i + 1], False, reach, buckets, touched, table, dense,
            is_here, f, k, bases, starts, what.shape[0], slots, e, h,
        )  # fmt: skip
        norm_row(h, n, False, f, inputs, squares, factors)
        score_entries(slots, h, n, table, what, numbers, factors, out[i], f[ROWS] + 1.0)


@kernel
def reset_member(
    table: F8_2D, k: I8, what: RO_I8_2D, j: int, starts: RO_F8, duals: F8, ring_rows: F8_2D
) -> None:
    """Reset member j: its weights and dual variables become 0. O(slots + rows retained)."""
    second, dual = what[j, SECOND], what[j, DUAL_PLACE]
    for slot in range(k[USED]):
        table[slot, j] = 0.0
        if second >= 0:
            table[slot, what.shape[0] + second] = starts[second]
    if dual >= 0 and ring_rows.shape[0] > 0:
        for i in range(k[FIRST], k[LAST]):
            ring_rows[i, DUALS + N_OF_DUAL * dual] = 0.0
    duals[j] = 0.0


@kernel(inline=True)
def load_second_moments(slots: RO_I8, n: int, table: F8_2D, what: RO_I8_2D, d: F8_2D) -> None:
    """Load G and S of the entries well before they are used: a vector load right after four scalar
    stores stalls."""
    for j in range(what.shape[0]):
        second = what[j, SECOND]
        if second >= 0:
            row_values, offset = d[second], what.shape[0] + second
            for p in range(n):
                row_values[p] = table[slots[p], offset]
            row_values[n] = table[0, offset]


@kernel(inline=True, apart=True)
def compute_directions(
    n: int,
    is_adagrad: bool,
    step: float,
    damping: float,
    keep: float,
    grown: float,
    factor: float,
    row_values: F8,
    total: F8,
    direction: F8,
    product: F8,
) -> None:
    """Add the values of a row to G or S, and compute the direction; all (n,).

    A NaN in G or S makes the product NaN, which resets the member.
    """
    if is_adagrad:
        for q in range(n):
            x = factor * row_values[q]
            t = keep * total[q] + grown * x * x
            turned = step * x / math.sqrt(t)
            total[q], direction[q], product[q] = t, turned, x * turned + 0.0 * t
    else:
        for q in range(n):
            x = factor * row_values[q]
            t = keep * total[q] + grown * x * x
            turned = x / (damping + t)
            total[q], direction[q], product[q] = t, turned, x * turned + 0.0 * t


@kernel(inline=True)
def take_direction(
    slots: RO_I8,
    h: F8_2D,
    n: int,
    table: F8_2D,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    j: int,
    factor: float,
    m: float,
    y: float,
    c: float,
    d: F8_2D,
) -> float:
    """Add the row to G or S of member j and set its direction; return h'd.

    Returns -1, without effect, if Q' is 0.
    """
    second, seconds = what[j, SECOND], d.shape[0] // 3
    offset = what.shape[0] + second
    is_adagrad = what[j, KIND] == ADAGRAD
    grown = c
    if is_adagrad and numbers[j, IS_LOGISTIC] != 0.0:
        slope = -c * y * sigmoid_of(clip(-y * m, -FARTHEST, FARTHEST))
        grown = slope * slope
    elif is_adagrad:
        slope = c * loss_slope(m, y, loss_at(numbers[j], LOSS))
        if slope == 0.0:
            return -1.0
        grown = slope * slope
    elif numbers[j, IS_LOGISTIC] != 0.0:
        p = sigmoid_of(clip(m, -FARTHEST, FARTHEST))
        grown = c * (p * (1.0 - p))
    total, direction, product = d[second], d[seconds + second], d[2 * seconds + second]
    step, damping, keep = numbers[j, STRENGTH], numbers[j, DAMPING], numbers[j, DECAY]
    compute_directions(
        n, is_adagrad, step, damping, keep, grown, factor, h[what[j, BASE]], total, direction,
        product,
    )  # fmt: skip
    last = keep * total[n] + grown
    size = step / math.sqrt(last) if is_adagrad else 1.0 / (damping + last)
    direction[n] = size
    table[0, offset] = last
    # Four sums, because each addition waits for the previous one.
    s1 = s2 = s3 = 0.0
    last_whole = n - n % 4
    for q in range(0, last_whole, 4):
        size += product[q]
        s1 += product[q + 1]
        s2 += product[q + 2]
        s3 += product[q + 3]
    for q in range(last_whole, n):
        size += product[q]
    for q in range(n):
        table[slots[q], offset] = total[q]
    return float((size + s1) + (s2 + s3) + 0.0 * last)


@kernel(inline=True)
def size_step(
    slots: RO_I8,
    h: F8_2D,
    n: int,
    table: F8_2D,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    j: int,
    factor: float,
    square: float,
    row: float,
    m: float,
    y: float,
    c: float,
    d: F8_2D,
    steps: F8_2D,
) -> None:
    """Set S, NORM and FACTOR of member j; FACTOR is 0 if it takes no step.

    square  |h|^2 without the intercept
    """
    kind = what[j, KIND]
    if kind >= ADAGRAD:
        norm = take_direction(slots, h, n, table, what, numbers, j, factor, m, y, c, d)
        steps[SIZE, j], steps[NORM, j] = c * norm, norm
        steps[FACTOR, j] = 0.0 if norm == -1.0 else c
        return
    strength = numbers[j, STRENGTH]
    if kind != DUAL:
        strength *= math.sqrt(row)
    norm = square + 1.0
    steps[SIZE, j], steps[NORM, j] = c * norm / strength, norm
    steps[FACTOR, j] = c if kind == RISING else c / strength


@kernel(inline=True)
def solve_logistic(
    what: RO_I8_2D, numbers: RO_F8_2D, margins: F8, targets: F8, steps: F8_2D, lanes: F8_2D
) -> None:
    """Set TAU, and c Q*(-tau) over c, of all members with the logistic loss that take a step."""
    n = 0
    for j in range(margins.shape[0]):
        steps[LANE, j] = -1.0
        if numbers[j, IS_LOGISTIC] != 0.0 and steps[FACTOR, j] > 0.0:
            lanes[LANE_C, n], lanes[LANE_S, n] = targets[j] * margins[j], steps[SIZE, j]
            steps[LANE, j] = n
            n += 1
    if n == 0:
        return
    # Whole vectors: the padding is solved too and ignored.
    padded = (n + 3) // 4 * 4
    for q in range(n, padded):
        lanes[LANE_C, q] = lanes[LANE_S, q] = 0.0
    logistic_roots(padded, lanes)
    for j in range(margins.shape[0]):
        lane = int(steps[LANE, j])
        if lane >= 0:
            steps[TAU, j] = targets[j] * lanes[LANE_B, lane]
            if what[j, DUAL_PLACE] >= 0:
                steps[CONJUGATE, j] = lanes[LANE_CONJUGATE, lane]


@kernel(inline=True)
def solve_quadratic(
    what: RO_I8_2D, numbers: RO_F8_2D, j: int, m: float, y: float, scale: float, steps: F8_2D
) -> None:
    """The same for a member with another loss; scale: the factor of the bounds of tau."""
    lo, hi = scale * numbers[j, LO], scale * numbers[j, HI]
    loss = 0.0, numbers[j, MARGIN], numbers[j, EPS], numbers[j, GAMMA], lo, hi
    steps[TAU, j], steps[CONJUGATE, j] = dual_step(m, steps[SIZE, j], y, loss)


@kernel(inline=True)
def move_weights(
    slots: RO_I8,
    h: F8_2D,
    n: int,
    table: F8_2D,
    what: RO_I8_2D,
    factors: F8,
    d: F8_2D,
    steps: F8_2D,
) -> None:
    """Add every member's step to its weights."""
    for j in range(what.shape[0]):
        coefficient, second = steps[COEFFICIENT, j], what[j, SECOND]
        if coefficient == 0.0:
            continue
        if second < 0:
            row_values = h[what[j, BASE]]
            table[0, j] += coefficient
            coefficient *= factors[what[j, INPUT]]
        else:
            row_values = d[d.shape[0] // 3 + second]
            table[0, j] += coefficient * row_values[n]
        for p in range(n):
            table[slots[p], j] += coefficient * row_values[p]


@kernel(inline=True)
def retain_row(
    slots: RO_I8,
    h: F8_2D,
    n: int,
    y: float,
    c: float,
    what: RO_I8_2D,
    factors: F8,
    scale: float,
    steps: F8_2D,
    k: I8,
    ring_starts: I8,
    ring_slots: I4,
    ring_values: F8_2D,
    ring_rows: F8_2D,
) -> None:
    """Append a row to the retained rows for certificates; scale: see solve_quadratic."""
    last = k[LAST]
    at = ring_starts[last]
    for p in range(n):
        ring_slots[at + p] = slots[p]
    for b in range(ring_values.shape[0]):
        kept, row_values = ring_values[b, at : at + n], h[b]
        for p in range(n):
            kept[p] = row_values[p]
    ring_starts[last + 1] = at + n
    ring_rows[last, LABEL], ring_rows[last, WEIGHT] = y, c
    ring_rows[last, BOUNDS] = scale if scale < np.inf else 0.0
    for j in range(what.shape[0]):
        dual = what[j, DUAL_PLACE]
        if dual >= 0:
            at_dual = DUALS + N_OF_DUAL * dual
            ring_rows[last, at_dual] = steps[TAU, j]
            ring_rows[last, at_dual + 1] = factors[what[j, INPUT]]
            ring_rows[last, at_dual + 2] = steps[N_STEPS, j]
    k[LAST] = last + 1


@kernel
def learn_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    start: int,
    retain: int,
    classes: bool,
    reach: float,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    dense: I4,
    is_here: F8,
    f: F8,
    k: I8,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    duals: F8,
    inputs: RO_I8_2D,
    bases: RO_F8_2D,
    starts: RO_F8,
    slots: I8,
    e: F8_2D,
    h: F8_2D,
    d: F8_2D,
    squares: F8,
    factors: F8,
    steps: F8_2D,
    lanes: F8_2D,
    margins: F8,
    ring_starts: I8,
    ring_slots: I4,
    ring_values: F8_2D,
    ring_rows: F8_2D,
    columns: RO_I8,
    scores: F8_2D,
    roles: RO_I8_2D,
    r: F8_2D,
    g: F8,
    recent: F8_2D,
    pairs: F8_2D,
    stack: F8_2D,
    scratch: F8_2D,
    out: F8_2D,
) -> int:
    """Score and learn rows `start` to n; return n, or the first row that does not fit into an
    array.

    retain   number of rows retained for certificates; 0 if no member has one
    classes  whether labels are -1 and 1; otherwise they are numbers
    reach    limit of values, see column_table.limit_entries; 0 for none
    ring_*   see windows.RowBuffer; its values are those of the first bases, which dual members use,
             its rows LABEL, WEIGHT, DUALS ...
    steps    (N_STEPS + 1, K)  with a row for the targets of the members
    margins     (K,)   scratch
    columns  (K,)   indices of these members among all of the portfolio
    scores   (n, all members)  contains the scores of the others; on return those of all members
    roles to out    see weighting_kernels.py
    """
    n_rows, n_members = labels.shape[0], what.shape[0]
    targets = steps[N_STEPS]
    is_far = table.shape[0] * table.shape[1] > CACHED
    for i in range(start, n_rows):
        begin, end = indptr[i], indptr[i + 1]
        entries = end - begin
        most = entries + k[HELD]
        if k[USED] + entries > table.shape[0] or most > dense.shape[0] or most + 1 > h.shape[1]:
            return i
        if retain > 0 and (
            k[LAST] == ring_rows.shape[0] or ring_starts[k[LAST]] + most > ring_slots.shape[0]
        ):
            return i
        y, c = labels[i], weights[i]
        counts = c > 0.0
        n = emit_row(
            indices, values, begin, end, counts, reach, buckets, touched, table, dense,
            is_here, f, k, bases, starts, n_members, slots, e, h,
        )  # fmt: skip
        if is_far and i + 1 < n_rows:
            prefetch_row(indices, end, indptr[i + 2], buckets, table)
        norm_row(h, n, counts, f, inputs, squares, factors)
        row = f[ROWS] if counts else f[ROWS] + 1.0
        score_entries(slots, h, n, table, what, numbers, factors, margins, row)
        if counts:
            load_second_moments(slots, n, table, what, d)
        for j in range(n_members):
            scores[i, columns[j]] = margins[j]
        if classes:
            classify_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, out[i])
        else:
            regress_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, out[i])
        k[SAMPLES] += 1
        if not counts:
            continue
        if out[i, LEARNS] == 0.0:
            continue
        f[DELTA] += c
        for j in range(n_members):
            steps[COEFFICIENT, j] = steps[TAU, j] = steps[CONJUGATE, j] = steps[FACTOR, j] = 0.0
            at = columns[j]
            targets[j] = scratch[TARGET, at]
            if r[IS_ACTIVE, at] == 0.0:
                continue
            if margins[j] != margins[j]:
                reset_member(table, k, what, j, starts, duals, ring_rows)
                continue
            factor = factors[what[j, INPUT]]
            size_step(
                slots, h, n, table, what, numbers, j, factor,
                factor * factor * squares[what[j, BASE]], row, margins[j], targets[j], c, d, steps,
            )  # fmt: skip
        solve_logistic(what, numbers, margins, targets, steps, lanes)
        for j in range(n_members):
            if steps[FACTOR, j] == 0.0:
                continue
            if numbers[j, IS_LOGISTIC] == 0.0:
                solve_quadratic(what, numbers, j, margins[j], targets[j], out[i, SCALE], steps)
            step = steps[FACTOR, j] * steps[TAU, j]
            is_sound = abs(step) * (steps[NORM, j] + 1.0) < _LARGEST_STEP
            dual = duals[j] + c * steps[CONJUGATE, j]
            if is_sound and steps[SIZE, j] < np.inf and abs(dual) < np.inf:
                steps[COEFFICIENT, j] = step
                duals[j] = dual
                continue
            start_calibration(r, columns[j])
            r[RESETS, columns[j]] += 1.0
            out[i, LEARNS] = WAS_RESET
            reset_member(table, k, what, j, starts, duals, ring_rows)
            steps[TAU, j] = 0.0
        if retain > 0:
            retain_row(
                slots, h, n, y, c, what, factors, out[i, SCALE], steps, k, ring_starts, ring_slots,
                ring_values, ring_rows,
            )  # fmt: skip
            if k[LAST] - k[FIRST] > retain:
                k[FIRST] += 1
        move_weights(slots, h, n, table, what, factors, d, steps)
    return int(n_rows)


@kernel
def member_sums(
    ring_starts: I8,
    ring_slots: I4,
    ring_values: F8_2D,
    ring_rows: F8_2D,
    k: RO_I8,
    table: F8_2D,
    what: RO_I8_2D,
    numbers: RO_F8_2D,
    j: int,
    scale: float,
    out: F8,
) -> None:
    """Sums for the certificate of dual member j, over the retained rows.

    scale  factor of its weights
    out    (3,): sums of delta, of delta [Q + Q* + tau z], and |w|^2
    """
    base, dual = what[j, BASE], DUALS + N_OF_DUAL * what[j, DUAL_PLACE]
    out[0] = out[1] = out[2] = 0.0
    for i in range(k[FIRST], k[LAST]):
        z = 0.0
        for p in range(ring_starts[i], ring_starts[i + 1]):
            z += ring_values[base, p] * table[np.int64(ring_slots[p]), j]
        z = scale * (ring_rows[i, dual + 1] * z + table[0, j])
        lo, hi = -np.inf, np.inf
        if ring_rows[i, BOUNDS] > 0.0:
            lo, hi = ring_rows[i, BOUNDS] * numbers[j, LO], ring_rows[i, BOUNDS] * numbers[j, HI]
        logistic, margin, eps, gamma, _, _ = loss_at(numbers[j], LOSS)
        loss = logistic, margin, eps, gamma, lo, hi
        term = gap_term(z, ring_rows[i, dual], ring_rows[i, dual + 2], loss)
        out[0] += ring_rows[i, WEIGHT]
        out[1] += ring_rows[i, WEIGHT] * term
    for slot in range(k[USED]):
        out[2] += (scale * table[slot, j]) ** 2
