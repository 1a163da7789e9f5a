"""text/csv (RFC 4180) with a header: columns y or label, weight, id; all others are features.

A text that is a JSON number is a number, true and false are bools, anything else is a string,
whether it is quoted or not. An empty field is a feature that the row does not have.
"""

import numpy as np

from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.record_reader import (
    Kernel,
    features_of,
    parse_records,
    parse_slowly,
    with_last_end,
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
from dualstream.wire.chunking.csv_quotes import quoted_end
from dualstream.wire.problems import Problem


def parse_csv(
    door: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """Rows of CSV. A record that does not parse is a bad row; blank lines are none.

    Raises Problem 415 where the media type says that there is no header, 422 for one that the
    model cannot take.
    """
    if parameters.get("header") == "absent":
        raise Problem(415, "unsupported-media-type", "text/csv needs a header, got header=absent")
    if not body.strip():
        return IntakeBuilder(door, labelled).intake()
    reader = RecordReader(door, with_last_end(body), labelled)
    if labelled and reader.columns.id is not None or reader.has_long_names:
        return parse_slowly(door, labelled, reader)
    return parse_records(door, labelled, reader, reader.kernel(), reader.most_entries)


class RecordReader:
    """Any record of a body whose first one is the header."""

    def __init__(self, door: RowSchema, body: bytes, labelled: bool) -> None:
        self._door = door
        self._labelled = labelled
        self.body = body
        header = len(body) - len(body.lstrip(b"\r\n"))
        self.start = self.end_of(header) + 1
        self.columns = columns_of(door, self._names(header), labelled)

    def _names(self, header: int) -> list[str]:
        try:
            return _fields(self.body[header : self.start - 1])
        except BadRow as bad:
            raise Problem(422, "invalid-body", f"the header is none: {bad.reason}") from None

    @property
    def has_long_names(self) -> bool:
        """Whether a column has a name that the kernel does not take."""
        return any(len(name.encode()) > LONGEST_NAME for name in self.columns.names)

    def most_entries(self) -> int:
        """A feature has a byte at least, and one behind it."""
        return len(self.body) // 2 + 1

    def end_of(self, start: int) -> int:
        body = self.body
        p, end = start, body.index(b"\n", start)
        while True:
            if body[p] == _QUOTE:
                p = quoted_end(body, p)
                if p < 0:  # without an end; the other lines may be better
                    return body.index(b"\n", start)
                if body[p] not in b",\r\n":
                    return body.index(b"\n", p)
                if p > end:  # looked for once in a line, which may have many fields
                    end = body.index(b"\n", p)
            comma = body.find(b",", p, end)
            if comma < 0:
                return end
            p = comma + 1

    def take(self, build: IntakeBuilder, place: int, start: int, end: int) -> None:
        fields, columns = _fields(self.body[start:end]), self.columns
        if len(fields) != len(columns.names):
            reason = f"the record has {len(fields)} fields, the header {len(columns.names)}"
            raise BadRow("", reason)
        pairs = [
            (columns.names[column], feature_of(fields[column]))
            for column in columns.features
            if fields[column]
        ]
        x = features_of(self._door, pairs)
        y = None if columns.y is None else fields[columns.y]
        if self._labelled and not y:
            raise BadRow("/y", "the label is missing")
        label = label_of(y, self._door.class_names is not None) if self._labelled and y else None
        weight = "" if columns.weight is None else fields[columns.weight]
        id_ = None if columns.id is None else fields[columns.id] or None
        build.take(place, x, label, weight_of(weight) if weight else 1.0, id_)

    def kernel(self) -> Kernel:
        """The kernel of this format with what it must know of the columns."""
        kinds, places, ends, names = _header_arrays(self._door, self.columns)

        def read_usual(a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
            return bool(
                read_records(
                    text, ascii_only, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
                    kinds, places, ends, names,
                    a.indptr, a.indices, a.values, a.labels, a.weights, a.places,
                    a.spare, a.held, a.told, a.seen, a.name_places, a.name_ends, a.names,
                    a.counts, a.label_slots, a.label_ends, a.label_text, a.buffer, a.at,
                )
            )  # fmt: skip

        return read_usual


_QUOTE = ord('"')


def _header_arrays(
    door: RowSchema, columns: TableColumns
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """kinds, column_places, header_ends and header, as `read_records` takes them."""
    kinds = np.full(len(columns.names), NOTHING, np.int32)
    kinds[columns.features] = FEATURE
    for place, kind in ((columns.y, LABEL), (columns.weight, WEIGHT)):
        if place is not None:
            kinds[place] = kind
    places = np.zeros(len(kinds), np.int32)
    names = [columns.names[column] for column in columns.features]
    if door.is_hashed:
        places[columns.features] = hash_names(names, (door.dim - 1).bit_length())
    else:
        places[columns.features] = [door.place(name) for name in names]
    encoded = [name.encode() for name in columns.names]
    ends = np.zeros(len(kinds) + 1, np.int64)
    np.cumsum([len(name) for name in encoded], out=ends[1:])
    return kinds, places, ends, np.frombuffer(b"".join(encoded) or b" ", np.uint8)


def _fields(record: bytes) -> list[str]:
    """The fields of a record; raises BadRow."""
    record = record.removesuffix(b"\r")
    fields: list[bytes] = []
    p = 0
    while True:
        if record[p : p + 1] == b'"':
            start, p = p + 1, quoted_end(record, p)
            if p < 0:
                raise BadRow("", "a quoted field has no end")
            if record[p : p + 1] not in (b",", b""):
                raise BadRow("", "a quoted field goes on behind its quote")
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
