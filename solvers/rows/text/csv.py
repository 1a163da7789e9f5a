"""CSV kernel: reads records in the common form.

A field is bytes without a quote, or bytes without a quote between two quotes. Numbers that cannot
be read exactly, other spellings of a number (+5, .5), NaN and infinity are not of the common form.
"""

from typing import Any

import numpy as np

from dualstream.solvers.jit import I8, RO_I4, RO_I8, RO_U1, Bytes, kernel
from dualstream.solvers.rows.text import tokens

COLUMNS = tuple[RO_I4, RO_I4, RO_I8, RO_U1]
"""Of each column the content and the index of its numbers, (columns,); ends (columns + 1,) and text
of the names, each of at most LONGEST_NAME bytes."""

_COMMA, _QUOTE, _FEED = 44, 34, 10

# Content of a column.
FEATURE, LABEL, WEIGHT, NOTHING = range(4)
# Kinds of fields.
_TEXT, _TRUE, _FALSE, _NUMERAL, _STRANGE = range(5)
# Byte classes in an unquoted field: part of it, non-ASCII, its end, or not of the common form.
_PLAIN, _BEYOND_ASCII, _FIELD_END, _STRANGE_BYTE = range(4)

# Words that are no texts, as numbers.
_NAN, _INF, _INFINITY = (int.from_bytes(word, "big") for word in (b"nan", b"inf", b"infinity"))
_TRUE_1, _TRUE_2, _TRUE_3 = (int.from_bytes(word, "big") for word in (b"true", b"True", b"TRUE"))
_FALSE_1, _FALSE_2, _FALSE_3 = (
    int.from_bytes(word, "big") for word in (b"false", b"False", b"FALSE")
)


def byte_kinds(delimiter: int) -> Bytes:
    """Byte classes of a text with this delimiter: an argument of `read_records`."""
    kinds = np.zeros(256, np.uint8)
    kinds[128:] = _BEYOND_ASCII
    kinds[:32] = kinds[_QUOTE] = _STRANGE_BYTE
    kinds[9] = _PLAIN
    kinds[[delimiter, _FEED, 13]] = _FIELD_END
    return kinds


@kernel(inner=True)
def past_blanks(text: RO_U1, p: int) -> int:
    """The next position that is neither a space nor a tab."""
    while text[p] == 32 or text[p] == 9:
        p += 1
    return p


@kernel(inner=True)
def field_end(text: RO_U1, p: int, ascii_only: bool, byte_kinds: RO_U1) -> int:
    """End of the field at p, after its first quote if it has one; -1 if it is not of the common
    form."""
    if text[p] == _QUOTE:
        p += 1
        while text[p] != _QUOTE:
            if text[p] < 32 or (ascii_only and text[p] > 127):
                return -1
            p += 1
        return p
    # Unsigned, so that numba skips the check for negative indices.
    q = np.uint64(p)
    one = np.uint64(1)
    while True:
        kind = byte_kinds[text[q]]
        if kind == _STRANGE_BYTE or (kind == _BEYOND_ASCII and ascii_only):
            return -1
        if kind == _FIELD_END:
            return int(q)
        q += one


@kernel(inner=True)
def word_form(text: RO_U1, start: int, end: int) -> int:
    """_TRUE, _FALSE, _STRANGE for NaN and infinity in any case; else _TEXT."""
    word: Any = np.int64(0)
    if end - start == 4 or end - start == 5:
        for p in range(start, end):
            word = word << 8 | np.int64(text[p])
        if word == _TRUE_1 or word == _TRUE_2 or word == _TRUE_3:
            return _TRUE
        if word == _FALSE_1 or word == _FALSE_2 or word == _FALSE_3:
            return _FALSE
    if text[start] == 43 or text[start] == 45:
        start += 1
    if end - start == 3 or end - start == 8:
        word = np.int64(0)
        for p in range(start, end):
            word = word << 8 | (np.int64(text[p]) | 32)
        if word == _NAN or word == _INF or word == _INFINITY:
            return _STRANGE
    return _TEXT


@kernel(inner=True)
def form_of(text: RO_U1, start: int, end: int) -> int:
    """Kind of the field text[start:end], which is not empty."""
    first, last = text[start], text[end - 1]
    if first == 32 or first == 9 or last == 32 or last == 9:
        return _NUMERAL
    if 43 <= first <= 57 and first != _COMMA and first != 47:
        return _NUMERAL
    return word_form(text, start, end)


@kernel(inner=True)
def form_of_no_number(text: RO_U1, start: int, end: int) -> int:
    """Whether a field that begins like a number is certainly a text."""
    first, last = text[start], text[end - 1]
    if first == 32 or first == 9 or last == 32 or last == 9:
        return _STRANGE
    if word_form(text, start, end) != _TEXT:
        return _STRANGE
    has_comma = False
    for p in range(start, end):
        c = text[p]
        if c == 43 or c == 45:
            # A sign is first, or follows the e of an exponent.
            if p > start and text[p - 1] | 32 != 101:
                return _TEXT
        elif c == _COMMA:
            has_comma = True
        elif not (48 <= c <= 57 or c == 46 or c | 32 == 101):
            return _TEXT
    first_digit = start + 1 if first == 43 or first == 45 else start
    if not has_comma and end - first_digit > 1 and text[first_digit] == 48:
        if 0 <= tokens.digit(text[first_digit + 1]) <= 9:  # a leading zero belongs to a code
            return _TEXT
    return _STRANGE


