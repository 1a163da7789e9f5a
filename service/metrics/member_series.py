"""What is told of the members of models that have any."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.models.model import Model
from dualstream.solvers import MemberView, member_learner

# Members shown of one model, and of all models together: a scrape stays small.
MEMBERS_PER_MODEL = 65
MEMBERS_IN_ALL = 1000

_GAUGES = (
    ("weight_ratio", "weight", "Share of a member in what is served."),
    ("loss", "loss", "Mean progressive loss of a calibrated member since start."),
    ("error_ratio", "error_rate", "Mistakes of a member per row since start."),
)


class Members(Collector):
    """Shows the members that it was given last: reading them takes the turn of their replica."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Show none, until some are read again."""
        self._views: list[tuple[str, MemberView]] = []
        self._gaps: list[tuple[str, str, float]] = []
        self._left_out = 0

    def read(self, model: Model) -> None:
        """Show a model's members, too; to be called while its replica is still."""
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
        text = "Times that a member went non-finite and began anew."
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
            f"Members that the families of members leave out: they show {MEMBERS_PER_MODEL} "
            f"of a model and {MEMBERS_IN_ALL} in all.",
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
