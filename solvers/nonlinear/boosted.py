"""Boosted: gradient-boosted trees over the last rows of a stream.

A ring holds the last W rows of a weight above 0, and the score of each row under the living trees.
Whenever n / `renewal` rows have come since the last tree, for n rows in the ring, the oldest of
`trees` trees is removed, and a new tree of at most `leaves` leaves is grown on the gradients of the
loss at all rows of the ring, leaf by leaf, by the second-order gain (Friedman, "Greedy function
approximation: a gradient boosting machine", 2001; Chen and Guestrin, "XGBoost", 2016, eq. 6 and 7;
histograms as in Ke et al., "LightGBM", 2017). Each row keeps the leaf that it reached in each tree,
so that removing a tree is one subtraction for each row. The cost of a row does not depend on W.

The loss is logistic for classes and squared for numbers. The score of a row is from before it is
learned. Columns are those of dense_columns.py; with more than DRAWN columns, a tree may split a
draw of about DRAWN of them, by a hash of the seed and the number of the tree. No row is rejected.

Memory in bytes, for S columns, a power of two up to 128, and T trees: (5 S + T + 24) for each row
of the ring, 2^19 / S of them at most, and 100 kB.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.errors import CorruptState
from dualstream.solvers.core.explanation import Explanation
from dualstream.solvers.core.learner import State
from dualstream.solvers.core.served_form import Trees
from dualstream.solvers.core.state_numbers import check_arrays, is_storable
from dualstream.solvers.jit import Floats, Indices, Ints
from dualstream.solvers.nonlinear import boosted_kernels as _kernels
from dualstream.solvers.nonlinear.boosted_kernels import (
    AT,
    BASE,
    GROWN,
    LEARNED,
    MARGIN,
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
    TARGET,
    TREES,
    WEIGHT,
)
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    LARGEST_VALUE,
    MAX_COLUMNS,
    DenseColumns,
    columns_with_room,
)
from dualstream.solvers.nonlinear.dense_values import dense_values
from dualstream.solvers.nonlinear.learner import NonlinearLearner

MAX_CELLS = 2**19
"""Cells of the ring: columns times rows."""
FIRST_TREE = 16
"""Rows before the first tree."""
FIRST_REACH = 20.0
"""Distances between the quartiles of the first targets within which they count."""
DRAWN = 32
"""Columns that a tree may split, about."""
RIDGE = 1.0
"""Added to the sum of second derivatives of a leaf."""
LEAST_ROWS = 10.0
"""Rows of a leaf."""

_SHORT_WINDOW, _BINS_OF_SHORT = 4096, 32
_INTS = ("rows_held", "at", "since_tree", "oldest", "grown", "learned", "next_bins", "samples")
_INT_PLACES = (ROWS, AT, SINCE_TREE, OLDEST, GROWN, LEARNED, NEXT_BINS, SAMPLES)
_FLOATS = ("base", "mean_square", "mean_weight")


class Boosted(NonlinearLearner):
    """The learner of `algorithm: boosted`; `spec` is resolved, with task binary or regression."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._bins = _BINS_OF_SHORT if spec["window"] <= _SHORT_WINDOW else MAX_BINS
        self._table = DenseColumns()
        self._k = np.zeros(N_INTS, np.int64)
        self._f = np.zeros(N_FLOATS)
        nodes = 2 * spec["leaves"]
        self._feature = np.full((spec["trees"], nodes), -1, np.int32)
        self._left = np.zeros((spec["trees"], nodes), np.int32)
        self._threshold = np.zeros((spec["trees"], nodes))
        self._value = np.zeros((spec["trees"], nodes))
        self._make_ring(0, 4)
        self._k[NEXT_BINS] = FIRST_TREE

    # -- the ring --------------------------------------------------------------------------------

    def _make_ring(self, rows: int, columns: int) -> None:
        """An empty ring with room for these rows and columns."""
        self._rows = np.zeros((rows, columns), np.float32)
        self._codes = np.zeros((rows, columns), np.uint8)
        self._about = np.zeros((rows, N_ABOUT))
        self._leaves = np.zeros((rows, self.spec["trees"]), np.uint8)
        self._edges = np.zeros((columns, MAX_BINS))
        self._n_edges = np.zeros(columns, np.int64)
        self._x = np.zeros(columns)

    @property
    def _window(self) -> int:
        """Rows that the ring may hold, as wide as it is."""
        return int(min(self.spec["window"], MAX_CELLS // self._rows.shape[1]))

    @property
    def _ring(self) -> tuple[npt.NDArray[Any], ...]:
        """Everything that the ring keeps of a row."""
        return self._rows, self._codes, self._about, self._leaves

    def _widen(self) -> None:
        """Room for twice the columns; if the ring must be shorter then, the newest rows stay."""
        held, at = int(self._k[ROWS]), int(self._k[AT])
        old: tuple[npt.NDArray[Any], ...] = self._ring
        edges, n_edges = self._edges, self._n_edges
        columns = 2 * self._rows.shape[1]
        stay = min(held, self.spec["window"], MAX_CELLS // columns)
        # Oldest first; a ring that is not full begins at 0.
        order = (np.arange(held - stay, held) + (at if held == self._window else 0)) % max(held, 1)
        self._make_ring(stay, columns)
        for new, one in zip(self._ring, old, strict=True):
            new[:, : one.shape[1]] = one[order]
        self._edges[: len(edges)], self._n_edges[: len(edges)] = edges, n_edges
        self._k[ROWS], self._k[AT] = stay, stay % self._window

    def _lengthen(self) -> None:
        """Room for more rows."""
        held = len(self._rows)
        room = min(max(2 * held, 256), self._window)
        for name in ("_rows", "_codes", "_about", "_leaves"):
            old = getattr(self, name)
            new = np.zeros((room, old.shape[1]), old.dtype)
            new[:held] = old
            setattr(self, name, new)

    # -- learning and scoring --------------------------------------------------------------------

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        n = len(batch)
        done = 0
        while done < n:
            done, why = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, done,
                scores, losses, self._is_binary, self._window, FIRST_TREE, self.spec["renewal"],
                *self._table.arrays, self._k, self._f, self._x, self._rows, self._codes,
                self._about, self._leaves, self._edges, self._n_edges, self._feature,
                self._threshold, self._left, self._value,
            )  # fmt: skip
            if why == _kernels.NEEDS_COLUMN:
                self._widen()
            elif why == _kernels.NEEDS_ROW:
                self._lengthen()
            elif why == _kernels.NEEDS_REVIEW:
                for column in self._table.review(self._k):
                    self._rows[:, column] = 0.0
                    self._bin_column(column)
            if why in (_kernels.NEEDS_TREE, _kernels.NEEDS_REVIEW) and self._is_tree_due:
                self._grow()

    @property
    def _trees(self) -> tuple[Indices, Floats, Indices, Floats]:
        return self._feature, self._threshold, self._left, self._value

    @property
    def _is_tree_due(self) -> bool:
        k = self._k
        return bool(k[LEARNED] >= FIRST_TREE and k[SINCE_TREE] * self.spec["renewal"] >= k[ROWS])

    def _bin_column(self, column: int) -> None:
        n = int(self._k[ROWS])
        values = np.sort(self._rows[:n, column])
        self._edges[column] = 0.0
        self._n_edges[column] = _kernels.place_edges(values, self._bins, self._edges[column])
        _kernels.code_column(
            self._rows, self._codes, n, column, self._edges[column], int(self._n_edges[column])
        )

    def _renew_bins(self) -> None:
        """Bins of all columns when the number of rows has doubled, else of a few in turn.

        All of them at once take long when the ring is full.
        """
        k, used = self._k, int(self._k[COLUMNS])
        if k[LEARNED] >= k[NEXT_BINS] and k[ROWS] <= 1024:
            k[NEXT_BINS] = 2 * k[LEARNED]
            turn = range(used)
        else:
            each = -(-used // self.spec["renewal"])
            first = int(k[GROWN]) * each
            turn = range(first, first + each)
        for column in turn:
            self._bin_column(column % used)

    def _grow(self) -> None:
        """Replace the oldest tree, or add one."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[COLUMNS])
        k[SINCE_TREE] = 0
        trees = self.spec["trees"]
        if k[GROWN] == 0:
            if not self._is_binary:
                self._limit_first_targets()
            self._f[BASE] = self._about[:n, MARGIN] = self._base()
            if not self._is_binary:
                self._f[MEAN_SQUARE] = self._mean_square()
        if used:
            self._renew_bins()
        tree = int(k[TREES])
        if tree == trees:
            tree = int(k[OLDEST])
            k[OLDEST] = (tree + 1) % trees
            _kernels.drop_tree(self._about, self._leaves, n, tree, self._value)
        else:
            k[TREES] += 1
        # The ring's best constant moves with the stream; trees alone leave a part of its error.
        self._f[BASE] += _kernels.move_base(self._about, n, self._is_binary)
        slopes, curvatures, units = np.empty(n), np.empty(n), np.empty(2)
        packed = np.empty(n, np.int64)
        steepest = _kernels.slopes_of(
            self._about, n, self._is_binary, slopes, curvatures, packed, units
        )
        least_gain = 1e-3 if self._is_binary else 1e-12 * steepest * steepest
        columns = self._drawn(used)
        leaves = self.spec["leaves"]
        _kernels.grow_tree(
            self._codes, n, slopes, curvatures, packed, units, columns, len(columns),
            self._edges, self._n_edges, leaves, self.spec["step"], RIDGE, LEAST_ROWS,
            least_gain, _kernels.most_value(self._is_binary), np.empty(n, np.int32),
            np.empty(n, np.int32),
            np.empty((leaves, MAX_BINS * max(1, len(columns))), np.int64),
            np.zeros((leaves, N_GROWN)), np.empty((3, MAX_BINS)), tree, *self._trees,
            self._leaves, self._about,
        )  # fmt: skip
        k[GROWN] += 1

    def _base(self) -> float:
        """The best constant: the log odds, or the mean, of the rows in the ring."""
        about = self._about[: int(self._k[ROWS])]
        total = math.fsum(about[:, WEIGHT])
        target = math.fsum(about[:, WEIGHT] * about[:, TARGET])
        if self._is_binary:
            return math.log((target + 0.5) / (total - target + 0.5))
        return target / total

    def _limit_first_targets(self) -> None:
        """Limit the targets before the first tree by their quartiles, as no error is known yet."""
        targets = self._about[: int(self._k[ROWS]), TARGET]
        ordered = np.sort(targets)
        n = len(ordered)
        low, middle, high = ordered[n // 4], ordered[n // 2], ordered[3 * n // 4]
        if high > low:
            reach = FIRST_REACH * (high - low)
            np.clip(targets, middle - reach, middle + reach, out=targets)

    def _mean_square(self) -> float:
        about = self._about[: int(self._k[ROWS])]
        errors = about[:, TARGET] - about[:, MARGIN]
        return math.fsum(errors * errors) / len(about)

    def _drawn(self, used: int) -> Ints:
        """The columns that the next tree may split."""
        columns = np.arange(used, dtype=np.int64)
        if used <= DRAWN:
            return columns
        # SplitMix64 (Steele, Lea, Flood, 2014) of the seed, the tree and the column.
        z = columns.astype(np.uint64) + np.uint64(int(self._k[GROWN]) * MAX_COLUMNS)
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self.spec["seed"])
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        drawn: Ints = columns[(z >> np.uint64(11)).astype(np.float64) * 2.0**-53 < DRAWN / used]
        return drawn

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._dim)
        scores = np.empty(len(batch))
        keys, columns, _ = self._table.arrays
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, keys, columns, self._k, self._f,
            np.empty_like(self._x), *self._trees,
        )  # fmt: skip
        return scores

    def _score_form(self) -> Trees:
        trees = int(self._k[TREES])
        return Trees(
            columns=self._table.features(int(self._k[COLUMNS])),
            largest=LARGEST_VALUE,
            base=float(self._f[BASE]),
            feature=self._feature[:trees].astype(np.int64),
            left=self._left[:trees].astype(np.int64),
            threshold=self._threshold[:trees].copy(),
            value=self._value[:trees].copy(),
        )

    def explain(self, row: Batch) -> Explanation:
        """See core/explanation.py: what each split on the row's path changes (A. Saabas,
        "Interpreting random forests", 2014).

        The value of a split node is the mean of its leaves, weighted by the rows of the ring.
        O(window x trees).
        """
        features, x = dense_values(self._table, self._k, row)
        means = self._node_means()
        trees = np.arange(len(means))
        node = np.zeros(len(means), np.int64)
        contributions = np.zeros(len(features))
        while True:
            splits = self._feature[trees, node] >= 0
            if not splits.any():
                break
            tree, parent = trees[splits], node[splits]
            column = self._feature[tree, parent]
            node[splits] = self._left[tree, parent] + (x[column] > self._threshold[tree, parent])
            np.add.at(contributions, column, means[tree, node[splits]] - means[tree, parent])
        base = math.fsum([self._f[BASE], *means[:, 0]])
        return Explanation.of(self.predict(row)[0], base, features, contributions)

    def _node_means(self) -> Floats:
        """(trees, nodes): the value of each leaf, and the mean of its children for each split.

        A child counts with the weight of the ring's rows below it; without such rows both count
        equally.
        """
        k, nodes = self._k, self._feature.shape[1]
        n, trees = int(k[ROWS]), int(k[TREES])
        weights = self._about[:n, WEIGHT]
        means, cover = self._value[:trees].copy(), np.empty((trees, nodes))
        for tree in range(trees):
            cover[tree] = np.bincount(self._leaves[:n, tree], weights, nodes)
        # Children have larger numbers than their parent.
        for node in range(nodes - 1, -1, -1):
            split = np.flatnonzero(self._feature[:trees, node] >= 0)
            child = self._left[split, node]
            right = cover[split, child + 1]
            cover[split, node] = total = cover[split, child] + right
            share = np.divide(right, total, out=np.full(len(split), 0.5), where=total > 0.0)
            low, high = means[split, child], means[split, child + 1]
            means[split, node] = (1.0 - share) * low + share * high
        return means

    def has_long_row(self, rows: int) -> bool:
        """See core/learner.py: whether one of the next rows grows a tree."""
        k = self._k
        held = min(int(k[ROWS]) + rows, self._window)
        return held > 1024 and bool((k[SINCE_TREE] + rows) * self.spec["renewal"] >= k[ROWS])

    @property
    def intercept(self) -> float:
        """The score without trees."""
        return float(self._f[BASE])

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `rows` are the bytes of single-precision numbers."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[COLUMNS])
        state: State = {
            name: np.array(k[place]) for name, place in zip(_INTS, _INT_PLACES, strict=True)
        }
        state |= {name: np.array(self._f[place]) for place, name in enumerate(_FLOATS)}
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
                "value": self._value[:trees].copy(),
            }
        )

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        check_arrays(state, dict.fromkeys((*_INTS, *_FLOATS), ()))
        k = self._k
        for name, place in zip(_INTS, _INT_PLACES, strict=True):
            k[place] = state[name]
        for place, name in enumerate(_FLOATS):
            self._f[place] = state[name]
        self._table.restore(state, self._dim, k)
        n, used, nodes = int(k[ROWS]), int(k[COLUMNS]), self._feature.shape[1]
        trees = int(np.asarray(state.get("value", [])).shape[0])
        columns = columns_with_room(used)
        if trees > self.spec["trees"] or not 0 <= n <= min(
            self.spec["window"], MAX_CELLS // columns
        ):
            raise CorruptState("the ring or the trees are damaged")
        shape = (trees, nodes)
        shapes: dict[str, tuple[int, ...]] = {
            "rows": (n, 4 * used),
            "about": (n, N_ABOUT),
            "leaves": (n, trees),
            "edges": (used, MAX_BINS),
            "n_edges": (used,),
            **dict.fromkeys(("feature", "left", "threshold", "value"), shape),
        }
        check_arrays(state, shapes)
        self._make_ring(n, columns)
        held = np.ascontiguousarray(state["rows"], np.uint8).reshape(n, used, 4)
        self._rows[:, :used] = held.view(np.float32)[:, :, 0] if n and used else 0.0
        self._about[:] = state["about"]
        self._leaves[:, :trees] = state["leaves"]
        self._edges[:used], self._n_edges[:used] = state["edges"], state["n_edges"]
        self._feature[:trees], self._left[:trees] = state["feature"], state["left"]
        self._threshold[:trees], self._value[:trees] = state["threshold"], state["value"]
        k[TREES] = trees
        self._check_numbers(trees, used)
        for column in range(used):
            _kernels.code_column(
                self._rows, self._codes, n, column, self._edges[column], int(self._n_edges[column])
            )

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
            and k[OLDEST] < self.spec["trees"]
            and bool((feature < used).all() and (feature >= -1).all())
            and bool((left[splits] > np.nonzero(splits)[1]).all())
            and bool((left[splits] < nodes - 1).all())
            and bool((self._leaves < nodes).all())
            and bool((self._n_edges >= 0).all() and (self._n_edges < MAX_BINS).all())
        )
        if not is_sound:
            raise CorruptState("the ring or the trees are damaged")
