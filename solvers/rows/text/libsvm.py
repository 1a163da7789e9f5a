"""LIBSVM parser: one kernel over the bytes; Python's float for numbers it cannot round.

    <label> <index>:<value> <index>:<value> ...  # comment

Indices count from 1. Blank lines and everything from `#` on are skipped; lines end in LF or CRLF. A
line that does not parse is reported with its reason, and never stops the others.
"""

from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_U1, Floats, Indices, Ints, kernel
from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.solvers.rows.text.tokens import EXACT, LARGEST, POWERS_OF_TEN, digit, scaled

# Byte classes: part of a token, space between tokens, or the end of a line's content.
_TOKEN, _SPACE, _END = range(3)
_KIND = np.zeros(256, np.uint8)
_KIND[[9, 11, 12, 13, 32]] = _SPACE
_KIND[[10, 35]] = _END

# Results of reading a number: exact, left to float(), not a number, one of the words nan and inf,
# or an integer beyond 2^53.
_READ, _SLOW, _NO_NUMBER, _NOT_FINITE, _TOO_LONG = range(5)

# Errors of a line.
_NO_LABEL, _BAD_LABEL, _BAD_PAIR, _BAD_INDEX, _INDEX_LOW, _INDEX_HIGH, _BAD_NUMBER = range(1, 8)
_LONG_INTEGER = 8
_REASONS = {
    _NO_LABEL: "no label before {token!r}",
    _BAD_LABEL: "the label {token!r} is not finite",
    _BAD_PAIR: "expected index:value, got {token!r}",
    _BAD_INDEX: "the index in {token!r} is not a whole number",
    _INDEX_LOW: "the index in {token!r} is below 1",
    _INDEX_HIGH: "the index in {token!r} is above {dim}",
    _BAD_NUMBER: "the value in {token!r} is not a finite number",
    _LONG_INTEGER: "the integer in {token!r} is beyond 2^53 and loses digits; ids are not numbers",
}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that does not parse."""

    row: int
    """Its index among the lines that are not blank, from 0."""
    line: int
    """Its line number, from 1."""
    reason: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The lines that parsed: entries in order of appearance, including zeros and large numbers."""

    indptr: Ints
    indices: Indices
    values: Floats
    labels: Floats
    """NaN if the label is not a number; `spans` has its position."""
    spans: Ints
    """(n, 2): begin and end of each label in the text; equal without a label."""
    rows: Ints
    lines: Ints
    bad: list[BadLine]
    are_tidy: bool
    """Whether the entries of each row are known to be sorted and unique, and none is 0 or too
    large."""


def parse(text: bytes, dim: int, labelled: bool) -> Columns:
    """Every line of `text` as columns, or as a bad line. Values are rounded exactly like float()
    does."""
    if not text.endswith(b"\n"):
        text += b"\n"
    # An index, a colon, a digit and a space: the minimum of an entry.
    most_rows, most_entries = count_lines(text), len(text) // 4
    indptr = np.zeros(most_rows + 1, np.int64)
    indices = np.empty(most_entries, np.int32)
    values = np.empty(most_entries)
    labels = np.empty(most_rows)
    row_table = np.empty((most_rows, 4), np.int64)
    slow = np.empty((most_rows + most_entries, 3), np.int64)
    bad = np.empty((most_rows, 5), np.int64)
    counts = np.zeros(5, np.int64)
    parse_lines(
        np.frombuffer(text, np.uint8), dim, labelled,
        indptr, indices, values, labels,
        row_table.reshape(-1), slow.reshape(-1), bad.reshape(-1), counts,
    )  # fmt: skip
    n, nnz, n_slow, n_bad, n_untidy = counts.tolist()
    for entry, start, end in slow[:n_slow].tolist():
        column, at = (values, entry) if entry >= 0 else (labels, -entry - 1)
        column[at] = float(text[start:end])
    return Columns(
        indptr[: n + 1],
        indices[:nnz],
        values[:nnz],
        labels[:n],
        row_table[:n, 2:],
        row_table[:n, 0],
        row_table[:n, 1],
        [_bad_line(text, dim, *line) for line in bad[:n_bad].tolist()],
        n_untidy == 0,
    )


def _bad_line(
    text: bytes, dim: int, row: int, line: int, code: int, start: int, end: int
) -> BadLine:
    token = text[start : min(end, start + 40)].decode("utf-8", "replace")
    if code == _BAD_INDEX and token.startswith("qid:"):
        reason = f"{token!r}: groups of a ranking (qid) are not supported; leave them out"
        return BadLine(row, line, reason)
    return BadLine(row, line, _REASONS[code].format(token=token, dim=dim))


