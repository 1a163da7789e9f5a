"""Prometheus series of portfolio members."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.models.model import Model
from dualstream.solvers import MemberView, member_learner

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
        """Add a model's members. The caller holds the replica's lock."""
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

    def describe(self) -> Iterable[Metric]:
        return []

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

    def _fill(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        field: str,
        text: str,
    ) -> Metric:
        family = kind(f"dualstream_member_{name}", text, labels=["model", "member"])
        for model, view in self._views:
            value = getattr(view, field)
            if value is not None:
                family.add_metric([model, view.name], value)
        return family
