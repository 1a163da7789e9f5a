"""Sums over the rows of one request, bit for bit equal for lists and arrays.

Lists are faster for few rows, arrays for many. A repeated request may meet the other kind.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

MIN_ARRAY_ROWS = 64
"""Fewer rows are kept as lists."""

Column = Sequence[Any] | np.ndarray


def indices_where(flags: Column | None) -> list[int]:
    """Indices of the flags that are set."""
    if flags is None:
        return []
    if isinstance(flags, np.ndarray):
        found: list[int] = np.flatnonzero(flags).tolist()
        return found
    if True not in flags:
        return []
    return [index for index, is_set in enumerate(flags) if is_set]


def where_not(flags: Column | None, column: Column) -> Column:
    """Elements of the column whose flag is not set."""
    if flags is None:
        return column
    if isinstance(column, np.ndarray):
        return column[~np.asarray(flags, np.bool_)]
    return [one for one, is_set in zip(column, flags, strict=True) if not is_set]


def mean(losses: Column) -> float | None:
    """Mean, summed from the first element to the last; None without elements."""
    if not len(losses):
        return None
    if isinstance(losses, np.ndarray):
        return (0.0 + float(np.cumsum(losses)[-1])) / len(losses)
    # Not `sum`: from Python 3.12 on it compensates rounding errors.
    return reduce(add, losses, 0.0) / len(losses)


def count(flags: Column) -> int:
    """Number of flags that are set."""
    return int(np.count_nonzero(flags)) if isinstance(flags, np.ndarray) else sum(map(bool, flags))


def are_wrong(scores: Column, labels: Column) -> Column:
    """Mask of rows of a binary model that were scored on the wrong side."""
    if isinstance(scores, np.ndarray):
        wrong: np.ndarray = (scores >= 0) != (np.asarray(labels) == 1.0)
        return wrong
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    return [(s >= 0) != (y == 1.0) for s, y in zip(scores, labels, strict=True)]
