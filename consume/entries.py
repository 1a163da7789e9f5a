"""Entries of Redis streams: their ids as offsets, and their fields as rows.

An id MS-SEQ is the number MS * 2**64 + SEQ, so ids are compared and counted as Kafka's offsets are.
The cursor of a stream is the id of the last entry that is learned.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dualstream.client import BadInput
from dualstream.consume.reader import Message
from dualstream.consume.rows import BadMessage, RowLines
from dualstream.wire.problem_json import quoted
from dualstream.wire.text_values import BadValue, number_of, value_of

SOURCE = "redis/"
"""Beginning of the name of a stream in the model's cursors."""
_SEQ_BITS = 64
_ID = re.compile(r"(0|[1-9]\d{0,19})-(0|[1-9]\d{0,19})", re.ASCII)
_ONCE = ("json", "y", "weight", "id", "x")
_COLUMNS = ("timestamp", "offset")
T = TypeVar("T", bound=float | bool | str)


def entry_id(offset: int) -> str:
    """The id of the entry with this offset."""
    return f"{offset >> _SEQ_BITS}-{offset & (1 << _SEQ_BITS) - 1}"


def offset_of(id_: str) -> int:
    """The offset of an entry. Raises ValueError for a text that is no id."""
    match = _ID.fullmatch(id_)
    if match is None:
        raise ValueError(f"{id_!r} is not an entry id")
    return (int(match[1]) << _SEQ_BITS) + int(match[2])


def entry_cursor(offset: int) -> str:
    """The cursor of a model whose next offset is this one: the largest id before it."""
    return entry_id(max(0, offset - 1))


def entry_offset(source: str, cursor: int | str) -> int:
    """The offset of a cursor. Raises BadInput."""
    try:
        return offset_of(str(cursor)) + 1
    except ValueError:
        raise BadInput(
            f"the cursor of {source} is {cursor!r}, not an entry id; set it to the id of the last"
            ' learned entry, such as "1789305600000-0"'
        ) from None


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise BadInput for a field that entries do not have."""
    for column, field in columns.items():
        if field not in _COLUMNS:
            raise BadInput(
                f"--column {field}={column}: an entry of a stream has {' and '.join(_COLUMNS)};"
                " its fields are in the row already"
            )


class EntryLines(RowLines):
    """Converts entries to lines, by the specification of the model."""

    _is_flat = _is_named = False

    def adapt(self, spec: Mapping[str, Any]) -> None:
        """Take fields as a flat row if the model has `columns`, otherwise as a sample."""
        self._is_flat = spec.get("columns") is not None
        self._is_named = spec.get("labels") is not None

    def line(self, message: Message) -> bytes:
        """The row of an entry as one line of JSON, without a line feed. Raises BadMessage."""
        return super().line(replace(message, value=self._row(message)))

    def _row(self, message: Message) -> bytes:
        fields = message.headers
        if len(fields) == 1 and fields[0][0] == "json":
            return fields[0][1] or b""
        try:
            texts = [(name.encode().decode(), (text or b"").decode()) for name, text in fields]
        except UnicodeError:
            raise BadMessage("the entry is not UTF-8") from None
        row = _unique(texts) if self._is_flat else _sample(texts, self._is_named)
        return msgspec.json.encode(row)


def _unique(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    row: dict[str, str] = {}
    for name, text in texts:
        if name in row:
            raise BadMessage(f"the field {quoted(name)} is repeated")
        row[name] = text
    return row


def _sample(texts: Sequence[tuple[str, str]], is_named: bool) -> dict[str, Any]:
    """A sample from fields y, weight, id, and x or x.NAME; texts are values as in CSV."""
    fields = _unique(texts)
    named = {name[2:]: text for name, text in fields.items() if name.startswith("x.")}
    for name in fields:
        if name == "json":
            raise BadMessage("an entry with the field json must have no other field")
        if not name.startswith("x.") and name not in _ONCE:
            raise BadMessage(f"unknown field {quoted(name)}; send x.NAME, y, weight, id, or json")
    if bool(named) == ("x" in fields):
        raise BadMessage("send the features in the field x, or in fields x.NAME")
    pairs = named.items() if named else _pairs(fields["x"])
    row: dict[str, Any] = {"x": {name: _value(text) for name, text in pairs if text}}
    if y := fields.get("y"):
        row["y"] = y if is_named else _value(y)
    if weight := fields.get("weight"):
        row["weight"] = _number("weight", weight)
    if id_ := fields.get("id"):
        row["id"] = id_
    return row


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    """The features of a text such as 3:1,11:0.5."""
    pairs: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        index, colon, value = pair.partition(":")
        if not colon:
            raise BadMessage(f"x: {quoted(pair)} is not index:value")
        if index in pairs:
            raise BadMessage(f"x: index {quoted(index)} is used twice")
        _number(f"x: the value of {quoted(index)}", value)
        pairs[index] = value
    return pairs.items()


def _value(text: str) -> float | bool | str:
    try:
        return _finite(text, value_of(text))
    except BadValue as bad:
        raise BadMessage(str(bad)) from None


def _number(what: str, text: str) -> float:
    try:
        number = number_of(text)
    except BadValue as bad:
        raise BadMessage(f"{what}: {bad}") from None
    if number is None:
        raise BadMessage(f"{what} must be a number, got {quoted(text)}")
    return _finite(text, number)


def _finite(text: str, value: T) -> T:
    """The value; raises BadMessage for an infinite number, which JSON does not have."""
    if isinstance(value, float) and isinf(value):
        raise BadMessage(f"{quoted(text)} is too large for a number")
    return value
