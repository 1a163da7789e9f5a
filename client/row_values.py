"""Conversion of values to the JSON of a sample: built-in numbers, bools and texts.

Values that a JSON encoder would change without a word raise BadInput or TypeError: infinite
numbers, integers that lose digits as a float, bytes, and names that are no texts. Lists, objects
and times have a meaning only for models with `columns`; `sample_line` reports the first of them.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from decimal import Decimal
from math import isinf, nan
from typing import Any

import msgspec

from dualstream.client.errors import BadInput
from dualstream.wire.text_values import EXACT, TOO_LONG

_PLAIN = frozenset({float, int, str, bool, type(None)})
_TEXT = frozenset({str})
_WHOLE = frozenset({int, Decimal})
_ROWS = frozenset({list, tuple})
_MAX_DEPTH = 16
_CANNOT_BE_WRITTEN = (TypeError, UnicodeEncodeError, OverflowError)
_encoder = msgspec.json.Encoder(decimal_format="number")


def sample_line(sample: Mapping[str, Any], row: int = 0, nested: list[str] | None = None) -> bytes:
    """A sample as JSON. Raises BadInput, which names the row, for an invalid sample.

    `nested` receives a description of the first list, object or time, which need a model with
    `columns`; without it these are invalid.
    """
    try:
        fields = sample if _is_plain(sample) else _plain_sample(sample, row, nested)
    except TypeError as wrong:
        raise BadInput(f"row {row}: {wrong}") from None
    try:
        line = _encoder.encode(fields)
        if b"null" in line:  # as which an infinite number is written, too
            _check_finite(fields, row)
        if _has_long_number(fields):
            _check_digits(fields, row)
        return line
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(f"row {row} cannot be sent: {wrong}: {sample!r:.200}") from None


def _check_finite(sample: Mapping[str, Any], row: int) -> None:
    """Raise BadInput for an infinite number. NaN is a missing value."""
    for what, value in [*_numbers_in(sample), ("the label", sample.get("y"))]:
        if isinstance(value, float) and isinf(value):
            raise BadInput(f"row {row}: {what:.80} is not a finite number: {value!r}")


def _has_long_number(sample: Mapping[str, Any]) -> bool:
    """Is there an integer, or a Decimal, beyond 2^53? A fast test, as most samples have none.

    A row without a label next to it may have its id or a category in it: the server decides.
    """
    x, weight = sample["x"], sample.get("weight")
    values: Collection[Any] = x or ()
    if type(x) is dict:
        values = x.values() if "y" in sample else ()
    if type(weight) in _WHOLE:
        values = [*values, weight]
    elif _WHOLE.isdisjoint(map(type, values)):
        return False
    return any(type(value) in _WHOLE and not -EXACT <= value <= EXACT for value in values)


def _check_digits(sample: Mapping[str, Any], row: int) -> None:
    """Raise BadInput for an integer that loses digits. Ids, and labels of classes, keep theirs."""
    for what, value in _numbers_in(sample):
        is_whole = isinstance(value, int) or (
            isinstance(value, Decimal) and value.as_tuple().exponent == 0
        )
        if is_whole and not -EXACT <= value <= EXACT:
            raise BadInput(f"row {row}: {what:.80}: the integer {value!r:.40} is {TOO_LONG}")


def _numbers_in(sample: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The features and the weight, each with its description."""
    x = sample.get("x")
    named = _flattened(x) if isinstance(x, Mapping) else enumerate(x or (), 1)
    values = [(f"feature {name!r}", value) for name, value in named]
    return [*values, ("the weight", sample.get("weight"))]


def _flattened(row: Mapping[str, Any], owner: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a row, with those of nested objects and the elements of lists."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{owner}{name}.")
        elif isinstance(value, list):
            yield from ((f"{owner}{name}", one) for one in value)
        else:
            yield f"{owner}{name}", value


def labels_body(labels: Mapping[str | int, Any]) -> bytes:
    """Labels by the ids of their rows, as JSON. Raises BadInput."""
    try:
        fields = [
            {"id": _id(sample), "y": _plain_as("the label of {!r}", sample, y)}
            for sample, y in labels.items()
        ]
        for one in fields:
            if isinstance(one["y"], float) and isinf(one["y"]):
                raise TypeError(f"the label of {one['id']!r} is not a finite number: {one['y']!r}")
        return _encoder.encode({"labels": fields})
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(str(wrong)) from None


def plain(value: Any) -> Any:
    """A number, bool or text as a built-in type; None if it is missing (NA).

    NumPy scalars are converted by their `tolist`. Raises TypeError for any other value: a JSON
    encoder would write dates, bytes or UUIDs as texts, which the server takes for categories.
    """
    if type(value) in _PLAIN:
        return value
    # A subclass, as IntEnum, has the value of its base, even if it overrides the conversion.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, Decimal):
        if value.is_infinite():
            return float(value)
        return Decimal(value) if value.is_finite() else nan
    if type(value).__name__ == "NAType":
        return None
    if hasattr(value, "tolist"):
        converted = value.tolist()
        if type(converted) in _PLAIN and not (type(converted) is int and holds_times(value)):
            return converted
    raise TypeError(f"{type(value).__name__} is not a number, bool or text: {value!r:.60}")


