"""Features of flat rows: NAME, NAME=TEXT, missing values and crosses, as indices and new names."""

from dualstream.solvers.jit import RO_U1, U1, kernel, u1
from dualstream.solvers.rows.text.flat.layout import (
    ATTEMPT,
    CROSS,
    CROSSED,
    CROSSES_AT,
    DECLARED,
    DECLARED_AT,
    FIELDS,
    FULL,
    INDEX,
    INDICATES,
    KEY_ALONE,
    KIND,
    LONGEST_TEXT,
    MISSING_WORD_AT,
    NAME,
    NAME_BYTES,
    NODES_AT,
    NOT_MINE,
    NOTE_AT,
    NOTED_BYTES,
    NOTES,
    ORDER,
    OUT,
    SAME,
)
from dualstream.solvers.rows.text.name_cache import (
    CHANGES,
    LAST_OBJECT,
    PLACE,
    SHORT,
    STEP_NUMBERS,
    find_text,
    first_bytes,
    store_text,
    text_slot,
    word_at,
)
from dualstream.solvers.rows.text.tokens import LONGEST_NAME, hash_bytes, hash_key, store_name

EQUALS, COLON = 61, 58
MISSING = -2
"""Cached instead of an index: the text stands for a missing value."""
MADE = 1 << 15
"""Added to a node's number in the cache for texts that were made of other values."""
JOINED_AT = 3 * LONGEST_TEXT
"""Where the texts of crosses and the digits of numbers are in `scratch`."""
MAX_CROSSES = 1000
"""Maximum number of crosses of a row, as of the Python reader."""


@kernel(inline=True)
def short_key(text: RO_U1, start: int, size: int) -> tuple[int, int, int]:
    """The bytes of a text of fewer than SHORT bytes as three numbers; SHORT can be read."""
    a, b, c = word_at(text, start), word_at(text, start + 8), word_at(text, start + 16)
    return first_bytes(a, size), first_bytes(b, size - 8), first_bytes(c, size - 16)


@kernel(inner=True)
def store_named(node: int, out: OUT) -> int:
    """Store the name of a node's number, once in a text; False if there is no room."""
    at = NODES_AT + node * FIELDS
    start, length = out.plan[at + NAME], out.plan[at + NAME_BYTES]
    for k in range(length):
        out.buffer[k] = out.texts[start + k]
    out.memo[node * STEP_NUMBERS + PLACE] = 1
    out.memo[CHANGES] += 1
    return store_name(
        out.journalled, out.seen, out.plan[at + INDEX], out.buffer, length,
        out.name_indices, out.name_ends, out.names, out.counts,
    )  # fmt: skip


@kernel(inline=True)
def put_named(node: int, x: float, nnz: int, out: OUT) -> int:
    """Add the feature NAME of a node; the number of features then, or why not.

    Its name is stored with its first value that is not 0.
    """
    if nnz >= out.indices.shape[0]:
        return FULL
    if out.stores_names and out.memo[node * STEP_NUMBERS + PLACE] == 0 and x != 0.0:
        if not store_named(node, out):
            return NOT_MINE
    out.indices[nnz] = out.plan[NODES_AT + node * FIELDS + INDEX]
    out.values[nnz] = x
    return nnz + 1


@kernel(inner=True)
def new_index(node: int, sign: u1, text: RO_U1, start: int, end: int, out: OUT) -> int:
    """Index of the feature NAME, sign, text[start:end], whose name is stored if new; or -1."""
    at = NODES_AT + node * FIELDS
    first, length = out.plan[at + NAME], out.plan[at + NAME_BYTES]
    if length > LONGEST_NAME or end - start > LONGEST_NAME:
        return NOT_MINE
    for k in range(length):
        out.buffer[k] = out.texts[first + k]
    out.buffer[length] = sign
    length += 1
    for k in range(end - start):
        out.buffer[length + k] = text[start + k]
    length += end - start
    index = hash_bytes(out.buffer, length) & out.mask
    if out.stores_names and not store_name(
        out.journalled, out.seen, index, out.buffer, length,
        out.name_indices, out.name_ends, out.names, out.counts,
    ):  # fmt: skip
        return NOT_MINE
    return index


@kernel(inline=True)
def joined_index(
    node: int, cached: int, sign: u1, text: RO_U1, start: int, end: int, out: OUT
) -> int:
    """As `new_index`; short texts are cached as those of node `cached`."""
    size = end - start
    if size >= SHORT or start + SHORT > text.shape[0]:
        return new_index(node, sign, text, start, end, out)
    a, b, c = short_key(text, start, size)
    slot = text_slot(cached, size, a, b, c, out.memo)
    index = find_text(cached, size, a, b, c, slot, out.memo)
    if index < 0:
        index = new_index(node, sign, text, start, end, out)
        if index >= 0:
            store_text(cached, size, a, b, c, slot, index, out.memo)
    return index


@kernel(inner=True)
def put_joined(
    node: int, cached: int, text: RO_U1, start: int, end: int, nnz: int, out: OUT
) -> int:
    """Add the feature NAME=TEXT; the number of features then, or why not."""
    if out.plan[NODES_AT + node * FIELDS + KIND] == KEY_ALONE:
        return nnz
    if nnz >= out.indices.shape[0]:
        return FULL
    index = joined_index(node, cached, EQUALS, text, start, end, out)
    if index < 0:
        return NOT_MINE
    out.indices[nnz] = index
    out.values[nnz] = 1.0
    return nnz + 1


