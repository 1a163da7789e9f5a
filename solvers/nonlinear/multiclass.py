"""NonlinearClasses: `task: multiclass` with a nonlinear algorithm that scores all classes at once.

The loss of a row is the sum of the logistic losses of the log odds of all classes, as of one
learner for each class against the rest. Probabilities are the sigmoids divided by their sum.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.jit import F8, RO_F8_2D, RO_I8, Flags, Floats, Ints, kernel
from dualstream.solvers.nonlinear.class_scorer import ClassScorer
from dualstream.solvers.online.class_model import ClassModel, KnownClasses
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import State, under
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import names_of, names_state
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.scalar import log1pexp
from dualstream.solvers.spec_fields import Spec

_SCORERS = {
    "boosted": ("boosted_classes", "BoostedClasses"),
    "net": ("net_classes", "NetClasses"),
    "neighbours": ("neighbours", "NeighbourClasses"),
}
"""Module and class of the scorer of each algorithm of nonlinear.SHARED."""


def make_scorer(spec: Mapping[str, Any]) -> ClassScorer:
    """The scorer of a resolved specification, without rows."""
    module, name = _SCORERS[spec["algorithm"]]
    # Imported on demand, because importing compiles its kernels.
    imported: Any = importlib.import_module(f"dualstream.solvers.nonlinear.{module}")
    scorer: ClassScorer = getattr(imported, name)(spec)
    return scorer


class ScoredClasses(KnownClasses):
    """The classes of one scorer."""

    never_rejects = True
    gives_probabilities = True

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(width_of(spec["features"]))
        self.scorer = make_scorer(spec)

    def _add_class(self) -> None:
        self.scorer.add_class()

    def _learn_known(
        self, batch: Batch, class_ids: Ints, is_met: bool
    ) -> tuple[Floats, Floats, Flags, Flags]:
        scores, n = self.scorer.learn(batch, class_ids, is_met), len(batch)
        losses = np.empty(n)
        summed_losses(scores, class_ids, losses)
        class_scores = np.ascontiguousarray(scores[:, 1:].T)
        return class_scores, losses, batch.weights > 0.0, np.zeros(n, np.bool_)

    def scores(self, batch: Batch) -> Floats:
        """See KnownClasses."""
        return np.ascontiguousarray(self.scorer.predict(batch)[:, 1:].T)

    @property
    def samples(self) -> int:
        """See Learner."""
        return self.scorer.samples

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return self.scorer.has_long_row(rows)

    def state(self) -> State:
        """See Learner."""
        arrays = {f"scorer.{name}": array for name, array in self.scorer.state().items()}
        return names_state(tuple(self.places)) | arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        names = names_of(state)
        self.scorer.restore(under("scorer.", state), len(names))
        self.places = {name: index for index, name in enumerate(names)}


class NonlinearClasses(ClassModel):
    """The learner of a resolved specification with task multiclass; it has no weights."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec, ScoredClasses(spec))
        self._dim = width_of(spec["features"])

    @property
    def max_rows(self) -> int | None:
        """See MemberView."""
        return getattr(cast(ScoredClasses, self._known).scorer, "max_rows", None)

    @property
    def weights(self) -> Floats:
        """(K, width): zeros."""
        return np.zeros((len(self.classes), self._dim))

    def served_weights(self) -> Iterator[ServedWeights]:
        """No weight, for each class."""
        for _ in self.classes:
            yield ServedWeights(self._dim, 0.0, lambda: iter(()))

    @property
    def intercepts(self) -> Floats:
        """(K,): zeros."""
        return np.zeros(len(self.classes))

    @property
    def nonzeros(self) -> int:
        """0."""
        return 0

    def certificate(self) -> Certificate | None:
        """None: the problem has no dual."""
        return None

    def explain(self, row: Batch) -> Explanation:
        """Raises NotExpressible: the log odds of a class are no sum over the features."""
        raise NotExpressible("one learner scores all classes, and its scores have no parts")

    def form(self) -> Form:
        """Raises NotExpressible."""
        algorithm = self.spec["algorithm"]
        raise NotExpressible(f"no export format has {algorithm} models of several classes")


def make_multiclass(spec: Spec) -> NonlinearClasses:
    """The learner of a resolved specification of an algorithm of nonlinear.SHARED."""
    return NonlinearClasses(spec)


@kernel
def summed_losses(scores: RO_F8_2D, class_ids: RO_I8, losses: F8) -> None:
    """losses (n,): logistic losses of the log odds (n, 1 + K), summed over the classes.

    The class of a row that is not known counts as one more, with the log odds of column 0.
    """
    for i in range(losses.shape[0]):
        total = 0.0
        for c in range(1, scores.shape[1]):
            score = scores[i, c]
            total += log1pexp(-score if class_ids[i] == c - 1 else score)
        losses[i] = total + log1pexp(-scores[i, 0]) if class_ids[i] < 0 else total
