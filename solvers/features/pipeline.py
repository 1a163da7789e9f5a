"""Staged: feature stages in front of a learner, which together are a learner.

A row that the learner rejects is undone in the stages. A row of weight 0 is scored like a
prediction and changes no stage. Weights refer to the learner's features: scaled, or of the map.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidRow, ShapeMismatch
from dualstream.solvers.features.stage import Stage
from dualstream.solvers.features.wrapper import ClassLearner, PrefixLearner, Wrapped, WrappedClasses
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner, Outcome, State, under
from dualstream.solvers.protocols.served_form import Form, served_form
from dualstream.solvers.protocols.unlearner import unlearner
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of


class Staged(Wrapped):
    """`learner` behind `stages`, in order; `prefix` is the same learner, able to stop at a rejected
    row."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        stages: Mapping[str, Stage],
        learner: Learner,
        prefix: PrefixLearner,
    ) -> None:
        self.spec = spec
        self._stages = dict(stages)
        self._learner = learner
        self._prefix = prefix

    def learn_prefix(self, batch: Batch) -> Outcome:
        """See Wrapped."""
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

    def _behind(self, batch: Batch) -> Batch:
        for stage in self._stages.values():
            batch = stage.peek(batch)
        return batch

    def form(self) -> Form:
        """See served_form."""
        stages = [stage.form() for stage in self._stages.values()]
        return served_form(self._learner).behind(*stages, dim=width_of(self.spec["features"]))

    @property
    def retained(self) -> int:
        """See Unlearner."""
        return unlearner(self._learner).retained

    def unlearn(self, age: int) -> None:
        """See Unlearner: only behind stages without row statistics."""
        unlearner(self._learner).unlearn(age)
        self._prefix.forget()

    def take_duals(self, fingerprints: Floats, duals: Floats, share: float) -> int:
        """See Refittable: rows are retained as they leave the stages."""
        rows = super().take_duals(fingerprints, duals, share)
        self._prefix.forget()
        return rows

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """See TakesWeights."""
        super().take_weights(weights, reach, rows)
        self._prefix.forget()

    def state(self) -> State:
        """See Learner: arrays of the learner and of each stage, prefixed by their owner."""
        arrays = {f"core.{name}": array for name, array in self._learner.state().items()}
        for owner, stage in self._stages.items():
            arrays |= {f"{owner}.{name}": array for name, array in stage.state().items()}
        return arrays

    def _take(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._learner.restore(under("core.", state))
        self._prefix.forget()
        for owner, stage in self._stages.items():
            stage.restore(under(f"{owner}.", state))


class StagedMulticlass(Staged, WrappedClasses):
    """Stages in front of a multiclass learner, shared by all its binary learners."""

    _learner: ClassLearner
