"""Type of a column of features by its values and its name, with the reason."""

import re
from typing import Any, NamedTuple

from dualstream.service.codecs.row_schema import is_key
from dualstream.service.column_inference.sampled_values import (
    FEW_ROWS,
    Seen,
    is_boolean,
    is_number,
    is_time,
    is_whole,
    key_of,
)
from dualstream.solvers.columns.values import as_boolean, as_number, as_time, words_of

_LONGEST = 1000
"""Maximum characters of a category; the server's limit of 1,024 includes the name in sets."""
_MANY_WORDS = 4.0
_CODES = frozenset(
    "zip zipcode postcode postal plz code id sku type class category cat group region store branch"
    " dept department channel device segment cluster".split()
)
_IDS = frozenset("id uuid guid key index idx nr no number row rownum unnamed".split())
_TIMES = frozenset("time timestamp ts date datetime at epoch created updated when day".split())
_ENTRIES = frozenset(
    "event row sample record request message transaction observation impression click".split()
)
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_OTHER_DATES = re.compile(
    r"\s*(\d{1,2}([/.-])\d{1,2}\2\d{4}|\d{4}([/.])\d{1,2}\3\d{1,2}|\d{1,2}/\d{1,2}/\d{2}"
    r"|\d{4}-\d{1,2})(\s.*)?"
)
_EPOCHS = ((1e9, 2.2e9), (1e12, 2.2e12))
"""Seconds and milliseconds from 2001 to 2039."""


class Choice(NamedTuple):
    """The type of a column, or a role: `label`, `id`, `weight`."""

    kind: Any
    reason: str


def parts_of_name(name: str) -> list[str]:
    """Words of a name in lower case: `userId` and `user_id` are user and id."""
    return [part.lower() for part in _NAME_PARTS.findall(name)]


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
    """The type of a column of features."""
    values, distinct = seen.values, len(seen.counts)
    if not values:
        return Choice("ignore", "always missing")
    if any(isinstance(one, list | dict) for one in seen.examples):
        return _of_lists(seen)
    if distinct == 1 and not seen.missing and seen.rows >= 10:
        return Choice("ignore", f"constant: always {_short(seen.examples[0])}")
    if any(isinstance(one, str) and len(one) > _LONGEST for one in seen.examples):
        return _of_long_texts(seen)
    if seen.all_are(is_boolean) and len({as_boolean("", one) for one in seen.examples}) == 2:
        return Choice("boolean", f"two values: {', '.join(sorted(seen.counts)[:4])}")
    if seen.all_are(is_time):
        return _of_times(seen, "ISO 8601")
    if seen.all_are(is_number):
        return _of_numbers(seen)
    if seen.all_are(lambda one: isinstance(one, str)):
        return _of_texts(seen)
    if not seen.all_are(lambda one: isinstance(one, str | bool | int | float)):
        return Choice("ignore", f"values without a type: {_short(seen.examples[0])}")
    if distinct == len(values) >= FEW_ROWS:
        return Choice("ignore", "a different value in each row")
    return Choice("category", f"{distinct:,} distinct values")


def _of_lists(seen: Seen) -> Choice:
    def is_set(value: Any) -> bool:
        return not isinstance(value, list) or all(
            one is None or (isinstance(one, str | bool | int | float) and len(str(one)) < 900)
            for one in value
        )

    if any(isinstance(one, dict) for one in seen.examples) or not seen.all_are(is_set):
        return Choice("ignore", "lists of lists or objects")
    return Choice("category", "lists: a category for each entry")


def _of_long_texts(seen: Seen) -> Choice:
    if seen.all_are(lambda one: isinstance(one, str)):
        return Choice("text", f"texts of more than {_LONGEST:,} characters")
    return Choice("ignore", "long texts and other values")


def _of_times(seen: Seen, form: str) -> Choice:
    times = [as_time("", one) for one in seen.examples]
    if all(time.hour == time.minute == time.second == 0 for time in times):
        return Choice({"kind": "time", "parts": ["weekday", "year_day"]}, f"days, {form}")
    return Choice("time", f"times, {form}")


def _of_numbers(seen: Seen) -> Choice:
    distinct, rows = len(seen.counts), len(seen.values)
    parts = parts_of_name(seen.name)
    numbers = [_number(one) for one in seen.examples]
    for unit, (first, last) in zip(("seconds", "milliseconds"), _EPOCHS, strict=True):
        if not _TIMES.isdisjoint(parts) and all(first <= one <= last for one in numbers):
            return _of_times(seen, f"{unit} since 1970")
    if not seen.all_are(is_whole):
        return Choice("number", f"from {min(numbers):g} to {max(numbers):g}")
    is_unique = distinct == rows >= FEW_ROWS
    if is_unique and not _IDS.isdisjoint(parts):
        return Choice("ignore", "a different whole number in each row, named as an id")
    if is_unique and _counts_up([_number(one) for one in seen.values]):
        return Choice("ignore", "numbers of the rows")
    if not _CODES.isdisjoint(parts) and not is_unique:
        if rows >= FEW_ROWS and distinct > rows / 2:
            return Choice("ignore", f"codes: {distinct:,} distinct ones in {rows:,} rows")
        return Choice("category", f"whole numbers named as a code, {distinct:,} distinct")
    return Choice("number", f"whole numbers from {min(numbers):g} to {max(numbers):g}")


def _of_texts(seen: Seen) -> Choice:
    distinct, rows = len(seen.counts), len(seen.values)
    if seen.all_are(lambda one: _OTHER_DATES.fullmatch(one) is not None):
        return Choice(
            "ignore", f"dates, but not ISO 8601: {_short(seen.examples[0])}; convert them"
        )
    words = sum(len(words_of("", one)) for one in seen.examples) / distinct
    if words >= _MANY_WORDS and distinct > rows / 2:
        return Choice("text", f"{words:.0f} words on average, mostly distinct")
    if rows >= FEW_ROWS and distinct > 0.9 * rows:
        return Choice("ignore", f"{distinct:,} distinct short texts in {rows:,} rows, like an id")
    if any(one[:1] == "0" and one.isdigit() and len(one) > 1 for one in seen.examples):
        return Choice("category", f"codes with leading zeros, {distinct:,} distinct")
    return Choice("category", f"{distinct:,} distinct texts")


def _counts_up(numbers: list[float]) -> bool:
    return all(after - before == 1 for before, after in zip(numbers, numbers[1:], strict=False))


def _number(value: Any) -> float:
    return float(as_number("", value))


def _short(value: Any) -> str:
    text = key_of(value)
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
