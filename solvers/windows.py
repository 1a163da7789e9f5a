"""Which rows count, and how much: delta(n, N), the weight of row n once row N is there.

| window      | delta(n, N)                   | Delta_N = sum of delta(n, N)  |
|-------------|-------------------------------|-------------------------------|
| infinite    | c_n                           | Delta + c_N                   |
| exponential | c_n beta^(N - n)              | beta Delta + c_N              |
| sliding     | c_n for the last L rows, or 0 | the sum of the last L weights |

with c_n the weight of the row itself. A row of weight 0 is in no window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.batch import Batch
from solvers.errors import CorruptState, SolverError
from solvers.fixed_spec import WorkedOut


@dataclass(frozen=True, slots=True)
class Window(WorkedOut):
    """A window as the numbers that kernels take."""

    beta: float = 1.0
    """What every weight is multiplied by when a row comes in."""
    length: int = 0
    """How many rows count; 0: all of them."""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Window":
        """The window of a resolved specification."""
        window = spec["window"]
        if window == "infinite":
            return cls()
        return cls(beta=window.get("beta", 1.0), length=window.get("length", 0))


LABEL, WEIGHT, DUAL = range(3)
"""The columns of `Ring.rows`."""

RING_ARRAYS = tuple(
    f"ring_{name}" for name in ("indptr", "indices", "values", "labels", "weights", "duals")
)
"""What a ring is in a state."""


class RowBuffer:
    """The last rows learned, at most `retain`, oldest first, in arrays that kernels append to.

    Rows stand one behind the other. Kernels append behind the last and move `first` on, and stop
    when an array is full; `make_room` then moves what is retained to the front, into other arrays
    where these have little room left or far too much. So memory is about one and a half times what
    is retained and never four times, an append costs no more than three copies, and what is
    retained is always in one piece.

    starts   (capacity + 1,)      row i holds entries starts[i] to starts[i + 1]
    indices  (entries,)           values (*value_shape, entries)
    rows     (capacity, columns)  what else is known of a row
    """

    def __init__(self, retain: int, columns: int, value_shape: tuple[int, ...] = ()) -> None:
        self.retain = retain
        self._columns, self._value_shape = columns, value_shape
        # Half as many as are retained come before they have to be moved again.
        self._most = retain + max(1, retain // 2)
        self._allocate(min(self._most, 64), 1024)

    def _allocate(self, capacity: int, entries: int) -> None:
        self.starts = np.empty(capacity + 1, np.int64)
        self.starts[0] = 0
        self.rows = np.empty((capacity, self._columns))
        self.indices = np.empty(entries, np.int32)
        self.values = np.empty((*self._value_shape, entries))

    @property
    def bytes_held(self) -> int:
        """What it takes of memory."""
        return sum(map(getsizeof, (self.starts, self.rows, self.indices, self.values)))

    def make_room(self, first: int, last: int, entries: int, more: int = 1) -> None:
        """Move rows `first` to `last` to the front, with room for more that have so many entries.

        Not more than are retained, and one.
        """
        start, end = self.starts[first], self.starts[last]
        starts, rows = self.starts[first : last + 1] - start, self.rows[first:last]
        indices, values = self.indices[start:end], self.values[..., start:end]
        self.hold(starts, rows, indices, values, entries, more)

    def rows_between(self, first: int, last: int) -> tuple[npt.NDArray[Any], ...]:
        """Starts from 0 on, rows, indices and values of rows `first` to `last`, as copies."""
        start, end = self.starts[first], self.starts[last]
        starts, rows = self.starts[first : last + 1] - start, self.rows[first:last].copy()
        return starts, rows, self.indices[start:end].copy(), self.values[..., start:end].copy()

    def remove(self, first: int, last: int, at: int) -> None:
        """Hold rows `first` to `last` without row `at`, from place 0 on, and nothing of it."""
        starts, rows, indices, values = self.rows_between(first, last)
        begin, end = starts[at - first], starts[at - first + 1]
        starts = np.delete(starts, at - first)
        starts[at - first :] -= end - begin
        gap = slice(begin, end)
        self.hold(
            starts,
            np.delete(rows, at - first, axis=0),
            np.delete(indices, gap),
            np.delete(values, gap, axis=-1),
        )
        self.rows[len(rows) - 1 :] = 0.0
        self.indices[starts[-1] :] = 0
        self.values[..., starts[-1] :] = 0.0

    def hold(
        self,
        starts: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        values: npt.NDArray[Any],
        entries: int = 0,
        more: int = 1,
    ) -> None:
        """Hold these rows from place 0 on, with room for more that have so many entries."""
        self._fit(len(rows) + more, len(indices) + entries)
        self.starts[: len(starts)] = starts
        self.rows[: len(rows)] = rows
        self.indices[: len(indices)] = indices
        self.values[..., : len(indices)] = values

    def _fit(self, rows: int, entries: int) -> None:
        """Arrays for so many rows, and for those that come until they are moved again."""
        capacity = min(self._most, max(64, 2 * rows))
        room = max(1024, min(2 * entries, entries * capacity // rows))
        # Arrays that are large enough stay: new ones would come page by page.
        is_enough = entries + entries // 8 <= len(self.indices) <= 2 * room
        if len(self.rows) != capacity or not is_enough:
            self._allocate(capacity, room)


class Ring(RowBuffer):
    """Retained rows with their label, weight and dual variable: rows (capacity, 3)."""

    def __init__(self, retain: int) -> None:
        super().__init__(retain, 3)

    def state(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        """Rows `first` to `last`, as copies."""
        starts, rows, indices, values = self.rows_between(first, last)
        return {
            "ring_indptr": starts,
            "ring_indices": indices.astype(np.int64),
            "ring_values": values,
            "ring_labels": rows[:, LABEL].copy(),
            "ring_weights": rows[:, WEIGHT].copy(),
            "ring_duals": rows[:, DUAL].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], dim: int) -> int:
        """Hold the rows of such a state, from place 0 on; return how many there are.

        Raises CorruptState, and then nothing has changed.
        """
        missing = [name for name in RING_ARRAYS if name not in state]
        if missing:
            raise CorruptState(f"the state has no {missing[0]}")
        indptr, labels = state["ring_indptr"], state["ring_labels"]
        try:
            # Rows that some kernel will follow by index: checked as any others.
            retained = Batch(
                indptr,
                state["ring_indices"].astype(np.int32),
                state["ring_values"],
                labels,
                state["ring_weights"],
                dim,
            )
        except SolverError as error:
            raise CorruptState(f"the retained rows are damaged: {error}") from error
        n = len(retained)
        if not np.isfinite(labels).all():
            raise CorruptState("a retained row has no label")
        if n > self.retain:
            raise CorruptState(f"{n} retained rows where at most {self.retain} are kept")
        duals = state["ring_duals"]
        if duals.shape != (n,) or not np.isfinite(duals).all():
            raise CorruptState("the retained rows and their dual variables do not fit together")
        rows = np.stack([labels, retained.weights, duals], axis=1)
        self.hold(indptr, rows, retained.indices, retained.values)
        return n
