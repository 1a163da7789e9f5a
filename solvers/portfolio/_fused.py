"""The kernels of fused members: one pass over a row scores it by all of them, and learns it.

A feature gets a slot when it first appears in a row that counts; slot 0 is the intercept's. A row
of `table` is a slot's block, [statistics of the column | G or S of the members that have one | the
weight of each member], so that one visit of a feature brings what every member needs.

A row comes in once and is emitted once for each *base*: the raw values, the counts (x (c_j / t)^-p)
and the balanced ones of each power in use, all from the same statistics (see features/scaling.py).
An *input* is a base and a norm, which is one factor for the whole row, so that the score of member
k is  factor_k sum_j base_j w_jk + w_0k.  The intercept is not scaled and not normed.

With N the rows of positive weight so far, this one included, and c a row's weight, member k takes
its own score m before the step, and the one-dimensional dual step tau of `_scalar.dual_step` with

    DUAL      s = c |h|^2 / C,            w += c tau h / C                    (O-DCA, C fixed)
    RISING    s = c |h|^2 / (C sqrt N),   u += c tau h,  w = u / (C sqrt N)   (rho = C / sqrt N)
    SPG       s = c |h|^2 / (C sqrt N),   w += c tau h / (C sqrt N)
    ADAGRAD   g = c Q'(m),  G_j += g^2 h_j^2,  s = c eta sum h_j^2 / sqrt G_j,
              w_j += c tau eta h_j / sqrt G_j
    NEWTON    S_j = gamma S_j + c p (1 - p) h_j^2,  A_j = 0.1 + S_j,  s = c sum h_j^2 / A_j,
              w_j += c tau h_j / A_j

where |h|^2 has the intercept. The first three are of Ying, Yuan, Sayed, "Online dual coordinate
ascent learning" (2016), eqs. (18)-(26) and (33); the others take their diagonal from AdaGrad
(Duchi, Hazan, Singer 2011) and from an online Newton step, and the dual step with it.

In every kernel
    table    (slots, 4 + second + members)  see above
    places   (capacity, 2)  open addressing: index + 1 (0: free) and slot; a power of two, half full
    dense    (room,)        slots of the dense columns; k[HELD] of them
    f, k     the numbers of the state, see below
    what     (K, N_WHAT)    what each member is, see below
    numbers  (K, N_NUMBERS) its numbers
    duals    (K,)           sum of c Q*(-tau) of each member
    inputs   (I, 2)         base and norm of each input
    bases    (B, 2)         kind and power of each base
"""

import math

import numpy as np

from solvers._jit import (
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
    Floats,
    Indices,
    Ints,
    b1,
    f8,
    i8,
    kernel,
    void,
)
from solvers._scalar import (
    balance,
    dense_value,
    dual_argmin,
    dual_step,
    gap_term,
    loss_slope,
    sigmoid,
    sparse_value,
)
from solvers.portfolio._rule import IS_ACTIVE, RESETS, classify_row, start_calibration

# What a block begins with.
COUNT, MEAN, M, IS_DENSE = range(4)
N_STATISTICS = 4

# The numbers of the state: whole ones ...
USED, HELD, FIRST, LAST, SAMPLES = range(5)
N_INTS = 5
# ... and others: rows counted, their weight, then a sum of |h|^2 for each input.
ROWS, DELTA, SUMS = range(3)

# What a member is: whole numbers (SECOND and DUAL_PLACE: -1 for none), and others.
BASE, INPUT, KIND, SECOND, DUAL_PLACE = range(5)
N_WHAT = 5
STRENGTH, DECAY, LOSS = range(3)
N_NUMBERS = LOSS + 6
DUAL, RISING, SPG, ADAGRAD, NEWTON = range(5)

RAW, COUNTS, BALANCED = range(3)
NORM_NONE, NORM_ROW, NORM_RUNNING = range(3)

# The columns of a retained row: label, weight, and for each dual member its tau and its factor.
LABEL, WEIGHT, DUALS = range(3)

# The columns of `steps`: what a row does to each member, and c Q*(-tau).
COEFFICIENT, TAU, CONJUGATE = range(3)

_FIRST_DENSE_ROW = 21.0
_DAMPING = 0.1
# A step beyond this is of a member that is no use any more; below it no sum of steps overflows.
_LARGEST_STEP = 1e100
_MULTIPLIER = 0x9E3779B1


