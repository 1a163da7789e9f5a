"""CSV codec (text/csv, RFC 4180) with a header: y or label, weight, id; others are features.

Fields become values by the table in wire/text_values.py, quoted or not. An empty field is a feature
that the row does not have. The delimiter is a parameter of the media type, or found from the
header.
"""

import re
from functools import cached_property
from urllib.parse import quote

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs import table_columns
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import Reader, parse_records, parse_slowly
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.codecs.text_fields import feature_of, label_of, weight_of
from dualstream.solvers.rows import hashing
from dualstream.solvers.rows.text import csv
from dualstream.solvers.rows.text.tokens import LONGEST_NAME
from dualstream.wire.chunking.csv_records import delimiter_of, doubt_of_delimiter, quoted_end
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import Problem, quoted


def parse_csv(
    schema: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """Parse CSV. A record that is not valid is a row error.

    Raises Problem 422 for an invalid header, or one that leaves the delimiter in doubt.
    """
    if not body.strip():
        return RowsBuilder(schema, labelled).build()
    delimiter = parameters.get("delimiter", "")
    if not delimiter:
        check_delimiter(body)
    reader = RecordReader(schema, body, labelled, delimiter, parameters.get("decimal", ""))
    is_unusual = reader.has_long_names or reader.decimal == ","
    is_slow = labelled and reader.columns.id is not None or is_unusual
    parsed = parse_slowly(reader) if is_slow else parse_records(reader)
    return table_columns.with_warnings(schema, parsed, reader.columns.names)


class RecordReader(Reader):
    """Reader of CSV records; the first record is the header."""

    def __init__(
        self, schema: RowSchema, body: bytes, labelled: bool, delimiter: str = "", decimal: str = ""
    ) -> None:
        super().__init__(schema, body, labelled)
        self.delimiter = delimiter.encode() or delimiter_of(body)
        self.decimal = decimal or ("" if self.delimiter != b"," else ".")
        if self.delimiter == b"\t":
            self.blanks = b" \r"  # a line of tabs is a record
        header = len(body) - len(body.lstrip(b"\r\n"))
        self.start = self.end_of(header) + 1
        try:
            self.columns = table_columns.columns_of(schema, self._names(header), labelled)
        except Problem as unusable:
            if body[header : header + 1] in (b"{", b"["):
                unusable.detail += "; send JSON as application/json"
            raise
        # In a single column a line without text is a record whose value is missing.
        self.skips_blank = len(self.columns.names) > 1

    def _names(self, header: int) -> list[str]:
        record = self.body[header : self.start - 1]
        if b"\r" in record.rstrip(b"\r") and b'"' not in record:
            detail = "lines end with CR alone; end them with LF or CRLF (tr '\\r' '\\n')"
            raise Problem(422, "invalid-body", detail)
        try:
            return _fields(record, self.delimiter)
        except BadRow as bad:
            raise Problem(422, "invalid-body", f"the header is invalid: {bad.reason}") from None

    @property
    def has_long_names(self) -> bool:
        """Does a column have a name that is too long for the kernel?"""
        return any(len(name.encode()) > LONGEST_NAME for name in self.columns.names)

    def end_of(self, start: int) -> int:
        body, delimiter = self.body, self.delimiter
        after_quote = delimiter + b"\r\n"
        p, end = start, body.index(b"\n", start)
        while True:
            if body[p] == _QUOTE:
                p = quoted_end(body, p)
                if p < 0:  # an unclosed quote makes only this line invalid
                    return body.index(b"\n", start)
                if body[p] not in after_quote:
                    return body.index(b"\n", p)
                if p > end:  # search for the end once per line, not once per field
                    end = body.index(b"\n", p)
            p = body.find(delimiter, p, end) + 1
            if p == 0:
                return end

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        fields, columns = self.fields(start, end), self.columns
        x = {
            columns.names[column]: feature_of(columns.names[column], fields[column])
            for column in columns.features
            if fields[column]
        }
        y = None if columns.y is None else fields[columns.y]
        if self.labelled and not y:
            raise BadRow("/y", "the label is missing")
        label = label_of(y, self.schema.class_names is not None) if self.labelled and y else None
        weight = "" if columns.weight is None else fields[columns.weight]
        id_ = None if columns.id is None else fields[columns.id] or None
        builder.add(index, x, label, weight_of(weight) if weight else UNSET, id_)

    def fields(self, start: int, end: int) -> list[str]:
        """The fields of a record. Raises BadRow."""
        fields, names = _fields(self.body[start:end], self.delimiter), self.columns.names
        if len(fields) != len(names):
            raise BadRow(
                "", f"the record has {plural(len(fields), 'field')}; the header has {len(names)}"
            )
        if self.decimal != ".":
            fields = list(map(self._with_point, names, fields))
        return fields

    def has_decimals(self, name: str) -> bool:
        """Whether fields of this column are numbers, whose decimal sign must be clear."""
        return True

    def has_given_decimals(self, name: str) -> bool:
        """Whether fields of this column that are written as numbers have a given decimal sign."""
        return True

    def pointer(self, name: str) -> str:
        """JSON pointer of a column's value."""
        return _pointer(name)

    def _with_point(self, name: str, text: str) -> str:
        """A field with a decimal point. Raises BadRow if its decimal is another one."""
        has_comma = "," in text and _DECIMAL_COMMA.fullmatch(text) is not None
        if self.decimal:
            if has_comma and self.has_given_decimals(name):
                return text.replace(".", "").replace(",", ".")
            if "." in text and self.has_decimals(name):
                if _DECIMAL_COMMA.fullmatch(text.replace(".", ",")):
                    reason = f"{quoted(text)} has a point, but decimal=%2C is given"
                    raise BadRow(self.pointer(name), reason)
            return text
        if has_comma and self.has_decimals(name):
            reason = f"{quoted(text)} has a decimal comma; send text/csv; decimal=%2C (--format"
            raise BadRow(self.pointer(name), f"{reason} csv-decimal-comma), or decimal=. of texts")
        return text

    @cached_property
    def _header_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return _header_arrays(self.schema, self.columns)

    def run_kernel(self, a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        return bool(
            csv.read_records(
                text, ascii_only, self.delimiter[0], csv.byte_kinds(self.delimiter[0]),
                a.dim, a.label_kind, a.collects_names,
                self._header_arrays, *a.arguments, a.row_indices, a.at,
            )
        )  # fmt: skip


_QUOTE = ord('"')
_DECIMAL_COMMA = re.compile(
    r"[ \t]*[+-]?(\d+,\d*|,\d+|\d{1,3}(\.\d{3})+,\d+)([eE][+-]?\d+)?[ \t]*", re.ASCII
)


def check_delimiter(body: bytes) -> None:
    """Raise Problem 422 for a header whose delimiter may not be the one that is read."""
    sign = doubt_of_delimiter(body)
    if delimiter_of(body) == b"," and sign:
        detail = f"the header may be separated by commas or by {sign!r}; send text/csv; delimiter="
        raise Problem(422, "invalid-body", f"{detail}{quote(sign)} or delimiter=%2C")


def _pointer(name: str) -> str:
    role = table_columns.RESERVED.get(name)
    return f"/{role}" if role else f"/x/{pointer_step(name[:50])}"


def _header_arrays(
    schema: RowSchema, columns: table_columns.TableColumns
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arguments of `read_records`: kinds and feature indices of columns, ends and names."""
    kinds = np.full(len(columns.names), csv.NOTHING, np.int32)
    kinds[columns.features] = csv.FEATURE
    for column, kind in ((columns.y, csv.LABEL), (columns.weight, csv.WEIGHT)):
        if column is not None:
            kinds[column] = kind
    indices = np.zeros(len(kinds), np.int32)
    names = [columns.names[column] for column in columns.features]
    if schema.is_hashed:
        indices[columns.features] = hashing.hash_names(names, (schema.dim - 1).bit_length())
    else:
        indices[columns.features] = [schema.index(name) for name in names]
    encoded = [name.encode() for name in columns.names]
    ends = np.zeros(len(kinds) + 1, np.int64)
    np.cumsum([len(name) for name in encoded], out=ends[1:])
    return kinds, indices, ends, np.frombuffer(b"".join(encoded) or b" ", np.uint8)


def _fields(record: bytes, delimiter: bytes) -> list[str]:
    """Split a record into fields; raises BadRow."""
    record = record.removesuffix(b"\r")
    fields: list[bytes] = []
    p = 0
    while True:
        if record[p : p + 1] == b'"':
            start, p = p + 1, quoted_end(record, p)
            if p < 0:
                raise BadRow("", "a quoted field is not closed")
            if record[p : p + 1] not in (delimiter, b""):
                raise BadRow(
                    "", "a quoted field is followed by text; put a comma after the closing quote"
                )
            fields.append(record[start : p - 1].replace(b'""', b'"'))
        else:
            start, p = p, record.find(delimiter, p)
            p = len(record) if p < 0 else p
            fields.append(record[start:p])
        if p >= len(record):
            break
        p += 1
    try:
        return [field.decode() for field in fields]
    except UnicodeDecodeError:
        raise BadRow("", "the record is not UTF-8") from None
