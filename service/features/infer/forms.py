"""Form of one value: number, boolean, time, null of some system, text."""

import re
from enum import Enum, auto
from typing import Any

from dualstream.solvers.rows.columns.values import BadColumn, as_boolean, as_number, as_time
from dualstream.solvers.rows.text.tokens import LARGEST
from dualstream.wire.text_values import EXACT, BadValue, number_of


class Form(Enum):
    """What a value is by itself, whatever its column holds."""

    NULL = auto()
    """A text that stands for a missing value in some system, in every column."""
    MAYBE_NULL = auto()
    """A text that is missing among numbers, booleans or times, and a category elsewhere."""
    NUMBER = auto()
    BIG = auto()
    """An integer that loses digits as a number: an id."""
    HUGE = auto()
    """A number beyond 1e100, which no type takes."""
    BOOLEAN = auto()
    TIME = auto()
    FORMATTED = auto()
    """A text that a person reads as a number."""
    DATE = auto()
    """A date or time that is not ISO 8601."""
    TEXT = auto()
    LIST = auto()
    OTHER = auto()


_NULLS = frozenset(
    r"na n/a n.a. #n/a <na> nan nat null nil (null) [null] <null> \n undefined ?"
    " #div/0! #value! #ref! #name? #num! #null! 1.#qnan -1.#ind 1.#ind 1.#inf"
    " 0000-00-00".split()
) | {"", "not available", "0000-00-00 00:00:00"}
"""In lower case: of R, pandas, Java, JavaScript, PostgreSQL, MySQL, Hive, Excel and C."""
_MAYBE_NULLS = frozenset("none - -- . .. ... \u2013 \u2014 \u2026 missing unknown".split())
_EPOCH = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_DATE = re.compile(
    r"(\d{1,2}([/.-])\d{1,2}\2(\d{4}|\d{2})|\d{4}([/.])\d{1,2}\4\d{1,2}|\d{4}-\d{1,2})([ T,].*)?"
    rf"|(?=.*\d)[\[\w, /-]*?\b({'|'.join(_MONTHS)})[a-z]*\b.*\b\d{{2,4}}\b.*",
    re.IGNORECASE,
)
_DIGITS = r"(\d+([.,]\d*)?|[.,]\d+|\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?)"
_SIGN, _CURRENCY = r"[-+\u2212\u2013]?", r"([$\u20ac\u00a3\u00a5\u20b9]|[A-Z]{3})?"
_FORMATTED = re.compile(
    rf"\(?{_SIGN} ?{_CURRENCY} ?{_SIGN}{_DIGITS}([eE][+-]?\d+)? ?%? ?{_CURRENCY}\)?"
)


def form_of(value: Any) -> Form:
    """The form of a value that is neither None nor NaN."""
    if isinstance(value, str):
        return _form_of_text(value)
    if isinstance(value, bool):
        return Form.BOOLEAN
    if isinstance(value, int | float):
        return _form_of_number(value)
    return Form.LIST if isinstance(value, list) else Form.OTHER


def _form_of_text(text: str) -> Form:
    short = text.strip()
    word = short.lower()
    if word in _NULLS:
        return Form.NULL
    if word in _MAYBE_NULLS:
        return Form.MAYBE_NULL
    try:
        number = number_of(text)
        if number is not None:
            return _form_of_number(number)
    except BadValue:  # NaN or infinity
        return Form.NULL
    if is_boolean(text):
        return Form.BOOLEAN
    if is_time(text) and not _EPOCH.fullmatch(short):
        return Form.TIME
    if len(short) > 60 or not any(map(str.isdigit, short)):
        return Form.TEXT
    if _FORMATTED.fullmatch(short) and not (short.isdigit() and short.isascii()):
        return Form.FORMATTED
    return Form.DATE if _DATE.fullmatch(short) else Form.TEXT


def _form_of_number(number: float) -> Form:
    if is_number(number):
        return Form.NUMBER
    return Form.BIG if isinstance(number, int) else Form.HUGE


def is_number(value: Any) -> bool:
    """Is this a number, or a text that is one, which the server takes?"""
    try:
        number = as_number("", value)
    except BadColumn:
        return False
    return -LARGEST <= number <= LARGEST and (isinstance(number, float) or abs(number) <= EXACT)


def is_whole(value: Any) -> bool:
    return is_number(value) and float(as_number("", value)).is_integer()


def is_boolean(value: Any) -> bool:
    try:
        as_boolean("", value)
    except BadColumn:
        return False
    return True


def is_time(value: Any) -> bool:
    """Does the type `time` take the value?"""
    try:
        as_time("", value)
    except BadColumn:
        return False
    return True
