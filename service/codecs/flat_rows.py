"""Flat rows of models with `columns`, in JSON, NDJSON, CSV, Arrow, queries and Redis messages.

A row is an object of its columns: no `x`, and the label among them. solvers/columns/ makes
features of it. A row in explicit form ({"x": {...}, "y": 1}) is read, too; the row is its `x` then.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec

from dualstream.service.codecs.arrow import tables_in
from dualstream.service.codecs.csv import RecordReader, check_delimiter
from dualstream.service.codecs.json_exact import broken_body, check_all_names, line_advice
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import Reader, parse_slowly
from dualstream.service.codecs.row_schema import (
    LONGEST_NAME,
    BadRow,
    RowSchema,
    pointer_step,
    refuse_duplicates,
)
from dualstream.service.codecs.table_columns import MAX_COLUMNS, TableColumns, pandas_index
from dualstream.wire.problems import Problem, RowError, quoted

Row = dict[str, Any]


class _Samples(msgspec.Struct, forbid_unknown_fields=True):
    samples: list[msgspec.Raw]


# A number that is too large for a float makes its row invalid, not the body.
_any = msgspec.json.Decoder(float_hook=float)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_samples = msgspec.json.Decoder(_Samples)


def parse_flat_json(
    schema: RowSchema, body: bytes, labelled: bool, waiting: bool = False
) -> ParsedRows:
    """A row, a list of rows, or {"samples": [...]}.

    Raises Problem 400 for invalid JSON, 422 for JSON of another shape.
    """
    try:
        content = _any.decode(body)
        if isinstance(content, list):
            raws, pointer = _list.decode(body), ""
        elif isinstance(content, dict) and content.keys() == {"samples"}:
            raws, pointer = _samples.decode(body).samples, "/samples"
        elif isinstance(content, dict):
            builder = RowsBuilder(schema, labelled, waiting)
            _add(builder, 0, "", lambda: _checked(content, body))
            return builder.build(single=True, id_pointer=_id_pointer(schema))
        else:
            raise Problem(422, "invalid-body", "the body must be a row or a list of rows")
    except msgspec.ValidationError:
        raise Problem(422, "invalid-body", "samples must be a list of rows") from None
    except msgspec.DecodeError as error:
        raise broken_body(body, str(error)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    except RecursionError:
        raise Problem(400, "malformed-body", "the body is nested too deeply") from None
    builder = RowsBuilder(schema, labelled, waiting)
    for index, raw in enumerate(raws):
        _add(builder, index, f"{pointer}/{index}", lambda raw=bytes(raw): read_row(raw))  # type: ignore[misc]
    return builder.build(id_pointer=pointer + "/{}" + _id_pointer(schema))


def _add(builder: RowsBuilder, index: int, prefix: str, read: Callable[[], Row]) -> None:
    try:
        builder.add_flat(index, read())
    except BadRow as bad:
        builder.refuse(index, prefix + bad.pointer, bad.reason)


def _id_pointer(schema: RowSchema) -> str:
    assert schema.columns is not None
    return f"/{pointer_step(schema.columns.id or 'id')}"


def read_row(raw: bytes) -> Row:
    """Decode one row. Raises BadRow."""
    try:
        row = _any.decode(raw)
    except msgspec.DecodeError as error:
        raise BadRow("", str(error) + line_advice(raw, str(error))) from None
    except UnicodeDecodeError:
        raise BadRow("", "the line is not UTF-8") from None
    except RecursionError:
        raise BadRow("", "the row is nested too deeply") from None
    return _checked(row, raw)


def _checked(row: Any, raw: bytes) -> Row:
    """The row, if it is an object without duplicate names. Raises BadRow."""
    if not isinstance(row, dict):
        raise BadRow("", "a row must be an object of its columns")
    # The decoder keeps the last of two values with one name.
    if raw.count(b'":') != len(row) and raw.count(b":") != _colons(row):
        check_all_names(raw)
    return row


def _colons(value: Any) -> int:
    """Colons in the JSON of a value without duplicate names and escapes."""
    if isinstance(value, dict):
        names = "".join(value)
        return len(value) + names.count(":") + sum(map(_colons, value.values()))
    if isinstance(value, str):
        return value.count(":")
    return sum(map(_colons, value)) if isinstance(value, list) else 0


class FlatLines(Reader):
    """Reader of NDJSON lines."""

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        builder.add_flat(index, read_row(self.body[start:end]))


class FlatRecords(RecordReader):
    """Reader of CSV records. A field is a text, and the type of its column decides what it is."""

    def roles(self, names: list[str]) -> TableColumns:
        return _as_they_are(self.schema, names)

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        fields = self.fields(start, end)
        builder.add_flat(index, dict(zip(self.columns.names, fields, strict=True)))


def parse_flat_ndjson(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """One row a line; a line that is not valid is a row error; blank lines are skipped."""
    return parse_slowly(FlatLines(schema, body, labelled))


def parse_flat_csv(
    schema: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """A header of any names, and records. Raises Problem 422 for an invalid header."""
    if not body.strip():
        return RowsBuilder(schema, labelled).build()
    delimiter = parameters.get("delimiter", "")
    if not delimiter:
        check_delimiter(body)
    decimal = parameters.get("decimal", "")
    return parse_slowly(FlatRecords(schema, body, labelled, delimiter, decimal))


def parse_flat_arrow(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Arrow streams, whose columns may have any type that JSON has, also lists, structs, times.

    Raises Problem as `parse_arrow`.
    """
    builder = RowsBuilder(schema, labelled)
    index = 0

    def columns(pa: Any, arrow_schema: Any) -> TableColumns:
        return _as_they_are(schema, arrow_schema.names, pandas_index(arrow_schema.metadata or {}))

    for table, found in tables_in(body, columns):
        rows = _in_microseconds(table).select(found.features).to_pylist()
        for row in rows:
            _add(builder, index, "", lambda row=row: _plain(row))  # type: ignore[misc]
            index += 1
    return builder.build()


