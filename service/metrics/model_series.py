"""Prometheus series of the state of models and of their members, equal in every worker."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.metrics.families import Family, FamilyKind, ModelFamilies
from dualstream.service.models.model import Model
from dualstream.solvers.protocols import sparse_support
from dualstream.solvers.protocols.member_learner import MemberView, member_learner

STATE_AGE_S = 15.0
"""Age at which certificates, and the weights of a large model, are computed again."""

_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily

FAMILIES = {
    "samples": Family(_COUNTER, "Journalled rows, by outcome: learned or rejected.", ("outcome",)),
    "refused_controls": Family(_COUNTER, "Journalled controls that could not be applied."),
    "seq": Family(_GAUGE, "Last applied record of the journal."),
    "last_record_timestamp_seconds": Family(
        _GAUGE, "When the last record was applied, in seconds since 1970."
    ),
    "nonzeros": Family(_GAUGE, "Non-zero weights served."),
    "progressive_loss": Family(_GAUGE, "Mean progressive loss since start."),
    "progressive_error_ratio": Family(_GAUGE, "Mistakes per learned row since start."),
    "baseline_error_ratio": Family(
        _GAUGE,
        "Mistakes per learned row of a baseline on the same rows since start.",
        ("baseline",),
    ),
    "progressive_auc": Family(
        _GAUGE, "Area under the ROC curve of a binary model since start, from binned scores."
    ),
    "progressive_average_precision": Family(
        _GAUGE, "Average precision of a binary model since start, from binned scores."
    ),
    "rolling_loss": Family(_GAUGE, "Mean progressive loss of the last 1,000 learned rows."),
    "rolling_error_ratio": Family(_GAUGE, "Mistakes per row in the last 1,000 learned rows."),
    "rolling_absolute_error": Family(
        _GAUGE, "Mean absolute error of a regression in the last 1,000 learned rows."
    ),
    "rolling_auc": Family(
        _GAUGE, "Area under the ROC curve of a binary model in the last 1,000 learned rows."
    ),
    "rolling_average_precision": Family(
        _GAUGE, "Average precision of a binary model in the last 1,000 learned rows."
    ),
    "rolling_baseline_error_ratio": Family(
        _GAUGE, "Mistakes per row of a baseline in the same 1,000 rows.", ("baseline",)
    ),
    "rolling_baseline_absolute_error": Family(
        _GAUGE, "Mean absolute error of a baseline in the same 1,000 rows.", ("baseline",)
    ),
    "drift": Family(
        _COUNTER,
        "Changes of the progressive loss found by a drift detector, by direction.",
        ("detector", "direction"),
    ),
    "local_phases": Family(
        _COUNTER,
        "Local phases of rda_plus since this process loaded the model, by outcome: accepted, "
        "refused, unsolved.",
        ("outcome",),
    ),
    "optimality_delta": Family(
        _GAUGE, "Distance of rda_plus to the optimality conditions on its retained rows."
    ),
    "primal": Family(_GAUGE, "Regularised loss of the served weights on the window."),
    "dual": Family(_GAUGE, "Lower bound of the regularised loss of any weights."),
    "gap": Family(_GAUGE, "Duality gap: primal - dual."),
    "gap_ratio": Family(_GAUGE, "Duality gap over the larger of |primal| and |dual|."),
    "gap_age_seconds": Family(_GAUGE, "Time since the certificate shown was computed."),
}


class ModelSeries(Collector):
    """Shows the models read last, each at one record; `more` are the families of features."""

    def __init__(self, more: Sequence[ModelFamilies] = ()) -> None:
        self._more = more
        self._families = dict(FAMILIES)
        for one in more:
            self._families |= one.families
        self.forget()

    def forget(self) -> None:
        """Show none until the next `read`."""
        self._series: dict[str, list[tuple[tuple[str, ...], float]]] = {
            name: [] for name in self._families
        }

    def read(self, model: Model) -> None:
        """Add a model. Call it in a view of the replica."""
        replica = model.replica
        self._model = model.record.id
        self._put("samples", replica.learner.samples, "learned")
        self._put("samples", replica.rejected, "rejected")
        self._put("refused_controls", replica.refused_controls)
        self._put("seq", replica.seq)
        self._put("last_record_timestamp_seconds", model.activity.last_at)
        self._put("nonzeros", replica.nonzeros(STATE_AGE_S))
        for one in self._more:
            one.measure(replica, self._put)
        self._progress(replica.progress.summary())
        if (phases := sparse_support.local_phases_of(replica.learner)) is not None:
            for outcome in ("accepted", "refused", "unsolved"):
                self._put("local_phases", getattr(phases, outcome), outcome)
            self._put("optimality_delta", phases.delta)
        certificate = replica.certificate
        if certificate is not None:
            self._put("primal", certificate.primal)
            self._put("dual", certificate.dual)
            self._put("gap", certificate.gap)
            self._put("gap_ratio", certificate.relative_gap)
            self._put("gap_age_seconds", time.monotonic() - replica.certified_at)

    def _progress(self, summary: dict[str, Any]) -> None:
        since_start = summary["since_start"]
        self._put("progressive_loss", since_start.get("loss"))
        self._put("progressive_error_ratio", since_start.get("error_rate"))
        self._put("progressive_auc", since_start.get("auc"))
        self._put("progressive_average_precision", since_start.get("average_precision"))
        for baseline, values in since_start["baselines"].items():
            self._put("baseline_error_ratio", values.get("error_rate"), baseline)
        rolling = summary["rolling"]
        self._put("rolling_loss", rolling.get("loss"))
        self._put("rolling_error_ratio", rolling.get("error_rate"))
        self._put("rolling_absolute_error", rolling.get("mae"))
        self._put("rolling_auc", rolling.get("auc"))
        self._put("rolling_average_precision", rolling.get("average_precision"))
        for baseline, values in rolling["baselines"].items():
            self._put("rolling_baseline_error_ratio", values.get("error_rate"), baseline)
            self._put("rolling_baseline_absolute_error", values.get("mae"), baseline)
        for detector, counts in summary["drift"].items():
            for direction, count in counts.items():
                self._put("drift", count, detector, direction)

    def _put(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._series[name].append(((self._model, *labels), value))

    def collect(self) -> Iterator[Metric]:
        for name, (kind, text, labels) in self._families.items():
            family = kind(f"dualstream_{name}", text, labels=["model", *labels])
            for values, value in self._series[name]:
                family.add_metric(values, value)
            yield family


# Members shown of one model, and of all models together: a scrape stays small.
MEMBERS_PER_MODEL = 65
MEMBERS_IN_ALL = 1000

_GAUGES = (
    ("weight_ratio", "weight", "Share of a member in the served prediction."),
    ("loss", "loss", "Mean progressive loss of a calibrated member since start."),
    ("error_ratio", "error_rate", "Mistakes per row of a member since start."),
)


class MemberSeries(Collector):
    """Shows the members read last: reading them needs the lock of their replica."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Show none until the next `read`."""
        self._views: list[tuple[str, MemberView]] = []
        self._gaps: list[tuple[str, str, float]] = []
        self._left_out = 0

    def read(self, model: Model) -> None:
        """Add a model's members. Call it in a view of the replica."""
        learner = member_learner(model.replica.learner)
        views: Sequence[MemberView] = [] if learner is None else learner.members()
        room = min(MEMBERS_PER_MODEL, MEMBERS_IN_ALL - len(self._views))
        self._left_out += max(0, len(views) - room)
        certified = model.replica.member_certificates
        for view in views[:room]:
            self._views.append((model.record.id, view))
            if view.name in certified:
                gap = certified[view.name].relative_gap
                self._gaps.append((model.record.id, view.name, gap))

    def collect(self) -> Iterator[Metric]:
        for name, field, text in _GAUGES:
            yield self._fill(GaugeMetricFamily, name, field, text)
        text = "Resets of a member that was not finite."
        yield self._fill(CounterMetricFamily, "resets", "resets", text)
        gaps = GaugeMetricFamily(
            "dualstream_member_gap_ratio",
            "Duality gap of a member over the larger of |primal| and |dual|.",
            labels=["model", "member"],
        )
        for model, member, gap in self._gaps:
            gaps.add_metric([model, member], gap)
        yield gaps
        yield GaugeMetricFamily(
            "dualstream_members_left_out",
            f"Members without series, beyond {MEMBERS_PER_MODEL} of a model and {MEMBERS_IN_ALL} "
            "in total.",
            self._left_out,
        )

    def _fill(self, kind: FamilyKind, name: str, field: str, text: str) -> Metric:
        family = kind(f"dualstream_member_{name}", text, labels=["model", "member"])
        for model, view in self._views:
            value = getattr(view, field)
            if value is not None:
                family.add_metric([model, view.name], value)
        return family
