"""Splines: an additive model, one piecewise linear function of each column.

    score = w_0 + sum_j g_j(x_j)

g_j is linear between KNOTS knots at quantiles of the last WINDOW rows, and constant beyond the
outer ones. Its values at the knots take the diagonal Newton step of the portfolio's
`diagonal_newton` (portfolio/fused_kernels.py), with forgetting `gamma`. Knots are placed at rows
32, 128, 512, 2,048 and then every 2,048, with the function carried over; a new column waits for the
next of these. For numbers w_0 starts as the first label. (Model:
Hastie and Tibshirani, "Generalized additive models", 1990.) Columns are those of dense_columns.py.
O(columns) per row; no row is rejected.

Memory in bytes, for S columns, a power of two up to 128: 4.5 kB for each, and 100 kB.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats
from dualstream.solvers.nonlinear import splines_kernels as _kernels
from dualstream.solvers.nonlinear.dense_columns import LARGEST_VALUE
from dualstream.solvers.nonlinear.dense_values import dense_values
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.nonlinear.spline_columns import NewKnots, SplineColumns
from dualstream.solvers.nonlinear.splines_kernels import INTERCEPT, KNOTS, N_FLOATS
from dualstream.solvers.protocols.curves import Curve
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Curves
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch


class Splines(NonlinearLearner):
    """The learner of `algorithm: splines`; `spec` is resolved, with task binary or regression."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._columns = SplineColumns()
        self._samples = 0
        self._f = np.zeros(N_FLOATS)
        self._own, self._curvatures = np.zeros((2, 4 * KNOTS))

    def _make_room(self, columns: int) -> None:
        """Room for this many columns."""
        more = np.zeros(columns * KNOTS - len(self._own))
        self._own = np.concatenate([self._own, more])
        self._curvatures = np.concatenate([self._curvatures, more])

    @property
    def _heights(self) -> Floats:
        """(S, KNOTS): the function of each column at its knots."""
        return self._own.reshape(-1, KNOTS)

    def share_columns(self, other: "Splines") -> None:
        """Use the columns of a model that learns the same rows, and has learned as many. Raises
        CorruptState if they differ from those of this model."""
        arrays, shared = self._columns.state(), other._columns.state()
        if not all(np.array_equal(arrays[name], shared[name]) for name in arrays):
            raise CorruptState("the columns of the classes differ")
        self._columns = other._columns
        self._columns.followers += 1

    # -- learning and scoring --------------------------------------------------------------------

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        for rows in self._columns.enter(batch, self._samples):
            _kernels.learn_rows(
                batch.labels, batch.weights, rows.start, rows.end, rows.learned, scores, losses,
                self._is_binary, self.REACH, self.spec["gamma"], rows.with_knots,
                rows.at, rows.share, rows.used, self._f, self._own, self._curvatures,
            )  # fmt: skip
            if rows.room * KNOTS > len(self._own):
                self._make_room(rows.room)
            if rows.moved is not None:
                self._move_knots(rows.moved)
        self._samples += len(batch)

    def _move_knots(self, moved: NewKnots) -> None:
        scratch = np.empty(KNOTS)
        for column in np.flatnonzero(moved.n_new).tolist():
            here = slice(KNOTS * column, KNOTS * (column + 1))
            for values in (self._own, self._curvatures):
                _kernels.carry_over(
                    int(moved.n_old[column]), moved.old[column], int(moved.n_new[column]),
                    moved.new[column], values[here], scratch,
                )  # fmt: skip

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._dim)
        scores = np.empty(len(batch))
        for start, with_knots, at, share in self._columns.look_up(batch):
            block = scores[start : start + len(at)]
            _kernels.score_rows(with_knots, at, share, self._f, self._own, block)
        return scores

    def _score_form(self) -> Curves:
        used = self._columns.used
        return Curves(
            columns=self._columns.table.features(used),
            largest=LARGEST_VALUE,
            base=float(self._f[INTERCEPT]),
            n_knots=self._columns.n_knots[:used].copy(),
            knots=self._columns.knots[:used].copy(),
            heights=self._heights[:used].copy(),
        )

    def curves(self) -> list[list[Curve]]:
        """See protocols/curves.py: g_j of each column that has knots, by increasing feature."""
        columns = self._columns
        features = columns.table.features(columns.used)
        return [
            [
                Curve(
                    int(features[j]),
                    columns.knots[j, : columns.n_knots[j]].copy(),
                    self._heights[j, : columns.n_knots[j]].copy(),
                )
                for j in np.argsort(features)
                if columns.n_knots[j] > 0
            ]
        ]

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: g_j(x_j), also of columns that the row does not have."""
        columns = self._columns
        features, x = dense_values(columns.table, columns.k, row)
        contributions = np.zeros(len(features))
        for j in range(len(features)):
            n = columns.n_knots[j]
            if n > 0:
                contributions[j] = np.interp(x[j], columns.knots[j, :n], self._heights[j, :n])
        return Explanation.of(self.predict(row)[0], self.intercept, features, contributions)

    @property
    def intercept(self) -> float:
        """w_0"""
        return float(self._f[INTERCEPT])

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._samples

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner, and SplineColumns."""
        used = self._columns.used
        return self._columns.state() | {
            "numbers": self._f.copy(),
            "weights": self._heights[:used].copy(),
            "curvatures": self._curvatures.reshape(-1, KNOTS)[:used].copy(),
        }

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._columns.restore(state, self._dim)
        self._samples, used = self._columns.samples, self._columns.used
        shapes = dict.fromkeys(("weights", "curvatures"), (used, KNOTS))
        check_arrays(state, {"numbers": self._f.shape, **shapes})
        self._make_room(len(self._columns.knots))
        self._f[:] = state["numbers"]
        for values, name in ((self._own, "weights"), (self._curvatures, "curvatures")):
            values.reshape(-1, KNOTS)[:used] = state[name]
        if not (bool((self._curvatures >= 0.0).all()) and bool((self._f[1:] >= 0.0).all())):
            raise CorruptState("the knots are damaged")
