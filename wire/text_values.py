"""Values in texts: how a text becomes a number, a boolean or a category, in every text format.

CSV, query parameters, Vowpal Wabbit, LIBSVM, Redis fields and the command's `-x` follow this table:

1  -2.5  1e5          a number, as in JSON
+5  .5  5.  +1.0      the same numbers as 5, 0.5, 5.0 and 1.0
true  True  TRUE      a boolean, also false
nan  inf  -Infinity   refused, in any case
05  02134  1_000      a text: a leading zero belongs to a code, not to a number
(empty)               an absent value; the readers decide before they ask this table

Blanks around a number or a boolean do not count; they are part of a text.
"""

import re
from unicodedata import normalize

EXACT = 2**53
"""Integers beyond this lose digits as a float."""
TOO_LONG = "beyond 2^53 and loses digits; send an id as a text (id7), a measurement as 1e17"
"""What is wrong with such an integer."""
_NUMBER = re.compile(r"[+-]?(?:(0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_BLANKS = " \t\r\n"
_MAX_DIGITS = 300
"""Longer integers are parsed as floats: Python parses no integer of more than 4,300 digits."""


class BadValue(ValueError):
    """A text that is neither a finite number nor a category, such as NaN."""


def number_of(text: str) -> float | int | None:
    """Parse a number; None for a text. Raises BadValue for NaN and infinity.

    A number without a point and an exponent is an int. A number that is too large for a float
    becomes infinite.
    """
    text = text.strip(_BLANKS)
    match = _NUMBER.fullmatch(text)
    if match is None:
        if _NOT_FINITE.fullmatch(text):
            raise BadValue(f"{text} is not a finite number; leave a missing value out")
        return None
    whole, point, exponent = match.groups()
    if whole and not point and not exponent and len(whole) <= _MAX_DIGITS:
        return int(text)
    return float(text)


def value_of(text: str) -> float | int | bool | str:
    """Parse a number or a boolean; any other text is a category. Raises BadValue."""
    number = number_of(text)
    if number is None:
        return _BOOLEANS.get(text.strip(_BLANKS), text)
    return number


def nfc(text: str) -> str:
    """Composed form (NFC) of a text: the decomposed form looks the same and has other bytes."""
    return text if text.isascii() else normalize("NFC", text)
