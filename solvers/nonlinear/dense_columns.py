"""DenseColumns: the features of a stream that are dense enough for a table with a column for each.

Rows are sparse and can have any width; trees, neighbours and splines need columns. A feature gets a
free column when it first occurs in a learned row. When all MAX_COLUMNS are taken, occurrences are
counted for up to MAX_CANDIDATES features, and a review after every REVIEW_ROWS learned rows gives
the column of the rarest feature to a candidate that occurred more than twice as often, as long as
there is one. Then all counts are halved, and candidates whose count is 0 are forgotten. So the
columns are a function of the learned rows alone.

A feature without a column is ignored. A value beyond LARGEST_VALUE counts as that.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, I8, RO_F8, RO_I4, Ints, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

MAX_COLUMNS = 128
MAX_CANDIDATES = 2048
"""Features that are counted, with and without a column."""
REVIEW_ROWS = 1024
LARGEST_VALUE = 1e38
"""Values are stored in single precision."""

# Numbers in `k` of the kernels; a learner has its own after these.
COLUMNS, COUNTED, SINCE_REVIEW = range(3)
"""Columns in use, features counted, learned rows since the last review."""
N_OF_COLUMNS = 3

_CELLS = 2 * MAX_CANDIDATES
_FREE = -1
_MULTIPLIER = 0x9E3779B1


def columns_with_room(used: int) -> int:
    """Columns of an array that has room for `used`: a power of two, at least 4."""
    room = 4
    while room < used:
        room *= 2
    return room


class DenseColumns:
    """Which feature has which column.

    keys, columns, counts   (_CELLS,) a hash table: feature, its column or -1, its count
    """

    def __init__(self) -> None:
        self.keys = np.full(_CELLS, _FREE, np.int64)
        self.columns = np.full(_CELLS, _FREE, np.int64)
        self.counts = np.zeros(_CELLS, np.int64)

    @property
    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """The table as kernels take it."""
        return self.keys, self.columns, self.counts

    def review(self, k: Ints) -> list[int]:
        """Give columns to more frequent features; the columns that changed their feature."""
        changed: list[int] = []
        used = np.flatnonzero(self.keys != _FREE)
        # Ties are decided by the feature, not by its cell.
        used = used[np.argsort(self.keys[used])]
        while True:
            has = self.columns[used] != _FREE
            if has.all():
                break
            with_one, without = used[has], used[~has]
            rare = with_one[np.argmin(self.counts[with_one])]
            frequent = without[np.argmax(self.counts[without])]
            if self.counts[frequent] <= 2 * self.counts[rare]:
                break
            self.columns[frequent], self.columns[rare] = self.columns[rare], _FREE
            changed.append(int(self.columns[frequent]))
        self.counts[used] //= 2
        stay = used[(self.counts[used] > 0) | (self.columns[used] != _FREE)]
        self._set(self.keys[stay], self.columns[stay], self.counts[stay], k)
        return changed

    def _set(self, keys: Ints, columns: Ints, counts: Ints, k: Ints) -> None:
        self.keys[:] = self.columns[:] = _FREE
        self.counts[:] = 0
        enter_features(keys, columns, counts, *self.arrays)
        k[COUNTED], k[COLUMNS] = len(keys), int(np.count_nonzero(columns != _FREE))
        k[SINCE_REVIEW] = 0

    def features(self, n: int) -> Ints:
        """The feature of each of the n columns in use."""
        features = np.full(n, _FREE, np.int64)
        has = self.columns != _FREE
        features[self.columns[has]] = self.keys[has]
        return features

    def state(self, k: Ints) -> State:
        """Features in increasing order, their columns and counts, and the rows since a review."""
        used = np.flatnonzero(self.keys != _FREE)
        used = used[np.argsort(self.keys[used])]
        return {
            "features": self.keys[used],
            "columns": self.columns[used],
            "counts": self.counts[used],
            "since_review": np.array(k[SINCE_REVIEW]),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], dim: int, k: Ints) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""
        n = np.asarray(state.get("features", [])).size
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("features", "columns", "counts"), (n,))
        check_arrays(state, {**shapes, "since_review": ()})
        keys, columns, counts = (np.array(state[name], np.int64) for name in shapes)
        since = int(state["since_review"])
        taken = np.sort(columns[columns != _FREE])
        if not (
            n <= MAX_CANDIDATES
            and (n == 0 or (keys[0] >= 0 and keys[-1] < dim and bool((np.diff(keys) > 0).all())))
            and len(taken) == min(n, MAX_COLUMNS)
            and np.array_equal(taken, np.arange(len(taken)))
            and bool((columns >= _FREE).all() and (counts >= 0).all())
            and 0 <= since < REVIEW_ROWS
        ):
            raise CorruptState("the columns are damaged")
        self._set(keys, columns, counts, k)
        k[SINCE_REVIEW] = since


@kernel(inline=True)
def cell_of(feature: int, keys: I8) -> int:
    """The cell of a feature, or the free cell where it belongs."""
    last = keys.shape[0] - 1
    cell = (np.int64(feature) * _MULTIPLIER >> 7) & last
    while keys[cell] != feature and keys[cell] != _FREE:
        cell = (cell + 1) & last
    return int(cell)


@kernel
def enter_features(
    features: I8, own_columns: I8, counted: I8, keys: I8, columns: I8, counts: I8
) -> None:
    """Enter features, their columns and counts in an empty table."""
    for i in range(features.shape[0]):
        cell = cell_of(features[i], keys)
        keys[cell], columns[cell], counts[cell] = features[i], own_columns[i], counted[i]


@kernel(inline=True)
def give_column(feature: int, room: int, keys: I8, columns: I8, k: I8) -> int:
    """Give a new feature a column; 0 if it needs one beyond `room` columns, else 1."""
    cell = cell_of(feature, keys)
    if keys[cell] != _FREE or k[COUNTED] == MAX_CANDIDATES:
        return 1
    if k[COLUMNS] < MAX_COLUMNS:
        if k[COLUMNS] == room:
            return 0
        columns[cell] = k[COLUMNS]
        k[COLUMNS] += 1
    keys[cell] = feature
    k[COUNTED] += 1
    return 1


@kernel(inline=True)
def count_feature(feature: int, keys: I8, counts: I8) -> None:
    """Count a feature of a learned row."""
    cell = cell_of(feature, keys)
    if keys[cell] != _FREE:
        counts[cell] += 1


@kernel(inline=True)
def give_columns(
    indices: RO_I4, begin: int, end: int, room: int, keys: I8, columns: I8, k: I8
) -> int:
    """Give the new features of one learned row a column; 0 if one is needed beyond `room`."""
    for p in range(begin, end):
        if give_column(indices[p], room, keys, columns, k) == 0:
            return 0
    return 1


@kernel(inline=True)
def count_learned(indices: RO_I4, begin: int, end: int, keys: I8, counts: I8, k: I8) -> None:
    """Count one learned row and its features."""
    for p in range(begin, end):
        count_feature(indices[p], keys, counts)
    k[SINCE_REVIEW] += 1


@kernel(inline=True, inner=False)
def count_features(
    indices: RO_I4, begin: int, end: int, room: int, keys: I8, columns: I8, counts: I8, k: I8
) -> int:
    """Count the features of one learned row and give new ones a column; 1 if done.

    Returns 0, and has counted nothing, if a column is needed beyond `room` columns: make room, up
    to MAX_COLUMNS, and call again.
    """
    if give_columns(indices, begin, end, room, keys, columns, k) == 0:
        return 0
    count_learned(indices, begin, end, keys, counts, k)
    return 1


@kernel(inline=True)
def set_value(feature: int, value: float, keys: I8, columns: I8, x: F8) -> None:
    """Set the column of a feature in x, in single precision."""
    cell = cell_of(feature, keys)
    if keys[cell] != _FREE and columns[cell] != _FREE:
        x[columns[cell]] = np.float32(max(min(value, LARGEST_VALUE), -LARGEST_VALUE))


@kernel(inline=True)
def dense_row(
    indices: RO_I4, values: RO_F8, begin: int, end: int, keys: I8, columns: I8, k: I8, x: F8
) -> None:
    """x[:columns in use]: the row's values in single precision, 0 where it has none."""
    for j in range(k[COLUMNS]):
        x[j] = 0.0
    for p in range(begin, end):
        set_value(indices[p], values[p], keys, columns, x)
