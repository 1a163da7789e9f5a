"""Progressive metrics of multiclass learners: the views and baselines of progressive.py.

A row of a class that was unknown when it was scored is a mistake. The baselines predict the most
frequent class so far (the oldest at a tie) and the class of the last row. Before any row they have
no prediction, which is a mistake. Classes beyond the first MAX_CLASSES count as mistakes of both
baselines and are not stored (a learner rejects such rows, except those of weight 0).
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.progressive import LARGEST_TERM, Progressive
from dualstream.solvers.evaluation.ranking import RECENT
from dualstream.solvers.jit import B1, F8_2D, I8, I8_2D, RO_F8, RO_I8, Flags, Floats, Ints, kernel
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import MAX_CLASSES, names_of, names_state

# Stored in addition to the counts: the class of the last row, and the most frequent one.
_LAST, _MOST_FREQUENT = range(2)


class ClassProgressive(Progressive):
    """Metrics of `task: multiclass`; 8 bytes per class more than for other tasks.

    pairs  (RECENT, 2)  index of the class, and of the predicted one, of row t at t mod RECENT; -1
                        for none
    """

    def __init__(self, *, log_loss: bool = False, scaled: Collection[str] = ()) -> None:
        super().__init__("multiclass", log_loss=log_loss, scaled=scaled)
        self._class_index: dict[str, int] = {}
        self._counts = np.zeros(MAX_CLASSES, np.int64)
        self._guesses = np.full(2, -1, np.int64)
        # Uninitialised: no row is read before it is written.
        self._pairs = np.empty((RECENT, 2), np.int64)

    def count(self, batch: Batch, outcome: Outcome, first_seq: int = 1) -> None:
        if not batch.classes:  # no rows, or observed ones alone
            return
        learned, labels = ~outcome.rejected, class_labels(batch, outcome)
        self._add_classes(batch.classes, labels[learned])
        class_ids = _class_ids(batch.classes, self._class_index)[labels]
        assert outcome.predicted is not None
        # The last one is that of no prediction, -1.
        predicted = np.append(_class_ids(outcome.classes, self._class_index), -1)[outcome.predicted]
        self._to_count_in().drift.watch(outcome.losses, learned, first_seq, self.rows)
        log_losses = np.zeros(len(batch)) if outcome.log_losses is None else outcome.log_losses
        terms = np.zeros((len(batch), len(self._names)))
        row_terms(
            class_ids, predicted, outcome.losses, log_losses, learned,
            self._counts, self._guesses, self.rows, self._pairs, terms,
        )  # fmt: skip
        self._add(terms, learned)

    def update(
        self, labels: Floats, scores: Floats, losses: Floats, learned: Flags, first_seq: int = 1
    ) -> None:
        """Not supported for classes: see count."""
        raise TypeError("a multiclass outcome is counted by count(batch, outcome)")

    def _add_classes(self, classes: tuple[str, ...], labels: Ints) -> None:
        """Store classes in the order of their rows."""
        present, first = np.unique(labels, return_index=True)
        for label in present[np.argsort(first)].tolist():
            if classes[label] not in self._class_index and len(self._class_index) < MAX_CLASSES:
                self._class_index[classes[label]] = len(self._class_index)

    def confusion(self, most: int) -> tuple[list[str], Ints]:
        """Names of the `most` classes with most rows among the last RECENT, and the counts.

        Counts (k + 1, k + 1) are by class and predicted class; the last ones of both are those of
        all other classes, and of rows without a prediction.
        """
        pairs, names = self._pairs[: min(self.rows, RECENT)], list(self._class_index)
        rows = np.bincount(pairs[pairs >= 0], minlength=len(names))
        shown = [int(one) for one in np.argsort(-rows, kind="stable")[:most] if rows[one]]
        column = np.full(len(names) + 1, len(shown))
        column[shown] = np.arange(len(shown))
        counts = np.zeros((len(shown) + 1, len(shown) + 1), np.int64)
        np.add.at(counts, (column[pairs[:, 0]], column[pairs[:, 1]]), 1)
        return [names[one] for one in shown], counts

    def state(self) -> State:
        """The state, as copies."""
        names = names_state(tuple(self._class_index))
        return (
            super().state()
            | {f"metrics_{name}": array for name, array in names.items()}
            | {
                "metrics_class_counts": self._counts[: len(self._class_index)].copy(),
                "metrics_guesses": self._guesses.copy(),
                "metrics_pairs": self._pairs[: min(self.rows, RECENT)].copy(),
            }
        )

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state, to the bit. Raises CorruptState, and then nothing has changed."""
        head = "metrics_class_"
        names = names_of({name[8:]: a for name, a in state.items() if name.startswith(head)})
        check_arrays(state, {"metrics_class_counts": (len(names),), "metrics_guesses": (2,)})
        guesses = state["metrics_guesses"]
        if not np.all((guesses >= -1) & (guesses < len(names))):
            raise CorruptState("the most frequent class has not been seen")
        pairs = state.get("metrics_pairs", np.empty(0))
        check_arrays(state, {"metrics_rows": (1,), "metrics_pairs": (*pairs.shape[:1], 2)})
        if len(pairs) != min(max(int(state["metrics_rows"][0]), 0), RECENT):
            raise CorruptState("the last rows do not have a class each")
        if not np.all((pairs >= -1) & (pairs < len(names))):
            raise CorruptState("a class of the last rows has not been seen")
        super().restore(state)
        self._class_index = {name: index for index, name in enumerate(names)}
        self._counts[:] = 0
        self._counts[: len(names)] = state["metrics_class_counts"]
        self._guesses[:] = guesses
        self._pairs[: len(pairs)] = pairs


