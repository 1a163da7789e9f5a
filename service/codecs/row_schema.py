"""What a model takes at its door: the width of its rows, its labels, the range of its numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from typing import Any

import msgspec

from dualstream.solvers import NamePlaces, class_text, sorted_row, width_of
from dualstream.solvers.jit import Indices
from dualstream.solvers.text import PlaceTable
from dualstream.wire.problems import beginning, quoted

# Larger numbers would overflow when squared and summed; nobody means them.
LARGEST = 1e100
LONGEST_NAME = 1024
"""Characters of a feature's name, of a text value, of a class: no limit may be set above."""
MAX_NAMES = 65_536
"""Names that a replica keeps, the first ones, to answer by name."""
LONGEST_KEY = 255
"""Bytes of an Idempotency-Key, of a sample's id."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Index texts up to this width are looked up, not parsed.
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
def _places_of_indices(width: int) -> dict[str, int]:
    """Index texts -> places from 0: one dict for all models of a width."""
    return {str(index): index - 1 for index in range(1, width + 1)}


MAX_NONZEROS = 100_000
"""Non-zero features of a row. A longer row is refused."""


@dataclass(frozen=True, slots=True)
class RowLimits:
    """What a server takes of a request, whatever the model."""

    rows: int = 1_000_000
    """In a request that is taken as a whole."""
    nonzeros: int = MAX_NONZEROS
    """In a row."""


DEFAULT_LIMITS = RowLimits()


def too_many_nonzeros(found: int, most: int) -> str:
    """Why a row of so many is not taken."""
    return f"the row has {found} features that are not 0, at most {most} are taken"


class BadRow(Exception):
    """One row cannot be taken: `pointer` within the sample, and the reason."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer
        self.reason = reason


_MAX_DIGITS = 19
"""Of an index that may be in a model."""


def pointer_step(name: str) -> str:
    """A name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def is_key(text: str) -> bool:
    """Whether a request's key or a sample's id may read so: no control characters, not too long."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 1 <= size <= LONGEST_KEY and not _CONTROL.search(text)


