"""CSV kernel of flat rows: records whose fields are texts, read by the types of their columns.

Not read here: fields with a quote or a line end in them, and what is NOT_MINE of a value.
"""

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, RO_U1, U1, kernel
from dualstream.solvers.rows.text.csv import field_end
from dualstream.solvers.rows.text.flat import layout
from dualstream.solvers.rows.text.flat.features import put_rest
from dualstream.solvers.rows.text.flat.reference import reference_to
from dualstream.solvers.rows.text.flat.roles import set_id_text, set_label_text, set_weight_text
from dualstream.solvers.rows.text.flat.values import put_text
from dualstream.solvers.rows.text.name_cache import CHANGES, forget_since
from dualstream.solvers.rows.text.tokens import NO_LABELS, drop_names, finish_row

_QUOTE, _FEED, _RETURN, _TAB, _SPACE, _COMMA = 34, 10, 13, 9, 32, 44


@kernel(inline=True)
def may_have_comma(text: RO_U1, start: int, end: int) -> bool:
    """May a field be a number with a decimal comma?"""
    if start == end or (text[start] > 57 or text[start] == _QUOTE):
        return False
    for p in range(start, end):
        if text[p] == _COMMA:
            return True
    return False


@kernel(inline=True)
def read_fields(
    text: RO_U1,
    p: int,
    ascii_only: bool,
    delimiter: int,
    byte_kinds: RO_U1,
    stops_at_comma: bool,
    columns: RO_I8,
    row: int,
    nnz: int,
    out: layout.OUT,
) -> tuple[int, int]:
    """Read the record at p; where its line feed is and the number of features, or why not."""
    column = 0
    has_label = out.label_kind == NO_LABELS
    while True:
        if column >= columns.shape[0]:
            return layout.NOT_MINE, nnz
        start = p
        end = p = field_end(text, p, ascii_only, byte_kinds)
        if p < 0:
            return layout.NOT_MINE, nnz
        if text[start] == _QUOTE:
            start += 1
            p += 1
        node = columns[column]
        layout.is_first(node, out)
        kind = out.plan[layout.NODES_AT + node * layout.FIELDS + layout.KIND]
        if stops_at_comma and (
            kind == layout.NUMBER
            or kind == layout.INFERRED
            or kind == layout.LABEL
            or kind == layout.WEIGHT
        ):
            if may_have_comma(text, start, end):
                return layout.NOT_MINE, nnz
        is_good = True
        if kind < layout.LABEL:
            nnz = put_text(node, text, start, end, nnz, out)
            if nnz < 0:
                return nnz, nnz
        elif kind == layout.LABEL:
            has_label = True
            is_good = set_label_text(text, start, end, row, out)
        elif kind == layout.WEIGHT:
            is_good = set_weight_text(text, start, end, row, out)
        elif kind == layout.ID:
            is_good = set_id_text(text, start, end, out)
        else:
            return layout.NOT_MINE, nnz
        if not is_good:
            return layout.NOT_MINE, nnz
        column += 1
        if text[p] == delimiter:
            p += 1
            continue
        if text[p] == _RETURN:
            p += 1
        is_whole = text[p] == _FEED and column == columns.shape[0] and has_label
        return (p if is_whole else layout.NOT_MINE), nnz


@kernel
def read_flat_records(
    text: RO_U1,
    ascii_only: bool,
    delimiter: int,
    byte_kinds: RO_U1,
    stops_at_comma: bool,
    columns: RO_I8,
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
    """Read records up to the first that is not read here, or all; returns as `read_flat_objects`.

    delimiter, byte_kinds   as of `read_records`
    stops_at_comma          whether a number with a decimal comma is an error
    columns  (columns,) int64   the node of each column

    The other arguments are those of `read_flat_objects`.
    """
    fields = layout.Out(
        plan, texts, missing_numbers, mask, stores_names, indices, values,
        journalled, seen, name_indices, name_ends, names, counts, buffer, memo,
        scratch, notes, noted, spans, letters,
        label_kind, labels, weights, label_slots, label_ends, label_text,
    )  # fmt: skip
    out = reference_to(fields)
    p, line, row_index, row = at[0], at[1], at[2], at[3]
    names_before, changes = counts[0], memo[CHANGES]
    result = 0
    while p < text.shape[0]:
        start = p
        q = p
        while text[q] == _SPACE or text[q] == _RETURN or (text[q] == _TAB and delimiter != _TAB):
            q += 1
        if text[q] == _FEED and columns.shape[0] > 1:  # as in `read_records`
            p = q + 1
            line += 1
            continue
        counts[2] = counts[3] = 0
        notes[layout.ATTEMPT] += 1
        notes[layout.NOTES] = notes[layout.NOTED_BYTES] = notes[layout.CROSSED] = 0
        notes[layout.ID_BEGIN] = notes[layout.ID_END] = 0
        labels[row], weights[row] = 0.0, 1.0
        p, end = read_fields(
            text,
            p,
            ascii_only,
            delimiter,
            byte_kinds,
            stops_at_comma,
            columns,
            row,
            indptr[row],
            out,
        )
        if p >= 0 and (plan[layout.INDICATES] or notes[layout.NOTES]):
            end = put_rest(end, out)
            p = p if end >= 0 else end
        if p >= 0:
            end = finish_row(indices, values, indptr[row], end, True, spare, spare_values)
            end = end if end - indptr[row] <= max_nonzeros else layout.NOT_MINE
        if p < 0 or end < 0:
            result = p if p < 0 else layout.NOT_MINE
            p = start
            drop_names(seen, name_indices, counts, names_before)
            forget_since(memo, changes)
            break
        names_before, changes = counts[0], memo[CHANGES]
        indptr[row + 1] = end
        row_indices[row] = row_index
        id_spans[2 * row], id_spans[2 * row + 1] = notes[layout.ID_BEGIN], notes[layout.ID_END]
        row += 1
        row_index += 1
        line += 1
        p += 1
    at[0], at[1], at[2], at[3] = p, line, row_index, row
    return result