@kernel(inner=True)
def token_end(text: RO_U1, p: int) -> int:
    """End of the token that contains position p."""
    while _KIND[text[p]] == _TOKEN:
        p += 1
    return p


@kernel(inner=True)
def is_not_finite_word(text: RO_U1, start: int, end: int) -> bool:
    """Whether a token is nan, inf or infinity, signed or not, in any case."""
    if text[start] == 43 or text[start] == 45:
        start += 1
    length = end - start
    if length != 3 and length != 8:
        return False
    a, b, c = text[start] | 32, text[start + 1] | 32, text[start + 2] | 32
    if a == 110 and b == 97 and c == 110:
        return length == 3
    if not (a == 105 and b == 110 and c == 102):
        return False
    if length == 3:
        return True
    # "inity", letter by letter: other words of eight letters begin with "inf", too.
    return bool(
        text[start + 3] | 32 == 105
        and text[start + 4] | 32 == 110
        and text[start + 5] | 32 == 105
        and text[start + 6] | 32 == 116
        and text[start + 7] | 32 == 121
    )


@kernel
def read_number(text: RO_U1, p: int) -> tuple[float, int, int]:
    """The number at position p, how it was read, and where its token ends.

    [+-] digits [. digits] [e [+-] digits], with a digit before or after the point.
    """
    start = p
    negative = text[p] == 45
    if negative or text[p] == 43:
        p += 1
    first = p
    mantissa = 0
    significant = 0
    exponent = 0
    valid = False
    while 0 <= digit(text[p]) <= 9:
        valid = True
        if significant < 18:
            mantissa = mantissa * 10 + digit(text[p])
        significant += mantissa != 0
        p += 1
    if text[first] == 48 and p - first > 1:  # a leading zero belongs to a code
        end = token_end(text, p)
        return 0.0, _NO_NUMBER, end
    is_integer = text[p] != 46 and text[p] | 32 != 101
    if text[p] == 46:
        p += 1
        while 0 <= digit(text[p]) <= 9:
            valid = True
            if significant < 18:
                mantissa = mantissa * 10 + digit(text[p])
                exponent -= 1
            significant += mantissa != 0
            p += 1
    if valid and text[p] | 32 == 101:
        p += 1
        downwards = text[p] == 45
        if downwards or text[p] == 43:
            p += 1
        valid = 0 <= digit(text[p]) <= 9
        shift = 0
        while 0 <= digit(text[p]) <= 9:
            shift = min(shift * 10 + digit(text[p]), 100_000)
            p += 1
        exponent += -shift if downwards else shift
    if not valid or _KIND[text[p]] == _TOKEN:
        end = token_end(text, p)
        return 0.0, (_NOT_FINITE if is_not_finite_word(text, start, end) else _NO_NUMBER), end
    if is_integer and (significant > 18 or mantissa > EXACT):
        return 0.0, _TOO_LONG, p
    if significant > 18 or not -22 <= exponent <= 22:
        return 0.0, _SLOW, p
    if mantissa <= EXACT:
        x = float(mantissa)
        x = x * POWERS_OF_TEN[exponent] if exponent >= 0 else x / POWERS_OF_TEN[-exponent]
    else:
        x, is_certain = scaled(mantissa, exponent)
        if not is_certain:
            return 0.0, _SLOW, p
    return (-x if negative else x), _READ, p


@kernel(inner=True)
def read_index(text: RO_U1, p: int) -> tuple[int, int]:
    """The index before a colon, and the position of the colon; position -1 if it is not a whole
    number.

    An index beyond 2^40 is returned as 2^40: no row is that wide.
    """
    negative = text[p] == 45
    if negative:
        p += 1
    first = p
    index = 0
    while 0 <= digit(text[p]) <= 9:
        index = min(index * 10 + digit(text[p]), 1 << 40)
        p += 1
    if p == first or text[p] != 58:
        return 0, -1
    return (-index if negative else index), p


@kernel(inner=True)
def line_end(text: RO_U1, p: int) -> int:
    """Position of the next line feed."""
    while text[p] != 10:
        p += 1
    return p


