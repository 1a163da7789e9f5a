"""Shared kernels of the text parsers: numbers, names, labels, and the end of a row.

A parser reads the common forms only and leaves any other line to a slow and exact parser. So
nothing here reports what is wrong with a line.
"""

from typing import Any

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_I4, RO_I8, RO_U1, U1, kernel, u1

ROWS = tuple[I8, I4, F8, F8, F8]
"""Rows that are written: indptr, indices, values, labels, weights; see Batch."""
SPARE = tuple[I4, F8]
"""Scratch of `sort_stably`."""
NAMES = tuple[RO_I4, I4, I4, I8, U1, I8, U1]
"""See `store_name`: journalled, seen, indices, ends and text of the names, counts; and a buffer (2
LONGEST_NAME + 1,) for the current name."""
LABEL_TABLE = tuple[RO_I4, RO_I8, RO_U1]
"""Labels as written, see `label_slot`."""

# A double represents these exactly, as well as whole numbers up to 2^53. The product or quotient of
# two such numbers is rounded once, like float() does (Clinger, 1990).
POWERS_OF_TEN = np.array([float(f"1e{n}") for n in range(23)])
EXACT = 2**53

LONGEST_NAME = 1024
"""Maximum bytes of a name, and of a text value; longer ones are left to the exact parser."""
MAX_ROW_NAMES = 100_000
"""Maximum number of named features of a row, zeros included. A longer row is refused before its
names are hashed."""
LARGEST = 1e100
"""Largest magnitude of a number in a row: its square, summed over a row, stays finite."""
ZERO = 1e-300
"""Stands for an input of at most this size: rows store no zeros."""
NO_LABELS, NUMBERS, PLACES = 0, 1, 2
"""How labels are read: ignored; as numbers; as indices into a table of labels as written."""
LABELS = 4096
"""Maximum labels of such a table."""

_MAX_INSERTION_SORT = 6  # insertion sort is faster for few entries
_MASK = 0xFFFFFFFF
_C1, _C2, _C3 = 0xCC9E2D51, 0x1B873593, 0xE6546B64
_F1, _F2 = 0x85EBCA6B, 0xC2B2AE35


@kernel(inner=True)
def digit(byte: u1) -> int:
    """Value of a decimal digit; other bytes give values below 0 or above 9."""
    return int(byte) - 48


@kernel(inner=True)
def skip_space(text: RO_U1, p: int) -> int:
    """The next position that is neither a space, a tab nor a carriage return."""
    while text[p] == 32 or text[p] == 9 or text[p] == 13:
        p += 1
    return p


@kernel(inner=True)
def product_error(a: float, b: float, product: float) -> float:
    """a b - product, exactly, where product is a b rounded (Dekker, 1971)."""
    t = 134_217_729.0 * a
    a_high = t - (t - a)
    t = 134_217_729.0 * b
    b_high = t - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@kernel
def scaled(mantissa: int, exponent: int) -> tuple[float, bool]:
    """mantissa 10^exponent, and whether it is certain to be rounded like float() does.

    For mantissa < 10^18 and |exponent| <= 22. The number is computed as x + rest to about 100 bits:
    x is right unless rest is within rounding of half a unit in the last place of x.
    """
    a = float(mantissa)
    b = float(mantissa - int(a))
    power = POWERS_OF_TEN[abs(exponent)]
    if exponent < 0:
        x = a / power
        product = x * power
        more = (((a - product) - product_error(x, power, product)) + b) / power
    else:
        x = a * power
        more = product_error(a, power, x) + b * power
    total = x + more
    rest = more - (total - x)
    return total, total + rest * (1.0 + 1e-9) == total


@kernel(inner=True)
def json_number(text: RO_U1, p: int) -> tuple[float, int]:
    """The JSON number at position p and where it ends; -1 if it cannot be read exactly.

    [-] (0 | 1-9 digits) [. digits] [e [+-] digits]. The byte after it is not checked. An integer
    beyond 2^53 cannot be read exactly.
    """
    negative = text[p] == 45
    if negative:
        p += 1
    first = p
    mantissa = 0
    significant = 0
    exponent = 0
    while 0 <= digit(text[p]) <= 9:
        if significant < 18:
            mantissa = mantissa * 10 + digit(text[p])
        significant += mantissa != 0
        p += 1
    if p == first or (text[first] == 48 and p - first > 1):
        return 0.0, -1
    is_integer = text[p] != 46 and text[p] | 32 != 101
    if text[p] == 46:
        p += 1
        first = p
        while 0 <= digit(text[p]) <= 9:
            if significant < 18:
                mantissa = mantissa * 10 + digit(text[p])
                exponent -= 1
            significant += mantissa != 0
            p += 1
        if p == first:
            return 0.0, -1
    if text[p] | 32 == 101:
        p += 1
        downwards = text[p] == 45
        if downwards or text[p] == 43:
            p += 1
        first = p
        shift = 0
        while 0 <= digit(text[p]) <= 9:
            shift = min(shift * 10 + digit(text[p]), 100_000)
            p += 1
        if p == first:
            return 0.0, -1
        exponent += -shift if downwards else shift
    if significant > 18 or not -22 <= exponent <= 22:
        return 0.0, -1
    if mantissa <= EXACT:
        x = float(mantissa)
        x = x * POWERS_OF_TEN[exponent] if exponent >= 0 else x / POWERS_OF_TEN[-exponent]
    elif is_integer:
        return 0.0, -1
    else:
        x, is_certain = scaled(mantissa, exponent)
        if not is_certain:
            return 0.0, -1
    return (-x if negative else x), p


