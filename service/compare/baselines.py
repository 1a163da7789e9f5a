"""Baselines that use labels alone: the most frequent one, the last one, the running mean."""

import numpy as np

from dualstream.service.compare.contestants import Contestant, Predictions
from dualstream.service.compare.schedule import Block
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.solvers.jit import Floats, Ints


def baselines(task: str, rows: StoredRows) -> list[Contestant]:
    """The baselines of a task."""
    constant = RunningMean if task == "regression" else MostFrequent
    return [constant(rows), LastLabel(rows)]


class _Baseline(Contestant):
    def __init__(self, rows: StoredRows) -> None:
        self._rows = rows
        self._count = 0

    def _predict(self, block: Block) -> Predictions:
        before, self._count = self._count, int(block.labelled[-1])
        labels = self._rows.labels(before, self._count)
        return Predictions(self._of_labels(labels, block.labelled - before))

    def _of_labels(self, labels: Floats, counts: Ints) -> Floats:
        """Predictions of rows to which the first `counts` of these new labels are available."""
        raise NotImplementedError


class MostFrequent(_Baseline):
    """The most frequent class so far; at a tie the one that was most frequent first."""

    name = "most frequent label"

    def __init__(self, rows: StoredRows) -> None:
        super().__init__(rows)
        self._counts: dict[float, int] = {}
        self._best = -1.0

    def _of_labels(self, labels: Floats, counts: Ints) -> Floats:
        best, seen = [self._best], self._counts
        for label in labels.tolist():
            seen[label] = seen.get(label, 0) + 1
            if seen[label] > seen.get(self._best, 0):
                self._best = label
            best.append(self._best)
        return np.array(best)[counts]


class LastLabel(_Baseline):
    """The last label."""

    name = "last label"

    def __init__(self, rows: StoredRows) -> None:
        super().__init__(rows)
        self._last = 0.0 if rows.classes == () else -1.0

    def _of_labels(self, labels: Floats, counts: Ints) -> Floats:
        lasts = np.concatenate([[self._last], labels])
        self._last = float(lasts[-1])
        return lasts[counts]


class RunningMean(_Baseline):
    """The mean of the labels so far; 0 before the first."""

    name = "mean so far"

    def __init__(self, rows: StoredRows) -> None:
        super().__init__(rows)
        self._sum, self._number = 0.0, 0

    def _of_labels(self, labels: Floats, counts: Ints) -> Floats:
        sums = np.cumsum(np.concatenate([[self._sum], labels]))
        numbers = self._number + np.arange(len(sums))
        self._sum, self._number = float(sums[-1]), int(numbers[-1])
        return (sums / np.maximum(numbers, 1))[counts]
