"""One-vs-rest multiclass learner; classes are added when they first appear.

A prototype learner sees every row as a negative one, exactly like the learner of a class that has
not appeared yet. A new class starts as a clone of the prototype, so the result is the same as if
the class had been known from the start. (Scheme: Rifkin and Klautau, "In defense of one-vs-all
classification", 2004.) The predicted class has the largest score; ties go to the older class. The
loss of a row is the sum of the binary losses of all classes, including its own.

Probabilities are the sigmoids of the scores divided by their sum, if the binary learner gives any:
a convention, not calibrated. A row of weight 0 is scored and counted, and its class is not added.
With K classes, time and memory are those of K + 1 binary learners.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible, RefitError, UnlearningError
from dualstream.solvers.jit import Flags, Floats, Ints
from dualstream.solvers.online.class_model import ClassModel, KnownClasses
from dualstream.solvers.protocols.certificate import Certificate, summed
from dualstream.solvers.protocols.curves import Curve, curves_of
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, Outcome, State, has_long_row
from dualstream.solvers.protocols.member_learner import MemberLearner, member_learner
from dualstream.solvers.protocols.refit_weights import taking_weights
from dualstream.solvers.protocols.refittable import DualProblem, refittable
from dualstream.solvers.protocols.served_form import Form, joined_scores, served_form
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.protocols.unlearner import unlearner
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import names_of, names_state
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.spec_cache import FixedSpec, derived_once
from dualstream.solvers.spec_fields import Spec


class OneVsRest(KnownClasses):
    """The learners of all classes. A row that only some of them reject remains in the others."""

    def __init__(self, make: Callable[[], Learner]) -> None:
        self._make = make
        self.none_of_them = make()
        super().__init__(width_of(self.none_of_them.spec["features"]))
        self.learners: list[Learner] = []
        self.gives_probabilities = self.none_of_them.probabilities(np.zeros(1)) is not None

    def _add_class(self) -> None:
        learner = self._copy_of_rest()
        self._join(learner, self.none_of_them)
        self.learners.append(learner)

    def _copy_of_rest(self) -> Learner:
        learner = self._make()
        learner.restore(self.none_of_them.state())
        return learner

    def _join(self, learner: Learner, first: Learner) -> None:
        """Let a class share what depends on the rows alone with the prototype, which learns first.
        Raises CorruptState if they differ.
        """

    def _learn_known(
        self, batch: Batch, class_ids: Ints, is_met: bool
    ) -> tuple[Floats, Floats, Flags, Flags]:
        n, k = len(batch), len(self.learners)
        rest = self._learn_one(0, batch.with_labels(np.where(class_ids < 0, 1.0, -1.0)))
        losses = np.where(class_ids < 0, rest.losses, 0.0)
        updated, rejected = np.zeros(n, np.bool_), rest.rejected.copy()
        scores = np.empty((k, n))
        for index in range(k):
            one_vs_rest = batch.with_labels(np.where(class_ids == index, 1.0, -1.0))
            outcome = self._learn_one(1 + index, one_vs_rest)
            scores[index] = outcome.scores
            losses += outcome.losses
            updated |= outcome.updated
            rejected |= outcome.rejected
        return scores, losses, updated, rejected

    def _learn_one(self, index: int, batch: Batch) -> Outcome:
        """Learn by the prototype (0) or by the learner of class `index` - 1."""
        learner = self.learners[index - 1] if index else self.none_of_them
        return learner.learn(batch)

    def explain_class(self, index: int, row: Batch) -> Explanation:
        """See protocols/explanation.py: the score of one class."""
        return explain(self.learners[index], row)

    def scores(self, batch: Batch) -> Floats:
        """(K, n)"""
        scores = np.empty((len(self.learners), len(batch)))
        for index, learner in enumerate(self.learners):
            scores[index] = learner.predict(batch)
        return scores

    @property
    def samples(self) -> int:
        """See Learner."""
        return self.none_of_them.samples

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        learners = (self.none_of_them, *self.learners)
        return any(has_long_row(learner, rows) for learner in learners)

    def state(self) -> State:
        """See Learner."""
        state = names_state(tuple(self.places))
        owners = {"none": self.none_of_them} | {str(k): one for k, one in enumerate(self.learners)}
        for owner, learner in owners.items():
            state |= {f"{owner}.{name}": array for name, array in learner.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        names = names_of(state)
        parts: dict[str, State] = {str(k): {} for k in range(len(names))}
        parts["none"] = {}
        for name, array in state.items():
            owner, dot, part = name.partition(".")
            if dot and owner in parts:
                parts[owner][part] = array
        made = {owner: self._make() for owner in parts}
        for owner, learner in made.items():
            learner.restore(parts[owner])
        for k in range(len(names)):
            self._join(made[str(k)], made["none"])
        self.none_of_them = made["none"]
        self.learners = [made[str(k)] for k in range(len(names))]
        self.places = {name: index for index, name in enumerate(names)}


class Multiclass(ClassModel):
    """The learner of `task: multiclass` over the binary learners of all classes."""

    def __init__(self, spec: Mapping[str, Any], rest: OneVsRest) -> None:
        self._rest = rest
        super().__init__(spec, rest)

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: the score of the best class, if there are classes."""
        best, scores, _ = self._chosen(row)
        if best[0] < 0:
            return Explanation.of(scores[0], scores[0], np.empty(0, np.int64), np.empty(0))
        return self._rest.explain_class(int(best[0]), row)

    def members_of_classes(self) -> list[MemberLearner] | None:
        """The portfolios of all classes in order, before there are any of that of unknown ones.

        None if the learners of classes have no members.
        """
        learners = self._rest.learners or [self._rest.none_of_them]
        portfolios = [member_learner(one) for one in learners]
        return [one for one in portfolios if one is not None] or None

    def curves(self) -> list[list[Curve]] | None:
        """See protocols/curves.py: of each class in order."""
        curves = curves_of(self._rest.none_of_them)
        if curves is None:
            return None
        return [one for learner in self._rest.learners for one in curves_of(learner) or ()]

    @property
    def weights(self) -> Floats:
        """(K, width): the served weights of each class."""
        rows = [learner.weights for learner in self._rest.learners]
        return np.stack(rows) if rows else np.empty((0, len(self._rest.none_of_them.weights)))

    def served_weights(self) -> Iterator[ServedWeights]:
        """See Learner: of each class in order."""
        for learner in self._rest.learners:
            yield from learner.served_weights()

    @property
    def intercepts(self) -> Floats:
        """(K,): the served intercept of each class."""
        return np.array([learner.intercept for learner in self._rest.learners], np.float64)

    def form(self) -> Form:
        """See served_form: one score per class."""
        if not self.classes:
            raise NotExpressible("it has learned no class yet")
        forms = [served_form(learner) for learner in self._rest.learners]
        return joined_scores(forms, forms[0].dim)

    @property
    def nonzeros(self) -> int:
        """See Learner: of all classes together."""
        return sum(learner.nonzeros for learner in self._rest.learners)

    def certificate(self) -> Certificate | None:
        """The sum of the binary problems of all classes, from the same rows; see Learner."""
        certificates = [learner.certificate() for learner in self._rest.learners]
        return (
            summed([one for one in certificates if one is not None])
            if certificates
            else (self._rest.none_of_them.certificate())
        )

    @property
    def retained(self) -> int:
        """See Unlearner."""
        return unlearner(self._rest.none_of_them).retained

    def unlearn(self, age: int) -> None:
        """See Unlearner: the learner of every class unlearns the row."""
        before = self._rest.state()
        try:
            for learner in (self._rest.none_of_them, *self._rest.learners):
                unlearner(learner).unlearn(age)
        except UnlearningError:
            self._rest.restore(before)
            raise
        finally:
            self._rewind.forget()

    @property
    def problems(self) -> Sequence[DualProblem]:
        """See Refittable: the prototype's first."""
        learners = (self._rest.none_of_them, *self._rest.learners)
        return [problem for one in learners for problem in refittable(one).problems]

    def take_duals(self, fingerprints: Floats, duals: Floats, share: float) -> int:
        """See Refittable. A class that was added since receives the values of the prototype."""
        rows = []
        for index, learner in enumerate((self._rest.none_of_them, *self._rest.learners)):
            part = slice(index, index + 1) if index < len(fingerprints) else slice(0, 1)
            rows.append(refittable(learner).take_duals(fingerprints[part], duals[part], share))
        self._rewind.forget()
        return min(rows)

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights."""
        class_ids = self._rest.class_ids_of(batch)
        rows, _ = taking_weights(self._rest.none_of_them).window(batch)
        labels = [
            np.where(class_ids == index, 1.0, -1.0) for index in range(len(self._rest.learners))
        ]
        return rows, [np.full(len(batch), -1.0), *labels]

    def served(self) -> Floats:
        """See TakesWeights."""
        learners = (self._rest.none_of_them, *self._rest.learners)
        return np.concatenate([taking_weights(one).served() for one in learners])

    def take_weights(self, weights: Floats, reach: Floats, rows: int) -> None:
        """See TakesWeights. A class that was added since receives the weights of the prototype."""
        learners = (self._rest.none_of_them, *self._rest.learners)
        if not 1 <= len(weights) <= len(learners):
            raise RefitError(f"weights of {len(weights)} problems for a learner of {len(learners)}")
        self._rewind.forget()
        for index, learner in enumerate(learners):
            part = slice(index, index + 1) if index < len(weights) else slice(0, 1)
            taking_weights(learner).take_weights(weights[part], reach[part], rows)


def make_multiclass(spec: Spec, make_binary: Callable[[Spec], Learner]) -> Multiclass:
    """One-vs-rest over the learner of the same specification with `task: binary`."""
    binary = _binary(spec)
    return Multiclass(spec, OneVsRest(lambda: make_binary(binary)))


@derived_once
def _binary(spec: Mapping[str, Any]) -> FixedSpec:
    return FixedSpec({**spec, "task": "binary", "labels": None})
