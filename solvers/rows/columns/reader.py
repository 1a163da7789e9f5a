"""ColumnReader: a flat row becomes named features, a label, a weight and an id.

A column gives these features (the names are those that a row in explicit form would send):

    number      `price`, the number            boolean     `member`, 1 or nothing
    category    `zip=02134`, 1; of a list of texts one for each
    text        `subject:free` for each word or run of words, how often it occurs, or 1
    time        `at.hour.sin` and `at.hour.cos`; also month_day, year_day; `at.weekday=mon`, 1;
                `at.age`, seconds of Unix time, which features/ages.py turns into an age
    missing     nothing; with `missing_indicator` `price=missing`, 1
    cross       `site*hour=news,9`, 1, if the row has all its columns

Nested objects are columns with dots in their names: {"user": {"age": 39}} is `user.age`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from dualstream.solvers.rows.columns.inputs import Inputs, key_number
from dualstream.solvers.rows.columns.spec import (
    AGE,
    MAX_COLUMNS,
    Ignored,
    crossed_columns,
    name_of,
    own_missing,
    parts_of,
)
from dualstream.solvers.rows.columns.values import (
    BadColumn,
    as_boolean,
    as_category,
    as_number,
    as_time,
    category_of_part,
    check_features,
    counted_words,
    cycle_of,
    inferred,
    seconds_of,
    whole,
)
from dualstream.solvers.rows.text.tokens import LARGEST, ZERO
from dualstream.wire.problem_json import quoted
from dualstream.wire.text_values import EXACT, TOO_LONG, BadValue, nfc, number_of

Features = dict[str, float | bool | str]
MAX_DEPTH = 16
"""Maximum depth of nested objects."""
TOO_MANY_COLUMNS = f"the row has more than {MAX_COLUMNS:,} columns"
MOST_CROSSED = 1000
"""Maximum number of features of a row that come from crosses: lists have all combinations."""
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
    inputs: dict[int, float]
    """Inputs of the history by their index in the row."""


_Handler = Callable[["_Row", str, Any], None]
_Input = Callable[[str, Any], float]
"""An input of the history, from the name and the value of a column."""


class ColumnReader:
    """Reads flat rows by the resolved fields `columns` and `crosses` of a specification.

    inputs     of its history
    computed   names of the columns of the history, which no row may have
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        crosses: list[Any],
        inputs: Inputs | None = None,
        computed: Sequence[str] = (),
    ) -> None:
        self.label: str = columns["label"]
        self.id: str | None = columns["id"]
        self.weight: str | None = columns["weight"]
        named = {self.label: "label", self.weight: "weight", self.id: "id"}
        self._roles = {name: role for name, role in named.items() if name is not None}
        self._types: Mapping[str, Any] = columns["types"]
        self._ignored = Ignored(columns["ignore"], self._types)
        self._unknown: str = columns["unknown"]
        self._indicator: bool = columns["missing_indicator"]
        self._missing = _Missing(columns["missing"])
        own_values = own_missing(self._types).items()
        self._own_missing = {
            n: _Missing([*columns["missing"], *declared]) for n, declared in own_values
        }
        self._crosses = _by_first(crossed_columns(columns, crosses))
        self._crossed = {name for some in self._crosses.values() for one in some for name in one}
        self._handlers: dict[str, _Handler | None] = {}
        """What reads a column; None for an ignored one."""
        self._computed = frozenset(computed)
        self._inputs = {} if inputs is None else self._inputs_by_column(inputs)
        declared = (*self._types, *self._roles)
        self._has_explicit = "x" not in self._ignored and not any(
            name == "x" or name.startswith("x.") for name in declared
        )

    @property
    def declared(self) -> list[str]:
        """Names of the columns that have a type and are not ignored."""
        return [name for name, kind in self._types.items() if kind != "ignore"]

    @property
    def least_features(self) -> int:
        """Features that a row may have without any column in it: indicators of missing values."""
        return len(self._types) if self._indicator else 0

    def is_explicit(self, row: Mapping[str, Any]) -> bool:
        """Whether a row names its features `x`, as rows of models without `columns` do."""
        return self._has_explicit and isinstance(row.get("x"), dict)

    def read(self, row: Mapping[str, Any]) -> ColumnRow:
        """A flat row, or one in explicit form, whose `x` is one. Raises BadColumn.

        The label is any value; the weight is a number, the id a text or a whole number.
        """
        if self.is_explicit(row):
            read = self._read(row["x"])
            others = self._beside_x(row)
            for role, value in others.items():
                _add_role(read.roles, role, value)
        else:
            read = self._read(row)
        label, weight, id_ = (read.roles.get(role) for role in ("label", "weight", "id"))
        return ColumnRow(
            read.features,
            None if self._is_none(label) else label,
            None if self._is_none(weight) else as_number(self.weight or "weight", weight),
            None if self._is_none(id_) else self._id(id_),
            read.inputs,
        )

    def _beside_x(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Label, weight and id of a row in explicit form, under their own names or the column's."""
        roles = {"y": "label", "weight": "weight", "id": "id"} | self._roles
        others = [name for name in row if name not in roles and name != "x"]
        if others:
            reason = (
                f"has the object `x` and the column {quoted(others[0])}: put all columns in `x`"
            )
            raise BadColumn("x", f"the row {reason}, or declare columns `x.NAME`")
        fields: dict[str, Any] = {}
        for name, value in row.items():
            if name != "x":
                _add_role(fields, roles[name], value)
        return fields

    def _id(self, value: Any) -> str | int:
        if isinstance(value, str):
            return whole(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
            return int(value)
        name = self.id or "id"
        raise BadColumn(name, f"the id must be a text or a whole number, got {quoted(value)}")

    def _read(self, row: Mapping[str, Any]) -> "_Row":
        read = _Row(self)
        seen, handlers, roles, missing = read.seen, self._handlers, self._roles, self._missing
        own_missing = self._own_missing
        for name, value in islice(self.flattened(row), MAX_COLUMNS + 1):
            if name in seen:
                raise BadColumn(name, f"the column {quoted(name)} is there twice")
            seen.add(name)
            if name in roles:
                read.roles[roles[name]] = value
                continue
            handler = handlers[name] if name in handlers else self._handler_of(name)
            if handler is None:
                continue
            if own_missing:
                missing = own_missing.get(name, self._missing)
            if value in missing.texts if type(value) is str else value in missing:
                read.add_missing(name)
            else:
                handler(read, name, value)
        if len(seen) > MAX_COLUMNS:
            raise BadColumn("", TOO_MANY_COLUMNS)
        if self._indicator:
            for name in self.declared:
                if name not in read.seen:
                    read.add_missing(name)
        for name in list(read.categories):
            for names in self._crosses.get(name, ()):
                read.add_cross(names)
        return read

    def flattened(
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
            elif full in self._ignored and full not in self._inputs:
                continue
            elif depth >= MAX_DEPTH:
                raise BadColumn(full, f"objects are nested more than {MAX_DEPTH} deep")
            elif full in self._types or full in self._roles:  # also ignored keys of the history
                raise BadColumn(full, f"column {quoted(full)} must be one value, got an object")
            else:
                yield from self.flattened(value, f"{full}.", depth + 1)

    def _is_none(self, value: Any) -> bool:
        """Whether a role has no value. Null never is one."""
        return value is None or value in self._missing

    def column_at(self, pointer: str) -> str | None:
        """The declared column, or that of a role, at a JSON pointer; None for any other.

        Its last steps are the name: /2/user/age and /2/x/user.age are `user.age`.
        """
        steps = [nfc(step.replace("~1", "/").replace("~0", "~")) for step in pointer.split("/")[1:]]
        for first in range(len(steps)):
            name = ".".join(steps[first:])
            if name in self._types or name in self._roles:
                return name
        explicit = {"y": self.label, "weight": self.weight, "id": self.id}
        return explicit.get(steps[-1]) if steps else None

    def ignores(self, name: str) -> bool:
        """Whether a column is no feature, has no role and is no key of the history."""
        return name in self._ignored and name not in self._roles and name not in self._inputs

    def is_number(self, name: str) -> bool:
        """Whether a text in this column may be a number."""
        if name in self._roles:
            return self._roles[name] != "id"
        if name not in self._types:
            return self._unknown == "infer" and name not in self._ignored
        return name_of(self._types[name]) == "number"

    def keeps_commas(self, name: str) -> bool:
        """Whether a text of this column is no number even if it is written as one."""
        kind = self._types.get(name, "")
        return self._roles.get(name) == "id" or (kind != "" and name_of(kind) == "text")

    def class_of(self, label: float | bool) -> str:
        """A label as the text of a class."""
        return as_category(self.label, label)

    def is_missing(self, name: str, value: Any) -> bool:
        """Whether a value stands for none in this column."""
        return value in self._own_missing.get(name, self._missing)

    @staticmethod
    def check_names(names: Iterable[str]) -> None:
        """Raise BadColumn for a column without a name, or with one that is too long."""
        for name in names:
            if not name or len(name) > _LONGEST:
                what = f"a name of more than {_LONGEST} characters" if name else "no name"
                raise BadColumn(name, f"a column has {what}")

    def _handler_of(self, name: str) -> _Handler | None:
        """What reads a column, found once for each name."""
        self.check_names([name])
        if name in self._computed:
            reason = "is computed from the history: leave it out of the row"
            raise BadColumn(name, f"column {quoted(name)} {reason}")
        kind = self._types.get(name)
        handler: _Handler | None
        if kind is not None:
            handler = _HANDLERS[name_of(kind)]
        elif name in self._ignored or self._unknown == "ignore":
            handler = None
        elif self._unknown == "refuse":
            names = ", ".join(self.declared[:20])
            raise BadColumn(name, f"there is no column {quoted(name)}; the columns are {names}")
        else:
            handler = _add_inferred
        if name in self._inputs:
            handler = _with_inputs(handler, self._inputs[name])
        if len(self._handlers) >= _MAX_HANDLERS:
            self._handlers.clear()
        self._handlers[name] = handler
        return handler

    def _inputs_by_column(self, inputs: Inputs) -> dict[str, list[tuple[int, _Input]]]:
        """Index in the row, and function of the value, of each input that a column gives."""
        by_column: dict[str, list[tuple[int, _Input]]] = {}
        for name in inputs.keys:
            key = _KEYS[name_of(self._types[name])]
            by_column.setdefault(name, []).append((inputs.index_of_key(name), key))
        for name in inputs.times:
            by_column.setdefault(name, []).append((inputs.index_of_time(name), _time_input))
        for name in inputs.values:
            by_column.setdefault(name, []).append((inputs.index_of_value(name), _value_input))
        return by_column

    def type_of(self, name: str) -> Any:
        """The declared type of a column: a name, or an object with `kind`."""
        return self._types[name]

    def kind_of(self, name: str) -> str:
        """The name of a column's declared type."""
        return name_of(self._types[name])

    def is_crossed(self, name: str) -> bool:
        """Whether a cross needs the category of this column."""
        return name in self._crossed

    def indicates_missing(self, name: str) -> bool:
        """Whether a missing value of this column is a feature."""
        return self._indicator and self._types.get(name) != "ignore"


class _Missing:
    """Values that stand for a missing one."""

    __slots__ = ("texts", "_numbers", "_has_null")

    def __init__(self, values: Sequence[str | float | None]) -> None:
        numbers = frozenset(missing_numbers(values))
        texts = frozenset(one for one in values if isinstance(one, str))
        self.texts: frozenset[str] | _TextsAndNumbers = texts
        if numbers:
            self.texts = _TextsAndNumbers(texts, numbers)
        self._numbers = numbers
        self._has_null = None in values

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.texts
        if value is None:
            return self._has_null
        if isinstance(value, float) and value != value:
            return "NaN" in self.texts
        return isinstance(value, int | float) and type(value) is not bool and value in self._numbers


class _TextsAndNumbers:
    """Texts, and all ways to write some numbers."""

    __slots__ = ("_texts", "_numbers")

    def __init__(self, texts: frozenset[str], numbers: frozenset[float]) -> None:
        self._texts = texts
        self._numbers = numbers

    def __contains__(self, text: str) -> bool:
        return text in self._texts or _number_in(text) in self._numbers


class _Row:
    """A row as it is read."""

    __slots__ = ("features", "inputs", "seen", "roles", "categories", "crossed", "reader")

    def __init__(self, reader: ColumnReader) -> None:
        self.reader = reader
        self.features: Features = {}
        self.inputs: dict[int, float] = {}
        self.seen: set[str] = set()
        self.roles: dict[str, Any] = {}
        self.crossed = 0
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
        if self.reader.indicates_missing(name):
            self.features[f"{name}={_MISSING}"] = 1.0

    def add_cross(self, names: tuple[str, ...]) -> None:
        try:
            lists = [self.categories[name] for name in names]
        except KeyError:
            return
        crossed = "*".join(names)
        self.crossed += math.prod(map(len, lists))
        if self.crossed > MOST_CROSSED:
            reason = f"the crosses of the row have more than {MOST_CROSSED:,} features"
            raise BadColumn(names[0], f"{reason}: cross columns with fewer values in a row")
        for texts in product(*lists):
            self.put_category(names[0], crossed, ",".join(map(_escaped, texts)))


def _add_number(row: _Row, name: str, value: Any) -> None:
    number = as_number(name, value)
    row.put(name, name, number)
    if row.reader.is_crossed(name):
        row.note(name, [as_category(name, number)])


def _add_boolean(row: _Row, name: str, value: Any) -> None:
    flag = as_boolean(name, value)
    row.put(name, name, flag)
    row.note(name, ["true" if flag else "false"])


def _add_category(row: _Row, name: str, value: Any) -> None:
    if isinstance(value, list):
        _add_set(row, name, value)
        return
    text = as_category(name, value)
    row.put(name, name, text)
    row.note(name, [text])


def _add_set(row: _Row, name: str, values: list[Any]) -> None:
    present = [one for one in values if not row.reader.is_missing(name, one)]
    texts = list(dict.fromkeys(as_category(name, one) for one in present))
    check_features(name, texts)
    for text in texts:
        row.put_category(name, name, text)
    check_features(name, row.features)
    row.note(name, texts)


def _add_text(row: _Row, name: str, value: Any) -> None:
    kind = row.reader.type_of(name)
    is_counted = kind["weights"] == "count"
    for word, count in counted_words(name, value, kind["ngrams"]).items():
        row.put(name, f"{name}:{word}", float(count) if is_counted else 1.0)
    check_features(name, row.features)


def _add_time(row: _Row, name: str, value: Any) -> None:
    time = as_time(name, value)
    for part in parts_of(row.reader.type_of(name)):
        full = f"{name}.{part}"
        if part == AGE:
            row.put(name, full, seconds_of(time))
            continue
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
    feature = inferred(name, value)
    if name in row.features:
        raise _twice(name, name)
    row.features[name] = feature
    if row.reader.is_crossed(name):
        row.note(name, [as_category(name, feature)])


_HANDLERS: Mapping[str, _Handler | None] = {
    "number": _add_number,
    "boolean": _add_boolean,
    "category": _add_category,
    "text": _add_text,
    "time": _add_time,
    "ignore": None,
}


def _with_inputs(handler: _Handler | None, inputs: Sequence[tuple[int, _Input]]) -> _Handler:
    """What reads a column that gives features, if it is not ignored, and inputs."""

    def read(row: _Row, name: str, value: Any) -> None:
        if handler is not None:
            handler(row, name, value)
        for index, of in inputs:
            row.inputs[index] = of(name, value)

    return read


def _key_of_category(name: str, value: Any) -> float:
    return key_number(as_category(name, value))


def _key_of_number(name: str, value: Any) -> float:
    return key_number(as_category(name, _exact_number(name, value)))


def _key_of_boolean(name: str, value: Any) -> float:
    return key_number("true" if as_boolean(name, value) else "false")


_KEYS: Mapping[str, _Input] = {
    "category": _key_of_category,
    "ignore": _key_of_category,
    "number": _key_of_number,
    "boolean": _key_of_boolean,
}
"""Keys of a history by the type of their column."""


def _time_input(name: str, value: Any) -> float:
    return seconds_of(as_time(name, value))


def _value_input(name: str, value: Any) -> float:
    number = _exact_number(name, value)
    if not -LARGEST <= number <= LARGEST:
        reason = f"column {quoted(name)} must be in [-1e100, 1e100], got {quoted(number)}"
        raise BadColumn(name, reason)
    return float(number) if abs(number) > ZERO else ZERO


def _exact_number(name: str, value: Any) -> float | int:
    """A number that loses no digits as a float: observed rows have no features that show it."""
    number = as_number(name, value)
    if type(number) is int and not -EXACT <= number <= EXACT:
        raise BadColumn(name, f"the integer {number} is {TOO_LONG}")
    return number


def _twice(column: str, feature: str) -> BadColumn:
    return BadColumn(column, f"two columns give the feature {quoted(feature)}")


def _add_role(roles: dict[str, Any], role: str, value: Any) -> None:
    """Add a label, weight or id. Raises BadColumn if the row has another one."""
    if roles.setdefault(role, value) != value:
        reason = f"the {role} is there twice, as {quoted(roles[role])} and {quoted(value)}"
        raise BadColumn(role, reason)


def missing_numbers(missing: Sequence[str | float | None]) -> list[float]:
    """Numbers that stand for a missing value, also those that are given as texts."""
    numbers = [_number_in(one) if isinstance(one, str) else one for one in missing]
    return [float(one) for one in numbers if one is not None]


def _number_in(text: str) -> float | None:
    """The number that a text is; None for another text."""
    try:
        return number_of(text)
    except BadValue:
        return None


def _by_first(crosses: list[tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    """Crosses by their first column."""
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for names in crosses:
        by_first.setdefault(names[0], []).append(names)
    return by_first


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,") if "," in text or "\\" in text else text
