"""Inputs: what a row carries for the history of its keys, in addition to its features.

A row of a model with `history` is wider than its features by one entry for each key column, each
column of times and each column of values that the groups name, in the order of their first use:

    key     a whole number from 1 to 2^53, the hash of the category's text
    time    seconds of Unix time
    value   the number; 0 is carried as ZERO of text/tokens.py, because rows store no zeros

The journal has them, and solvers/history/ turns them into columns. What a row lacks is absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.text.tokens import hash_key
from dualstream.solvers.spec_cache import SharedDerived, derived_once

_SHORT = 64
"""Maximum characters of a key whose number is cached."""


@dataclass(frozen=True, slots=True)
class Inputs(SharedDerived):
    """Columns whose values a row carries. `width` is the number of features."""

    width: int
    keys: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys or self.times or self.values)

    @property
    def row_width(self) -> int:
        """Width of a row with its inputs."""
        return self.width + len(self.keys) + len(self.times) + len(self.values)

    def index_of_key(self, name: str) -> int:
        """Index of a key column in a row."""
        return self.width + self.keys.index(name)

    def index_of_time(self, name: str) -> int:
        """Index of a column of times in a row."""
        return self.width + len(self.keys) + self.times.index(name)

    def index_of_value(self, name: str) -> int:
        """Index of a column of values in a row."""
        return self.width + len(self.keys) + len(self.times) + self.values.index(name)


@derived_once
def inputs_of(spec: Mapping[str, Any]) -> Inputs:
    """The inputs of a resolved specification; none without `history`."""
    groups = spec.get("history") or ()
    return Inputs(
        width_of(spec["features"]),
        _distinct(name for group in groups for name in group["by"]),
        _distinct(group["time"] for group in groups),
        _distinct(group["of"] for group in groups),
    )


def row_width(spec: Mapping[str, Any]) -> int:
    """Width of the rows of a resolved specification: its features and inputs."""
    return inputs_of(spec).row_width


def depends_on_past(spec: Mapping[str, Any]) -> bool:
    """Are columns of a resolved specification computed from earlier rows: history, or ages?"""
    return bool(spec.get("history") or age_features(spec))


def key_number(text: str) -> float:
    """The input of a key: a whole number from 1 to 2^53."""
    return _cached_hash(text) if len(text) <= _SHORT else _hash(text)


def _hash(text: str) -> float:
    # A bytearray, because numba takes no read-only buffer here.
    encoded = bytearray(text.encode("utf-8", "surrogatepass"))
    return hash_key(np.frombuffer(encoded, np.uint8), 0, len(encoded))


_cached_hash = lru_cache(8192)(_hash)
"""Rows that Python reads one by one call no kernel then, which is several times as slow."""


def _distinct(names: Iterable[str | None]) -> tuple[str, ...]:
    """Names in the order of their first use."""
    return tuple(dict.fromkeys(name for name in names if name is not None))
