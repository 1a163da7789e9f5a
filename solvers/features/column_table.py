"""Columns shared by fused members: slots, statistics, and a row in every scaling.

A feature gets a slot when it first appears in a row that counts; slot 0 is the intercept's. A row
of `table` is the block of a slot: [the weight of each member | G or S of the members that have one
| unused | statistics of the column]. One memory access per feature brings what every member needs.

A row is emitted once for each *base*: the raw values, the counts x (c_j / t)^-p, and the balanced
values of each power in use, all from the same statistics; formulas in features/scaling.py. The
kernels do not branch on whether a column is dense, because that is unpredictable: numerator and
denominator are selected instead. That vectorizes by four, with one division per entry in addition
to the one by c_j.

In every kernel
    table    (slots, width) see above
    buckets  (capacity, 2)  open addressing: index + 1 (0: free) and slot; a power of two, half full
    dense    (room,)        slots of the dense columns; k[HELD] of them
    f, k     the scalars of the state, see below
    inputs   (I, 2)         base and norm of each input
    bases    (B, 2)         kind and power of each base
    slots    (room,)        the slot of each entry of a row, -1 for a feature without a slot
    e        (N_ENTRY, room)  data of each entry, see below
    h        (B, room)      the value of each entry in each base
"""

import math

import numpy as np

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I4,
    I4_2D,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8_2D,
    kernel,
)
from dualstream.solvers.rows.scalar import FIRST_DENSE_ROW, TINY, prefetch

# The last numbers of a block. PLACE: 1 + index of the column in `dense`, 0 for a sparse column.
COUNT, MEAN, M, PLACE = range(4)
N_STATISTICS = 4
# Further data of an entry: its value, t / c_j, whether the column is dense after this row, its
# balanced value without the power, the last power computed, and its limited value.
VALUE, RATIO, IS_DENSE, BALANCE, POWER, LIMITED = range(4, 10)
N_ENTRY = 10

# Integers of the state.
USED, HELD, FIRST, LAST, SAMPLES = range(5)
N_INTS = 5
# Floats of the state: rows counted, their weight, then a sum of |h|^2 for each input.
ROWS, DELTA, SUMS = range(3)

RAW, COUNTS, BALANCED = range(3)
NORM_NONE, NORM_ROW, NORM_RUNNING = range(3)

_SETTLED = 1024.0
_MULTIPLIER = 0x9E3779B1


@kernel(inline=True)
def position_of(buckets: I4_2D, index: int) -> int:
    """Position of `index` in the hash table, or the free position for it."""
    mask = buckets.shape[0] - 1
    # Fibonacci hashing (Knuth, TAOCP 3, 6.4) spreads neighbouring indices.
    at = ((index * _MULTIPLIER) & 0xFFFFFFFF) >> 7 & mask
    while buckets[at, 0] != 0 and buckets[at, 0] != index + 1:
        at = (at + 1) & mask
    return int(at)


@kernel
def enter_buckets(buckets: I4_2D, touched: I4, first: int, used: int) -> None:
    """Insert slots `first` to `used` into the hash table."""
    for slot in range(first, used):
        at = position_of(buckets, int(touched[slot]))
        buckets[at, 0], buckets[at, 1] = touched[slot] + 1, slot


@kernel(inner=True)
def new_slot(
    index: int,
    at: int,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    starts: RO_F8,
    members: int,
    k: I8,
) -> int:
    """Assign a slot to a feature whose free position is `at`; its block is initialised."""
    slot = k[USED]
    buckets[at, 0], buckets[at, 1] = index + 1, slot
    touched[slot] = index
    k[USED] = slot + 1
    for q in range(table.shape[1]):
        table[slot, q] = 0.0
    for q in range(starts.shape[0]):
        table[slot, members + q] = starts[q]
    return int(slot)


@kernel(inline=True)
def bring_entry(n: int, slot: int, value: float, table: F8_2D, e: F8_2D, slots: I8) -> None:
    """Load a value and the statistics of its slot into entry n."""
    slots[n] = slot
    e[VALUE, n] = value
    if slot >= 0:
        block = table[slot]
        first = block.shape[0] - N_STATISTICS
        e[COUNT, n], e[MEAN, n] = block[first + COUNT], block[first + MEAN]
        e[M, n], e[PLACE, n] = block[first + M], block[first + PLACE]
    else:
        e[COUNT, n] = e[MEAN, n] = e[M, n] = e[PLACE, n] = 0.0


