"""Conversion of messages to rows: lines of NDJSON, with columns from key, timestamp and headers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from dualstream.client import BadInput
from dualstream.client.partitions import OF_SAMPLE, insert_columns
from dualstream.consume.reader import Message
from dualstream.wire.json_faults import json_fault

TOMBSTONE = "the message has no value (a tombstone)"
EMPTY = "the message is empty"
_HEADERS = "headers."
_REGISTRY, _HEADER_BYTES = b"\0", 5
"""First byte and length of the header of a schema registry: a zero, and the schema's id."""
_FRAMINGS = {
    b"\x1f\x8b": "the header of gzip",
    b"\x28\xb5\x2f\xfd": "the header of zstd",
    b"\x04\x22\x4d\x18": "the header of LZ4",
    b"\xef\xbb\xbf": "a byte order mark",
    b"\xff\xfe": "the byte order mark of UTF-16",
    b"\xfe\xff": "the byte order mark of UTF-16",
    b"Obj\x01": "the header of an Avro file",
}
"""First bytes of values that are no JSON, and what they are."""
_LINE_FEED, _RETURN = b"\n\r"
"""As numbers: bytes are searched for a number ten times as fast as for a byte string."""


class BadMessage(Exception):
    """A message that is not a row; the text is the reason."""


class _Object(msgspec.Struct):
    """Any JSON object: its fields are skipped, which checks the syntax and builds nothing."""


_object = msgspec.json.Decoder(_Object)
_fields = msgspec.json.Decoder(dict[str, Raw])


class RowLines:
    """Converts messages to lines.

    columns   field of the message (key, timestamp, offset, headers.NAME) by column of the row
    """

    def __init__(self, columns: Mapping[str, str] | None = None) -> None:
        self._columns = dict(columns or {})

    def line(self, message: Message) -> bytes:
        """The row of a message as one line of JSON, without a line feed. Raises BadMessage."""
        value = message.value
        if value is None:
            raise BadMessage(TOMBSTONE)
        try:
            # The text itself is sent, so that numbers keep their digits.
            _object.decode(value)
            if not value.isascii():
                value.decode()  # the decoder does not check texts that it skips
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = _framed_row(value)
        if self._columns:
            value = _with_fields(value, self._added(message))
        if _LINE_FEED in value or _RETURN in value:
            value = msgspec.json.format(value, indent=-1)
        return value.strip()

    def _added(self, message: Message) -> dict[str, Any]:
        """The columns that this message has."""
        columns = {name: field_of(message, field) for name, field in self._columns.items()}
        return {name: value for name, value in columns.items() if value is not None}


def _framed_row(value: bytes) -> bytes:
    """The JSON object after the header of a schema registry. Raises BadMessage for other values."""
    if not value.startswith(_REGISTRY) or len(value) <= _HEADER_BYTES:
        raise BadMessage(_fault(value))
    row = value[_HEADER_BYTES:]
    try:
        _object.decode(row)
        row.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if row.lstrip().startswith(b"{"):
            reason = f"after the header of a schema registry: {_fault(row)}"
        else:
            schema = int.from_bytes(value[1:_HEADER_BYTES], "big")
            reason = f"Avro or Protobuf of a schema registry (schema {schema}); write JSON"
        raise BadMessage(reason) from None
    return row


def _fault(value: bytes) -> str:
    """Why a text is not a JSON object."""
    for begin, framing in _FRAMINGS.items():
        if value.startswith(begin):
            return f"the value begins with {framing}; write plain JSON in UTF-8"
    try:
        value.decode()
        row = msgspec.json.decode(value)
    except UnicodeDecodeError as wrong:
        return f"not JSON: not UTF-8 (byte {wrong.start})"
    except (msgspec.DecodeError, RecursionError) as wrong:
        return f"not JSON: {json_fault(value, str(wrong))}" if value.strip() else EMPTY
    return f"a row must be a JSON object, got {type(row).__name__}"


def field_of(message: Message, field: str) -> str | int | None:
    """A field of the message itself; None if it has none. Raises BadMessage if it is not UTF-8."""
    text: bytes | None = None
    if field == "offset":
        return message.position
    if field == "timestamp":
        return None if message.timestamp_ms is None else _time(message.timestamp_ms)
    if field == "key":
        text = message.key
    else:
        # As in Kafka's own tools, the last header of a name counts.
        for name, value in message.headers:
            if name == field.removeprefix(_HEADERS):
                text = value
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        raise BadMessage(f"the {field} of the message is not UTF-8") from None


def parse_columns(options: Sequence[str]) -> dict[str, str]:
    """FIELD=COLUMN options -> field by column. Raises BadInput."""
    columns: dict[str, str] = {}
    for one in options:
        field, sign, column = one.partition("=")
        if not sign or not column:
            raise BadInput(f"--column must be FIELD=COLUMN, such as key=user, got {one!r}")
        is_header = field.startswith(_HEADERS) and field != _HEADERS
        if field not in ("key", "timestamp", "offset") and not is_header:
            raise BadInput(f"--column {one}: the field must be {_FIELDS}")
        if column in columns:
            raise BadInput(f"--column {one}: the column {column!r} is given already")
        columns[column] = field
    return columns


_FIELDS = "key, timestamp, offset or headers.NAME"


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC, which a column of the type `time` reads."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _with_fields(value: bytes, columns: dict[str, Any]) -> bytes:
    """Add columns to the row: of a flat row as they are, next to `x` as features.

    Raises BadMessage if the row has such a column.
    """
    fields = _fields.decode(value)
    x, inner = bytes(fields.get("x", b"")), fields
    features = [name for name in columns if name not in OF_SAMPLE]
    if x.startswith(b"[") and features:
        raise BadMessage(f"x is a list, which takes no column {features[0]!r}")
    if x.startswith(b"{"):
        inner = _fields.decode(x)
    for name in columns:
        if name in (inner if name in features else fields):
            raise BadMessage(f"the row has the column {name!r} already")
    return insert_columns(
        value, {name: msgspec.json.encode(value) for name, value in columns.items()}
    )
