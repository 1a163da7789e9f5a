"""Wrapped: a learner around a learner, which delegates to the inner one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.jit import Floats
from dualstream.solvers.online.class_choice import ClassScores
from dualstream.solvers.online.rewind import learn_in_pieces
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, Outcome, State, has_long_row
from dualstream.solvers.protocols.refit_weights import taking_weights
from dualstream.solvers.protocols.refittable import DualProblem, refittable
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of


class PrefixLearner(Protocol):
    """See Rewind."""

    def learn_prefix(self, batch: Batch) -> Outcome: ...

    def forget(self) -> None: ...


class ClassLearner(Learner, Protocol):
    """A multiclass learner; see Multiclass."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def intercepts(self) -> Floats: ...

    def predict_classes(self, batch: Batch) -> ClassScores: ...

    def class_probabilities(self, scores: Floats) -> Floats | None: ...


class Wrapped:
    """The Learner protocol, except `learn_prefix`, `_behind`, `state` and `_take`."""

    spec: Mapping[str, Any]
    _learner: Learner
    """The learner that has the weights."""

    def learn_prefix(self, batch: Batch) -> Outcome:
        """Learn rows up to and including the first rejected one, or fewer."""
        raise NotImplementedError

    def _behind(self, batch: Batch) -> Batch:
        """Rows as the inner learner would receive them; changes nothing."""
        raise NotImplementedError

    def state(self) -> State:
        """See Learner."""
        raise NotImplementedError

    def _take(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state; raise CorruptState possibly halfway."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""
        batch.check_width(width_of(self.spec["features"]))
        return learn_in_pieces(batch, self.learn_prefix)

    def forget(self) -> None:
        """See Rewind: there is no saved state here."""

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(width_of(self.spec["features"]))
        return self._learner.predict(self._behind(batch))

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: scaling and norm keep features apart, a map does not."""
        row.check_width(width_of(self.spec["features"]))
        if self.spec["map"] is not None:
            raise NotExpressible("its map mixes features, so none has a contribution of its own")
        return explain(self._learner, self._behind(row))

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        return self._learner.probabilities(scores)

    @property
    def weights(self) -> Floats:
        """See Learner; one for each feature of the inner learner."""
        return self._learner.weights

    def served_weights(self) -> Iterable[ServedWeights]:
        """See Learner; for the features of the inner learner."""
        return self._learner.served_weights()

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

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return has_long_row(self._learner, rows)

    def certificate(self) -> Certificate | None:
        """See Learner: for the problem of the inner learner."""
        return self._learner.certificate()

    @property
    def problems(self) -> Sequence[DualProblem]:
        """See Refittable."""
        return refittable(self._learner).problems

    def take_duals(self, fingerprints: Floats, duals: Floats, share: float) -> int:
        """See Refittable."""
        return refittable(self._learner).take_duals(fingerprints, duals, share)

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights: rows as a prediction would pass them to the inner learner now."""
        batch.check_width(width_of(self.spec["features"]))
        return taking_weights(self._learner).window(self._behind(batch))

    def served(self) -> Floats:
        """See TakesWeights."""
        return taking_weights(self._learner).served()

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """See TakesWeights."""
        taking_weights(self._learner).take_weights(weights, reach, rows)

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        before = self.state()
        try:
            self._take(state)
        except BaseException:
            self._take(before)
            raise


class WrappedClasses(Wrapped):
    """The same for a multiclass learner."""

    _learner: ClassLearner

    @property
    def classes(self) -> tuple[str, ...]:
        """See Multiclass."""
        return self._learner.classes

    @property
    def intercepts(self) -> Floats:
        """See Multiclass."""
        return self._learner.intercepts

    def predict_classes(self, batch: Batch) -> ClassScores:
        """See Multiclass."""
        batch.check_width(width_of(self.spec["features"]))
        return self._learner.predict_classes(self._behind(batch))

    def class_probabilities(self, scores: Floats) -> Floats | None:
        """See Multiclass."""
        return self._learner.class_probabilities(scores)
