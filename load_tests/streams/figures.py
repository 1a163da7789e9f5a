"""Figures of one learner on one stream: errors, calibration, ranking and cost."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from dualstream.solvers.jit import Floats
from load_tests.streams.runs import LIMIT

BLOCK = 500
BINS = 20
COLD = (100, 300)


@dataclass(frozen=True)
class Figures:
    rows: int
    """Rows scored; fewer than the stream has where the time limit stopped the learner."""
    us: float
    """Microseconds of CPU per row, for scoring and learning it."""
    errors: float
    """Percent; a score of 0 counts as positive."""
    log_loss: float
    """Mean, in nats, of the scores clipped to 30 in size."""
    calibration: float
    """Expected calibration error, in percent, over bins of equal width."""
    auc: float
    """Area under the ROC curve, in percent; NaN without both classes."""
    precision: float
    """Average precision, in percent; NaN without a positive."""
    cold: tuple[float, float]
    """Percent of errors in rows 1 to 100, and in rows 101 to 300."""
    counts: tuple[int, ...]
    """Errors in each BLOCK rows; the last block may be shorter."""

    @classmethod
    def of(cls, scores: Floats, labels: Floats, seconds: float) -> Self:
        """Figures of scores (n,), each from before its row was learned, as log odds."""
        scores = np.clip(np.where(np.isnan(scores), 0.0, scores), -LIMIT, LIMIT)
        positive = labels > 0.0
        wrong = (scores >= 0.0) != positive
        has_both = 0 < positive.sum() < len(positive)
        first, second = COLD
        counts = np.add.reduceat(wrong.astype(int), np.arange(0, len(wrong), BLOCK))
        return cls(
            rows=len(wrong),
            us=round(1e6 * seconds / len(wrong), 1),
            errors=_percent(wrong),
            log_loss=round(float(np.log1p(np.exp(-scores * labels)).mean()), 5),
            calibration=round(100.0 * calibration_error(scores, positive), 3),
            auc=round(100.0 * roc_auc_score(positive, scores), 3) if has_both else np.nan,
            precision=round(100.0 * average_precision_score(positive, scores), 3)
            if positive.any()
            else np.nan,
            cold=(_percent(wrong[:first]), _percent(wrong[first:second])),
            counts=tuple(counts.tolist()),
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """The figures that `asdict` and JSON wrote."""
        return cls(**fields | {"cold": tuple(fields["cold"]), "counts": tuple(fields["counts"])})

    def errors_until(self, rows: int) -> float:
        """Percent of errors in the first rows, a multiple of BLOCK or all."""
        if rows >= self.rows:
            return self.errors
        return 100.0 * sum(self.counts[: rows // BLOCK]) / rows


def _percent(wrong: Any) -> float:
    return round(100.0 * float(np.mean(wrong)), 4) if len(wrong) else np.nan


def calibration_error(scores: Floats, positive: Any) -> float:
    """Mean over the rows of |mean probability - share of positives| in the row's bin."""
    probabilities = 1.0 / (1.0 + np.exp(-scores))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    apart = np.bincount(bins, probabilities - positive, BINS)
    return float(np.abs(apart).sum() / len(scores))
