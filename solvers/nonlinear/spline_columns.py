"""SplineColumns: the columns, knots and ring of splines, which depend on the rows alone.

So models that learn the same rows with other labels, such as those of classes, share one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import splines_kernels as _kernels
from dualstream.solvers.nonlinear.dense_columns import COLUMNS, DenseColumns, columns_with_room
from dualstream.solvers.nonlinear.splines_kernels import (
    KNOTS,
    LEARNED,
    N_INTS,
    NEXT_KNOTS,
    RING_AT,
    ROWS,
)
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.batch import Batch

WINDOW = 1000
"""Rows from which knots are placed."""
FIRST_KNOTS, _GROWTH, _LONGEST = 32, 4, 2048
_PIECE = 1024
"""Rows that are located at once."""

_INTS = {"rows_held": ROWS, "ring_at": RING_AT, "learned": LEARNED, "next_knots": NEXT_KNOTS}


class NewKnots(NamedTuple):
    """Knots (columns, KNOTS) and their numbers (columns,), before and after they are placed."""

    old: Floats
    n_old: Ints
    new: Floats
    n_new: Ints


class Located(NamedTuple):
    """Rows `start` to `end` of a batch among the knots, after `learned` rows.

    with_knots, at, share, used   see splines_kernels.py
    room    columns that arrays have room for
    moved   if knots are placed after these rows
    """

    start: int
    end: int
    learned: int
    with_knots: int
    at: Ints
    share: Floats
    used: Ints
    room: int
    moved: NewKnots | None


class SplineColumns:
    """See the module docstring."""

    def __init__(self) -> None:
        self.table = DenseColumns()
        self.k = np.zeros(N_INTS, np.int64)
        self.k[NEXT_KNOTS] = FIRST_KNOTS
        self.samples = 0
        self.followers = 0
        """Other models that share these columns."""
        self._latest: list[Located] = []
        self._waiting = 0
        self._make_room(4)

    def _make_room(self, columns: int) -> None:
        """Empty columns."""
        self.knots, self.n_knots = np.zeros((columns, KNOTS)), np.zeros(columns, np.int64)
        self._ring, self._x = np.zeros((WINDOW, columns), np.float32), np.empty(columns)

    def _widen(self) -> None:
        used, knots, n_knots, ring = len(self.knots), self.knots, self.n_knots, self._ring
        self._make_room(2 * used)
        self.knots[:used], self.n_knots[:used], self._ring[:, :used] = knots, n_knots, ring

    @property
    def used(self) -> int:
        """Columns in use."""
        return int(self.k[COLUMNS])

    # -- rows ------------------------------------------------------------------------------------

    def enter(self, batch: Batch, samples: int) -> Iterable[Located]:
        """Learn a batch and locate its rows, for a model that has learned `samples` rows so far.

        Of models that share columns the first learns; to the others the same is returned.
        """
        if samples != self.samples:
            self._waiting -= 1
        elif self.followers:
            self._latest, self._waiting = list(self._enter(batch)), self.followers
        else:
            return self._enter(batch)
        latest = self._latest
        if self._waiting == 0:
            self._latest = []
        return latest

    def _enter(self, batch: Batch) -> Iterator[Located]:
        done, n, k = 0, len(batch), self.k
        while done < n:
            learned, start = int(k[LEARNED]), done
            (done, why), located = self._locate(batch, batch.weights, done)
            moved = None
            if why == _kernels.NEEDS_COLUMN:
                self._widen()
            elif why == _kernels.NEEDS_REVIEW:
                for column in self.table.review(k):
                    self._ring[:, column] = 0.0
                    self.n_knots[column] = 0
            if why != _kernels.NEEDS_COLUMN and k[LEARNED] >= k[NEXT_KNOTS]:
                moved = self._place_knots()
            self.samples += done - start
            yield Located(start, done, learned, *located, len(self.knots), moved)

    def _locate(
        self, batch: Batch, weights: Floats, start: int
    ) -> tuple[tuple[int, int], tuple[int, Ints, Floats, Ints]]:
        """See splines_kernels.locate_rows, and Located."""
        rows, columns = min(len(batch) - start, _PIECE), len(self.knots)
        at, share = np.empty((rows, columns), np.int64), np.empty((rows, columns))
        used, with_knots = np.empty(rows, np.int64), int(np.count_nonzero(self.n_knots))
        result = _kernels.locate_rows(
            batch.indptr, batch.indices, batch.values, weights, start, *self.table.arrays, self.k,
            self._x, self.knots, self.n_knots, self._ring, at, share, used,
        )  # fmt: skip
        return result, (with_knots, at, share, used)

    def look_up(self, batch: Batch) -> Iterator[tuple[int, int, Ints, Floats]]:
        """Locate rows and learn nothing: start, with_knots, at and share of pieces."""
        done, nothing = 0, np.zeros(len(batch))
        while done < len(batch):
            start = done
            (done, _), (with_knots, at, share, _) = self._locate(batch, nothing, done)
            yield start, with_knots, at, share

    def _place_knots(self) -> NewKnots:
        k, old, n_old = self.k, self.knots.copy(), self.n_knots.copy()
        k[NEXT_KNOTS] += min((_GROWTH - 1) * k[NEXT_KNOTS], _LONGEST)
        for column in range(self.used):
            values = np.sort(self._ring[: int(k[ROWS]), column])
            self.n_knots[column] = _kernels.place_knots(values, self.knots[column])
        return NewKnots(old, n_old, self.knots.copy(), self.n_knots.copy())

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `ring` has the bytes of single-precision numbers."""
        k, n, used = self.k, int(self.k[ROWS]), self.used
        ring = self._ring[:n, :used].copy()
        state: State = {name: np.array(k[index]) for name, index in _INTS.items()}
        return (
            state
            | self.table.state(k)
            | {
                "samples": np.array(self.samples),
                "n_knots": self.n_knots[:used].copy(),
                "knots": self.knots[:used].copy(),
                "ring": ring.view(np.uint8).reshape(n, 4 * used),
            }
        )

    def restore(self, state: Mapping[str, npt.NDArray[Any]], dim: int) -> None:
        """Restore new columns, which are discarded if this raises CorruptState."""
        check_arrays(state, dict.fromkeys((*_INTS, "samples"), ()))
        k = self.k
        for name, index in _INTS.items():
            k[index] = state[name]
        self.samples = int(state["samples"])
        self.table.restore(state, dim, k)
        n, used = int(k[ROWS]), self.used
        at_is_right = k[RING_AT] == n if n < WINDOW else 0 <= k[RING_AT] < WINDOW
        is_whole = n == min(k[LEARNED], WINDOW) and k[LEARNED] < k[NEXT_KNOTS] <= 2**53
        if not (is_whole and at_is_right and bool((k >= 0).all()) and self.samples >= 0):
            raise CorruptState("the ring is damaged")
        check_arrays(state, {"n_knots": (used,), "knots": (used, KNOTS), "ring": (n, 4 * used)})
        self._make_room(columns_with_room(used))
        if n and used:
            ring = np.ascontiguousarray(state["ring"], np.uint8).view(np.float32)
            if not is_storable(ring):
                raise CorruptState("the ring is damaged")
            self._ring[:n, :used] = ring
        self.n_knots[:used], self.knots[:used] = state["n_knots"], state["knots"]
        is_used = np.arange(KNOTS - 1) < self.n_knots[:, None] - 1
        are_numbers = bool(((self.n_knots >= 0) & (self.n_knots <= KNOTS)).all())
        if not (are_numbers and bool((np.diff(self.knots)[is_used] > 0.0).all())):
            raise CorruptState("the knots are damaged")
