"""One value of a column, as features: numbers, booleans, categories, texts, times.

A value is what JSON has: None, a bool, a number, a text; the readers of tables make such. A text
that is a number or a boolean by the table of wire/text_values.py counts as that where the type
asks for one, so all formats agree. Every function raises BadColumn with a reason that shows the
value.
"""

import math
import re
from collections import Counter
from collections.abc import Sized
from datetime import UTC, datetime
from functools import cache
from typing import Any
from unicodedata import category

from dualstream.solvers.rows.text.tokens import MAX_ROW_NAMES
from dualstream.wire.problem_json import quoted
from dualstream.wire.text_values import BadValue, nfc, number_of, value_of

_TRUE, _FALSE = frozenset(("true", "yes", "1")), frozenset(("false", "no", "0"))
_BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LONGEST_WORD = 100
"""Maximum characters of a word; the rest of a longer one does not count."""
_RUNS_AT_ONCE = 50_000
"""Runs of words between two checks of their number."""
_SECONDS_FROM = 1e8
"""A smaller number is no time, unless its digits are a date: 20240506."""
_UNITS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
"""Seconds since 1970 below 1e11, then milliseconds, microseconds, nanoseconds: 1973 to 5138 each.
"""
_MAY_BE_NUMBER = frozenset("+-.0123456789 \t\r\ntTfFnNiI")
"""A text that begins otherwise is no number and no boolean by the table of wire/text_values.py."""
_A_TIME = (
    "a time: ISO 8601 of the years 1 to 9999 in UTC, or seconds (from 1e8), milliseconds (from"
    " 1e11), microseconds (1e14) or nanoseconds (1e17) since 1970"
)
_DAY_S, _YEAR_DAYS, _MONTH_DAYS = 86_400.0, 366.0, 31.0
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class BadColumn(Exception):
    """A value does not fit its column's type; `column` is the name, or empty for the row."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason


def as_number(name: str, value: Any) -> float | int:
    """A number, or a text that is one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            number = number_of(value)
        except BadValue as bad:
            raise BadColumn(name, f"column {quoted(name)}: {bad}") from None
        if number is not None:
            return number
    raise _unfit(name, value, "a number")


def as_boolean(name: str, value: Any) -> bool:
    """A boolean, 1 or 0, or a text that is one: true, false, yes, no, in any case, 1, 0."""
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    if isinstance(value, str):
        text = whole(value.strip()).lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    raise _unfit(name, value, "a boolean (true, false, yes, no, 1, 0)")


