"""Vowpal Wabbit format kernel: reads lines in the common form.

    LABEL [IMPORTANCE] ['TAG]|NAMESPACE[:SCALE] NAME[:VALUE] NAME[:VALUE] ... |NAMESPACE ...

The name of a feature is NAMESPACE^NAME. A bar followed by a space or the line's end has no
namespace.
"""

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_U1, U1, kernel
from dualstream.solvers.rows.text.tokens import (
    LABEL_TABLE,
    LARGEST,
    LONGEST_NAME,
    MAX_ROW_NAMES,
    NAMES,
    NO_LABELS,
    NUMBERS,
    ROWS,
    SPARE,
    digit,
    drop_names,
    finish_row,
    hash_bytes,
    json_number,
    label_slot,
    skip_space,
    store_name,
)

_BAR, _COLON, _QUOTE, _CARET, _FEED = 124, 58, 39, 94, 10

# Byte classes in a name: part of it, non-ASCII, its end, or not of the common form.
_PLAIN, _BEYOND_ASCII, _END, _STRANGE = range(4)
_KIND = np.zeros(256, np.uint8)
_KIND[128:] = _BEYOND_ASCII
_KIND[:32] = _STRANGE
_KIND[[9, 10, 13, 32, _COLON, _BAR]] = _END


@kernel(inner=True)
def token_end(text: RO_U1, p: int, ascii_only: bool) -> int:
    """End of the token at p, before a blank, a bar or the line's end; -1 if it is not of the common
    form."""
    while True:
        c = text[p]
        if c == 32 or c == 9 or c == 13 or c == _FEED or c == _BAR:
            return p
        if c < 32 or (ascii_only and c > 127):
            return -1
        p += 1


@kernel(inner=True)
def copy_name(text: RO_U1, start: int, ascii_only: bool, out: U1, at: int) -> int:
    """Copy the name at `start` to out[at:], up to LONGEST_NAME bytes in all; its end, or -1.

    A name ends before a blank, a colon, a bar or the line's end.
    """
    # Unsigned, so that numba skips the check for negative indices.
    p = np.uint64(start)
    q = np.uint64(at)
    last = np.uint64(LONGEST_NAME)
    one = np.uint64(1)
    while True:
        c = text[p]
        kind = _KIND[c]
        if kind == _STRANGE or (kind == _BEYOND_ASCII and ascii_only):
            return -1
        if kind == _END:
            return int(p)
        if q >= last:
            return -1
        out[q] = c
        p += one
        q += one


@kernel(inline=True)
def read_head(
    text: RO_U1, p: int, ascii_only: bool, label_kind: int, rows: ROWS, row: int,
    label_table: LABEL_TABLE, counts: I8,
) -> int:  # fmt: skip
    """Label, importance and tag of the line at p; the position of its first bar, or -1."""
    labels, weights = rows[3], rows[4]
    label_slots, label_ends, label_text = label_table
    labels[row] = 0.0
    weights[row] = 1.0
    tokens = 0
    while text[p] != _BAR:
        start = p
        p = token_end(text, p, ascii_only)
        if p <= start or text[p] == _FEED:
            return -1
        if text[start] == _QUOTE or text[p] == _BAR:  # a tag, the last one
            p = skip_space(text, p)
            if text[p] != _BAR:
                return -1
        elif tokens == 0:
            tokens = 1
            if label_kind == NUMBERS:
                x, end = json_number(text, start)
                if end != p or not abs(x) <= LARGEST or (x == 0.0 and text[start] == 45):
                    return -1
                labels[row] = x
            elif label_kind != NO_LABELS:
                slot = label_slot(text, start, p, label_slots, label_ends, label_text)
                if label_slots[slot] < 0:
                    counts[2], counts[3] = start, p
                    return -1
                labels[row] = label_slots[slot]
            p = skip_space(text, p)
        elif tokens == 1:
            tokens = 2
            x, end = json_number(text, start)
            if end != p or not x <= LARGEST or text[start] == 45:
                return -1
            weights[row] = x
            p = skip_space(text, p)
        else:
            return -1
    if tokens == 0 and label_kind != NO_LABELS:
        return -1
    return p


