"""Contestants predict blocks of rows in order; Dualstream's learners among them."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dualstream.service.compare.schedule import Block
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.solvers import Batch, Outcome, make_learner
from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import predict_waiting

MIN_CHANCE = 1e-15
"""Probabilities are clipped to this before their logarithm is computed."""
_WARM_ROWS = 50


@dataclass(slots=True)
class Predictions:
    """Predictions of the rows of a block.

    labels   (n,): -1 or 1, the index of a class (-1: none), or a number
    chances  (n,): probability of the positive class, of the row's own class; None without any
    scores   (n,): by which binary rows are ranked; None for a constant
    """

    labels: Floats
    chances: Floats | None = None
    scores: Floats | None = None

    def between(self, first: int, stop: int) -> "Predictions":
        """Some of the rows."""
        columns = (self.chances, self.scores)
        chances, scores = (None if one is None else one[first:stop] for one in columns)
        return Predictions(self.labels[first:stop], chances, scores)

    @classmethod
    def joined(cls, groups: Sequence["Predictions"]) -> "Predictions":
        """Predictions of consecutive rows (at least one)."""
        return cls(
            np.concatenate([one.labels for one in groups]),
            _joined([one.chances for one in groups]),
            _joined([one.scores for one in groups]),
        )


def _joined(columns: Sequence[Floats | None]) -> Floats | None:
    """A column of consecutive groups; None if the groups have none."""
    present = [column for column in columns if column is not None]
    return np.concatenate(present) if present else None


class Contestant(ABC):
    """Predicts all rows of a run, block by block, each before its label is used."""

    name: str
    about: str = ""
    """What was run."""
    kind: str = "baseline"
    """learner, baseline, peer or frozen."""
    can_predict: bool = True
    predict_s: float = 0.0
    """CPU time of predictions, and of learning if the two are one."""
    train_s: float = 0.0
    trainings: int = 0
    predicted: int = 0

    def step(self, block: Block) -> Predictions:
        """Use the labels that are available, and predict the block. Measures its time."""
        begin = time.process_time()
        predictions = self._predict(block)
        self.predict_s += time.process_time() - begin
        self.predicted += block.stop - block.first
        return predictions

    @abstractmethod
    def _predict(self, block: Block) -> Predictions: ...


class OnlineLearner(Contestant):
    """A learner of Dualstream: it predicts a row, then learns it."""

    kind = "learner"

    def __init__(self, name: str, about: str, spec: Mapping[str, Any], rows: StoredRows) -> None:
        self.name, self.about, self.spec = name, about, spec
        self._rows = rows
        self._task: str = spec["task"]
        self._learner: Any = make_learner(spec)
        self._waiting: deque[Batch] = deque()
        self._learned = 0
        """Rows, from the first one, that are learned."""
        # The first call compiles kernels, or reads them from their cache.
        make_learner(spec).learn(rows.batch(0, min(_WARM_ROWS, len(rows))))

    def _predict(self, block: Block) -> Predictions:
        batch = self._rows.batch(block.first, block.stop)
        if not self._waiting and np.array_equal(block.labelled, range(block.first, block.stop)):
            self._learned = block.stop
            return self._of_outcome(self._learner.learn(batch))
        firsts = np.flatnonzero(np.diff(block.labelled, prepend=-1)).tolist()
        groups = []
        for first, stop in pairwise([*firsts, len(batch)]):
            self._learn_waiting(int(block.labelled[first]))
            groups.append(self._predict_waiting(batch[first:stop], block.first + first))
        return Predictions.joined(groups)

    def _learn_waiting(self, labelled: int) -> None:
        """Learn the rows whose labels are available by now."""
        while self._waiting and self._learned < labelled:
            batch = self._waiting.popleft()
            count = min(len(batch), labelled - self._learned)
            self._learner.learn(batch[:count])
            if count < len(batch):
                self._waiting.appendleft(batch[count:])
            self._learned += count

    def _predict_waiting(self, batch: Batch, first: int) -> Predictions:
        """Predict rows, from row `first` of the run on, that then wait for their labels."""
        if self._task == "multiclass":
            predictions = self._of_classes(first, self._learner.predict_classes(batch))
        else:
            scores, parts = predict_waiting(self._learner, batch)
            batch = waiting(batch, scores, parts)
            predictions = self._of_scores(scores)
        self._waiting.append(batch)
        return predictions

    def _of_outcome(self, outcome: Outcome) -> Predictions:
        if outcome.predicted is None:
            return self._of_scores(outcome.scores)
        index = self._class_index(outcome.classes)
        best = outcome.predicted
        labels = np.where(best >= 0, index[np.maximum(best, 0)], -1.0)
        logs = outcome.log_losses
        return Predictions(labels, None if logs is None else np.exp(-np.nan_to_num(logs, nan=35.0)))

    def _of_classes(self, first: int, scored: Any) -> Predictions:
        index = self._class_index(scored.classes)
        labels = np.where(scored.best >= 0, index[np.maximum(scored.best, 0)], -1.0)
        if scored.probabilities is None:
            return Predictions(labels)
        wanted = self._rows.labels(first, first + len(labels))
        return Predictions(labels, chances_of(scored.probabilities, index, wanted))

    def _class_index(self, classes: tuple[str, ...]) -> Floats:
        """Index of a run's classes for each class of the learner."""
        everywhere = {name: at for at, name in enumerate(self._rows.classes)}
        return np.array([everywhere[name] for name in classes] or [-1], np.float64)

    def _of_scores(self, scores: Floats) -> Predictions:
        scores = np.nan_to_num(scores, nan=0.0)
        if self._task == "regression":
            return Predictions(scores)
        labels = np.where(scores >= 0.0, 1.0, -1.0)
        return Predictions(labels, self._learner.probabilities(scores), scores)


def waiting(batch: Batch, scores: Floats, parts: Floats | None) -> Batch:
    """Rows that wait for their labels, with what they keep: see predict_waiting."""
    return batch if parts is None else replace(batch, served=scores, served_parts=parts)


def chances_of(probabilities: Floats, index: Floats, wanted: Floats) -> Floats:
    """(n,): the probability of each row's class; `index` has the class of each column."""
    chances = np.full(len(wanted), MIN_CHANCE)
    for column, label in enumerate(index[: probabilities.shape[1]].tolist()):
        rows = wanted == label
        chances[rows] = probabilities[rows, column]
    return chances
