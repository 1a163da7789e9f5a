"""Members that run by themselves on the rows of a portfolio."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.certificate import Certificate
from dualstream.solvers.core.learner import Learner, State
from dualstream.solvers.core.rewind import Rewind
from dualstream.solvers.core.served_form import Form, served_form
from dualstream.solvers.jit import Floats
from dualstream.solvers.portfolio.fused_members import Fused
from dualstream.solvers.portfolio.presets import Member
from dualstream.solvers.portfolio.weighting import Rule
from dualstream.solvers.portfolio.weighting_kernels import BEGAN_ANEW, LEARNS


class ModelMember:
    """A model of any algorithm. Where it rejects a row it begins anew.

    A row of weight 0 changes nothing, that it is rejected included.
    """

    def __init__(
        self, spec: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Learner]
    ) -> None:
        self._spec, self._make = spec, make
        self._begin()

    def _begin(self) -> None:
        self._learner = self._make(self._spec)
        self._rewind = Rewind(self._learner, row_is_whole=False)

    def learn(self, batch: Batch) -> tuple[Floats, list[int]]:
        """Learn all rows; their scores (n,), and the rows behind which it begins anew.

        Those that it has no score for, NaN, are left out: whoever counts scores sees them.
        """
        scores: list[Floats] = []
        anew: list[int] = []
        done, size = 0, len(batch)
        while done < len(batch) or not scores:
            # Behind a rejected row pieces begin at one row and double: others may follow.
            outcome = self._rewind.learn_prefix(batch[done : done + size])
            scores.append(outcome.scores)
            done += len(outcome)
            size = 1 if outcome.rejected.any() else 2 * size
            if outcome.rejected.any():
                row = batch[done - 1 : done]
                # As it was before the row, it may well have a score.
                score = self.predict(row)
                scores[-1] = np.append(outcome.scores[:-1], score)
                if row.weights[0] > 0.0:
                    self._begin()
                    anew += [done - 1] * int(np.count_nonzero(np.isfinite(score)))
        return np.concatenate(scores), anew

    def predict(self, batch: Batch) -> Floats:
        """Scores (n,), NaN where there is none."""
        scores = self._learner.predict(batch)
        return np.where(np.isfinite(scores), scores, np.nan)

    def weights(self) -> tuple[Floats, float]:
        """Served weights and intercept."""
        return self._learner.weights, self._learner.intercept

    def form(self) -> Form:
        """See served_form."""
        return served_form(self._learner)

    def certificate(self) -> Certificate | None:
        """See Learner."""
        return self._learner.certificate()

    def state(self) -> State:
        """See Learner."""
        return self._learner.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        self._learner.restore(state)
        self._rewind.forget()


class KindMember:
    """A member of a kind that exists as members only, with stages of its own."""

    _FIRST = np.zeros(1, np.int64)

    def __init__(self, member: Member, dim: int, retain: int) -> None:
        self._fused = Fused([member], dim, retain)
        # Kernels want a rule; what this one makes of the scores is not looked at.
        self._rule = Rule([member], 0.5, 0.0, classes=True)

    def learn(self, batch: Batch) -> tuple[Floats, list[int]]:
        """See ModelMember."""
        scores = np.zeros((len(batch), 1))
        out = self._fused.learn(batch, self._FIRST, scores, self._rule)
        return scores[:, 0], np.flatnonzero(out[:, LEARNS] == BEGAN_ANEW).tolist()

    def predict(self, batch: Batch) -> Floats:
        """See ModelMember."""
        return self._fused.predict(batch)[:, 0]

    def weights(self) -> tuple[Floats, float]:
        """See ModelMember."""
        return self._fused.weights(0)

    def form(self) -> Form:
        """See ModelMember."""
        return self._fused.form(0)

    def certificate(self) -> Certificate | None:
        """See ModelMember."""
        return self._fused.certificate(0)

    def state(self) -> State:
        """See ModelMember."""
        return self._fused.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See ModelMember."""
        self._fused.restore(state)
