"""Type of a column of features by its values and its name, with the reason."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dualstream.service.codecs.row_schema import is_key
from dualstream.service.features.infer.forms import (
    Form,
    form_of,
    is_boolean,
    is_number,
    is_time,
    is_whole,
)
from dualstream.service.features.infer.sampled_values import FEW_ROWS, Seen, key_of
from dualstream.solvers.rows.columns.values import as_boolean, as_number, as_time, words_of
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import quoted
from dualstream.wire.text_values import EXACT, BadValue, number_of

_LONGEST = 1000
"""Maximum characters of a category; the server's limit of 1,024 includes the name in sets."""
_MANY_WORDS = 4.0
_CODES = frozenset(
    "zip zipcode postcode postal plz code id sku type class category cat group region store branch"
    " dept department channel device segment cluster".split()
)
_IDS = frozenset("id uuid guid key index idx nr no number row rownum unnamed".split())
TIME_WORDS = frozenset(
    "time timestamp ts date datetime at epoch created updated when day week month quarter"
    " year".split()
)
_ENTRIES = frozenset(
    "event row sample record request message transaction observation impression click".split()
)
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*", re.ASCII)
_EPOCH_UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
"""From 1e9 seconds on (2001), below 2.2e9 (2039)."""
_MOST = 0.9
"""Share of the values that a type must take to be the column's."""
_OFTEN = 3
"""Rows with one value that does not fit from which it is no accident."""
_MAX_MARKS = 10
"""Maximum number of values that are missing in one column alone."""
_FEW_NUMBERS = 10
_FEW_CATEGORIES = 100


class Choice(NamedTuple):
    """The type of a column, or a role: `label`, `id`, `weight`."""

    kind: Any
    reason: str
    warning: str = ""


def parts_of_name(name: str) -> list[str]:
    """Words of a name in lower case: `userId` and `user_id` are user and id."""
    return [part.lower() for part in _NAME_PARTS.findall(name)]


def ends_with(seen: Seen, words: frozenset[str]) -> bool:
    """Is the last word of the name one of these? The word before a number is, too: `zip5`.

    The first words say of what a quantity is: `region_width`, `number_of_rooms`.
    """
    words_in_name = [part for part in parts_of_name(seen.name) if not part.isdigit()]
    return bool(words_in_name) and words_in_name[-1] in words


def is_entry_id(seen: Seen) -> bool:
    """Can this column be the `id` of the rows: unique, and named as one?"""
    parts = parts_of_name(seen.name)
    is_named = parts[-1:] in (["id"], ["uuid"], ["guid"]) and _ENTRIES.issuperset(parts[:-1])
    is_unique = len(seen.counts) == len(seen.values) and not seen.missing
    return (
        is_named
        and is_unique
        and all(
            isinstance(one, str | int) and not isinstance(one, bool) and is_key(key_of(one))
            for one in seen.examples
        )
    )


def is_row_weight(seen: Seen) -> bool:
    """Is this named as the weight of a row, and never negative?"""
    is_named = parts_of_name(seen.name) in (["sample", "weight"], ["row", "weight"])
    return is_named and seen.all_are(is_number) and min(map(_number, seen.examples), default=0) >= 0


def kind_of(seen: Seen) -> Choice:
    """The type of a column of features: the one that takes nine of ten values."""
    rows, distinct = len(seen.values), len(seen.counts)
    if not rows:
        return Choice("ignore", "always missing")
    if seen.rows_of(Form.LIST, Form.OTHER) > (1.0 - _MOST) * rows:
        return _of_lists(seen)
    if distinct == 1 and not seen.missing and seen.rows >= 10:
        return Choice("ignore", f"constant: always {_short(seen.examples[0])}")
    if _are_booleans(seen):
        words = sorted(key_of(one) for one in seen.examples if is_boolean(one))
        return _typed(seen, "boolean", is_boolean, f"two values: {', '.join(words[:4])}")
    if _are_most(seen, Form.TIME):
        return _of_times(seen, "ISO 8601")
    if _are_most(seen, Form.NUMBER, Form.BIG):
        for unit, size in _EPOCH_UNITS.items():
            if _are_epochs(seen, 1e9 * size, 2.2e9 * size):
                return _of_times(seen, f"{unit} since 1970")
        if _are_epochs(seen, 19_000_101, 21_001_231) and _takes_most(seen, is_time):
            return _of_times(seen, "the digits of a date")
    if _are_most(seen, Form.NUMBER) and not _are_codes(seen):
        return _of_numbers(seen)
    if _are_most(seen, Form.NUMBER, Form.FORMATTED) and seen.rows_of(Form.FORMATTED):
        return _to_convert(seen, Form.FORMATTED, "numbers with signs or separators")
    if _are_most(seen, Form.NUMBER, Form.HUGE) and seen.rows_of(Form.HUGE):
        return _to_convert(seen, Form.HUGE, "numbers beyond 1e100")
    if _are_most(seen, Form.TIME, Form.DATE):
        return _to_convert(seen, Form.DATE, "dates or times, but not ISO 8601")
    return _of_texts(seen)


