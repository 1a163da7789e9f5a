"""Label, weight and id of flat rows, in JSON and as texts.

Each function returns whether the value was read (texts) or the position after it (JSON), NOT_MINE
if Python must read it.
"""

from dualstream.solvers.jit import RO_U1, kernel
from dualstream.solvers.rows.text import tokens
from dualstream.solvers.rows.text.flat import values
from dualstream.solvers.rows.text.flat.layout import (
    ID_BEGIN,
    ID_END,
    MISSING_NUMBERS_AT,
    NOT_MINE,
    OUT,
)
from dualstream.solvers.rows.text.json import word_end
from dualstream.solvers.rows.text.name_cache import string_end

_LONGEST_ID = 255


@kernel(inner=True)
def set_weight(x: float, row: int, out: OUT) -> bool:
    """Set the weight of a row, unless the number stands for a missing value."""
    if values.is_missing_number(0, x, out):
        return True
    if not 0.0 <= x <= tokens.LARGEST:
        return False
    out.weights[row] = x
    return True


@kernel(inner=True)
def set_weight_text(text: RO_U1, start: int, end: int, row: int, out: OUT) -> bool:
    """As `set_weight`, of text[start:end]."""
    is_missing = values.is_missing_text(0, text, start, end, out)
    if is_missing != 0:
        return is_missing > 0
    x, q = tokens.json_number(text, start)
    return q == end and text[start] != 45 and set_weight(x, row, out)


@kernel(inner=True)
def set_number_label(x: float, row: int, out: OUT) -> bool:
    """Set the label of a row to a number; not to 0, whose sign depends on how it is written."""
    if not 0.0 < abs(x) <= tokens.LARGEST or values.is_missing_number(0, x, out):
        return False
    out.labels[row] = x
    return True


@kernel(inner=True)
def set_class(text: RO_U1, start: int, end: int, row: int, out: OUT) -> bool:
    """Set the label of a row to the number of the label as written; False if no table has it.

    counts[2] and counts[3] are then its begin and end. A label that stands for a missing value is
    in no table, because its row is refused.
    """
    slot = tokens.label_slot(text, start, end, out.label_slots, out.label_ends, out.label_text)
    if out.label_slots[slot] < 0:
        out.counts[2], out.counts[3] = start, end
        return False
    out.labels[row] = out.label_slots[slot]
    return True


@kernel(inner=True)
def set_label_text(text: RO_U1, start: int, end: int, row: int, out: OUT) -> bool:
    """Set the label of a row to text[start:end]."""
    if out.label_kind == tokens.NO_LABELS:
        return True
    if out.label_kind != tokens.NUMBERS:
        return start < end and set_class(text, start, end, row, out)
    if values.is_missing_text(0, text, start, end, out) != 0:
        return False
    x, q = tokens.json_number(text, start)
    # -0 is 0 if written as a whole number, and -0.0 otherwise.
    if q == end and x == 0.0 and text[start] != 45:
        out.labels[row] = x
        return not values.is_missing_number(0, x, out)
    return q == end and set_number_label(x, row, out)


@kernel(inner=True)
def set_id_text(text: RO_U1, start: int, end: int, out: OUT) -> bool:
    """Note text[start:end] as the id of the row, unless it stands for a missing value."""
    is_missing = values.is_missing_text(0, text, start, end, out)
    if is_missing != 0:
        return is_missing > 0
    if not 1 <= end - start <= _LONGEST_ID:
        return False
    for p in range(start, end):
        if text[p] < 32 or text[p] > 126:
            return False
    form, _ = values.category_of(text, start, end, out)
    if form != values.AS_IT_IS:
        return False
    out.notes[ID_BEGIN], out.notes[ID_END] = start, end
    return True


@kernel(inner=True)
def read_number_id(text: RO_U1, p: int, out: OUT) -> int:
    """Read the id at p that is an integer in JSON, of any length that an id may have."""
    start = p
    p += text[p] == 45
    first = p
    while 0 <= tokens.digit(text[p]) <= 9:
        p += 1
    is_integer = text[p] != 46 and text[p] | 32 != 101
    # Python writes -0 as 0.
    has_zero = text[first] == 48 and p - start > 1
    if p == first or p - start > _LONGEST_ID or has_zero or not is_integer:
        return NOT_MINE
    # Numbers that are missing in all columns come first.
    if out.missing_numbers.shape[0] > 0 and out.plan[MISSING_NUMBERS_AT] == 0:
        x, q = tokens.json_number(text, start)
        if q != p:
            return NOT_MINE
        if values.is_missing_number(0, x, out):
            return p
    out.notes[ID_BEGIN], out.notes[ID_END] = start, p
    return p


@kernel(inner=True)
def read_label(text: RO_U1, p: int, ascii_only: bool, row: int, out: OUT) -> int:
    """Read the JSON label at p."""
    start = p
    c = text[p]
    if c == 34:
        end, _ = string_end(text, p + 1, ascii_only)
        if end < 0:
            return NOT_MINE
        if out.label_kind == tokens.NUMBERS:
            is_good = set_label_text(text, p + 1, end, row, out)
            return end + 1 if is_good else NOT_MINE
        p = end + 1
    elif c == 116 or c == 102:
        p = word_end(text, p) if out.label_kind != tokens.NUMBERS else NOT_MINE
    elif c == 110:
        is_null = text[p + 1] == 117 and text[p + 2] == 108 and text[p + 3] == 108
        return p + 4 if is_null and out.label_kind == tokens.NO_LABELS else NOT_MINE
    else:
        x, p = tokens.json_number(text, p)
        if out.label_kind == tokens.NUMBERS and p >= 0:
            return p if set_label_text(text, start, p, row, out) else NOT_MINE
    if p < 0 or out.label_kind == tokens.NO_LABELS:
        return p
    return p if set_class(text, start, p, row, out) else NOT_MINE


@kernel(inner=True)
def read_weight(text: RO_U1, p: int, ascii_only: bool, row: int, out: OUT) -> int:
    """Read the JSON weight at p."""
    c = text[p]
    if c == 34:
        end, _ = string_end(text, p + 1, ascii_only)
        if end < 0 or not set_weight_text(text, p + 1, end, row, out):
            return NOT_MINE
        return end + 1
    if c == 110:
        is_null = text[p + 1] == 117 and text[p + 2] == 108 and text[p + 3] == 108
        return p + 4 if is_null else NOT_MINE
    x, q = tokens.json_number(text, p)
    return q if q > 0 and c != 45 and set_weight(x, row, out) else NOT_MINE


@kernel(inner=True)
def read_id(text: RO_U1, p: int, ascii_only: bool, out: OUT) -> int:
    """Read the JSON id at p."""
    c = text[p]
    if c == 34:
        end, _ = string_end(text, p + 1, ascii_only)
        return end + 1 if end > 0 and set_id_text(text, p + 1, end, out) else NOT_MINE
    if c == 110:
        is_null = text[p + 1] == 117 and text[p + 2] == 108 and text[p + 3] == 108
        return p + 4 if is_null else NOT_MINE
    return int(read_number_id(text, p, out))