@kernel(i8(I4_2D, i8))
def place_of(places: Indices, index: int) -> int:
    """Where `index` stands in the table of places, or the free place where it would."""
    mask = places.shape[0] - 1
    # Fibonacci hashing (Knuth, TAOCP 3, 6.4): neighbours are spread.
    at = ((index * _MULTIPLIER) & 0xFFFFFFFF) >> 7 & mask
    while places[at, 0] != 0 and places[at, 0] != index + 1:
        at = (at + 1) & mask
    return int(at)


@kernel(void(I4_2D, I4, i8, i8))
def enter_places(places: Indices, touched: Indices, first: int, used: int) -> None:
    """Put slots `first` to `used` into the table of places."""
    for slot in range(first, used):
        at = place_of(places, touched[slot])
        places[at, 0], places[at, 1] = touched[slot] + 1, slot


@kernel(f8(i8, f8, f8, f8, f8, f8, f8, f8, b1))
def base_value(
    kind: int,
    power: float,
    x: float,
    t: float,
    c: float,
    mu: float,
    m: float,
    ratio: float,
    is_dense: bool,
) -> float:
    """The value of one entry in one base; `ratio` is x / rms."""
    if kind == RAW:
        return x
    if kind == COUNTS:
        return x * balance(c / t, power) if x != 0.0 else 0.0
    if is_dense:
        return dense_value(x, t, c, mu, m)
    return ratio * balance(c / t, power)


@kernel(
    i8(RO_I4, RO_F8, i8, i8, b1, I4_2D, I4, F8_2D, I4, F8, F8, I8, RO_F8_2D, RO_F8, I8, F8_2D)
)  # fmt: skip
def emit_row(
    indices: Indices,
    values: Floats,
    begin: int,
    end: int,
    counts: bool,
    places: Indices,
    touched: Indices,
    table: Floats,
    dense: Indices,
    at_dense: Floats,
    f: Floats,
    k: Ints,
    bases: Floats,
    starts: Floats,
    slots: Ints,
    h: Floats,
) -> int:
    """Scale one row in every base; return how many entries it has then.

    With `counts` the row enters the statistics, and its new features get slots; else nothing is
    written but `at_dense`, which is all 0 again on return, and `slots` and `h`.

    starts  (second,)        what G or S of a new slot begin with
    slots   (room,)          the slot of each entry, -1 for a feature that has none
    h       (room, B)        its values
    """
    t = f[ROWS] + 1.0
    settled = t >= _FIRST_DENSE_ROW
    held, used = k[HELD], k[USED]
    new_dense, n = 0, 0
    for p in range(begin, end):
        x = values[p]
        at = place_of(places, int(indices[p]))
        slot = np.int64(-1)
        c, mu, m = 0.0, 0.0, 0.0
        if places[at, 0] != 0:
            slot = np.int64(places[at, 1])
            if table[slot, IS_DENSE] != 0.0:
                at_dense[int(table[slot, IS_DENSE]) - 1] = x
                continue
            c, mu, m = table[slot, COUNT], table[slot, MEAN], table[slot, M]
        elif counts:
            slot = used
            places[at, 0], places[at, 1] = indices[p] + 1, slot
            touched[slot] = indices[p]
            used += 1
            for q in range(table.shape[1]):
                table[slot, q] = 0.0
            for q in range(starts.shape[0]):
                table[slot, N_STATISTICS + q] = starts[q]
        c += 1.0
        step = x - mu
        mu += step / c
        m += step * (x - mu)
        becomes_dense = settled and 2.0 * c >= t
        if counts:
            table[slot, COUNT], table[slot, MEAN], table[slot, M] = c, mu, m
            if becomes_dense:
                dense[held + new_dense] = slot
                new_dense += 1
        ratio = sparse_value(x, t, c, mu, m, 0.0)
        slots[n] = slot
        for b in range(bases.shape[0]):
            h[n, b] = base_value(
                int(bases[b, 0]), bases[b, 1], x, t, c, mu, m, ratio, becomes_dense
            )
        n += 1
    kept = 0
    for q in range(held):
        slot = np.int64(dense[q])
        x = at_dense[q]
        at_dense[q] = 0.0
        c, mu, m = table[slot, COUNT], table[slot, MEAN], table[slot, M]
        if x != 0.0:
            c += 1.0
            step = x - mu
            mu += step / c
            m += step * (x - mu)
            if counts:
                table[slot, COUNT], table[slot, MEAN], table[slot, M] = c, mu, m
        is_dense = 4.0 * c >= t
        if counts:
            if is_dense:
                dense[kept] = slot
                kept += 1
                table[slot, IS_DENSE] = kept
            else:
                table[slot, IS_DENSE] = 0.0
        if x == 0.0 and not is_dense:
            continue
        ratio = 0.0 if is_dense else sparse_value(x, t, c, mu, m, 0.0)
        slots[n] = slot
        for b in range(bases.shape[0]):
            h[n, b] = base_value(int(bases[b, 0]), bases[b, 1], x, t, c, mu, m, ratio, is_dense)
        n += 1
    if counts:
        for q in range(new_dense):
            dense[kept] = dense[held + q]
            kept += 1
            table[np.int64(dense[kept - 1]), IS_DENSE] = kept
        k[HELD], k[USED], f[ROWS] = kept, used, t
    return n


