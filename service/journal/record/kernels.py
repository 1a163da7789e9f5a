"""Kernels that parse a body: find its parts, and decode the rows of plain parts.

A part is plain if it has rows without text and with numeric labels. Kernels leave everything else,
damaged parts included, to decode.py, which raises the precise error.
"""

import numpy as np

from dualstream.service.journal.record import format as f
from dualstream.solvers.jit import F4, F8, I4, I8, I8_2D, RO_I8_2D, RO_U1, U1, Ints, kernel

# Columns of the table of parts. The content is [START, END); ENTRIES is the number of entries of a
# plain part's rows, else -1; MARK is the offset of the fingerprint, -1 without one; the part begins
# at BEGIN.
START, END, FLAGS, COLUMNS, COUNT, KEY, KEY_END, MARK, ENTRIES, BEGIN = range(10)
FIELDS = 10
SMALLEST = 11
"""Minimum size of a part in bytes."""
LARGE = 1024
"""Longer parts are checksummed by the library, which uses a CPU instruction."""

_LAST_KIND = max(f.KEY_KINDS)
_PLAIN_COLUMNS = f.IDS - 1


def _crc_tables() -> Ints:
    """tables[k, b] (8, 256): the CRC32C of byte b followed by k zero bytes, without inversions."""
    tables = np.zeros((8, 256), np.int64)
    for start in range(256):
        crc = start
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, start] = crc
    for k in range(1, 8):
        tables[k] = tables[k - 1] >> 8 ^ tables[0][tables[k - 1] & 255]
    tables.flags.writeable = False
    return tables


CRC_TABLES = _crc_tables()


@kernel(inline=True)
def byte(bytes_: RO_U1, at: int) -> int:
    return int(bytes_[at])


@kernel(inline=True)
def number(bytes_: RO_U1, at: int, width: int) -> int:
    """Little-endian number of `width` bytes at offset `at`."""
    value = 0
    for i in range(width):
        value |= byte(bytes_, at + i) << (8 * i)
    return value


@kernel
def crc32c(bytes_: RO_U1, at: int, end: int, tables: RO_I8_2D) -> int:
    """CRC32C of bytes_[at:end], eight bytes at a time.

    Kounavis and Berry, "Novel table lookup-based algorithms for high-performance CRC generation"
    (2008).
    """
    crc = 0xFFFFFFFF
    while at + 8 <= end:
        low = crc ^ number(bytes_, at, 4)
        crc = (
            tables[7, low & 255]
            ^ tables[6, low >> 8 & 255]
            ^ tables[5, low >> 16 & 255]
            ^ tables[4, low >> 24]
            ^ tables[3, byte(bytes_, at + 4)]
            ^ tables[2, byte(bytes_, at + 5)]
            ^ tables[1, byte(bytes_, at + 6)]
            ^ tables[0, byte(bytes_, at + 7)]
        )
        at += 8
    while at < end:
        crc = crc >> 8 ^ tables[0, (crc ^ byte(bytes_, at)) & 255]
        at += 1
    return crc ^ 0xFFFFFFFF


@kernel(inline=True)
def plain_entries(bytes_: RO_U1, at: int, end: int, columns: int, count: int) -> int:
    """Number of entries of `count` rows in bytes_[at:end]; -1 if they are not plain."""
    if count == 0:
        return 0 if at == end else -1
    lengths, indices, values = columns & 3, columns >> 2 & 3, columns >> 4 & 3
    labels, weights = columns >> 6 & 7, columns >> 9 & 3
    if columns & ~_PLAIN_COLUMNS or labels < 1 or labels > 3 or values == 3 or weights == 3:
        return -1
    room = end - at
    entries = 0
    if lengths == 3:
        if room < 4:
            return -1
        length = number(bytes_, at, 4)
        if length < 1 or length > room or count > room or count * length > room:
            return -1
        entries = count * length
        at += 4
    else:
        width = 1 << lengths
        if count > room or count * width > room:
            return -1
        if width == 1:  # the common case; the loop is vectorized
            for k in range(np.uint64(at), np.uint64(at + count)):
                entries = int(entries + np.int64(bytes_[k]))
        else:
            for k in range(count):
                entries += number(bytes_, at + k * width, width)
        at += count * width
    if indices == 3 and values == 0:
        return -1
    if entries > room:
        return -1
    if indices < 3:
        at += entries * (1 << indices)
    at += entries * 4 * values
    at += (count + 7) // 8 if labels == 1 else count * 4 * (labels - 1)
    at += count * 4 * weights
    return entries if at == end else -1