def _are_most(seen: Seen, *forms: Form) -> bool:
    """Have nine of ten values one of these forms, texts for missing ones left out?"""
    count = seen.rows_of(*forms)
    return 0 < count >= _MOST * (len(seen.values) - seen.rows_of(Form.MAYBE_NULL))


def _takes_most(seen: Seen, takes: Callable[[Any], bool]) -> bool:
    """Does a type take nine of ten values, texts for missing ones left out?"""
    unsure = seen.rows_of(Form.MAYBE_NULL)
    misfits = sum(count for _, count in seen.failing(takes)) - unsure
    return misfits <= (1.0 - _MOST) * (len(seen.values) - unsure)


def _typed(seen: Seen, kind: str, takes: Callable[[Any], bool], reason: str, **more: Any) -> Choice:
    """A type whose misfits are missing in this column, if they are texts or frequent."""
    misfits = seen.failing(takes)
    marks = [(one, count) for one, count in misfits if _may_be_missing(one, count)][:_MAX_MARKS]
    if marks:
        more["missing"] = [one for one, _ in marks]
    column_type = {"kind": kind, **more} if more else kind
    if not misfits:
        return Choice(column_type, reason)
    count, rows = sum(count for _, count in misfits), len(seen.values)
    reason += f"; {count:,} of {plural(rows, 'value')} {'does' if count == 1 else 'do'} not fit"
    unsure = [(one, n) for one, n in marks if form_of(one) is not Form.MAYBE_NULL]
    if not unsure:
        return Choice(column_type, reason)
    shown = ", ".join(_short(one) for one, _ in unsure)
    missing = f"missing in {plural(sum(n for _, n in unsure), 'row')}: {shown}"
    return Choice(column_type, reason, f"column {quoted(seen.name)}: {reason}; {missing}")


def _may_be_missing(value: Any, count: int) -> bool:
    """Is a value that does not fit a mark of a missing one, not a measurement?"""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        number = number_of(value) if isinstance(value, str) else value
    except BadValue:
        return False
    if number is not None:
        return count >= _OFTEN and float(number).is_integer() and abs(number) <= EXACT
    return count >= _OFTEN or not any(map(str.isdigit, str(value)))


def _are_booleans(seen: Seen) -> bool:
    """Nine of ten are booleans, both of them, and no other number is there."""
    takes = [one for one in seen.examples if is_boolean(one)]
    if len({as_boolean("", one) for one in takes}) < 2:
        return False
    if not _takes_most(seen, is_boolean):
        return False
    return bool(seen.rows_of(Form.BOOLEAN)) or all(map(is_boolean, seen.of(Form.NUMBER)))


def _are_epochs(seen: Seen, first: float, last: float) -> bool:
    """Is the column named as a time, with nine of ten numbers above 0 between these?

    0 and -1 stand for a missing time in up to half of the rows.
    """
    if TIME_WORDS.isdisjoint(parts_of_name(seen.name)):
        return False
    above = inside = 0
    for one in seen.of(Form.NUMBER, Form.BIG):
        number, count = as_number("", one), seen.counts[key_of(one)]
        above += count if number > 0.0 else 0
        inside += count if first <= number <= last else 0
    return inside >= _MOST * above and 2 * inside >= seen.rows_of(Form.NUMBER, Form.BIG)


def _are_codes(seen: Seen) -> bool:
    """Are whole numbers codes, by other values that are written with digits?"""
    numbers, texts = seen.of(Form.NUMBER), seen.failing(is_number)
    if not texts or not all(map(is_whole, numbers)):
        return False
    if ends_with(seen, _CODES):
        return True
    with_zeros = sum(count for one, count in texts if _has_leading_zero(one))
    if with_zeros > 0.01 * len(seen.values):
        return True
    others = [one for one, count in texts if count >= _OFTEN and any(map(str.isdigit, key_of(one)))]
    return len(numbers) <= _FEW_NUMBERS and bool(others)


def _has_leading_zero(value: Any) -> bool:
    return isinstance(value, str) and value[:1] == "0" and value.isdigit() and len(value) > 1


