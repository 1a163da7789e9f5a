"""The stage of history columns: rows with inputs become rows with columns of their keys' past.

The kernel is in kernels.py, and tables.py lays out its arrays. The stage is in front of the whole
learner. Its rows have entered even if the learner rejects them, so it has no `undo`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.history import kernels as k
from dualstream.solvers.history.spec import CLASSES, group_columns
from dualstream.solvers.history.tables import Layout, aligned_zeros, is_of_class, lanes
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch, moved_labels
from dualstream.solvers.rows.class_names import class_label, names_of, names_state
from dualstream.solvers.rows.columns.inputs import Inputs
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.rows.scalar import CACHED

_NONE = np.empty(0)
_DTYPES = {
    "table": np.int64,
    "numbers": np.float64,
    "clock": np.int64,
    "totals": np.float64,
    "counts": np.int64,
}


class HistoryColumns:
    """History columns of some groups, with the state of their keys.

    groups  resolved groups of the specification; see spec.py
    inputs  where a row carries keys, times and values
    bits    columns are at hashed indices of this many bits
    task    of the model: labels of a binary one count as 0 and 1

    A learned row is read, then enters with its label. One of weight 0 is only read. One without a
    label enters without one unless it is empty, and gets no columns. A late label (`served`) is
    counted with its row's keys and time, and the row keeps the columns that it has. If it replaces
    another label, that one is taken out.
    """

    def __init__(
        self, groups: Sequence[Mapping[str, Any]], inputs: Inputs, bits: int, task: str
    ) -> None:
        self._groups, self._bits, self._task = groups, bits, task
        self._row_width, self._width = inputs.row_width, inputs.width
        layout = Layout(groups, inputs, task)
        self._table = aligned_zeros((2 * layout.sets, k.WAYS), np.int64)
        self._numbers = aligned_zeros((layout.numbers,), np.float64)
        self._clock = np.zeros(1, np.int64)
        self._totals = np.zeros(1 + layout.classes)
        self._counts = np.zeros((len(groups), k.COUNT_FIELDS), np.int64)
        self._classes: tuple[str, ...] = ()
        self._constants = (
            task == "binary", self._width, layout.groups, layout.by, layout.rates, layout.logged,
        )  # fmt: skip
        self._arrays: Any = (
            self._table,
            self._numbers,
            self._numbers.reshape(-1, 8),
            self._clock,
            self._totals,
            self._counts,
            np.empty((k.RING, self._row_width - self._width)),
            np.empty((k.RING, 2 * len(groups) + 1), np.int64),
            np.empty((3, layout.rates.shape[1])),
            np.zeros(lanes(len(layout.logged))),
            np.empty(layout.columns),
        )
        self._ahead = k.AHEAD if self._table.size + self._numbers.size > CACHED else 0
        self._index_columns()

    def learn(self, batch: Batch) -> Batch:
        """The rows with their columns, each before it enters; rows (n,) of width `row_width` become
        rows of width `width`."""
        return self._applied(batch, True)

    def peek(self, batch: Batch) -> Batch:
        """The rows with their columns; no row enters."""
        return self._applied(batch, False)

    def _applied(self, batch: Batch, learns: bool) -> Batch:
        batch.check_width(self._row_width)
        labels, replaced = batch.labels, _NONE if batch.replaced is None else batch.replaced
        if learns and batch.classes:
            labels, replaced = self._class_numbers(batch, replaced)
        n = len(labels)
        room = len(batch.values) + n * len(self._features)
        indptr = np.zeros(n + 1, np.int64)
        indices, values = np.empty(room, np.int32), np.empty(room)
        served = _NONE if batch.served is None else batch.served
        arguments: Any = (
            batch.indptr, batch.indices, batch.values, labels, batch.weights, served, replaced,
            learns, *self._constants, self._features, self._columns, *self._arrays,
            self._ahead if n > 1 else 0, indptr, indices, values,
        )  # fmt: skip
        used = k.apply_rows(*arguments)
        return batch.with_rows(indptr, indices[:used], values[:used], self._width)

    def _class_numbers(self, batch: Batch, replaced: Floats) -> tuple[Floats, Floats]:
        """Labels (n,), and those that they replace, as numbers of the first classes in order of
        appearance; -1 for another."""
        if len(self._classes) < CLASSES:
            learned = batch.labels[(batch.weights > 0.0) & (batch.labels == batch.labels)]
            appeared = [batch.classes[int(label)] for label in dict.fromkeys(learned.tolist())]
            classes = tuple(dict.fromkeys((*self._classes, *appeared)))[:CLASSES]
            if classes != self._classes:
                self._classes = classes
                self._index_columns()
        numbers = {name: float(number) for number, name in enumerate(self._classes)}
        number_of_class = np.array([numbers.get(name, -1.0) for name in batch.classes])
        return moved_labels(batch.labels, number_of_class), moved_labels(replaced, number_of_class)

    def _index_columns(self) -> None:
        """Find the features of all columns that have a name by now."""
        names = self._names()
        named = np.array([at for at, name in enumerate(names) if name is not None], np.int64)
        features = hash_names([name for name in names if name is not None], self._bits)
        order = np.argsort(features, kind="stable")
        self._columns, self._features = named[order], features[order].astype(np.int32)

    def _names(self) -> list[str | None]:
        """Names of the columns (columns,) in the order of the kernel; None for an unknown class."""
        names: list[str | None] = []
        for column in (one for group in self._groups for one in group_columns(group)):
            if self._task == "multiclass" and is_of_class(column.stat):
                names += [f"{column.name}={_text_of(name)}" for name in self._classes]
                names += [None] * (CLASSES - len(self._classes))
            else:
                names.append(column.name)
        return names

    @property
    def names(self) -> list[str]:
        """Names of the columns; of a class as NAME=CLASS, once it has appeared."""
        return [name for name in self._names() if name is not None]

    @property
    def counts(self) -> list[dict[str, int]]:
        """Of each group since the start: rows older than their key's newest, evicted keys, late
        labels of evicted keys, new keys; and keys in the table now."""
        names = ("late", "evicted", "lost_labels", "new")
        counts = [dict(zip(names, row, strict=True)) for row in self._counts.tolist()]
        return [one | {"keys": one["new"] - one["evicted"]} for one in counts]

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self._table.nbytes + self._numbers.nbytes

    def _parts(self) -> State:
        return {
            "table": self._table,
            "numbers": self._numbers,
            "clock": self._clock,
            "totals": self._totals,
            "counts": self._counts,
        }

    def state(self) -> State:
        """The tables and counts, as copies."""
        state = {name: array.copy() for name, array in self._parts().items()}
        return state | names_state(self._classes) if self._task == "multiclass" else state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""
        parts = self._parts()
        check_arrays(state, {name: array.shape for name, array in parts.items()})
        for name, dtype in _DTYPES.items():
            if np.asarray(state[name]).dtype != dtype:
                raise CorruptState(f"{name} is of type {np.asarray(state[name]).dtype}")
        keys, rows = state["table"][::2], state["table"][1::2]
        is_sound = not ((keys == 0) != (rows == 0)).any() and rows.min() >= 0
        if not is_sound or rows.max() > state["clock"][0]:
            raise CorruptState("the rows of last use do not fit the keys of the table")
        if state["totals"][0] < 0.0 or state["counts"].min() < 0:
            raise CorruptState("a count is negative")
        classes = names_of(state) if self._task == "multiclass" else ()
        if len(classes) > CLASSES:
            raise CorruptState(f"the state has columns for more than {CLASSES} classes")
        for name, array in parts.items():
            array[...] = state[name]
        if classes != self._classes:
            self._classes = classes
            self._index_columns()


def _text_of(name: str) -> str:
    """A class as columns are named: a string without its quotes."""
    label = class_label(name)
    return label if isinstance(label, str) else name
