"""Every Prometheus family. What is told of a model comes from its replicated state."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.journal.protocol import JournalError, JournalUnavailable
from solvers import MemberView, member_learner

if TYPE_CHECKING:
    from service.catalog import Catalog
    from service.model import Model

# The certificate shown is computed anew when the one at hand is older.
CERTIFICATE_AGE_S = 15.0
# Members shown of one model, and of all models together: a scrape stays small.
MEMBERS_PER_MODEL = 65
MEMBERS_IN_ALL = 1000
# Models shown, those used last: the others' counts come back with them.
MODELS_SHOWN = 500

_REQUEST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LOAD_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0)
_DELAY_S = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0)
_APPEND_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_GROUP_ROWS = (1, 2, 5, 10, 20, 50, 100, 500, 1000, 4096, 100_000)


_COUNTED = {
    "refused_rows": "Rows refused by shape, before the journal, by this process.",
    "forks": "Replicas thrown away because the journal did not go on from them.",
    "lost_records": "Records that were applied by this process and that the store has lost since.",
    "refits": "Refits computed by this process that entered their model.",
    "refits_unused": "Refits begun by this process that did not enter their model.",
    "input_taken": "Messages of the store's input that this process journalled or found learned.",
    "input_dead": "Messages of the store's input that this process put among the dead ones.",
}
"""What a process counts by model."""


class Telemetry:
    """The families of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "dualstream_request_seconds",
            "Time to answer a request.",
            ["route", "status"],
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self._appends = Histogram(
            "dualstream_append_seconds",
            "Time of one append to the journal, repetitions included.",
            buckets=_APPEND_S,
            registry=self.registry,
        )
        self._groups = Histogram(
            "dualstream_group_rows",
            "Rows that one append carried.",
            buckets=_GROUP_ROWS,
            registry=self.registry,
        )
        self._loads = Histogram(
            "dualstream_model_load_seconds",
            "Time to load a model that was not in memory.",
            buckets=_LOAD_S,
            registry=self.registry,
        )
        self._evictions = Counter(
            "dualstream_model_evictions",
            "Models that left memory to make room.",
            registry=self.registry,
        )
        self._label_delays = Histogram(
            "dualstream_label_delay_seconds",
            "Time from a prediction that remembered its row to the label, of labels learned here.",
            buckets=_DELAY_S,
            registry=self.registry,
        )
        self._delays_of: dict[str, tuple[int, float]] = {}
        self._expired = Counter(
            "dualstream_remembered_expired",
            "Rows that waited for their labels too long, found by this process.",
            registry=self.registry,
        )
        self._default_labels = Counter(
            "dualstream_default_labels",
            "Default labels that this process journalled.",
            registry=self.registry,
        )
        self._waiting = _Waiting()
        self.registry.register(self._waiting)
        # Of all models since the process started: what is shown again goes on where it was.
        self._counts: dict[str, dict[str, int]] = {family: {} for family in _COUNTED}
        self.pending: Mapping[str, int] = {}
        """Messages that wait in the store's inputs, by model, as they were counted last."""
        self._by_request: dict[tuple[str, int], Histogram] = {}
        self._members = _Members()
        self.registry.register(self._members)

    def watch(self, catalog: "Catalog") -> None:
        """Tell of the catalog's models from now on."""
        self._memory = _Memory(catalog)
        self.registry.register(_Models(catalog, self._counts))
        if catalog.settings.redis_input:
            self.registry.register(_Inputs(self))
        self.registry.register(self._memory)

    def saw_request(self, route: str, status: int, seconds: float) -> None:
        child = self._by_request.get((route, status))
        if child is None:
            child = self._requests.labels(route, str(status))
            self._by_request[route, status] = child
        child.observe(seconds)

    def saw_group(self, rows: int, seconds: float) -> None:
        self._groups.observe(rows)
        self._appends.observe(seconds)

    def saw_fork(self, model: str) -> None:
        self._count("forks", model, 1)

    def saw_load(self, seconds: float) -> None:
        self._loads.observe(seconds)

    def saw_label(self, model: str, delay_s: float) -> None:
        self._label_delays.observe(delay_s)
        labels, seconds = self.label_delays(model)
        self._delays_of[model] = labels + 1, seconds + delay_s

    def label_delays(self, model: str) -> tuple[int, float]:
        """Labels that this process learned for rows that waited, and how long these did in all."""
        return self._delays_of.get(model, (0, 0.0))

    def saw_expired(self, rows: int) -> None:
        self._expired.inc(rows)

    def saw_default_labels(self, rows: int) -> None:
        self._default_labels.inc(rows)

    def saw_waiting(self, rows: Mapping[str, int]) -> None:
        """How many rows wait, of each model that remembers any."""
        self._waiting.rows = rows

    def saw_eviction(self) -> None:
        self._evictions.inc()

    def saw_delete(self, model: str) -> None:
        """Its counts begin anew with the next model of this id."""
        for counts in self._counts.values():
            counts.pop(model, None)

    def saw_loss(self, model: str, records: int) -> None:
        self._count("lost_records", model, records)

    def saw_input(self, model: str, taken: int, dead: int) -> None:
        self._count("input_taken", model, taken)
        self._count("input_dead", model, dead)

    def saw_refit(self, model: str, has_entered: bool) -> None:
        self._count("refits" if has_entered else "refits_unused", model, 1)

    def saw_refused(self, model: str, rows: int) -> None:
        self._count("refused_rows", model, rows)

    def _count(self, family: str, model: str, by: int) -> None:
        counts = self._counts[family]
        counts[model] = counts.get(model, 0) + by

    async def exposition(self, catalog: "Catalog") -> bytes:
        """The text of /metrics, with certificates at most CERTIFICATE_AGE_S old."""
        views: list[tuple[str, MemberView]] = []
        gaps: list[tuple[str, str, float]] = []
        left_out = 0
        with suppress(JournalError):  # what was known stays
            self._memory.stored = await catalog.journal.count()
        for model in _shown(catalog):
            try:
                await model.replica.certify(CERTIFICATE_AGE_S)
                async with model.replica.serving():
                    learner = member_learner(model.replica.learner)
                    members = [] if learner is None else learner.members()
            except JournalUnavailable:  # a fork
                continue
            room = min(MEMBERS_PER_MODEL, MEMBERS_IN_ALL - len(views))
            views += [(model.record.id, view) for view in members[:room]]
            told = model.replica.member_certificates
            gaps += [
                (model.record.id, view.name, told[view.name].relative_gap)
                for view in members[:room]
                if view.name in told
            ]
            left_out += max(0, len(members) - room)
        self._members.show(views, gaps, left_out)
        return generate_latest(self.registry)