@kernel(inline=True, apart=True, inner=False)
def limit_entries(n: int, reach: float, value: F8, count: F8, mean: F8, m: F8, out: F8) -> None:
    """out (n,): each value, clipped to within `reach` deviations of its column's mean so far.

    The column's M grows at most by the factor 1 + reach^2 / min(c, 1024). In a constant column the
    mean takes the place of the deviation.
    """
    near, least = reach * reach, reach * reach / _SETTLED
    for p in range(n):
        x, mu = value[p], mean[p]
        c = max(count[p], 1.0)
        is_constant = m[p] <= 1e-30 * (m[p] + c * mu * mu)
        square = near * mu * mu if is_constant else m[p] * max(near / c, least)
        far = math.sqrt(square) if count[p] > 0.0 and square > TINY else np.inf
        out[p] = max(min(x, mu + far), mu - far) if x != 0.0 else 0.0


@kernel(inline=True, apart=True)
def count_entries(
    n: int,
    t: float,
    value: F8,
    count: F8,
    mean: F8,
    m: F8,
    deviation: F8,
    ratio: F8,
    is_dense: F8,
    balance: F8,
) -> None:
    """Update the statistics with each value; determine whether its column is dense, and scale it.

    An entry of value 0 belongs to a dense column that is absent from the row.
    """
    settled = 1.0 if t >= FIRST_DENSE_ROW else 0.0
    of_all = 1.0 / t
    for p in range(n):
        x = value[p]
        is_there = 1.0 if x != 0.0 else 0.0
        c = count[p] + is_there
        of_c = 1.0 / c
        step = is_there * (x - mean[p])
        mu = mean[p] + step * of_c
        deviations = m[p] + step * (x - mu)
        count[p], mean[p], m[p], ratio[p] = c, mu, deviations, t * of_c
        was = 1.0 if deviation[p] > 0.0 else 0.0
        stays = was if 4.0 * c >= t else 0.0
        becomes = settled * is_there if 2.0 * c >= t else 0.0
        dense = stays if stays > becomes else becomes
        is_dense[p] = dense
        # See features/scaling.py. Exactly 1 for an always present column, so a constant column has
        # variance 0.
        share = c * of_all if c < t else 1.0
        of_row, of_mean = deviations * of_all, share * mu * mu
        variance = of_row + (1.0 - share) * of_mean
        is_constant = (variance <= 1e-30 * (of_row + of_mean)) | (variance < TINY)
        square = deviations * of_c + mu * mu
        above = x - mu * share if dense > 0.0 else x
        below = variance if dense > 0.0 else square
        nothing = is_constant if dense > 0.0 else square < TINY
        balance[p] = 0.0 if nothing else above / math.sqrt(below)


@kernel(inline=True, apart=True)
def raise_entries(n: int, power: float, ratio: F8, out: F8) -> None:
    """out (n,): (t / c_j)^power."""
    if power == 0.25:
        for p in range(n):
            out[p] = math.sqrt(math.sqrt(ratio[p]))
    elif power == 0.0:
        for p in range(n):
            out[p] = 1.0
    else:
        for p in range(n):
            out[p] = math.exp(power * math.log(ratio[p]))


@kernel(inline=True, apart=True)
def base_values(n: int, kind: int, value: F8, is_dense: F8, balance: F8, power: F8, h: F8) -> None:
    """h (n,): the entries in one base."""
    if kind == RAW:
        for p in range(n):
            h[p] = value[p]
    elif kind == COUNTS:
        for p in range(n):
            h[p] = value[p] * power[p]
    else:
        for p in range(n):
            h[p] = balance[p] if is_dense[p] > 0.0 else balance[p] * power[p]


@kernel(inner=True)
def change_dense(n: int, table: F8_2D, dense: I4, e: F8_2D, slots: I8, k: I8) -> None:
    """Update the list of dense columns: removals first, then additions."""
    at = table.shape[1] - N_STATISTICS + PLACE
    for p in range(n):
        if e[PLACE, p] > 0.0 and e[IS_DENSE, p] == 0.0:
            table[slots[p], at] = 0.0
    kept = 0
    for q in range(k[HELD]):
        slot = np.int64(dense[q])
        if table[slot, at] > 0.0:
            dense[kept] = slot
            kept += 1
            table[slot, at] = kept
    for p in range(n):
        if e[PLACE, p] == 0.0 and e[IS_DENSE, p] > 0.0:
            dense[kept] = slots[p]
            kept += 1
            table[slots[p], at] = kept
    k[HELD] = kept


