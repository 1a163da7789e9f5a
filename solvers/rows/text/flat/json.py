"""JSON kernel of flat rows: objects of columns, one a line or in a list.

    {"clicked": 1, "site": "news", "user": {"age": 39}}

Not read here: lists, names with escapes, rows in explicit form, and what is NOT_MINE of a value.
"""

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, RO_U1, U1, kernel
from dualstream.solvers.rows.text import name_cache
from dualstream.solvers.rows.text.flat import layout
from dualstream.solvers.rows.text.flat.escapes import decoded
from dualstream.solvers.rows.text.flat.features import put_rest
from dualstream.solvers.rows.text.flat.reference import reference_to
from dualstream.solvers.rows.text.flat.roles import read_id, read_label, read_weight
from dualstream.solvers.rows.text.flat.values import (
    put_boolean,
    put_keyed,
    put_null,
    put_number,
    put_text,
)
from dualstream.solvers.rows.text.json import BRACKET, COMMA, LINE_FEED, number, word_end
from dualstream.solvers.rows.text.tokens import NO_LABELS, drop_names, finish_row, skip_space

MAX_DEPTH = 8
"""Maximum depth of nested objects that are read here."""
STACK_AT = 8
"""Where `at` has the objects around the present one."""
AT_NUMBERS = STACK_AT + MAX_DEPTH


@kernel(inner=True)
def put_decoded(node: int, length: int, nnz: int, out: layout.OUT) -> int:
    """Add the decoded text in `scratch` to a column."""
    kind = out.plan[layout.NODES_AT + node * layout.FIELDS + layout.KIND]
    if kind == layout.LABEL or kind == layout.WEIGHT or kind == layout.ID or kind == layout.OTHER:
        return layout.NOT_MINE
    return put_text(node, out.scratch, 0, length, nnz, out)


@kernel(inline=True)
def read_value(
    text: RO_U1, p: int, node: int, ascii_only: bool, nnz: int, out: layout.OUT
) -> tuple[int, int]:
    """Add the value at p to a column of features; the position after it and the features, or why
    not."""
    c = text[p]
    if c == 34:
        start = p + 1
        size, key, more, rest = name_cache.short_text(text, start, ascii_only)
        end = start + size
        if size >= name_cache.SHORT:
            end, _ = name_cache.string_end(text, start, ascii_only)
        if end < 0 or text[end] != 34:
            end, length = decoded(text, start, ascii_only, out.scratch)
            return end + 1, (layout.NOT_MINE if end < 0 else put_decoded(node, length, nnz, out))
        is_short = size < name_cache.SHORT
        return end + 1, put_keyed(node, text, start, end, is_short, key, more, rest, nnz, out)
    if c == 116 or c == 102:
        return word_end(text, p), put_boolean(node, c == 116, nnz, out)
    if c == 110:
        is_null = text[p + 1] == 117 and text[p + 2] == 108 and text[p + 3] == 108
        return p + 4 if is_null else layout.NOT_MINE, put_null(node, nnz, out)
    x, q = number(text, p)
    if q < 0:
        return layout.NOT_MINE, layout.NOT_MINE
    return q, put_number(node, x, text, p, q, nnz, out)


@kernel(inline=True)
def read_object(
    text: RO_U1, p: int, ascii_only: bool, row: int, nnz: int, out: layout.OUT, at: I8
) -> tuple[int, int]:
    """Read the row at p; the position after it and the number of features, or why not."""
    if text[p] != 123:
        return layout.NOT_MINE, nnz
    owner = node = depth = 0
    has_label = out.label_kind == NO_LABELS
    is_open = True
    p = skip_space(text, p + 1)
    while True:
        if not is_open or text[p] != 125:
            if text[p] != 34:
                return layout.NOT_MINE, nnz
            node = layout.next_node(text, p, ascii_only, node, owner, out, at)
            if node < 0:
                return node, nnz
            # The name may have had fewer blanks after it last time.
            p = skip_space(
                text, p + out.memo[node * name_cache.STEP_NUMBERS + name_cache.LEAD_BYTES]
            )
            if not layout.is_first(node, out):
                return layout.NOT_MINE, nnz
            field = layout.NODES_AT + node * layout.FIELDS
            if text[p] == 123:
                if out.plan[field + layout.OPENS] == 0 or depth >= MAX_DEPTH:
                    return layout.NOT_MINE, nnz
                at[STACK_AT + depth] = owner
                depth += 1
                owner = node
                is_open = True
                p = skip_space(text, p + 1)
                continue
            kind = out.plan[field + layout.KIND]
            if kind < layout.LABEL:
                p, nnz = read_value(text, p, node, ascii_only, nnz, out)
                if nnz < 0:
                    return nnz, nnz
            elif kind == layout.LABEL:
                has_label = True
                p = read_label(text, p, ascii_only, row, out)
            elif kind == layout.WEIGHT:
                p = read_weight(text, p, ascii_only, row, out)
            elif kind == layout.ID:
                p = read_id(text, p, ascii_only, out)
            else:
                return layout.NOT_MINE, nnz
            if p < 0:
                return layout.NOT_MINE, nnz
        is_open = False
        while True:
            p = skip_space(text, p)
            if text[p] == 44:
                p = skip_space(text, p + 1)
                break
            if text[p] != 125:
                return layout.NOT_MINE, nnz
            p += 1
            if depth == 0:
                return (p if has_label else layout.NOT_MINE), nnz
            depth -= 1
            owner = at[STACK_AT + depth]


