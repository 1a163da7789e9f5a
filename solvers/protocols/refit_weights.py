"""TakesWeights: the protocol of learners whose state is their weights, for refits.

New weights replace the learner's own, including what rows learned since the refit began had
changed. An average of iterates restarts at the new weights. The step size decides whether the next
rows undo the new weights, so each learner sets it: see its `take_weights`.
"""

import math
from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import RefitError
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.rows.batch import Batch

WEIGHTS = ("rows", "reach", "width", "counts", "places", "weights")
"""Arrays of a refit of weights: the number of rows, a bound on the distance from the best weights
for each problem, and the nonzero weights of each problem."""
MIN_DOUBT = 1e-3
"""Minimum gap, as a share of the objective, for learners that derive a step size from it."""


class TakesWeights(Learner, Protocol):
    """A learner whose state is its weights."""

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """The rows as the learner's problems see them now, and labels (n,) for each problem.

        Changes nothing. With classes, the first problem is the prototype for new classes. Raises
        RefitError if no row has been learned that the transformation needs.
        """

    def served(self) -> Floats:
        """(problems, width): the served weights of each problem, the intercept last."""

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """Continue from these weights.

        weights  (problems, width)  as `served` returns them
        reach    (problems,)        bound on the distance to the best weights
        rows                        number of rows they were solved on

        A class that was added since then receives the weights of the first problem. Raises
        RefitError if the arrays do not fit; then the learner may be partly changed.
        """


def taking_weights(learner: Learner) -> TakesWeights:
    """Cast a learner whose state is its weights."""
    return cast(TakesWeights, learner)


def enter_weights(learner: Learner, arrays: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Apply the weights of a refit. Raises RefitError, and then nothing has changed."""
    weights, reach, rows = _read(arrays)
    before = learner.state()
    try:
        taking_weights(learner).take_weights(weights, reach, rows)
    except RefitError:
        learner.restore(before)
        raise


def weights_arrays(weights: Floats, reach: Floats, rows: int) -> dict[str, Floats]:
    """The arrays of a refit: the nonzero weights (problems, width), problem by problem."""
    owners, coordinates = np.nonzero(weights)
    counts = np.bincount(owners, minlength=len(weights))
    return {
        "rows": np.array([float(rows)]),
        "reach": reach,
        "width": np.array([float(weights.shape[1])]),
        "counts": counts.astype(np.float64),
        "places": coordinates.astype(np.float64),
        "weights": weights[owners, coordinates],
    }


def reach_of(gap: float, objective: float, rho: float) -> float:
    """Bound on the distance to the weights that minimise an objective with rho |w|^2 / 2.

    rho |w - w*|^2 / 2 is at most the gap. But a gap far below the effect of new rows gives steps
    too short to follow them.
    """
    return math.sqrt(2.0 * max(gap, MIN_DOUBT * objective, 1e-300) / rho)


def check_weights(weights: Floats, reach: Floats, problems: int, width: int) -> None:
    """Raise RefitError unless these are at most `problems` weight vectors of width `width`."""
    count = len(weights)
    if not (1 <= count <= problems and weights.shape[1] == width and len(reach) == count):
        raise RefitError(
            f"weights of shape {weights.shape} do not fit a learner of {problems} problems "
            f"of width {width}"
        )
    if not (np.isfinite(weights).all() and np.isfinite(reach).all() and (reach >= 0.0).all()):
        raise RefitError("a weight is not finite")


def _read(arrays: Mapping[str, npt.NDArray[np.float64]]) -> tuple[Floats, Floats, int]:
    """Weights (problems, width), reach and rows. Raises RefitError."""
    counts = arrays["counts"].astype(np.int64)
    width, rows = int(arrays["width"][0]), int(arrays["rows"][0])
    coordinates, values = arrays["places"].astype(np.int64), arrays["weights"]
    is_good = len(coordinates) == len(values) == counts.sum() and (counts >= 0).all()
    if not (is_good and ((coordinates >= 0) & (coordinates < width)).all() and rows > 0):
        raise RefitError("its weights and their indices do not fit together")
    weights = np.zeros((len(counts), width))
    weights[np.repeat(np.arange(len(counts)), counts), coordinates] = values
    return weights, arrays["reach"], rows
