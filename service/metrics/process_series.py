"""Prometheus series of memory, replica lag, reports, and rows that wait in the store."""

import asyncio
import platform
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream import __version__
from dualstream.service.metrics.families import ReportFamilies
from dualstream.service.metrics.model_filter import OTHER, ModelFilter
from dualstream.service.metrics.multiprocess import MetricsDirectory, WorkerReport
from dualstream.service.models.registry import ModelRegistry
from dualstream.solvers import numeric_identity

PUBLISH_S = 1.0


class MemorySeries(Collector):
    """Of all workers on the port: sums of memory, worst lag and store status."""

    def __init__(
        self,
        model_registry: ModelRegistry,
        shown: ModelFilter,
        metrics_dir: MetricsDirectory | None,
        reports: Sequence[ReportFamilies],
    ) -> None:
        self._model_registry, self._shown = model_registry, shown
        self._metrics_dir, self._reports = metrics_dir, reports

    async def run(self) -> None:
        """Publish the report of this worker to the others every second, until cancelled."""
        while self._metrics_dir is not None:
            self._metrics_dir.share_again()
            self._metrics_dir.publish(self._own())
            await asyncio.sleep(PUBLISH_S)

    def collect(self) -> Iterator[Metric]:
        reports = [self._own(), *(self._metrics_dir.others() if self._metrics_dir else ())]
        models = GaugeMetricFamily(
            "dualstream_models",
            "Models in the store (stored), in memory of this worker (held), and with their own "
            "series (shown).",
            labels=["state"],
        )
        models.add_metric(["stored"], self._shown.stored)
        models.add_metric(["held"], len(self._model_registry))
        models.add_metric(["shown"], len(self._shown.ids))
        yield models
        yield GaugeMetricFamily("dualstream_workers", "Workers on the port.", len(reports))
        build = {
            "version": __version__,
            "identity": numeric_identity(),
            "python": platform.python_version(),
        }
        yield InfoMetricFamily("dualstream_build", "Version, numeric identity, Python.", build)
        yield GaugeMetricFamily(
            "dualstream_metrics_shared",
            "1 while counters are summed over all workers, 0 while they are those of one worker.",
            int(self._metrics_dir is None or self._metrics_dir.is_shared),
        )
        yield GaugeMetricFamily(
            "dualstream_store_available",
            "1 while the store answers every worker and accepts appends, else 0.",
            int(all(one.is_store_available for one in reports)),
        )
        text = "Memory of models in all workers, as last measured."
        taken = sum(one.cached_bytes for one in reports)
        yield GaugeMetricFamily("dualstream_models_bytes", text, taken)
        text = "Memory budget of models: the sum of DUALSTREAM_MODELS_BYTES over workers."
        budget = sum(one.budget_bytes for one in reports)
        yield GaugeMetricFamily("dualstream_models_budget_bytes", text, budget)
        yield from self._lag(reports)
        yield from self._newest(reports)

    def _own(self) -> WorkerReport:
        lag = {}
        reports: list[dict[str, tuple[float, ...]]] = [{} for _ in self._reports]
        for model in self._model_registry:
            delay = model.lag.at(model.replica.seq)
            if delay.records:
                lag[model.record.id] = (delay.seconds, delay.records)
            if model.record.id in self._shown.ids:
                for one, values_by_model in zip(self._reports, reports, strict=True):
                    if (values := one.measure(model)) is not None:
                        values_by_model[model.record.id] = values
        return WorkerReport(
            len(self._model_registry),
            self._model_registry.cache.bytes,
            self._model_registry.settings.models_bytes,
            self._model_registry.store_status.trouble is None,
            lag,
            reports,
        )

    def _lag(self, reports: "list[WorkerReport]") -> Iterator[Metric]:
        """Lag by model, of the worker that is furthest behind."""
        model_ids = [
            model.record.id for model in self._model_registry if not model.replica.is_forked
        ]
        worst = {self._name(id_): (0.0, 0) for id_ in model_ids}
        for one in reports:
            for id_, (seconds, records) in one.lag.items():
                before = worst.get(self._name(id_), (0.0, 0))
                worst[self._name(id_)] = max(before[0], seconds), max(before[1], records)
        seconds_of = GaugeMetricFamily(
            "dualstream_replica_lag_seconds",
            "Time since the oldest known record that is not applied yet, in the worker that is "
            "furthest behind.",
            labels=["model"],
        )
        records_of = GaugeMetricFamily(
            "dualstream_replica_lag_records",
            "Known records that are not applied yet, in that worker.",
            labels=["model"],
        )
        for name, (seconds, records) in worst.items():
            seconds_of.add_metric([name], seconds)
            records_of.add_metric([name], records)
        yield seconds_of
        yield records_of

    def _newest(self, reports: "list[WorkerReport]") -> Iterator[Metric]:
        """What features report of each model: the newest values of any worker."""
        for n, (families, _) in enumerate(self._reports):
            newest: dict[str, tuple[float, ...]] = {}
            for one in reports:
                for id_, values in one.reports[n].items():
                    if id_ not in newest or values[-1] < newest[id_][-1]:
                        newest[id_] = values
            for index, (name, text) in enumerate(families.items()):
                family = GaugeMetricFamily(f"dualstream_{name}", text, labels=["model"])
                for id_, values in newest.items():
                    family.add_metric([id_], values[index])
                yield family

    def _name(self, model: str) -> str:
        return model if model in self._shown.ids else OTHER


class Waiting(Collector):
    """Rows that wait in the store for their labels, by model, as last counted."""

    def __init__(self, shown: ModelFilter) -> None:
        self._shown = shown
        self.rows: Mapping[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        text = "Rows that wait for labels or may be revised, as last counted."
        family = GaugeMetricFamily("dualstream_remembered_rows", text, labels=["model"])
        others = 0
        for model, count in self.rows.items():
            if model in self._shown.ids:
                family.add_metric([model], count)
            else:
                others += count
        if others:
            family.add_metric([OTHER], others)
        yield family
