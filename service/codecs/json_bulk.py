"""Fast JSON parser for bodies of many rows: compiled kernels, with a fallback to json_exact.

A row that the kernel cannot parse is decoded on its own. If it is not valid JSON, not a sample, or
has a duplicate name, `parse_exactly` parses the whole body again and reports the error.
"""

import re

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs.json_exact import plain_label, plain_sample
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.rows.text import json
from dualstream.wire.problem_json import RowError

_S = rb"[ \t\r\n]*"
_SAMPLES = re.compile(_S + _S.join([rb"\{", b'"samples"', b":", rb"\[", rb"(?=\{)"]))
_LIST = re.compile(_S + rb"\[" + _S + rb"(?=\{)")
_COLUMNS = re.compile(_S + rb"\{(?=" + _S + rb'"(?:x|y|weight)"' + _S + b":" + _S + rb"\[)")
_COLUMN = re.compile(_S + _S.join([rb'"(x|y|weight)"', b":", rb"\[", rb"(?!\])"]))
_NEXT = re.compile(_S + rb"([,\]}])")
_END = re.compile(_S)
# Strings and brackets of JSON. An unclosed string extends to the end of the text.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_FIELDS = {b"x": json.X, b"y": json.Y, b"weight": json.WEIGHT}
# Up to 8 rows, plus 1 in 8 of the parsed ones, may be decoded on their own; else fall back.
_FREE_ROWS, _ONE_IN = 8, 8
_MAX_DEPTH, _MAX_BYTES = 16, 64 * 1024
"""Limits of a value that is decoded on its own."""


