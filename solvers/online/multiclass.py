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

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.certificate import Certificate, summed
from dualstream.solvers.core.class_names import MAX_CLASSES, names_of, names_state
from dualstream.solvers.core.curves import Curve, curves_of
from dualstream.solvers.core.errors import InvalidRow, NotExpressible, RefitError, UnlearningError
from dualstream.solvers.core.explanation import Explanation, explain
from dualstream.solvers.core.learner import Learner, Outcome, State, has_long_row
from dualstream.solvers.core.refit_weights import taking_weights
from dualstream.solvers.core.refittable import DualProblem, refittable
from dualstream.solvers.core.rewind import Rewind, learn_in_pieces
from dualstream.solvers.core.scalar import log1pexp
from dualstream.solvers.core.served_form import Form, joined_scores, served_form
from dualstream.solvers.core.served_weights import ServedWeights
from dualstream.solvers.core.spec_cache import FixedSpec, worked_out_once
from dualstream.solvers.core.spec_fields import Spec
from dualstream.solvers.core.unlearning import unlearner
from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I8,
    RO_F8_2D,
    RO_I8,
    Floats,
    Ints,
    f8,
    i8,
    kernel,
    void,
)

LOG_LOSS_CAP = -math.log(1e-15)
"""The log-loss of a class that was not known, and the maximum for a known one."""


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Results of K binary learners for n rows."""

    classes: tuple[str, ...]
    """(K,), in order of first appearance."""
    scores: Floats
    """(n, K)"""
    best: Ints
    """(n,): an index into `classes`; -1 if there are no classes yet."""
    probabilities: Floats | None
    """(n, K), each row with sum 1; None if the binary learner gives none."""


class OneVsRest:
    """The learners of all classes. A row that only some of them reject remains in the others."""

    def __init__(self, make: Callable[[], Learner]) -> None:
        self._make = make
        self.none_of_them = make()
        self.learners: list[Learner] = []
        self.places: dict[str, int] = {}
        self.gives_probabilities = self.none_of_them.probabilities(np.zeros(1)) is not None

    def learn(self, batch: Batch) -> Outcome:
        """Learn all rows, or those up to the first that some learner rejects.

        Raises InvalidRow for a row without a class, and then nothing was learned.
        """
        check_classes(batch)
        outcomes: list[Outcome] = []
        done = 0
        while done < len(batch) or not outcomes:
            rest = batch[done:]
            places = self.places_of(rest)
            new = np.flatnonzero((places < 0) & (rest.weights > 0.0))
            is_met = len(new) > 0 and new[0] == 0
            if is_met:
                text = batch.classes[int(rest.labels[0])]
                self._add_class(text)
                places = self.places_of(rest)
                new = np.flatnonzero((places < 0) & (rest.weights > 0.0))
            end = int(new[0]) if len(new) else len(rest)
            outcome = self._learn_known(rest[:end], places[:end], is_met)
            outcomes.append(outcome)
            done += end
            if outcome.rejected.any():
                break
        return Outcome.joined(outcomes)

    def places_of(self, batch: Batch) -> Ints:
        """(n,): index of each row's class here; -1 for an unknown class."""
        places = [self.places.get(text, -1) for text in batch.classes]
        return np.array(places, np.int64)[batch.labels.astype(np.int64)]

    def _add_class(self, text: str) -> None:
        learner = self._make()
        learner.restore(self.none_of_them.state())
        self.places[text] = len(self.learners)
        self.learners.append(learner)

    def _learn_known(self, batch: Batch, places: Ints, is_met: bool) -> Outcome:
        """Learn rows of known classes, and rows of weight 0; with `is_met` the first row's class is
        new.

        places (n,): -1 for an unknown class, of a row of weight 0.
        """
        n, k = len(batch), len(self.learners)
        rest = self.none_of_them.learn(batch.with_labels(np.where(places < 0, 1.0, -1.0)))
        losses = np.where(places < 0, rest.losses, 0.0)
        updated, rejected = np.zeros(n, np.bool_), rest.rejected.copy()
        scores = np.empty((k, n))
        for place, learner in enumerate(self.learners):
            outcome = learner.learn(batch.with_labels(np.where(places == place, 1.0, -1.0)))
            scores[place] = outcome.scores
            losses += outcome.losses
            updated |= outcome.updated
            rejected |= outcome.rejected
        rejected |= ~np.isfinite(losses)
        known = np.full(n, k, np.int64)
        if is_met:
            known[0] = k - 1
        best, best_scores, log_losses = np.empty(n, np.int64), np.empty(n), np.empty(n)
        choose_classes(scores, known, places, best, best_scores, log_losses)
        best[rejected] = -1
        updated[rejected] = False
        for column in (losses, best_scores, log_losses):
            column[rejected] = np.nan
        return Outcome(
            best_scores,
            losses,
            updated,
            rejected,
            best,
            tuple(self.places),
            log_losses if self.gives_probabilities else None,
        )

    def scores(self, batch: Batch) -> Floats:
        """(K, n)"""
        scores = np.empty((len(self.learners), len(batch)))
        for place, learner in enumerate(self.learners):
            scores[place] = learner.predict(batch)
        return scores

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
        self.none_of_them = made["none"]
        self.learners = [made[str(k)] for k in range(len(names))]
        self.places = {name: place for place, name in enumerate(names)}


