"""ColumnReader: a flat row becomes named features, a label, a weight and an id.

A column gives these features (the names are those that a row in explicit form would send):

    number      `price`, the number            boolean     `member`, 1 or nothing
    category    `zip=02134`, 1; of a list of texts one for each
    text        `subject:free` for each word or run of words, how often it occurs, or 1
    time        `at.hour.sin` and `at.hour.cos`; also month_day, year_day; `at.weekday=mon`, 1
    missing     nothing; with `missing_indicator` `price=missing`, 1
    cross       `site*hour=news,9`, 1, if the row has all its columns

Nested objects are columns with dots in their names: {"user": {"age": 39}} is `user.age`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from dualstream.solvers.columns.spec import crossed_columns, is_ignored, parts_of
from dualstream.solvers.columns.values import (
    BadColumn,
    as_boolean,
    as_category,
    as_number,
    as_time,
    category_of_part,
    cycle_of,
    inferred,
    words_of,
)
from dualstream.wire.problems import quoted
from dualstream.wire.values import nfc

Features = dict[str, float | bool | str]
MAX_DEPTH = 16
"""Maximum depth of nested objects."""
_MAX_HANDLERS = 65_536
_LONGEST = 1024
_MISSING = "missing"


@dataclass(slots=True)
class ColumnRow:
    """A row that has been read; what the row does not have is None."""

    features: Features
    label: Any
    weight: float | int | None
    id: str | int | None


_Handler = Callable[["_Row", str, Any], None]


class ColumnReader:
    """Reads flat rows by the resolved fields `columns` and `crosses` of a specification."""

    def __init__(self, columns: Mapping[str, Any], crosses: list[Any]) -> None:
        self.label: str = columns["label"]
        self.id: str | None = columns["id"]
        self.weight: str | None = columns["weight"]
        self._roles = {name for name in (self.label, self.id, self.weight) if name is not None}
        self._ignored: list[str] = columns["ignore"]
        self._types: Mapping[str, Any] = columns["types"]
        self._unknown: str = columns["unknown"]
        self._indicator: bool = columns["missing_indicator"]
        self._missing = frozenset(one for one in columns["missing"] if one is not None)
        self._null_is_missing = None in columns["missing"]
        self._numbers = _numbers_in(self._missing)
        self._has_numbers = bool(self._numbers)
        self._crosses = crossed_columns(columns, crosses)
        self._crossed = {name for names in self._crosses for name in names}
        self._handlers: dict[str, _Handler | None] = {}
        """What reads a column; None for an ignored one."""

    @property
    def declared(self) -> list[str]:
        """Names of the columns that have a type and are not ignored."""
        return [name for name, kind in self._types.items() if kind != "ignore"]

    def is_explicit(self, row: Mapping[str, Any]) -> bool:
        """Whether a row names its features `x`, as rows of models without `columns` do."""
        is_own = row.keys() <= {"x", "y", "weight", "id"} and "x" not in self._types
        return is_own and isinstance(row.get("x"), dict)

    def read(self, row: Mapping[str, Any]) -> ColumnRow:
        """A flat row, or one in explicit form, whose `x` is one. Raises BadColumn."""
        if self.is_explicit(row):
            read = self._read(row["x"])
            label = row.get("y", read.label)
            id_, weight = row.get("id", read.id), row.get("weight", read.weight)
        else:
            read = self._read(row)
            label, id_, weight = read.label, read.id, read.weight
        if weight is not None and not self._is_missing(weight):
            weight = as_number(self.weight or "weight", weight)
        else:
            weight = None
        return ColumnRow(read.features, label, weight, self._id(id_))

    def _id(self, given: Any) -> str | int | None:
        if given is None or self._is_missing(given):
            return None
        if isinstance(given, str) or (isinstance(given, int) and not isinstance(given, bool)):
            return given
        if isinstance(given, float) and given.is_integer() and abs(given) < 2**53:
            return int(given)
        raise BadColumn(self.id or "id", f"the id must be a text or a whole number, got {given!r}")

    def _read(self, row: Mapping[str, Any]) -> "_Row":
        read = _Row(self)
        seen, handlers, roles, missing = read.seen, self._handlers, self._roles, self._missing
        for name, value in self._flattened(row):
            if name in seen:
                raise BadColumn(name, f"the column {quoted(name)} is there twice")
            seen.add(name)
            if name in roles:
                self._take_role(read, name, value)
                continue
            handler = handlers[name] if name in handlers else self._handler_of(name)
            if handler is None:
                continue
            is_missing = value in missing if type(value) is str else self._is_missing(value)
            if is_missing:
                read.add_missing(name)
            else:
                handler(read, name, value)
        if self._indicator:
            for name in self.declared:
                if name not in read.seen:
                    read.add_missing(name)
        for names in self._crosses:
            read.add_cross(names)
        return read

    def _flattened(
        self, row: Mapping[str, Any], owner: str = "", depth: int = 0
    ) -> Iterator[tuple[str, Any]]:
        """Names and values of a row; those of nested objects with dots."""
        if dict not in map(type, row.values()) and "".join(row).isascii() and not owner:
            yield from row.items()
            return
        for name, value in row.items():
            full = f"{owner}{name if name.isascii() else nfc(name)}"
            if not isinstance(value, dict):
                yield full, value
            elif depth >= MAX_DEPTH:
                raise BadColumn(full, f"objects are nested more than {MAX_DEPTH} deep")
            elif self._types.get(full) != "ignore" and not is_ignored(full, self._ignored):
                yield from self._flattened(value, f"{full}.", depth + 1)

    def _take_role(self, read: "_Row", name: str, value: Any) -> None:
        if isinstance(value, dict | list):
            kind = "an object" if isinstance(value, dict) else "a list"
            raise BadColumn(name, f"column {quoted(name)} must be one value, got {kind}")
        if name == self.label:
            read.label = None if self._is_missing(value) else value
        elif name == self.id:
            read.id = value
        else:
            read.weight = value

    def _is_missing(self, value: Any) -> bool:
        if value is None:
            return self._null_is_missing
        if isinstance(value, str):
            return value in self._missing
        if isinstance(value, float) and value != value:
            return "NaN" in self._missing
        return self._has_numbers and type(value) in (int, float) and value in self._numbers

    def _handler_of(self, name: str) -> _Handler | None:
        """What reads a column, found once for each name."""
        if not name or len(name) > _LONGEST:
            reason = "has no name" if not name else f"has a name of more than {_LONGEST} characters"
            raise BadColumn(name, f"a column {reason}")
        kind = self._types.get(name)
        handler: _Handler | None
        if kind is not None:
            handler = _HANDLERS[kind if isinstance(kind, str) else kind["kind"]]
        elif is_ignored(name, self._ignored) or self._unknown == "ignore":
            handler = None
        elif self._unknown == "refuse":
            known = ", ".join(self.declared[:20])
            raise BadColumn(name, f"there is no column {quoted(name)}; the columns are {known}")
        else:
            handler = _add_inferred
        if len(self._handlers) >= _MAX_HANDLERS:
            self._handlers.clear()
        self._handlers[name] = handler
        return handler

    def kind_of(self, name: str) -> Any:
        """The declared type of a column."""
        return self._types[name]

    def is_crossed(self, name: str) -> bool:
        """Whether a cross needs the category of this column."""
        return name in self._crossed

    @property
    def indicates_missing(self) -> bool:
        return self._indicator


class _Row:
    """A row as it is read."""

    __slots__ = ("features", "seen", "label", "weight", "id", "categories", "reader")

    def __init__(self, reader: ColumnReader) -> None:
        self.reader = reader
        self.features: Features = {}
        self.seen: set[str] = set()
        self.label: Any = None
        self.weight: Any = None
        self.id: Any = None
        self.categories: dict[str, list[str]] = {}
        """Categories of the columns that crosses need."""

    def put(self, column: str, feature: str, value: float | bool | str) -> None:
        if feature in self.features:
            raise _twice(column, feature)
        self.features[feature] = value

    def put_category(self, column: str, feature: str, text: str) -> None:
        """A feature `NAME=TEXT` whose texts may be several."""
        if len(feature) + len(text) >= _LONGEST:
            reason = f"{quoted(feature)} has a category of more than {_LONGEST} characters"
            raise BadColumn(column, reason)
        self.features[f"{feature}={text}"] = 1.0

    def note(self, column: str, categories: list[str]) -> None:
        if self.reader.is_crossed(column):
            self.categories[column] = categories

    def add_missing(self, name: str) -> None:
        if self.reader.indicates_missing:
            self.features[f"{name}={_MISSING}"] = 1.0

    def add_cross(self, names: tuple[str, ...]) -> None:
        try:
            lists = [self.categories[name] for name in names]
        except KeyError:
            return
        crossed = "*".join(names)
        for texts in product(*lists):
            self.put_category(names[0], crossed, ",".join(map(_escaped, texts)))


def _add_number(row: _Row, name: str, value: Any) -> None:
    number = as_number(name, value)
    row.put(name, name, number)
    if row.reader.is_crossed(name):
        row.note(name, [as_category(name, number)])


def _add_boolean(row: _Row, name: str, value: Any) -> None:
    found = as_boolean(name, value)
    row.put(name, name, found)
    row.note(name, ["true" if found else "false"])


def _add_category(row: _Row, name: str, value: Any) -> None:
    if isinstance(value, list):
        _add_set(row, name, value)
        return
    text = as_category(name, value)
    row.put(name, name, text)
    row.note(name, [text])


def _add_set(row: _Row, name: str, values: list[Any]) -> None:
    texts = list(dict.fromkeys(as_category(name, one) for one in values if one is not None))
    for text in texts:
        row.put_category(name, name, text)
    row.note(name, texts)


def _add_text(row: _Row, name: str, value: Any) -> None:
    kind = row.reader.kind_of(name)
    words = words_of(name, value, kind["ngrams"])
    counts = Counter(words) if kind["weights"] == "count" else dict.fromkeys(words, 1)
    for word, count in counts.items():
        row.put(name, f"{name}:{word}", float(count))


def _add_time(row: _Row, name: str, value: Any) -> None:
    time = as_time(name, value)
    for part in parts_of(row.reader.kind_of(name)):
        full = f"{name}.{part}"
        category = category_of_part(time, part)
        if part == "weekday":
            row.put(name, full, category)
        else:
            sine, cosine = cycle_of(time, part)
            row.put(name, f"{full}.sin", sine)
            row.put(name, f"{full}.cos", cosine)
        row.note(full, [category])


def _add_inferred(row: _Row, name: str, value: Any) -> None:
    if isinstance(value, list):
        _add_set(row, name, value)
        return
    found = inferred(name, value)
    if name in row.features:
        raise _twice(name, name)
    row.features[name] = found
    if row.reader.is_crossed(name):
        row.note(name, [as_category(name, found)])


_HANDLERS: Mapping[str, _Handler | None] = {
    "number": _add_number,
    "boolean": _add_boolean,
    "category": _add_category,
    "text": _add_text,
    "time": _add_time,
    "ignore": None,
}


def _twice(column: str, feature: str) -> BadColumn:
    return BadColumn(column, f"two columns give the feature {quoted(feature)}")


def _numbers_in(texts: frozenset[str]) -> frozenset[float]:
    """The numbers among texts, so that -1 and -1.0 are missing where `-1` is."""
    found = set()
    for text in texts:
        with suppress(ValueError):
            found.add(float(text))
    return frozenset(one for one in found if math.isfinite(one))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,") if "," in text or "\\" in text else text
