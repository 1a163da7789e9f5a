"""Row schema of a model: validates features, label, weight and id of a row against the spec."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from typing import Any, NoReturn
from unicodedata import is_normalized

from dualstream.solvers import ColumnReader
from dualstream.solvers.history.spec import column_names
from dualstream.solvers.jit import Indices
from dualstream.solvers.rows import intercept
from dualstream.solvers.rows.class_names import class_text
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.solvers.rows.columns.plan import ColumnPlan, NoPlan
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.hashing import NameIndices, hash_names, sorted_row
from dualstream.solvers.rows.text.index_table import IndexTable
from dualstream.solvers.rows.text.tokens import MAX_ROW_NAMES
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import beginning, quoted
from dualstream.wire.text_values import EXACT, TOO_LONG, nfc

# Larger numbers overflow when they are squared and summed.
LARGEST = 1e100
LONGEST_NAME = 1024
"""Maximum characters of a feature name, of a text value and of a class."""
MAX_NAMES = 65_536
"""Maximum number of feature names of a model; a replica keeps the first ones."""
MOST_AHEAD_S = 86_400.0
"""How far in the future a time of a history may be, in seconds."""
LONGEST_KEY = 255
"""Maximum UTF-8 bytes of an Idempotency-Key and of a sample's id."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Indices up to this width are looked up as texts instead of parsed.
_INDEXED_TEXTS = 65_536
_NO_NAMES: list[tuple[int, str]] = []

Features = Sequence[float] | dict[str, float | bool | str]
Label = float | int | bool | str

_BINARY: Mapping[Label, float] = {
    1: 1.0,  # also True and 1.0, which are equal to 1 in Python
    "1": 1.0,
    "+1": 1.0,
    "true": 1.0,
    0: -1.0,  # also False, 0.0 and -0.0
    -1: -1.0,
    "0": -1.0,
    "-1": -1.0,
    "false": -1.0,
}


@lru_cache(16)
def _index_texts(width: int) -> dict[str, int]:
    """Text of an index (from 1) -> index (from 0). All models of a width share the dict."""
    return {str(index): index - 1 for index in range(1, width + 1)}


def ages_of(spec: Mapping[str, Any]) -> frozenset[int]:
    """Indices of the ages of a resolved specification."""
    names = age_features(spec)
    return frozenset(hash_names(names, spec["features"]["bits"]).tolist()) if names else frozenset()


MAX_NONZEROS = 100_000
"""Maximum number of non-zero features of a row."""


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of a request, equal for all models."""

    rows: int = 1_000_000
    """Maximum number of rows of a request that is not streamed."""
    nonzeros: int = MAX_NONZEROS
    """Maximum number of non-zero features of a row."""


DEFAULT_LIMITS = RowLimits()


def too_many_nonzeros(count: int, limit: int) -> str:
    """Reason for refusing a row with `found` non-zero features."""
    return f"the row has {count} non-zero features; the limit is {limit}"


NO_NAME = "a feature has no name"
TOO_MANY_NAMES = f"the row has more than {MAX_ROW_NAMES:,} names"


class BadRow(Exception):
    """One row is invalid: JSON pointer within the sample, and the reason."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer
        self.reason = reason


_MAX_DIGITS = 19
"""Maximum digits of an index. Python refuses to parse more than 4,300."""


def pointer_step(name: str) -> str:
    """Escape a name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped_step(step: str) -> str:
    """The name of which a step of a JSON pointer is made."""
    return step.replace("~1", "/").replace("~0", "~")


def refuse_duplicates(names: Iterable[str], pointer: str) -> None:
    """Raise BadRow for a duplicate name; `pointer` is that of its object, with a slash."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRow(pointer + pointer_step(name), f"{quoted(name)} is duplicated")
        seen.add(name)


def is_key(text: str) -> bool:
    """Is this a valid idempotency key or sample id: 1 to 255 bytes, no control characters?"""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 1 <= size <= LONGEST_KEY and not _CONTROL.search(text)


def latest_time() -> float:
    """The latest time that a row may have for a history, in Unix time."""
    return time.time() + MOST_AHEAD_S