class Multiclass:
    """The learner of `task: multiclass` over the binary learner that `make` returns."""

    def __init__(self, spec: Mapping[str, Any], make: Callable[[], Learner]) -> None:
        self.spec = spec
        self._rest = OneVsRest(make)
        self._rewind = Rewind(self._rest, row_is_whole=False)

    def learn(self, batch: Batch) -> Outcome:
        """See Learner; labels are indices into `batch.classes`.

        A row is rejected if any binary learner rejects it, or if its class exceeds the maximum.
        """
        return learn_in_pieces(batch, self.learn_prefix)

    def learn_prefix(self, batch: Batch) -> Outcome:
        """Learn rows up to and including the first rejected one, or fewer."""
        check_classes(batch)
        room = self._rows_within_the_limit(batch)
        if room == 0 and len(batch):
            nothing = np.full(1, np.nan)
            log_losses = nothing if self._rest.gives_probabilities else None
            flags = np.zeros(1, np.bool_), np.ones(1, np.bool_)
            return Outcome(nothing, nothing, *flags, np.full(1, -1), self.classes, log_losses)
        outcome = self._rewind.learn_prefix(batch[:room])
        # Undoing a rejected row also removed a class that appeared only there.
        return dataclasses.replace(outcome, classes=self.classes)

    def _rows_within_the_limit(self, batch: Batch) -> int:
        """Number of rows before the first whose class exceeds the maximum."""
        places = self._rest.places_of(batch)
        new = np.flatnonzero((places < 0) & (batch.weights > 0.0))
        known = len(self.classes)
        if known + len(new) <= MAX_CLASSES:
            return len(batch)
        labels, first = np.unique(batch.labels[new], return_index=True)
        if known + len(labels) <= MAX_CLASSES:
            return len(batch)
        return int(new[np.sort(first)[MAX_CLASSES - known]])

    def forget(self) -> None:
        """See Rewind."""
        self._rewind.forget()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in order of first appearance."""
        return tuple(self._rest.places)

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
        if not self.classes:
            self._rest.none_of_them.predict(batch)  # checks the batch
        scores = self._rest.scores(batch)
        best, best_scores = np.empty(n, np.int64), np.empty(n)
        known, nothing = np.full(n, len(scores), np.int64), np.full(n, -1, np.int64)
        choose_classes(scores, known, nothing, best, best_scores, np.empty(n))
        return best, best_scores, scores

    def explain(self, row: Batch) -> Explanation:
        """See core/explanation.py: the score of the best class; nothing if there are no classes."""
        best, scores, _ = self._chosen(row)
        if best[0] < 0:
            return Explanation.of(scores[0], scores[0], np.empty(0, np.int64), np.empty(0))
        return explain(self._rest.learners[int(best[0])], row)

    def curves(self) -> list[list[Curve]] | None:
        """See core/curves.py: of each class in order."""
        found = curves_of(self._rest.none_of_them)
        if found is None:
            return None
        return [one for learner in self._rest.learners for one in curves_of(learner) or ()]

    def class_probabilities(self, scores: Floats) -> Floats | None:
        """(n, K) for scores (n, K), if the binary learner gives probabilities."""
        if not self._rest.gives_probabilities:
            return None
        out = np.empty(scores.shape)
        normalised_sigmoids(np.ascontiguousarray(scores), out)
        return out

    def probabilities(self, scores: Floats) -> Floats | None:
        """None: see class_probabilities."""
        return None

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

    @property
    def intercept(self) -> float:
        """0: see intercepts."""
        return 0.0

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

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._rest.none_of_them.samples

    def has_long_row(self, rows: int) -> bool:
        """See core/learner.py."""
        learners = (self._rest.none_of_them, *self._rest.learners)
        return any(has_long_row(learner, rows) for learner in learners)

    def certificate(self) -> Certificate | None:
        """The sum of the binary problems of all classes, from the same rows; see Learner."""
        found = [learner.certificate() for learner in self._rest.learners]
        return (
            summed([one for one in found if one is not None])
            if found
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

    def take_duals(self, prints: Floats, duals: Floats, share: float) -> int:
        """See Refittable. A class that was added since receives the values of the prototype."""
        rows = []
        for place, learner in enumerate((self._rest.none_of_them, *self._rest.learners)):
            own = slice(place, place + 1) if place < len(prints) else slice(0, 1)
            rows.append(refittable(learner).take_duals(prints[own], duals[own], share))
        self._rewind.forget()
        return min(rows)

    def window(self, batch: Batch) -> tuple[Batch, list[Floats]]:
        """See TakesWeights."""
        places = self._rest.places_of(batch)
        rows, _ = taking_weights(self._rest.none_of_them).window(batch)
        own = [np.where(places == place, 1.0, -1.0) for place in range(len(self._rest.learners))]
        return rows, [np.full(len(batch), -1.0), *own]

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
        for place, learner in enumerate(learners):
            own = slice(place, place + 1) if place < len(weights) else slice(0, 1)
            taking_weights(learner).take_weights(weights[own], reach[own], rows)

    def state(self) -> State:
        """See Learner."""
        return self._rest.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        self._rest.restore(state)
        self._rewind.forget()


def make_multiclass(spec: Spec, make_binary: Callable[[Spec], Learner]) -> Multiclass:
    """One-vs-rest over the learner of the same specification with `task: binary`."""
    binary = _binary(spec)
    return Multiclass(spec, lambda: make_binary(binary))


@worked_out_once
def _binary(spec: Mapping[str, Any]) -> FixedSpec:
    return FixedSpec({**spec, "task": "binary", "labels": None})


def check_classes(batch: Batch) -> None:
    """Raise InvalidRow for a row without a class."""
    missing = np.isnan(batch.labels) if batch.classes else np.ones(len(batch), np.bool_)
    if missing.any():
        raise InvalidRow(int(np.argmax(missing)), "the label must be a class")


@kernel(f8(RO_F8_2D, i8, i8))
def log_normaliser(scores: Floats, row: int, known: int) -> float:
    """log of the sum of sigmoid(scores[k, row]) over the first `known` classes, at least one."""
    top = -log1pexp(-scores[0, row])
    for k in range(1, known):
        top = max(top, -log1pexp(-scores[k, row]))
    total = 0.0
    for k in range(known):
        total += math.exp(-log1pexp(-scores[k, row]) - top)
    return top + math.log(total)


@kernel(void(RO_F8_2D, RO_I8, RO_I8, I8, F8, F8))
def choose_classes(
    scores: Floats, known: Ints, places: Ints, best: Ints, best_scores: Floats, log_losses: Floats
) -> None:
    """The best class of each row, its score, and the log-loss of the row's own class.

    scores  (K, n)   known  (n,) number of classes that were known before the row
    places  (n,)     the row's class; unknown if it is -1 or not below `known`
    """
    for i in range(known.shape[0]):
        best[i] = -1
        best_scores[i] = 0.0
        for k in range(known[i]):
            if best[i] < 0 or scores[k, i] > best_scores[i]:
                best[i], best_scores[i] = k, scores[k, i]
        log_losses[i] = LOG_LOSS_CAP
        if 0 <= places[i] < known[i]:
            own = log1pexp(-scores[places[i], i]) + log_normaliser(scores, i, known[i])
            log_losses[i] = min(max(own, 0.0), LOG_LOSS_CAP)


@kernel(void(RO_F8_2D, F8_2D))
def normalised_sigmoids(scores: Floats, out: Floats) -> None:
    """out (n, K): sigmoid of the scores (n, K), divided by its sum over each row."""
    for i in range(scores.shape[0]):
        top = -np.inf
        for k in range(scores.shape[1]):
            out[i, k] = -log1pexp(-scores[i, k])
            top = max(top, out[i, k])
        total = 0.0
        for k in range(scores.shape[1]):
            out[i, k] = math.exp(out[i, k] - top)
            total += out[i, k]
        for k in range(scores.shape[1]):
            out[i, k] /= total
