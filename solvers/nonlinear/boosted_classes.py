"""Boosted trees for classes: one ring, and trees whose leaves add to the margins of all classes.

Everything is as in boosted.py, but the loss is that of a softmax over the classes, and a leaf has a
value for each class: a Newton step with the diagonal of the second derivatives. The splits of a
tree are found along one direction of the margins, drawn by a hash of the seed and the number of the
tree (after Iosipoi and Vakhrushev, "SketchBoost: fast gradient boosted decision tree for
multioutput problems", 2022). So a tree costs little more than one of two classes, and there are
twice as many, grown twice as often. Margins without trees are the log frequencies of the classes in
the ring.

Memory in bytes, in addition to boosted_ring.py with 2 T for T, and for R outputs, a power of two
above the number of classes: 4 R for each row of the ring, 2^21 / R of them at most, and 8 R for
each node, of which all trees together have at most 2^14. While a tree grows, 8 R more for each row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import boosted_class_kernels as _kernels
from dualstream.solvers.nonlinear.boosted_growth import MAX_ROWS
from dualstream.solvers.nonlinear.boosted_kernels import (
    GROWN,
    ROWS,
    SINCE_TREE,
    TARGET,
    TREES as LIVING,
    weight_unit,
)
from dualstream.solvers.nonlinear.boosted_ring import FIRST_TREE, TreeRing
from dualstream.solvers.nonlinear.class_scorer import ClassScorer
from dualstream.solvers.nonlinear.dense_columns import COLUMNS
from dualstream.solvers.nonlinear.growth_kernels import grow_tree, most_value, pack_slopes
from dualstream.solvers.nonlinear.spec import MAX_CLASS_ROWS
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.batch import Batch

MAX_MARGINS = 2**21
"""Margins of the ring: outputs times rows."""
TREES, STEP = 2, 2.0 / 3.0
"""More trees, grown as many times as often, and smaller steps than for two classes: a tree finds
its splits for one direction, and not for each class.
"""
MAX_NODES = 2**14
"""Limit of the nodes of all trees, as each has a value for every class: of 31 leaves, 264 trees."""
LEAST_GAIN = 1e-3
_DIRECTIONS = 1024
"""Numbers that are drawn for a tree: more than outputs."""


class BoostedClasses(TreeRing, ClassScorer):
    """The scorer of `algorithm: boosted`."""

    _more, _most_nodes = TREES, MAX_NODES
    _of_rows = ("_codes", "_about", "_leaves", "_margins")

    def __init__(self, spec: Mapping[str, Any]) -> None:
        ClassScorer.__init__(self, spec)
        self._room = 4
        TreeRing.__init__(self, spec)
        self._base = np.zeros(self._room)
        self._vectors = np.zeros((*self._feature.shape, self._room))

    def _make_ring(self, rows: int, columns: int) -> None:
        super()._make_ring(rows, columns)
        self._margins = np.zeros((rows, self._room), np.float32)

    def _most_rows(self, columns: int) -> int:
        return min(super()._most_rows(columns), MAX_CLASS_ROWS, MAX_MARGINS // self._room)

    @property
    def _outputs(self) -> int:
        return 1 + self.classes

    def add_class(self) -> None:
        """See ClassScorer."""
        super().add_class()
        self._work = 1.0 + self._outputs / 16
        if self._outputs > self._room:
            window = self._window
            self._room *= 2
            self._resize(self._codes.shape[1], window)
            base, vectors = self._base, self._vectors
            self._base = np.zeros(self._room)
            self._vectors = np.zeros((*self._feature.shape, self._room))
            self._base[: len(base)], self._vectors[:, :, : len(base)] = base, vectors
        for numbers in (self._base, self._vectors, self._margins):
            numbers[..., self.classes] = numbers[..., 0]

    # -- learning and scoring --------------------------------------------------------------------

    def learn(self, batch: Batch, class_ids: Ints, is_met: bool) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        done, n = 0, len(batch)
        scores = np.zeros((n, self._outputs))
        while done < n:
            done, why = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, class_ids, batch.weights, done, scores,
                self._window, FIRST_TREE, self._renewal, *self._table.arrays, self._k,
                self._f, self._x, self._codes, self._sample, self._about, self._margins,
                self._leaves, self._edges, self._n_edges, self._feature, self._threshold,
                self._left, self._vectors, self._base,
            )  # fmt: skip
            self._make_up(why)
        return self._odds(scores, is_met)

    def predict(self, batch: Batch) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        scores = np.empty((len(batch), self._outputs))
        keys, columns, _ = self._table.arrays
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, keys, columns, self._k,
            np.empty_like(self._x), self._feature, self._threshold, self._left, self._vectors,
            self._base,
        )  # fmt: skip
        return self._odds(scores)

    def _grow(self) -> None:
        """See TreeRing; a tree never grows during several rows."""
        k, n, outputs = self._k, int(self._k[ROWS]), self._outputs
        k[SINCE_TREE] = 0
        if k[COLUMNS]:
            self._renew_bins()
        tree, is_taken = self._next_tree()
        unit = weight_unit(self._about[:n])
        base = self._frequencies(unit)
        slopes, curvatures, units = np.empty(n), np.empty(n), np.empty(2)
        packed, m, p = np.empty(n, np.int64), np.empty((2, outputs)), np.empty((n, outputs))
        _kernels.contrast_slopes(
            self._margins, self._about, self._leaves, n, tree if is_taken else -1,
            base - self._base, self._vectors, self._contrast(), m, p, slopes, curvatures,
        )  # fmt: skip
        self._base = base
        pack_slopes(slopes, curvatures, packed, units)
        derivatives, rows = (slopes, curvatures, packed, units), np.arange(n, dtype=np.int32)
        growth = self._new_growth(derivatives, LEAST_GAIN, unit, rows)
        grow_tree(MAX_ROWS, *growth.arguments)
        most = most_value(True)
        self._leaves[:n, tree] = growth.leaves(1.0, most)[1]
        self._plant(growth, tree, is_taken)
        sums = np.zeros((2, self._feature.shape[1], outputs))
        # A softmax of K classes has K - 1 degrees of freedom (Friedman 2001, algorithm 6).
        step = STEP * self.spec["step"] * max(0.5, 1.0 - 1.0 / self.classes)
        _kernels.fill_leaves(
            self._margins, self._about, self._leaves, n, tree, step, growth.ridge, most, p, sums[0],
            sums[1], self._vectors,
        )  # fmt: skip

    def _frequencies(self, unit: float) -> Floats:
        """The log frequency of each output in the ring, up to a constant."""
        weights, base = np.zeros(self._room), np.zeros(self._room)
        _kernels.class_weights(self._about, int(self._k[ROWS]), weights)
        base[: self._outputs] = np.log(weights[: self._outputs] + 0.5 * unit)
        return base

    def _contrast(self) -> Floats:
        """The direction of the next tree: a number of mean 0 for each output."""
        contrast = np.empty(self._outputs)
        _kernels.draw_contrast(self.spec["seed"], int(self._k[GROWN]) * _DIRECTIONS, contrast)
        return contrast

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner, and TreeRing; `margins` are the bytes of single-precision numbers."""
        n, trees, outputs = int(self._k[ROWS]), int(self._k[LIVING]), self._outputs
        margins = self._margins[:n, :outputs].copy()
        return super().state() | {
            "margins": margins.view(np.uint8).reshape(n, 4 * outputs),
            "vectors": self._vectors[:trees, :, :outputs].copy(),
            "class_base": self._base[:outputs].copy(),
        }

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._restore(state)
        n, trees, outputs = int(self._k[ROWS]), int(self._k[LIVING]), self._outputs
        shapes = {
            "margins": (n, 4 * outputs),
            "vectors": (trees, self._feature.shape[1], outputs),
            "class_base": (outputs,),
        }
        check_arrays(state, shapes)
        margin_bytes = np.ascontiguousarray(state["margins"], np.uint8).reshape(n, outputs, 4)
        margins = (
            margin_bytes.view(np.float32)[:, :, 0] if n else np.zeros((0, outputs), np.float32)
        )
        targets = self._about[:, TARGET]
        is_class = (targets == np.floor(targets)) & (targets >= 1.0) & (targets < outputs)
        if not (is_storable(margins.astype(np.float64)) and bool(is_class.all())):
            raise CorruptState("the classes in the ring are damaged")
        self._margins[:, :outputs] = margins
        self._vectors[:trees, :, :outputs] = state["vectors"]
        self._base[:outputs] = state["class_base"]
