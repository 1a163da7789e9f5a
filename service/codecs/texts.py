"""Values that stand as plain text: in queries, in CSV, in lines of Vowpal Wabbit."""

import re

import msgspec

from service.codecs.door import BadRow, Label

_JSON_NUMBER = re.compile(r"[ \t\r\n]*-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?[ \t\r\n]*", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_value = msgspec.json.Decoder(float | int | bool)


def value_of(text: str) -> float | bool | str:
    """A text that is a JSON number is that number, true and false are bools, else it is itself.

    A number that no float holds comes out infinite.
    """
    try:
        value: float | int | bool = _value.decode(text)
        if type(value) is int:
            float(value)
    except (msgspec.DecodeError, UnicodeError, OverflowError):
        return float(text) if _JSON_NUMBER.fullmatch(text) else text
    return value


def feature_of(text: str) -> float | bool | str:
    """As `value_of`; numbers come as floats."""
    value = value_of(text)
    return float(value) if type(value) is int else value


def decimal_of(text: str) -> float | None:
    """The number that a text is, as LIBSVM lines hold them: 1, +1, .5, 1e-3; None for others."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def label_of(text: str, is_named: bool) -> Label:
    """The label that a text means; where a model names its labels, it is the text itself."""
    return text if is_named else value_of(text)


def weight_of(text: str) -> float:
    """The weight that a text means; raises BadRow for what is no number."""
    value = decimal_of(text.strip(" \t"))
    if value is None:
        raise BadRow("/weight", f"the weight must be a number, got {text[:50]!r}")
    return value
