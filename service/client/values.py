"""The values of samples as JSON has them: a number, a bool, a text, or null for what is missing.

An encoder of JSON writes dates, bytes, UUIDs and more as texts, which a server takes for
categories: so types are looked at before.
"""

from collections.abc import Mapping
from decimal import Decimal
from math import nan
from typing import Any

import msgspec

from service.client.errors import BadInput

_PLAIN = frozenset({float, int, str, bool, type(None)})
_ROWS = frozenset({dict, list, tuple})
_CANNOT_BE_WRITTEN = (TypeError, UnicodeEncodeError, OverflowError)
_encoder = msgspec.json.Encoder(decimal_format="number")


def sample_line(sample: Mapping[str, Any], row: int = 0) -> bytes:
    """A sample in JSON. Raises BadInput, which names the row, for what is none."""
    try:
        told = sample if _is_plain(sample) else _plain_sample(sample)
    except TypeError as wrong:
        raise BadInput(f"row {row}: {wrong}") from None
    try:
        return _encoder.encode(told)
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(f"row {row} cannot be sent: {wrong}: {sample!r:.200}") from None


def labels_body(labels: Mapping[str | int, Any]) -> bytes:
    """Labels by the ids of their rows, in JSON. Raises BadInput."""
    try:
        told = [
            {"id": _id(sample), "y": _plain_as("the label of {!r}", sample, y)}
            for sample, y in labels.items()
        ]
        return _encoder.encode({"labels": told})
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(str(wrong)) from None


def plain(value: Any) -> Any:
    """A number, bool or text as one of the types that JSON has; None where it is missing.

    Raises TypeError for any other value.
    """
    if type(value) in _PLAIN:
        return value
    # A subclass, as IntEnum is, is what its base takes it for, whatever it says of itself.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, Decimal):
        return Decimal(value) if value.is_finite() else nan
    if type(value).__name__ == "NAType":
        return None
    if hasattr(value, "tolist"):
        found = value.tolist()
        if type(found) in _PLAIN and not (type(found) is int and _holds_times(value)):
            return found
    raise TypeError(f"{type(value).__name__} is no number, bool or text: {value!r:.60}")


def listed(values: Any) -> Any:
    """Values of Python's own types, where a library holds them; times remain its own."""
    if not hasattr(values, "tolist"):
        return values
    return list(values) if _holds_times(values) else values.tolist()


def _holds_times(values: Any) -> bool:
    """Whether these are NumPy's, of which `tolist` makes whole numbers where they are fine."""
    return getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M")


def _is_plain(sample: Mapping[str, Any]) -> bool:
    """Whether all that it holds is written as what it is; most samples are so, and this is soon."""
    if type(sample) is not dict:
        return False
    x, get = sample["x"], sample.get
    return (
        type(x) in _ROWS
        and _PLAIN.issuperset(map(type, x.values() if type(x) is dict else x))
        and type(get("y")) in _PLAIN
        and type(get("weight")) in _PLAIN
        and type(get("id")) in _PLAIN
    )


def _plain_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    told = dict(sample) | {"x": _plain_row(sample["x"])}
    for name in ("y", "weight"):
        if name in told:
            told[name] = _plain_as("the {}", "label" if name == "y" else name, told[name])
    if "id" in told:
        told["id"] = _id(told["id"])
    return told


def _plain_row(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _plain_as("feature {!r}", name, value) for name, value in x.items()}
    x = listed(x)
    if isinstance(x, list | tuple):
        return [_plain_as("feature {!r}", index, value) for index, value in enumerate(x, 1)]
    if x is None:
        return None
    raise TypeError(f"a row is a list, an object or an array, got {type(x).__name__}: {x!r:.60}")


def _plain_as(what: str, name: Any, value: Any) -> Any:
    """As `plain`; the error begins with `what`, in which `name` is written."""
    try:
        return plain(value)
    except TypeError as wrong:
        raise TypeError(f"{what.format(name):.80}: {wrong}") from None


def _id(value: Any) -> Any:
    """An id is a text, and whatever has one by itself has it as its id."""
    if isinstance(value, Decimal):
        return str(value)
    if type(value).__name__ == "NAType":
        return None
    return value.tolist() if hasattr(value, "tolist") else value
