"""Flat rows of models with `columns`, in JSON, NDJSON, CSV and queries; Arrow: flat_arrow.py.

A row is an object of its columns: no `x`, and the label among them. solvers/rows/columns/ makes
features of it. A row in explicit form ({"x": {...}, "y": 1}) is read, too; the row is its `x` then.
"""

from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from dualstream.service.codecs.csv import RecordReader, check_delimiter
from dualstream.service.codecs.flat_bulk import FlatArrays
from dualstream.service.codecs.json_bulk import Fallback, SampleList, find_list
from dualstream.service.codecs.json_exact import bad_line, broken_body, check_all_names
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import FEW_BYTES, Reader, parse_records, parse_slowly
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.codecs.table_columns import with_warnings
from dualstream.solvers.rows.columns.reader import TOO_MANY_COLUMNS
from dualstream.solvers.rows.columns.spec import MAX_COLUMNS
from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.solvers.rows.text.json import COMMA, LINE_FEED
from dualstream.wire.problem_json import Problem, RowError, quoted

Row = dict[str, Any]


class _Samples(msgspec.Struct, forbid_unknown_fields=True):
    samples: list[msgspec.Raw]


# A number that is too large for a float makes its row invalid, not the body.
_any = msgspec.json.Decoder(float_hook=float)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_samples = msgspec.json.Decoder(_Samples)


