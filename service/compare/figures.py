"""Figures of a contestant over the compared rows, and the gain over another one.

The gain has the confidence sequence of solvers/portfolio/confidence_sequence.py, which holds at all
rows at once. For classes it is of errors. For numbers it is of absolute errors in units of their
running mean, each clipped at CLIP of these units.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.service.compare.contestants import MIN_CHANCE, Predictions
from dualstream.solvers.evaluation.ranking import Ranking
from dualstream.solvers.jit import Floats
from dualstream.solvers.portfolio.confidence_sequence import compare

CLIP = 10.0
POINTS = 200
"""Points of a curve."""
BINS = 20
"""Bins of probabilities, of equal width, for the calibration."""
_LOSS, _SQUARE, _LOG, _ROWS = range(4)


def losses_of(task: str, truth: Floats, predictions: Predictions) -> Floats:
    """(n,): 1 for an error and 0 otherwise, or absolute errors."""
    if task == "regression":
        return np.abs(predictions.labels - truth)
    return np.asarray(predictions.labels != truth, np.float64)


class Figures:
    """Sums over the compared rows of one contestant, also by point of the curve."""

    def __init__(self, task: str, rows: int) -> None:
        self._task, self._of_run = task, rows
        self.curve = np.zeros((POINTS, 4))
        """(POINTS, 4): sums of losses, squares and log-losses, and rows."""
        self._has_logs = True
        self._ranking: Ranking | None = Ranking() if task == "binary" else None
        self._bins = np.zeros((3, BINS))
        """Rows, sum of probabilities and positives of each bin."""

    @property
    def rows(self) -> int:
        return int(self.curve[:, _ROWS].sum())

    def add(self, first: int, truth: Floats, predictions: Predictions, losses: Floats) -> None:
        """Count rows from row `first` of the run on."""
        points = (first + np.arange(len(truth))) * POINTS // self._of_run
        columns = [losses, losses * losses, np.zeros(len(truth)), np.ones(len(truth))]
        chances = predictions.chances
        if chances is None:
            self._has_logs = False
        else:
            if self._task == "binary":
                chances = np.where(truth > 0.0, chances, 1.0 - chances)
            columns[_LOG] = -np.log(np.maximum(chances, MIN_CHANCE))
        for at, column in enumerate(columns):
            self.curve[:, at] += np.bincount(points, column, POINTS)
        if self._ranking is not None and predictions.scores is not None:
            everywhere = np.ones(len(truth), np.bool_)
            before = self.rows - len(truth)
            self._ranking.add(truth, predictions.scores, everywhere, before)
        else:
            self._ranking = None
        if self._task == "binary" and predictions.chances is not None:
            self._add_calibration(truth, predictions.chances)

    def _add_calibration(self, truth: Floats, chances: Floats) -> None:
        bins = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
        for at, column in enumerate((np.ones(len(truth)), chances, (truth > 0.0) * 1.0)):
            self._bins[at] += np.bincount(bins, column, BINS)

    @property
    def curve_rows(self) -> list[int]:
        """Rows of each point of the curve."""
        return [int(count) for count in self.curve[:, _ROWS]]

    @property
    def loss(self) -> float:
        """Share of errors, or mean absolute error, so far."""
        return float(self.curve[:, _LOSS].sum() / max(self.rows, 1))

    def summary(self) -> dict[str, Any]:
        """The figures; None for those that this contestant or task does not have."""
        n = self.rows
        if not n:
            return {}
        sums: list[float] = self.curve.sum(axis=0).tolist()
        if self._task == "regression":
            return {"mae": sums[_LOSS] / n, "rmse": math.sqrt(sums[_SQUARE] / n)}
        logs = self._has_logs
        figures: dict[str, Any] = {
            "error_rate": sums[_LOSS] / n,
            "log_loss": sums[_LOG] / n if logs else None,
        }
        if self._task == "binary":
            ranked = {} if self._ranking is None else self._ranking.figures(n)[0]
            figures["auc"] = ranked.get("auc")
            figures["average_precision"] = ranked.get("average_precision")
            figures["calibration_error"] = self._calibration_error() if logs else None
        return figures

    def _calibration_error(self) -> float:
        rows, chances, positives = self._bins
        return float(np.abs(chances - positives).sum() / rows.sum())

    def mean_by(self, parts: int) -> list[float | None]:
        """The mean loss in equal parts of the run; None for parts without compared rows."""
        sums = self.curve.reshape(parts, -1, 4).sum(axis=1)
        return [float(one[_LOSS] / one[_ROWS]) if one[_ROWS] else None for one in sums]


@dataclass(slots=True)
class Gain:
    """What a contestant gains over another: the mean of its loss minus ours, above 0 if better."""

    task: str
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    scale: float = 0.0
    """Sum of the mean absolute errors of both, by whose running mean errors are divided."""

    def add(self, ours: Floats, others: Floats) -> None:
        """Count rows with these losses, in their order."""
        if self.task == "regression":
            both = 0.5 * (ours + others)
            sums = self.scale + np.cumsum(both) - both
            means = sums / np.maximum(self.rows + np.arange(len(both)), 1)
            units = np.where(means > 0.0, means, np.inf)
            self.scale += float(both.sum())
            ours, others = np.minimum(ours / units, CLIP), np.minimum(others / units, CLIP)
        differences = others - ours
        self.rows += len(ours)
        self.total += float(differences.sum())
        self.squares += float((differences * differences).sum())

    def summary(self, level: float) -> dict[str, Any]:
        """The gain in percent: points of errors, or percent of the running mean error."""
        most = CLIP if self.task == "regression" else 1.0
        result = compare("", "", self.rows, self.total, self.squares, most, level)
        return {
            "percent": 100.0 * result.mean,
            "low": 100.0 * result.low,
            "high": 100.0 * result.high,
            "rows": self.rows,
        }
