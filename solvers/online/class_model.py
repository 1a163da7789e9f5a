"""ClassModel: the learner of `task: multiclass`, whatever scores its classes.

Classes are added when they first appear. The predicted class has the largest score; ties go to the
older class. The loss of a row is the sum of the logistic (or other binary) losses of all classes,
including its own. Probabilities are the sigmoids of the scores divided by their sum, if the scores
give any. A row of weight 0 is scored and counted, and its class is not added.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import Flags, Floats, Ints
from dualstream.solvers.online.class_choice import (
    ClassScores,
    check_classes,
    choose_classes,
    normalised_sigmoids,
    put_class_losses,
)
from dualstream.solvers.online.rewind import Rewind, learn_in_pieces
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import MAX_CLASSES
from dualstream.solvers.spec_fields import COSTS, INTERVALS

_PIECE = 2048
"""Rows per piece: the scores of all classes of a piece are in memory at once."""


class KnownClasses:
    """The classes so far, and what scores them. Subclasses implement the methods that raise."""

    never_rejects = False
    """Whether no row is ever rejected, so that no state is kept to go back to."""
    gives_probabilities: bool
    """Whether sigmoids of the scores are probabilities."""
    gives_losses = False
    """Whether outcomes have the losses of all classes."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.places: dict[str, int] = {}
        """Index of each class, by its name."""

    def _add_class(self) -> None:
        """One more class. It has the state of a class that had been known from the start."""
        raise NotImplementedError

    def _rows_of_piece(self) -> int:
        """How many of the next rows are learned at once."""
        return _PIECE

    def _learn_known(
        self, batch: Batch, class_ids: Ints, is_met: bool
    ) -> tuple[Floats, Floats, Flags, Flags]:
        """Learn rows of known classes, and rows of weight 0.

        class_ids (n,): -1 for an unknown class, of a row of weight 0. With `is_met` the last class
        is added for the first row. Returns the scores (K, n) and the losses from before each row,
        and which rows changed something and were rejected.
        """
        raise NotImplementedError

    def scores(self, batch: Batch) -> Floats:
        """(K, n)"""
        raise NotImplementedError

    @property
    def samples(self) -> int:
        """See Learner."""
        raise NotImplementedError

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        raise NotImplementedError

    def state(self) -> State:
        """See Learner."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> Outcome:
        """Learn all rows, or those up to the first that is rejected.

        Raises InvalidRow for a row without a class, and then nothing was learned.
        """
        check_classes(batch)
        outcomes: list[Outcome] = []
        done = 0
        while done < len(batch) or not outcomes:
            rest = batch[done : done + _PIECE]
            class_ids = self.class_ids_of(rest)
            new = np.flatnonzero((class_ids < 0) & (rest.weights > 0.0))
            is_met = len(new) > 0 and new[0] == 0
            if is_met:
                self._add_class()
                self.places[batch.classes[int(rest.labels[0])]] = len(self.places)
                class_ids = self.class_ids_of(rest)
                new = np.flatnonzero((class_ids < 0) & (rest.weights > 0.0))
            end = min(int(new[0]) if len(new) else len(rest), self._rows_of_piece())
            outcome = self._outcome(rest[:end], class_ids[:end], is_met)
            outcomes.append(outcome)
            done += end
            if outcome.rejected.any():
                break
        return Outcome.joined(outcomes)

    def class_ids_of(self, batch: Batch) -> Ints:
        """(n,): index of each row's class here; -1 for an unknown class."""
        class_ids = [self.places.get(text, -1) for text in batch.classes]
        return np.array(class_ids, np.int64)[batch.labels.astype(np.int64)]

    def _outcome(self, batch: Batch, class_ids: Ints, is_met: bool) -> Outcome:
        """See _learn_known; with `is_met` the first row's class is new."""
        n, k = len(batch), len(self.places)
        scores, losses, updated, rejected = self._learn_known(batch, class_ids, is_met)
        rejected |= ~np.isfinite(losses)
        n_classes = np.full(n, k, np.int64)
        if is_met:
            n_classes[0] = k - 1
        best, best_scores, log_losses = np.empty(n, np.int64), np.empty(n), np.empty(n)
        choose_classes(scores, n_classes, class_ids, best, best_scores, log_losses)
        best[rejected] = -1
        updated[rejected] = False
        for column in (losses, best_scores, log_losses):
            column[rejected] = np.nan
        class_losses = class_losses_of(scores, n_classes) if self.gives_losses else None
        return Outcome(
            best_scores,
            losses,
            updated,
            rejected,
            best,
            tuple(self.places),
            log_losses if self.gives_probabilities else None,
            class_losses=class_losses,
        )


