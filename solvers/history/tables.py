"""Layout of the tables of history groups: the arrays that the kernel reads, and their sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.history import kernels as k
from dualstream.solvers.history.spec import (
    CLASSES,
    STATS,
    group_columns,
    half_life_seconds,
    slots_of,
)
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.rows.columns.inputs import Inputs

_BITS = dict(zip(STATS, (1 << bit for bit in range(len(STATS))), strict=True))
_LOGGED = ("since", "count")
"""Statistics that are log(1 + x)."""
_LINE = 8
"""Numbers of a cache line."""
_LANES = 4
"""Numbers that a vector instruction computes at once."""


class Layout:
    """Arrays of the kernel that follow from the specification, and sizes of those of the state."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], inputs: Inputs, task: str) -> None:
        self.classes = CLASSES if task == "multiclass" else 1
        most = max(len(group["half_life"]) for group in groups)
        self.groups: Ints = np.zeros((len(groups), k.GROUP_FIELDS), np.int64)
        self.rates: Floats = np.zeros((len(groups), lanes(most)))
        self.columns = self.sets = numbers = 0
        logged: list[int] = []
        by: list[int] = []
        for g, group in enumerate(groups):
            row = self.groups[g]
            row[k.BY_START] = len(by)
            by += [inputs.index_of_key(name) - inputs.width for name in group["by"]]
            row[k.BY_STOP] = len(by)
            row[k.TIME] = row[k.OF] = -1
            if group["time"] is not None:
                row[k.TIME] = inputs.index_of_time(group["time"]) - inputs.width
            if group["of"] is not None:
                row[k.OF] = inputs.index_of_value(group["of"]) - inputs.width
            rates = [_rate(half_life) for half_life in group["half_life"]]
            self.rates[g, : len(rates)] = rates
            row[k.TIMED] = any(isinstance(one, str) for one in group["half_life"])
            _lay_out_slot(row, group, self.classes)
            stats = self._stats_of(group)
            row[k.COLUMN], row[k.WIDTH] = self.columns, len(stats)
            logged += [at for at, stat in enumerate(stats, self.columns) if stat in _LOGGED]
            row[k.FIRST_SET], row[k.SETS] = self.sets, slots_of(group["keys"]) // k.WAYS
            row[k.FIRST_NUMBER] = numbers
            self.columns += int(row[k.WIDTH])
            self.sets += int(row[k.SETS])
            numbers += int(row[k.SETS] * k.WAYS * row[k.STRIDE])
        self.numbers = -(-numbers // _LINE) * _LINE
        self.by: Ints = np.array(by, np.int64)
        self.logged: Ints = np.array(logged, np.int64)

    def _stats_of(self, group: Mapping[str, Any]) -> list[str]:
        """The statistic of each column, those of classes included."""
        stats = (column.stat for column in group_columns(group))
        return [stat for stat in stats for _ in range(self.classes if is_of_class(stat) else 1)]


def is_of_class(stat: str) -> bool:
    """Whether a statistic of a multiclass model has a column for each class."""
    return stat in ("labels", "label_mean")


def lanes(count: int) -> int:
    """Room for numbers that vector instructions compute: a multiple of _LANES."""
    return -(-count // _LANES) * _LANES


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros of 8 bytes each that begin at a cache line."""
    count = int(np.prod(shape))
    whole = np.zeros(count + _LINE, dtype)
    skip = -whole.ctypes.data % (8 * _LINE) // 8
    return whole[skip : skip + count].reshape(shape)


def _rate(half_life: str | float) -> float:
    if isinstance(half_life, str):
        return 1.0 / half_life_seconds(half_life)
    return k.decay_of(1.0 / half_life)


def _lay_out_slot(row: Ints, group: Mapping[str, Any], classes: int) -> None:
    """Write the fields of a group about the numbers of a slot."""
    flags = sum(_BITS[stat] for stat in group["stats"])
    labels = (1 if flags & k.OF_LABELS else 0) + (classes if flags & k.LABEL_MEAN else 0)
    values = sum(1 for bits in (k.OF_WEIGHT, k.OF_MEAN, k.OF_SCATTER) if flags & bits)
    row[k.FLAGS] = flags
    row[k.HALF_LIVES] = len(group["half_life"])
    row[k.LAGS] = group["labels"]
    row[k.LAST_AT] = group["time"] is not None
    row[k.LAGS_AT] = row[k.LAST_AT] + (1 if flags & k.OF_LAST else 0)
    row[k.BLOCKS_AT] = row[k.LAGS_AT] + row[k.LAGS]
    row[k.BLOCK], row[k.LABELS_AT] = values + labels, values
    row[k.STRIDE] = row[k.BLOCKS_AT] + row[k.HALF_LIVES] * row[k.BLOCK]
