"""Sums over the rows of one request, to the bit the same over a list as over an array.

Of a few rows lists are faster, of many arrays; a request that is repeated may meet the other kind.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

MIN_ARRAY_ROWS = 64
"""Fewer rows than that are told as lists."""

Column = Sequence[Any] | np.ndarray


def indices_where(flags: Column | None) -> list[int]:
    """The places of the flags that are set."""
    if flags is None:
        return []
    if isinstance(flags, np.ndarray):
        found: list[int] = np.flatnonzero(flags).tolist()
        return found
    if True not in flags:
        return []
    return [place for place, is_set in enumerate(flags) if is_set]


def where_not(flags: Column | None, column: Column) -> Column:
    """What stands in the column where no flag is set."""
    if flags is None:
        return column
    if isinstance(column, np.ndarray):
        return column[~np.asarray(flags, np.bool_)]
    return [one for one, is_set in zip(column, flags, strict=True) if not is_set]


def mean(losses: Column) -> float | None:
    """Their mean, summed one after the other from the first; None of none."""
    if not len(losses):
        return None
    if isinstance(losses, np.ndarray):
        return (0.0 + float(np.cumsum(losses)[-1])) / len(losses)
    # Later Pythons' sum carries what is lost by rounding.
    return reduce(add, losses, 0.0) / len(losses)


def count(flags: Column) -> int:
    """How many are set."""
    return int(np.count_nonzero(flags)) if isinstance(flags, np.ndarray) else sum(map(bool, flags))


def are_wrong(scores: Column, labels: Column) -> Column:
    """Which rows of a binary model were scored on the wrong side."""
    if isinstance(scores, np.ndarray):
        wrong: np.ndarray = (scores >= 0) != (np.asarray(labels) == 1.0)
        return wrong
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    return [(s >= 0) != (y == 1.0) for s, y in zip(scores, labels, strict=True)]
