"""JSON kernels: read samples in the common form, one per line or in a list

    {"x": {"name": 1, "other": "text", "third": true}, "y": 1, "weight": 2}

in any order of the three and with any white space; or columns, a list of x and one of each other. x
may be a list for indexed features. Not of the common form: escapes, an `id`, numbers that cannot be
read exactly, anything that is not a sample, and anything that the model does not accept.

In a list, a line feed must be replaced by a carriage return, because line feeds end every loop.
"""

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_U1, U1, kernel
from dualstream.solvers.rows.text import name_cache, tokens

LINE_FEED, COMMA, BRACKET = 10, 44, 93
"""What follows a sample: in lines, in a list, and at the end of a list."""
X, Y, WEIGHT = range(3)
"""Fields of a sample, as columns."""
ENDED, STOPPED = 0, 1
"""Results of reading: the end of the text, or something that is not of the common form."""

_UNKNOWN, _UNNAMED = -1, -2
"""Cached instead of the index of a name: no index yet, and -2 - index while all its values are 0.
A name is stored with its first other value."""

# Byte classes in a string: literal, non-ASCII, or its end or not of the common form.
_PLAIN, _BEYOND_ASCII, _OTHER = range(3)
_KIND = np.zeros(256, np.uint8)
_KIND[128:] = _BEYOND_ASCII
_KIND[:32] = _KIND[34] = _KIND[92] = _OTHER


@kernel(inner=True)
def read_string(text: RO_U1, start: int, ascii_only: bool, out: U1, at: int) -> int:
    """Copy the string whose first byte is at `start` to out[at:]; the position of its end quote, or
    -1.

    -1 for strings with escapes, of more than LONGEST_NAME bytes, or with non-ASCII bytes if only
    ASCII is known to be valid.
    """
    # Unsigned, so that numba skips the check for negative indices.
    p = np.uint64(start)
    q = np.uint64(at)
    last = np.uint64(at + tokens.LONGEST_NAME)
    one = np.uint64(1)
    while True:
        c = text[p]
        kind = _KIND[c]
        if kind == _OTHER or (kind == _BEYOND_ASCII and ascii_only) or q >= last:
            break
        out[q] = c
        p += one
        q += one
    return int(p) if text[p] == 34 else -1


@kernel(inner=True)
def word_end(text: RO_U1, p: int) -> int:
    """End of the word true or false at p, -1 for anything else."""
    if text[p] == 116 and text[p + 1] == 114 and text[p + 2] == 117 and text[p + 3] == 101:
        return p + 4
    if (
        text[p] == 102
        and text[p + 1] == 97
        and text[p + 2] == 108
        and text[p + 3] == 115
        and text[p + 4] == 101
    ):
        return p + 5
    return -1


@kernel(inline=True)
def read_index(text: RO_U1, start: int, dim: int) -> tuple[int, int]:
    """The index (from 0) written as a name (from 1), and where it ends; -1 if it is not an
    index.
    """
    p = start
    index = 0
    while 0 <= tokens.digit(text[p]) <= 9 and p - start < 10:
        index = index * 10 + tokens.digit(text[p])
        p += 1
    if text[p] != 34 or p == start or text[start] == 48 or index > dim:
        return 0, -1
    return index - 1, p


@kernel(inline=True)
def number(text: RO_U1, start: int) -> tuple[float, int]:
    """Like `json_number`, but faster for at most 15 digits without exponent."""
    p = start + (text[start] == 45)
    first = p
    mantissa = 0
    while 0 <= tokens.digit(text[p]) <= 9:
        mantissa = mantissa * 10 + tokens.digit(text[p])
        p += 1
    whole = p - first
    decimals = 0
    if text[p] == 46:
        p += 1
        while 0 <= tokens.digit(text[p]) <= 9:
            mantissa = mantissa * 10 + tokens.digit(text[p])
            p += 1
        decimals = p - first - whole - 1
        is_short = decimals > 0
    else:
        is_short = True
    is_short &= 0 < whole and whole + decimals <= 15 and not (text[first] == 48 and whole > 1)
    if not is_short or text[p] | 32 == 101:
        return tokens.json_number(text, start)
    x = float(mantissa)
    if decimals > 0:
        x /= tokens.POWERS_OF_TEN[decimals]
    return (-x if text[start] == 45 else x), p