@kernel(f8(F8_2D, i8, i8))
def small_factor(h: Floats, n: int, base: int) -> float:
    """1 / |h| where squares are no full numbers any more; 0 where 1 / |h| would be none either."""
    largest = 0.0
    for p in range(n):
        largest = max(largest, abs(h[p, base]))
    if largest < 1e-290:
        return 0.0
    total = 0.0
    for p in range(n):
        total += (h[p, base] / largest) ** 2
    return 1.0 / (largest * math.sqrt(total))


@kernel(void(F8_2D, i8, b1, F8, RO_I8_2D, F8, F8))
def norm_row(
    h: Floats, n: int, counts: bool, f: Floats, inputs: Ints, squares: Floats, factors: Floats
) -> None:
    """squares (B,): |h|^2 in each base; factors (I,): what each input multiplies its base by."""
    for b in range(squares.shape[0]):
        squares[b] = 0.0
    for p in range(n):
        for b in range(squares.shape[0]):
            squares[b] += h[p, b] * h[p, b]
    t = f[ROWS] if counts else f[ROWS] + 1.0
    for i in range(inputs.shape[0]):
        square = squares[inputs[i, 0]]
        factors[i] = 1.0
        if inputs[i, 1] == NORM_ROW:
            if square > 1e-280:
                factors[i] = 1.0 / math.sqrt(square)
            elif square > 0.0 or n > 0:
                factors[i] = small_factor(h, n, inputs[i, 0])
        elif inputs[i, 1] == NORM_RUNNING:
            total = f[SUMS + i] + square
            if counts:
                f[SUMS + i] = total
            if total > 0.0:
                factors[i] = 1.0 / math.sqrt(total / t)


@kernel(void(RO_I8, F8_2D, i8, F8_2D, RO_I8_2D, RO_F8_2D, F8, F8, f8))
def score_entries(
    slots: Ints,
    h: Floats,
    n: int,
    table: Floats,
    what: Ints,
    numbers: Floats,
    factors: Floats,
    scores: Floats,
    row: float,
) -> None:
    """scores (K,) of an emitted row, the N-th to count; NaN for one that is not finite."""
    n_members = what.shape[0]
    first = table.shape[1] - n_members
    for j in range(n_members):
        scores[j] = 0.0
    for p in range(n):
        slot = slots[p]
        if slot >= 0:
            for j in range(n_members):
                scores[j] += h[p, what[j, BASE]] * table[slot, first + j]
    for j in range(n_members):
        total = factors[what[j, INPUT]] * scores[j] + table[0, first + j]
        if what[j, KIND] == RISING:
            total /= numbers[j, STRENGTH] * math.sqrt(row)
        scores[j] = total if abs(total) < np.inf else np.nan


@kernel(
    void(RO_I8, RO_I4, RO_F8, I4_2D, I4, F8_2D, I4, F8, F8, I8, RO_I8_2D, RO_F8_2D, RO_I8_2D,
         RO_F8_2D, RO_F8, I8, F8_2D, F8, F8, F8_2D)
)  # fmt: skip
def score_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    places: Indices,
    touched: Indices,
    table: Floats,
    dense: Indices,
    at_dense: Floats,
    f: Floats,
    k: Ints,
    what: Ints,
    numbers: Floats,
    inputs: Ints,
    bases: Floats,
    starts: Floats,
    slots: Ints,
    h: Floats,
    squares: Floats,
    factors: Floats,
    out: Floats,
) -> None:
    """out (n, K): the score of each row by each member, as learning it next would score it."""
    for i in range(out.shape[0]):
        n = emit_row(
            indices, values, indptr[i], indptr[i + 1], False, places, touched, table, dense,
            at_dense, f, k, bases, starts, slots, h,
        )  # fmt: skip
        norm_row(h, n, False, f, inputs, squares, factors)
        score_entries(slots, h, n, table, what, numbers, factors, out[i], f[ROWS] + 1.0)


