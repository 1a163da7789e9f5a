"""Conversion of messages to rows: lines of NDJSON, with columns from key, timestamp and headers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from dualstream.client import BadInput
from dualstream.service.cli.consume.reader import Message

TOMBSTONE = "the message has no value (a tombstone)"
EMPTY = "the message is empty"
_HEADERS = "headers."
# Next to `x` these are fields of the sample; other columns become features.
_OF_SAMPLE = ("id", "y", "weight")


class BadMessage(Exception):
    """A message that is not a row; the text is the reason."""


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
            # Checks the syntax. The text itself is sent, so that numbers keep their digits.
            row = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise BadMessage(EMPTY if not value.strip() else f"not JSON: {wrong}") from None
        if type(row) is not dict:
            raise BadMessage(f"a row must be a JSON object, got {type(row).__name__}")
        if self._columns:
            value = _with_fields(value, row, self._found(message))
        if b"\n" in value or b"\r" in value:
            value = msgspec.json.format(value, indent=-1)
        return value.strip()

    def _found(self, message: Message) -> dict[str, Any]:
        """The columns that this message has."""
        found = {name: field_of(message, field) for name, field in self._columns.items()}
        return {name: value for name, value in found.items() if value is not None}


def field_of(message: Message, field: str) -> str | int | None:
    """A field of the message itself; None if it has none. Raises BadMessage if it is not UTF-8."""
    found: bytes | None = None
    if field == "offset":
        return message.offset
    if field == "timestamp":
        return None if message.timestamp_ms is None else _time(message.timestamp_ms)
    if field == "key":
        found = message.key
    else:
        # As in Kafka's own tools, the last header of a name counts.
        for name, value in message.headers:
            if name == field.removeprefix(_HEADERS):
                found = value
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError:
        raise BadMessage(f"the {field} of the message is not UTF-8") from None


def parse_columns(given: Sequence[str]) -> dict[str, str]:
    """FIELD=COLUMN options -> field by column. Raises BadInput."""
    columns: dict[str, str] = {}
    for one in given:
        field, sign, column = one.partition("=")
        if not sign or not column:
            raise BadInput(f"--column must be FIELD=COLUMN, such as key=user, got {one!r}")
        if field not in ("key", "timestamp", "offset") and len(field) <= len(_HEADERS):
            raise BadInput(f"--column {one}: the field must be {_FIELDS}")
        if field not in ("key", "timestamp", "offset") and not field.startswith(_HEADERS):
            raise BadInput(f"--column {one}: the field must be {_FIELDS}")
        if column in columns:
            raise BadInput(f"--column {one}: the column {column!r} is given already")
        columns[column] = field
    return columns


_FIELDS = "key, timestamp, offset or headers.NAME"


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC, which a column of the type `time` reads."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _with_fields(value: bytes, row: dict[str, Any], found: dict[str, Any]) -> bytes:
    """Add columns to the row: of a flat row as they are, next to `x` as features.

    Raises BadMessage if the row has such a column.
    """
    fields = msgspec.json.decode(value, type=dict[str, Raw])
    x = row.get("x")
    features = found
    if isinstance(x, dict | list):
        _add(fields, {name: found[name] for name in found if name in _OF_SAMPLE})
        features = {name: found[name] for name in found if name not in _OF_SAMPLE}
        if not features:
            return msgspec.json.encode(fields)
        if isinstance(x, list):
            raise BadMessage(f"x is a list, which takes no column {next(iter(features))!r}")
        inner = msgspec.json.decode(fields["x"], type=dict[str, Raw])
        _add(inner, features)
        fields["x"] = Raw(msgspec.json.encode(inner))
    else:
        _add(fields, features)
    return msgspec.json.encode(fields)


def _add(fields: dict[str, Raw], columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        if name in fields:
            raise BadMessage(f"the row has the column {name!r} already")
        fields[name] = Raw(msgspec.json.encode(value))
