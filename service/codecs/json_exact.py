"""application/json: one sample, {"samples": [...]}, or columns {"x": [...], "y": [...]}.

A body is first decoded as a whole by a typed decoder. Only when that fails, or when an object may
hold a name twice, is it decoded again row by row, so that the bad rows alone are refused.
"""

import json
import re
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.row_schema import BadRow, Features, Label, RowSchema, pointer_step
from dualstream.wire.problems import Problem, quoted

_X = list[float] | dict[str, float | bool | str]
_Y = float | int | bool | str | None


class Sample(Struct, forbid_unknown_fields=True):
    """One row: features, label, weight, and an id under which it is learned once."""

    x: _X
    y: _Y | UnsetType = UNSET
    weight: float | UnsetType = UNSET
    id: str | int | UnsetType = UNSET


class Samples(Struct, forbid_unknown_fields=True):
    """Many rows, each whole."""

    samples: list[Sample]


class Columns(Struct, forbid_unknown_fields=True):
    """Many rows, field by field; a null in `ids` is a row without one."""

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
_samples = msgspec.json.Decoder(Samples)
_columns = msgspec.json.Decoder(Columns)
_raw_samples = msgspec.json.Decoder(_RawSamples)
_raw_columns = msgspec.json.Decoder(_RawColumns)
_y: msgspec.json.Decoder[Label | None] = msgspec.json.Decoder(_Y)
# A number too large for a float is no fault of the body; the row that holds it is refused.
_any = msgspec.json.Decoder(float_hook=float)

_COLUMNS = {"y": "y", "weight": "weight", "ids": "id"}
"""Columns beside x, and what a sample calls them."""
_ID_OF_SAMPLES, _ID_OF_COLUMNS = "/samples/{}/id", "/ids/{}"


