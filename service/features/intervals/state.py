"""The calibration of one model as a part of its state, and its intervals and sets in answers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import AnswerField, ArraysByPrefix, Scored, StatePart, Trend
from dualstream.solvers import Batch, Outcome
from dualstream.solvers.evaluation.intervals.spec import levels_of
from dualstream.solvers.jit import Floats
from dualstream.solvers.rows.class_names import class_label
from dualstream.solvers.spec_fields import INTERVALS, SEGMENTS

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.intervals.calibration import Calibration
    from dualstream.solvers.online.class_choice import ClassScores

_ALL_NUMBERS = [None, None]


class Intervals(StatePart):
    """The calibration of one model."""

    __slots__ = ("_classes", "_has_list", "_task", "calibration", "served_width")
    prefixes = ("intervals",)

    def __init__(self, spec: Mapping[str, Any], calibration: "Calibration") -> None:
        self.calibration = calibration
        self._task = spec["task"]
        self._classes = spec["labels"] or (0, 1)
        self._has_list = isinstance(spec[INTERVALS]["coverage"], list)
        self.served_width = 2 * len(calibration.levels)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Intervals | None":
        """The part of a model of a resolved specification; None if it has no intervals."""
        if INTERVALS not in spec:
            return None
        # Imported on demand, because importing compiles its kernels.
        from dualstream.solvers.evaluation.intervals.calibration import Calibration

        return cls(spec, Calibration(spec["task"], levels_of(spec), SEGMENTS in spec))

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        parts, first = batch.served_parts, self.first_served
        if parts is None or batch.served is None:
            self.calibration.learn(batch, outcome, first_seq=first_seq)
        else:
            served = np.ascontiguousarray(parts[:, first : first + self.served_width])
            self.calibration.learn(batch, outcome, ~np.isnan(batch.served), served, first_seq)

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"intervals.{name}": one for name, one in self.calibration.state().items()}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        self.calibration.restore(arrays["intervals"])

    def roots(self) -> Sequence[object]:
        return self.calibration.buffers

    def metrics(self) -> Mapping[str, Any]:
        return {INTERVALS: [self._shown(one) for one in self.calibration.figures()]}

    def progress(self, seq: int) -> Mapping[str, Any]:
        return self.metrics()

    def trends(self) -> Mapping[Trend, float | None]:
        return {
            ("coverage", str(one.level)): one.recent_coverage for one in self.calibration.figures()
        }

    def last_rows(self) -> dict[str, Any]:
        """Fields of IntervalRows: the last rows of a regression that had an interval."""
        rows, thresholds = self.calibration.last_rows()
        levels = map(str, self.calibration.levels.tolist())
        return {
            "seqs": rows[:, 0].astype(np.int64).tolist(),
            "labels": rows[:, 1].tolist(),
            "scores": rows[:, 2].tolist(),
            "intervals": {
                level: [_intervals(rows[at : at + 1, 2], q)[0] for at, q in enumerate(of.tolist())]
                for level, of in zip(levels, thresholds.T, strict=True)
            },
        }

    def _shown(self, figures: Any) -> dict[str, Any]:
        size = "mean_width" if self._task == "regression" else "mean_set_size"
        names = ("level", "rows", "coverage", "recent_coverage", "unbounded")
        return {name: getattr(figures, name) for name in names} | {size: figures.mean_size}

    # -- answers ---------------------------------------------------------------------------------

    def served(self, scored: Scored) -> Floats:
        """The threshold and size of each level, (n, 2 L); NaN in rows without an interval."""
        thresholds = self.calibration.thresholds()
        served = np.empty((len(scored.scores), self.served_width))
        served[:, 0::2] = thresholds
        for level, q in enumerate(thresholds.tolist()):
            served[:, 2 * level + 1] = self._sizes(scored, q)
        served[~np.isfinite(scored.scores)] = np.nan
        return served

    def _sizes(self, scored: Scored, q: float) -> Floats | float:
        """Widths, or set sizes, for this threshold."""
        if self._task == "regression":
            return 2.0 * max(q, 0.0)
        if self._task == "binary":
            return np.where(np.abs(scored.scores) <= q, 2.0, 1.0)
        return np.array([len(one) for one in self._class_sets(scored, [q])[0]], np.float64)

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        one, many = ("interval", "intervals") if self._task == "regression" else ("set", "sets")
        by_level = self._by_level(scored, self.calibration.thresholds().tolist())
        if not self._has_list:
            return [AnswerField(one, many, by_level[0])]
        names = [str(level) for level in self.calibration.levels.tolist()]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*by_level, strict=True)]
        return [AnswerField(many, many, rows)]

    def _by_level(self, scored: Scored, thresholds: Sequence[float]) -> Sequence[Sequence[Any]]:
        """For each threshold the interval or set of each row; None before there are any."""
        if np.isnan(thresholds[0]):
            return [[None] * len(scored.scores)] * len(thresholds)
        if self._task == "regression":
            return [_intervals(scored.scores, q) for q in thresholds]
        if self._task == "binary":
            return [self._binary_sets(scored.scores, q) for q in thresholds]
        return self._class_sets(scored, thresholds)

    def _binary_sets(self, scores: Floats, q: float) -> list[list[Any]]:
        """The predicted class, and the other one if its threshold admits it."""
        both = [list(self._classes), list(reversed(self._classes))]
        return [
            both[score >= 0.0] if abs(score) <= q else both[score >= 0.0][:1]
            for score in scores.tolist()
        ]

    def _class_sets(self, scored: Scored, thresholds: Sequence[float]) -> list[list[list[Any]]]:
        """For each threshold the sets of all rows, the most probable class first."""
        assert scored.classes is not None
        classes = [class_label(text) for text in scored.classes.classes]
        losses = class_losses_of(scored.classes)
        order = np.argsort(losses, axis=1, kind="stable")
        sizes = [np.maximum((losses <= q).sum(axis=1), 1).tolist() for q in thresholds]
        order = order[:, : max(map(max, sizes))]
        return [
            [
                [classes[k] for k in row[:size]]
                for row, size in zip(order.tolist(), each, strict=True)
            ]
            for each in sizes
        ]


def class_losses_of(scored: "ClassScores") -> Floats:
    """Losses (n, K) of all classes."""
    # Imported on demand, because importing compiles kernels.
    from dualstream.solvers.evaluation.intervals.calibration import losses_of

    return losses_of(scored)


def _intervals(scores: Floats, q: float) -> list[Any]:
    if q == np.inf:
        return [_ALL_NUMBERS] * len(scores)
    half = max(q, 0.0)
    intervals: list[Any] = np.column_stack((scores - half, scores + half)).tolist()
    return intervals
