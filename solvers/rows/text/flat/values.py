"""Values of flat rows by the types of their columns, as rows/columns/values.py defines them.

A value that is not certain to be read as Python reads it is NOT_MINE, and so is one that does not
fit. Functions return the number of features after the value, or why it was not read.
"""

import math

from dualstream.solvers.jit import RO_U1, kernel
from dualstream.solvers.rows.text.csv import form_of, form_of_no_number, past_blanks, word_form
from dualstream.solvers.rows.text.flat import features
from dualstream.solvers.rows.text.flat.layout import (
    BOOLEAN,
    CATEGORY,
    CROSS,
    FALSE_AT,
    FIELDS,
    FULL,
    IGNORED,
    INFERRED,
    INPUT,
    KEY_ALONE,
    KIND,
    MISSING_AT,
    MISSING_NUMBERS_AT,
    MISSING_TEXTS,
    NODES_AT,
    NOT_MINE,
    NULL_IS_MISSING,
    NUMBER,
    OUT,
    SAME,
    TIME,
    TRUE_AT,
    WORDS,
)
from dualstream.solvers.rows.text.flat.times import put_number_as_time, put_text_as_time
from dualstream.solvers.rows.text.flat.words import put_words
from dualstream.solvers.rows.text.name_cache import SHORT, find_text, store_text, text_slot
from dualstream.solvers.rows.text.tokens import ZERO, digit, json_number

AS_IT_IS, AS_TRUE, AS_FALSE, AS_DIGITS, UNCERTAIN = range(5)
"""What a text is as a category."""
TEXT, TRUE, FALSE, NUMERAL = range(4)
"""Results of `form_of`."""
MAX_DIGITS = 1e15
"""Whole numbers below this are their digits, also written as floats."""


@kernel(inline=True)
def is_of_column(owner: int, node: int, out: OUT) -> bool:
    """Does a missing value of the column `owner`, or of all (0), count for this node?"""
    return bool(owner == 0 or owner == out.plan[NODES_AT + node * FIELDS + SAME])


@kernel(inline=True)
def is_missing_number(node: int, x: float, out: OUT) -> bool:
    """Does the number stand for a missing value of a column? Node 0 is a role."""
    for k in range(out.missing_numbers.shape[0]):
        if out.missing_numbers[k] == x:
            if is_of_column(out.plan[MISSING_NUMBERS_AT + k], node, out):
                return True
    return False


@kernel(inner=True)
def ends_with_feed(text: RO_U1, start: int, end: int) -> bool:
    """Does a text begin or end with a line end, which is a blank around a number?"""
    if end == start:
        return False
    first, last = text[start], text[end - 1]
    return bool(first == 10 or first == 13 or last == 10 or last == 13)


@kernel(inner=True)
def is_missing_text(node: int, text: RO_U1, start: int, end: int, out: OUT) -> int:
    """1 if the text stands for a missing value of a column, 0 if not, NOT_MINE if it may."""
    plan = out.plan
    for k in range(plan[MISSING_TEXTS]):
        at = MISSING_AT + 3 * k
        first = plan[at]
        if plan[at + 1] - first == end - start:
            same = 0
            while same < end - start and out.texts[first + same] == text[start + same]:
                same += 1
            if same == end - start and is_of_column(plan[at + 2], node, out):
                return 1
    if out.missing_numbers.shape[0] == 0 or end == start:
        return 0
    if ends_with_feed(text, start, end):
        return NOT_MINE
    if form_of(text, start, end) == NUMERAL:
        x, q = json_number(text, start)
        if q == end:
            return int(is_missing_number(node, x, out))
        return 0 if form_of_no_number(text, start, end) == TEXT else NOT_MINE
    return 0


@kernel(inner=True)
def write_digits(x: float, out: OUT) -> int:
    """Write a whole number below 10^15 into `scratch` at JOINED_AT; its end."""
    rest = int(abs(x))
    size = 1
    while size < 16 and rest >= 10**size:
        size += 1
    at = features.JOINED_AT
    if x < 0.0:
        out.scratch[at] = 45
        at += 1
    for k in range(size - 1, -1, -1):
        out.scratch[at + k] = 48 + rest % 10
        rest //= 10
    return at + size


@kernel(inner=True)
def write_number(x: float, text: RO_U1, start: int, end: int, out: OUT) -> int:
    """Write the category of a number into `scratch` at JOINED_AT; its end, or NOT_MINE.

    A float that is written with at most 15 digits, and as `repr` writes it, is its own category.
    """
    if x == math.floor(x):
        return write_digits(x, out) if abs(x) < MAX_DIGITS else NOT_MINE
    p = start + (text[start] == 45)
    if not 1e-4 <= abs(x) < MAX_DIGITS or end - p > 16 or text[end - 1] == 48:
        return NOT_MINE
    points = 0
    for q in range(p, end):
        points += text[q] == 46
        if text[q] != 46 and not 0 <= digit(text[q]) <= 9:
            return NOT_MINE
    if points != 1 or text[p] == 46 or (text[p] == 48 and text[p + 1] != 46):
        return NOT_MINE
    for k in range(end - start):
        out.scratch[features.JOINED_AT + k] = text[start + k]
    return features.JOINED_AT + end - start


