"""How weights that were solved for elsewhere enter a learner whose state they are.

They take the place of the learner's own: what rows that came since had changed goes with those.
An average of iterates begins anew at them. What becomes of a step size is each learner's own
affair, as it is what tells whether the first rows that come throw the weights away again: see
`take_weights` of each.
"""

from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.errors import RefitError
from dualstream.solvers.core.learner import Learner
from dualstream.solvers.jit import Floats

WEIGHTS = ("rows", "reach", "width", "counts", "places", "weights")
"""What a refit of such a learner brings: how many rows it is of, how far the weights of each
problem may be from the best ones, and of each problem the weights that are not 0."""


class TakesWeights(Learner, Protocol):
    """A learner whose state is its weights."""

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """Rows as the learner's problems see them now, and their labels (n,) for each problem.

        Changes nothing. Of several problems the first is that of none of the known classes. Raises
        RefitError where there is nothing yet to see them by.
        """

    def served(self) -> Floats:
        """(problems, width): the weights served of each problem, the intercept last."""

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """Go on from these weights.

        weights  (problems, width)  as `served` has them
        reach    (problems,)        how far from there the best weights may be
        rows                        how many rows they were solved on

        A problem that was not there then takes what the first one does. Raises RefitError where
        they do not fit; then the learner may have changed in part.
        """


def taking_weights(learner: Learner) -> TakesWeights:
    """The learner of a specification whose state is its weights."""
    return cast(TakesWeights, learner)


def enter_weights(learner: Learner, arrays: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Let the learner take weights. Raises RefitError, and then nothing has changed."""
    weights, reach, rows = _read(arrays)
    before = learner.state()
    try:
        taking_weights(learner).take_weights(weights, reach, rows)
    except RefitError:
        learner.restore(before)
        raise


def check_weights(weights: Floats, reach: Floats, problems: int, width: int) -> None:
    """Raise RefitError unless they are of at most so many problems, each of this width."""
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
    places, values = arrays["places"].astype(np.int64), arrays["weights"]
    is_good = len(places) == len(values) == counts.sum() and (counts >= 0).all()
    if not (is_good and ((places >= 0) & (places < width)).all() and rows > 0):
        raise RefitError("its weights and their places do not fit together")
    weights = np.zeros((len(counts), width))
    weights[np.repeat(np.arange(len(counts)), counts), places] = values
    return weights, arrays["reach"], rows
