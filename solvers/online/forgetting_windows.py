"""Windows: which rows count, and delta(n, N), the weight of row n after row N.

| window      | delta(n, N)                   | Delta_N = sum of delta(n, N)  |
|-------------|-------------------------------|-------------------------------|
| infinite    | c_n                           | Delta + c_N                   |
| exponential | c_n beta^(N - n)              | beta Delta + c_N              |
| sliding     | c_n for the last L rows, or 0 | the sum of the last L weights |

with c_n the weight of the row itself. A row of weight 0 is in no window.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualstream.solvers import jit
from dualstream.solvers.errors import CorruptState
from dualstream.solvers.protocols.state_numbers import is_storable, rows_of_state
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.shared_ones import are_shared_ones
from dualstream.solvers.spec_cache import SharedDerived


@dataclass(frozen=True, slots=True)
class Window(SharedDerived):
    """A window as the numbers that kernels take."""

    beta: float = 1.0
    """Factor of every weight when a row is learned."""
    length: int = 0
    """Number of rows that count; 0: all of them."""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Window":
        """The window of a resolved specification."""
        window = spec["window"]
        if window == "infinite":
            return cls()
        return cls(beta=window.get("beta", 1.0), length=window.get("length", 0))


LABEL, WEIGHT, DUAL = range(3)
"""Columns of `Ring.rows`."""

RING_ARRAYS = tuple(
    f"ring_{name}" for name in ("indptr", "indices", "values", "labels", "weights", "duals")
)
"""State arrays of a ring."""


RING = tuple[jit.I8, jit.I4, jit.F8, jit.F8_2D]
"""A ring as one argument of kernels: `RowBuffer.arrays`, as starts, indices, values and rows."""


class _PendingRows(NamedTuple):
    """Rows that were learned but not yet copied into the arrays of a buffer.

    columns         indptr, indices, values, labels and weights of a batch, and taus, NaN of rows
                    that are not retained
    start           index of the first retained row
    is_binary       whether a label of 0 means -1
    n, entries      number of retained rows, and of their entries
    """

    columns: tuple[jit.Ints, jit.Indices, jit.Floats, jit.Floats, jit.Floats, jit.Floats]
    start: int
    is_binary: bool
    n: int
    entries: int


class RowBuffer:
    """Buffer of the last learned rows, at most `retain`, oldest first, in arrays that kernels
    append to.

    Rows are contiguous. Kernels append at the end, advance `first`, and stop when an array is full.
    `make_room` then moves the retained rows to the front, into other arrays if these are nearly
    full or far too large. So memory is about 1.5 times the retained rows and never four times, an
    append costs at most three copies, and the retained rows are always contiguous.

    Rows learned in bulk stay in their batch, if that takes no more memory, until the arrays are
    first read. Many models leave memory before that, and copying the rows would take a good part of
    the time to learn them.
    """

    def __init__(self, retain: int, columns: int, value_shape: tuple[int, ...] = ()) -> None:
        self.retain = retain
        self._columns, self._value_shape = columns, value_shape
        # Half as many rows as are retained arrive before the next move.
        self._max_rows = retain + max(1, retain // 2)
        self._own_arrays: RING | None = None
        self._pending: _PendingRows | None = None

    @property
    def arrays(self) -> RING:
        """Starts, indices, values and rows; allocated, and filled with the pending rows, on first
        access."""
        arrays = self._own_arrays
        return self._made() if arrays is None else arrays

    def _made(self) -> RING:
        # Read `_pending` first: another thread that fills the arrays assigns them before it clears
        # `_pending`.
        pending, arrays = self._pending, self._own_arrays
        if arrays is None:
            arrays = self._arrays_for(*self._first_room(pending))
            if pending is not None:
                retain_rows(*pending.columns, pending.start, pending.is_binary, 0, *arrays)
            self._own_arrays, self._pending = arrays, None
        return arrays

    @property
    def starts(self) -> jit.Ints:
        """(capacity + 1,): row i holds entries starts[i] to starts[i + 1]."""
        return self.arrays[0]

    @property
    def indices(self) -> jit.Indices:
        """(entries,)"""
        return self.arrays[1]

    @property
    def values(self) -> jit.Floats:
        """(*value_shape, entries)"""
        return self.arrays[2]

    @property
    def rows(self) -> jit.Floats:
        """(capacity, columns): the other numbers of each row."""
        return self.arrays[3]

    def _first_room(self, pending: _PendingRows | None) -> tuple[int, int]:
        if pending is None:
            return min(self._max_rows, 64), 1024
        return self._room_for(pending.n, pending.entries)

    def _arrays_for(self, capacity: int, entries: int) -> RING:
        starts = np.empty(capacity + 1, np.int64)
        starts[0] = 0
        indices, values = np.empty(entries, np.int32), np.empty((*self._value_shape, entries))
        return starts, indices, values, np.empty((capacity, self._columns))

    @property
    def bytes_held(self) -> int:
        """Memory in bytes; before the arrays exist, what they will take."""
        if self._own_arrays is not None:
            return sum(map(getsizeof, self._own_arrays))
        return self._bytes_of(*self._first_room(self._pending)) + _OVERHEAD_BYTES

    def _bytes_of(self, rows: int, entries: int) -> int:
        """Bytes for this many rows and entries."""
        per_entry = 4 + 8 * math.prod(self._value_shape)
        return 8 * (1 + self._columns) * rows + per_entry * entries

    def make_room(self, first: int, last: int, entries: int, more: int = 1) -> None:
        """Move rows `first` to `last` to the front, with room for rows of this many more entries.

        The room is for at most `retain` rows, and one more.
        """
        start, end = self.starts[first], self.starts[last]
        starts, rows = self.starts[first : last + 1] - start, self.rows[first:last]
        indices, values = self.indices[start:end], self.values[..., start:end]
        self.store(starts, rows, indices, values, entries, more)

    def rows_between(self, first: int, last: int) -> tuple[npt.NDArray[Any], ...]:
        """Copies of starts (from 0), rows, indices and values of rows `first` to `last`."""
        start, end = self.starts[first], self.starts[last]
        starts, rows = self.starts[first : last + 1] - start, self.rows[first:last].copy()
        return starts, rows, self.indices[start:end].copy(), self.values[..., start:end].copy()

    def remove(self, first: int, last: int, at: int) -> None:
        """Keep rows `first` to `last` except row `at`, from index 0, and erase that row."""
        starts, rows, indices, values = self.rows_between(first, last)
        begin, end = starts[at - first], starts[at - first + 1]
        starts = np.delete(starts, at - first)
        starts[at - first :] -= end - begin
        gap = slice(begin, end)
        self.store(
            starts,
            np.delete(rows, at - first, axis=0),
            np.delete(indices, gap),
            np.delete(values, gap, axis=-1),
        )
        self.rows[len(rows) - 1 :] = 0.0
        self.indices[starts[-1] :] = 0
        self.values[..., starts[-1] :] = 0.0

    def store(
        self,
        starts: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        values: npt.NDArray[Any],
        entries: int = 0,
        more: int = 1,
    ) -> None:
        """Store these rows from index 0, with room for rows of this many more entries."""
        self._fit(len(rows) + more, len(indices) + entries)
        self.starts[: len(starts)] = starts
        self.rows[: len(rows)] = rows
        self.indices[: len(indices)] = indices
        self.values[..., : len(indices)] = values

    def _room_for(self, rows: int, entries: int) -> tuple[int, int]:
        """Number of rows and entries to make room for, given the initial numbers."""
        capacity = min(self._max_rows, max(64, 2 * rows))
        return capacity, max(1024, min(2 * entries, entries * capacity // rows))

    def _fit(self, rows: int, entries: int) -> None:
        """Allocate arrays for this many rows, and for those that arrive before the next move."""
        capacity, room = self._room_for(rows, entries)
        # Keep arrays that are large enough: new ones are paged in one page at a time.
        is_enough = entries + entries // 8 <= len(self.indices) <= 2 * room
        if len(self.rows) != capacity or not is_enough:
            self._own_arrays = self._arrays_for(capacity, room)


class Ring(RowBuffer):
    """Retained rows with their label, weight and dual variable: rows (capacity, 3)."""

    def __init__(self, retain: int) -> None:
        super().__init__(retain, 3)

    def keep_last(
        self, batch: Batch, taus: jit.Floats, is_binary: bool, first: int, last: int
    ) -> tuple[int, int]:
        """Keep the last of the rows that have a tau, and as many of rows `first` to `last` as fit.

        taus  (n,)  NaN of rows that are not retained
        Returns the new begin and end of the retained rows. The batch must not change afterwards.
        """
        start, count, entries = last_rows(batch.indptr, taus, self.retain)
        first = max(first, last - (self.retain - count))
        columns = (batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, taus)
        if first == last and count:
            # The arrays would have room for at least half as many rows more.
            most = 1.5 * self._bytes_of(count, entries)
            if _bytes_behind(columns) <= most:
                self._own_arrays, self._pending = (
                    None,
                    _PendingRows(columns, start, is_binary, count, entries),
                )
                return 0, count
        if last + count > len(self.rows) or self.starts[last] + entries > len(self.values):
            self.make_room(first, last, entries, count)
            first, last = 0, last - first
        retain_rows(*columns, start, is_binary, last, *self.arrays)
        return first, last + count

    def state(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        """Copies of rows `first` to `last`."""
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
        """Store the rows of such a state, from index 0; return their number.

        Raises CorruptState, and then nothing has changed.
        """
        missing = [name for name in RING_ARRAYS if name not in state]
        if missing:
            raise CorruptState(f"the state has no {missing[0]}")
        columns = tuple(state[name] for name in RING_ARRAYS[:5])
        retained = rows_of_state("retained rows", columns, dim)
        n, labels = len(retained), retained.labels
        if not is_storable(labels):
            raise CorruptState("a retained row has no label")
        if n > self.retain:
            raise CorruptState(f"{n} retained rows where at most {self.retain} are kept")
        duals = state["ring_duals"]
        if duals.shape != (n,) or not is_storable(duals):
            raise CorruptState("the retained rows and their dual variables do not fit together")
        rows = np.stack([labels, retained.weights, duals], axis=1)
        self.store(retained.indptr, rows, retained.indices, retained.values)
        return n


_OVERHEAD_BYTES = 8 + 4 * getsizeof(np.empty(0))


def _bytes_behind(columns: Iterable[npt.NDArray[Any]]) -> float:
    """Bytes kept alive by arrays that may be views of larger ones."""
    total = 0
    for column in columns:
        whole = column.base
        if whole is None:
            total += column.nbytes
        elif not are_shared_ones(column):
            # The size of anything else than a plain array or a view of one is unknown.
            if type(whole) is not np.ndarray or whole.base is not None:
                return math.inf
            total += whole.nbytes
    return total


@jit.kernel
def last_rows(indptr: jit.RO_I8, taus: jit.RO_F8, most: int) -> tuple[int, int, int]:
    """Begin of the last `most` rows that have a tau, their number, and their entries."""
    start, count, entries = taus.shape[0], 0, 0
    while start > 0 and count < most:
        start -= 1
        if taus[start] == taus[start]:
            count += 1
            entries += indptr[start + 1] - indptr[start]
    return start, count, entries


@jit.kernel(inline=True)
def retain_row(
    indices: jit.RO_I4,
    values: jit.RO_F8,
    begin: int,
    end: int,
    label: float,
    weight: float,
    dual: float,
    last: int,
    ring_starts: jit.I8,
    ring_indices: jit.I4,
    ring_values: jit.F8,
    ring_rows: jit.F8_2D,
) -> None:
    """Append the row of entries `begin` to `end` to a ring that has room, as row `last`."""
    at = ring_starts[last]
    shift = np.uint64(at) - np.uint64(begin)
    for p in range(np.uint64(begin), np.uint64(end)):
        ring_indices[p + shift] = indices[p]
        ring_values[p + shift] = values[p]
    ring_rows[last, 0], ring_rows[last, 1], ring_rows[last, 2] = label, weight, dual
    ring_starts[last + 1] = at + end - begin


@jit.kernel(apart=True)
def retain_rows(
    indptr: jit.RO_I8,
    indices: jit.RO_I4,
    values: jit.RO_F8,
    labels: jit.RO_F8,
    weights: jit.RO_F8,
    taus: jit.RO_F8,
    start: int,
    is_binary: bool,
    last: int,
    ring_starts: jit.I8,
    ring_indices: jit.I4,
    ring_values: jit.F8,
    ring_rows: jit.F8_2D,
) -> None:
    """Append the rows from `start` that have a tau to the ring, from index `last`.

    The caller has made room. With `is_binary` a label of 0 means -1.
    """
    n, i = labels.shape[0], start
    while i < n:
        # Copies all entries of a run of rows at once.
        stop = i
        while stop < n and taus[stop] == taus[stop]:
            stop += 1
        shift = np.uint64(ring_starts[last]) - np.uint64(indptr[i])
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[stop])):
            ring_indices[p + shift] = indices[p]
            ring_values[p + shift] = values[p]
        for row in range(i, stop):
            y = -1.0 if is_binary and labels[row] == 0.0 else labels[row]
            ring_rows[last, 0], ring_rows[last, 1], ring_rows[last, 2] = y, weights[row], taus[row]
            ring_starts[last + 1] = ring_starts[last] + indptr[row + 1] - indptr[row]
            last += 1
        i = stop + 1