def parse_flat_json(
    schema: RowSchema,
    body: bytes,
    labelled: bool,
    waiting: bool = False,
    few_bytes: int = FEW_BYTES,
) -> ParsedRows:
    """A row, a list of rows, or {"samples": [...]}; kernels read lists of `few_bytes` and more.

    Raises Problem 400 for invalid JSON, 422 for JSON of another shape.
    """
    begin = find_list(body) if len(body) >= few_bytes and not waiting else None
    if begin is not None and schema.column_plan is not None:
        parsed = FlatList(schema, body, labelled, *begin).parse()
        if parsed is not None:
            return parsed
    try:
        if body.lstrip()[:1] == b"[":
            raws, pointer = _list.decode(body), ""
        elif (samples := _samples_in(body)) is not None:
            raws, pointer = samples, "/samples"
        else:
            return _parse_one(RowsBuilder(schema, labelled, waiting), schema, body)
    except msgspec.DecodeError as error:
        raise broken_body(body, str(error)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    except RecursionError:
        raise Problem(400, "malformed-body", "the body is nested too deeply") from None
    builder = RowsBuilder(schema, labelled, waiting)
    for index, raw in enumerate(raws):
        add_read(builder, index, f"{pointer}/{index}", partial(read_row, bytes(raw)))
    return builder.build(id_pointer=pointer + "/{}" + id_pointer_of(schema, body))


def _samples_in(body: bytes) -> list[msgspec.Raw] | None:
    """The rows of {"samples": [...]}; None for another object, which is a row."""
    if b'"samples"' not in body[:64]:
        return None
    try:
        return _samples.decode(body).samples
    except msgspec.ValidationError:
        return None


def _parse_one(builder: RowsBuilder, schema: RowSchema, body: bytes) -> ParsedRows:
    try:
        content = _any.decode(body)
    except msgspec.ValidationError:  # a number that Python does not hold is an error of the row
        read = partial(read_row, body)
    else:
        if not isinstance(content, dict):
            raise Problem(422, "invalid-body", "the body must be a row or a list of rows")
        read = partial(_checked, content, body)
    add_read(builder, 0, "", read)
    return builder.build(single=True, id_pointer=id_pointer_of(schema, body))


def add_read(builder: RowsBuilder, index: int, prefix: str, read: Callable[[], Row]) -> None:
    """Add the row that `read` returns, or the reason why it is refused, at the pointer `prefix`."""
    try:
        builder.add_flat(index, read())
    except BadRow as bad:
        builder.refuse(index, prefix + bad.pointer, bad.reason)


def id_pointer_of(schema: RowSchema, columns: bytes | Collection[str]) -> str:
    """JSON pointer of a row's id, of a body of JSON or a table with these columns.

    `meta.id` is one name if there is such a name, otherwise `id` in the object `meta`.
    """
    assert schema.columns is not None
    name = schema.columns.id or "id"
    steps = name.split(".")
    # Only a name with a dot is worth a search of the body.
    if steps[1:] and (f'"{name}"'.encode() if isinstance(columns, bytes) else name) in columns:
        steps = [name]
    pointer = "".join(f"/{pointer_step(one)}" for one in steps)
    return pointer.replace("{", "{{").replace("}", "}}")


def read_row(raw: bytes) -> Row:
    """Decode one row. Raises BadRow."""
    try:
        row = _any.decode(raw)
    except msgspec.DecodeError as error:
        raise bad_line(raw, error) from None
    except UnicodeDecodeError:
        raise BadRow("", "the line is not UTF-8") from None
    except RecursionError:
        raise BadRow("", "the row is nested too deeply") from None
    return _checked(row, raw)


def _checked(row: Any, raw: bytes) -> Row:
    """The row, if it is an object without duplicate names. Raises BadRow."""
    if not isinstance(row, dict):
        raise BadRow("", "a row must be an object of its columns")
    if len(row) > MAX_COLUMNS:  # before any work on its names
        raise BadRow("", TOO_MANY_COLUMNS)
    # The decoder keeps the last of two values with one name. Escapes may hide a colon.
    if b"\\" in raw or raw.count(b":") != _colons(row):
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


class FlatList(SampleList):
    """A list of flat rows, read by kernels; None if the exact parser must read all of it."""

    shortest = len("{},")

    def __init__(
        self, schema: RowSchema, body: bytes, labelled: bool, start: int, pointer: str
    ) -> None:
        super().__init__(schema, body, labelled, start, pointer)
        self.id_pointer = id_pointer_of(schema, body)

    def _new_arrays(self, rows: int) -> RowArrays:
        return FlatArrays(self._schema, self._labelled, rows, self._body)

    def _kernel(self) -> int:
        assert isinstance(self._arrays, FlatArrays)
        return self._arrays.read_objects(self._text, self._ascii_only, COMMA)

    def _one(self, raw: bytes, index: int, errors: list[RowError]) -> RowsBuilder | None:
        try:
            row = read_row(raw)
        except BadRow:  # it may be invalid JSON, and then the body is
            raise Fallback from None
        builder = RowsBuilder(self._schema, self._labelled)
        try:
            builder.add_flat(index, row)
        except BadRow as bad:
            errors.append(RowError(index, f"{self._pointer}/{index}{bad.pointer}", bad.reason))
            return None
        return builder


class FlatLines(Reader):
    """Reader of NDJSON lines."""

    def new_arrays(self) -> FlatArrays:
        return FlatArrays(self.schema, self.labelled, count_lines(self.body), self.body)

    def run_kernel(self, arrays: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        assert isinstance(arrays, FlatArrays)
        return arrays.read_objects(text, ascii_only, LINE_FEED)

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        builder.add_flat(index, read_row(self.body[start:end]))


class FlatRecords(RecordReader):
    """Reader of CSV records. A field is a text, and the type of its column decides what it is."""

    def pointer(self, name: str) -> str:
        return f"/{pointer_step(name[:50])}"

    def new_arrays(self) -> FlatArrays:
        return FlatArrays(self.schema, self.labelled, count_lines(self.body), self.body)

    @cached_property
    def nodes(self) -> np.ndarray | None:
        """The node of each column in the plan; None if kernels cannot read the records."""
        plan = self.schema.column_plan
        if plan is None or self.decimal == ",":
            return None
        nodes = [plan.node_of(name) for name in self.columns.names]
        return None if 0 in nodes else np.array(nodes, np.int64)

    def run_kernel(self, arrays: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        assert isinstance(arrays, FlatArrays) and self.nodes is not None
        return arrays.read_records(text, ascii_only, self.delimiter[0], self.decimal, self.nodes)

    def has_decimals(self, name: str) -> bool:
        assert self.schema.columns is not None
        return self.schema.columns.is_number(name)

    def has_given_decimals(self, name: str) -> bool:
        assert self.schema.columns is not None
        return not self.schema.columns.keeps_commas(name)

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        fields = self.fields(start, end)
        builder.add_flat(index, dict(zip(self.columns.names, fields, strict=True)))


def parse_flat_ndjson(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """One row a line; a line that is not valid is a row error; blank lines are skipped."""
    parse = parse_slowly if schema.column_plan is None else parse_records
    parsed = parse(FlatLines(schema, body, labelled))
    parsed.id_pointer = id_pointer_of(schema, body)
    return parsed


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
    reader = FlatRecords(schema, body, labelled, delimiter, decimal)
    parsed = parse_slowly(reader) if reader.nodes is None else parse_records(reader)
    parsed.id_pointer = id_pointer_of(schema, reader.columns.names)
    return with_warnings(schema, parsed, reader.columns.names)


def parse_flat_query(schema: RowSchema, named: dict[str, str]) -> ParsedRows:
    """Query parameters x.NAME=TEXT, one for each column. Raises Problem 422."""
    builder = RowsBuilder(schema, labelled=False)
    try:
        builder.add_flat(0, dict(named))
    except BadRow as bad:
        error = RowError(0, bad.pointer, bad.reason)
        raise Problem(422, "invalid-rows", bad.reason, [error]) from None
    return builder.build(single=True)


def refuse_other_format(kind: str) -> Problem:
    """Problem 415 for a format whose rows have no columns."""
    detail = f"{quoted(kind)} has no columns; send JSON, NDJSON, CSV or Arrow to this model"
    return Problem(415, "unsupported-media-type", detail)
