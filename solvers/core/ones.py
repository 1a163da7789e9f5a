"""Ones that all share: what most rows of words and of categories hold, and most weights.

Nobody has to write them, they are counted to nobody's memory, and a processor that learns row after
row has them at hand.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 1 << 17


@cache
def _ones() -> npt.NDArray[np.float64]:
    ones = np.ones(_MOST)
    ones.flags.writeable = False
    return ones


def shared_ones(count: int) -> npt.NDArray[np.float64]:
    """(count,) ones, not to be written: the same for all, unless they are very many."""
    return _ones()[:count] if count <= _MOST else np.ones(count)


def are_shared_ones(array: npt.NDArray[Any]) -> bool:
    """Whether this is a part of what all share."""
    return array.base is _ones()
