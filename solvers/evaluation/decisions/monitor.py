"""Decisions of a binary model, and what they cost: part of the replicated state."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.decisions import alerts as a
from dualstream.solvers.evaluation.decisions.spec import ALERT_RATE
from dualstream.solvers.jit import Bytes, Floats
from dualstream.solvers.protocols.learner import UNMARKED, Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns.inputs import depends_on_past, inputs_of
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.spec_fields import COSTS, SEGMENTS

_NONE = np.empty(0)
_DAY_S = 86_400.0
_NAMES = (
    "rows", "positives", "caught", "called", "false_positives", "false_negatives",
    "probable_false_positives", "probable_false_negatives",
)  # fmt: skip
"""The counts of labelled rows."""


class Decisions:
    """The decisions of a resolved specification with `costs`, `alert_rate` or both."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.costs: Mapping[str, float] | None = spec.get(COSTS)
        self.rate: float | None = spec.get(ALERT_RATE)
        self.cut = 0.0 if self.costs is None else _cut(**self.costs)
        """Scores from here on are decided positive."""
        self._enters_when_served = depends_on_past(spec)
        self._marks = self.rate is not None and SEGMENTS in spec
        """Are rows marked for other parts of the model's state?"""
        self._time = time_feature(spec)
        self._start()

    def _start(self) -> None:
        self._ring, self._alerted = np.zeros(a.RING), np.zeros(a.RING, np.uint8)
        self._ordered = np.zeros(a.RING)
        self._trend, self._times = np.zeros(1), np.zeros(a.LATEST)
        self._recent, self._counts = np.zeros(a.RECENT, np.uint8), np.zeros(a.COUNTS, np.int64)

    def count(self, batch: Batch, outcome: Outcome, as_served: Floats = _NONE) -> None:
        """Decide rows by the scores from before they were learned, in their order.

        Begins again where metrics do: a learner that started again had other scores.

        as_served  (n,) 1 or 0: whether rows with late labels alerted when they were served; NaN for
                   others, and if that is not known
        """
        if outcome.relearned:
            self._start()
        served = _NONE if batch.served is None else batch.served
        marks = np.full(len(batch) if self._marks else 0, UNMARKED, np.uint8)
        a.count_decisions(
            self._kinds(batch, outcome, as_served), batch.labels, outcome.scores, served, as_served,
            batch.indptr, batch.indices, batch.values, self._time,
            self.rate or 0.0, self.cut, self._ring, self._alerted, self._ordered, self._trend,
            self._times, self._recent, self._counts, marks,
        )  # fmt: skip
        if len(marks):
            outcome.mark(ALERT_RATE, marks)

    def _kinds(self, batch: Batch, outcome: Outcome, as_served: Floats) -> Bytes:
        """What each row does (n,). Rows of weight 0, and rejected ones, do nothing."""
        learned = ~outcome.rejected & (batch.weights > 0.0)
        kinds = np.where(learned, a.LEARNED, a.SKIPPED).astype(np.uint8)
        if batch.served is not None:
            has_served = np.isfinite(batch.served)
            if self._enters_when_served:
                kinds[learned & has_served] = a.LATE
            if outcome.observed is not None and len(as_served):
                kinds[outcome.observed & has_served & ~np.isnan(as_served)] = a.SERVED
        if outcome.relearned:
            kinds[: outcome.relearned] = a.SKIPPED
        return kinds

    @property
    def threshold(self) -> float:
        """Scores above it alert; infinite if no row alerts, or every row."""
        moved, alerts = self._counts[: a.WAITING].tolist()
        rate, trend = self.rate or 0.0, float(self._trend[0])
        return a.threshold_of(self._ordered, moved, alerts, rate, trend)

    # -- figures ---------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Fields `costs` and `alerts` of the metrics."""
        counts = dict(zip(_NAMES, self._counts[a.ROWS :].tolist(), strict=True))
        recent = _counts_of(self._recent[: min(counts["rows"], a.RECENT)])
        fields: dict[str, Any] = {}
        if self.costs is not None:
            fields["costs"] = {"since_start": self._costs(counts), "rolling": self._costs(recent)}
        if self.rate is not None:
            moved, alerts = self._counts[: a.WAITING].tolist()
            stored = min(moved, a.RING)
            recent_alerts = int(np.count_nonzero(self._alerted[:stored]))
            rows = max(moved - a.WARM_UP, 0)
            fields["alerts"] = {
                "target_rate": self.rate,
                "threshold": finite(self.threshold),
                "alerts_a_day": self._alerts_a_day(alerts),
                "since_start": _alerts(rows, alerts, counts),
                "rolling": _alerts(min(rows, stored), recent_alerts, recent),
            }
        return fields

    def _costs(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Costs a row of the decisions, of the better constant one, and of the probable label."""
        rows, positives = counts["rows"], counts["positives"]
        assert self.costs is not None
        wrong, missed = self.costs["false_positive"], self.costs["false_negative"]

        def cost(false_positives: int, false_negatives: int) -> float | None:
            total = wrong * false_positives + missed * false_negatives
            return total / rows if rows else None

        constant = [cost(rows - positives, 0), cost(0, positives)]
        probable = counts["probable_false_positives"], counts["probable_false_negatives"]
        return {
            "rows": rows,
            "cost": cost(counts["false_positives"], counts["false_negatives"]),
            "best_constant": min(one for one in constant if one is not None) if rows else None,
            "most_probable": cost(*probable),
        }

    def _alerts_a_day(self, alerts: int) -> float | None:
        """By the times of the last alerts; None without times."""
        times = self._times[: min(alerts, a.LATEST)]
        times = times[times != a.NO_TIME]
        if len(times) < 2 or times.max() == times.min():
            return None
        return float((len(times) - 1) * _DAY_S / (times.max() - times.min()))

    # -- the state -------------------------------------------------------------------------------

    def state(self) -> State:
        """The state, as copies."""
        moved, alerts, _, rows = self._counts[: a.ROWS + 1].tolist()
        stored = min(moved, a.RING)
        return {
            "counts": self._counts.copy(),
            "trend": self._trend.copy(),
            "scores": self._ring[:stored].copy(),
            "alerted": self._alerted[:stored].copy(),
            "times": self._times[: min(alerts, a.LATEST)].copy(),
            "recent": self._recent[: min(rows, a.RECENT)].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state; without arrays no row was decided.

        Raises CorruptState, and the object is unusable then.
        """
        self._start()
        if not state:
            return
        check_arrays(state, {"counts": (a.COUNTS,), "trend": (1,)})
        self._counts[:], self._trend[:] = state["counts"], state["trend"]
        moved, alerts, _, rows = self._counts[: a.ROWS + 1].tolist()
        if self._counts.min() < 0 or alerts > moved or (self._counts[a.ROWS :] > rows).any():
            raise CorruptState("the counts of decisions do not fit each other")
        stored = min(moved, a.RING)
        arrays: State = {
            "scores": self._ring[:stored],
            "alerted": self._alerted[:stored],
            "times": self._times[: min(alerts, a.LATEST)],
            "recent": self._recent[: min(rows, a.RECENT)],
        }
        check_arrays(state, {name: array.shape for name, array in arrays.items()})
        for name, array in arrays.items():
            array[...] = state[name]
        self._ordered[:stored] = np.sort(self._ring[:stored])


def time_feature(spec: Mapping[str, Any]) -> int:
    """Index of the entry of a row that is its time in seconds; -1 if rows have none.

    It is that of the first group of a history with a time, or of the first age.
    """
    inputs, ages = inputs_of(spec), age_features(spec)
    if inputs.times:
        return inputs.index_of_time(inputs.times[0])
    return int(hash_names(ages[:1], spec["features"]["bits"])[0]) if ages else -1


def finite(number: float) -> float | None:
    """The number as answers have it."""
    return number if math.isfinite(number) else None


def _cut(false_positive: float, false_negative: float) -> float:
    """The log odds from which on the positive label costs no more."""
    if not false_positive or not false_negative:
        return -math.inf if false_negative else math.inf
    # Not of the quotient, which can be 0.
    return math.log(false_positive) - math.log(false_negative)


def _counts_of(recent: Bytes) -> dict[str, int]:
    """Counts of labelled rows by their bits."""
    positive, called, decided, probable = (
        recent & bit != 0 for bit in (a.POSITIVE, a.ALERTED, a.DECIDED, a.PROBABLE)
    )
    columns = (
        np.ones(len(recent), np.bool_),
        positive,
        called & positive,
        called,
        decided & ~positive,
        positive & ~decided,
        probable & ~positive,
        positive & ~probable,
    )
    return {name: int(np.count_nonzero(one)) for name, one in zip(_NAMES, columns, strict=True)}


def _alerts(rows: int, alerts: int, counts: Mapping[str, int]) -> dict[str, Any]:
    """Rate of rows that moved the threshold; precision and recall of labelled ones."""
    caught, called, positives = (counts[name] for name in ("caught", "called", "positives"))
    return {
        "rows": rows,
        "alerts": alerts,
        "rate": alerts / rows if rows else None,
        "labelled": counts["rows"],
        "precision": caught / called if called else None,
        "recall": caught / positives if positives else None,
    }
