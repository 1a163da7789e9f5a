"""Flat rows of models with `columns` in Arrow streams: converted to NDJSON, which kernels read."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dualstream.service.codecs.arrow import tables_in
from dualstream.service.codecs.flat_rows import add_read, id_pointer_of, parse_flat_ndjson
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.service.codecs.table_columns import with_warnings
from dualstream.solvers.rows.columns.tables import plain
from dualstream.wire.problem_json import Problem

_Table = tuple[list[str], list[Any], int]
"""Names and Arrow arrays of columns, and the number of their rows."""
_encode = msgspec.json.Encoder().encode
MAX_VALUES = 1 << 22
"""Maximum number of values of an Arrow table, those in lists and structs counted."""


def parse_flat_arrow(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Arrow streams, whose columns may have any type that JSON has, also lists, structs, times.

    Tables without structs, whose rows are all valid, are read as JSON by kernels. Raises Problem as
    `parse_arrow`.
    """
    builder, reader = RowsBuilder(schema, labelled), schema.columns
    assert reader is not None
    index = 0

    tables: list[_Table] = []
    is_json = schema.column_plan is not None
    for table, table_rows in tables_in(schema, body, labelled):
        used = [at for at in table_rows.features if not reader.ignores(table_rows.names[at])]
        names, values = [table_rows.names[at] for at in used], [table.column(at) for at in used]
        _check_size(values)
        is_json = is_json and bool(names) and all(map(_is_json, values))
        tables.append((names, values, table.num_rows))
    all_names = [name for one in tables for name in one[0]]
    # Kernels read the rows as JSON, in a fraction of the time.
    if is_json and (text := _as_lines(tables)) is not None:
        parsed = parse_flat_ndjson(schema, text, labelled)
        if not parsed.errors:
            return with_warnings(schema, parsed, all_names)
    for names, values, rows in tables:
        lists = [_listed(column) for column in values]
        for row in zip(*lists, strict=True) if lists else [()] * rows:
            add_read(builder, index, "", partial(dict, zip(names, row, strict=True)))
            index += 1
    parsed = builder.build(id_pointer=id_pointer_of(schema, all_names))
    return with_warnings(schema, parsed, all_names)


def _as_lines(tables: Sequence[_Table]) -> bytes | None:
    """NDJSON of tables with columns; None if a value is not JSON."""
    try:
        return b"\n".join(
            b"{"
            + b"}\n{".join(map(b",".join, zip(*map(_members, names, columns), strict=True)))
            + b"}"
            for names, columns, rows in tables
            if rows
        )
    except TypeError:
        return None


def _members(name: str, column: Any) -> list[bytes]:
    """`"NAME":VALUE` of each row, as JSON. Raises TypeError for a value that is not JSON."""
    import pyarrow
    import pyarrow.types as of

    head, kind = _encode(name) + b":", column.type
    if of.is_string_view(kind):
        column = column.cast(pyarrow.large_string())
    if of.is_string(column.type) or of.is_large_string(column.type):
        column = column.dictionary_encode()
    if of.is_dictionary(column.type) and len(column.dictionary) <= len(column):
        members = [head + _encode(one) for one in [*_listed(column.dictionary), None]]
        return [members[-1 if at is None else at] for at in column.indices.to_pylist()]
    if of.is_list(kind) or of.is_large_list(kind) or of.is_dictionary(kind):
        return [head + _encode(one) for one in _listed(column)]
    # Numbers, booleans, times and nulls have no comma, and a name in JSON has no line feed.
    return (head + _encode(_listed(column))[1:-1].replace(b",", b"\n" + head)).split(b"\n")


def _is_json(column: Any) -> bool:
    """Has JSON all values of an Arrow array, as they are? It has no NaN and no infinity."""
    import pyarrow.compute as compute
    import pyarrow.types as of

    kind = column.type
    if of.is_float32(kind) or of.is_float64(kind):
        return compute.all(compute.is_finite(column)).as_py() is not False
    if of.is_list(kind) or of.is_large_list(kind) or of.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        of.is_integer(kind)
        or of.is_boolean(kind)
        or of.is_string(kind)
        or of.is_large_string(kind)
        or of.is_string_view(kind)
        or of.is_timestamp(kind)
        or of.is_date(kind)
        or of.is_null(kind)
    )


def _check_size(columns: Sequence[Any]) -> None:
    """Raise Problem 413 if lists and objects in the columns hold too many values."""
    values = sum(map(_values_in, columns))
    if values > MAX_VALUES:
        reason = f"the table has {values:,} values; the limit is {MAX_VALUES:,}; split it"
        raise Problem(413, "body-too-large", reason)


def _values_in(column: Any) -> int:
    """Number of values of an Arrow array, those in lists and structs counted."""
    import pyarrow.types as of

    kind = column.type
    if of.is_struct(kind):
        return len(column) + sum(map(_values_in, column.flatten()))
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return len(column) + _values_in(column.flatten())
    return len(column)


class Unreadable:
    """A value of Arrow that Python does not hold, such as a date in the year 20,000."""

    def __repr__(self) -> str:
        return "a value that Python does not hold"


def _listed(column: Any) -> list[Any]:
    """The values of an Arrow array as JSON has them; those of a dictionary are shared."""
    import pyarrow
    import pyarrow.types as of

    if of.is_dictionary(column.type):
        if len(column.dictionary) > len(column):  # many short batches may share it
            return _listed(column.dictionary.take(column.indices))
        values = [*_listed(column.dictionary), None]
        return [values[-1 if at is None else at] for at in column.indices.to_pylist()]
    if of.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's times have microseconds.
        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
    try:
        items: list[Any] = column.to_pylist()
        kind = column.type
        is_plain = of.is_integer(kind) or of.is_float64(kind) or of.is_boolean(kind)
        return items if is_plain else [plain(one) for one in items]
    except Exception:  # pyarrow raises errors of many kinds, and says not for which value
        return [_cell(one) for one in column]


def _cell(scalar: Any) -> Any:
    try:
        return plain(scalar.as_py())
    except Exception:  # of the same many kinds
        return Unreadable()
