"""Neighbours: the nearest of the last rows of a stream.

A ring holds the last `window` rows of a weight above 0, standardised when they were learned
(standardise.py), and their labels. With the K nearest of them at squared distances d_1 <= ... <=
d_K a row scores, for classes, the log of the odds

    (0.3 + sum of c_i w_i over the positive ones) / (0.3 + the sum over the negative ones)

and for numbers the mean of their labels by c_i w_i, where w_i = exp(-r d_i / d_K), r = 3 for
classes and 2 for numbers, and c_i is the weight of the row. A label that is a number is entered as
one within 10 root mean square errors of its score.
Distance-weighted neighbours: Dudani, "The distance-weighted k-nearest-neighbor rule", 1976. Columns
are those of dense_columns.py. O(window x columns) per row; no row is rejected.

Memory in bytes, for S columns, a power of two up to 128: 4 S + 20 for each row of the ring, and 100
kB.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, NotExpressible
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import dense_columns, neighbours_kernels as _kernels
from dualstream.solvers.nonlinear.class_scorer import ClassScorer
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.nonlinear.neighbours_kernels import (
    AT,
    LABEL,
    LANES,
    N_INTS,
    ROWS,
    SAMPLES,
    START,
    WEIGHT,
)
from dualstream.solvers.nonlinear.standardise import COUNT, MEAN, MEAN_SQUARE, N_MOMENTS, REACH
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Neighbours as NeighboursForm
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of

_FAR_MEAN = 1e12
"""Multiple of the labels in the ring, at least of 1, beyond which the mean of all labels is that of
a broken one: distances from such a mean would lose the digits of the labels."""
_SHARPNESS = {"binary": 3.0, "multiclass": 3.0, "regression": 2.0}
_INTS = {"samples": SAMPLES, "rows_held": ROWS, "at": AT}


class NeighbourRing:
    """The ring of the last rows, and its state."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        self._table = dense_columns.DenseColumns()
        self._k = np.zeros(N_INTS, np.int64)
        self._mean = np.zeros(2)
        self._about = np.zeros((2, spec["window"]))
        self._distances = np.empty(spec["window"] + LANES, np.float32)
        self._near = np.empty((2, spec["neighbours"]))
        self._make_room(4)

    def _make_room(self, columns: int) -> None:
        """Empty columns: by column, so that distances to all rows are computed side by side."""
        self._ring = np.zeros((columns, self.spec["window"]), np.float32)
        self._moments = np.zeros((N_MOMENTS, columns))
        self._x = np.empty(columns)

    def _widen(self) -> None:
        ring, moments = self._ring, self._moments
        self._make_room(2 * len(ring))
        self._ring[: len(ring)], self._moments[:, : len(ring)] = ring, moments

    def _make_up(self, why: int) -> None:
        """What a kernel returned for."""
        if why == _kernels.NEEDS_COLUMN:
            self._widen()
        elif why == _kernels.NEEDS_REVIEW:
            for column in self._table.review(self._k):
                self._ring[column] = 0.0
                self._moments[:, column] = 0.0

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `ring` has the bytes of single-precision numbers, by column."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[dense_columns.COLUMNS])
        ring = self._ring[:used, :n].copy()
        state: State = {name: np.array(k[index]) for name, index in _INTS.items()}
        return (
            state
            | self._table.state(k)
            | {
                "mean": self._mean.copy(),
                "moments": self._moments[:, :used].copy(),
                "ring": ring.view(np.uint8).reshape(used, 4 * n),
                "about": self._about[:, :n].copy(),
            }
        )

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        check_arrays(state, dict.fromkeys(_INTS, ()))
        k, window = self._k, self.spec["window"]
        for name, index in _INTS.items():
            k[index] = state[name]
        self._table.restore(state, self._dim, k)
        n, used = int(k[ROWS]), int(k[dense_columns.COLUMNS])
        at_is_right = k[AT] == n if n < window else 0 <= k[AT] < window
        if not (0 <= n <= window and at_is_right and k[SAMPLES] >= n):
            raise CorruptState("the ring is damaged")
        shapes: dict[str, tuple[int, ...]] = {
            "mean": self._mean.shape,
            "moments": (N_MOMENTS, used),
            "ring": (used, 4 * n),
            "about": (2, n),
        }
        check_arrays(state, shapes)
        self._make_room(dense_columns.columns_with_room(used))
        if n and used:
            ring = np.ascontiguousarray(state["ring"], np.uint8).view(np.float32)
            if not is_storable(ring) or bool((np.abs(ring) > REACH).any()):
                raise CorruptState("the ring is damaged")
            self._ring[:used, :n] = ring
        self._moments[:, :used], self._about[:, :n] = state["moments"], state["about"]
        self._mean[:] = state["mean"]
        is_sound = (
            bool((self._about[1, :n] > 0.0).all())
            and bool((self._mean[1:] >= 0.0).all())
            and bool((self._moments[[COUNT, MEAN_SQUARE]] >= 0.0).all())
        )
        if not is_sound:
            raise CorruptState("the ring is damaged")


