"""TreeRing: the ring of rows that boosted trees grow on, their bins, and what trees share.

Memory in bytes, for S columns, a power of two up to 128, and T trees: (5 S + T + 24) for each row
of the ring, 2^19 / S of them at most, and 100 kB.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Indices, Ints
from dualstream.solvers.nonlinear import boosted_kernels as _kernels
from dualstream.solvers.nonlinear.boosted_kernels import (
    AT,
    GROWN,
    LEARNED,
    MAX_BINS,
    MEAN_SQUARE,
    N_ABOUT,
    N_FLOATS,
    N_GROWN,
    N_INTS,
    NEXT_BINS,
    OLDEST,
    ROWS,
    SAMPLES,
    SINCE_TREE,
    TREES,
    WEIGHT,
)
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    MAX_COLUMNS,
    DenseColumns,
    columns_with_room,
)
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.intercept import width_of

MAX_CELLS = 2**19
"""Cells of the ring: columns times rows."""
FIRST_TREE = 16
"""Rows before the first tree."""
DRAWN = 32
"""Columns that a tree may split, about."""
RIDGE = 1.0
"""Added to the sum of second derivatives of a leaf."""
LEAST_ROWS = 10.0
"""Rows of a leaf."""

NO_ERRORS = np.empty(0)
_SHORT_WINDOW, _BINS_OF_SHORT = 4096, 32
_INTS = ("rows_held", "at", "since_tree", "oldest", "grown", "learned", "next_bins", "samples")
_INT_PLACES = (ROWS, AT, SINCE_TREE, OLDEST, GROWN, LEARNED, NEXT_BINS, SAMPLES)
_FLOATS = ("base", "mean_square", "mean_weight")


class TreeRing:
    """The ring and the shapes of the trees; subclasses have what a leaf adds to a score."""

    _work = 1.0
    """Time of a tree's row, as a multiple of that of two classes."""
    _more = 1
    """Factor of the number of trees, and of how often one is grown."""
    _most_nodes = 2**31
    """Limit of the nodes of all trees, two for each leaf."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        self._bins = _BINS_OF_SHORT if spec["window"] <= _SHORT_WINDOW else MAX_BINS
        self._table = DenseColumns()
        self._k = np.zeros(N_INTS, np.int64)
        self._f = np.zeros(N_FLOATS)
        nodes = 2 * spec["leaves"]
        trees = min(self._more * spec["trees"], self._most_nodes // nodes)
        self._renewal = self._more * spec["renewal"]
        self._feature = np.full((trees, nodes), -1, np.int32)
        self._left = np.zeros((trees, nodes), np.int32)
        self._threshold = np.zeros((trees, nodes))
        self._value = np.zeros((trees, nodes))
        self._shown = np.empty(0, np.int64)
        self._make_ring(0, 4)
        self._k[NEXT_BINS] = FIRST_TREE

    # -- the ring --------------------------------------------------------------------------------

    @property
    def _most_trees(self) -> int:
        """Trees that may live."""
        return len(self._feature)

    def _make_ring(self, rows: int, columns: int) -> None:
        """An empty ring with room for these rows and columns."""
        self._rows = np.zeros((rows, columns), np.float32)
        self._codes = np.zeros((rows, columns), np.uint8)
        self._about = np.zeros((rows, N_ABOUT))
        self._leaves = np.zeros((rows, self._most_trees), np.uint8)
        self._edges = np.zeros((columns, MAX_BINS))
        self._n_edges = np.zeros(columns, np.int64)
        self._x = np.zeros(columns)

    def _most_rows(self, columns: int) -> int:
        """Rows that a ring of this many columns may hold."""
        return int(min(self.spec["window"], MAX_CELLS // columns))

    @property
    def _window(self) -> int:
        """Rows that the ring may hold, as wide as it is."""
        return self._most_rows(self._rows.shape[1])

    _of_rows: tuple[str, ...] = ("_rows", "_codes", "_about", "_leaves")
    """Everything that the ring keeps of a row."""

    def _resize(self, columns: int, window: int) -> None:
        """Room for more columns, from a ring of at most `window` rows; if it must be shorter then,
        the newest rows stay."""
        count, at = int(self._k[ROWS]), int(self._k[AT])
        old = [getattr(self, name) for name in self._of_rows]
        edges, n_edges = self._edges, self._n_edges
        stay = min(count, self._most_rows(columns))
        # Oldest first; a ring that is not full begins at 0.
        order = (np.arange(count - stay, count) + (at if count == window else 0)) % max(count, 1)
        self._make_ring(stay, columns)
        for name, one in zip(self._of_rows, old, strict=True):
            getattr(self, name)[:, : one.shape[1]] = one[order]
        self._edges[: len(edges)], self._n_edges[: len(edges)] = edges, n_edges
        self._k[ROWS], self._k[AT] = stay, stay % self._window

    def _lengthen(self) -> None:
        """Room for more rows."""
        length = len(self._rows)
        room = min(max(2 * length, 256), self._window)
        for name in self._of_rows:
            old = getattr(self, name)
            new = np.zeros((room, old.shape[1]), old.dtype)
            new[:length] = old
            setattr(self, name, new)

    def _make_up(self, why: int) -> None:
        """What `learn_rows` returned for."""
        if why == _kernels.NEEDS_COLUMN:
            self._resize(2 * self._rows.shape[1], self._window)
        elif why == _kernels.NEEDS_ROW:
            self._lengthen()
        elif why == _kernels.NEEDS_REVIEW:
            for column in self._table.review(self._k):
                self._rows[:, column] = 0.0
                self._bin_column(column)
        if why in (_kernels.NEEDS_TREE, _kernels.NEEDS_REVIEW) and self._is_tree_due:
            self._grow()

    def _grow(self) -> None:
        """Replace the oldest tree, or add one."""
        raise NotImplementedError

    # -- bins and trees --------------------------------------------------------------------------

    def _next_tree(self) -> tuple[int, bool]:
        """The place of the next tree, and whether the oldest one is there."""
        k, trees = self._k, self._most_trees
        if k[TREES] < trees:
            k[TREES] += 1
            return int(k[TREES]) - 1, False
        oldest = int(k[OLDEST])
        k[OLDEST] = (oldest + 1) % trees
        return oldest, True

    def _grow_tree(
        self,
        tree: int,
        slopes: Floats,
        curvatures: Floats,
        packed: Ints,
        units: Floats,
        least_gain: float,
        most_value: float,
        errors: Floats = NO_ERRORS,
    ) -> None:
        """Grow a tree on these gradients and second derivatives (n,) of the ring's rows.

        errors    as in boosted_kernels.grow_tree
        """
        n, columns, leaves = len(slopes), self._drawn(), self.spec["leaves"]
        _kernels.grow_tree(
            self._codes, n, slopes, curvatures, packed, units, errors, columns, len(columns),
            self._edges, self._n_edges, leaves, self.spec["step"], RIDGE, LEAST_ROWS,
            least_gain, most_value, np.empty(n, np.int32), np.empty(n, np.int32),
            np.empty((leaves, MAX_BINS * max(1, len(columns))), np.int64),
            np.zeros((leaves, N_GROWN)), np.empty((3, MAX_BINS)), tree, *self._trees,
            self._leaves, self._about,
        )  # fmt: skip
        self._k[GROWN] += 1

    @property
    def _trees(self) -> tuple[Indices, Floats, Indices, Floats]:
        return self._feature, self._threshold, self._left, self._value

    @property
    def _is_tree_due(self) -> bool:
        k = self._k
        return bool(k[LEARNED] >= FIRST_TREE and k[SINCE_TREE] * self._renewal >= k[ROWS])

    def _bin_column(self, column: int) -> None:
        values, edges = self._rows[: self._k[ROWS], column].copy(), self._edges[column]
        edges[:] = 0.0
        self._n_edges[column] = n_edges = _kernels.place_edges(np.sort(values), self._bins, edges)
        _kernels.code_column(values, self._codes, column, edges, n_edges)

    def _renew_bins(self) -> None:
        """Bins of all columns when the number of rows has doubled, else of a few in turn.

        All of them at once take long when the ring is full.
        """
        k, used = self._k, int(self._k[COLUMNS])
        self._shown = self._columns_shown(used)
        if k[LEARNED] >= k[NEXT_BINS] and k[ROWS] <= 1024:
            k[NEXT_BINS] = 2 * k[LEARNED]
            turn = np.arange(used)
        else:
            each = -(-len(self._shown) // self._renewal)
            first = int(k[GROWN]) * each
            turn = self._shown[np.arange(first, first + each) % len(self._shown)]
        for column in turn.tolist():
            self._bin_column(column)

    def _columns_shown(self, used: int) -> Ints:
        """The columns that the next trees may split."""
        return np.arange(used, dtype=np.int64)

    def _drawn(self) -> Ints:
        """The columns that the next tree may split, a draw of those shown."""
        columns = self._shown
        if len(columns) <= DRAWN:
            return columns
        # SplitMix64 (Steele, Lea, Flood, 2014) of the seed, the tree and the column.
        z = columns.astype(np.uint64) + np.uint64(int(self._k[GROWN]) * MAX_COLUMNS)
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self.spec["seed"])
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        drawn: Ints = columns[
            (z >> np.uint64(11)).astype(np.float64) * 2.0**-53 < DRAWN / len(columns)
        ]
        return drawn

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py: whether one of the next rows grows a tree."""
        k = self._k
        count = min(int(k[ROWS]) + rows, self._window)
        return count * self._work > 1024 and bool((k[SINCE_TREE] + rows) * self._renewal >= k[ROWS])

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `rows` are the bytes of single-precision numbers."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[COLUMNS])
        state: State = {
            name: np.array(k[index]) for name, index in zip(_INTS, _INT_PLACES, strict=True)
        }
        state |= {name: np.array(self._f[index]) for index, name in enumerate(_FLOATS)}
        trees = int(k[TREES])
        rows = self._rows[:n, :used].copy()
        return (
            state
            | self._table.state(k)
            | {
                "rows": rows.view(np.uint8).reshape(n, 4 * used),
                "about": self._about[:n].copy(),
                "leaves": self._leaves[:n, :trees].copy(),
                "edges": self._edges[:used].copy(),
                "n_edges": self._n_edges[:used].copy(),
                "feature": self._feature[:trees].astype(np.int64),
                "left": self._left[:trees].astype(np.int64),
                "threshold": self._threshold[:trees].copy(),
            }
        )

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        check_arrays(state, dict.fromkeys((*_INTS, *_FLOATS), ()))
        k = self._k
        for name, index in zip(_INTS, _INT_PLACES, strict=True):
            k[index] = state[name]
        for index, name in enumerate(_FLOATS):
            self._f[index] = state[name]
        self._table.restore(state, self._dim + self.spec.get("lags", 0), k)
        n, used, nodes = int(k[ROWS]), int(k[COLUMNS]), self._feature.shape[1]
        trees = int(np.asarray(state.get("feature", [])).shape[0])
        columns = columns_with_room(used)
        if trees > self._most_trees or not 0 <= n <= self._most_rows(columns):
            raise CorruptState("the ring or the trees are damaged")
        shape = (trees, nodes)
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (n, 4 * used),
            "about": (n, N_ABOUT),
            "leaves": (n, trees),
            "edges": (used, MAX_BINS),
            "n_edges": (used,),
            **dict.fromkeys(("feature", "left", "threshold"), shape),
        }
        check_arrays(state, shapes)
        self._make_ring(n, columns)
        row_bytes = np.ascontiguousarray(state["rows"], np.uint8).reshape(n, used, 4)
        self._rows[:, :used] = row_bytes.view(np.float32)[:, :, 0] if n and used else 0.0
        self._about[:] = state["about"]
        self._leaves[:, :trees] = state["leaves"]
        self._edges[:used], self._n_edges[:used] = state["edges"], state["n_edges"]
        self._feature[:trees], self._left[:trees] = state["feature"], state["left"]
        self._threshold[:trees] = state["threshold"]
        k[TREES] = trees
        self._check_numbers(trees, used)
        for column in range(used):
            values, n_edges = self._rows[:n, column].copy(), int(self._n_edges[column])
            _kernels.code_column(values, self._codes, column, self._edges[column], n_edges)

    def _check_numbers(self, trees: int, used: int) -> None:
        """Raise CorruptState for numbers that kernels must not follow."""
        k, n, nodes = self._k, int(self._k[ROWS]), self._feature.shape[1]
        feature, left = self._feature[:trees], self._left[:trees]
        splits = feature >= 0
        is_sound = (
            is_storable(self._rows.astype(np.float64))
            and bool(((k >= 0) & (k <= 2**53)).all())
            and bool((self._about[:, WEIGHT] > 0.0).all())
            and bool((self._f[MEAN_SQUARE:] >= 0.0).all())
            and (n < self._window and k[AT] == n or 0 <= k[AT] < self._window == n)
            and k[OLDEST] < self._most_trees
            and bool((feature < used).all() and (feature >= -1).all())
            and bool((left[splits] > np.nonzero(splits)[1]).all())
            and bool((left[splits] < nodes - 1).all())
            and bool((self._leaves < nodes).all())
            and bool((self._n_edges >= 0).all() and (self._n_edges < MAX_BINS).all())
        )
        if not is_sound:
            raise CorruptState("the ring or the trees are damaged")