@kernel(inner=True)
def put_made(node: int, text: RO_U1, start: int, end: int, nnz: int, out: OUT) -> int:
    """As `put_joined`, for a text that is not the row's own: the cache must not mix them up."""
    return int(put_joined(node, node | MADE, text, start, end, nnz, out))


@kernel(inner=True)
def put_missing(node: int, nnz: int, out: OUT) -> int:
    """Add the indicator of a missing value, if the model has these."""
    if out.plan[INDICATES] == 0:
        return nnz
    return put_made(node, out.texts, MISSING_WORD_AT, MISSING_WORD_AT + 7, nnz, out)


@kernel(inner=True)
def put_input(index: int, x: float, nnz: int, out: OUT) -> int:
    """Add an input of a history; the number of features and inputs then, or why not."""
    if nnz >= out.indices.shape[0]:
        return FULL
    out.indices[nnz], out.values[nnz] = index, x
    return nnz + 1


@kernel
def note(node: int, text: RO_U1, start: int, end: int, out: OUT) -> bool:
    """Note a column's category, if a cross or key needs it; False if there is no room."""
    crossed = out.plan[NODES_AT + node * FIELDS + CROSS]
    if crossed <= 0:
        return True
    notes = out.notes
    first = notes[NOTED_BYTES]
    if first + end - start > out.noted.shape[0]:
        return False
    for k in range(end - start):
        out.noted[first + k] = text[start + k]
    notes[NOTED_BYTES] = first + end - start
    notes[ORDER + notes[NOTES]] = crossed
    notes[NOTES] += 1
    at = NOTE_AT + 3 * crossed
    notes[at], notes[at + 1], notes[at + 2] = notes[ATTEMPT], first, notes[NOTED_BYTES]
    return True


@kernel(inner=True)
def add_escaped(crossed: int, joined: U1, at: int, out: OUT) -> int:
    """joined[at:] = the noted category, with a backslash before commas and backslashes."""
    notes = NOTE_AT + 3 * crossed
    for p in range(out.notes[notes + 1], out.notes[notes + 2]):
        c = out.noted[p]
        if c == 44 or c == 92:
            joined[at] = 92
            at += 1
        joined[at] = c
        at += 1
    return at


@kernel(inner=True)
def put_key(crossed: int, nnz: int, out: OUT) -> int:
    """Add the noted category of a column as an input, if the column is a key."""
    index, at = out.plan[CROSSES_AT + 3 * crossed + 2], NOTE_AT + 3 * crossed
    if index == 0:
        return nnz
    key = hash_key(out.noted, out.notes[at + 1], out.notes[at + 2])
    return put_input(index, key, nnz, out)


@kernel(inner=True)
def put_crosses_of(crossed: int, nnz: int, out: OUT) -> int:
    """Add the crosses that begin with a crossed column."""
    plan, notes, scratch = out.plan, out.notes, out.scratch
    attempt = notes[ATTEMPT]
    for at in range(plan[CROSSES_AT + 3 * crossed], plan[CROSSES_AT + 3 * crossed + 1], 4):
        second, third = plan[at + 2], plan[at + 3]
        if notes[NOTE_AT + 3 * second] != attempt:
            continue
        if third > 0 and notes[NOTE_AT + 3 * third] != attempt:
            continue
        end = add_escaped(crossed, scratch, JOINED_AT, out)
        # A combining mark after the sign `=` may be composed with it.
        if end > JOINED_AT and (scratch[JOINED_AT] == 0xCC or scratch[JOINED_AT] == 0xCD):
            return NOT_MINE
        scratch[end] = 44
        end = add_escaped(second, scratch, end + 1, out)
        if third > 0:
            scratch[end] = 44
            end = add_escaped(third, scratch, end + 1, out)
        node = plan[at]
        notes[CROSSED] += 1
        length = plan[NODES_AT + node * FIELDS + NAME_BYTES] + end - JOINED_AT
        if length >= LONGEST_NAME or notes[CROSSED] > MAX_CROSSES:
            return NOT_MINE
        nnz = put_made(node, scratch, JOINED_AT, end, nnz, out)
        if nnz < 0:
            return nnz
    return nnz


@kernel(inner=True)
def put_rest(nnz: int, out: OUT) -> int:
    """Add indicators of the declared columns that a row lacks, its crosses and keys."""
    plan, notes = out.plan, out.notes
    if plan[INDICATES]:
        for k in range(plan[DECLARED]):
            node = plan[DECLARED_AT + k]
            step = plan[NODES_AT + node * FIELDS + SAME] * STEP_NUMBERS
            if out.memo[step + LAST_OBJECT] != notes[ATTEMPT]:
                nnz = put_missing(node, nnz, out)
                if nnz < 0:
                    return nnz
    for k in range(notes[NOTES]):
        nnz = put_crosses_of(notes[ORDER + k], nnz, out)
        if nnz >= 0:
            nnz = put_key(notes[ORDER + k], nnz, out)
        if nnz < 0:
            return nnz
    return nnz
