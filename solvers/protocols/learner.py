"""Learner: the protocol of all algorithms; Outcome: the result for each row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import B1, F8, Bytes, Flags, Floats, Ints
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.served_parts import joined_parts

State = dict[str, npt.NDArray[Any]]
"""Named arrays of float64, int64, uint8 or bool; a scalar is an array without dimensions."""


RESULTS = tuple[F8, F8, B1, B1]
"""What kernels write for each row, as one argument: `Outcome.arrays`."""

UNMARKED = 2
"""The mark of a row that has none; see `Outcome.marks`."""


@dataclass(slots=True, eq=False)
class Outcome:
    """Result of learning a batch, row by row; all arrays are (n,).

    Not frozen: creating a frozen dataclass takes as long as learning a row.
    """

    scores: Floats
    """Scores by the weights served before the row was learned; NaN for a rejected row."""
    losses: Floats
    """The loss of that score, whatever the row's weight; NaN for a rejected row."""
    updated: Flags
    """Whether the row changed the weights; a hinge row beyond its margin does not."""
    rejected: Flags
    """Whether the row was skipped without effect, because a number would not be finite."""
    predicted: Ints | None = None
    """Multiclass: the best class, an index into `classes`; -1 if none was known, or rejected."""
    classes: tuple[str, ...] = ()
    """Multiclass: the classes known after the last row, in order of first appearance."""
    log_losses: Floats | None = None
    """Multiclass: -log of the probability of the row's class, if the loss gives probabilities."""
    set_aside: Flags | None = None
    """Whether a rejected row was skipped because learning is paused; None if no row was."""
    relearned: int = 0
    """First rows of the outcome after which the learner started again, with sound numbers instead
    of broken ones; mostly 0. Metrics start again, too: the model did not learn what was sent."""
    observed: Flags | None = None
    """Whether a row without a label has entered a history; such rows count as rejected, too. None
    if no row was observed."""
    columns: Batch | None = None
    """The rows with the columns of their history, as the learner behind it received them."""
    class_losses: Floats | None = None
    """Multiclass, of a specification with intervals or costs: (n, K) -log of the probability of
    each class, or of the share of its sigmoid without probabilities; NaN of an unknown class."""
    marks: dict[str, Bytes] | None = None
    """Whether each row counts in a rate of this name, by other parts of a model's state: 1, 0, or
    UNMARKED."""

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def arrays(self) -> RESULTS:
        """Scores, losses and the flags `updated` and `rejected`, as kernels receive them."""
        return self.scores, self.losses, self.updated, self.rejected

    def mark(self, name: str, marks: Bytes) -> None:
        """Keep the marks (n,) of a rate for the parts that come later."""
        self.marks = {name: marks} if self.marks is None else {**self.marks, name: marks}

    def __getitem__(self, rows: slice) -> "Outcome":
        """A contiguous slice of rows; columns are views."""
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
            self.relearned and max(0, self.relearned - rows.indices(len(self))[0]),
            None if self.observed is None else self.observed[rows],
            None if self.columns is None else self.columns[rows],
            None if self.class_losses is None else self.class_losses[rows],
            marks=self.marks and {name: marks[rows] for name, marks in self.marks.items()},
        )

    @classmethod
    def joined(cls, outcomes: Sequence["Outcome"]) -> "Outcome":
        """Concatenate the outcomes of consecutive batches (at least one)."""
        if len(outcomes) == 1:
            return outcomes[0]
        predicted = [o.predicted for o in outcomes if o.predicted is not None]
        log_losses = [o.log_losses for o in outcomes if o.log_losses is not None]
        class_losses = None
        if outcomes[0].class_losses is not None:
            class_losses = joined_parts([o.class_losses for o in outcomes], [*map(len, outcomes)])
        relearned = rows = 0
        for outcome in outcomes:
            relearned = rows + outcome.relearned if outcome.relearned else relearned
            rows += len(outcome)
        return cls(
            np.concatenate([o.scores for o in outcomes]),
            np.concatenate([o.losses for o in outcomes]),
            np.concatenate([o.updated for o in outcomes]),
            np.concatenate([o.rejected for o in outcomes]),
            np.concatenate(predicted) if predicted else None,
            outcomes[-1].classes,
            np.concatenate(log_losses) if log_losses else None,
            _joined_flags([o.set_aside for o in outcomes], outcomes),
            relearned,
            _joined_flags([o.observed for o in outcomes], outcomes),
            class_losses=class_losses,
        )

    @classmethod
    def of_rows_set_aside(cls, like: "Outcome", rows: int) -> "Outcome":
        """Outcome of `n` rows skipped while learning is paused, with the columns and classes of
        `like`."""
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
            class_losses=None
            if like.class_losses is None
            else np.full((rows, like.class_losses.shape[1]), np.nan),
        )