def _of_lists(seen: Seen) -> Choice:
    def is_set(value: Any) -> bool:
        return not isinstance(value, list) or all(
            one is None or (isinstance(one, str | bool | int | float) and len(str(one)) < 900)
            for one in value
        )

    if seen.rows_of(Form.LIST) and not (seen.rows_of(Form.OTHER) and _has_objects(seen)):
        lists = [one for one in seen.of(Form.LIST) if is_set(one)]
        if any(isinstance(n, float) and not n.is_integer() for one in lists for n in one):
            return _ignored(seen, "lists of numbers; send each number as a column of its own")
        if seen.all_are(is_set):
            return Choice("category", "lists: a category for each entry")
    if not seen.rows_of(Form.LIST) and not _has_objects(seen):
        return Choice("ignore", f"values without a type: {_short(seen.of(Form.OTHER)[0])}")
    return Choice("ignore", "lists of lists or objects")


def _has_objects(seen: Seen) -> bool:
    return any(isinstance(one, dict) for one in seen.of(Form.OTHER))


def _of_times(seen: Seen, form: str) -> Choice:
    times = [as_time("", one) for one in seen.examples if is_time(one)]
    if all(time.hour == time.minute == time.second == 0 for time in times):
        return _typed(seen, "time", is_time, f"days, {form}", parts=["weekday", "year_day"])
    return _typed(seen, "time", is_time, f"times, {form}")


def _of_numbers(seen: Seen) -> Choice:
    distinct, rows = len(seen.counts), len(seen.values)
    numbers = [_number(one) for one in seen.of(Form.NUMBER)]
    span = f"from {min(numbers):g} to {max(numbers):g}"
    if not all(number.is_integer() for number in numbers):
        return _typed(seen, "number", is_number, span)
    is_unique = distinct == rows >= FEW_ROWS
    if is_unique and ends_with(seen, _IDS):
        return Choice("ignore", "a different whole number in each row, named as an id")
    if is_unique and TIME_WORDS.isdisjoint(parts_of_name(seen.name)) and _count_rows(seen.values):
        return Choice("ignore", "numbers of the rows")
    if ends_with(seen, _CODES) and not is_unique:
        if rows >= FEW_ROWS and distinct > rows / 2:
            return Choice("ignore", f"codes: {distinct:,} distinct ones in {rows:,} rows")
        return Choice("category", f"whole numbers named as a code, {distinct:,} distinct")
    return _typed(seen, "number", is_number, f"whole numbers {span}")


def _to_convert(seen: Seen, form: Form, what: str) -> Choice:
    """Values that no type takes yet; few distinct numbers are categories until then."""
    hint = "scale them" if form is Form.HUGE else _hint(seen.of(form))
    reason = f"{what}: {_short(seen.of(form)[0])}; {hint}"
    distinct = len(seen.counts)
    if form is not Form.DATE and distinct <= min(_FEW_CATEGORIES, len(seen.values) / 2):
        return Choice("category", reason)
    return _ignored(seen, reason)


def _hint(values: list[Any]) -> str:
    if all(_DECIMAL_COMMA.fullmatch(str(one)) for one in values):
        return "if the comma is decimal, use --format csv-decimal-comma (text/csv; decimal=%2C)"
    return "convert them"


def _ignored(seen: Seen, reason: str) -> Choice:
    """A column that is lost though it may say something: also a warning."""
    return Choice("ignore", reason, f"column {quoted(seen.name)} is ignored: {reason}")


def _of_texts(seen: Seen) -> Choice:
    distinct, rows = len(seen.counts), len(seen.values)
    texts = [one for one in seen.examples if isinstance(one, str)]
    if any(len(one) > _LONGEST for one in texts):
        if len(texts) == distinct:
            return Choice("text", f"texts of more than {_LONGEST:,} characters")
        return Choice("ignore", "long texts and other values")
    words = sum(len(words_of("", one)) for one in texts) / max(len(texts), 1)
    if len(texts) == distinct and words >= _MANY_WORDS and distinct > rows / 2:
        return Choice("text", f"{words:.0f} words on average, mostly distinct")
    if rows >= FEW_ROWS and distinct > 0.9 * rows:
        return Choice("ignore", f"{distinct:,} distinct short texts in {rows:,} rows, like an id")
    if any(map(_has_leading_zero, texts)):
        return Choice("category", f"codes with leading zeros, {distinct:,} distinct")
    noun = "text" if len(texts) == distinct else "value"
    return Choice("category", plural(distinct, f"distinct {noun}"))


def _count_rows(values: list[Any]) -> bool:
    """Do the values count up by one from 0 or 1?"""
    if not all(map(is_number, values)):
        return False
    numbers = list(map(_number, values))
    pairs = zip(numbers, numbers[1:], strict=False)
    return numbers[0] in (0, 1) and all(after - before == 1 for before, after in pairs)


def _number(value: Any) -> float:
    return float(as_number("", value))


def _short(value: Any) -> str:
    text = key_of(value)
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
