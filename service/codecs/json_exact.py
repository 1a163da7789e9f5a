"""Exact JSON parser: a sample, [...], {"samples": [...]}, or columns {"x": [...], "y": [...]}.

A typed decoder decodes the body as a whole. If that fails, or if an object may have a duplicate
name, the body is decoded again row by row, so that only invalid rows are refused.
"""

import json
import re
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_schema import (
    BadRow,
    Features,
    Label,
    RowSchema,
    pointer_step,
    refuse_duplicates,
)
from dualstream.solvers.rows.text.tokens import MAX_ROW_NAMES
from dualstream.wire.chunking.chunks import check_is_plain
from dualstream.wire.json_faults import json_fault
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import Problem

# Integers are kept as such: beyond 2^53 they are refused, floats are not.
_X = list[float | int] | dict[str, float | int | bool | str]
_Y = float | int | bool | str | None


class Sample(Struct, forbid_unknown_fields=True):
    """One row: features, label, weight, and an id. Each id is learned once."""

    x: _X
    y: _Y | UnsetType = UNSET
    weight: float | UnsetType = UNSET
    id: str | int | UnsetType = UNSET


class Samples(Struct, forbid_unknown_fields=True):
    """Many rows, as objects."""

    samples: list[Sample]


class SampleColumns(Struct, forbid_unknown_fields=True):
    """Many rows, as columns; a null in `ids` is a row without an id."""

    x: list[_X]
    y: list[_Y] | UnsetType = UNSET
    weight: list[float] | UnsetType = UNSET
    ids: list[str | int | None] | UnsetType = UNSET


class _RawSamples(Struct, forbid_unknown_fields=True):
    samples: list[Raw]


class _RawColumns(Struct, forbid_unknown_fields=True):
    x: list[Raw]
    y: list[Raw] | UnsetType = UNSET
    weight: list[Raw] | UnsetType = UNSET
    ids: list[Raw] | UnsetType = UNSET


_sample = msgspec.json.Decoder(Sample)
_list = msgspec.json.Decoder(list[Sample])
_samples = msgspec.json.Decoder(Samples)
_columns = msgspec.json.Decoder(SampleColumns)
_raw_list = msgspec.json.Decoder(list[Raw])
_raw_samples = msgspec.json.Decoder(_RawSamples)
_raw_columns = msgspec.json.Decoder(_RawColumns)
_y: msgspec.json.Decoder[Label | None] = msgspec.json.Decoder(_Y)
# A number that is too large for a float makes its row invalid, not the body.
_any = msgspec.json.Decoder(float_hook=float)

_COLUMNS = {"y": "y", "weight": "weight", "ids": "id"}
"""Columns other than x -> field of a sample."""
_ID_OF_COLUMNS = "/ids/{}"
_LIST = re.compile(rb"[ \t\r\n]*\[")


