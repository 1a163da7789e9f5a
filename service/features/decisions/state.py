"""The decisions of a model, as parts of its state: its threshold, and what it decided so far."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import (
    AnswerField,
    ArraysByPrefix,
    Parts,
    Scored,
    StatePart,
    Trend,
)
from dualstream.solvers import Batch, Outcome
from dualstream.solvers.evaluation.decisions.spec import ALERT_RATE
from dualstream.solvers.jit import Floats
from dualstream.solvers.spec_fields import COSTS

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.decisions.class_monitor import ClassDecisions
    from dualstream.solvers.evaluation.decisions.monitor import Decisions

PREFIX = "decisions"
_OF_ALERTS = ("rate", "precision", "recall")


def part_of(spec: Mapping[str, Any]) -> StatePart | None:
    """The part of a new model; None without `costs` and `alert_rate`."""
    if COSTS not in spec and ALERT_RATE not in spec:
        return None
    return ClassDecided(spec) if spec["task"] == "multiclass" else Decided(spec)


class _Part(StatePart):
    """What both tasks have in common. `decisions` learns with the model."""

    __slots__ = ("decisions",)
    prefixes = (PREFIX,)
    decisions: "Decisions | ClassDecisions"

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"{PREFIX}.{name}": array for name, array in self.decisions.state().items()}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        self.decisions.restore(arrays[PREFIX])

    def roots(self) -> Sequence[object]:
        return (self.decisions,)

    def metrics(self) -> Mapping[str, Any]:
        return self.decisions.figures()

    def progress(self, seq: int) -> Mapping[str, Any]:
        return self.decisions.figures()


class Decided(_Part):
    """The decisions of a binary model.

    answered, alerted   rows that this object answered, and alerts among them; not part of the state
    """

    __slots__ = ("_labels", "alerted", "answered", "follows_observed", "served_width")
    decisions: "Decisions"

    def __init__(self, spec: Mapping[str, Any]) -> None:
        # Imported on demand, because importing compiles its kernels.
        from dualstream.solvers.evaluation.decisions.monitor import Decisions

        self.decisions = Decisions(spec)
        self._labels: Sequence[Any] = spec["labels"] or (0, 1)
        self.answered = self.alerted = 0
        self.follows_observed = self.decisions.rate is not None
        self.served_width = int(self.follows_observed)

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        if batch.served_parts is None or not self.served_width:
            self.decisions.count(batch, outcome)
        else:
            as_served = np.ascontiguousarray(batch.served_parts[:, self.first_served])
            self.decisions.count(batch, outcome, as_served)

    def on_restored(self, present: "Decided", copy_seq: int, seq: int) -> None:
        self.answered, self.alerted = present.answered, present.alerted

    def trends(self) -> Mapping[Trend, float | None]:
        figures = self.decisions.figures()
        costs = figures.get("costs", {}).get("rolling", {})
        alerts = figures.get("alerts", {}).get("rolling", {})
        found = {name: costs[name] for name in costs if name != "rows"}
        found |= {f"alert_{name}": alerts[name] for name in _OF_ALERTS if alerts}
        return {(name, None): figure for name, figure in found.items()}

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        """The label of least expected cost; whether a row alerts, and above which score."""
        fields = []
        if self.decisions.costs is not None:
            labels = [self._labels[one] for one in (scored.scores >= self.decisions.cut).tolist()]
            fields.append(AnswerField("label", "labels", labels))
        if self.decisions.rate is not None:
            threshold = self.decisions.threshold
            alerts = (scored.scores > threshold).tolist()
            self.answered += len(alerts)
            self.alerted += sum(alerts)
            thresholds = [threshold if np.isfinite(threshold) else None] * len(alerts)
            fields.append(AnswerField("alert", "alerts", alerts))
            fields.append(AnswerField("threshold", "thresholds", thresholds))
        return fields

    def served(self, scored: Scored) -> Floats:
        """Whether each row alerts."""
        alerts: Floats = (scored.scores > self.decisions.threshold).astype(np.float64)
        return alerts.reshape(-1, 1)[:, : self.served_width]

    def metrics(self) -> Mapping[str, Any]:
        figures = self.decisions.figures()
        if "alerts" in figures:
            rate = self.alerted / self.answered if self.answered else None
            answered = {"rows": self.answered, "alerts": self.alerted, "rate": rate}
            figures["alerts"]["answered"] = answered
        return figures


class ClassDecided(_Part):
    """The decisions of a multiclass model with `costs`."""

    __slots__ = ()
    served_width = 2
    decisions: "ClassDecisions"

    def __init__(self, spec: Mapping[str, Any]) -> None:
        from dualstream.solvers.evaluation.decisions.class_monitor import ClassDecisions

        self.decisions = ClassDecisions(spec)

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        parts = batch.served_parts
        first = self.first_served
        as_served = None if parts is None else parts[:, first : first + self.served_width]
        self.decisions.count(batch, outcome, as_served)

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        """The label of least expected cost."""
        assert scored.classes is not None
        return [AnswerField("label", "labels", self.decisions.labels(scored.classes))]

    def served(self, scored: Scored) -> Floats:
        """The classes that are decided and predicted, as numbers."""
        assert scored.classes is not None
        return self.decisions.served(scored.classes)


def decided_of(parts: Parts) -> Decided | ClassDecided | None:
    """The part of a model; None without one."""
    return parts.find(Decided) or parts.find(ClassDecided)