@kernel
def read_flat_objects(
    text: RO_U1,
    ascii_only: bool,
    separator: int,
    label_kind: int,
    stores_names: bool,
    mask: int,
    max_nonzeros: int,
    plan: RO_I8,
    texts: RO_U1,
    missing_numbers: RO_F8,
    letters: RO_I4,
    indptr: I8,
    indices: I4,
    values: F8,
    labels: F8,
    weights: F8,
    row_indices: I8,
    spare: I4,
    spare_values: F8,
    journalled: RO_I4,
    seen: I4,
    name_indices: I4,
    name_ends: I8,
    names: U1,
    counts: I8,
    label_slots: RO_I4,
    label_ends: RO_I8,
    label_text: RO_U1,
    id_spans: I8,
    buffer: U1,
    memo: I8,
    notes: I8,
    noted: U1,
    spans: I8,
    scratch: U1,
    at: I8,
) -> int:
    """Read flat rows up to the first that is not read here, or all.

    Returns 0 at the end, or why it stopped: NOT_MINE, UNKNOWN with the name in at[5:8], FULL.

    mask     width of hashed rows - 1
    max_nonzeros     maximum number of non-zero features of a row
    plan, texts, missing_numbers     see layout.py
    letters  see words.py
    id_spans   (2 rows,) int64       begin and end of each row's id in `text`; 0, 0 without one
    at       (AT_NUMBERS,) int64     as of `read_samples`, and more

    The other arguments are those of `read_samples`.
    """
    fields = layout.Out(
        plan, texts, missing_numbers, mask, stores_names, indices, values,
        journalled, seen, name_indices, name_ends, names, counts, buffer, memo,
        scratch, notes, noted, spans, letters,
        label_kind, labels, weights, label_slots, label_ends, label_text,
    )  # fmt: skip
    out = reference_to(fields)
    p, line, row_index, row = at[0], at[1], at[2], at[3]
    names_before, changes = counts[0], memo[name_cache.CHANGES]
    result = 0
    while p < text.shape[0]:
        start = p
        p = skip_space(text, p)
        if text[p] == LINE_FEED and separator == LINE_FEED:
            p += 1
            line += 1
            continue
        counts[2] = counts[3] = 0
        notes[layout.ATTEMPT] += 1
        notes[layout.NOTES] = notes[layout.NOTED_BYTES] = notes[layout.CROSSED] = 0
        notes[layout.ID_BEGIN] = notes[layout.ID_END] = 0
        labels[row], weights[row] = 0.0, 1.0
        p, end = read_object(text, p, ascii_only, row, indptr[row], out, at)
        if p >= 0 and (plan[layout.INDICATES] or notes[layout.NOTES]):
            end = put_rest(end, out)
            p = p if end >= 0 else end
        if p >= 0:
            p = skip_space(text, p)
            end = finish_row(indices, values, indptr[row], end, True, spare, spare_values)
            end = end if end - indptr[row] <= max_nonzeros else layout.NOT_MINE
        is_last = p >= 0 and separator == COMMA and text[p] == BRACKET
        if p < 0 or end < 0 or (text[p] != separator and not is_last):
            result = p if p < 0 else layout.NOT_MINE
            p = start
            drop_names(seen, name_indices, counts, names_before)
            name_cache.forget_since(memo, changes)
            break
        names_before, changes = counts[0], memo[name_cache.CHANGES]
        indptr[row + 1] = end
        row_indices[row] = row_index
        id_spans[2 * row], id_spans[2 * row + 1] = notes[layout.ID_BEGIN], notes[layout.ID_END]
        row += 1
        row_index += 1
        line += separator == LINE_FEED
        p += 1
        if is_last:
            break
    at[0], at[1], at[2], at[3] = p, line, row_index, row
    return result