@kernel(inline=True)
def read_pairs(
    text: RO_U1, p: int, dim: int, indices: I4, values: F8, nnz: int, previous: int
) -> tuple[int, int, int]:
    """Read entries in the common form: a space, a larger index, a digit above 0.

    Returns the position of the first byte that is not, the number of entries, and the last index.
    """
    # Unsigned, so that numba skips the check for negative indices.
    one, two = np.uint64(1), np.uint64(2)
    at = np.uint64(p)
    k = np.uint64(nnz)
    while text[at] == 32:
        q = at + one
        d = digit(text[q])
        index = 0
        while 0 <= d <= 9:
            index = index * 10 + d
            q += one
            d = digit(text[q])
        if d != 10 or not previous < index <= dim or q - at > np.uint64(12):
            break
        x = digit(text[q + one])
        if not 1 <= x <= 9 or (text[q + two] != 32 and text[q + two] != 10):
            break
        indices[k] = index - 1
        values[k] = float(x)
        previous = index
        k += one
        at = q + two
    return int(at), int(k), previous


@kernel
def parse_lines(
    text: RO_U1,
    dim: int,
    labelled: bool,
    indptr: I8,
    indices: I4,
    values: F8,
    labels: F8,
    row_table: I8,
    slow: I8,
    bad: I8,
    counts: I8,
) -> None:
    """Read every line; the output of a line that fails is overwritten by the next one.

    text     (bytes,)    uint8    ends in a line feed, where every loop below stops
    labelled             whether a line begins with its label; if not, a label is skipped
    indptr   (rows + 1,) int64    indptr[0] = 0
    indices, values (colons,)     0-based, in the order of the line
    labels   (rows,)     float64  NaN if the label is not a number
    row_table    (rows * 4,) int64   row among non-blank lines, line number, begin and end of label
    slow     (k * 3,)    int64    entry (or -1 - row for its label), begin and end: for float()
    bad      (rows * 5,) int64    row, line, code, begin and end of the token
    counts   (5,)        int64    rows, entries, slow ones, bad ones; rows that may not be tidy
    """
    row = line = p = 0
    good = nnz = n_slow = n_bad = n_untidy = 0
    while p < text.shape[0]:
        line += 1
        while _KIND[text[p]] == _SPACE:
            p += 1
        if _KIND[text[p]] == _END:
            p = line_end(text, p) + 1
            continue

        code = 0
        first_entry, first_slow = nnz, n_slow
        # The first token: a label, unless it contains a colon.
        token = end = p
        has_colon = False
        while _KIND[text[end]] == _TOKEN:
            has_colon = has_colon or text[end] == 58
            end += 1
        row_table[4 * good + 2] = p
        row_table[4 * good + 3] = p if has_colon else end
        labels[good] = np.nan
        if labelled and has_colon:
            code = _NO_LABEL
        elif labelled:
            x, how, p = read_number(text, p)
            if how == _READ:
                labels[good] = x
            elif how == _SLOW:
                slow[3 * n_slow], slow[3 * n_slow + 1], slow[3 * n_slow + 2] = -1 - good, token, p
                n_slow += 1
            elif how == _NOT_FINITE:
                code = _BAD_LABEL
        elif not has_colon:
            p = end

        previous = 0
        is_tidy = True
        while code == 0:
            p, nnz, previous = read_pairs(text, p, dim, indices, values, nnz, previous)
            while _KIND[text[p]] == _SPACE:
                p += 1
            if _KIND[text[p]] == _END:
                break
            token = p
            index, colon = read_index(text, p)
            if colon < 0:
                code = _BAD_PAIR
                for q in range(p, token_end(text, p)):
                    if text[q] == 58:
                        code = _BAD_INDEX
                break
            if index < 1 or index > dim:
                code = _INDEX_LOW if index < 1 else _INDEX_HIGH
                break
            x, how, p = read_number(text, colon + 1)
            if how == _SLOW:
                at = 3 * n_slow
                slow[at], slow[at + 1], slow[at + 2] = nnz, colon + 1, p
                n_slow += 1
            elif how != _READ:
                code = _LONG_INTEGER if how == _TOO_LONG else _BAD_NUMBER
                break
            is_tidy = is_tidy and how == _READ and index > previous
            is_tidy = is_tidy and x != 0.0 and abs(x) <= LARGEST
            previous = index
            indices[nnz] = index - 1
            values[nnz] = x
            nnz += 1

        if code == 0:
            row_table[4 * good] = row
            row_table[4 * good + 1] = line
            good += 1
            indptr[good] = nnz
            n_untidy += not is_tidy
        else:
            nnz, n_slow = first_entry, first_slow
            at = 5 * n_bad
            bad[at], bad[at + 1], bad[at + 2] = row, line, code
            bad[at + 3], bad[at + 4] = token, token_end(text, token)
            n_bad += 1
        row += 1
        p = line_end(text, p) + 1
    counts[0], counts[1], counts[2], counts[3], counts[4] = good, nnz, n_slow, n_bad, n_untidy