def parse_exactly(
    door: RowSchema, body: bytes, labelled: bool, waiting: bool = False
) -> ParsedRows:
    """Rows of a JSON body; with `waiting` each needs an id of its own, and no label.

    Raises Problem 400 where it is not JSON, 422 where it has no rows.
    """
    reader = _Reader(door, labelled, waiting)
    try:
        if b'"samples"' in body[:64]:
            return reader.samples(body)
        return reader.sample_or_columns(body)
    except msgspec.ValidationError as wrong:
        return _parse_by_rows(reader.anew(), body, wrong)
    except msgspec.DecodeError as broken:
        raise _broken(body, str(broken)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    except _NamesTwice:
        return _parse_by_rows(reader.anew(), body, None)


class _NamesTwice(Exception):
    """An object of the body may hold a name twice; the typed decoder would keep the last."""


class _Reader:
    """Turns typed rows into an Intake."""

    def __init__(self, door: RowSchema, labelled: bool, waiting: bool) -> None:
        self._given = door, labelled, waiting
        self._labelled = labelled
        self._is_hashed = door.is_hashed
        self._build = IntakeBuilder(door, labelled, waiting)

    def anew(self) -> "_Reader":
        """One of the same kind that holds no row yet."""
        return _Reader(*self._given)

    def sample_or_columns(self, body: bytes) -> ParsedRows:
        try:
            sample = _sample.decode(body)
        except msgspec.ValidationError:
            return self.columns(body)
        if body.count(b":") != _colons(sample, body):
            raise _NamesTwice
        self._take(0, "", sample.x, sample.y, sample.weight, sample.id)
        return self._build.intake(single=True)

    def samples(self, body: bytes) -> ParsedRows:
        samples = _samples.decode(body).samples
        if body.count(b":") != 1 + sum(_colons(sample, body) for sample in samples):
            raise _NamesTwice
        for place, row in enumerate(samples):
            self._take(place, f"/samples/{place}", row.x, row.y, row.weight, row.id)
        return self._build.intake(id_pointer=_ID_OF_SAMPLES)

    def columns(self, body: bytes) -> ParsedRows:
        columns = _columns.decode(body)
        rows = len(columns.x)
        ys, weights, ids = (_column(columns, name, rows, [UNSET] * rows) for name in _COLUMNS)
        expected = 1 + sum(getattr(columns, name) is not UNSET for name in _COLUMNS)
        expected += sum(len(x) for x in columns.x if isinstance(x, dict))
        expected += sum(_colons_in(id_, body) for id_ in ids)
        if body.count(b":") != expected:
            raise _NamesTwice
        for place, x in enumerate(columns.x):
            self._take(place, "", x, ys[place], weights[place], ids[place], column=True)
        return self._build.intake(id_pointer=_ID_OF_COLUMNS)

    def raw_sample(self, place: int, prefix: str, raw: bytes, column: bool = False) -> None:
        """Take one row from its own bytes, or refuse it alone."""
        try:
            sample = _checked_sample(raw, self._is_hashed)
        except (msgspec.ValidationError, BadRow) as wrong:
            pointer, reason = _told(wrong, raw)
            self._refuse(place, prefix, pointer, reason, column)
            return
        self._take(place, prefix, sample.x, sample.y, sample.weight, sample.id, column)

    def _take(
        self,
        place: int,
        prefix: str,
        x: Features,
        y: Label | None | UnsetType,
        weight: float | UnsetType,
        id_: str | int | None | UnsetType,
        column: bool = False,
    ) -> None:
        try:
            if y is UNSET:
                if self._labelled:
                    raise BadRow("/y", "the label is missing")
                y = None
            c = 1.0 if weight is UNSET else weight
            self._build.take(place, x, y, c, None if id_ is UNSET else id_)
        except BadRow as bad:
            self._refuse(place, prefix, bad.pointer, bad.reason, column)

    def _refuse(self, place: int, prefix: str, pointer: str, reason: str, column: bool) -> None:
        where = _into_column(pointer, place) if column else prefix + pointer
        self._build.refuse(place, where, reason)

    def intake(self, single: bool = False, id_pointer: str = "/id") -> ParsedRows:
        return self._build.intake(single, id_pointer)


def _colons(sample: Sample, body: bytes) -> int:
    """How many colons its JSON has when no string but the id holds one and no name comes twice."""
    named = len(sample.x) if isinstance(sample.x, dict) else 0
    given = (sample.y is not UNSET) + (sample.weight is not UNSET) + (sample.id is not UNSET)
    return 1 + named + given + _colons_in(sample.id, body)


def _colons_in(id_: str | int | None | UnsetType, body: bytes) -> int:
    """How many colons an id has in a body; ones that are written in another way are not counted."""
    if not isinstance(id_, str) or ":" not in id_ or b"\\" in body:
        return 0
    return id_.count(":")


def _column(columns: Columns | _RawColumns, name: str, rows: int, default: list[Any]) -> list[Any]:
    column = getattr(columns, name)
    if column is UNSET:
        return default
    if len(column) != rows:
        reason = f"x has {rows} rows and {name} has {len(column)}"
        raise Problem(422, "invalid-body", reason)
    return list(column)


def _parse_by_rows(
    reader: "_Reader", body: bytes, wrong: msgspec.ValidationError | None
) -> ParsedRows:
    """The rows of a body that the typed decoder refused: each is decoded on its own."""
    try:
        content = _any.decode(body)
    except RecursionError:
        raise Problem(400, "malformed-body", "the body is nested too deeply") from None
    except msgspec.DecodeError as broken:
        raise _broken(body, str(broken)) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed-body", "the body is not UTF-8") from None
    try:
        if isinstance(content, dict) and "samples" in content:
            for place, raw in enumerate(_raw_samples.decode(body).samples):
                reader.raw_sample(place, f"/samples/{place}", bytes(raw))
            return reader.intake(id_pointer=_ID_OF_SAMPLES)
        if _holds_columns(content):
            _take_raw_columns(reader, _raw_columns.decode(body))
            return reader.intake(id_pointer=_ID_OF_COLUMNS)
    except msgspec.ValidationError as error:
        pointer, reason = _told(error)
        raise Problem(422, "invalid-body", f"{reason} at {pointer or '/'}") from None
    if not isinstance(content, dict):
        reason = str(wrong) if wrong else "expected an object"
        raise Problem(422, "invalid-body", reason)
    reader.raw_sample(0, "", body)
    return reader.intake(single=True)


def _holds_columns(content: Any) -> bool:
    """Columns are told from a single sample by lists: of rows in x, or of labels beside x."""
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
    for place, x in enumerate(columns.x):
        fields = [b'"x":' + bytes(x)]
        fields += [
            f'"{_COLUMNS[name]}":'.encode() + bytes(part[place])
            for name, part in parts.items()
            if name != "ids" or bytes(part[place]) != b"null"
        ]
        reader.raw_sample(place, "", b"{" + b",".join(fields) + b"}", column=True)


def _into_column(pointer: str, place: int) -> str:
    """/x/3 of row 5 is /x/5/3 of the columns."""
    head, _, tail = pointer[1:].partition("/")
    head = "ids" if head == "id" else head
    return f"/{head}/{place}" + (f"/{tail}" if tail else "")


_PLACE = re.compile(r" - at `\$(.*)`$")


def _told(wrong: Exception, raw: bytes = b"") -> tuple[str, str]:
    """Pointer and reason of what the decoder, or the door, said of the sample `raw`."""
    if isinstance(wrong, BadRow):
        return wrong.pointer, wrong.reason
    text = str(wrong)
    found = _PLACE.search(text)
    if not found:
        return "", text
    reason = text[: found.start()].replace("`", "")
    if found.group(1) == ".x[...]":  # the decoder does not say which value of an object it was
        name = _first_bad_name(raw)
        return f"/x/{pointer_step(name)}" if name else "/x", reason
    steps = found.group(1).replace("]", "").replace("[", ".")
    return steps.replace(".", "/"), reason


def _first_bad_name(raw: bytes) -> str:
    """The first name in x whose value is no number, bool or string."""
    # Python reads no integer of more than 4,300 digits, but any float.
    try:
        pairs: _Pairs = json.loads(raw, object_pairs_hook=_Pairs, parse_int=float)
    except (RecursionError, ValueError):  # msgspec stops at what is no JSON only if it gets there
        return ""
    for name, x in reversed(pairs):
        if name == "x" and isinstance(x, _Pairs):
            for feature, value in x:
                if not isinstance(value, float | str | bool) or value in (_INF, -_INF):
                    return str(feature)
    return ""


_INF = float("inf")


class RepeatedNames(dict[str, float | bool | str]):
    """An object in which names stand twice: `items()` gives every pair, in order of arrival."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = [
            (name, float(value) if type(value) is int else value) for name, value in pairs
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> list[tuple[str, float | bool | str]]:  # type: ignore[override]
        return self._pairs


def _checked_sample(raw: bytes, is_hashed: bool) -> Sample:
    """The sample in `raw`, with every pair of its features where names may stand twice.

    Only features by name are summed; any other name that stands twice raises BadRow.
    """
    sample = _sample.decode(raw)
    if raw.count(b":") == _colons(sample, raw):
        return sample

    pairs: _Pairs = json.loads(raw, object_pairs_hook=_Pairs)
    _refuse_name_twice(pairs)
    x = next(value for name, value in pairs if name == "x")
    if isinstance(x, _Pairs):
        if is_hashed:
            sample.x = RepeatedNames(x)
        else:
            _refuse_name_twice(x)
    return sample


class _Pairs(list[tuple[str, Any]]):
    """What an object of JSON holds, in order of arrival."""


def _refuse_name_twice(pairs: _Pairs) -> None:
    """Raise BadRow where an object holds a name twice."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadRow("", f"{quoted(name)} is there twice")
        seen.add(name)


def plain_sample(raw: bytes) -> Sample | None:
    """The sample whose JSON is `raw`; None where it is none, or may hold a name twice."""
    try:
        sample = _sample.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return sample if raw.count(b":") == _colons(sample, raw) else None


def plain_label(raw: bytes) -> Label | None:
    """The label whose JSON is `raw`, None where it is none."""
    try:
        return _y.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_sample(raw: bytes, is_hashed: bool) -> Sample:
    """The sample whose JSON is `raw`; raises BadRow for what is none."""
    try:
        try:
            return _checked_sample(raw, is_hashed)
        except msgspec.ValidationError as wrong:
            # Where it is no JSON either, this is what to say.
            with suppress(msgspec.ValidationError, RecursionError):
                _any.decode(raw)
            raise BadRow(*_told(wrong, raw)) from None
    except msgspec.DecodeError as broken:
        raise BadRow("", str(broken)) from None
    except UnicodeDecodeError:
        raise BadRow("", "the line is not UTF-8") from None


_BYTE = re.compile(r"\(byte (\d+)\)")


def _broken(body: bytes, text: str) -> Problem:
    """400 that names the byte at which the body stops being JSON."""
    found = _BYTE.search(text)
    byte = int(found.group(1)) if found else len(body)
    detail = text if found else f"{text} (byte {byte})"
    return Problem(400, "malformed-body", detail, byte=byte)
