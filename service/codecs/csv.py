"""CSV codec (text/csv, RFC 4180) with a header: y or label, weight, id; others are features.

A JSON number is a number, true and false are bools, any other text is a string, quoted or not.
An empty field is a feature that the row does not have.
"""

from functools import cached_property

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import (
    Reader,
    features_of,
    parse_records,
    parse_slowly,
)
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema, feature_of, label_of, weight_of
from dualstream.service.codecs.table_columns import TableColumns, columns_of
from dualstream.solvers import hash_names
from dualstream.solvers.text import (
    FEATURE,
    LABEL,
    LONGEST_NAME,
    NOTHING,
    POWERS_OF_TEN,
    WEIGHT,
    read_records,
)
from dualstream.wire.chunking.chunks import quoted_end
from dualstream.wire.problems import Problem


def parse_csv(
    schema: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """Parse CSV. A record that is not valid is a row error; blank lines are skipped.

    Raises Problem 415 for header=absent, 422 for an invalid header.
    """
    if parameters.get("header") == "absent":
        raise Problem(
            415, "unsupported-media-type", "text/csv needs a header line, got header=absent"
        )
    if not body.strip():
        return RowsBuilder(schema, labelled).build()
    reader = RecordReader(schema, body, labelled)
    if labelled and reader.columns.id is not None or reader.has_long_names:
        return parse_slowly(reader)
    return parse_records(reader)


class RecordReader(Reader):
    """Reader of CSV records; the first record is the header."""

    def __init__(self, schema: RowSchema, body: bytes, labelled: bool) -> None:
        super().__init__(schema, body, labelled)
        header = len(body) - len(body.lstrip(b"\r\n"))
        self.start = self.end_of(header) + 1
        self.columns = columns_of(schema, self._names(header), labelled)

    def _names(self, header: int) -> list[str]:
        try:
            return _fields(self.body[header : self.start - 1])
        except BadRow as bad:
            raise Problem(422, "invalid-body", f"the header is invalid: {bad.reason}") from None

    @property
    def has_long_names(self) -> bool:
        """Does a column have a name that is too long for the kernel?"""
        return any(len(name.encode()) > LONGEST_NAME for name in self.columns.names)

    def end_of(self, start: int) -> int:
        body = self.body
        p, end = start, body.index(b"\n", start)
        while True:
            if body[p] == _QUOTE:
                p = quoted_end(body, p)
                if p < 0:  # an unclosed quote makes only this line invalid
                    return body.index(b"\n", start)
                if body[p] not in b",\r\n":
                    return body.index(b"\n", p)
                if p > end:  # search for the end once per line, not once per field
                    end = body.index(b"\n", p)
            comma = body.find(b",", p, end)
            if comma < 0:
                return end
            p = comma + 1

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        fields, columns = _fields(self.body[start:end]), self.columns
        if len(fields) != len(columns.names):
            reason = f"the record has {len(fields)} fields; the header has {len(columns.names)}"
            raise BadRow("", reason)
        pairs = [
            (columns.names[column], feature_of(fields[column]))
            for column in columns.features
            if fields[column]
        ]
        x = features_of(self.schema, pairs)
        y = None if columns.y is None else fields[columns.y]
        if self.labelled and not y:
            raise BadRow("/y", "the label is missing")
        label = label_of(y, self.schema.class_names is not None) if self.labelled and y else None
        weight = "" if columns.weight is None else fields[columns.weight]
        id_ = None if columns.id is None else fields[columns.id] or None
        builder.add(index, x, label, weight_of(weight) if weight else UNSET, id_)

    @cached_property
    def _header_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return _header_arrays(self.schema, self.columns)

    def run_kernel(self, a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        return bool(
            read_records(
                text, ascii_only, a.dim, a.label_kind, a.collects_names, POWERS_OF_TEN,
                *self._header_arrays,
                a.indptr, a.indices, a.values, a.labels, a.weights, a.row_indices,
                a.spare, a.held, a.journalled, a.seen, a.name_indices, a.name_ends, a.names,
                a.counts, a.label_slots, a.label_ends, a.label_text, a.buffer, a.at,
            )
        )  # fmt: skip


_QUOTE = ord('"')


def _header_arrays(
    schema: RowSchema, columns: TableColumns
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arguments of `read_records`: kinds and feature indices of columns, ends and names."""
    kinds = np.full(len(columns.names), NOTHING, np.int32)
    kinds[columns.features] = FEATURE
    for column, kind in ((columns.y, LABEL), (columns.weight, WEIGHT)):
        if column is not None:
            kinds[column] = kind
    indices = np.zeros(len(kinds), np.int32)
    names = [columns.names[column] for column in columns.features]
    if schema.is_hashed:
        indices[columns.features] = hash_names(names, (schema.dim - 1).bit_length())
    else:
        indices[columns.features] = [schema.index(name) for name in names]
    encoded = [name.encode() for name in columns.names]
    ends = np.zeros(len(kinds) + 1, np.int64)
    np.cumsum([len(name) for name in encoded], out=ends[1:])
    return kinds, indices, ends, np.frombuffer(b"".join(encoded) or b" ", np.uint8)


def _fields(record: bytes) -> list[str]:
    """Split a record into fields; raises BadRow."""
    record = record.removesuffix(b"\r")
    fields: list[bytes] = []
    p = 0
    while True:
        if record[p : p + 1] == b'"':
            start, p = p + 1, quoted_end(record, p)
            if p < 0:
                raise BadRow("", "a quoted field is not closed")
            if record[p : p + 1] not in (b",", b""):
                raise BadRow(
                    "", "a quoted field is followed by text; put a comma after the closing quote"
                )
            fields.append(record[start : p - 1].replace(b'""', b'"'))
        else:
            start, p = p, record.find(b",", p)
            p = len(record) if p < 0 else p
            fields.append(record[start:p])
        if p >= len(record):
            break
        p += 1
    try:
        return [field.decode() for field in fields]
    except UnicodeDecodeError:
        raise BadRow("", "the record is not UTF-8") from None