@kernel(inline=True)
def read_record(
    text: RO_U1, p: int, ascii_only: bool, delimiter: int, byte_kinds: RO_U1, dim: int,
    label_kind: int, stores_names: bool, rows: tokens.ROWS, row: int, columns: COLUMNS,
    name_table: tokens.NAMES, label_table: tokens.LABEL_TABLE,
) -> int:  # fmt: skip
    """Read the record at p into `row`; the position of its line feed, or -1.

    counts[1] is then the number of entries.
    """
    indptr, indices, values, labels, weights = rows
    kinds, column_places, header_ends, header = columns
    journalled, seen, name_indices, name_ends, names, counts, buffer = name_table
    label_slots, label_ends, label_text = label_table
    nnz = indptr[row]
    labels[row] = 0.0
    weights[row] = 1.0
    has_label = False
    column = 0
    while True:
        if column >= kinds.shape[0]:
            return -1
        start = p
        end = p = field_end(text, p, ascii_only, byte_kinds)
        if p < 0:
            return -1
        if text[start] == _QUOTE:
            start += 1
            p += 1
        kind = kinds[column]
        if kind == LABEL and label_kind != tokens.NO_LABELS:
            if start == end:
                return -1
            has_label = True
            if label_kind == tokens.NUMBERS:
                x, q = tokens.json_number(text, start)
                if q != end or not abs(x) <= tokens.LARGEST or (x == 0.0 and text[start] == 45):
                    return -1
                labels[row] = x
            else:
                slot = tokens.label_slot(text, start, end, label_slots, label_ends, label_text)
                if label_slots[slot] < 0:
                    counts[2], counts[3] = start, end
                    return -1
                labels[row] = label_slots[slot]
        elif kind == WEIGHT and start < end:
            x, q = tokens.json_number(text, start)
            if q != end or not x <= tokens.LARGEST or text[start] == 45:
                return -1
            weights[row] = x
        elif kind == FEATURE and start < end:
            form = form_of(text, start, end)
            x = 1.0
            if form == _NUMERAL:
                x, q = tokens.json_number(text, past_blanks(text, start))
                if q < 0 or (q != end and past_blanks(text, q) != end):
                    form = form_of_no_number(text, start, end)
                    x = 1.0
            elif form == _FALSE:
                x = 0.0
            if form == _STRANGE or (
                form == _TEXT and (dim >= 0 or end - start > tokens.LONGEST_NAME)
            ):
                return -1
            index = column_places[column]
            is_new = (
                stores_names and journalled[tokens.slot_of(journalled, index)] == 0 and x != 0.0
            )
            if form == _TEXT or is_new:
                length = 0
                for q in range(header_ends[column], header_ends[column + 1]):
                    buffer[length] = header[q]
                    length += 1
                if form == _TEXT:
                    buffer[length] = 61
                    length += 1
                    for q in range(start, end):
                        buffer[length] = text[q]
                        length += 1
                    index = tokens.hash_bytes(buffer, length) & (-dim - 1)
                if stores_names and not tokens.store_name(
                    journalled, seen, index, buffer, length, name_indices, name_ends, names, counts
                ):
                    return -1
            indices[nnz] = index
            values[nnz] = x
            nnz += 1
        column += 1
        if text[p] == delimiter:
            p += 1
            continue
        if text[p] == 13:
            p += 1
        if text[p] != _FEED or column != kinds.shape[0]:
            return -1
        if label_kind != tokens.NO_LABELS and not has_label:
            return -1
        counts[1] = nnz
        return p


@kernel
def read_records(
    text: RO_U1, ascii_only: bool, delimiter: int, byte_kinds: RO_U1, dim: int, label_kind: int,
    stores_names: bool, columns: COLUMNS, rows: tokens.ROWS, spare: tokens.SPARE,
    name_table: tokens.NAMES, label_table: tokens.LABEL_TABLE, row_indices: I8, at: I8,
) -> int:  # fmt: skip
    """Read records up to the first that is not of the common form, or all; 1 for the former.

    delimiter, byte_kinds    the byte between fields, and `byte_kinds` of it

    The other arguments are those of `read_samples`.
    """
    indptr, indices, values, kinds = rows[0], rows[1], rows[2], columns[0]
    seen, name_indices, counts = name_table[1], name_table[2], name_table[5]
    p, line, row_index, row = at[0], at[1], at[2], at[3]
    names_before = counts[0]
    stopped = 0
    while p < text.shape[0]:
        start = p
        q = p
        while text[q] == 32 or text[q] == 13 or (text[q] == 9 and delimiter != 9):
            q += 1
        # In a single column a line without text is a record whose value is missing.
        if text[q] == _FEED and kinds.shape[0] > 1:
            p = q + 1
            line += 1
            continue
        counts[2] = counts[3] = 0
        p = read_record(
            text, p, ascii_only, delimiter, byte_kinds, dim, label_kind, stores_names, rows, row,
            columns, name_table, label_table,
        )  # fmt: skip
        end = -1
        if p >= 0:
            end = tokens.finish_row(
                indices, values, indptr[row], counts[1], dim < 0, spare[0], spare[1]
            )
        if end < 0:
            p = start
            stopped = 1
            tokens.drop_names(seen, name_indices, counts, names_before)
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
