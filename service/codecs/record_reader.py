"""How formats of records are read: quickly by a kernel, and exactly where that does not go on.

A record is a line, or in CSV what its quotes hold together. One that is no row is refused alone,
with its line; blank ones are none.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from dualstream.service.codecs.json_exact import RepeatedNames
from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.text import count_lines
from dualstream.wire.problems import RowError, quoted

FEW_BYTES = 4096
"""Below this, arrays cost more than lists."""
# Where names are told that stand once in a table, and may be told with many texts.
_MORE_NAMES = 1 << 20
_SPACE = b" \t\r"

Kernel = Callable[[RowArrays, np.ndarray, bool], bool]
"""Reads on into the arrays; whether it stopped at a record that is not of the usual form.

Takes the arrays, the text as bytes, and whether only ASCII is known to be good UTF-8.
"""


class Reader(Protocol):
    """Reads the records of one body of one format, exactly."""

    body: bytes
    """Ends in a line feed."""
    start: int
    """The byte where the records begin."""

    def end_of(self, start: int) -> int:
        """The place of the line feed at the end of the record that begins there."""

    def take(self, build: IntakeBuilder, place: int, start: int, end: int) -> None:
        """Add the row of that record; raises BadRow and adds nothing."""


class LineReader:
    """A reader of records that are lines."""

    start = 0

    def __init__(self, body: bytes) -> None:
        self.body = with_last_end(body)

    def end_of(self, start: int) -> int:
        return self.body.index(b"\n", start)


def with_last_end(body: bytes) -> bytes:
    """The body with a line feed at its end."""
    return body if body.endswith(b"\n") else body + b"\n"


def parse_records(
    door: RowSchema, labelled: bool, reader: Reader, kernel: Kernel, entries: Callable[[], int]
) -> ParsedRows:
    """The rows of a body; `entries` says how many it may hold at most."""
    if len(reader.body) >= FEW_BYTES:
        intake = parse_quickly(door, labelled, reader, kernel, entries())
        if intake is not None:
            return intake
    return parse_slowly(door, labelled, reader)


def parse_quickly(
    door: RowSchema, labelled: bool, reader: Reader, kernel: Kernel, entries: int
) -> ParsedRows | None:
    """As `parse_slowly`, by a kernel as far as it goes; None where rows have ids.

    A row with an id is a part of a request of its own, which no array is any help for.
    """
    body = reader.body
    arrays = RowArrays(door, labelled, count_lines(body), entries, len(body) + _MORE_NAMES)
    arrays.at[:2] = reader.start, body.count(b"\n", 0, reader.start)
    text = np.frombuffer(body, np.uint8)
    ascii_only = body.isascii() or not is_utf8(body)
    errors: list[RowError] = []
    while kernel(arrays, text, ascii_only):
        start, line, place, _ = arrays.at.tolist()
        end = reader.end_of(start)
        is_row = bool(body[start:end].strip(_SPACE))
        build = IntakeBuilder(door, labelled)
        try:
            if is_row:
                reader.take(build, place, start, end)
        except BadRow as bad:
            errors.append(RowError(place, bad.pointer, bad.reason, line + 1))
        else:
            if build.listed.ids:
                return None
            if is_row:
                arrays.take(text, build.listed, place)
        arrays.at[:3] = end + 1, line + body.count(b"\n", start, end + 1), place + is_row
    return arrays.intake(errors)


def parse_slowly(door: RowSchema, labelled: bool, reader: Reader) -> ParsedRows:
    """Record by record, with the reason of each bad one."""
    body = reader.body
    build = IntakeBuilder(door, labelled)
    place, start = 0, reader.start
    line = body.count(b"\n", 0, start)
    while start < len(body):
        end = reader.end_of(start)
        if body[start:end].strip(_SPACE):
            try:
                reader.take(build, place, start, end)
            except BadRow as bad:
                build.refuse(place, bad.pointer, bad.reason, line + 1)
            place += 1
        line += body.count(b"\n", start, end + 1)
        start = end + 1
    return build.intake()


def features_of(
    door: RowSchema, pairs: list[tuple[str, float | bool | str]]
) -> dict[str, float | bool | str]:
    """The features of a row; raises BadRow for a name that stands twice, unless it is summed."""
    x = dict(pairs)
    if len(x) == len(pairs):
        return x
    if door.is_hashed:
        return RepeatedNames(pairs)
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise BadRow("", f"{quoted(twice)} is there twice")


def is_utf8(body: bytes) -> bool:
    """Whether the body is valid UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
