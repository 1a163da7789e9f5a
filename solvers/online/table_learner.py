"""TableLearner: learners whose state is a table with a row per coordinate, and some scalars.

Shared Python code: labels are checked before any row is learned, and a state is its columns and
scalars by name.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, InvalidRow
from dualstream.solvers.jit import F8, RO_F8, Floats, kernel
from dualstream.solvers.losses.loss_table import Loss, make_loss
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.refit_weights import check_weights
from dualstream.solvers.protocols.served_weights import (
    ServedWeights,
    count_nonzeros,
    weights_in_parts,
)
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import Features
from dualstream.solvers.rows.scalar import prior_odds, sigmoid, unknown_label

SAMPLES = 0
"""Index of `samples` among a learner's integers."""


def loss_of(spec: Mapping[str, Any]) -> Loss:
    """The Loss of a resolved specification."""
    loss = spec["loss"]
    if isinstance(loss, str):
        return make_loss(loss)
    return make_loss(loss["kind"], next(value for name, value in loss.items() if name != "kind"))


class TableLearner:
    """The Learner protocol, except `_learn_rows`, `predict` and `_served_of`.

    Also TakesWeights, for subclasses with `_take_weights`.

    STATE_FLOATS, STATE_INTS   name and index of the scalars that are state; the others follow from
                               the specification
    COLUMNS                    names of the columns of the table
    PRIOR_AT                   index of the weights of positive and negative labels so far, the
                               state of `intercept: prior`
    """

    STATE_FLOATS: ClassVar[Mapping[str, int]]
    STATE_INTS: ClassVar[Mapping[str, int]]
    COLUMNS: ClassVar[tuple[str, ...]]
    PRIOR_AT: ClassVar[int]

    def __init__(
        self, spec: Mapping[str, Any], loss: Loss, floats: int, ints: int, columns: int
    ) -> None:
        self.spec = spec
        self._loss = loss
        self._features = Features.of(spec)
        self._binary = spec["task"] == "binary"
        self._floats = np.zeros(floats)
        self._ints = np.zeros(ints, np.int64)
        self._w = np.zeros((self._features.width, columns))
        if self._features.has_prior:
            names = {"positive": self.PRIOR_AT, "negative": self.PRIOR_AT + 1}
            self.STATE_FLOATS = {**self.STATE_FLOATS, **names}  # type: ignore[misc]

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        """Learn all rows and write `out`."""
        raise NotImplementedError

    def _served_of(self, rows: Floats) -> Floats:
        """The served weights of these rows of the table, as a copy; the last is the intercept's."""
        raise NotImplementedError

    def _served(self) -> Floats:
        """The served weights, (width,), as a copy; the last is the intercept."""
        return self._served_of(self._w)

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. O(entries) per row, independent of the width."""
        batch.check_width(self._features.dim)
        row = unknown_label(batch.labels, self._binary)
        if row >= 0:
            raise InvalidRow.of_label(row, float(batch.labels[row]), self._binary)
        n = len(batch.labels)
        out = Outcome(np.empty(n), np.empty(n), np.zeros(n, np.bool_), np.zeros(n, np.bool_))
        self._learn_rows(batch, out)
        return out

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        if not self._loss.logistic:
            return None
        out = np.empty(len(scores))
        sigmoids(scores, out)
        return out

    @property
    def weights(self) -> Floats:
        """See Learner."""
        return self._served()[:-1]

    @property
    def intercept(self) -> float:
        """See Learner."""
        return float(self._served_of(self._w[-1:])[-1]) + self._odds

    @property
    def _odds(self) -> float:
        """What is added to every score: log odds with `intercept: prior`, otherwise 0."""
        return float(prior_odds(self._floats, self.PRIOR_AT)) if self._features.has_prior else 0.0

    def served_weights(self) -> list[ServedWeights]:
        """See Learner."""
        return [weights_in_parts(self._features.dim, self.intercept, self._between)]

    def _between(self, first: int, last: int) -> Floats:
        """The served weights of the features from `first` to before `last`."""
        # One more row, which `_served_of` takes for the intercept's.
        return self._served_of(self._w[first : last + 1])[:-1]

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return count_nonzeros(self.served_weights())

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._ints[SAMPLES])

    def certificate(self) -> Certificate | None:
        """None: these algorithms have no dual."""
        return None

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights."""
        labels = batch.labels
        return batch, [np.where(labels == 0.0, -1.0, labels) if self._binary else labels]

    def served(self) -> Floats:
        """See TakesWeights."""
        return self._served()[None, :]

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """See TakesWeights."""
        check_weights(weights, reach, 1, self._features.width)
        self._take_weights(weights[0], float(reach[0]), rows)

    def _take_weights(self, weights: Floats, reach: float, rows: int) -> None:
        """Continue from these finite weights (width,)."""
        raise NotImplementedError

    def state(self) -> State:
        """See Learner."""
        state: State = {name: np.array(self._floats[at]) for name, at in self.STATE_FLOATS.items()}
        state |= {name: np.array(self._ints[at]) for name, at in self.STATE_INTS.items()}
        for column in range(self._w.shape[1]):
            state[self.COLUMNS[column]] = self._w[:, column].copy()
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        columns = self.COLUMNS[: self._w.shape[1]]
        numbers = dict.fromkeys((*self.STATE_FLOATS, *self.STATE_INTS), ())
        check_arrays(state, numbers | dict.fromkeys(columns, (self._features.width,)))
        names = ("positive", "negative") if self._features.has_prior else ()
        if any((np.asarray(state[name]) < 0.0).any() for name in names):
            raise CorruptState("the prior is negative")
        for name in self.STATE_INTS:
            if int(state[name]) < 0:
                raise CorruptState(f"{name} is {int(state[name])}")
        for name, at in self.STATE_FLOATS.items():
            self._floats[at] = state[name]
        for name, at in self.STATE_INTS.items():
            self._ints[at] = state[name]
        for column, name in enumerate(columns):
            self._w[:, column] = state[name]


@kernel
def sigmoids(scores: RO_F8, out: F8) -> None:
    """out = sigmoid(scores)."""
    for i in range(scores.shape[0]):
        out[i] = sigmoid(scores[i])
