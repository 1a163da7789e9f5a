"""What a column holds in a sample: its distinct values by form, and how many rows have each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from dualstream.service.features.infer.forms import Form, form_of
from dualstream.solvers.rows.columns.values import BadColumn, as_category

FEW_ROWS = 20
"""With fewer rows, distinct values say nothing about a column."""


@dataclass(slots=True)
class Seen:
    """The values of one column that are not missing."""

    name: str
    rows: int
    values: list[Any]
    """In the order of the rows."""
    counts: dict[str, int]
    """Category -> how often it occurs."""
    examples: list[Any]
    """A value of each category."""
    forms: list[Form]
    """The form of each example."""
    nulls: list[str]
    """Texts that stand for a missing value in every column."""

    @property
    def missing(self) -> int:
        return self.rows - len(self.values)

    def all_are(self, test: Callable[[Any], bool]) -> bool:
        return all(map(test, self.examples))

    def rows_of(self, *forms: Form) -> int:
        """Number of rows whose value has one of these forms."""
        pairs = zip(self.counts.values(), self.forms, strict=True)
        return sum(count for count, form in pairs if form in forms)

    def of(self, *forms: Form) -> list[Any]:
        """An example of each category of these forms."""
        return [one for one, form in zip(self.examples, self.forms, strict=True) if form in forms]

    def failing(self, test: Callable[[Any], bool]) -> list[tuple[Any, int]]:
        """Values that fail a test, and in how many rows; the most frequent ones first."""
        pairs = zip(self.examples, self.counts.values(), strict=True)
        return sorted((pair for pair in pairs if not test(pair[0])), key=lambda one: -one[1])

    def without(self, values: Sequence[Any]) -> "Seen":
        """The column if these values count as missing in it, too."""
        gone = set(map(key_of, values))
        if not gone:
            return self
        return seen_of(self.name, self.rows, [v for v in self.values if key_of(v) not in gone])


def seen_of(name: str, rows: int, values: Iterable[Any]) -> Seen:
    """The values of a column; nulls of the systems that write files are missing."""
    present = [one for one in values if not is_none(one)]
    keys = list(map(key_of, present))
    examples: dict[str, Any] = {}
    for key, value in zip(keys, present, strict=True):
        examples.setdefault(key, value)
    forms = {key: form_of(value) for key, value in examples.items()}
    others = [key for key, form in forms.items() if form is not Form.NULL]
    if "NA" in forms and others and all(map(_is_short_code, others)):
        forms["NA"] = Form.TEXT  # Namibia, North America
    nulls = [examples.pop(key) for key, form in forms.items() if form is Form.NULL]
    counts = Counter(key for key in keys if key in examples)
    kept = [one for key, one in zip(keys, present, strict=True) if key in examples]
    return Seen(
        name, rows, kept, dict(counts), list(examples.values()), [forms[k] for k in counts], nulls
    )


def _is_short_code(text: str) -> bool:
    return len(text) == 2 and text.isalpha() and text.isupper()


def key_of(value: Any) -> str:
    """The category of a value, or its representation if it has none."""
    try:
        return as_category("", value)
    except BadColumn:
        return repr(value)


def seen_in(rows: Sequence[Mapping[str, Any]]) -> dict[str, Seen]:
    """All columns of the rows, in the order in which they occur."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: seen_of(name, len(rows), some) for name, some in values.items()}


def is_none(value: Any) -> bool:
    return value is None or (isinstance(value, float) and isnan(value))


def categories_of(rows: Sequence[Mapping[str, Any]], seen: Seen) -> list[str | None]:
    """The category of each row's value in a column; None if it is missing."""
    values = [row.get(seen.name) for row in rows]
    texts = [None if is_none(one) else key_of(one) for one in values]
    return [text if text in seen.counts else None for text in texts]