def _in_microseconds(table: Any) -> Any:
    """The table with times that Python's datetime holds: nanoseconds are cut off."""
    import pyarrow as pa

    columns = [
        column.cast(pa.timestamp("us", column.type.tz), safe=False)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        else column
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, table.schema.names)


def _plain(value: Any) -> Any:
    """A value of Arrow as JSON has it: times and dates as ISO 8601, decimals as numbers."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def _as_they_are(
    schema: RowSchema, given: Sequence[str], left_out: Collection[str] = ()
) -> TableColumns:
    """All columns but those left out. Raises Problem 422 for names that no row can have."""
    names = [schema.composed(name) for name in given]
    if len(names) > MAX_COLUMNS:
        raise _refused(f"the table has {len(names)} columns; the limit is {MAX_COLUMNS}")
    for column, name in enumerate(names):
        if not name:
            raise _refused(f"column {column + 1} has no name; name it or leave it out")
        if len(name) > LONGEST_NAME:
            raise _refused(f"column names must have at most {LONGEST_NAME} characters")
    try:
        refuse_duplicates(names, "/")
    except BadRow as bad:
        raise _refused(f"column {bad.reason}") from None
    features = [column for column, name in enumerate(names) if name not in left_out]
    return TableColumns(names, features)


def _refused(reason: str) -> Problem:
    return Problem(422, "invalid-body", reason)


def parse_flat_query(schema: RowSchema, named: dict[str, str]) -> ParsedRows:
    """Query parameters x.NAME=TEXT, one for each column. Raises Problem 422."""
    builder = RowsBuilder(schema, labelled=False)
    try:
        builder.add_flat(0, dict(named))
    except BadRow as bad:
        error = RowError(0, bad.pointer, bad.reason)
        raise Problem(422, "invalid-rows", bad.reason, [error]) from None
    return builder.build(single=True)


def flat_message(texts: Iterable[tuple[str, str]]) -> Row:
    """The row of a Redis message: a field for each column, or `json` alone. Raises BadRow."""
    pairs = list(texts)
    if len(pairs) == 1 and pairs[0][0] == "json":
        return read_row(pairs[0][1].encode())
    refuse_duplicates((name for name, _ in pairs), "/")
    return dict(pairs)


def refuse_other_format(kind: str) -> Problem:
    """Problem 415 for a format whose rows have no columns."""
    detail = f"{quoted(kind)} has no columns; send JSON, NDJSON, CSV or Arrow to this model"
    return Problem(415, "unsupported-media-type", detail)