def parse_exactly(
    schema: RowSchema, body: bytes, labelled: bool, waiting: bool = False
) -> ParsedRows:
    """Parse a JSON body; with `waiting` each row needs a unique id, and no label.

    Raises Problem 400 for invalid JSON, 422 for JSON of another shape.
    """
    reader = _Reader(schema, labelled, waiting)
    try:
        if _LIST.match(body):
            return reader.samples(_list.decode(body), body, "")
        if b'"samples"' in body[:64]:
            return reader.samples(_samples.decode(body).samples, body, "/samples")
        return reader.sample_or_columns(body)
    except msgspec.ValidationError as wrong:
        return _parse_by_rows(reader, body, wrong)
    except msgspec.DecodeError as broken:
        raise broken_body(body, str(broken)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    except _DuplicateNames:
        return _parse_by_rows(reader, body, None)


class _DuplicateNames(Exception):
    """An object may have duplicate names. The typed decoder keeps only the last value."""


class _Reader:
    """Adds decoded rows to a RowsBuilder."""

    def __init__(self, schema: RowSchema, labelled: bool, waiting: bool) -> None:
        self._builder = RowsBuilder(schema, labelled, waiting)

    def sample_or_columns(self, body: bytes) -> ParsedRows:
        try:
            sample = _sample.decode(body)
        except msgspec.ValidationError:
            return self.columns(body)
        if not _is_wide(sample) and body.count(b":") != _colons(sample, body):
            raise _DuplicateNames
        self._add(0, "", sample.x, sample.y, sample.weight, sample.id)
        return self._builder.build(single=True)

    def samples(self, samples: list[Sample], body: bytes, pointer: str) -> ParsedRows:
        if body.count(b":") != bool(pointer) + sum(_colons(sample, body) for sample in samples):
            raise _DuplicateNames
        for index, row in enumerate(samples):
            self._add(index, f"{pointer}/{index}", row.x, row.y, row.weight, row.id)
        return self._builder.build(id_pointer=pointer + "/{}/id")

    def raw_samples(self, samples: list[Raw], pointer: str) -> ParsedRows:
        for index, raw in enumerate(samples):
            self.raw_sample(index, f"{pointer}/{index}", bytes(raw))
        return self._builder.build(id_pointer=pointer + "/{}/id")

    def columns(self, body: bytes) -> ParsedRows:
        columns = _columns.decode(body)
        rows = len(columns.x)
        ys, weights, ids = (_column(columns, name, rows, [UNSET] * rows) for name in _COLUMNS)
        expected = 1 + sum(getattr(columns, name) is not UNSET for name in _COLUMNS)
        expected += sum(len(x) for x in columns.x if isinstance(x, dict))
        expected += sum(_colons_in(id_, body) for id_ in ids)
        if body.count(b":") != expected:
            raise _DuplicateNames
        for index, x in enumerate(columns.x):
            self._add(index, "", x, ys[index], weights[index], ids[index], column=True)
        return self._builder.build(id_pointer=_ID_OF_COLUMNS)

    def raw_sample(self, index: int, prefix: str, raw: bytes, column: bool = False) -> None:
        """Add one row from its JSON, or its error."""
        try:
            sample = _checked_sample(raw)
        except (msgspec.ValidationError, BadRow) as wrong:
            pointer, reason = _explain(wrong, raw)
            self._refuse(index, prefix, pointer, reason, column)
            return
        self._add(index, prefix, sample.x, sample.y, sample.weight, sample.id, column)

    def _add(
        self,
        index: int,
        prefix: str,
        x: Features,
        y: Label | None | UnsetType,
        weight: float | UnsetType,
        id_: str | int | None | UnsetType,
        column: bool = False,
    ) -> None:
        try:
            self._builder.add(index, x, y, weight, id_)
        except BadRow as bad:
            self._refuse(index, prefix, bad.pointer, bad.reason, column)

    def _refuse(self, index: int, prefix: str, pointer: str, reason: str, column: bool) -> None:
        where = _column_pointer(pointer, index) if column else prefix + pointer
        self._builder.refuse(index, where, reason)

    def build(self, single: bool = False, id_pointer: str = "/id") -> ParsedRows:
        return self._builder.build(single, id_pointer)


def _is_wide(sample: Sample) -> bool:
    """Has the sample too many names? It is refused then, without a look at each."""
    return len(sample.x) > MAX_ROW_NAMES and isinstance(sample.x, dict)


def _colons(sample: Sample, body: bytes) -> int:
    """Colons in the sample's JSON if only its id contains any and no name is duplicated.

    A different count means that the body needs the exact check for duplicate names.
    """
    named = len(sample.x) if isinstance(sample.x, dict) else 0
    fields = (sample.y is not UNSET) + (sample.weight is not UNSET) + (sample.id is not UNSET)
    return 1 + named + fields + _colons_in(sample.id, body)


def _colons_in(id_: str | int | None | UnsetType, body: bytes) -> int:
    """Colons of an id in the body; 0 if the body has escapes, which force the exact check."""
    if not isinstance(id_, str) or ":" not in id_ or b"\\" in body:
        return 0
    return id_.count(":")


def _column(
    columns: SampleColumns | _RawColumns, name: str, rows: int, default: list[Any]
) -> list[Any]:
    column = getattr(columns, name)
    if column is UNSET:
        return default
    if len(column) != rows:
        reason = f"x has {plural(rows, 'row')} but {name} has {len(column)}; send one value per row"
        raise Problem(422, "invalid-body", reason)
    return list(column)


def _parse_by_rows(
    reader: "_Reader", body: bytes, wrong: msgspec.ValidationError | None
) -> ParsedRows:
    """Parse a body row by row, after the typed decoder has refused it as a whole.

    The reader has no rows then: it adds them after the whole body is decoded.
    """
    try:
        content = _any.decode(body)
    except RecursionError:
        raise Problem(400, "malformed-body", "the body is nested too deeply") from None
    except msgspec.ValidationError as large:  # an integer that Python does not hold
        try:
            content = json.loads(body, parse_int=float)
        except (RecursionError, ValueError):
            raise broken_body(body, str(large)) from None
    except msgspec.DecodeError as broken:
        raise broken_body(body, str(broken)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    try:
        if isinstance(content, list):
            return reader.raw_samples(_raw_list.decode(body), "")
        if isinstance(content, dict) and "samples" in content:
            samples = _raw_samples.decode(body).samples
            _refuse_repeated_lists(body, [samples])
            return reader.raw_samples(samples, "/samples")
        if _holds_columns(content):
            columns = _raw_columns.decode(body)
            fields = [columns.x, columns.y, columns.weight, columns.ids]
            _refuse_repeated_lists(body, [column for column in fields if column is not UNSET])
            _take_raw_columns(reader, columns)
            return reader.build(id_pointer=_ID_OF_COLUMNS)
    except msgspec.ValidationError as error:
        pointer, reason = _explain(error)
        raise Problem(422, "invalid-body", f"{reason} at {pointer or '/'}") from None
    if not isinstance(content, dict):
        reason = str(wrong) if wrong else "the body must be a JSON object or a list of samples"
        raise Problem(422, "invalid-body", reason)
    reader.raw_sample(0, "", body)
    return reader.build(single=True)


def _refuse_repeated_lists(body: bytes, lists: list[list[Raw]]) -> None:
    """Raise Problem 422 if the body has a list twice: the decoder keeps only the last one."""
    if body.count(b":") == len(lists) + sum(bytes(raw).count(b":") for raw in chain(*lists)):
        return
    try:
        check_names(body)
    except BadRow as bad:
        raise Problem(422, "invalid-body", bad.reason) from None


def _holds_columns(content: Any) -> bool:
    """Is this columns, not one sample: a list of rows in x, or a list of labels in y?"""
    x = content.get("x") if isinstance(content, dict) else None
    if not isinstance(x, list):
        return False
    return isinstance(content.get("y"), list) or any(isinstance(row, list | dict) for row in x)


def _take_raw_columns(reader: _Reader, columns: _RawColumns) -> None:
    rows = len(columns.x)
    parts = {
        name: _column(columns, name, rows, [])
        for name in _COLUMNS
        if getattr(columns, name) is not UNSET
    }
    for index, x in enumerate(columns.x):
        fields = [b'"x":' + bytes(x)]
        fields += [
            f'"{_COLUMNS[name]}":'.encode() + bytes(part[index])
            for name, part in parts.items()
            if name != "ids" or bytes(part[index]) != b"null"
        ]
        reader.raw_sample(index, "", b"{" + b",".join(fields) + b"}", column=True)


def _column_pointer(pointer: str, index: int) -> str:
    """Pointer within columns: /x/3 of row 5 is /x/5/3."""
    head, _, tail = pointer[1:].partition("/")
    head = "ids" if head == "id" else head
    return f"/{head}/{index}" + (f"/{tail}" if tail else "")


_FLAT = (
    '; a row is {"x": {"a": 1}, "y": 1}, with its features in "x" and optional "weight" and "id"; '
    "only a model with `columns` takes flat rows"
)
_DECODER_PATH = re.compile(r" - at `\$(.*)`$")


def _explain(wrong: Exception, raw: bytes = b"") -> tuple[str, str]:
    """JSON pointer and reason of an error in the sample `raw`."""
    if isinstance(wrong, BadRow):
        return wrong.pointer, wrong.reason
    text = str(wrong)
    match = _DECODER_PATH.search(text)
    if not match:
        return "", text + (_FLAT if raw and " field `" in text else "")
    reason = text[: match.start()].replace("`", "")
    if reason == "Integer value out of range":
        reason = LONG_INTEGER
    if match.group(1).startswith(".x") and reason.endswith("got null"):
        reason += "; leave a missing feature out"
    if match.group(1) == ".x[...]":  # msgspec does not name the key
        name = _first_bad_name(raw)
        return f"/x/{pointer_step(name)}" if name else "/x", reason
    steps = match.group(1).replace("]", "").replace("[", ".")
    return steps.replace(".", "/"), reason


def _first_bad_name(raw: bytes) -> str:
    """The first name in x whose value is not a number, bool or string."""
    # parse_int=float, because Python refuses integers of more than 4,300 digits.
    try:
        pairs: _Pairs = json.loads(raw, object_pairs_hook=_Pairs, parse_int=float)
    except (RecursionError, ValueError):  # invalid JSON after the value that msgspec refused
        return ""
    for name, x in reversed(pairs):
        if name == "x" and isinstance(x, _Pairs):
            for feature, value in x:
                if not isinstance(value, float | str | bool) or value in (_INF, -_INF):
                    return str(feature)
    return ""


_INF = float("inf")


def _checked_sample(raw: bytes) -> Sample:
    """Decode a sample. Raises BadRow for a duplicate name."""
    sample = _sample.decode(raw)
    if not _is_wide(sample) and raw.count(b":") != _colons(sample, raw):
        pairs: _Pairs = json.loads(raw, object_pairs_hook=_Pairs)
        refuse_duplicates((name for name, _ in pairs), "/")
        x = next(value for name, value in pairs if name == "x")
        if isinstance(x, _Pairs):
            refuse_duplicates((name for name, _ in x), "/x/")
    return sample


def check_names(raw: bytes) -> None:
    """Raise BadRow if a name is duplicated in a JSON object itself, not in those in it."""
    # parse_int=float, because Python refuses integers of more than 4,300 digits.
    pairs: _Pairs = json.loads(raw, object_pairs_hook=_Pairs, parse_int=float)
    refuse_duplicates((name for name, _ in pairs), "/")


def check_all_names(raw: bytes) -> None:
    """Raise BadRow if a name is duplicated in any JSON object of a document."""
    json.loads(raw, object_pairs_hook=_unique, parse_int=float)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_duplicates((name for name, _ in pairs), "/")
    return dict(pairs)


class _Pairs(list[tuple[str, Any]]):
    """(name, value) pairs of a JSON object, in order."""


def plain_sample(raw: bytes) -> Sample | None:
    """Decode a sample; None if it is invalid or may have a duplicate name."""
    try:
        sample = _sample.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return sample if raw.count(b":") == _colons(sample, raw) else None


def plain_label(raw: bytes) -> Label | None:
    """Decode a label; None if it is invalid."""
    try:
        return _y.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_sample(raw: bytes) -> Sample:
    """Decode a sample; raises BadRow."""
    try:
        try:
            return _checked_sample(raw)
        except msgspec.ValidationError as wrong:
            # Invalid JSON is the more useful error: raise DecodeError for it.
            with suppress(msgspec.ValidationError, RecursionError):
                _any.decode(raw)
            pointer, reason = _explain(wrong, raw)
            if not pointer and _LIST.match(raw):
                reason += "; send a list of samples as application/json"
            raise BadRow(pointer, reason) from None
    except msgspec.DecodeError as broken:
        raise bad_line(raw, broken) from None
    except UnicodeDecodeError:
        raise BadRow("", "the line is not UTF-8") from None


_BYTE = re.compile(r"\(byte (\d+)\)")


_NOT_JSON = re.compile(rb"[:,\[\s-](nan|inf)", re.IGNORECASE)


def _advice(text: bytes, reason: str, is_line: bool) -> str:
    """What to do about invalid JSON, if its cause is a common one; otherwise empty."""
    match = _BYTE.search(reason)
    byte = int(match.group(1)) if match else len(text)
    # The decoder has read up to 4 bytes of an invalid word.
    if _NOT_JSON.search(text, max(0, byte - 5), byte + 4):
        return "; JSON has no NaN and no infinity: leave a missing value out"
    if is_line and "truncated" in reason:
        return "; each line must be one sample: send other JSON as application/json"
    if not is_line and "trailing" in reason and text[byte - 1 : byte] in (b"{", b"["):
        return "; send one sample per line as application/x-ndjson"
    if not is_line and text and byte == 0:
        return "; name another format in Content-Type, such as text/csv"
    return ""


def bad_line(line: bytes, error: msgspec.DecodeError) -> BadRow:
    """The error of a line that cannot be decoded."""
    if isinstance(error, msgspec.ValidationError) and (long := _long_integer(line)):
        return BadRow(long, LONG_INTEGER)
    reason = json_fault(line, str(error))
    return BadRow("", reason + _advice(line, reason, is_line=True))


LONG_INTEGER = "an integer of more than 4,300 digits is out of range; quote it if it is a text"


def _long_integer(raw: bytes) -> str:
    """Pointer of the first integer that Python does not hold; empty without one."""
    try:
        left = [("", json.loads(raw, parse_int=lambda digits: _INF if len(digits) > 4300 else 0))]
    except (RecursionError, ValueError):  # invalid JSON after the value that msgspec refused
        return ""
    while left:
        pointer, one = left.pop()
        if one == _INF:
            return pointer
        if isinstance(one, dict | list):
            steps = one.items() if isinstance(one, dict) else enumerate(one)
            left += [(f"{pointer}/{pointer_step(str(step))}", inner) for step, inner in steps][::-1]
    return ""


def broken_body(body: bytes, text: str) -> Problem:
    """Problem 400 with the byte offset of the JSON error; or for a compressed body."""
    check_is_plain(body, is_text=True)
    text = json_fault(body, text)
    match = _BYTE.search(text)
    byte = int(match.group(1)) if match else len(body)
    detail = text if match else f"{text} (byte {byte})"
    detail += _advice(body, text, is_line=False)
    return Problem(400, "malformed-body", detail, byte=byte)
