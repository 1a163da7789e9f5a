"""Hive partitions: folders such as `day=2024-05-01` become columns of the rows of their files."""

import csv
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from dualstream.client.calls import NDJSON
from dualstream.wire.chunking.csv_records import delimiter_of, record_end
from dualstream.wire.text_values import BadValue, value_of

CSV = "text/csv"
_PARTITION = re.compile(r"([^/=]+)=([^/]*)/")
_NULL = "__HIVE_DEFAULT_PARTITION__"
OF_SAMPLE = ("id", "y", "weight")
"""Next to `x` these are fields of the sample; other columns become features."""
_X = re.compile(rb'"(?:x|\\u0078)"\s*:\s*')
_fields = msgspec.json.Decoder(dict[str, Raw])


def partitions_of(path: str) -> dict[str, str]:
    """Column -> text of the partitions in a path, without nulls."""
    texts = {unquote(name): unquote(text) for name, text in _PARTITION.findall(path)}
    return {name: text for name, text in texts.items() if text not in ("", _NULL)}


def values_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """The texts as values, by the table of `wire.text_values`."""
    return {name: _value(text) for name, text in texts.items()}


def _value(text: str) -> Any:
    try:
        return value_of(text)
    except BadValue:
        return text


def with_columns(kind: str, body: bytes, texts: Mapping[str, str]) -> bytes:
    """A body of CSV or NDJSON whose rows have the columns that they lack; others as they are.

    Lines keep their numbers. A row that cannot be parsed is left to the server, which names it.
    """
    if not texts or kind not in (CSV, NDJSON):
        return body
    if kind == CSV:
        return b"".join(_records(body, texts))
    values = {name: msgspec.json.encode(value) for name, value in values_of(texts).items()}
    return b"\n".join(_line(line, values) for line in body.split(b"\n"))


def _records(body: bytes, texts: Mapping[str, str]) -> Iterator[bytes]:
    """The header and the records, each with the new columns before its own ones."""
    delimiter = delimiter_of(body)
    cells: bytes | None = None
    is_single = False
    start = 0
    while start < len(body):
        end = record_end(body, start, start, delimiter) or len(body)
        record = body[start:end]
        start = end
        if not record.strip(b"\r\n") and not is_single:
            yield record
        elif cells is None:
            sign = delimiter.decode()
            names = _names(record.decode(errors="replace"), sign)
            is_single = len(names) == 1  # an empty line is a missing value then
            new = {name: text for name, text in texts.items() if name not in names}
            cells = _joined(new.values(), sign)
            yield _joined(new, sign) + record
        else:
            yield cells + record


def _names(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(StringIO(header, newline=""), delimiter=delimiter))
    except csv.Error:  # the server names the fault
        return []


def _joined(cells: Any, delimiter: str) -> bytes:
    """The first cells of a record, with the delimiter after them."""
    sink = StringIO()
    csv.writer(sink, delimiter=delimiter, lineterminator="").writerow(cells)
    return (sink.getvalue() + delimiter * bool(cells)).encode()


def _line(line: bytes, values: Mapping[str, bytes]) -> bytes:
    try:
        return insert_columns(line, values)
    except (msgspec.DecodeError, RecursionError):
        return line


def insert_columns(line: bytes, values: Mapping[str, bytes]) -> bytes:
    """A row of JSON with the columns that it lacks; `values` are JSON texts.

    The text itself stays, so that numbers keep their digits and a repeated name is refused. Columns
    become features if the row has `x`, unless that is a list. Raises DecodeError, RecursionError.
    """
    fields = _fields.decode(line)
    x = bytes(fields.get("x", b""))
    if not x.startswith((b"{", b"[")):
        return _inserted(line, values, fields)
    features = {name: value for name, value in values.items() if name not in OF_SAMPLE}
    of_sample = {name: value for name, value in values.items() if name in OF_SAMPLE}
    match = next((one for one in _X.finditer(line) if line.startswith(x, one.end())), None)
    if match is not None and x.startswith(b"{"):
        inner = _inserted(line[match.end() :], features, _fields.decode(x))
        line = line[: match.end()] + inner
    return _inserted(line, of_sample, fields)


def _inserted(text: bytes, values: Mapping[str, bytes], fields: Mapping[str, Raw]) -> bytes:
    """A text that begins with an object with these fields, which gets those that it lacks."""
    new = {name: value for name, value in values.items() if name not in fields}
    added = b"".join(msgspec.json.encode(name) + b":" + new[name] + b"," for name in new)
    added = added if fields else added[:-1]
    return text.replace(b"{", b"{" + added, 1)
