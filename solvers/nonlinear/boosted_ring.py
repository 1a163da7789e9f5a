"""TreeRing: the ring of rows that boosted trees grow on, their bins, and what trees share.

The ring keeps the bin of each value, one byte. The values themselves are kept of up to 2,048 rows
that are spread over the ring: bins are made from this sample. When bins of a longer ring change,
each row's bin follows from the old one; bins change only if they would separate values much better.

If a tree may split more than AT_ONCE cells of the ring, it grows during several rows: with each, as
many leaves are split as have half of the rows, so that no row takes long. It grows on the rows that
stay in the ring until it is complete; then it replaces the old one. The state has the number of
these steps alone: they are repeated after a restart.

Memory in bytes, for S columns, a multiple of 8 up to 128, and T trees: (S + T + 24) for each row
of the ring, CELLS / S of them at most, 4 S for each row of the sample, and 100 kB.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Indices, Ints
from dualstream.solvers.nonlinear import boosted_kernels as _kernels
from dualstream.solvers.nonlinear.boosted_growth import MAX_ROWS, Growth
from dualstream.solvers.nonlinear.boosted_kernels import (
    AT,
    BASE,
    GROW_ROWS,
    GROWN,
    LEARNED,
    MAX_BINS,
    MAX_SAMPLE,
    MEAN_SQUARE,
    N_ABOUT,
    N_FLOATS,
    N_INTS,
    NEXT_BINS,
    OLDEST,
    ROWS,
    SAMPLES,
    SINCE_TREE,
    SPLITS,
    TREES,
    WEIGHT,
    stride_of,
)
from dualstream.solvers.nonlinear.dense_columns import COLUMNS, MAX_COLUMNS, DenseColumns
from dualstream.solvers.nonlinear.growth_kernels import grow_tree
from dualstream.solvers.nonlinear.spec import most_rows, ring_columns
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.intercept import width_of

FIRST_TREE = 16
"""Rows before the first tree."""
DRAWN = 32
"""Columns that a tree may split, about."""
AT_ONCE = 2**18
"""Rows times columns up to which a tree grows with one row."""
QUICK_ROWS = 2**14
"""In a ring of at most this length no row takes more than one or two milliseconds."""
MOST_SHARED = 1.25
"""Bins of a column change if this many times as many pairs of values share one as need be."""

_SHORT_WINDOW = 4096
_BINS_OF_SHORT, _BINS, _BINS_OF_LARGE = 32, 64, 256
_INTS = (
    "rows_held", "at", "since_tree", "oldest", "grown", "learned", "next_bins", "samples",
    "grow_rows", "splits",
)  # fmt: skip
_INT_PLACES = (
    ROWS, AT, SINCE_TREE, OLDEST, GROWN, LEARNED, NEXT_BINS, SAMPLES, GROW_ROWS,
    SPLITS,
)  # fmt: skip
_FLOATS = ("base", "mean_square", "mean_weight")


class TreeRing:
    """The ring and the shapes of the trees; subclasses have what a leaf adds to a score."""

    _work = 1.0
    """Time of a tree's row, as a multiple of that of two classes."""
    _most_value = math.inf
    """Largest step of a leaf, before it is multiplied by the step."""
    _more = 1
    """Factor of the number of trees, and of how often one is grown."""
    _most_nodes = 2**31
    """Limit of the nodes of all trees, two for each leaf."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        longer = _BINS if "memory" not in spec else _BINS_OF_LARGE
        self._bins = _BINS_OF_SHORT if spec["window"] <= _SHORT_WINDOW else longer
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
        self._growth: Growth | None = None
        self._shown = np.empty(0, np.int64)
        """Columns that the next tree, or the growing one, may split."""
        self._make_ring(0, 8)
        self._k[NEXT_BINS] = FIRST_TREE

    # -- the ring --------------------------------------------------------------------------------

    @property
    def _most_trees(self) -> int:
        """Trees that may live."""
        return len(self._feature)

    def _make_ring(self, rows: int, columns: int) -> None:
        """An empty ring with room for these rows and columns."""
        self._window = self._most_rows(columns)
        """Rows that the ring may hold, as wide as it is."""
        self._codes = np.zeros((rows, columns), np.uint8)
        self._sample = np.zeros((min(rows, MAX_SAMPLE), columns), np.float32)
        self._about = np.zeros((rows, N_ABOUT))
        self._leaves = np.zeros((rows, self._most_trees), np.uint8)
        self._edges = np.zeros((columns, self._bins))
        self._n_edges = np.zeros(columns, np.int64)
        self._x = np.zeros(columns)

    def _most_rows(self, columns: int) -> int:
        """Rows that a ring of this many columns may hold."""
        return int(
            min(self.spec["window"], most_rows(self.spec.get("memory", "standard"), columns))
        )

    @property
    def max_rows(self) -> int:
        """Rows that the ring can hold of as many columns as the stream has so far."""
        return self._window

    _of_rows: tuple[str, ...] = ("_codes", "_about", "_leaves")
    """Everything that the ring keeps of every row."""

    def _resize(self, columns: int, window: int) -> None:
        """Room for more columns, from a ring of at most `window` rows; if it must be shorter then,
        the newest rows stay."""
        count, at = int(self._k[ROWS]), int(self._k[AT])
        old, sample = [getattr(self, name) for name in self._of_rows], self._sample
        edges, n_edges = self._edges, self._n_edges
        stay = min(count, self._most_rows(columns))
        # Oldest first; a ring that is not full begins at 0.
        order = (np.arange(count - stay, count) + (at if count == window else 0)) % max(count, 1)
        self._make_ring(stay, columns)
        for name, one in zip(self._of_rows, old, strict=True):
            getattr(self, name)[:, : one.shape[1]] = one[order]
        # The nearest row of the old sample, if it has not the row itself.
        kept = order[:: _kernels.stride_of(stay)] // _kernels.stride_of(count)
        self._sample[: len(kept), : sample.shape[1]] = sample[kept]
        self._edges[: len(edges)], self._n_edges[: len(edges)] = edges, n_edges
        self._k[ROWS], self._k[AT] = stay, stay % self._window

    def _lengthen(self) -> None:
        """Room for more rows."""
        length = len(self._codes)
        room = min(max(2 * length, 256), self._window)
        for name in (*self._of_rows, "_sample"):
            old = getattr(self, name)
            rows = min(room, MAX_SAMPLE) if name == "_sample" else room
            new = np.zeros((rows, old.shape[1]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _make_up(self, why: int) -> None:
        """What `learn_rows` returned for."""
        if why == _kernels.NEEDS_COLUMN:
            self._grow_up()
            self._resize(self._codes.shape[1] + 8, self._window)
        elif why == _kernels.NEEDS_ROW:
            self._lengthen()
        elif why == _kernels.NEEDS_REVIEW:
            self._grow_up()
            for column in self._table.review(self._k):
                # The values of the other feature are forgotten.
                self._sample[:, column], self._codes[:, column] = 0.0, 0
                self._edges[column], self._n_edges[column] = 0.0, 0
        if why in (_kernels.NEEDS_TREE, _kernels.NEEDS_REVIEW):
            if self._is_tree_due:
                self._grow_up()
                self._grow()
            elif self._k[GROW_ROWS]:
                self._grow_on()

    # -- bins and trees --------------------------------------------------------------------------

    def _next_tree(self) -> tuple[int, bool]:
        """The place of the next tree, and whether the oldest one is there."""
        living = int(self._k[TREES])
        if living < self._most_trees:
            return living, False
        return int(self._k[OLDEST]), True

    def _grow(self) -> None:
        """Replace the oldest tree, or add one; in a long ring, begin to."""
        k = self._k
        k[SINCE_TREE] = 0
        if k[COLUMNS]:
            self._renew_bins()
        k[GROW_ROWS], k[SPLITS] = k[ROWS], 0
        if not self._grows_slowly:
            self._grow_up()

    def _grow_on(self) -> None:
        """Split some leaves of the growing tree, or complete it."""
        growth = self._present_growth()
        self._k[SPLITS] += 1
        if not grow_tree(growth.most_rows, *growth.arguments):
            self._complete(growth)

    def _grow_up(self) -> None:
        """Complete the tree that grows, if there is one."""
        if self._k[GROW_ROWS]:
            growth = self._present_growth()
            grow_tree(MAX_ROWS, *growth.arguments)
            self._complete(growth)

    @property
    def _grows_slowly(self) -> bool:
        k = self._k
        return bool(k[GROW_ROWS] * min(len(self._shown), DRAWN) > AT_ONCE)

    def _present_growth(self) -> Growth:
        """The tree that grows; after a restart, its splits so far are repeated."""
        if self._growth is None:
            self._growth = self._begin_growth()
            for _ in range(int(self._k[SPLITS])):
                grow_tree(self._growth.most_rows, *self._growth.arguments)
        return self._growth

    def _begin_growth(self) -> Growth:
        """The gradients at the rows that were in the ring when the tree began to grow.

        Rows that leave the ring until it is complete have no weight.
        """
        k, n = self._k, int(self._k[GROW_ROWS])
        tree, is_taken = self._next_tree()
        about, order = self._about[:n].copy(), np.arange(n, dtype=np.int32)
        if is_taken:
            _kernels.drop_tree(about, self._leaves, tree, self._value)
        if self._grows_slowly:
            # At most a split with each row, one that makes the root, and one that fails.
            rows = np.arange(self.spec["leaves"] + 2) + (k[AT] - k[SINCE_TREE])
            rows %= self._window
            leave_soon = rows[rows < n]
            about[leave_soon] = 0.0
            order = np.delete(order, leave_soon)
        return self._growth_on(about, order)

    def _growth_on(self, about: Floats, order: Indices) -> Growth:
        """The gradients at these rows, whose margins lack the tree to be replaced."""
        raise NotImplementedError

    def _new_growth(
        self,
        derivatives: tuple[Floats, Floats, Ints, Floats],
        least_gain: float,
        unit: float,
        order: Indices,
    ) -> Growth:
        """See Growth.of."""
        columns, bins = self._drawn(), (self._edges, self._n_edges)
        leaves = self.spec["leaves"]
        return Growth.of(
            self._codes, derivatives, columns, bins, leaves, self._bins, least_gain, unit, order
        )

    def _complete(self, growth: Growth) -> None:
        """Put a tree that has grown in its place."""
        tree, is_taken = self._next_tree()
        value, leaf_of = growth.leaves(self.spec["step"], self._most_value)
        _kernels.replace_tree(
            self._codes, self._leaves, self._about, int(self._k[ROWS]), tree, is_taken,
            growth.base_step, self._edges, self._n_edges, growth.feature, growth.threshold,
            growth.left, value, leaf_of, np.empty(len(value), np.uint8),
            self._value[tree],
        )  # fmt: skip
        self._f[BASE] += growth.base_step
        self._value[tree] = value
        self._plant(growth, tree, is_taken)

    def _plant(self, growth: Growth, tree: int, is_taken: bool) -> None:
        """Write the nodes of a tree."""
        k = self._k
        self._feature[tree], self._threshold[tree] = growth.feature, growth.threshold
        self._left[tree] = growth.left
        if is_taken:
            k[OLDEST] = (tree + 1) % self._most_trees
        else:
            k[TREES] += 1
        k[GROWN] += 1
        k[GROW_ROWS] = 0
        self._growth = None

    @property
    def _trees(self) -> tuple[Indices, Floats, Indices, Floats]:
        return self._feature, self._threshold, self._left, self._value

    @property
    def _is_tree_due(self) -> bool:
        k = self._k
        return bool(k[LEARNED] >= FIRST_TREE and k[SINCE_TREE] * self._renewal >= k[ROWS])

    def _bin_column(self, column: int) -> None:
        """Bins of a column by the sample's values."""
        n = int(self._k[ROWS])
        stride = stride_of(n)
        values = self._sample[: -(-n // stride), column].copy()
        ordered, edges = np.sort(values), np.zeros(self._bins)
        n_edges = _kernels.quantile_edges(ordered, self._bins, edges)
        if stride == 1:
            _kernels.code_column(values, self._codes, column, edges, n_edges)
        else:
            old, n_old = self._edges[column], int(self._n_edges[column])
            shared = _kernels.shared_bins(ordered, old, n_old)
            if shared <= MOST_SHARED * _kernels.shared_bins(ordered, edges, n_edges):
                return
            code_of = np.empty(MAX_BINS, np.uint8)
            _kernels.recode_column(
                ordered, self._codes, n, column, old, n_old, edges, n_edges, code_of
            )
        self._edges[column], self._n_edges[column] = edges, n_edges

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
        # SplitMix64 (Steele, Lea, Flood, 2014) of the seed, the tree and the position among these.
        z = np.arange(len(columns), dtype=np.uint64) + np.uint64(int(self._k[GROWN]) * MAX_COLUMNS)
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self.spec["seed"])
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        drawn: Ints = columns[
            (z >> np.uint64(11)).astype(np.float64) * 2.0**-53 < DRAWN / len(columns)
        ]
        return drawn

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py: whether a large tree grows with one of the next rows."""
        k = self._k.tolist()
        if min(k[ROWS] + rows, self._window) * self._work <= QUICK_ROWS:
            return False
        return bool(k[GROW_ROWS] or (k[SINCE_TREE] + rows) * self._renewal >= k[ROWS])

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `sample` has the bytes of single-precision numbers."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[COLUMNS])
        state: State = {
            name: np.array(k[index]) for name, index in zip(_INTS, _INT_PLACES, strict=True)
        }
        state |= {name: np.array(self._f[index]) for index, name in enumerate(_FLOATS)}
        trees = int(k[TREES])
        sample = self._sample[: -(-n // stride_of(n)), :used].copy()
        return (
            state
            | self._table.state(k)
            | {
                "codes": self._codes[:n, :used].copy(),
                "sample": sample.view(np.uint8).reshape(len(sample), 4 * used),
                "about": self._about[:n].copy(),
                "leaves": self._leaves[:n, :trees].copy(),
                "edges": self._edges[:used].copy(),
                "n_edges": self._n_edges[:used].copy(),
                "shown": self._shown.copy(),
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
        columns, sampled = ring_columns(used), -(-n // stride_of(n))
        if trees > self._most_trees or not 0 <= n <= self._most_rows(columns):
            raise CorruptState("the ring or the trees are damaged")
        shape = (trees, nodes)
        shapes: dict[str, tuple[int, ...]] = {
            "codes": (n, used),
            "sample": (sampled, 4 * used),
            "about": (n, N_ABOUT),
            "leaves": (n, trees),
            "edges": (used, self._bins),
            "n_edges": (used,),
            "shown": (int(np.asarray(state.get("shown", [])).size),),
            **dict.fromkeys(("feature", "left", "threshold"), shape),
        }
        check_arrays(state, shapes)
        self._make_ring(n, columns)
        sample = np.ascontiguousarray(state["sample"], np.uint8).reshape(sampled, used, 4)
        self._sample[:sampled, :used] = sample.view(np.float32)[:, :, 0] if n and used else 0.0
        self._codes[:, :used] = state["codes"]
        self._about[:] = state["about"]
        self._leaves[:, :trees] = state["leaves"]
        self._edges[:used], self._n_edges[:used] = state["edges"], state["n_edges"]
        self._feature[:trees], self._left[:trees] = state["feature"], state["left"]
        self._threshold[:trees] = state["threshold"]
        k[TREES], self._shown = trees, np.array(state["shown"], np.int64)
        self._check_numbers(trees, used)

    def _check_numbers(self, trees: int, used: int) -> None:
        """Raise CorruptState for numbers that kernels must not follow."""
        k, n, nodes = self._k, int(self._k[ROWS]), self._feature.shape[1]
        feature, left = self._feature[:trees], self._left[:trees]
        splits = feature >= 0
        is_sound = (
            is_storable(self._sample.astype(np.float64))
            and bool((self._codes <= self._n_edges).all())
            and bool(((k >= 0) & (k <= 2**53)).all())
            and bool((self._about[:, WEIGHT] > 0.0).all())
            and bool((self._f[MEAN_SQUARE:] >= 0.0).all())
            and (n < self._window and k[AT] == n or 0 <= k[AT] < self._window == n)
            and k[OLDEST] < self._most_trees
            and bool((feature < used).all() and (feature >= -1).all())
            and bool((left[splits] > np.nonzero(splits)[1]).all())
            and bool((left[splits] < nodes - 1).all())
            and bool((self._leaves < nodes).all())
            and k[GROW_ROWS] <= n
            and bool((self._shown >= 0).all() and (self._shown < used).all())
            and bool((np.diff(self._shown) > 0).all())
            and k[SPLITS] <= self.spec["leaves"] + 1
            and (k[GROW_ROWS] == 0 or self._grows_slowly and k[SINCE_TREE] <= k[SPLITS])
            and bool((self._n_edges >= 0).all() and (self._n_edges < self._bins).all())
        )
        if not is_sound:
            raise CorruptState("the ring or the trees are damaged")