@kernel(void(F8_2D, I8, RO_I8_2D, i8, RO_F8, F8, F8_2D))
def begin_anew(
    table: Floats, k: Ints, what: Ints, j: int, starts: Floats, duals: Floats, ring_rows: Floats
) -> None:
    """Member j forgets what it learned: its dual variables are 0. O(slots + rows retained)."""
    first = table.shape[1] - what.shape[0]
    second, dual = what[j, SECOND], what[j, DUAL_PLACE]
    for slot in range(k[USED]):
        table[slot, first + j] = 0.0
        if second >= 0:
            table[slot, N_STATISTICS + second] = starts[second]
    if dual >= 0 and ring_rows.shape[0] > 0:
        for i in range(k[FIRST], k[LAST]):
            ring_rows[i, DUALS + 2 * dual] = 0.0
    duals[j] = 0.0


@kernel(f8(RO_I8, F8_2D, i8, F8_2D, RO_I8_2D, RO_F8_2D, i8, f8, f8, f8, f8, F8_2D))
def second_order_size(
    slots: Ints,
    h: Floats,
    n: int,
    table: Floats,
    what: Ints,
    numbers: Floats,
    j: int,
    factor: float,
    m: float,
    y: float,
    c: float,
    directions: Floats,
) -> float:
    """Take the row into G or S of member j; return h'd for its direction d, -1 where Q' is 0.

    directions (room, second): on return d_j of each entry, the intercept's behind the last.
    """
    second, base = what[j, SECOND], what[j, BASE]
    place = N_STATISTICS + second
    is_adagrad = what[j, KIND] == ADAGRAD
    if is_adagrad:
        slope = c * loss_slope(
            m, y, numbers[j, LOSS], numbers[j, LOSS + 1], numbers[j, LOSS + 2],
            numbers[j, LOSS + 3], numbers[j, LOSS + 4], numbers[j, LOSS + 5],
        )  # fmt: skip
        if slope == 0.0:
            return -1.0
        grown = slope * slope
    else:
        p = sigmoid(m)
        grown = c * p * (1.0 - p)
    step, keep = numbers[j, STRENGTH], numbers[j, DECAY]
    size = 0.0
    for q in range(n + 1):
        slot = slots[q] if q < n else np.int64(0)
        x = factor * h[q, base] if q < n else 1.0
        total = keep * table[slot, place] + grown * x * x
        table[slot, place] = total
        direction = step * x / math.sqrt(total) if is_adagrad else x / (_DAMPING + total)
        directions[q, second] = direction
        size += x * direction
    return size


@kernel(
    b1(RO_I8, F8_2D, i8, F8_2D, RO_I8_2D, RO_F8_2D, i8, f8, f8, f8, f8, f8, f8, F8_2D, F8_2D)
)  # fmt: skip
def take_step(
    slots: Ints,
    h: Floats,
    n: int,
    table: Floats,
    what: Ints,
    numbers: Floats,
    j: int,
    factor: float,
    square: float,
    row: float,
    m: float,
    y: float,
    c: float,
    directions: Floats,
    steps: Floats,
) -> bool:
    """Set member j's part of `steps`; False where some number is not finite."""
    kind = what[j, KIND]
    if kind >= ADAGRAD:
        size = second_order_size(slots, h, n, table, what, numbers, j, factor, m, y, c, directions)
        if size == -1.0:
            return True
        norm, s = size, c * size
        scale = c
    else:
        strength = numbers[j, STRENGTH]
        if kind != DUAL:
            strength *= math.sqrt(row)
        norm = factor * factor * square + 1.0
        s = c * norm / strength
        scale = c if kind == RISING else c / strength
    if what[j, DUAL_PLACE] >= 0:
        tau, conjugate = dual_step(
            m, s, y, numbers[j, LOSS], numbers[j, LOSS + 1], numbers[j, LOSS + 2],
            numbers[j, LOSS + 3], numbers[j, LOSS + 4], numbers[j, LOSS + 5],
        )  # fmt: skip
        steps[j, CONJUGATE] = c * conjugate
    else:
        tau = dual_argmin(
            m, s, y, numbers[j, LOSS], numbers[j, LOSS + 1], numbers[j, LOSS + 2],
            numbers[j, LOSS + 3], numbers[j, LOSS + 4], numbers[j, LOSS + 5],
        )  # fmt: skip
    steps[j, TAU], steps[j, COEFFICIENT] = tau, scale * tau
    return abs(scale * tau) * (norm + 1.0) < _LARGEST_STEP