def class_losses_of(scores: Floats, n_classes: Ints) -> Floats:
    """(n, K): see Outcome.class_losses; for scores (K, n)."""
    losses = np.empty(scores.shape[::-1])
    put_class_losses(scores, n_classes, losses)
    return losses


class ClassModel:
    """The parts of Learner that need only the scores of the classes."""

    def __init__(self, spec: Mapping[str, Any], classes: KnownClasses) -> None:
        self.spec = spec
        self._known = classes
        classes.gives_losses = INTERVALS in spec or COSTS in spec
        self._rewind = Rewind(classes, row_is_whole=False)

    def learn(self, batch: Batch) -> Outcome:
        """See Learner; labels are indices into `batch.classes`.

        A row is rejected if the learner of a class rejects it, or if its class exceeds the maximum.
        """
        return learn_in_pieces(batch, self.learn_prefix)

    def learn_prefix(self, batch: Batch) -> Outcome:
        """Learn rows up to and including the first rejected one, or fewer."""
        batch.check_width(self._known.dim)
        check_classes(batch)
        room = self._rows_within_the_limit(batch)
        if room == 0 and len(batch):
            nothing = np.full(1, np.nan)
            log_losses = nothing if self._known.gives_probabilities else None
            flags, n_classes = (np.zeros(1, np.bool_), np.ones(1, np.bool_)), len(self.classes)
            class_losses = np.full((1, n_classes), np.nan) if self._known.gives_losses else None
            best = np.full(1, -1)
            return Outcome(
                nothing, nothing, *flags, best, self.classes, log_losses, class_losses=class_losses
            )
        if self._known.never_rejects:
            return self._known.learn(batch[:room])
        outcome = self._rewind.learn_prefix(batch[:room])
        # Undoing a rejected row also removed a class that appeared only there.
        return dataclasses.replace(outcome, classes=self.classes)

    def _rows_within_the_limit(self, batch: Batch) -> int:
        """Number of rows before the first whose class exceeds the maximum."""
        class_ids = self._known.class_ids_of(batch)
        new = np.flatnonzero((class_ids < 0) & (batch.weights > 0.0))
        n_classes = len(self.classes)
        if n_classes + len(new) <= MAX_CLASSES:
            return len(batch)
        labels, first = np.unique(batch.labels[new], return_index=True)
        if n_classes + len(labels) <= MAX_CLASSES:
            return len(batch)
        return int(new[np.sort(first)[MAX_CLASSES - n_classes]])

    def forget(self) -> None:
        """See Rewind."""
        self._rewind.forget()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in order of first appearance."""
        return tuple(self._known.places)

    def predict(self, batch: Batch) -> Floats:
        """See Learner: the score of the best class, 0 if there are no classes."""
        return self._chosen(batch)[1]

    def predict_classes(self, batch: Batch) -> ClassScores:
        """The best class of each row, and the results of each class."""
        best, _, scores = self._chosen(batch)
        by_row = np.ascontiguousarray(scores.T)
        return ClassScores(self.classes, by_row, best, self.class_probabilities(by_row))

    def _chosen(self, batch: Batch) -> tuple[Ints, Floats, Floats]:
        n = len(batch)
        batch.check_width(self._known.dim)
        scores = self._known.scores(batch)
        best, best_scores = np.empty(n, np.int64), np.empty(n)
        n_classes, nothing = np.full(n, len(scores), np.int64), np.full(n, -1, np.int64)
        choose_classes(scores, n_classes, nothing, best, best_scores, np.empty(n))
        return best, best_scores, scores

    def class_probabilities(self, scores: Floats) -> Floats | None:
        """(n, K) for scores (n, K), if they give probabilities."""
        if not self._known.gives_probabilities:
            return None
        out = np.empty(scores.shape)
        normalised_sigmoids(np.ascontiguousarray(scores), out)
        return out

    def probabilities(self, scores: Floats) -> Floats | None:
        """None: see class_probabilities."""
        return None

    @property
    def intercept(self) -> float:
        """0: see intercepts."""
        return 0.0

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._known.samples

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return self._known.has_long_row(rows)

    def state(self) -> State:
        """See Learner."""
        return self._known.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        self._known.restore(state)
        self._rewind.forget()
