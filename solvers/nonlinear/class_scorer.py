"""ClassScorer: one learner that scores all classes, for `task: multiclass`.

Column 0 of its scores is of a class that no row has had yet, column 1 + c of class c. A new class
begins as a copy of column 0, as if it had been known from the start. Scores are log odds of a class
against all others, from before the row is learned. No row is rejected.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear.softmax import log_odds_of
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.rows.batch import Batch


class ClassScorer:
    """What scorers have in common; subclasses implement the methods that raise."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self.classes = 0

    def add_class(self) -> None:
        """One more class."""
        self.classes += 1

    def learn(self, batch: Batch, class_ids: Ints, is_met: bool) -> Floats:
        """Scores (n, 1 + K) of all rows, each from before it is learned.

        class_ids (n,): the class of each row; -1 for an unknown one, of a row of weight 0. With
        `is_met`, the last class was added for the first row, whose scores are from before it.
        Raises ShapeMismatch.
        """
        raise NotImplementedError

    def predict(self, batch: Batch) -> Floats:
        """Scores (n, 1 + K). Raises ShapeMismatch."""
        raise NotImplementedError

    def _odds(self, margins: Floats, is_met: bool = False) -> Floats:
        """Log odds (n, 1 + K) of the softmax of margins; 0 without a class. For `is_met` see
        `learn`."""
        odds = np.zeros(margins.shape)
        if self.classes:
            log_odds_of(margins, odds)
        if is_met:
            before = np.zeros((1, self.classes))
            if self.classes > 1:
                log_odds_of(np.ascontiguousarray(margins[:1, :-1]), before)
            odds[0, :-1], odds[0, -1] = before, before[0, 0]
        return odds

    @property
    def samples(self) -> int:
        """See Learner."""
        raise NotImplementedError

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return False

    def state(self) -> State:
        """See Learner."""
        raise NotImplementedError

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore an untrained scorer of as many classes. Raises CorruptState."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, npt.NDArray[Any]], classes: int) -> None:
        """Restore the state of a scorer of this many classes. Raises CorruptState, and then nothing
        has changed.
        """
        new = type(self)(self.spec)
        for _ in range(classes):
            new.add_class()
        new._restore(state)
        vars(self).update(vars(new))