class _Inputs(Collector):
    """Tells what waits in the store's inputs."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pending = self._telemetry.pending
        family = GaugeMetricFamily(
            "dualstream_input_pending",
            f"Messages that wait in a model's input; the {MODELS_SHOWN} longest.",
            labels=["model"],
        )
        for model in sorted(pending, key=lambda id_: (-pending[id_], id_))[:MODELS_SHOWN]:
            family.add_metric([model], pending[model])
        yield family


def _shown(catalog: "Catalog") -> "list[Model]":
    """The models used last; the rest of those in memory, and the stored ones, are left out."""
    return list(catalog)[-MODELS_SHOWN:]


class _Waiting(Collector):
    """How many rows wait for their labels: of the models with the most of them, and of all."""

    def __init__(self) -> None:
        self.rows: Mapping[str, int] = {}

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        text = "Rows that wait for their labels, as last looked at."
        family = GaugeMetricFamily("dualstream_remembered_rows", text, labels=["model"])
        most = sorted(self.rows.items(), key=lambda told: (-told[1], told[0]))
        for model, rows in most[:MODELS_SHOWN]:
            family.add_metric([model], rows)
        yield family


class _Memory(Collector):
    """How many models there are, and what those in memory take."""

    def __init__(self, catalog: "Catalog") -> None:
        self._catalog = catalog
        self.stored = 0

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        models = GaugeMetricFamily(
            "dualstream_models",
            "Models: those of the store, those of them held in this process's memory, and those of "
            "these that have families of their own here.",
            labels=["state"],
        )
        models.add_metric(["stored"], self.stored)
        models.add_metric(["held"], len(self._catalog))
        models.add_metric(["shown"], min(MODELS_SHOWN, len(self._catalog)))
        yield models
        yield GaugeMetricFamily(
            "dualstream_store_available",
            "1 while the store answers and takes appends, else 0.",
            int(self._catalog.contact.trouble is None),
        )
        text = "Memory that the models held take, as measured."
        yield GaugeMetricFamily("dualstream_models_bytes", text, self._catalog.held_bytes)
        text = "What they may take: DUALSTREAM_MODELS_BYTES."
        budget = self._catalog.settings.models_bytes
        yield GaugeMetricFamily("dualstream_models_budget_bytes", text, budget)


class _Models(Collector):
    """Reads the state of the models shown, at each scrape, and what the process counted of them.

    counts    family -> model -> count
    """

    def __init__(self, catalog: "Catalog", counts: Mapping[str, Mapping[str, int]]) -> None:
        self._catalog, self._counts = catalog, counts

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        models = _shown(self._catalog)
        for family, text in _COUNTED.items():
            yield _counted(family, text, models, self._counts[family])
        models = [model for model in models if not model.replica.is_forked]
        yield _samples(models)
        yield _refused_controls(models)
        yield _gauge(
            "replica_lag_seconds",
            "Time since the oldest head that is known and not applied yet was heard of.",
            models,
            lambda m: m.lag.at(m.replica.seq).seconds,
        )
        yield _gauge(
            "replica_lag_records",
            "Journalled records that are known and not applied yet.",
            models,
            lambda m: m.lag.at(m.replica.seq).records,
        )
        yield _gauge("seq", "Place in the journal.", models, lambda m: m.replica.seq)
        yield _gauge(
            "nonzeros", "Non-zero weights served.", models, lambda m: m.replica.learner.nonzeros
        )
        yield _progress(models, "progressive_loss", "loss", "Mean progressive loss since start.")
        yield _progress(
            models, "progressive_error_ratio", "error_rate", "Mistakes per learned row since start."
        )
        yield _baselines(models)
        yield _drift(models)
        yield from _windows(models)
        yield from _certificates(models)
        yield from _references(models)


def _gauge(
    name: str, text: str, models: "list[Model]", read: "Callable[[Model], float | None]"
) -> Metric:
    family = GaugeMetricFamily(f"dualstream_{name}", text, labels=["model"])
    for model in models:
        value = read(model)
        if value is not None:
            family.add_metric([model.record.id], value)
    return family


def _counted(name: str, text: str, models: "list[Model]", counts: Mapping[str, int]) -> Metric:
    """What was counted of these models, where anything was."""
    family = CounterMetricFamily(f"dualstream_{name}", text, labels=["model"])
    for model in models:
        if model.record.id in counts:
            family.add_metric([model.record.id], counts[model.record.id])
    return family


def _samples(models: "list[Model]") -> Metric:
    family = CounterMetricFamily(
        "dualstream_samples",
        "Journalled rows, by what became of them.",
        labels=["model", "outcome"],
    )
    for model in models:
        family.add_metric([model.record.id, "learned"], model.replica.learner.samples)
        family.add_metric([model.record.id, "rejected"], model.replica.rejected)
    return family


def _refused_controls(models: "list[Model]") -> Metric:
    family = CounterMetricFamily(
        "dualstream_refused_controls",
        "Journalled controls that could not be done where they stood.",
        labels=["model"],
    )
    for model in models:
        family.add_metric([model.record.id], model.replica.refused_controls)
    return family


def _progress(models: "list[Model]", name: str, field: str, text: str) -> Metric:
    return _gauge(
        name, text, models, lambda model: model.replica.progress.summary()["since_start"].get(field)
    )


def _baselines(models: "list[Model]") -> Metric:
    family = GaugeMetricFamily(
        "dualstream_baseline_error_ratio",
        "Mistakes per learned row of a baseline on the same rows since start.",
        labels=["model", "baseline"],
    )
    for model in models:
        told = model.replica.progress.summary()["since_start"]["baselines"]
        for baseline, values in told.items():
            if values.get("error_rate") is not None:
                family.add_metric([model.record.id, baseline], values["error_rate"])
    return family


def _drift(models: "list[Model]") -> Metric:
    family = CounterMetricFamily(
        "dualstream_drift",
        "Changes of the progressive loss that a detector saw, by whether it rose or fell.",
        labels=["model", "detector", "direction"],
    )
    for model in models:
        for detector, counts in model.replica.progress.drift.counts().items():
            for direction, count in counts.items():
                family.add_metric([model.record.id, detector, direction], count)
    return family


def _windows(models: "list[Model]") -> Iterator[Metric]:
    """Of models that compare windows."""
    loss = GaugeMetricFamily(
        "dualstream_window_progressive_loss",
        "Mean progressive loss since start of the same model under each window.",
        labels=["model", "window"],
    )
    error = GaugeMetricFamily(
        "dualstream_window_progressive_error_ratio",
        "Mistakes per learned row since start of the same model under each window.",
        labels=["model", "window"],
    )
    for model in models:
        for told in model.replica.progress.summary().get("windows", []):
            labels = [model.record.id, told["window"]]
            for family, field in ((loss, "loss"), (error, "error_rate")):
                value = told["since_start"].get(field)
                if value is not None:
                    family.add_metric(labels, value)
    yield loss
    yield error


_CERTIFIED = (
    ("primal", "primal", "Regularised loss of the served weights on the window."),
    ("dual", "dual", "Lower bound of the regularised loss of any weights."),
    ("gap", "gap", "Duality gap: primal - dual."),
    ("gap_ratio", "relative_gap", "Duality gap over the larger of |primal| and |dual|."),
)


def _certificates(models: "list[Model]") -> Iterator[Metric]:
    certified = [model for model in models if model.replica.certificate is not None]
    for name, field, text in _CERTIFIED:
        read = attrgetter(f"replica.certificate.{field}")
        yield _gauge(name, text, certified, read)
    now = time.monotonic()
    yield _gauge(
        "gap_age_seconds",
        "Time since the certificate shown was computed.",
        certified,
        lambda model: now - model.replica.certified_at,
    )


_REFERRED = (
    ("reference_lower_bound", "lower", "No weights have a smaller objective on the window's rows."),
    ("reference_gap", "gap", "Objective of the served weights there, less the lower bound."),
    ("regret", "regret", "Losses of the window's rows as served, less those at its optimum."),
    ("regret_rows", "regret_rows", "Rows that the regret is summed over."),
)


def _references(models: "list[Model]") -> Iterator[Metric]:
    """Of the references that were asked for last."""
    referred = [model for model in models if model.references.found is not None]
    for name, field, text in _REFERRED:
        yield _gauge(name, text, referred, attrgetter(f"references.found.{field}"))
    now = time.monotonic()
    yield _gauge(
        "reference_age_seconds",
        "Time since the reference shown was computed.",
        referred,
        lambda model: now - model.references.found_at,
    )


class _Members(Collector):
    """Shows the members that it was given last: reading them takes the turn of their replica."""

    def __init__(self) -> None:
        self._views: Sequence[tuple[str, MemberView]] = ()
        self._gaps: Sequence[tuple[str, str, float]] = ()
        self._left_out = 0

    def show(
        self,
        views: Sequence[tuple[str, MemberView]],
        gaps: Sequence[tuple[str, str, float]],
        left_out: int,
    ) -> None:
        """Show these members of the models of these ids; `left_out` are not among them."""
        self._views, self._gaps, self._left_out = views, gaps, left_out

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for name, field, text in _OF_MEMBERS:
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


_OF_MEMBERS = (
    ("weight_ratio", "weight", "Share of a member in what is served."),
    ("loss", "loss", "Mean progressive loss of a calibrated member since start."),
    ("error_ratio", "error_rate", "Mistakes of a member per row since start."),
)