@kernel
def hash_bytes(text: RO_U1, length: int) -> int:
    """MurmurHash3 x86 32, seed 0, of the first bytes of `text`: in [0, 2^32).

    Products wrap modulo 2^64, which leaves their low 32 bits right.
    """
    h: Any = np.int64(0)
    tail = length // 4 * 4
    for p in range(0, tail, 4):
        k: Any = np.int64(text[p]) | np.int64(text[p + 1]) << 8
        k |= np.int64(text[p + 2]) << 16 | np.int64(text[p + 3]) << 24
        k = (k * _C1) & _MASK
        k = ((k << 15) | (k >> 17)) & _MASK
        h ^= (k * _C2) & _MASK
        h = ((h << 13) | (h >> 19)) & _MASK
        h = (h * 5 + _C3) & _MASK
    k = np.int64(0)
    for p in range(length - 1, tail - 1, -1):
        k = k << 8 | np.int64(text[p])
    if tail < length:
        k = (k * _C1) & _MASK
        k = ((k << 15) | (k >> 17)) & _MASK
        h ^= (k * _C2) & _MASK
    h ^= length
    h = ((h ^ h >> 16) * _F1) & _MASK
    h = ((h ^ h >> 13) * _F2) & _MASK
    return int(h ^ h >> 16)


@kernel
def hash_key(text: RO_U1, start: int, end: int) -> float:
    """A number from 1 to 2^53 of the bytes start:end of `text`, for keys of a history.

    FNV-1a of 64 bits (Fowler, Noll and Vo), mixed by the finaliser of splitmix64 (Steele, Lea and
    Flood, 2014), whose upper 53 bits a float64 holds.
    """
    h: Any = np.uint64(0xCBF29CE484222325)
    for p in range(start, end):
        h = (h ^ np.uint64(text[p])) * np.uint64(0x100000001B3)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h = (h ^ (h >> np.uint64(31))) >> np.uint64(11)
    return float(np.int64(h) + 1)


@kernel
def slot_of(table: RO_I4, index: int) -> int:
    """Slot of `index` in an open-addressing table, or its free slot.

    table (2^k,) int32, never full. A slot has the value ~place, an empty one 0, so zeroed memory is
    an empty table.
    """
    last = table.shape[0] - 1
    slot: Any = (np.int64(index) * 0x9E3779B1 >> 7) & last
    while table[slot] != 0 and table[slot] != ~index:
        slot = (slot + 1) & last
    return int(slot)


@kernel
def add_indices(table: I4, indices: RO_I8) -> None:
    """Insert these indices into an open-addressing table."""
    for i in range(indices.shape[0]):
        table[slot_of(table, indices[i])] = ~indices[i]


@kernel(inner=True)
def store_name(
    journalled: RO_I4,
    seen: I4,
    index: int,
    name: U1,
    length: int,
    indices: I4,
    ends: I8,
    text: U1,
    count: I8,
) -> bool:
    """Store a name whose index is new to the journal and to this text; False if there is no room.

    journalled   (2^k,) int32   indices whose names are in the journal
    seen   (2^k,) int32   those met in this text; updated
    name   (m,)   uint8   its first `length` bytes are the name
    places, ends (n,), text (bytes,)      the stored names; name i ends at ends[i + 1]
    count  (1,)   int64   their number
    """
    if journalled[slot_of(journalled, index)] != 0:
        return True
    slot = slot_of(seen, index)
    if seen[slot] != 0:
        return True
    n = count[0]
    start = ends[n]
    if n >= indices.shape[0] or start + length > text.shape[0]:
        return False
    seen[slot] = ~index
    for i in range(length):
        text[start + i] = name[i]
    indices[n] = index
    ends[n + 1] = start + length
    count[0] = n + 1
    return True


