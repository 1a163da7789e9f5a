"""What every learner can do, and what it says about each row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.certificate import Certificate
from dualstream.solvers.core.errors import CorruptState
from dualstream.solvers.jit import Flags, Floats, Ints

State = dict[str, npt.NDArray[Any]]
"""Named arrays of float64, int64, uint8 or bool; a single number is an array of no dimension."""


@dataclass(slots=True, eq=False)
class Outcome:
    """What became of each row of a batch; all arrays are (n,).

    Not frozen: to make one would take as long as to learn a row.
    """

    scores: Floats
    """By the weights served before the row was learned; NaN for a rejected row."""
    losses: Floats
    """The loss of that score, whatever the row's weight; NaN for a rejected row."""
    updated: Flags
    """Whether the row's own step moved the weights: not a hinge row beyond its margin, say."""
    rejected: Flags
    """Whether the row was left out, without a trace, as some number would not be finite."""
    predicted: Ints | None = None
    """Multiclass: the best class, a place in `classes`; -1 where none was known, or rejected."""
    classes: tuple[str, ...] = ()
    """Multiclass: the classes known after the last row, in the order in which they were met."""
    log_losses: Floats | None = None
    """Multiclass: -log of the probability of the row's class, where the loss gives any."""
    set_aside: Flags | None = None
    """Whether a rejected row was not even tried, as learning pauses; None where none was."""

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: slice) -> "Outcome":
        """Some rows in a row; the columns are views."""
        predicted, log_losses, set_aside = self.predicted, self.log_losses, self.set_aside
        return Outcome(
            self.scores[rows],
            self.losses[rows],
            self.updated[rows],
            self.rejected[rows],
            None if predicted is None else predicted[rows],
            self.classes,
            None if log_losses is None else log_losses[rows],
            None if set_aside is None else set_aside[rows],
        )

    @classmethod
    def joined(cls, outcomes: Sequence["Outcome"]) -> "Outcome":
        """The outcome of consecutive batches, at least one, as one."""
        if len(outcomes) == 1:
            return outcomes[0]
        predicted = [o.predicted for o in outcomes if o.predicted is not None]
        log_losses = [o.log_losses for o in outcomes if o.log_losses is not None]
        return cls(
            np.concatenate([o.scores for o in outcomes]),
            np.concatenate([o.losses for o in outcomes]),
            np.concatenate([o.updated for o in outcomes]),
            np.concatenate([o.rejected for o in outcomes]),
            np.concatenate(predicted) if predicted else None,
            outcomes[-1].classes,
            np.concatenate(log_losses) if log_losses else None,
            _set_aside(outcomes),
        )

    @classmethod
    def of_rows_set_aside(cls, like: "Outcome", rows: int) -> "Outcome":
        """Of so many rows that were not tried, with the columns and classes of `like`."""
        nan = np.full(rows, np.nan)
        rejected = np.ones(rows, np.bool_)
        return cls(
            nan,
            nan.copy(),
            np.zeros(rows, np.bool_),
            rejected,
            None if like.predicted is None else np.full(rows, -1, like.predicted.dtype),
            like.classes,
            None if like.log_losses is None else nan.copy(),
            rejected.copy(),
        )


def _set_aside(outcomes: Sequence[Outcome]) -> Flags | None:
    """Which rows of consecutive batches were set aside; None where none was."""
    if all(o.set_aside is None for o in outcomes):
        return None
    return np.concatenate(
        [np.zeros(len(o), np.bool_) if o.set_aside is None else o.set_aside for o in outcomes]
    )


class Learner(Protocol):
    """One model. A batch of n rows is n single rows, bit for bit; reads change no bit."""

    spec: Mapping[str, Any]
    """The resolved specification that it was made from."""

    def learn(self, batch: Batch) -> Outcome:
        """Score and learn each row in order.

        Raises ShapeMismatch, or InvalidRow for a label that the task does not know (a binary task
        knows -1, 1 and 0, which is -1); then no row was learned.
        """

    def predict(self, batch: Batch) -> Floats:
        """Scores (n,) by the served weights; labels are not looked at. Raises ShapeMismatch."""

    def probabilities(self, scores: Floats) -> Floats | None:
        """Of the positive class, for these scores, where the loss gives any."""

    @property
    def weights(self) -> Floats:
        """The served weights, (dim,), as a copy."""

    @property
    def intercept(self) -> float:
        """The served intercept; 0 where there is none."""

    @property
    def nonzeros(self) -> int:
        """Served weights beyond 1e-12 of the largest: smaller ones are left over by rounding."""

    @property
    def samples(self) -> int:
        """Rows learned, those of weight 0 included."""

    def certificate(self) -> Certificate | None:
        """Where the learner stands; None where its algorithm has no dual."""

    def state(self) -> State:
        """All of it, as copies: a learner of the same specification goes on from it."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Be in this state, to the bit. Raises CorruptState, and then nothing has changed."""


def count_nonzeros(weights: Floats) -> int:
    """How many weights are beyond 1e-12 of the largest."""
    size = np.abs(weights)
    return int(np.count_nonzero(size > 1e-12 * size.max(initial=0.0)))


def check_arrays(
    state: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise CorruptState unless these arrays are there, of these shapes, and finite."""
    for name, shape in shapes.items():
        if name not in state:
            raise CorruptState(f"the state has no {name}")
        array = np.asarray(state[name])
        if array.shape != shape:
            raise CorruptState(f"{name} has shape {array.shape}, expected {shape}")
        if not (math.isfinite(array) if shape == () else np.isfinite(array).all()):
            raise CorruptState(f"{name} is not finite")


def under(prefix: str, state: Mapping[str, npt.NDArray[Any]]) -> State:
    """The arrays whose names begin with `prefix`, without it."""
    return {
        name[len(prefix) :]: np.asarray(array)
        for name, array in state.items()
        if name.startswith(prefix)
    }