class RowSchema:
    """The checks that a model's spec asks of every row, made once per row."""

    def __init__(self, spec: dict[str, Any], limits: RowLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        features = spec["features"]
        self.dim = width_of(features)
        self.task: str = spec["task"]
        self.class_names: Sequence[str] | None = spec.get("labels")
        self.is_hashed: bool = features["kind"] == "hashed"
        self._places = NamePlaces(features["bits"]) if self.is_hashed else None
        # Index texts; or those names that were told, of which nothing is left to check.
        self._place_of = {} if self.is_hashed else _places_of_indices(min(self.dim, _INDEXED_TEXTS))
        # Names that stand in the journal.
        self._told: set[str] = set()
        self._told_since = 0
        self._told_places = PlaceTable()
        self._labels: Mapping[Label, float] = _BINARY
        if self.class_names:
            negative, positive = self.class_names
            self._labels = {negative: -1.0, positive: 1.0}

    def label(self, y: Label | None) -> float | str:
        """What the learner sees for label `y`: a number, or a class's text; raises BadRow."""
        if y is None:
            raise BadRow("/y", "the label is null")
        if self.task == "multiclass":
            if isinstance(y, str) and len(y) > LONGEST_NAME:
                raise BadRow("/y", f"a class has at most {LONGEST_NAME} characters")
            return class_text(self._number("/y", y) if isinstance(y, float) else y)
        if self.task == "regression":
            if isinstance(y, (bool, str)):
                raise BadRow("/y", f"the label must be a number, got {quoted(y)}")
            return float(self._number("/y", y))
        number = self._labels.get(y)
        if number is None:
            raise BadRow("/y", f"{quoted(y)} is not a label of this model: {self._label_names()}")
        return number

    def class_name(self, score: float) -> int | str | None:
        """How answers name the class of a score of a binary model; None for regression."""
        if self.task == "regression":
            return None
        positive = score >= 0
        if self.class_names:
            return self.class_names[positive]
        return int(positive)

    def check_weight(self, weight: float) -> None:
        """Raises BadRow for what no sample may weigh."""
        if not 0 <= weight <= LARGEST:
            raise BadRow("/weight", f"the weight must be in [0, 1e100], got {weight!r}")

    def id(self, given: str | int) -> str:
        """A sample's id as text; raises BadRow."""
        try:
            text = str(given)
        except ValueError:  # more digits than Python writes
            text = ""
        if not is_key(text):
            reason = f"an id has 1 to {LONGEST_KEY} bytes of UTF-8 without control characters"
            raise BadRow("/id", reason)
        return text

    def features(self, x: Features) -> tuple[list[int], list[float], list[tuple[int, str]]]:
        """Indices from 0, increasing, and their values, without zeros; raises BadRow.

        Last, places and names of those features that this process has not journalled yet.
        """
        if self._places is not None:
            return self._hashed(x, self._places)
        pairs = self._indexed(x) if isinstance(x, dict) else self._dense(x)
        indices = [index for index, _ in pairs]
        values = [value for _, value in pairs]
        # No comparison sees a NaN that is not the first; a sum does.
        is_good = max(values, default=0) <= LARGEST and min(values, default=0) >= -LARGEST
        if not is_good or isnan(sum(values)):
            for index, value in pairs:
                # The pointer names the index as the client wrote it: a list counts from 0.
                self._number(f"/x/{index + 1 if isinstance(x, dict) else index}", value)
        return indices, values, _NO_NAMES

    def held(self) -> tuple[object, ...]:
        """What takes memory here that no other model shares."""
        if not self.is_hashed:
            return ()
        return self._places, self._told, self._told_places.slots, self._place_of

    @property
    @property
    def tells_names(self) -> bool:
        """Whether there is room for names that were not told yet."""
        return self.is_hashed and len(self._told) < MAX_NAMES

    def untold(self, names: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Those of these places and names that do not stand in the journal yet, as far as known."""
        return [pair for pair in names if pair[1] not in self._told]

    @property
    def told_places(self) -> Indices:
        """The places whose names stand in the journal, as solvers/text/ looks them up."""
        return self._told_places.slots

    def told(self, names: Sequence[tuple[int, str]], seq: int | None = None) -> None:
        """Remember that these names stand in the journal now, in records up to `seq`."""
        if names and (seq is None or seq > self._told_since):
            self._told.update(name for _, name in names)
            # A longer one can be `name=text` of which both are short enough, or a name too long.
            self._place_of |= {name: place for place, name in names if len(name) <= LONGEST_NAME}
            self._told_places.add({place for place, _ in names})

    def tell_names_again(self, since: int = 0) -> None:
        """Let every name ride along once more: those told up to `since` may be lost."""
        self._told_since = since
        if self.is_hashed:
            self._told.clear()
            self._place_of.clear()
            self._told_places = PlaceTable()

    def place(self, text: str) -> int:
        """The place (from 0) of the feature with index `text` (from 1); raises BadRow."""
        place = self._place_of.get(text)
        if place is not None:
            return place
        if text.isascii() and text.isdigit() and text[0] != "0":
            # Python reads no number of more than 4,300 digits.
            if len(text) <= _MAX_DIGITS and int(text) <= self.dim:
                return int(text) - 1
            raise BadRow(f"/x/{text}", f"index {beginning(text)} is above dim {self.dim}")
        reason = f"{quoted(text)} is not an index from 1 to {self.dim}"
        raise BadRow(f"/x/{pointer_step(text)}", reason)

    def _indexed(self, x: dict[str, float | bool | str]) -> list[tuple[int, float]]:
        place_of = self._place_of
        try:
            pairs = [(place_of[name], float(value)) for name, value in x.items() if value]
        except (KeyError, ValueError):
            pairs = [(self.place(name), self._value(name, value)) for name, value in x.items()]
            pairs = [pair for pair in pairs if pair[1]]
        else:
            if str in map(type, x.values()) or len(pairs) != len(x):
                for name, value in x.items():
                    self.place(name)
                    self._value(name, value)
        pairs.sort()
        return pairs

    def _hashed(
        self, x: Features, places: NamePlaces
    ) -> tuple[list[int], list[float], list[tuple[int, str]]]:
        """See features; what hash_row does, with every check, in one pass over the row."""
        if not isinstance(x, dict):
            raise BadRow("/x", "the model takes features by name: an object, not a list")
        place_of = self._place_of
        row: dict[int, float] = {}
        new: list[tuple[int, str]] = []
        for name, value in x.items():
            if isinstance(value, str):
                shown, number = f"{name}={value}", 1.0
            elif -LARGEST <= value <= LARGEST:
                shown, number = name, float(value)
            else:
                # The pointer is made for a bad number alone: it costs more than the check.
                shown, number = name, self._number(f"/x/{pointer_step(name)}", value)
            place = place_of.get(shown)
            if place is None:
                if len(name) > LONGEST_NAME or len(shown) - len(name) > LONGEST_NAME + 1:
                    pointer = f"/x/{pointer_step(name[:50])}"
                    raise BadRow(pointer, f"names and texts have at most {LONGEST_NAME} characters")
                place = places[shown]
                if shown not in self._told:
                    new.append((place, shown))
            row[place] = row[place] + number if place in row else number
        if len(row) < len(x) and not all(-LARGEST <= number <= LARGEST for number in row.values()):
            raise BadRow("/x", "features that share a place add up to more than 1e100")
        indices, values = sorted_row(row)
        return indices, values, new if len(self._told) < MAX_NAMES else _NO_NAMES

    def _value(self, name: str, value: float | bool | str) -> float:
        if isinstance(value, str):
            pointer = f"/x/{pointer_step(name)}"
            raise BadRow(pointer, f"the value must be a number or a bool, got {quoted(value)}")
        return float(value)

    def _dense(self, x: Sequence[float]) -> list[tuple[int, float]]:
        if len(x) != self.dim:
            raise BadRow("/x", f"the row has {len(x)} numbers, the model takes {self.dim}")
        return [(place, value) for place, value in enumerate(x) if value]

    def _number(self, pointer: str, value: float) -> float:
        if not -LARGEST <= value <= LARGEST:
            raise BadRow(pointer, f"the number must be in [-1e100, 1e100], got {quoted(value)}")
        return value

    def _label_names(self) -> str:
        if self.class_names:
            return " or ".join(map(repr, self.class_names))
        return "1, true, '1', '+1', 'true' or 0, -1, false, '0', '-1', 'false'"


_JSON_NUMBER = re.compile(r"[ \t\r\n]*-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?[ \t\r\n]*", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_value = msgspec.json.Decoder(float | int | bool)


def value_of(text: str) -> float | bool | str:
    """A text that is a JSON number is that number, true and false are bools, else it is itself.

    A number that no float holds comes out infinite.
    """
    try:
        value: float | int | bool = _value.decode(text)
        if type(value) is int:
            float(value)
    except (msgspec.DecodeError, UnicodeError, OverflowError):
        return float(text) if _JSON_NUMBER.fullmatch(text) else text
    return value


def feature_of(text: str) -> float | bool | str:
    """As `value_of`; numbers come as floats."""
    value = value_of(text)
    return float(value) if type(value) is int else value


def decimal_of(text: str) -> float | None:
    """The number that a text is, as LIBSVM lines hold them: 1, +1, .5, 1e-3; None for others."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def label_of(text: str, is_named: bool) -> Label:
    """The label that a text means; where a model names its labels, it is the text itself."""
    return text if is_named else value_of(text)


def weight_of(text: str) -> float:
    """The weight that a text means; raises BadRow for what is no number."""
    value = decimal_of(text.strip(" \t"))
    if value is None:
        raise BadRow("/weight", f"the weight must be a number, got {text[:50]!r}")
    return value