@kernel(inline=True)
def read_indexed(
    text: RO_U1, p: int, dim: int, indices: I4, values: F8, nnz: int, counts: I8
) -> int:
    """The features of the object whose brace is at p, by index up to dim.

    Returns the position after it, or -1. counts[1] is then the number of entries.
    """
    p = tokens.skip_space(text, p + 1)
    if text[p] == 125:
        counts[1] = nnz
        return p + 1
    while True:
        if text[p] != 34:
            return -1
        index, p = read_index(text, p + 1, dim)
        if p < 0:
            return -1
        p = tokens.skip_space(text, p + 1)
        if text[p] != 58:
            return -1
        p = tokens.skip_space(text, p + 1)
        x = 1.0
        if text[p] == 116 or text[p] == 102:
            x = 1.0 if text[p] == 116 else 0.0
            p = word_end(text, p)
        else:
            x, p = number(text, p)
        if p < 0:
            return -1
        indices[nnz] = index
        values[nnz] = x
        nnz += 1
        p = tokens.skip_space(text, p)
        if text[p] == 125:
            counts[1] = nnz
            return p + 1
        if text[p] != 44:
            return -1
        p = tokens.skip_space(text, p + 1)


@kernel
def place_of(length: int, mask: int, stores_names: bool, name_table: tokens.NAMES) -> int:
    """The index of the name in the buffer, which is stored if it is new; -1: no room."""
    journalled, seen, name_indices, name_ends, names, counts, buffer = name_table
    index = tokens.hash_bytes(buffer, length) & mask
    if stores_names and not tokens.store_name(
        journalled, seen, index, buffer, length, name_indices, name_ends, names, counts
    ):
        return -1
    return index


@kernel(inline=True)
def read_named(
    text: RO_U1, p: int, ascii_only: bool, dim: int, stores_names: bool,
    indices: I4, values: F8, nnz: int, name_table: tokens.NAMES, memo: I8,
) -> int:  # fmt: skip
    """The features of the object whose brace is at p, hashed to indices below -dim.

    Returns the position after it, or -1. counts[0] and counts[1] are then the number of names and
    of entries.
    """
    counts, buffer = name_table[5], name_table[6]
    p = tokens.skip_space(text, p + 1)
    if text[p] == 125:
        counts[1] = nnz
        return p + 1
    step = 0
    object_at = p  # after the brace: above 0, and another one for each object
    while True:
        if text[p] != 34:
            return -1
        step = name_cache.next_step(text, p, ascii_only, step, object_at, memo)
        if step < 0:
            return -1
        at = step * name_cache.STEP_NUMBERS
        name = memo[at + name_cache.LEAD] + 1
        p += memo[at + name_cache.LEAD_BYTES]
        x = 1.0
        if text[p] == 34:
            start = p + 1
            index = slot = -1
            size, a, b, c = name_cache.short_text(text, start, ascii_only)
            if size < name_cache.SHORT:
                p = start + size
                if text[p] != 34:
                    return -1
                slot = name_cache.text_slot(step, size, a, b, c, memo)
                index = name_cache.find_text(step, size, a, b, c, slot, memo)
            else:
                p, _ = name_cache.string_end(text, start, ascii_only)
                if p < 0:
                    return -1
            if index < 0:
                length = name_cache.copy_bytes(
                    text, name, name + memo[at + name_cache.NAME_BYTES], buffer, 0
                )
                buffer[length] = 61
                length = name_cache.copy_bytes(text, start, p, buffer, length + 1)
                index = place_of(length, -dim - 1, stores_names, name_table)
                if index < 0:
                    return -1
                if slot >= 0 and step < name_cache.LAST_STEP:
                    name_cache.store_text(step, size, a, b, c, slot, index, memo)
            p += 1
        else:
            if text[p] == 116 or text[p] == 102:
                x = 1.0 if text[p] == 116 else 0.0
                p = word_end(text, p)
            else:
                x, p = number(text, p)
            if p < 0:
                return -1
            index = memo[at + name_cache.PLACE]
            if index < _UNKNOWN and x == 0.0:
                index = _UNNAMED - index
            elif index < 0:
                length = name_cache.copy_bytes(
                    text, name, name + memo[at + name_cache.NAME_BYTES], buffer, 0
                )
                index = place_of(length, -dim - 1, stores_names and x != 0.0, name_table)
                if index < 0:
                    return -1
                memo[at + name_cache.PLACE] = index if x != 0.0 else _UNNAMED - index
                memo[name_cache.CHANGES] += 1
        indices[nnz] = index
        values[nnz] = x
        nnz += 1
        p = tokens.skip_space(text, p)
        if text[p] == 125:
            counts[1] = nnz
            return p + 1
        if text[p] != 44:
            return -1
        p = tokens.skip_space(text, p + 1)


@kernel(inline=True)
def read_list(text: RO_U1, p: int, dim: int, indices: I4, values: F8, nnz: int, counts: I8) -> int:
    """The numbers of the list of length dim whose bracket is at p, like `read_object`."""
    index = 0
    while True:
        p = tokens.skip_space(text, p + 1)
        x, p = number(text, p)
        if p < 0 or index >= dim:
            return -1
        if x != 0.0:
            indices[nnz] = index
            values[nnz] = x
            nnz += 1
        index += 1
        p = tokens.skip_space(text, p)
        if text[p] == 93:
            counts[1] = nnz
            return p + 1 if index == dim else -1
        if text[p] != 44:
            return -1