@kernel(inline=True)
def emit_row(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    counts: bool,
    reach: float,
    buckets: I4_2D,
    touched: I4,
    table: F8_2D,
    dense: I4,
    is_here: F8,
    f: F8,
    k: I8,
    bases: RO_F8_2D,
    starts: RO_F8,
    members: int,
    slots: I8,
    e: F8_2D,
    h: F8_2D,
) -> int:
    """Scale one row in every base; return its number of entries after that.

    With `counts` the row enters the statistics and its new features get slots. Otherwise only
    scratch arrays are written. Dense columns that are absent from the row come last, with value 0.

    starts   (second,)    initial values of G or S in a new slot, after the weights of `members`
    reach    limit of values, see limit_entries; 0 for none
    is_here  (1 + held,)  scratch, all 0 before and after
    Requires room for one more entry than there are.
    """
    t = f[ROWS] + 1.0
    n = 0
    for p in range(begin, end):
        at = position_of(buckets, int(indices[p]))
        slot = int(buckets[at, 1]) if buckets[at, 0] != 0 else -1
        if slot < 0 and counts:
            slot = new_slot(int(indices[p]), at, buckets, touched, table, starts, members, k)
        bring_entry(n, slot, values[p], table, e, slots)
        is_here[int(e[PLACE, n])] = 1.0
        n += 1
    for q in range(k[HELD]):
        bring_entry(n, int(dense[q]), 0.0, table, e, slots)
        n += 1 if is_here[q + 1] == 0.0 else 0
        is_here[q + 1] = 0.0
    is_here[0] = 0.0
    if reach > 0.0:
        limit_entries(n, reach, e[VALUE], e[COUNT], e[MEAN], e[M], e[LIMITED])
    count_entries(
        n,
        t,
        e[LIMITED if reach > 0.0 else VALUE],
        e[COUNT],
        e[MEAN],
        e[M],
        e[PLACE],
        e[RATIO],
        e[IS_DENSE],
        e[BALANCE],
    )
    if counts:
        first = table.shape[1] - N_STATISTICS
        has_changed = False
        for p in range(n):
            block = table[slots[p]]
            block[first + COUNT], block[first + MEAN] = e[COUNT, p], e[MEAN, p]
            block[first + M] = e[M, p]
            has_changed |= (e[PLACE, p] > 0.0) != (e[IS_DENSE, p] > 0.0)
        if has_changed:
            change_dense(n, table, dense, e, slots, k)
        f[ROWS] = t
    raised = -1.0
    for b in range(bases.shape[0]):
        kind = int(bases[b, 0])
        if kind != RAW and bases[b, 1] != raised:
            raised = bases[b, 1]
            raise_entries(n, raised, e[RATIO], e[POWER])
        base_values(n, kind, e[VALUE], e[IS_DENSE], e[BALANCE], e[POWER], h[b])
    return n


@kernel(inline=True)
def prefetch_row(indices: RO_I4, begin: int, end: int, buckets: I4_2D, table: F8_2D) -> None:
    """Prefetch the blocks of the next row while the current one is learned."""
    for p in range(begin, end):
        at = position_of(buckets, int(indices[p]))
        prefetch(table, np.int64(buckets[at, 1]))


@kernel(inner=True)
def small_factor(h: F8_2D, n: int, base: int) -> float:
    """1 / |h| where the squares are subnormal; 0 if 1 / |h| is not finite either."""
    largest = 0.0
    for p in range(n):
        largest = max(largest, abs(h[base, p]))
    if largest < 1e-290:
        return 0.0
    total = 0.0
    for p in range(n):
        total += (h[base, p] / largest) ** 2
    return 1.0 / (largest * math.sqrt(total))


@kernel(inline=True)
def norm_row(
    h: F8_2D, n: int, counts: bool, f: F8, inputs: RO_I8_2D, squares: F8, factors: F8
) -> None:
    """squares (B,): |h|^2 in each base; factors (I,): the factor of each input relative to its
    base."""
    for b in range(squares.shape[0]):
        h_b = h[b]
        # Four sums, because each addition waits for the previous one.
        s0 = s1 = s2 = s3 = 0.0
        whole = n - n % 4
        for p in range(0, whole, 4):
            s0 += h_b[p] * h_b[p]
            s1 += h_b[p + 1] * h_b[p + 1]
            s2 += h_b[p + 2] * h_b[p + 2]
            s3 += h_b[p + 3] * h_b[p + 3]
        for p in range(whole, n):
            s0 += h_b[p] * h_b[p]
        squares[b] = (s0 + s1) + (s2 + s3)
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
