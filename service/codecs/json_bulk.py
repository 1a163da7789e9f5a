"""application/json of many rows, read by kernels as long as it is of the usual form.

A row that is not is read on its own. Where that is no JSON, no sample, or has a name twice, nobody
here says what is wrong: the whole body is read once more, exactly.
"""

import re

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs.json_exact import parse_exactly, plain_label, plain_sample
from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.record_reader import FEW_BYTES, is_utf8
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.text import (
    COMMA,
    POWERS_OF_TEN,
    STOPPED,
    WEIGHT_COLUMN,
    X_COLUMN,
    Y_COLUMN,
    read_column,
    read_samples,
)
from dualstream.wire.problems import RowError

_S = rb"[ \t\r\n]*"
_SAMPLES = re.compile(_S + _S.join([rb"\{", b'"samples"', b":", rb"\[", rb"(?=\{)"]))
_COLUMNS = re.compile(_S + rb"\{(?=" + _S + rb'"(?:x|y|weight)"' + _S + b":" + _S + rb"\[)")
_COLUMN = re.compile(_S + _S.join([rb'"(x|y|weight)"', b":", rb"\[", rb"(?!\])"]))
_NEXT = re.compile(_S + rb"([,\]}])")
_END = re.compile(_S)
# Strings and brackets of any JSON; a string without an end goes to the end of the text.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_FIELDS = {b"x": X_COLUMN, b"y": Y_COLUMN, b"weight": WEIGHT_COLUMN}
# So many rows, and one in so many of the others, may be read on their own.
_FEW, _ONE_IN = 8, 8


_DEEPEST, _LONGEST = 16, 64 * 1024
"""Of a value that is gone through piece by piece: no row is as deep, and few are as long."""


def parse_json(door: RowSchema, body: bytes, labelled: bool, waiting: bool = False) -> ParsedRows:
    """As `parse_exactly`, and sooner."""
    if len(body) >= FEW_BYTES and not waiting:
        intake = parse_quickly(door, body, labelled)
        if intake is not None:
            return intake
    return parse_exactly(door, body, labelled, waiting)


def parse_quickly(door: RowSchema, body: bytes, labelled: bool) -> ParsedRows | None:
    """The rows of a body of many; None where that is left to `parse_exactly`."""
    opening = _SAMPLES.match(body)
    if opening is not None:
        return _Samples(door, body, labelled, opening.end()).intake()
    opening = _COLUMNS.match(body)
    if opening is not None:
        return _Columns(door, body, labelled, opening.end()).intake()
    return None


class _Unusual(Exception):
    """The body is left to `parse_exactly`."""


class _Rows:
    """The rows of one body, and where reading has come to."""

    shortest: int
    """Bytes of what a row takes of a body, at least."""

    def __init__(self, door: RowSchema, body: bytes, labelled: bool, start: int) -> None:
        self._door, self._body, self._labelled = door, body, labelled
        # No white space for the kernels but the line feed at the end; in a string both are none.
        self._text = np.frombuffer(body.replace(b"\n", b"\r") + b"\n", np.uint8)
        self._ascii_only = body.isascii() or not is_utf8(body)
        rows = len(body) // self.shortest + 1
        # A feature by name is `"":0` at least, and one of a list a digit and its comma.
        entries = len(body) // (4 if door.is_hashed else 2) + 1
        self._arrays = RowArrays(door, labelled, rows, entries, len(body))
        self._arrays.at[0] = start
        self._unusual = 0

    def intake(self) -> ParsedRows | None:
        """All rows; None where the body is not usual."""
        try:
            return self._read()
        except _Unusual:
            return None

    def _read(self) -> ParsedRows:
        raise NotImplementedError

    def _value(self) -> tuple[int, int]:
        """Where the object or list at hand begins and ends; raises _Unusual.

        Each one costs more here than it does in a body that is read exactly.
        """
        self._unusual += 1
        if self._unusual > _FEW + self._arrays.count // _ONE_IN:
            raise _Unusual
        at = int(self._arrays.at[0])
        start = self._end_of(_END, at)
        if self._body[start : start + 1] not in (b"{", b"["):
            raise _Unusual
        depth = 0
        for token in _TOKEN.finditer(self._body, start):
            found = token.group()
            depth += (found in b"{[") - (found in b"}]")
            if depth == 0:
                return start, token.end()
            if depth > _DEEPEST or token.end() - start > _LONGEST:
                break
        raise _Unusual

    def _next(self, at: int, expected: bytes) -> bytes:
        """What stands behind a value: one of those expected; reading goes on behind it."""
        found = _NEXT.match(self._body, at)
        if found is None or found[1] not in expected:
            raise _Unusual
        self._arrays.at[0] = found.end()
        return found[1]

    def _end_of(self, pattern: re.Pattern[bytes], at: int) -> int:
        found = pattern.match(self._body, at)
        if found is None:
            raise _Unusual
        return found.end()

    def _finish(self) -> None:
        """Read the brace at the end of the body."""
        self._next(int(self._arrays.at[0]), b"}")
        self._check_end()

    def _check_end(self) -> None:
        if self._end_of(_END, int(self._arrays.at[0])) != len(self._body):
            raise _Unusual