def listed(values: Any) -> Any:
    """An array or Series as a list of built-in values; NumPy times are left as they are."""
    if not hasattr(values, "tolist"):
        return values
    return list(values) if holds_times(values) else values.tolist()


def holds_times(values: Any) -> bool:
    """Are these NumPy times? `tolist` turns those of fine resolution into integers."""
    return getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M")


def _is_plain(sample: Mapping[str, Any]) -> bool:
    """Has this sample built-in types only? A fast path, because most samples have."""
    if type(sample) is not dict:
        return False
    x, get = sample["x"], sample.get
    if type(x) is dict:
        has_plain_values = _TEXT.issuperset(map(type, x)) and _PLAIN.issuperset(
            map(type, x.values())
        )
    else:
        has_plain_values = type(x) in _ROWS and _PLAIN.issuperset(map(type, x))
    return (
        has_plain_values
        and type(get("y")) in _PLAIN
        and type(get("weight")) in _PLAIN
        and type(get("id")) in _PLAIN
    )


def _plain_sample(sample: Mapping[str, Any], row: int, nested: list[str] | None) -> dict[str, Any]:
    row_nested: list[str] | None = None if nested is None else []
    fields = dict(sample) | {"x": _plain_row(sample["x"], row_nested)}
    if row_nested and nested is not None and not nested:
        nested.append(f"row {row}: {row_nested[0]}")
    for name in ("y", "weight"):
        if name in fields:
            fields[name] = _plain_as("the {}", "label" if name == "y" else name, fields[name])
    if "id" in fields:
        fields["id"] = _id(fields["id"])
    return fields


def _plain_row(x: Any, nested: list[str] | None) -> Any:
    if isinstance(x, Mapping):
        if nested is None:
            pairs = [(name_of(n), _plain_as("feature {!r}", n, value)) for n, value in x.items()]
        else:
            pairs = [(name_of(n), _column(str(n), value, nested, 0)) for n, value in x.items()]
        return _row_of(pairs)
    x = listed(x)
    if isinstance(x, list | tuple):
        return [_plain_as("feature {!r}", index, value) for index, value in enumerate(x, 1)]
    if x is None:
        return None
    raise TypeError(f"a row must be a list, a dict or an array, got {type(x).__name__}: {x!r:.60}")


def _row_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise TypeError(f"two features have one name: {[name for name, _ in pairs]!r:.60}")
    return row


def _column(name: str, value: Any, nested: list[str], depth: int) -> Any:
    """The value of a column: as `plain`, and lists, objects, times (as ISO 8601).

    Raises TypeError. `nested` receives a description of the first of those others.
    """
    if type(value) in _PLAIN:
        return value
    if type(value).__name__ == "NaTType":
        return None
    if depth > _MAX_DEPTH:
        raise TypeError(f"feature {name!r:.60} is nested too deeply")
    if isinstance(value, date) or (holds_times(value) and _is_time(value)):  # or a datetime
        _note(nested, name, f"a {type(value).__name__}")
        text = value.isoformat() if isinstance(value, date) else str(value)
        return None if text == "NaT" else text
    if isinstance(value, Mapping):
        _note(nested, name, "an object")
        pairs = [
            (name_of(one), _column(f"{name}.{one}", inner, nested, depth + 1))
            for one, inner in value.items()
        ]
        return _row_of(pairs)
    if isinstance(value, list | tuple) or (hasattr(value, "dtype") and value.ndim):
        _note(nested, name, "a list")
        return [_column(name, one, nested, depth + 1) for one in listed(value)]
    return _plain_as("feature {!r}", name, value)


def _note(nested: list[str], name: str, kind: str) -> None:
    if not nested:
        nested.append(f"feature {name!r:.60} is {kind}")


def _is_time(value: Any) -> bool:
    """Is this one time of NumPy, not a duration and not an array?"""
    return bool(value.dtype.kind == "M" and value.ndim == 0)


def name_of(name: Any) -> str:
    """The name of a feature; a whole number is the index of a column. Raises TypeError."""
    if isinstance(name, str):
        return str.__str__(name)
    converted = name.tolist() if hasattr(name, "tolist") else name
    if isinstance(converted, str) or type(converted) is int:
        return str(converted)
    raise TypeError(f"a feature's name must be a text, got {type(name).__name__}: {name!r:.60}")


def _plain_as(what: str, name: Any, value: Any) -> Any:
    """As `plain`; the error begins with `what`, formatted with `name`."""
    try:
        return plain(value)
    except TypeError as wrong:
        raise TypeError(f"{what.format(name):.80}: {wrong}") from None


def _id(value: Any) -> Any:
    """An id: JSON writes UUIDs and dates as texts, a Decimal is converted to its text.

    Raises TypeError for bytes, which JSON writes as base64: another id than that of the text.
    """
    if isinstance(value, Decimal):
        return str(value)
    if type(value).__name__ == "NAType":
        return None
    converted = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(converted, bytes | bytearray):
        raise TypeError(f"the id {value!r:.60} is bytes; send a text: id.decode()")
    return converted