class RowSchema:
    """Validates and encodes rows for one model; every method raises BadRow for invalid input.

    For hashed features the schema also tracks which feature names the journal holds, because a
    record contains a name only the first time.
    """

    def __init__(self, spec: dict[str, Any], limits: RowLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        features = spec["features"]
        self.dim = intercept.width_of(features)
        """Number of features; rows are wider by the inputs of a history."""
        self.inputs = inputs_of(spec)
        self.row_width = self.inputs.row_width
        self.task: str = spec["task"]
        self.class_names: Sequence[str] | None = spec.get("labels")
        self.is_hashed: bool = features["kind"] == "hashed"
        columns = spec.get("columns")
        self.ages = ages_of(spec)
        """Indices of the features that are times, from which ages are computed."""
        self.columns = None
        """Reads flat rows; None for a model whose rows name their features `x`."""
        self._given_columns = None
        if columns is not None:
            history = spec.get("history")
            computed = column_names(history, spec["task"]) if history else ()
            self.columns = ColumnReader(columns, spec["crosses"], self.inputs, computed)
            self._given_columns = (columns, spec["crosses"], self.inputs, computed)
        self._column_plan: ColumnPlan | None = None
        self._name_places = NameIndices(features["bits"]) if self.is_hashed else None
        # Fast path: texts of indices, or journalled names, which are already validated.
        self._index_of = {} if self.is_hashed else _index_texts(min(self.dim, _INDEXED_TEXTS))
        self._journalled: set[str] = set()
        self._names_may_be_lost_up_to = 0
        self._journalled_indices = IndexTable()
        self.observes = False
        """Are rows read for their inputs alone? See `observing`."""
        self._labels: Mapping[Label, float] = _BINARY
        if self.class_names:
            negative, positive = map(self.composed, self.class_names)
            self._labels = {negative: -1.0, positive: 1.0}

    @property
    def observing(self) -> "RowSchema":
        """The schema of rows that enter the history alone: with ids, without features or labels."""
        # Before the copy: both have one plan, with nodes from the rows of both, or neither has.
        plan, other = self.column_plan, copy(self)
        other.observes, other._column_plan = True, plan
        return other

    def enters(self, index: int) -> bool:
        """Does the past of later rows need this entry of a row?"""
        return index >= self.dim or index in self.ages

    def check_inputs(self, inputs: Mapping[int, float]) -> None:
        """Raise BadRow for a time far in the future: later rows of its key would all be late."""
        latest = latest_time()
        for name in self.inputs.times:
            if inputs.get(self.inputs.index_of_time(name), 0.0) > latest:
                reason = (
                    f"the time in {quoted(name)} is more than a day ahead of the server's clock"
                )
                hint = "are these milliseconds, or another zone?"
                raise BadRow(f"/x/{pointer_step(name)}", f"{reason}: {hint}")

    def composed(self, text: str) -> str:
        """A name or category as models store it: in NFC."""
        return nfc(text)

    def takes_bytes_of(self, body: bytes) -> bool:
        """Is the body UTF-8, with names and categories as this model stores them?"""
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return False
        return is_normalized("NFC", text)

    def label(self, y: Label | None) -> float | str:
        """Label for the learner: a number, or the class text of a multiclass model."""
        if y is None:
            raise BadRow("/y", "the label is null")
        if isinstance(y, str):
            y = self.composed(y)
        if self.task == "multiclass":
            if isinstance(y, str) and len(y) > LONGEST_NAME:
                raise BadRow("/y", f"the class name must have at most {LONGEST_NAME} characters")
            return class_text(self._number("/y", y) if isinstance(y, float) else y)
        if self.task == "regression":
            if isinstance(y, (bool, str)):
                raise BadRow("/y", f"the label must be a number, got {quoted(y)}")
            return float(self._number("/y", y))
        number = self._labels.get(y)
        if number is None:
            raise BadRow(
                "/y", f"{quoted(y)} is not a label of this model; send {self._label_names()}"
            )
        return number

    def class_name(self, score: float) -> int | str | None:
        """Class of a binary model's score, as responses name it; None for regression."""
        if self.task == "regression":
            return None
        positive = score >= 0
        if self.class_names:
            return self.class_names[positive]
        return int(positive)

    def check_weight(self, weight: float) -> None:
        """Check that 0 <= weight <= 1e100."""
        if not 0 <= weight <= LARGEST:
            raise BadRow("/weight", f"the weight must be in [0, 1e100], got {weight!r}")

    def id(self, raw: str | int) -> str:
        """Sample id as text."""
        try:
            text = str(raw)
        except ValueError:  # Python converts no integer of more than 4,300 digits
            text = ""
        if not is_key(text):
            reason = f"an id has 1 to {LONGEST_KEY} bytes of UTF-8, without control characters"
            raise BadRow("/id", reason)
        return text

    def features(self, x: Features) -> tuple[list[int], list[float], list[tuple[int, str]]]:
        """Encode features: sorted indices (from 0), their non-zero values, new names.

        New names are (index, name) pairs that the journal may not hold yet.
        """
        if self._name_places is not None:
            return self._hashed(x, self._name_places)
        pairs = self._indexed(x) if isinstance(x, dict) else self._dense(x)
        indices = [index for index, _ in pairs]
        values = [value for _, value in pairs]
        # min and max miss a NaN that is not first; the sum is NaN then.
        is_good = max(values, default=0) < EXACT and min(values, default=0) > -EXACT
        if not is_good or isnan(sum(values)):
            # The pointer holds the index as the client wrote it: a JSON list counts from 0.
            items: Iterable[tuple[Any, Any]] = x.items() if isinstance(x, dict) else enumerate(x)
            for step, value in items:
                self._number(f"/x/{step}", value)
        return indices, values, _NO_NAMES

    @property
    def column_plan(self) -> ColumnPlan | None:
        """The columns as kernels read them; None for those that kernels cannot read."""
        slots, columns = self._name_places, self._given_columns
        if self._column_plan is None and columns is not None and slots is not None:
            try:
                self._column_plan = ColumnPlan(*columns, slots.bits)
            except NoPlan:
                self._given_columns = None
        return self._column_plan

    def owned_objects(self) -> tuple[object, ...]:
        """Objects that no other model shares, for memory accounting."""
        if not self.is_hashed:
            return ()
        plan = self._column_plan
        return (
            *(() if plan is None else plan.owned_objects()),
            self._name_places,
            self._journalled,
            self._journalled_indices.slots,
            self._index_of,
        )

    @property
    def collects_names(self) -> bool:
        """Are new feature names recorded? Not for indexed features, nor above MAX_NAMES."""
        return self.is_hashed and len(self._journalled) < MAX_NAMES

    def unjournalled(self, names: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """The (index, name) pairs that the journal may not hold yet."""
        return [pair for pair in names if pair[1] not in self._journalled]

    @property
    def journalled_indices(self) -> Indices:
        """Hash table of the indices whose names are journalled, as the kernels read it."""
        return self._journalled_indices.slots

    def mark_journalled(self, names: Sequence[tuple[int, str]], seq: int | None = None) -> None:
        """Record that the journal holds these names, in records up to `seq`."""
        if names and (seq is None or seq > self._names_may_be_lost_up_to):
            self._journalled.update(name for _, name in names)
            # A longer entry may be a valid `name=text` or a name that is too long, and `=text` may
            # be a text without a name: check it again.
            self._index_of |= {
                name: index
                for index, name in names
                if len(name) <= LONGEST_NAME and name[:1] not in ("", "=")
            }
            self._journalled_indices.add({index for index, _ in names})

    def resend_names(self, since: int = 0) -> None:
        """Journal every name again: records up to `since`, and the names in them, may be lost."""
        self._names_may_be_lost_up_to = since
        if self.is_hashed:
            self._journalled.clear()
            self._index_of.clear()
            self._journalled_indices = IndexTable()

    def index(self, text: str) -> int:
        """Index (from 0) of the feature whose index (from 1) is written as `text`."""
        index = self._index_of.get(text)
        if index is not None:
            return index
        if text.isascii() and text.isdigit() and text[0] != "0":
            if len(text) <= _MAX_DIGITS and int(text) <= self.dim:
                return int(text) - 1
            raise BadRow(f"/x/{text}", f"index {beginning(text)} is above dim {self.dim}")
        reason = f"{quoted(text)} is not an index from 1 to {self.dim}"
        raise BadRow(f"/x/{pointer_step(text)}", reason)

    def _indexed(self, x: dict[str, float | bool | str]) -> list[tuple[int, float]]:
        index_of = self._index_of
        try:
            pairs = [(index_of[name], float(value)) for name, value in x.items() if value]
        except (KeyError, ValueError, OverflowError):
            pairs = [(self.index(name), self._value(name, value)) for name, value in x.items()]
            pairs = [pair for pair in pairs if pair[1]]
        else:
            if str in map(type, x.values()) or len(pairs) != len(x):
                for name, value in x.items():
                    self.index(name)
                    self._value(name, value)
        pairs.sort()
        return pairs

    def _hashed(
        self, x: Features, slots: NameIndices
    ) -> tuple[list[int], list[float], list[tuple[int, str]]]:
        """As `hash_row`, with all checks, in one pass over the row."""
        if not isinstance(x, dict):
            raise BadRow("/x", "the model has features by name; send an object, not a list")
        if len(x) > MAX_ROW_NAMES:
            raise BadRow("/x", TOO_MANY_NAMES)
        index_of = self._index_of
        row: dict[int, float] = {}
        new: list[tuple[int, str]] = []
        may_repeat, zeros = False, 0
        for name, value in x.items():
            if isinstance(value, str):
                shown, number = f"{name}={value}", 1.0
            elif -EXACT <= value <= EXACT:
                # A zero is not stored, and a name comes with its first other value.
                if not value and 0 < len(name) <= LONGEST_NAME and name.isascii():
                    zeros += 1
                    continue
                shown, number = name, float(value)
            else:
                shown, number = name, float(self._number_of(name, value))
            index = index_of.get(shown)
            if index is None:
                if not shown.isascii():
                    composed = self._composed(name, value)
                    may_repeat = may_repeat or composed != shown
                    shown = composed
                if not name or max(len(name), len(shown) - len(name) - 1) > LONGEST_NAME:
                    self._refuse_name(name)
                index = slots[shown]
                if number and shown not in self._journalled:
                    new.append((index, shown))
            row[index] = row[index] + number if index in row else number
        if len(row) + zeros < len(x) and not all(
            -LARGEST <= number <= LARGEST for number in row.values()
        ):
            raise BadRow("/x", "features with the same hash add up to more than 1e100")
        if may_repeat:
            refuse_duplicates(map(nfc, x), "/x/")
        indices, values = sorted_row(row)
        return indices, values, new if len(self._journalled) < MAX_NAMES else _NO_NAMES

    def _composed(self, name: str, value: float | bool | str) -> str:
        """The feature in NFC. The text is composed apart: it may begin with a combining mark."""
        return f"{nfc(name)}={nfc(value)}" if isinstance(value, str) else nfc(name)

    def _refuse_name(self, name: str) -> NoReturn:
        if not name:
            raise BadRow("/x/", NO_NAME)
        pointer = f"/x/{pointer_step(name[:50])}"
        reason = f"names and texts must have at most {LONGEST_NAME} characters"
        raise BadRow(pointer, f"{reason}; only a column of type `text` may have more")

    def _value(self, name: str, value: float | bool | str) -> float:
        if isinstance(value, str):
            pointer = f"/x/{pointer_step(name)}"
            raise BadRow(pointer, f"the value must be a number or a bool, got {quoted(value)}")
        return float(value if -EXACT <= value <= EXACT else self._number_of(name, value))

    def _number_of(self, name: str, value: float) -> float:
        # The pointer is built for a large number only: it costs more than the check.
        return self._number(f"/x/{pointer_step(name)}", value)

    def _dense(self, x: Sequence[float]) -> list[tuple[int, float]]:
        if len(x) != self.dim:
            raise BadRow(
                "/x", f"the row has {plural(len(x), 'number')}; the model needs {self.dim}"
            )
        try:
            return [(index, float(value)) for index, value in enumerate(x) if value]
        except OverflowError:  # an integer that no float holds
            return [(index, self._number(f"/x/{index}", value)) for index, value in enumerate(x)]

    def _number(self, pointer: str, value: float) -> float:
        if not -LARGEST <= value <= LARGEST:
            raise BadRow(pointer, f"the number must be in [-1e100, 1e100], got {quoted(value)}")
        if type(value) is int and not -EXACT <= value <= EXACT:
            raise BadRow(pointer, f"the integer {value} is {TOO_LONG}")
        return value

    def _label_names(self) -> str:
        if self.class_names:
            return " or ".join(map(repr, self.class_names))
        return "1, true, '1', '+1', 'true' or 0, -1, false, '0', '-1', 'false'"
