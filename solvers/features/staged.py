"""Stages in front of a learner: the whole is a learner again.

A row that the learner rejects leaves no trace in the stages either; a row of weight 0 is scored as
a prediction would and changes no stage. Weights are per feature as the learner sees it: scaled, or
of the map.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from solvers._jit import Floats
from solvers.batch import Batch
from solvers.certificate import Certificate
from solvers.errors import InvalidRow, ShapeMismatch
from solvers.features.intercept import width_of
from solvers.features.stage import Stage
from solvers.learner import Learner, Outcome, State
from solvers.multiclass import ClassScores, Multiclass
from solvers.rewind import learn_in_pieces


class PrefixLearner(Protocol):
    """See Rewind."""

    def learn_prefix(self, batch: Batch) -> Outcome: ...

    def forget(self) -> None: ...


class Staged:
    """`learner` behind `stages`, in order; `prefix` is the same learner, stopping where needed."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        stages: Mapping[str, Stage],
        learner: Learner,
        prefix: PrefixLearner,
    ) -> None:
        self.spec = spec
        self.dim = width_of(spec["features"])
        self._stages = dict(stages)
        self._learner = learner
        self._prefix = prefix

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""
        self._check(batch)
        return learn_in_pieces(batch, self._learn_prefix)

    def _learn_prefix(self, batch: Batch) -> Outcome:
        """Learn rows up to the first that is rejected, or fewer; only a last one is rejected."""
        rows = self._advance(batch)
        try:
            outcome = self._prefix.learn_prefix(rows)
        except (InvalidRow, ShapeMismatch):
            self._undo()
            raise
        learned = len(outcome) - int(np.count_nonzero(outcome.rejected))
        if learned < len(batch):
            self._undo()
            self._advance(batch[:learned])
        return outcome

    def _advance(self, batch: Batch) -> Batch:
        for stage in self._stages.values():
            batch = stage.learn(batch)
        return batch

    def _undo(self) -> None:
        for stage in self._stages.values():
            stage.undo()

    def _peek(self, batch: Batch) -> Batch:
        self._check(batch)
        for stage in self._stages.values():
            batch = stage.peek(batch)
        return batch

    def _check(self, batch: Batch) -> None:
        if batch.dim != self.dim:
            raise ShapeMismatch(f"rows of width {batch.dim} for a model of width {self.dim}")

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        return self._learner.predict(self._peek(batch))

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        return self._learner.probabilities(scores)

    @property
    def weights(self) -> Floats:
        """See Learner; one for each feature behind the stages."""
        return self._learner.weights

    @property
    def intercept(self) -> float:
        """See Learner."""
        return self._learner.intercept

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return self._learner.nonzeros

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._learner.samples

    def certificate(self) -> Certificate | None:
        """See Learner: of the problem that the learner behind the stages solves."""
        return self._learner.certificate()

    def state(self) -> State:
        """See Learner: arrays of the learner and of each stage, by the name of their owner."""
        arrays = {f"core.{name}": array for name, array in self._learner.state().items()}
        for owner, stage in self._stages.items():
            arrays |= {f"{owner}.{name}": array for name, array in stage.state().items()}
        return arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        before = self.state()
        try:
            self._take(state)
        except BaseException:
            self._take(before)
            raise

    def _take(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._learner.restore(under("core.", state))
        self._prefix.forget()
        for owner, stage in self._stages.items():
            stage.restore(under(f"{owner}.", state))


class StagedMulticlass(Staged):
    """Stages in front of a multiclass learner, which all its binary learners share."""

    def __init__(
        self, spec: Mapping[str, Any], stages: Mapping[str, Stage], learner: Multiclass
    ) -> None:
        super().__init__(spec, stages, learner, learner)
        self._multiclass = learner

    @property
    def classes(self) -> tuple[str, ...]:
        """See Multiclass."""
        return self._multiclass.classes

    @property
    def intercepts(self) -> Floats:
        """See Multiclass."""
        return self._multiclass.intercepts

    def predict_classes(self, batch: Batch) -> ClassScores:
        """See Multiclass."""
        return self._multiclass.predict_classes(self._peek(batch))

    def class_probabilities(self, scores: Floats) -> Floats | None:
        """See Multiclass."""
        return self._multiclass.class_probabilities(scores)


def under(prefix: str, state: Mapping[str, npt.NDArray[Any]]) -> State:
    """The arrays whose names begin with `prefix`, without it."""
    return {
        name[len(prefix) :]: np.asarray(array)
        for name, array in state.items()
        if name.startswith(prefix)
    }