def class_labels(batch: Batch, outcome: Outcome) -> Ints:
    """Labels (n,) of a batch with classes; 0 for rejected rows."""
    return np.where(outcome.rejected, 0.0, batch.labels).astype(np.int64)


def mistakes_of(classes: tuple[str, ...], labels: Ints, outcome: Outcome) -> Flags:
    """Whether each row (n,) has another class than the predicted one."""
    class_index = {name: index for index, name in enumerate(outcome.classes)}
    assert outcome.predicted is not None
    mistakes: Flags = _class_ids(classes, class_index)[labels] != outcome.predicted
    return mistakes | (outcome.predicted < 0)


def _class_ids(classes: tuple[str, ...], class_index: Mapping[str, int]) -> Ints:
    """(len(classes),): index of each in `class_index`; -1 if missing."""
    return np.array([class_index.get(name, -1) for name in classes], np.int64)


@kernel
def row_terms(
    class_ids: RO_I8,
    predicted: RO_I8,
    losses: RO_F8,
    log_losses: RO_F8,
    learned: B1,
    counts: I8,
    guesses: I8,
    row: int,
    pairs: I8_2D,
    terms: F8_2D,
) -> None:
    """The summed quantities of each learned row, in order, for progressive.count_rows.

    class_ids, predicted  (n,)   the class of each row, and the predicted one; or -1
    counts   (MAX_CLASSES,) rows of each class
    guesses  (2,)           the class of the last row and the most frequent one; -1 for none
    row                     number of rows that were learned before
    pairs    (RECENT, 2)    see ClassProgressive
    terms    (n, m)         written, except for rows that were not learned
    """
    for i in range(class_ids.shape[0]):
        if not learned[i]:
            continue
        label = class_ids[i]
        terms[i, 0] = min(losses[i], LARGEST_TERM)
        terms[i, 1] = 1.0 if label != predicted[i] or label < 0 else 0.0
        terms[i, 2] = log_losses[i]
        terms[i, 3] = 1.0 if label < 0 or label != guesses[_MOST_FREQUENT] else 0.0
        terms[i, 4] = 1.0 if label < 0 or label != guesses[_LAST] else 0.0
        guesses[_LAST] = label
        pairs[row % pairs.shape[0], 0] = label
        pairs[row % pairs.shape[0], 1] = predicted[i]
        row += 1
        if label >= 0:
            counts[label] += 1
            most = guesses[_MOST_FREQUENT]
            if (
                most < 0
                or counts[label] > counts[most]
                or (counts[label] == counts[most] and label < most)
            ):
                guesses[_MOST_FREQUENT] = label