@kernel(void(RO_I8, F8_2D, i8, F8_2D, RO_I8_2D, F8, F8_2D, F8_2D))
def move_weights(
    slots: Ints,
    h: Floats,
    n: int,
    table: Floats,
    what: Ints,
    factors: Floats,
    directions: Floats,
    steps: Floats,
) -> None:
    """Add every member's step to its weights."""
    n_members = what.shape[0]
    first = table.shape[1] - n_members
    for j in range(n_members):
        second = what[j, SECOND]
        coefficient = steps[j, COEFFICIENT]
        if second < 0:
            table[0, first + j] += coefficient
            steps[j, COEFFICIENT] = coefficient * factors[what[j, INPUT]]
        elif coefficient != 0.0:
            table[0, first + j] += coefficient * directions[n, second]
    for p in range(n):
        slot = slots[p]
        for j in range(n_members):
            second = what[j, SECOND]
            coefficient = steps[j, COEFFICIENT]
            if second < 0:
                table[slot, first + j] += coefficient * h[p, what[j, BASE]]
            elif coefficient != 0.0:
                table[slot, first + j] += coefficient * directions[p, second]


@kernel(void(RO_I8, F8_2D, i8, f8, f8, RO_I8_2D, F8, F8_2D, I8, I8, I4, F8_2D, F8_2D))
def retain_row(
    slots: Ints,
    h: Floats,
    n: int,
    y: float,
    c: float,
    what: Ints,
    factors: Floats,
    steps: Floats,
    k: Ints,
    ring_starts: Ints,
    ring_slots: Indices,
    ring_values: Floats,
    ring_rows: Floats,
) -> None:
    """Append a row to those that certificates are computed on, see ScaledRows."""
    last = k[LAST]
    at = ring_starts[last]
    for p in range(n):
        ring_slots[at + p] = slots[p]
        for b in range(ring_values.shape[1]):
            ring_values[at + p, b] = h[p, b]
    ring_starts[last + 1] = at + n
    ring_rows[last, LABEL], ring_rows[last, WEIGHT] = y, c
    for j in range(what.shape[0]):
        dual = what[j, DUAL_PLACE]
        if dual >= 0:
            ring_rows[last, DUALS + 2 * dual] = steps[j, TAU]
            ring_rows[last, DUALS + 2 * dual + 1] = factors[what[j, INPUT]]
    k[LAST] = last + 1