def parse_quickly(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows | None:
    """Parse a body of many rows; None if `parse_exactly` must parse it."""
    span = find_list(body)
    if span is not None:
        return SampleList(schema, body, labelled, *span).parse()
    opening = _COLUMNS.match(body)
    if opening is not None:
        return _Columns(schema, body, labelled, opening.end()).parse()
    return None


def find_list(body: bytes) -> tuple[int, str] | None:
    """Begin of the first sample of a list of samples, and the list's JSON pointer."""
    opening = _SAMPLES.match(body) or _LIST.match(body)
    if opening is None:
        return None
    return opening.end(), "/samples" if opening.re is _SAMPLES else ""


class Fallback(Exception):
    """`parse_exactly` must parse the body."""


class _Rows:
    """Kernel-driven parser of one body."""

    shortest: int
    """Minimum bytes of a row in the body."""

    def __init__(self, schema: RowSchema, body: bytes, labelled: bool, start: int) -> None:
        self._schema, self._body, self._labelled = schema, body, labelled
        # The line feed marks the end of the text. In a JSON string neither \r nor \n is valid.
        self._text = np.frombuffer(body.replace(b"\n", b"\r") + b"\n", np.uint8)
        self._ascii_only = body.isascii() or not schema.takes_bytes_of(body)
        self._arrays = self._new_arrays(len(body) // self.shortest + 1)
        self._arrays.at[0] = start
        self._decoded = 0

    def _new_arrays(self, rows: int) -> RowArrays:
        # Upper bound of features: `"":0` per named feature, a digit and a comma in a list.
        size = len(self._body)
        entries = size // (4 if self._schema.is_hashed else 2) + 1
        return RowArrays(self._schema, self._labelled, rows, entries, size)

    def parse(self) -> ParsedRows | None:
        """All rows; None if `parse_exactly` must parse the body."""
        try:
            return self._read()
        except Fallback:
            return None

    def _read(self) -> ParsedRows:
        raise NotImplementedError

    def _value(self) -> tuple[int, int]:
        """Start and end of the current object or list, to decode it on its own.

        Raises Fallback if too many values need this, because each costs more than in
        `parse_exactly`.
        """
        self._decoded += 1
        if self._decoded > _FREE_ROWS + self._arrays.count // _ONE_IN:
            raise Fallback
        at = int(self._arrays.at[0])
        start = self._end_of(_END, at)
        if self._body[start : start + 1] not in (b"{", b"["):
            raise Fallback
        depth = 0
        for token in _TOKEN.finditer(self._body, start):
            text = token.group()
            depth += (text in b"{[") - (text in b"}]")
            if depth == 0:
                return start, token.end()
            if depth > _MAX_DEPTH or token.end() - start > _MAX_BYTES:
                break
        raise Fallback

    def _next(self, at: int, expected: bytes) -> bytes:
        """Read the character after a value, which must be one of `expected`."""
        match = _NEXT.match(self._body, at)
        if match is None or match[1] not in expected:
            raise Fallback
        self._arrays.at[0] = match.end()
        return match[1]

    def _end_of(self, pattern: re.Pattern[bytes], at: int) -> int:
        match = pattern.match(self._body, at)
        if match is None:
            raise Fallback
        return match.end()

    def _check_end(self) -> None:
        if self._end_of(_END, int(self._arrays.at[0])) != len(self._body):
            raise Fallback


class SampleList(_Rows):
    """{"samples": [{"x": ..., "y": ...}, ...]}, or only the list, with an empty `pointer`."""

    shortest = len('{"x":{}},')
    id_pointer = "/id"
    """JSON pointer of a sample's id."""

    def __init__(
        self, schema: RowSchema, body: bytes, labelled: bool, start: int, pointer: str
    ) -> None:
        super().__init__(schema, body, labelled, start)
        self._pointer = pointer

    def _read(self) -> ParsedRows:
        errors: list[RowError] = []
        while self._kernel() == json.STOPPED:
            index = int(self._arrays.at[2])
            start, end = self._value()
            builder = self._one(self._body[start:end], index, errors)
            if builder is not None:
                self._arrays.add(self._text, builder.listed, index)
            self._arrays.at[2] = index + 1
            if self._next(end, b",]") == b"]":
                break
        if self._pointer:
            self._next(int(self._arrays.at[0]), b"}")
        self._check_end()
        parsed = self._arrays.parsed_rows(errors)
        parsed.id_pointer = self._pointer + "/{}" + self.id_pointer
        return parsed

    def _one(self, raw: bytes, index: int, errors: list[RowError]) -> RowsBuilder | None:
        """Decode one sample; None if it is refused."""
        sample = plain_sample(raw)
        if sample is None or sample.id is not UNSET:
            raise Fallback
        builder = RowsBuilder(self._schema, self._labelled)
        try:
            builder.add(index, sample.x, sample.y, sample.weight)
        except BadRow as bad:
            errors.append(RowError(index, f"{self._pointer}/{index}{bad.pointer}", bad.reason))
            return None
        return builder

    def _kernel(self) -> int:
        a = self._arrays
        return json.read_samples(
            self._text, self._ascii_only, json.COMMA, a.dim, a.label_kind, a.collects_names,
            *a.arguments, a.row_indices, a.memo, a.at,
        )  # fmt: skip


class _Columns(_Rows):
    """{"x": [..., ...], "y": [...], "weight": [...]}. Ids and invalid rows cause a fallback."""

    shortest = len("1,")

    def _read(self) -> ParsedRows:
        arrays = self._arrays
        rows: dict[bytes, int] = {}
        while True:
            match = _COLUMN.match(self._body, int(arrays.at[0]))
            if match is None or match[1] in rows:
                raise Fallback
            arrays.at[0], arrays.at[3] = match.end(), 0
            self._read_column(match[1])
            rows[match[1]] = arrays.count
            if self._next(int(arrays.at[0]), b",}") == b"}":
                break
        self._check_end()
        n = rows.get(b"x", 0)
        if any(count != n for count in rows.values()) or (self._labelled and b"y" not in rows):
            raise Fallback
        if not self._labelled:
            arrays.labels[:n] = 0.0
        if b"weight" not in rows:
            arrays.weights[:n] = 1.0
        arrays.row_indices[:n] = np.arange(n)
        parsed = arrays.parsed_rows([])
        parsed.id_pointer = "/ids/{}"
        return parsed

    def _read_column(self, name: bytes) -> None:
        while self._kernel(_FIELDS[name]) == json.STOPPED:
            if name == b"x":
                if self._add_features() == b"]":
                    break
            elif name == b"weight" or not self._learn_label():
                raise Fallback

    def _add_features(self) -> bytes:
        """Decode and add the features of one row; return the character after them."""
        start, end = self._value()
        sample = plain_sample(b'{"x":' + self._body[start:end] + b"}")
        if sample is None:
            raise Fallback
        try:
            indices, values, names = self._schema.features(sample.x)
        except BadRow:
            raise Fallback from None
        self._arrays.add_features(indices, values, names)
        return self._next(end, b",]")

    def _learn_label(self) -> bool:
        start, end = self._arrays.counts[2:4].tolist()
        y = plain_label(self._body[start:end])
        if start == end or y is None:
            return False
        try:
            return self._arrays.learn_label(self._text, self._schema.label(y))
        except BadRow:
            return False

    def _kernel(self, field: int) -> int:
        a = self._arrays
        return json.read_column(
            self._text, self._ascii_only, field, a.dim, a.label_kind, a.collects_names,
            *a.arguments, a.memo, a.at,
        )  # fmt: skip