class _Samples(_Rows):
    """{"samples": [{"x": ..., "y": ...}, ...]}"""

    shortest = len('{"x":{}},')

    def _read(self) -> ParsedRows:
        errors: list[RowError] = []
        while self._kernel() == STOPPED:
            place = int(self._arrays.at[2])
            start, end = self._value()
            build = self._one(self._body[start:end], place, errors)
            if build is not None:
                self._arrays.take(self._text, build.listed, place)
            self._arrays.at[2] = place + 1
            if self._next(end, b",]") == b"]":
                break
        self._finish()
        intake = self._arrays.intake(errors)
        intake.id_pointer = "/samples/{}/id"
        return intake

    def _one(self, raw: bytes, place: int, errors: list[RowError]) -> IntakeBuilder | None:
        """The row of a sample; None where it is refused."""
        sample = plain_sample(raw)
        if sample is None or sample.id is not UNSET:
            raise _Unusual
        build = IntakeBuilder(self._door, self._labelled)
        try:
            y = None if sample.y is UNSET else sample.y
            if self._labelled and sample.y is UNSET:
                raise BadRow("/y", "the label is missing")
            build.take(place, sample.x, y, 1.0 if sample.weight is UNSET else sample.weight)
        except BadRow as bad:
            errors.append(RowError(place, f"/samples/{place}{bad.pointer}", bad.reason))
            return None
        return build

    def _kernel(self) -> int:
        a = self._arrays
        return read_samples(
            self._text, self._ascii_only, COMMA, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.places, a.spare, a.held,
            a.told, a.seen, a.name_places, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.memo, a.at,
        )  # fmt: skip


class _Columns(_Rows):
    """{"x": [..., ...], "y": [...], "weight": [...]}; with ids, or a row to be refused: unusual."""

    shortest = len("1,")

    def _read(self) -> ParsedRows:
        arrays = self._arrays
        rows: dict[bytes, int] = {}
        while True:
            found = _COLUMN.match(self._body, int(arrays.at[0]))
            if found is None or found[1] in rows:
                raise _Unusual
            arrays.at[0], arrays.at[3] = found.end(), 0
            self._read_column(found[1])
            rows[found[1]] = arrays.count
            if self._next(int(arrays.at[0]), b",}") == b"}":
                break
        self._check_end()
        n = rows.get(b"x", 0)
        if any(count != n for count in rows.values()) or (self._labelled and b"y" not in rows):
            raise _Unusual
        if not self._labelled:
            arrays.labels[:n] = 0.0
        if b"weight" not in rows:
            arrays.weights[:n] = 1.0
        arrays.places[:n] = np.arange(n)
        intake = arrays.intake([])
        intake.id_pointer = "/ids/{}"
        return intake

    def _read_column(self, name: bytes) -> None:
        while self._kernel(_FIELDS[name]) == STOPPED:
            if name == b"x":
                if self._take_x() == b"]":
                    break
            elif name == b"weight" or not self._learn_label():
                raise _Unusual

    def _take_x(self) -> bytes:
        """Take the features of one row; what stands behind them."""
        start, end = self._value()
        sample = plain_sample(b'{"x":' + self._body[start:end] + b"}")
        if sample is None:
            raise _Unusual
        try:
            indices, values, names = self._door.features(sample.x)
        except BadRow:
            raise _Unusual from None
        self._arrays.take_x(indices, values, names)
        return self._next(end, b",]")

    def _learn_label(self) -> bool:
        start, end = self._arrays.counts[2:4].tolist()
        y = plain_label(self._body[start:end])
        if start == end or y is None:
            return False
        try:
            return self._arrays.learn_label(self._text, self._door.label(y))
        except BadRow:
            return False

    def _kernel(self, field: int) -> int:
        a = self._arrays
        return read_column(
            self._text, self._ascii_only, field, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.spare, a.held,
            a.told, a.seen, a.name_places, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.memo, a.at,
        )  # fmt: skip