@kernel(
    i8(RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, i8, i8, I4_2D, I4, F8_2D, I4, F8, F8, I8, RO_I8_2D,
       RO_F8_2D, F8, RO_I8_2D, RO_F8_2D, RO_F8, I8, F8_2D, F8_2D, F8, F8, F8_2D, I8, I4, F8_2D,
       F8_2D, RO_I8, F8, F8_2D, RO_I8_2D, F8_2D, F8, F8_2D, F8_2D, F8_2D, F8_2D)
)  # fmt: skip
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    labels: Floats,
    weights: Floats,
    start: int,
    retain: int,
    places: Indices,
    touched: Indices,
    table: Floats,
    dense: Indices,
    at_dense: Floats,
    f: Floats,
    k: Ints,
    what: Ints,
    numbers: Floats,
    duals: Floats,
    inputs: Ints,
    bases: Floats,
    starts: Floats,
    slots: Ints,
    h: Floats,
    directions: Floats,
    squares: Floats,
    factors: Floats,
    steps: Floats,
    ring_starts: Ints,
    ring_slots: Indices,
    ring_values: Floats,
    ring_rows: Floats,
    columns: Ints,
    own: Floats,
    scores: Floats,
    roles: Ints,
    r: Floats,
    g: Floats,
    recent: Floats,
    pairs: Floats,
    scratch: Floats,
    out: Floats,
) -> int:
    """Score and learn rows `start` to n; return n, or the row that some array has no room for.

    retain   how many rows certificates are computed on; 0 where no member has one
    ring_*   see windows.RowBuffer; its values are those of the first bases, which dual members use,
             its rows LABEL, WEIGHT, DUALS ...
    columns  (K,)   where the scores of these members stand among all of the portfolio
    own      (K,)   scratch
    scores   (n, all members)  with the scores of the others; on return with all of them
    roles to out    see _rule.py
    """
    n_rows, n_members = labels.shape[0], what.shape[0]
    for i in range(start, n_rows):
        begin, end = indptr[i], indptr[i + 1]
        entries = end - begin
        most = entries + k[HELD]
        if k[USED] + entries > table.shape[0] or most > dense.shape[0] or most + 1 > h.shape[0]:
            return i
        if retain > 0 and (
            k[LAST] == ring_rows.shape[0] or ring_starts[k[LAST]] + most > ring_slots.shape[0]
        ):
            return i
        c = weights[i]
        counts = c > 0.0
        n = emit_row(
            indices, values, begin, end, counts, places, touched, table, dense, at_dense,
            f, k, bases, starts, slots, h,
        )  # fmt: skip
        norm_row(h, n, counts, f, inputs, squares, factors)
        row = f[ROWS] if counts else f[ROWS] + 1.0
        score_entries(slots, h, n, table, what, numbers, factors, own, row)
        for j in range(n_members):
            scores[i, columns[j]] = own[j]
        k[SAMPLES] += 1
        y = labels[i]
        classify_row(scores[i], y, c, roles, r, g, recent, pairs, scratch, out[i])
        if not counts:
            continue
        f[DELTA] += c
        for j in range(n_members):
            steps[j, COEFFICIENT] = steps[j, TAU] = steps[j, CONJUGATE] = 0.0
            if roles[columns[j], IS_ACTIVE] == 0:
                continue
            place = what[j, INPUT]
            if own[j] == own[j]:
                if take_step(
                    slots, h, n, table, what, numbers, j, factors[place],
                    squares[inputs[place, 0]], row, own[j], y, c, directions, steps,
                ):  # fmt: skip
                    duals[j] += steps[j, CONJUGATE]
                    continue
                start_calibration(r, columns[j])
                r[columns[j], RESETS] += 1.0
            begin_anew(table, k, what, j, starts, duals, ring_rows)
            steps[j, COEFFICIENT] = steps[j, TAU] = 0.0
        if retain > 0:
            retain_row(
                slots, h, n, y, c, what, factors, steps, k, ring_starts, ring_slots,
                ring_values, ring_rows,
            )  # fmt: skip
            if k[LAST] - k[FIRST] > retain:
                k[FIRST] += 1
        move_weights(slots, h, n, table, what, factors, directions, steps)
    return int(n_rows)


@kernel(void(I8, I4, F8_2D, F8_2D, RO_I8, F8_2D, RO_I8_2D, RO_F8_2D, i8, f8, F8))
def member_sums(
    ring_starts: Ints,
    ring_slots: Indices,
    ring_values: Floats,
    ring_rows: Floats,
    k: Ints,
    table: Floats,
    what: Ints,
    numbers: Floats,
    j: int,
    scale: float,
    out: Floats,
) -> None:
    """Sums for the certificate of dual member j, over the retained rows.

    scale  what its weights are multiplied by
    out    (3,): sums of delta, of delta [Q + Q* + tau z], and |w|^2
    """
    base, dual = what[j, BASE], DUALS + 2 * what[j, DUAL_PLACE]
    weight = table.shape[1] - what.shape[0] + j
    out[0] = out[1] = out[2] = 0.0
    for i in range(k[FIRST], k[LAST]):
        z = 0.0
        for p in range(ring_starts[i], ring_starts[i + 1]):
            z += ring_values[p, base] * table[np.int64(ring_slots[p]), weight]
        z = scale * (ring_rows[i, dual + 1] * z + table[0, weight])
        term = gap_term(
            z, ring_rows[i, dual], ring_rows[i, LABEL], numbers[j, LOSS], numbers[j, LOSS + 1],
            numbers[j, LOSS + 2], numbers[j, LOSS + 3], numbers[j, LOSS + 4],
            numbers[j, LOSS + 5],
        )  # fmt: skip
        out[0] += ring_rows[i, WEIGHT]
        out[1] += ring_rows[i, WEIGHT] * term
    for slot in range(k[USED]):
        out[2] += (scale * table[slot, weight]) ** 2
