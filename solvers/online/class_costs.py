"""The class of least expected cost, by the probabilities of all classes.

A wrong class costs 1 unless the specification says otherwise, and the right one nothing. The
expected cost of class j is the sum of p[i] * cost[i, j] over all classes i. At a tie the older
class is decided.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I8, Floats, Ints, kernel
from dualstream.solvers.rows.class_names import class_label


class ClassCosts:
    """The costs of a resolved specification: {"true class": {"predicted class": cost}}."""

    def __init__(self, costs: Mapping[str, Mapping[str, float]]) -> None:
        self.costs = costs
        self._classes: tuple[str, ...] = ()
        self._listed = self._entries(())

    def decide(self, probabilities: Floats, n_classes: Ints, classes: tuple[str, ...]) -> Ints:
        """(n,): index of the class of least expected cost; -1 if there are no classes.

        probabilities  (n, K); each row may have any sum
        n_classes      (n,) the first classes of each row alone are decided
        """
        if classes != self._classes:
            self._classes, self._listed = classes, self._entries(classes)
        decided = np.empty(len(probabilities), np.int64)
        decide_classes(
            probabilities, n_classes, *self._listed, np.empty(probabilities.shape[1]), decided
        )
        return decided

    def decide_by_losses(self, losses: Floats, classes: tuple[str, ...]) -> Ints:
        """As `decide`, by the `class_losses` (n, K) of an outcome."""
        probabilities, n_classes = np.empty(losses.shape), np.empty(len(losses), np.int64)
        put_probabilities(np.ascontiguousarray(losses), probabilities, n_classes)
        return self.decide(probabilities, n_classes, classes)

    def least(self, counts: Floats, classes: tuple[str, ...]) -> float:
        """The cost of `counts` (K,) rows of each class, all decided as the best one class."""
        decided = int(self.decide(counts.reshape(1, -1), np.array([len(classes)]), classes)[0])
        true, predicted, costs = self._listed
        of = predicted == decided
        return float(counts.sum() - counts[decided] + (counts[true[of]] * costs[of]).sum())

    def _entries(self, classes: Sequence[str]) -> tuple[Ints, Ints, Floats]:
        """Indices of true and predicted classes, and costs less 1, of what is listed."""
        indices: dict[str, list[int]] = {}
        for index, text in enumerate(classes):
            indices.setdefault(name_of(text), []).append(index)
        entries = [
            (i, j, cost - 1.0)
            for label, row in self.costs.items()
            for name, cost in row.items()
            for i in indices.get(label, ())
            for j in indices.get(name, ())
        ]
        true, predicted, costs = zip(*entries, strict=True) if entries else ((), (), ())
        return np.array(true, np.int64), np.array(predicted, np.int64), np.array(costs, np.float64)

    def cost(self, label: str, decided: str | None) -> float:
        """What it costs to decide a class for a row of the class `label`; None is no class."""
        if decided == label:
            return 0.0
        row = self.costs.get(name_of(label), {})
        return 1.0 if decided is None else float(row.get(name_of(decided), 1.0))


def name_of(text: str) -> str:
    """A class as the specification names it: a string without its quotes."""
    label = class_label(text)
    return label if isinstance(label, str) else text


@kernel
def put_probabilities(losses: RO_F8_2D, probabilities: F8_2D, n_classes: I8) -> None:
    """Probabilities (n, K) of log-losses, and the number of classes (n,) before the first NaN."""
    for i in range(losses.shape[0]):
        n = 0
        while n < losses.shape[1] and losses[i, n] == losses[i, n]:
            probabilities[i, n] = math.exp(-losses[i, n])
            n += 1
        n_classes[i] = n


@kernel
def decide_classes(
    probabilities: RO_F8_2D,
    n_classes: RO_I8,
    true: RO_I8,
    predicted: RO_I8,
    costs: RO_F8,
    expected: F8,
    decided: I8,
) -> None:
    """See ClassCosts.decide.

    true, predicted, costs  (m,)  classes, and what they cost more than 1
    expected                (K,)  space
    """
    for i in range(probabilities.shape[0]):
        n, total = n_classes[i], 0.0
        for k in range(n):
            total += probabilities[i, k]
        for k in range(n):
            expected[k] = total - probabilities[i, k]
        for e in range(costs.shape[0]):
            if true[e] < n and predicted[e] < n:
                expected[predicted[e]] += probabilities[i, true[e]] * costs[e]
        decided[i] = -1
        for k in range(n):
            if decided[i] < 0 or expected[k] < expected[decided[i]]:
                decided[i] = k