@kernel
def find_parts(
    bytes_: RO_U1, tables: RO_I8_2D, parts: I8_2D
) -> tuple[int, int, int, int, int, int, int]:
    """Find all parts of a body and check them, except for the content of parts that are not plain.

    Returns (parts found, offset where they end, records, entries of all rows or -1 if a part is not
    plain, parts with a key, bitwise OR of the columns, parts longer than LARGE). The offset is
    before the end of the bytes if something is damaged or unknown. Checksums of parts longer than
    LARGE are left to the caller.

    parts  (m, FIELDS) int64, m at least the possible number of parts
    Cost O(bytes).
    """
    n, at, size = 0, 0, len(bytes_)
    records, entries, keys, all_columns, large = 0, 0, 0, 0, 0
    while at + SMALLEST <= size and bytes_[at] == f.VERSION:
        flags = byte(bytes_, at + 1)
        columns = number(bytes_, at + 2, 2)
        if flags & ~f.KNOWN_FLAGS:
            break
        if flags & f.WIDE:
            if at + 12 > size:
                break
            length, count, start = number(bytes_, at + 4, 4), number(bytes_, at + 8, 4), at + 12
        else:
            length, count, start = number(bytes_, at + 4, 2), byte(bytes_, at + 6), at + 7
        end = at + length - 4
        if end < start or end + 4 > size:
            break
        if end - at > LARGE:
            large += 1
        elif number(bytes_, end, 4) != crc32c(bytes_, at, end, tables):
            break
        key, key_end, mark = -1, -1, -1
        if flags & f.KEY:
            if end - start < 3:
                break
            key = start + 2
            key_end = key + number(bytes_, start, 2)
            kind = byte(bytes_, key)
            if key_end == key or key_end > end or kind < 1 or kind > _LAST_KIND:
                break
            start = key_end
        if flags & f.FINGERPRINT:
            if end - start < 16:
                break
            mark = start
            start += 16
        is_rows = flags & f.CONTROL == 0
        parts[n, 0], parts[n, 1], parts[n, 2], parts[n, 3] = start, end, flags, columns
        parts[n, 4], parts[n, 5], parts[n, 6], parts[n, 7] = count, key, key_end, mark
        parts[n, 9] = at
        parts[n, 8] = plain_entries(bytes_, start, end, columns, count) if is_rows else -1
        records += count
        entries = entries + parts[n, 8] if min(entries, parts[n, 8]) >= 0 else -1
        keys += key >= 0
        all_columns |= columns
        n += 1
        at = end + 4
    return n, at, records, entries, keys, all_columns, large


@kernel(inline=True)
def take_floats(
    bytes_: RO_U1,
    at: int,
    kind: int,
    first: int,
    count: int,
    out: F8,
    out_bytes: U1,
    scratch: F4,
    scratch_bytes: U1,
) -> int:
    """Decode a column of floats at `at` into out[first:first + count]; return its end offset."""
    if kind == 0:
        # Unsigned, so that the compiler omits the check for negative indices.
        for k in range(np.uint64(first), np.uint64(first + count)):
            out[k] = 1.0
    elif kind == 1:
        for i in range(first, first + count):
            for j in range(4):
                scratch_bytes[j] = bytes_[at + j]
            out[i] = scratch[0]
            at += 4
    else:
        shift = np.uint64(at) - np.uint64(8 * first)
        for k in range(np.uint64(8 * first), np.uint64(8 * (first + count))):
            out_bytes[k] = bytes_[k + shift]
        at += 8 * count
    return at


@kernel
def take_rows(
    bytes_: RO_U1,
    parts: RO_I8_2D,
    indptr: I8,
    indices: I4,
    values: F8,
    values_bytes: U1,
    labels: F8,
    labels_bytes: U1,
    weights: F8,
    weights_bytes: U1,
    scratch: F4,
    scratch_bytes: U1,
) -> int:
    """Decode the rows of plain parts; return the first part with an index too large, else -1.

    parts    (p, FIELDS)      as filled by find_parts, all plain
    indptr   (n + 1,) int64   indices (nnz,) int32   values (nnz,)   labels, weights (n,)
             values and weights are (0,) if no part has such a column: all are 1
    X_bytes  memory of X as bytes, through which float64 columns are copied unchanged
    scratch  (1,) float32, and its bytes
    Cost O(bytes).
    """
    row, entry = 0, 0
    indptr[0] = 0
    for p in range(len(parts)):
        at, columns, count = parts[p, 0], parts[p, 3], parts[p, 4]
        if count == 0:
            continue
        entries = parts[p, 8]
        kind = columns & 3
        end = entry
        if kind == 3:
            length = number(bytes_, at, 4)
            at += 4
            for i in range(count):
                end += length
                indptr[row + i + 1] = end
        elif kind == 0:
            for i in range(count):
                end += byte(bytes_, at + i)
                indptr[row + i + 1] = end
            at += count
        else:
            width = 1 << kind
            for i in range(count):
                end += number(bytes_, at, width)
                indptr[row + i + 1] = end
                at += width
        kind = columns >> 2 & 3
        if kind == 0:
            shift = np.uint64(at) - np.uint64(entry)
            for k in range(np.uint64(entry), np.uint64(entry + entries)):
                indices[k] = bytes_[k + shift]
            at += entries
        elif kind == 3:
            for i in range(count):
                first = indptr[row + i]
                for k in range(first, indptr[row + i + 1]):
                    indices[k] = k - first
        else:
            width = 1 << kind
            for i in range(entries):
                index = number(bytes_, at, width)
                if index > f.MAX_INDEX:
                    return p
                indices[entry + i] = index
                at += width
        if values.shape[0] > 0:
            at = take_floats(bytes_, at, columns >> 4 & 3, entry, entries, values, values_bytes,
                             scratch, scratch_bytes)  # fmt: skip
        kind = columns >> 6 & 7
        if kind == 1:
            for i in range(count):
                bit = byte(bytes_, at + i // 8) >> (i % 8) & 1
                labels[row + i] = 2.0 * bit - 1.0
            at += (count + 7) // 8
        else:
            at = take_floats(bytes_, at, kind - 1, row, count, labels, labels_bytes,
                             scratch, scratch_bytes)  # fmt: skip
        if weights.shape[0] > 0:
            at = take_floats(bytes_, at, columns >> 9 & 3, row, count, weights, weights_bytes,
                             scratch, scratch_bytes)  # fmt: skip
        row += count
        entry += entries
    return -1