def _joined_flags(flags: Sequence[Flags | None], outcomes: Sequence[Outcome]) -> Flags | None:
    """A column of flags of consecutive batches; None if no batch has it."""
    if all(one is None for one in flags):
        return None
    lengths = map(len, outcomes)
    pairs = zip(flags, lengths, strict=True)
    return np.concatenate([np.zeros(n, np.bool_) if one is None else one for one, n in pairs])


class Learner(Protocol):
    """One model. Learning a batch of n rows equals learning n single rows, bit for bit; reads
    change no bit."""

    spec: Mapping[str, Any]
    """The resolved specification of this learner."""

    def learn(self, batch: Batch) -> Outcome:
        """Score and learn each row in order.

        Raises ShapeMismatch, or InvalidRow for a label outside the task (binary: -1, 1, and 0 for
        -1). Then no row was learned.
        """

    def predict(self, batch: Batch) -> Floats:
        """Scores (n,) by the served weights; labels are ignored. Raises ShapeMismatch."""

    def probabilities(self, scores: Floats) -> Floats | None:
        """Probabilities of the positive class for these scores; None if the loss gives none."""

    @property
    def weights(self) -> Floats:
        """The served weights, (dim,), as a copy. Views of any width use `served_weights`."""

    def served_weights(self) -> Iterable[ServedWeights]:
        """The served weights that are not 0, for each score: one per class, otherwise one."""

    @property
    def intercept(self) -> float:
        """The served intercept; 0 without an intercept."""

    @property
    def nonzeros(self) -> int:
        """Served weights beyond 1e-12 of the largest; smaller ones are rounding errors."""

    @property
    def samples(self) -> int:
        """Rows learned, including those of weight 0."""

    def certificate(self) -> Certificate | None:
        """The current certificate; None if the algorithm has no dual."""

    def state(self) -> State:
        """The complete state, as copies; a learner of the same specification can resume from it."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state, to the bit. Raises CorruptState, and then nothing has changed."""


def has_long_row(learner: Any, rows: int) -> bool:
    """Can one of the next `rows` rows start work that is much longer than a row?

    Asks the learner's method of this name; a learner without it never does such work.
    """
    ask = getattr(learner, "has_long_row", None)
    return ask is not None and bool(ask(rows))


def as_served(learner: Any, batch: Batch) -> Batch | None:
    """Rows with the columns that are computed from earlier rows, as the learner would score them.

    Asks the learner's method of this name; None if no column depends on earlier rows.
    """
    ask = getattr(learner, "as_served", None)
    return None if ask is None else cast(Batch, ask(batch))


def predict_waiting(learner: Any, batch: Batch) -> tuple[Floats, Floats | None]:
    """Scores (n,) of rows that will wait for their labels, and what else they keep, (n, m).

    Asks the learner's method of this name; without it rows keep no more than their scores. A row
    brings it back with its label as `Batch.served_parts`.
    """
    ask = getattr(learner, "predict_waiting", None)
    return (learner.predict(batch), None) if ask is None else ask(batch)


def under(prefix: str, state: Mapping[str, npt.NDArray[Any]]) -> State:
    """The arrays whose names begin with `prefix`, without it."""
    return {
        name[len(prefix) :]: np.asarray(array)
        for name, array in state.items()
        if name.startswith(prefix)
    }
