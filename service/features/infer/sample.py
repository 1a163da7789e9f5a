"""First rows of a file, read as the server reads flat rows; also Parquet and Arrow files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from dualstream.client import FORMATS, BadInput, NoRows, RowFile
from dualstream.client.arrow_tables import pyarrow_for
from dualstream.service.codecs.csv import check_delimiter
from dualstream.service.codecs.flat_rows import FlatRecords, read_row
from dualstream.service.codecs.media_type import media_type
from dualstream.service.codecs.row_schema import BadRow, RowSchema, refuse_duplicates
from dualstream.service.codecs.table_columns import pandas_index
from dualstream.solvers import BadColumn, resolve_spec
from dualstream.solvers.rows.columns.reader import TOO_MANY_COLUMNS
from dualstream.solvers.rows.columns.spec import MAX_COLUMNS
from dualstream.solvers.rows.columns.tables import rows_of
from dualstream.wire.chunking.chunks import MARK
from dualstream.wire.problem_json import Problem

Row = dict[str, Any]
_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(slots=True)
class Sample:
    """Rows of a file, flat: nested objects are columns with dots in their names."""

    rows: list[Row] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    """Reasons of rows that cannot be read with any `columns`."""


def read_sample(file: RowFile, limit: int) -> Sample:
    """At most `limit` rows. Raises BadInput for a file that cannot be read, NoRows for none."""
    return _sample(file.name, _rows(file), limit)


def sample_of(
    body: bytes, content_type: str | None, limit: int, most_columns: int = MAX_COLUMNS
) -> Sample:
    """As `read_sample`, of a body that is not compressed. Raises Problem 415 for other types."""
    kind, parameters = media_type(content_type)
    name = "the sample"
    return _sample(name, _rows_in(body, kind, parameters, name), limit, most_columns)


def _sample(
    name: str, rows: Iterator[Row | BadRow], limit: int, most_columns: int = MAX_COLUMNS
) -> Sample:
    reader = _schema().columns
    assert reader is not None
    sample = Sample()
    try:
        for number, row in enumerate(islice(rows, limit)):
            try:
                if isinstance(row, BadRow):
                    raise row
                if reader.is_explicit(row) and row.keys() <= {"x", "y", "weight", "id"}:
                    raise BadInput(
                        f"{name}: rows name their features `x`; create a model without"
                        " `columns` for them"
                    )
                pairs = list(islice(reader.flattened(row), MAX_COLUMNS + 1))
                if len(pairs) > MAX_COLUMNS:
                    raise BadRow("", TOO_MANY_COLUMNS)
                refuse_duplicates((name for name, _ in pairs), "/")
                reader.check_names(name for name, _ in pairs)
                sample.rows.append(dict(pairs))
            except (BadRow, BadColumn) as bad:
                sample.bad.append(f"row {number}: {bad.reason}")
    except Problem as problem:
        raise BadInput(f"{name}: {problem.detail}") from None
    except (OSError, ValueError) as wrong:  # also pyarrow's errors
        raise wrong if isinstance(wrong, BadInput) else BadInput(f"{name}: {wrong}") from None
    if not sample.rows:
        why = f": {sample.bad[0]}" if sample.bad else ""
        raise NoRows(f"{name} has no rows that can be read{why}")
    columns = len({name for row in sample.rows for name in row})
    if columns > most_columns:
        raise BadInput(f"{name} has {columns:,} columns; the limit is {most_columns:,}")
    return sample


def _schema() -> RowSchema:
    # Without types no field is converted: what a column is comes later.
    return RowSchema(resolve_spec({"columns": {"unknown": "ignore"}}))


def _rows(file: RowFile) -> Iterator[Row | BadRow]:
    """Rows of the file; one that cannot be read is its error."""
    kind, parameters = media_type(file.sent_as)
    for piece in file.pieces():
        yield from _rows_in(piece.content, kind, parameters, file.name)


def _rows_in(
    content: bytes, kind: str, parameters: Mapping[str, str], name: str
) -> Iterator[Row | BadRow]:
    """Rows of a body. Raises BadInput for a format without columns."""
    if kind == FORMATS["arrow"]:
        with pyarrow_for(f"{name}: Arrow").ipc.open_stream(content) as reader:
            yield from _of_batches(reader)
    elif kind == FORMATS["json"]:
        yield from _of_json(content, name)
    elif kind == FORMATS["ndjson"]:
        yield from _of_lines(content.removeprefix(MARK))
    elif kind == FORMATS["csv"]:
        yield from _of_records(content.removeprefix(MARK), parameters)
    else:
        raise BadInput(
            f"{name}: {kind} has no columns; infer reads CSV, NDJSON, JSON, Arrow and Parquet"
        )


def _of_records(body: bytes, parameters: Mapping[str, str]) -> Iterator[Row | BadRow]:
    if not body.strip():
        return
    delimiter = parameters.get("delimiter", "")
    if not delimiter:
        check_delimiter(body)
    decimal = parameters.get("decimal", "")
    reader = FlatRecords(_schema(), body, False, delimiter, decimal)
    names, start = reader.columns.names, reader.start
    while start < len(reader.body):
        end = reader.end_of(start)
        if reader.body[start:end].strip(reader.blanks):
            try:
                fields = reader.fields(start, end)
                if fields == names and len(names) > 1:
                    raise BadRow("", "the record repeats the header")
                yield dict(zip(names, fields, strict=True))
            except BadRow as bad:
                yield bad
        start = end + 1


def _of_lines(body: bytes) -> Iterator[Row | BadRow]:
    for line in body.split(b"\n"):
        if line.strip():
            try:
                yield read_row(line)
            except BadRow as bad:
                yield bad


def _of_json(body: bytes, name: str) -> Iterator[Row | BadRow]:
    try:
        if body.lstrip()[:1] == b"[":
            rows = _list.decode(body)
        else:
            content = _object.decode(body)
            is_list = content.keys() == {"samples"}
            rows = _list.decode(content["samples"]) if is_list else [msgspec.Raw(body)]
    except msgspec.ValidationError:
        raise BadInput(f"{name}: the file must be a JSON list of rows") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadInput(f"{name}: invalid JSON: {wrong}") from None
    for row in rows:
        try:
            yield read_row(bytes(row))
        except BadRow as bad:
            yield bad


def _of_batches(batches: Iterable[Any]) -> Iterator[Row]:
    """Rows of record batches, without the index columns of pandas."""
    for batch in batches:
        left_out = pandas_index(batch.schema.metadata or {})
        yield from rows_of(batch.select([n for n in batch.schema.names if n not in left_out]))