@kernel(inner=True)
def scalar_end(text: RO_U1, p: int, ascii_only: bool, buffer: U1) -> int:
    """End of the string, number, or word at p, or -1."""
    if text[p] == 34:
        p = read_string(text, p + 1, ascii_only, buffer, 0)
        return p + 1 if p >= 0 else -1
    if text[p] == 116 or text[p] == 102:
        return word_end(text, p)
    x, p = tokens.json_number(text, p)
    return p


@kernel(inner=True)
def weight_end(text: RO_U1, p: int) -> int:
    """End of the word weight at p, -1 for any other."""
    if (
        text[p] == 119
        and text[p + 1] == 101
        and text[p + 2] == 105
        and text[p + 3] == 103
        and text[p + 4] == 104
        and text[p + 5] == 116
    ):
        return p + 6
    return -1


@kernel(inline=True)
def read_x(
    text: RO_U1, p: int, ascii_only: bool, dim: int, stores_names: bool,
    rows: tokens.ROWS, row: int, spare: tokens.SPARE, name_table: tokens.NAMES, memo: I8,
) -> int:  # fmt: skip
    """Read the features at p into `row`; the position after them, or -1."""
    indptr, indices, values, counts = rows[0], rows[1], rows[2], name_table[5]
    nnz = indptr[row]
    if text[p] == 123:
        if dim >= 0:
            p = read_indexed(text, p, dim, indices, values, nnz, counts)
        else:
            p = read_named(
                text, p, ascii_only, dim, stores_names, indices, values, nnz, name_table, memo
            )
    elif text[p] == 91 and dim >= 0:
        p = read_list(text, p, dim, indices, values, nnz, counts)
    else:
        return -1
    if p < 0:
        return -1
    end = tokens.finish_row(indices, values, nnz, counts[1], dim < 0, spare[0], spare[1])
    if end < 0:
        return -1
    indptr[row + 1] = end
    return p


@kernel(inner=True)
def read_y(
    text: RO_U1, p: int, ascii_only: bool, label_kind: int, labels: F8, row: int,
    label_table: tokens.LABEL_TABLE, counts: I8, buffer: U1,
) -> int:  # fmt: skip
    """Read the label at p into labels[row]; the position after it, or -1.

    counts[2] and counts[3] are its begin and end if no table contains it yet.
    """
    start = p
    if label_kind == tokens.NUMBERS:
        x, p = tokens.json_number(text, p)
        # -0 is 0 if written as a whole number, and -0.0 otherwise.
        if not abs(x) <= tokens.LARGEST or (x == 0.0 and text[start] == 45):
            return -1
        labels[row] = x
        return p
    p = scalar_end(text, p, ascii_only, buffer)
    if p >= 0 and label_kind != tokens.NO_LABELS:
        label_slots, label_ends, label_text = label_table
        slot = tokens.label_slot(text, start, p, label_slots, label_ends, label_text)
        if label_slots[slot] < 0:
            counts[2], counts[3] = start, p
            return -1
        labels[row] = label_slots[slot]
    return p


@kernel(inner=True)
def read_weight(text: RO_U1, p: int, weights: F8, row: int) -> int:
    """Read the weight at p into weights[row]; the position after it, or -1."""
    if text[p] == 45:
        return -1
    x, p = tokens.json_number(text, p)
    if not x <= tokens.LARGEST:
        return -1
    weights[row] = x
    return p


@kernel(inline=True)
def read_sample(
    text: RO_U1, p: int, ascii_only: bool, dim: int, label_kind: int, stores_names: bool,
    rows: tokens.ROWS, row: int, spare: tokens.SPARE, name_table: tokens.NAMES,
    label_table: tokens.LABEL_TABLE, memo: I8,
) -> int:  # fmt: skip
    """Read the sample at p into `row`; the position of the next byte after it, or -1.

    For counts[2] and counts[3] see `read_y`.
    """
    labels, weights, counts, buffer = rows[3], rows[4], name_table[5], name_table[6]
    has_x = has_y = has_weight = False
    labels[row] = 0.0
    weights[row] = 1.0
    if text[p] != 123:
        return -1
    p = tokens.skip_space(text, p + 1)
    while True:
        if text[p] != 34:
            return -1
        field = text[p + 1]
        if field == LINE_FEED:  # bytes after the text's end must not be read
            return -1
        if field == 119:
            p = weight_end(text, p + 1)
            if p < 0:
                return -1
        else:
            p += 2
        if text[p] != 34:
            return -1
        p = tokens.skip_space(text, p + 1)
        if text[p] != 58:
            return -1
        p = tokens.skip_space(text, p + 1)
        if field == 120 and not has_x:
            has_x = True
            p = read_x(
                text, p, ascii_only, dim, stores_names, rows, row, spare, name_table, memo
            )  # fmt: skip
        elif field == 121 and not has_y:
            has_y = True
            p = read_y(
                text, p, ascii_only, label_kind, labels, row, label_table, counts, buffer
            )  # fmt: skip
        elif field == 119 and not has_weight:
            has_weight = True
            p = read_weight(text, p, weights, row)
        else:
            return -1
        if p < 0:
            return -1
        p = tokens.skip_space(text, p)
        if text[p] == 125:
            break
        if text[p] != 44:
            return -1
        p = tokens.skip_space(text, p + 1)
    if not has_x or (label_kind != tokens.NO_LABELS and not has_y):
        return -1
    return tokens.skip_space(text, p + 1)