@kernel(inline=True)
def read_features(
    text: RO_U1, p: int, ascii_only: bool, dim: int, stores_names: bool,
    indices: I4, values: F8, nnz: int, name_table: NAMES,
) -> int:  # fmt: skip
    """The features from the bar at p on; the position of the line feed, or -1.

    counts[1] is then the number of entries.
    """
    journalled, seen, name_indices, name_ends, names, counts, buffer = name_table
    prefix = 0
    scale = 1.0
    while True:
        if text[p] == _BAR:
            p += 1
            prefix = 0
            scale = 1.0
            start = p
            p = copy_name(text, start, ascii_only, buffer, 0)
            if p < 0 or text[p] == _BAR:
                return -1
            prefix = p - start
            if prefix > 0:
                buffer[prefix] = _CARET
                prefix += 1
            if text[p] == _COLON:
                if prefix == 0:
                    return -1
                scale, p = json_number(text, p + 1)
                if p < 0:
                    return -1
                c = text[p]
                if not (c == 32 or c == 9 or c == 13 or c == _FEED):
                    return -1
        p = skip_space(text, p)
        if text[p] == _FEED:
            counts[1] = nnz
            return p
        if text[p] == _BAR:
            continue
        start = p
        p = copy_name(text, start, ascii_only, buffer, prefix)
        if p <= start:
            return -1
        length = prefix + p - start
        if dim >= 0:
            if prefix > 0 or p - start > 10 or text[start] == 48:
                return -1
            index = 0
            for q in range(start, p):
                if not 0 <= digit(text[q]) <= 9:
                    return -1
                index = index * 10 + digit(text[q])
            index -= 1
            if index >= dim:
                return -1
        else:
            index = hash_bytes(buffer, length) & (-dim - 1)
        x = 1.0
        if text[p] == _COLON:
            x, p = json_number(text, p + 1)
            if p < 0:
                return -1
            c = text[p]
            if not (c == 32 or c == 9 or c == 13 or c == _FEED or c == _BAR):
                return -1
        if (
            stores_names
            and x * scale != 0.0
            and not store_name(
                journalled, seen, index, buffer, length, name_indices, name_ends, names, counts
            )
        ):
            return -1
        indices[nnz] = index
        values[nnz] = x * scale
        nnz += 1


@kernel
def read_examples(
    text: RO_U1, ascii_only: bool, dim: int, label_kind: int, stores_names: bool, rows: ROWS,
    spare: SPARE, name_table: NAMES, label_table: LABEL_TABLE, row_indices: I8, at: I8,
) -> int:  # fmt: skip
    """Read lines up to the first that is not of the common form, or all; 1 for the former.

    The arguments are those of `read_samples`.
    """
    indptr, indices, values = rows[0], rows[1], rows[2]
    seen, name_indices, counts = name_table[1], name_table[2], name_table[5]
    p, line, row_index, row = at[0], at[1], at[2], at[3]
    names_before = counts[0]
    stopped = 0
    while p < text.shape[0]:
        start = p
        p = skip_space(text, p)
        if text[p] == _FEED:
            p += 1
            line += 1
            continue
        counts[2] = counts[3] = 0
        p = read_head(text, p, ascii_only, label_kind, rows, row, label_table, counts)
        if p >= 0:
            p = read_features(
                text, p, ascii_only, dim, stores_names, indices, values, indptr[row], name_table
            )
        end = -1
        if p >= 0 and (dim >= 0 or counts[1] - indptr[row] <= MAX_ROW_NAMES):
            end = finish_row(indices, values, indptr[row], counts[1], dim < 0, spare[0], spare[1])
        if end < 0:
            p = start
            stopped = 1
            drop_names(seen, name_indices, counts, names_before)
            break
        names_before = counts[0]
        indptr[row + 1] = end
        row_indices[row] = row_index
        row += 1
        row_index += 1
        line += 1
        p += 1
    at[0], at[1], at[2], at[3] = p, line, row_index, row
    return stopped