class Neighbours(NeighbourRing, NonlinearLearner):
    """The learner of `algorithm: neighbours`; `spec` is resolved, task binary or regression."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        NonlinearLearner.__init__(self, spec)
        NeighbourRing.__init__(self, spec)
        if not self._is_binary:
            self._mean = np.zeros(3)

    def _make_up(self, why: int) -> None:
        super()._make_up(why)
        if why == _kernels.NEEDS_REVIEW and self.spec["task"] == "regression":
            labels = self._about[LABEL, : self._k[ROWS]]
            if abs(self._mean[0]) > _FAR_MEAN * max(1.0, float(np.abs(labels).max())):
                self._mean[0] = math.fsum(labels) / len(labels)

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        done, n = 0, len(batch)
        while done < n:
            done, why = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, done,
                scores, losses, self._is_binary, self.REACH, _SHARPNESS[self.spec["task"]],
                *self._table.arrays, self._k, self._mean, self._x, self._moments, self._ring,
                self._about, self._distances, self._near,
            )  # fmt: skip
            self._make_up(why)

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._dim)
        scores = np.empty(len(batch))
        keys, columns, _ = self._table.arrays
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._is_binary,
            _SHARPNESS[self.spec["task"]], keys, columns, self._k, self._mean, self._x,
            self._moments, self._ring, self._about, self._distances, self._near,
        )  # fmt: skip
        return scores

    def _score_form(self) -> NeighboursForm:
        n, used = int(self._k[ROWS]), int(self._k[dense_columns.COLUMNS])
        square = self._moments[MEAN_SQUARE, :used]
        return NeighboursForm(
            columns=self._table.features(used),
            largest=dense_columns.LARGEST_VALUE,
            means=self._moments[MEAN, :used].copy(),
            deviations=np.sqrt(np.where(square > 0.0, square, np.inf)),
            reach=REACH,
            rows=self._ring[:used, :n].copy(),
            labels=self._about[LABEL, :n].copy(),
            weights=self._about[WEIGHT, :n].copy(),
            neighbours=min(self.spec["neighbours"], n),
            sharpness=_SHARPNESS[self.spec["task"]],
            start=START if self._is_binary else None,
            mean=float(self._mean[0]),
        )

    def explain(self, row: Batch) -> Explanation:
        """Raises NotExpressible: a distance joins all columns."""
        raise NotExpressible("it compares whole rows, so no feature has a contribution of its own")


class NeighbourClasses(NeighbourRing, ClassScorer):
    """The scorer of `algorithm: neighbours` with task multiclass: one ring, a vote for each class.

    The log odds are those of one learner for each class against the rest, bit for bit.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        ClassScorer.__init__(self, spec)
        NeighbourRing.__init__(self, spec)

    def learn(self, batch: Batch, class_ids: Ints, is_met: bool) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        done, n = 0, len(batch)
        scores = np.zeros((n, 1 + self.classes))
        while done < n:
            done, why = _kernels.learn_classes(
                batch.indptr, batch.indices, batch.values, class_ids, batch.weights, done, scores,
                _SHARPNESS["multiclass"], *self._table.arrays, self._k, self._x, self._moments,
                self._ring, self._about, self._distances, self._near,
            )  # fmt: skip
            self._make_up(why)
        return scores

    def predict(self, batch: Batch) -> Floats:
        """See ClassScorer."""
        batch.check_width(self._dim)
        scores = np.zeros((len(batch), 1 + self.classes))
        keys, columns, _ = self._table.arrays
        _kernels.score_classes(
            batch.indptr, batch.indices, batch.values, scores, _SHARPNESS["multiclass"], keys,
            columns, self._k, self._x, self._moments, self._ring, self._about, self._distances,
            self._near,
        )  # fmt: skip
        return scores

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._restore(state)
        labels = self._about[0, : self._k[ROWS]]
        if not bool(
            ((labels == np.floor(labels)) & (labels >= 0.0) & (labels < self.classes)).all()
        ):
            raise CorruptState("the classes in the ring are damaged")