@kernel(inner=True)
def drop_names(seen: I4, indices: I4, count: I8, kept: int) -> None:
    """Remove the last stored names, all except the first `kept`."""
    while count[0] > kept:
        count[0] -= 1
        seen[slot_of(seen, indices[count[0]])] = 0


@kernel
def label_slot(text: RO_U1, start: int, end: int, slots: RO_I4, ends: RO_I8, labels: RO_U1) -> int:
    """Slot of the label text[start:end] in a table of labels as written, or its free slot.

    slots (2^k,) int32   the number of a label, -1 for none
    ends  (n + 1,) int64, labels (bytes,) uint8   label i is labels[ends[i]:ends[i + 1]]
    """
    last = slots.shape[0] - 1
    h: Any = end - start
    for p in range(start, end):
        h = (h * 31 + np.int64(text[p])) & 0xFFFFFF
    slot = h & last
    while slots[slot] >= 0:
        k = slots[slot]
        begin = ends[k]
        if ends[k + 1] - begin == end - start:
            same = 0
            while same < end - start and labels[begin + same] == text[start + same]:
                same += 1
            if same == end - start:
                return int(slot)
        slot = (slot + 1) & last
    return int(slot)


@kernel(inner=True)
def sort_by_rank(
    indices: I4, values: F8, start: int, end: int, spare: I4, spare_values: F8
) -> None:
    """Like `sort_stably`, for up to 64 entries, by computing the rank of each.

    Branch-free and vectorized counting. Cost O(k^2).
    spare_values  (k,)   as long as the row and 15 more
    """
    n = end - start
    padded = (n + 15) // 16 * 16
    for p in range(n):
        spare_values[p] = 64.0 * indices[start + p] + p  # exact, and no two are equal
    for p in range(n, padded):
        spare_values[p] = np.inf
    for p in range(n):
        x = spare_values[p]
        rank = 0
        for q in range(padded):
            rank += 1 if spare_values[q] < x else 0
        spare[rank] = p
    for p in range(n):
        indices[start + p] = int(spare_values[spare[p]]) >> 6
    for p in range(n):
        spare_values[p] = values[start + p]
    for p in range(n):
        values[start + p] = spare_values[spare[p]]


@kernel
def sort_stably(indices: I4, values: F8, start: int, end: int, spare: I4, spare_values: F8) -> None:
    """Sort entries `start` to `end` of a row by index, in place, stable.

    spare, spare_values (k,)   scratch, at least as long as the row. Cost O(k log k).
    """
    run = 32
    for first in range(start, end, run):
        stop = min(first + run, end)
        if stop - first > _MAX_INSERTION_SORT and spare_values.shape[0] >= run:
            sort_by_rank(indices, values, first, stop, spare, spare_values)
            continue
        for p in range(first + 1, stop):
            j, x = indices[p], values[p]
            q = p - 1
            while q >= first and indices[q] > j:
                indices[q + 1], values[q + 1] = indices[q], values[q]
                q -= 1
            indices[q + 1], values[q + 1] = j, x
    while run < end - start:
        for first in range(start, end - run, 2 * run):
            middle, last = first + run, min(first + 2 * run, end)
            if indices[middle - 1] <= indices[middle]:
                continue
            for p in range(first, middle):
                spare[p - first], spare_values[p - first] = indices[p], values[p]
            left, right, p = 0, middle, first
            while left < run:
                if right < last and indices[right] < spare[left]:
                    indices[p], values[p] = indices[right], values[right]
                    right += 1
                else:
                    indices[p], values[p] = spare[left], spare_values[left]
                    left += 1
                p += 1
        run *= 2


@kernel(inner=True)
def finish_row(
    indices: I4, values: F8, start: int, end: int, sums: bool, spare: I4, spare_values: F8
) -> int:
    """Finish a row of entries in their order of appearance; return where it ends, -1 if it is
    invalid.

    The result is sorted by index, without zeros. With `sums`, values of equal indices are added in
    order of appearance; otherwise a duplicate index is invalid. So is a number that is not finite
    or beyond 1e100.
    """
    is_sorted, is_tidy = True, True
    previous = -1
    for p in range(start, end):
        x = values[p]
        if not abs(x) <= LARGEST:
            return -1
        is_sorted = is_sorted and indices[p] > previous
        is_tidy = is_tidy and x != 0.0
        previous = indices[p]
    if is_sorted and is_tidy:
        return end
    if not is_sorted:
        sort_stably(indices, values, start, end, spare, spare_values)
    written = start
    p = start
    while p < end:
        j, x = indices[p], values[p]
        p += 1
        while p < end and indices[p] == j:
            if not sums:
                return -1
            x += values[p]
            p += 1
        if not abs(x) <= LARGEST:
            return -1
        if x != 0.0:
            indices[written], values[written] = j, x
            written += 1
    return written