@kernel
def read_samples(
    text: RO_U1, ascii_only: bool, separator: int, dim: int, label_kind: int, stores_names: bool,
    rows: tokens.ROWS, spare: tokens.SPARE, name_table: tokens.NAMES,
    label_table: tokens.LABEL_TABLE, row_indices: I8, memo: I8, at: I8,
) -> int:  # fmt: skip
    """Read samples up to the first that is not of the common form, or all.

    Returns STOPPED at such a sample, ENDED at the end of the text, or after the bracket of a list.

    text    (bytes,) uint8      ends in a line feed, where every loop stops
    ascii_only                  only ASCII is known to be valid UTF-8
    separator                   LINE_FEED or COMMA: whether samples are in lines or in a list
    dim                         width of rows by index; for hashed features, -(2^bits)
    row_indices  (rows,) int64       the index of each row among the samples
    at      (4,) int64          byte, line feeds before it, samples, rows: where to resume
    counts  (4,) int64          see `store_name`, `read_object` and `read_sample`
    """
    seen, name_indices, counts = name_table[1], name_table[2], name_table[5]
    p, line, row_index, row = at[0], at[1], at[2], at[3]
    names_before, changes = counts[0], memo[name_cache.CHANGES]
    result = ENDED
    while p < text.shape[0]:
        start = p
        p = tokens.skip_space(text, p)
        if text[p] == LINE_FEED and separator == LINE_FEED:
            p += 1
            line += 1
            continue
        counts[2] = counts[3] = 0
        p = read_sample(
            text, p, ascii_only, dim, label_kind, stores_names, rows, row, spare,
            name_table, label_table, memo,
        )  # fmt: skip
        is_last = p >= 0 and separator == COMMA and text[p] == BRACKET
        if p < 0 or (text[p] != separator and not is_last):
            p = start
            result = STOPPED
            tokens.drop_names(seen, name_indices, counts, names_before)
            name_cache.forget_since(memo, changes)
            break
        names_before, changes = counts[0], memo[name_cache.CHANGES]
        row_indices[row] = row_index
        row += 1
        row_index += 1
        line += separator == LINE_FEED
        p += 1
        if is_last:
            break
    at[0], at[1], at[2], at[3] = p, line, row_index, row
    return result


@kernel
def read_column(
    text: RO_U1, ascii_only: bool, column: int, dim: int, label_kind: int, stores_names: bool,
    rows: tokens.ROWS, spare: tokens.SPARE, name_table: tokens.NAMES,
    label_table: tokens.LABEL_TABLE, memo: I8, at: I8,
) -> int:  # fmt: skip
    """Read one field of many rows, given as a list; returns like `read_samples`.

    column  X, Y or WEIGHT      the field
    at      (4,) int64          byte, -, -, rows: where to resume
    """
    labels, weights, buffer = rows[3], rows[4], name_table[6]
    seen, name_indices, counts = name_table[1], name_table[2], name_table[5]
    p, row = at[0], at[3]
    names_before, changes = counts[0], memo[name_cache.CHANGES]
    while True:
        start = p
        counts[2] = counts[3] = 0
        p = tokens.skip_space(text, p)
        if column == X:
            p = read_x(
                text, p, ascii_only, dim, stores_names, rows, row, spare, name_table, memo
            )  # fmt: skip
        elif column == Y:
            p = read_y(
                text, p, ascii_only, label_kind, labels, row, label_table, counts, buffer
            )  # fmt: skip
        else:
            p = read_weight(text, p, weights, row)
        if p >= 0:
            p = tokens.skip_space(text, p)
        if p < 0 or (text[p] != COMMA and text[p] != BRACKET):
            tokens.drop_names(seen, name_indices, counts, names_before)
            name_cache.forget_since(memo, changes)
            at[0], at[3] = start, row
            return STOPPED
        names_before, changes = counts[0], memo[name_cache.CHANGES]
        row += 1
        p += 1
        if text[p - 1] == BRACKET:
            at[0], at[3] = p, row
            return ENDED