@kernel(inner=True)
def category_of(text: RO_U1, start: int, end: int, out: OUT) -> tuple[int, float]:
    """What a text is as a category (see `whole`), and the number if it is a whole one."""
    if start == end:
        return AS_IT_IS, 0.0
    first = text[start]
    if first > 57:
        form = word_form(text, start, end)
        return (AS_TRUE if form == TRUE else AS_FALSE if form == FALSE else AS_IT_IS), 0.0
    is_number = first == 32 or first == 9 or first == 10 or first == 13
    is_number = is_number or first == 43 or first == 45 or first == 46 or first >= 48
    signs = 0
    for p in range(start, end):
        c = text[p]
        if c == 46 or c == 43 or c == 69 or c == 101:
            signs += 1
        elif not (48 <= c <= 57 or c == 45 or c == 32 or c == 9 or c == 10 or c == 13):
            return AS_IT_IS, 0.0
    if not is_number or signs == 0:
        return AS_IT_IS, 0.0
    x, q = json_number(text, start)
    if q != end:
        return UNCERTAIN, 0.0
    return (AS_DIGITS if x == math.floor(x) and abs(x) < MAX_DIGITS else AS_IT_IS), x


@kernel(inner=True)
def put_boolean(node: int, x: bool, nnz: int, out: OUT) -> int:
    """Add a boolean to a column of booleans, categories or without a type."""
    kind = out.plan[NODES_AT + node * FIELDS + KIND]
    start = TRUE_AT if x else FALSE_AT
    end = start + (4 if x else 5)
    if kind == IGNORED:
        return nnz
    is_category = kind == CATEGORY or kind == KEY_ALONE
    if not (is_category or kind == BOOLEAN or kind == INFERRED):
        return NOT_MINE
    if not features.note(node, out.texts, start, end, out):
        return NOT_MINE
    if is_category:
        return features.put_made(node, out.texts, start, end, nnz, out)
    return features.put_named(node, 1.0 if x else 0.0, nnz, out)


@kernel(inline=True)
def put_null(node: int, nnz: int, out: OUT) -> int:
    """Add null to a column."""
    if out.plan[NODES_AT + node * FIELDS + KIND] == IGNORED:
        return nnz
    return features.put_missing(node, nnz, out) if out.plan[NULL_IS_MISSING] else NOT_MINE


@kernel(inner=True)
def put_number_of_other(
    node: int, x: float, text: RO_U1, start: int, end: int, nnz: int, out: OUT
) -> int:
    """As `put_number`, to any column but the most common."""
    at = NODES_AT + node * FIELDS
    kind = out.plan[at + KIND]
    if is_missing_number(node, x, out):
        return features.put_missing(node, nnz, out)
    if kind == TIME:
        return put_number_as_time(node, x, nnz, out)
    if kind == BOOLEAN and (x == 0.0 or x == 1.0):
        return put_boolean(node, x == 1.0, nnz, out)
    is_category = kind == CATEGORY or kind == KEY_ALONE
    if not (is_category or kind == NUMBER or kind == INFERRED):
        return NOT_MINE
    if is_category or out.plan[at + CROSS] > 0:
        end = write_number(x, text, start, end, out)
        if end < 0 or not features.note(node, out.scratch, features.JOINED_AT, end, out):
            return NOT_MINE
    if is_category:
        return features.put_made(node, out.scratch, features.JOINED_AT, end, nnz, out)
    if out.plan[at + INPUT]:
        nnz = features.put_input(out.plan[at + INPUT], x if abs(x) > ZERO else ZERO, nnz, out)
        if nnz < 0:
            return nnz
    return features.put_named(node, x, nnz, out)


@kernel(inline=True)
def put_number(node: int, x: float, text: RO_U1, start: int, end: int, nnz: int, out: OUT) -> int:
    """Add the number text[start:end] to a column."""
    at = NODES_AT + node * FIELDS
    kind = out.plan[at + KIND]
    if kind == IGNORED:
        return nnz
    is_plain = (kind == NUMBER or kind == INFERRED) and out.plan[at + CROSS] == 0
    if is_plain and out.missing_numbers.shape[0] == 0:
        return features.put_named(node, x, nnz, out)
    return int(put_number_of_other(node, x, text, start, end, nnz, out))


