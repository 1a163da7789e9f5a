"""Splines: an additive model, one piecewise linear function of each column.

    score = w_0 + sum_j g_j(x_j)

g_j is linear between KNOTS knots at quantiles of the last WINDOW rows, and constant beyond the
outer ones. Its values at the knots take the diagonal Newton step of the portfolio's
`diagonal_newton` (portfolio/fused_kernels.py), with forgetting `gamma`. Knots are placed at rows
32, 128, 512, 2,048 and then every 2,048, with the function carried over; a new column waits for the
next of these. (Model: Hastie and Tibshirani, "Generalized additive models", 1990.) Columns are
those of dense_columns.py. O(columns) per row; no row is rejected.

Memory in bytes, for S columns, a power of two up to 128: 4.5 kB for each, and 100 kB.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.curves import Curve
from dualstream.solvers.core.errors import CorruptState
from dualstream.solvers.core.explanation import Explanation
from dualstream.solvers.core.learner import State
from dualstream.solvers.core.served_form import Curves
from dualstream.solvers.core.state_numbers import check_arrays, is_storable
from dualstream.solvers.jit import Floats
from dualstream.solvers.nonlinear import splines_kernels as _kernels
from dualstream.solvers.nonlinear.dense_columns import (
    COLUMNS,
    LARGEST_VALUE,
    DenseColumns,
    columns_with_room,
)
from dualstream.solvers.nonlinear.dense_values import dense_values
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.nonlinear.splines_kernels import (
    INTERCEPT,
    KNOTS,
    LEARNED,
    N_FLOATS,
    N_INTS,
    NEXT_KNOTS,
    RING_AT,
    ROWS,
    SAMPLES,
)

WINDOW = 1000
"""Rows from which knots are placed."""
FIRST_KNOTS, _GROWTH, _LONGEST = 32, 4, 2048

_INTS = {
    "rows_held": ROWS,
    "ring_at": RING_AT,
    "learned": LEARNED,
    "next_knots": NEXT_KNOTS,
    "samples": SAMPLES,
}


class Splines(NonlinearLearner):
    """The learner of `algorithm: splines`; `spec` is resolved, with task binary or regression."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._table = DenseColumns()
        self._k = np.zeros(N_INTS, np.int64)
        self._k[NEXT_KNOTS] = FIRST_KNOTS
        self._f = np.zeros(N_FLOATS)
        self._make_room(4)

    def _make_room(self, columns: int) -> None:
        """Empty columns."""
        self._knots, self._heights, self._curvatures = np.zeros((3, columns, KNOTS))
        self._n_knots = np.zeros(columns, np.int64)
        self._ring = np.zeros((WINDOW, columns), np.float32)
        self._x, self._share = np.empty(columns), np.zeros(columns)
        self._at = np.zeros(columns, np.int64)

    def _widen(self) -> None:
        used = len(self._n_knots)
        functions = (self._knots, self._heights, self._curvatures, self._n_knots)
        ring = self._ring
        self._make_room(2 * used)
        new = (self._knots, self._heights, self._curvatures, self._n_knots)
        for own, one in zip(new, functions, strict=True):
            own[:used] = one
        self._ring[:, :used] = ring

    # -- learning and scoring --------------------------------------------------------------------

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        done, n = 0, len(batch)
        while done < n:
            done, why = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, done,
                scores, losses, self._is_binary, self.spec["gamma"], *self._table.arrays, self._k,
                self._f, self._x, self._knots, self._n_knots, self._heights, self._curvatures,
                self._ring, self._at, self._share,
            )  # fmt: skip
            if why == _kernels.NEEDS_COLUMN:
                self._widen()
            elif why == _kernels.NEEDS_REVIEW:
                for column in self._table.review(self._k):
                    self._ring[:, column] = 0.0
                    self._n_knots[column] = 0
            if why != _kernels.NEEDS_COLUMN and self._k[LEARNED] >= self._k[NEXT_KNOTS]:
                self._place_knots()

    def _place_knots(self) -> None:
        k = self._k
        k[NEXT_KNOTS] += min((_GROWTH - 1) * k[NEXT_KNOTS], _LONGEST)
        scratch = np.empty((3, KNOTS))
        for column in range(int(k[COLUMNS])):
            values = np.sort(self._ring[: int(k[ROWS]), column])
            _kernels.place_knots(
                column, values, self._knots, self._n_knots, self._heights, self._curvatures, scratch
            )

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._dim)
        scores = np.empty(len(batch))
        keys, columns, _ = self._table.arrays
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, keys, columns, self._k, self._f,
            self._x, self._knots, self._n_knots, self._heights, self._at, self._share,
        )  # fmt: skip
        return scores

    def _score_form(self) -> Curves:
        used = int(self._k[COLUMNS])
        return Curves(
            columns=self._table.features(used),
            largest=LARGEST_VALUE,
            base=float(self._f[INTERCEPT]),
            n_knots=self._n_knots[:used].copy(),
            knots=self._knots[:used].copy(),
            heights=self._heights[:used].copy(),
        )

    def curves(self) -> list[list[Curve]]:
        """See core/curves.py: g_j of each column that has knots, by increasing feature."""
        features = self._table.features(int(self._k[COLUMNS]))
        return [
            [
                Curve(
                    int(features[j]),
                    self._knots[j, : self._n_knots[j]].copy(),
                    self._heights[j, : self._n_knots[j]].copy(),
                )
                for j in np.argsort(features)
                if self._n_knots[j] > 0
            ]
        ]

    def explain(self, row: Batch) -> Explanation:
        """See core/explanation.py: g_j(x_j), also of columns that the row does not have."""
        features, x = dense_values(self._table, self._k, row)
        contributions = np.zeros(len(features))
        for j in range(len(features)):
            n = self._n_knots[j]
            if n > 0:
                contributions[j] = np.interp(x[j], self._knots[j, :n], self._heights[j, :n])
        return Explanation.of(self.predict(row)[0], self.intercept, features, contributions)

    @property
    def intercept(self) -> float:
        """w_0"""
        return float(self._f[INTERCEPT])

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; `ring` has the bytes of single-precision numbers."""
        k, n, used = self._k, int(self._k[ROWS]), int(self._k[COLUMNS])
        ring = self._ring[:n, :used].copy()
        state: State = {name: np.array(k[place]) for name, place in _INTS.items()}
        return (
            state
            | self._table.state(k)
            | {
                "numbers": self._f.copy(),
                "n_knots": self._n_knots[:used].copy(),
                "knots": self._knots[:used].copy(),
                "weights": self._heights[:used].copy(),
                "curvatures": self._curvatures[:used].copy(),
                "ring": ring.view(np.uint8).reshape(n, 4 * used),
            }
        )

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        check_arrays(state, dict.fromkeys(_INTS, ()))
        k = self._k
        for name, place in _INTS.items():
            k[place] = state[name]
        self._table.restore(state, self._dim, k)
        n, used = int(k[ROWS]), int(k[COLUMNS])
        at_is_right = k[RING_AT] == n if n < WINDOW else 0 <= k[RING_AT] < WINDOW
        is_whole = n == min(k[LEARNED], WINDOW) and k[LEARNED] < k[NEXT_KNOTS] <= 2**53
        if not (is_whole and at_is_right and bool((k >= 0).all())):
            raise CorruptState("the ring is damaged")
        tables = ("knots", "weights", "curvatures")
        shapes: dict[str, tuple[int, ...]] = {
            "numbers": self._f.shape,
            "n_knots": (used,),
            **dict.fromkeys(tables, (used, KNOTS)),
            "ring": (n, 4 * used),
        }
        check_arrays(state, shapes)
        self._make_room(columns_with_room(used))
        if n and used:
            ring = np.ascontiguousarray(state["ring"], np.uint8).view(np.float32)
            if not is_storable(ring):
                raise CorruptState("the ring is damaged")
            self._ring[:n, :used] = ring
        self._f[:] = state["numbers"]
        self._n_knots[:used] = state["n_knots"]
        self._knots[:used], self._heights[:used] = state["knots"], state["weights"]
        self._curvatures[:used] = state["curvatures"]
        held = np.arange(KNOTS - 1) < self._n_knots[:, None] - 1
        is_sound = (
            bool(((self._n_knots >= 0) & (self._n_knots <= KNOTS)).all())
            and bool((np.diff(self._knots)[held] > 0.0).all())
            and bool((self._curvatures >= 0.0).all())
            and bool((self._f[1:] >= 0.0).all())
        )
        if not is_sound:
            raise CorruptState("the knots are damaged")
