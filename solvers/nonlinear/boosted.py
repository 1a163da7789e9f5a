"""Boosted: gradient-boosted trees over the last rows of a stream.

A ring holds the last W rows of a weight above 0, and the score of each row under the living trees.
Whenever n / `renewal` rows have come since the last tree, for n rows in the ring, the oldest of
`trees` trees is removed, and a new tree of at most `leaves` leaves is grown on the gradients of the
loss at all rows of the ring, leaf by leaf, by the second-order gain (Friedman, "Greedy function
approximation: a gradient boosting machine", 2001; Chen and Guestrin, "XGBoost", 2016, eq. 6 and 7;
histograms as in Ke et al., "LightGBM", 2017). Each row keeps the leaf that it reached in each tree,
so that removing a tree is one subtraction for each row. The cost of a row does not depend on W.

The loss is logistic for classes and squared for numbers, or absolute with `loss: absolute`: then
the values of leaves are medians of the errors (as in Friedman's LAD_TreeBoost), which a few wild
targets do not move. The ridge of a leaf is in units of the rows' weights, so that only their ratios
count. The score of a row is from before it is learned. Columns are those of dense_columns.py; with
more than DRAWN columns, a tree may split a draw of about DRAWN of them, by a hash of the seed and
the number of the tree. No row is rejected.

Memory: see boosted_ring.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.jit import Floats, Indices, Ints
from dualstream.solvers.nonlinear import boosted_kernels as _kernels, growth_kernels
from dualstream.solvers.nonlinear.boosted_growth import NO_ERRORS, Growth
from dualstream.solvers.nonlinear.boosted_kernels import (
    AT,
    BASE,
    DONE,
    GROWN,
    MARGIN,
    MEAN_SQUARE,
    ROWS,
    TARGET,
    TREES,
    WEIGHT,
)
from dualstream.solvers.nonlinear.boosted_ring import FIRST_TREE, TreeRing
from dualstream.solvers.nonlinear.dense_columns import COLUMNS, LARGEST_VALUE
from dualstream.solvers.nonlinear.lags import COMPARED, NOT_SERVED, Lags, follow_each_other
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Trees
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch

ERRORS_REACH = 4.0
"""Medians of the absolute errors up to which an error counts in the choice of splits."""
FIRST_REACH = 20.0
"""Distances between the quartiles of the first targets within which they count."""


class Boosted(TreeRing, NonlinearLearner):
    """The learner of `algorithm: boosted`; `spec` is resolved, with task binary or regression."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        NonlinearLearner.__init__(self, spec)
        TreeRing.__init__(self, spec)
        self._is_absolute = "loss" in spec
        self._lags = Lags(self._dim, spec.get("lags", 0))
        self._most_value = growth_kernels.most_value(self._is_binary)

    # -- learning and scoring --------------------------------------------------------------------

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        done, n = 0, len(batch)
        served = NOT_SERVED if batch.served is None else batch.served
        while done < n:
            done, why = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, served,
                done, scores, losses, self._is_binary, self.REACH, self._window, FIRST_TREE,
                self._renewal, *self._lags.arguments, *self._table.arrays, self._k, self._f,
                self._x, self._codes, self._sample, self._about, self._leaves, self._edges,
                self._n_edges, self._feature, self._threshold, self._left, self._value,
            )  # fmt: skip
            if why != DONE:
                self._make_up(why)
        if self._is_absolute:
            np.abs(batch.labels - scores, out=losses)

    def _growth_on(self, about: Floats, order: Indices) -> Growth:
        """See TreeRing."""
        if self._k[GROWN] == 0:
            if not self._is_binary:
                self._limit_first_targets()
                about[:, TARGET] = self._about[: len(about), TARGET]
            self._f[BASE] = self._about[: len(about), MARGIN] = about[:, MARGIN] = self._base()
            if not self._is_binary:
                self._f[MEAN_SQUARE] = self._mean_square()
        # The ring's best constant moves with the stream; trees alone leave a part of its error.
        base_step = self._move_base(about)
        n = len(about)
        slopes, curvatures, units = np.empty(n), np.empty(n), np.empty(2)
        packed, errors = np.empty(n, np.int64), NO_ERRORS
        if self._is_absolute:
            curvatures[:] = about[:, WEIGHT]
            errors = about[:, TARGET] - about[:, MARGIN]
            np.multiply(_limited(errors, about), -curvatures, out=slopes)
        else:
            growth_kernels.slopes_of(about, n, self._is_binary, slopes, curvatures)
        steepest = growth_kernels.pack_slopes(slopes, curvatures, packed, units)
        least_gain = 1e-3 if self._is_binary else 1e-12 * steepest * steepest
        derivatives, unit = (slopes, curvatures, packed, units), _kernels.weight_unit(about)
        growth = self._new_growth(derivatives, least_gain, unit, order)
        growth.base_step, growth.errors = base_step, errors
        return growth

    def _columns_shown(self, used: int) -> Ints:
        """See TreeRing: without past targets unless targets follow each other; see lags.py."""
        columns, n = super()._columns_shown(used), min(int(self._k[ROWS]), COMPARED)
        if self._lags.count and not follow_each_other(self._about, TARGET, n, int(self._k[AT])):
            columns = columns[self._table.features(used) < self._dim]
        return columns

    def _move_base(self, about: Floats) -> float:
        """Move the margins of these rows by the same step towards the best one, and return it."""
        if not self._is_absolute:
            return float(growth_kernels.move_base(about, len(about), self._is_binary))
        step = _median(about[:, TARGET] - about[:, MARGIN], about)
        about[:, MARGIN] += step
        return step

    def _base(self) -> float:
        """The best constant: the log odds, the mean, or the median, of the rows in the ring."""
        about = self._about[: int(self._k[ROWS])]
        if self._is_absolute:
            return _median(about[:, TARGET].copy(), about)
        total = math.fsum(about[:, WEIGHT])
        target = math.fsum(about[:, WEIGHT] * about[:, TARGET])
        if self._is_binary:
            half = 0.5 * _kernels.weight_unit(about)
            return math.log((target + half) / (total - target + half))
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

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        return self._scored(batch)[0]

    def _scored(self, batch: Batch) -> tuple[Floats, Floats]:
        """The scores, and the columns of the last row."""
        batch.check_width(self._dim)
        served = NOT_SERVED if batch.served is None else batch.served
        scores, x = np.empty(len(batch)), np.empty(len(self._x))
        keys, columns, _ = self._table.arrays
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, served, scores, *self._lags.arguments,
            keys, columns, self._k, self._f, x, *self._trees,
        )  # fmt: skip
        return scores, x

    def _score_form(self) -> Trees:
        trees, features = int(self._k[TREES]), self._table.features(int(self._k[COLUMNS]))
        feature, is_of_row = self._feature[:trees].astype(np.int64), features < self._dim
        if not is_of_row[feature[feature >= 0]].all():
            raise NotExpressible(
                "its trees split past targets, which a file does not have: create a model with "
                '`"lags": 0`, and send past targets as numbers'
            )
        # Without the columns of past targets.
        feature[feature >= 0] = (np.cumsum(is_of_row) - 1)[feature[feature >= 0]]
        return Trees(
            columns=features[is_of_row],
            largest=LARGEST_VALUE,
            base=float(self._f[BASE]),
            feature=feature,
            left=self._left[:trees].astype(np.int64),
            threshold=self._threshold[:trees].copy(),
            value=self._value[:trees].copy(),
        )

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: what each split on the row's path changes (A. Saabas,
        "Interpreting random forests", 2014).

        The value of a split node is the mean of its leaves, weighted by the rows of the ring.
        O(window x trees).
        """
        (score,), x = self._scored(row)
        features = self._table.features(int(self._k[COLUMNS]))
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
        return Explanation.of(score, base, features, contributions, self._lags.values())

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

    @property
    def intercept(self) -> float:
        """The score without trees."""
        return float(self._f[BASE])

    def state(self) -> State:
        """See Learner, and TreeRing."""
        state = super().state() | {"value": self._value[: int(self._k[TREES])].copy()}
        return state | self._lags.state() if self._lags.count else state

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._restore(state)
        if self._lags.count:
            self._lags.restore(state)
        trees = int(self._k[TREES])
        check_arrays(state, {"value": (trees, self._value.shape[1])})
        self._value[:trees] = state["value"]


def _median(values: Floats, about: Floats) -> float:
    """The weighted median of numbers (n,) of these rows."""
    n, weights = len(values), about[:, WEIGHT].copy()
    return float(growth_kernels.median_of(values, weights, np.arange(n, dtype=np.int32), 0, n))


def _limited(errors: Floats, about: Floats) -> Floats:
    """The errors (n,) within ERRORS_REACH medians of their size.

    A split that suits them (Friedman, as above, section 4.4) is better than one that suits their
    signs, and a few wild targets do not choose it.
    """
    most = ERRORS_REACH * _median(np.abs(errors), about)
    return np.clip(errors, -most, most) if most > 0.0 else np.sign(errors)