@kernel(inner=True)
def boolean_of(text: RO_U1, start: int, end: int) -> int:
    """1 for true, yes, 1; 0 for false, no, 0, in any case; else NOT_MINE."""
    word = 0
    if end - start > 5:
        return NOT_MINE
    for p in range(start, end):
        c = int(text[p])
        word = word << 8 | (c | 32 if c > 64 else c)
    if word == 0x74727565 or word == 0x796573 or word == 0x31:
        return 1
    return 0 if word == 0x66616C7365 or word == 0x6E6F or word == 0x30 else NOT_MINE


@kernel(inner=True)
def put_text_of_other(node: int, text: RO_U1, start: int, end: int, nnz: int, out: OUT) -> int:
    """As `put_text`, of a text that is not cached and not missing."""
    kind = out.plan[NODES_AT + node * FIELDS + KIND]
    if kind == WORDS:
        return put_words(node, text, start, end, nnz, out)
    if kind == TIME:
        return put_text_as_time(node, text, start, end, nnz, out)
    if kind == BOOLEAN:
        boolean = boolean_of(text, start, end)
        return NOT_MINE if boolean < 0 else put_boolean(node, boolean == 1, nnz, out)
    if kind == CATEGORY or kind == KEY_ALONE:
        form, x = category_of(text, start, end, out)
        if form == UNCERTAIN:
            return NOT_MINE
        if form == AS_TRUE or form == AS_FALSE:
            return put_boolean(node, form == AS_TRUE, nnz, out)
        if form == AS_DIGITS:
            end = write_digits(x, out)
            if not features.note(node, out.scratch, features.JOINED_AT, end, out):
                return NOT_MINE
            return features.put_made(node, out.scratch, features.JOINED_AT, end, nnz, out)
    elif kind == NUMBER or kind == INFERRED:
        if ends_with_feed(text, start, end):
            return NOT_MINE
        form = form_of(text, start, end) if end > start else TEXT
        if form == NUMERAL:
            first = past_blanks(text, start)
            x, q = json_number(text, first)
            if q > 0 and (q == end or past_blanks(text, q) == end):
                return put_number_of_other(node, x, text, first, q, nnz, out)
            form = form_of_no_number(text, start, end)
        if kind == NUMBER:
            return NOT_MINE
        if form == TRUE or form == FALSE:
            return put_boolean(node, form == TRUE, nnz, out)
        if form != TEXT:
            return NOT_MINE
    else:
        return NOT_MINE
    if not features.note(node, text, start, end, out):
        return NOT_MINE
    return features.put_joined(node, node, text, start, end, nnz, out)


@kernel(inline=True)
def put_keyed(
    node: int,
    text: RO_U1,
    start: int,
    end: int,
    is_short: bool,
    a: int,
    b: int,
    c: int,
    nnz: int,
    out: OUT,
) -> int:
    """As `put_text`; a, b, c is the `short_key` of a short text."""
    at = NODES_AT + node * FIELDS
    kind = out.plan[at + KIND]
    if kind == IGNORED:
        return nnz
    if nnz >= out.indices.shape[0]:
        return FULL
    size = end - start
    slot = -1
    if is_short and (kind == CATEGORY or kind == INFERRED):
        slot = text_slot(node, size, a, b, c, out.memo)
        index = find_text(node, size, a, b, c, slot, out.memo)
        if index == features.MISSING:
            return features.put_missing(node, nnz, out)
        if index >= 0:
            if out.plan[at + CROSS] and not features.note(node, text, start, end, out):
                return NOT_MINE
            out.indices[nnz] = index
            out.values[nnz] = 1.0
            return nnz + 1
    if kind == NUMBER or kind == INFERRED:
        if 48 <= text[start] <= 57 and size > 0 and out.missing_numbers.shape[0] == 0:
            x, q = json_number(text, start)
            if q == end and out.plan[at + CROSS] == 0:
                return features.put_named(node, x, nnz, out)
    is_missing = is_missing_text(node, text, start, end, out)
    if is_missing < 0:
        return NOT_MINE
    if is_missing:
        if slot >= 0:
            store_text(node, size, a, b, c, slot, features.MISSING, out.memo)
        return features.put_missing(node, nnz, out)
    return int(put_text_of_other(node, text, start, end, nnz, out))


@kernel(inline=True)
def put_text(node: int, text: RO_U1, start: int, end: int, nnz: int, out: OUT) -> int:
    """Add text[start:end] to a column; a byte that no number has follows."""
    is_short = end - start < SHORT and start + SHORT <= text.shape[0]
    a = b = c = 0
    if is_short:
        a, b, c = features.short_key(text, start, end - start)
    return int(put_keyed(node, text, start, end, is_short, a, b, c, nnz, out))
