"""What a column holds in a sample: its distinct values, and the marks of missing ones."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from dualstream.solvers.columns.values import BadColumn, as_boolean, as_category, as_number, as_time
from dualstream.solvers.core.batch import LARGEST
from dualstream.wire.text_values import EXACT, BadValue, number_of

FEW_ROWS = 20
"""With fewer rows, distinct values say nothing about a column."""
_MARKS = frozenset(("", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "nil"))
_PERHAPS = frozenset(("none", "-", "--", ".", "missing", "unknown"))
"""Marks in a column of numbers, booleans or times; elsewhere they may be categories."""
_EPOCH = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)


@dataclass(slots=True)
class Seen:
    """The values of one column that are not missing."""

    name: str
    rows: int
    values: list[Any] = field(default_factory=list)
    """In the order of the rows."""
    counts: dict[str, int] = field(default_factory=dict)
    """Category -> how often it occurs."""
    examples: list[Any] = field(default_factory=list)
    """A value of each category."""

    @property
    def missing(self) -> int:
        return self.rows - len(self.values)

    def add(self, value: Any) -> None:
        self.values.append(value)
        key = key_of(value)
        if key not in self.counts:
            self.counts[key] = 0
            self.examples.append(value)
        self.counts[key] += 1

    def all_are(self, test: Callable[[Any], bool]) -> bool:
        return all(map(test, self.examples))


def key_of(value: Any) -> str:
    """The category of a value, or its representation if it has none."""
    try:
        return as_category("", value)
    except BadColumn:
        return repr(value)


def seen_in(rows: Sequence[Mapping[str, Any]], missing: Iterable[str]) -> dict[str, Seen]:
    """All columns of the rows, in the order in which they occur."""
    marks = frozenset(missing)
    found: dict[str, Seen] = {}
    for row in rows:
        for name, value in row.items():
            seen = found.get(name)
            if seen is None:
                seen = found[name] = Seen(name, len(rows))
            if not is_missing(value, marks):
                seen.add(value)
    return found


def is_missing(value: Any, marks: frozenset[str]) -> bool:
    if isinstance(value, str):
        return value in marks
    return value is None or (isinstance(value, float) and isnan(value))


def missing_marks(columns: Iterable[Seen]) -> list[str]:
    """Texts that stand for a missing value, as written in the sample."""
    marks: dict[str, None] = {}
    for seen in columns:
        texts = [one for one in seen.examples if isinstance(one, str)]
        sure = [one for one in texts if _is_mark(one)]
        perhaps = [one for one in texts if one.strip().lower() in _PERHAPS]
        others = [one for one in seen.examples if one not in sure and one not in perhaps]
        if others and all(isinstance(one, str) and _is_short_code(one) for one in others):
            sure = [one for one in sure if one != "NA"]  # Namibia, North America
        marks.update(dict.fromkeys(sure))
        if others and any(all(map(test, others)) for test in (is_number, is_boolean, is_time)):
            marks.update(dict.fromkeys(perhaps))
        elif rare := _rare_texts(seen, others):
            marks.update(dict.fromkeys((*rare, *perhaps)))
    return list(marks)


def _is_mark(text: str) -> bool:
    if text.strip().lower() in _MARKS:
        return True
    try:
        number_of(text)
    except BadValue:  # infinity
        return True
    return False


def _is_short_code(text: str) -> bool:
    return len(text) == 2 and text.isalpha() and text.isupper()


def _rare_texts(seen: Seen, others: Sequence[Any]) -> list[str]:
    """At most three texts among at least 90 % numbers, such as `error`."""
    texts = [one for one in others if not is_number(one)]
    if not 1 <= len(texts) <= 3 or len(seen.values) < FEW_ROWS:
        return []
    if not all(isinstance(one, str) and one[:1].isalpha() for one in texts):
        return []
    count = sum(seen.counts[key_of(one)] for one in texts)
    return texts if count <= 0.1 * len(seen.values) else []


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
    """Is this a text of ISO 8601? A number is not."""
    if not isinstance(value, str) or _EPOCH.fullmatch(value.strip()):
        return False
    try:
        as_time("", value)
    except BadColumn:
        return False
    return True
