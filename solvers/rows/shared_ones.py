"""Shared read-only array of ones, for the values and weights of most rows.

Rows of words and of categories hold only ones. A shared array saves writing them, uses no memory
per batch, and stays in the processor's cache.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_MAX_SHARED = 1 << 17


@cache
def _ones() -> npt.NDArray[np.float64]:
    ones = np.ones(_MAX_SHARED)
    ones.flags.writeable = False
    return ones


def shared_ones(count: int) -> npt.NDArray[np.float64]:
    """(count,) read-only ones; shared, unless `count` is very large."""
    return _ones()[:count] if count <= _MAX_SHARED else np.ones(count)


def are_shared_ones(array: npt.NDArray[Any]) -> bool:
    """Whether the array is a part of the shared ones."""
    return array.base is _ones()