def as_category(name: str, value: Any) -> str:
    """The text of a category: 02134 and 2134 stay two; 2134.0 is 2134, and True is true."""
    if isinstance(value, str):
        if not value.isascii():
            return nfc(value)
        return whole(value) if value[:1] in _MAY_BE_NUMBER else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _digits(name, value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    raise _unfit(name, value, "a category: a text, a number or a boolean")


def whole(text: str) -> str:
    """A text as a category: a whole number by its digits (2134.0, +5 and 1e5 are 2134, 5 and
    100000), a boolean in lower case, any other text as it is."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text.isdigit() or not any(sign in text for sign in ".eE+"):
        return text
    try:
        number = number_of(text)
    except BadValue:
        return text
    is_whole = number is not None and abs(number) < 1e15 and number == int(number)
    return str(int(number)) if number is not None and is_whole else text


def inferred(name: str, value: Any) -> float | int | bool | str:
    """A number or a boolean if it reads as one; any other text is a category."""
    if isinstance(value, str):
        if value[:1] not in _MAY_BE_NUMBER:
            return value if value.isascii() else nfc(value)
        try:
            result = value_of(value)
        except BadValue as bad:
            raise BadColumn(name, f"column {quoted(name)}: {bad}") from None
        return as_category(name, result) if isinstance(result, str) else result
    if isinstance(value, bool | int | float):
        return value
    raise _unfit(name, value, "a number, a text, a boolean or a list of these")


def counted_words(name: str, value: Any, ngrams: int) -> dict[str, int]:
    """How often words and runs of up to `ngrams` words occur in a text."""
    words = words_of(name, value)
    if len(words) * ngrams <= MAX_ROW_NAMES:
        runs = list(words)
        for size in range(2, ngrams + 1):
            runs += [" ".join(words[at : at + size]) for at in range(len(words) - size + 1)]
        return Counter(runs)
    counts = Counter(words)
    for size in range(2, ngrams + 1):
        starts = range(len(words) - size + 1)
        for first in range(0, len(starts), _RUNS_AT_ONCE):
            check_features(name, counts)
            piece = starts[first : first + _RUNS_AT_ONCE]
            counts.update([" ".join(words[at : at + size]) for at in piece])
    check_features(name, counts)
    return counts


def check_features(name: str, features: Sized) -> None:
    """Raise BadColumn if a column gives more features than a row may have."""
    if len(features) > MAX_ROW_NAMES:
        reason = f"with column {quoted(name)} the row has more than {MAX_ROW_NAMES:,} features"
        raise BadColumn(name, reason)


def words_of(name: str, value: Any) -> list[str]:
    """Words of a text, in lower case and composed (NFC).

    A word is a longest run of Unicode letters, digits and underscores, and marks behind them.
    """
    if isinstance(value, int | float):
        value = as_category(name, value)
    if not isinstance(value, str):
        raise _unfit(name, value, "a text")
    return [word[:LONGEST_WORD] for word in _word().findall(nfc(value).lower())]


@cache
def _word() -> re.Pattern[str]:
    """A word: Python's \\w lacks marks, with which many scripts write vowels."""
    marks = "".join(chr(code) for code in range(0x10000) if category(chr(code)) in ("Mn", "Mc"))
    return re.compile(f"\\w[\\w{marks}]*")


def as_time(name: str, value: Any) -> datetime:
    """A time in UTC: ISO 8601 (without a zone: UTC), or a number of seconds, milliseconds,
    microseconds or nanoseconds since 1970."""
    try:
        number = value
        if isinstance(value, str):
            number = number_of(value)
            if number is None:
                return _in_utc(datetime.fromisoformat(value.strip().removesuffix(" UTC")))
        if isinstance(number, int | float) and not isinstance(number, bool):
            size = abs(number)
            if size < _SECONDS_FROM:
                return _in_utc(datetime.strptime(f"{number:.0f}", "%Y%m%d"))
            unit = next((unit for below, unit in _UNITS if size < below), None)
            if unit is not None:
                return datetime.fromtimestamp(number / unit, UTC)
    except (ValueError, OverflowError, OSError):  # BadValue is a ValueError
        pass
    raise _unfit(name, value, _A_TIME)


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def seconds_of(time: datetime) -> float:
    """Seconds since 1970, a microsecond for 1970 itself: rows store no zeros."""
    since = time - _BEGIN
    return since.days * _DAY_S + since.seconds + since.microseconds * 1e-6 or 1e-6


def cycle_of(time: datetime, part: str) -> tuple[float, float]:
    """Sine and cosine of where in its day, month or year (366 days) a time is."""
    seconds = time.hour * 3600.0 + time.minute * 60.0 + time.second + time.microsecond * 1e-6
    day = seconds / _DAY_S
    if part == "hour":
        turn = day
    elif part == "month_day":
        turn = (time.day - 1 + day) / _MONTH_DAYS
    else:
        turn = (time.timetuple().tm_yday - 1 + day) / _YEAR_DAYS
    angle = 2.0 * math.pi * turn
    return math.sin(angle), math.cos(angle)


def category_of_part(time: datetime, part: str) -> str:
    """A part of a time as a category, for crosses: `9`, `mon`."""
    if part == "hour":
        return str(time.hour)
    if part == "weekday":
        return WEEKDAYS[time.weekday()]
    return str(time.day if part == "month_day" else time.timetuple().tm_yday)


def _short(value: Any) -> Any:
    """A value that `repr` takes: not an integer of more than 4,300 digits."""
    return "a long integer" if isinstance(value, int) and abs(value) > 10**100 else value


def _digits(name: str, value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python converts no integer of more than 4,300 digits
        raise BadColumn(name, f"column {quoted(name)} has an integer that is too long") from None


def _unfit(name: str, value: Any, wanted: str) -> BadColumn:
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    else:
        shown = "null" if value is None else quoted(_short(value))
    return BadColumn(name, f"column {quoted(name)} must be {wanted}, got {shown}")
