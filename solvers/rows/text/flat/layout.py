"""Plan of a model's columns: what the kernels of flat rows know of each name.

A plan is one integer array. The columns package makes it of a specification, and adds a node for
each name that it meets; nodes are only appended, so a kernel may read while another thread adds.
A node is a name in an object: `age` in `user`, and `user.age` in the row, are two nodes of one
column. Nodes without a key have features of their own: the parts of a time, the crosses.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from dualstream.solvers.jit import (
    F8,
    I4,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    RO_U1,
    U1,
    kernel,
    numba_type,
    types,
)
from dualstream.solvers.rows.text.flat.reference import Reference
from dualstream.solvers.rows.text.name_cache import (
    LAST_OBJECT,
    LAST_STEP,
    LEAD,
    LEAD_BYTES,
    NEXT,
    STEP_NUMBERS,
    is_same,
    string_end,
)

NOT_MINE, UNKNOWN, FULL = -1, -2, -3
"""Why a kernel stops: at a row for the Python reader, an unknown name, or without room for
features."""

# Kinds of nodes. KEY_ALONE is a category that is no feature, only the key of a history.
(
    IGNORED, NUMBER, BOOLEAN, CATEGORY, INFERRED, WORDS, TIME, KEY_ALONE, LABEL, WEIGHT, ID, OTHER
) = range(12)  # fmt: skip

# Head of a plan.
NULL_IS_MISSING, INDICATES, MISSING_TEXTS, DECLARED = range(4)
"""Is null missing; do missing values have a feature; number of missing texts, of declared
columns."""
HEAD = 8

# Fields of a node.
(
    OWNER, KEY, KEY_BYTES, NAME, NAME_BYTES, KIND, INDEX, SAME, CROSS, OPENS, FIRST, OPTION, INPUT,
    FIELDS
) = range(14)  # fmt: skip
"""The node of the object around it, its key and the column's name in `texts`, kind, the index of
the feature NAME, the first node of the column, its number among crossed columns (from 1; -1 for
others with an input), whether an object opens, its first node of parts or of words, ngrams or
parts, and the index in a row of its time or number as an input of a history, or 0."""

MAX_NODES = LAST_STEP
"""Maximum number of nodes that have a key or a number as value; node 0 is the row."""
MAX_CROSSED = 1000
"""Maximum number of crossed columns, to which the keys of a history count."""
MAX_MISSING = 400
"""Maximum number of texts, and of numbers, that stand for missing values."""
SLOTS = 4096
SLOTS_AT = HEAD
"""Nodes by their keys: an open-addressing table."""
MISSING_AT = SLOTS_AT + SLOTS
"""Begin and end of each missing text, and the node of its column; 0 for all columns."""
MISSING_NUMBERS_AT = MISSING_AT + 3 * MAX_MISSING
"""The node of the column of each missing number; 0 for all columns."""
DECLARED_AT = MISSING_NUMBERS_AT + MAX_MISSING
"""Nodes of the declared columns, in their order."""
CROSSES_AT = DECLARED_AT + MAX_NODES
"""First and last + 1 of the crosses that begin with each crossed column, and the index in a row of
its input as a key, or 0."""
NODES_AT = CROSSES_AT + 3 * (MAX_CROSSED + 1)
"""Nodes; after them four numbers for each cross: its node and its crossed columns."""

# Texts that features have, at the begin of `texts`.
CONSTANTS = b"truefalsemissingmontuewedthufrisatsun"
TRUE_AT, FALSE_AT, MISSING_WORD_AT, WEEKDAYS_AT = 0, 4, 9, 16

# What the kernels write for the row at hand.
NOTES, NOTED_BYTES, ATTEMPT, CROSSED, ID_BEGIN, ID_END, LATEST, ORDER = range(8)
"""Number of categories noted for crosses and keys, their bytes, the number of the attempt to read a
row, the row's crosses so far, begin and end of its id in the text, the latest time of a history
that is read here, and the order of the noted columns."""
NOTE_AT = ORDER + MAX_CROSSED + 1
"""Row, begin and end of the category of each crossed column."""
NOTE_NUMBERS = NOTE_AT + 3 * (MAX_CROSSED + 1)
LONGEST_NOTES = 1 << 16
"""Maximum bytes of the categories noted for a row."""
LONGEST_TEXT = 1 << 14
"""Maximum bytes of a text of words, or of one with escapes."""
SCRATCH_BYTES = 4 * LONGEST_TEXT


class Out(NamedTuple):
    """What kernels of one body share, for one argument instead of many."""

    plan: RO_I8
    texts: RO_U1
    """Keys, names and missing texts of the plan."""
    missing_numbers: RO_F8
    mask: int
    stores_names: bool
    indices: I4
    values: F8
    journalled: RO_I4
    seen: I4
    name_indices: I4
    name_ends: I8
    names: U1
    counts: I8
    buffer: U1
    memo: I8
    scratch: U1
    """Decoded escapes, words and digits; 24 bytes more than its texts."""
    notes: I8
    noted: U1
    spans: I8
    letters: RO_I4
    """See words.py; empty without columns of words."""
    label_kind: int
    labels: F8
    weights: F8
    label_slots: RO_I4
    label_ends: RO_I8
    label_text: RO_U1


_FIELDS = [numba_type(one) for one in Out.__annotations__.values()]
OUT = Annotated[Out, Reference(types.NamedTuple(_FIELDS, Out))]


@kernel
def node_slot(plan: RO_I8, texts: RO_U1, owner: int, text: RO_U1, start: int, end: int) -> int:
    """Slot of the name text[start:end] in the object `owner`, or its free slot."""
    h: Any = np.int64(owner + 1)
    for p in range(start, end):
        h = ((h ^ np.int64(text[p])) * 0x01000193) & 0xFFFFFFFF
    slot: Any = (h ^ h >> 15) & (SLOTS - 1)
    while plan[SLOTS_AT + slot] != 0:
        at = NODES_AT + plan[SLOTS_AT + slot] * FIELDS
        if plan[at + OWNER] == owner and plan[at + KEY_BYTES] == end - start:
            key = plan[at + KEY]
            same = 0
            while same < end - start and texts[key + same] == text[start + same]:
                same += 1
            if same == end - start:
                break
        slot = (slot + 1) & (SLOTS - 1)
    return int(slot)


@kernel(inner=True)
def find_node(
    text: RO_U1, p: int, ascii_only: bool, before: int, owner: int, out: OUT, at: I8
) -> int:
    """The node of the name whose quote is at p, which follows node `before`; or NOT_MINE, UNKNOWN.

    Its lead is moved to p. at[5:8] are then the owner, and begin and end of an unknown name.
    """
    end, _ = string_end(text, p + 1, ascii_only)
    if end < 0:
        return NOT_MINE
    after = end + 1
    while text[after] == 32 or text[after] == 9 or text[after] == 13:
        after += 1
    if text[after] != 58:
        return NOT_MINE
    after += 1
    while text[after] == 32 or text[after] == 9 or text[after] == 13:
        after += 1
    slot = node_slot(out.plan, out.texts, owner, text, p + 1, end)
    node = out.plan[SLOTS_AT + slot]
    if node == 0:
        at[5], at[6], at[7] = owner, p + 1, end
        return UNKNOWN
    memo = out.memo
    memo[node * STEP_NUMBERS + LEAD] = p
    memo[node * STEP_NUMBERS + LEAD_BYTES] = after - p
    memo[before * STEP_NUMBERS + NEXT] = node
    return int(node)


@kernel(inline=True)
def next_node(
    text: RO_U1, p: int, ascii_only: bool, before: int, owner: int, out: OUT, at: I8
) -> int:
    """Like `find_node`, but faster if the name is the one that followed `before` last time."""
    node = out.memo[before * STEP_NUMBERS + NEXT]
    if node > 0 and out.plan[NODES_AT + node * FIELDS + OWNER] == owner:
        step = node * STEP_NUMBERS
        if is_same(text, p, out.memo[step + LEAD], out.memo[step + LEAD_BYTES]):
            return int(node)
    return int(find_node(text, p, ascii_only, before, owner, out, at))


@kernel(inline=True)
def is_first(node: int, out: OUT) -> bool:
    """Mark the column of a node as present in this row; False if it was."""
    at = out.plan[NODES_AT + node * FIELDS + SAME] * STEP_NUMBERS + LAST_OBJECT
    if out.memo[at] == out.notes[ATTEMPT]:
        return False
    out.memo[at] = out.notes[ATTEMPT]
    return True
