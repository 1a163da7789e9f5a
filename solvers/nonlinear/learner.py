"""NonlinearLearner: what the learners of this package have in common.

They have no weight for a feature, no dual, no feature stages of their own, and reject no row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidRow
from dualstream.solvers.jit import Floats
from dualstream.solvers.online.table_learner import sigmoids
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.learner import Outcome
from dualstream.solvers.protocols.served_form import Form, NonlinearScore
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.scalar import unknown_label


class NonlinearLearner:
    """The Learner protocol, except `_learn_rows`, `_score_form`, `predict`, `samples`, `state` and
    `_restore`.

    The loss is logistic for classes, and squared for numbers unless the specification has another.
    """

    never_rejects = True
    """Every number stays finite, whatever the rows are."""
    REACH = 10.0
    """Regression: root mean square errors from the score within which a target counts.

    A smaller limit is better after a broken target, and worse after a change of unit.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        self._is_binary = spec["task"] == "binary"

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        """Learn all rows of checked labels and write both columns."""
        raise NotImplementedError

    def _score_form(self) -> NonlinearScore:
        """The score of a next row, as copied numbers."""
        raise NotImplementedError

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore an untrained learner, which is discarded if this raises CorruptState."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""
        batch.check_width(self._dim)
        row = unknown_label(batch.labels, self._is_binary)
        if row >= 0:
            raise InvalidRow.of_label(row, float(batch.labels[row]), self._is_binary)
        n = len(batch)
        losses = np.empty(n)
        scores = self.learn_checked(batch, losses)
        return Outcome(scores, losses, batch.weights > 0.0, np.zeros(n, np.bool_))

    def learn_checked(self, batch: Batch, losses: Floats | None = None) -> Floats:
        """Learn rows whose width and labels are right, and return their scores (n,).

        losses   (n,), is overwritten
        """
        scores = np.empty(len(batch))
        self._learn_rows(batch, scores, np.empty(len(batch)) if losses is None else losses)
        return scores

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        if not self._is_binary:
            return None
        out = np.empty(len(scores))
        sigmoids(scores, out)
        return out

    @property
    def weights(self) -> Floats:
        """Zeros."""
        return np.zeros(self._dim)

    def served_weights(self) -> list[ServedWeights]:
        """No weight."""
        return [ServedWeights(self._dim, self.intercept, lambda: iter(()))]

    @property
    def intercept(self) -> float:
        """0."""
        return 0.0

    @property
    def nonzeros(self) -> int:
        """0."""
        return 0

    def certificate(self) -> Certificate | None:
        """None: the problem has no dual."""
        return None

    def form(self) -> Form:
        """See served_form."""
        return Form(self._dim, (), (self._score_form(),))

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        new = type(self)(self.spec)
        new._restore(state)
        vars(self).update(vars(new))
