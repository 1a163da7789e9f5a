"""What rows keep, besides their score, while they wait for their labels."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Parts = npt.NDArray[np.float64]


def joined_parts(columns: Sequence[_Parts | None], counts: Sequence[int]) -> _Parts | None:
    """Concatenate `served_parts` of runs of `counts` rows; missing numbers are NaN."""
    width = max((0 if column is None else column.shape[1] for column in columns), default=0)
    if not width:
        return None
    joined, row = np.full((sum(counts), width), np.nan), 0
    for column, count in zip(columns, counts, strict=True):
        if column is not None:
            joined[row : row + count, : column.shape[1]] = column
        row += count
    return joined


def columns_of(parts: _Parts | None, first: int, stop: int | None = None) -> _Parts | None:
    """A copy of some columns; None without any."""
    if parts is None or not len(range(parts.shape[1])[first:stop]):
        return None
    return np.ascontiguousarray(parts[:, first:stop])
