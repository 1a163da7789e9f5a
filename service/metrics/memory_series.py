"""What the workers hold, how far they are behind, and what waits in the store."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.jobs.reference_optimum import References
from dualstream.service.metrics.model_filter import OTHER, ModelFilter
from dualstream.service.metrics.multiprocess import Sharing, Told
from dualstream.service.models.registry import ModelRegistry

TELL_S = 1.0

_REFERRED = {
    "reference_lower_bound": "No weights have a smaller objective on the window's rows.",
    "reference_gap": "Objective of the served weights there, less the lower bound.",
    "regret": "Losses of the window's rows as served, less those at its optimum.",
    "regret_rows": "Rows that the regret is summed over.",
    "reference_age_seconds": "Time since the reference shown was computed.",
}
"""Of the reference that was asked for last, in the order of `Told.references`."""


class MemorySeries(Collector):
    """Of all workers of the port: sums, and of what can go wrong the worst."""

    def __init__(self, catalog: ModelRegistry, shown: ModelFilter, sharing: Sharing | None) -> None:
        self._catalog, self._shown, self._sharing = catalog, shown, sharing

    async def run(self) -> None:
        """Tell the other workers of this one, each second, until cancelled."""
        while self._sharing is not None:
            self._sharing.tell(self._own())
            await asyncio.sleep(TELL_S)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        told = [self._own(), *(self._sharing.others() if self._sharing else ())]
        models = GaugeMetricFamily(
            "dualstream_models",
            "Models: those of the store, those held in memory by this worker, and those that have "
            "series of their own.",
            labels=["state"],
        )
        models.add_metric(["stored"], self._shown.stored)
        models.add_metric(["held"], len(self._catalog))
        models.add_metric(["shown"], len(self._shown.ids))
        yield models
        yield GaugeMetricFamily("dualstream_workers", "Workers that serve the port.", len(told))
        yield GaugeMetricFamily(
            "dualstream_store_available",
            "1 while the store answers every worker and takes appends, else 0.",
            int(all(one.is_store_available for one in told)),
        )
        text = "Memory that models take, as measured, in all workers."
        taken = sum(one.held_bytes for one in told)
        yield GaugeMetricFamily("dualstream_models_bytes", text, taken)
        text = "What they may take: DUALSTREAM_MODELS_BYTES of each worker."
        budget = sum(one.budget_bytes for one in told)
        yield GaugeMetricFamily("dualstream_models_budget_bytes", text, budget)
        yield from self._lag(told)
        yield from self._references(told)

    def _own(self) -> Told:
        lag, references = {}, {}
        now = time.monotonic()
        for model in self._catalog:
            behind = model.lag.at(model.replica.seq)
            if behind.records:
                lag[model.record.id] = (behind.seconds, behind.records)
            job = model.find_job(References)
            found = None if job is None else job.found
            is_shown = model.record.id in self._shown.ids
            if found is not None and is_shown and model.replica.leads_on_from(found.place):
                told = (found.lower, found.gap, found.regret, found.regret_rows, now - found.at)
                references[model.record.id] = told
        return Told(
            len(self._catalog),
            self._catalog.held_bytes,
            self._catalog.settings.models_bytes,
            self._catalog.contact.trouble is None,
            lag,
            references,
        )

    def _lag(self, told: "list[Told]") -> Iterator[Metric]:
        """Of the worker that is furthest behind, by model."""
        held = [model.record.id for model in self._catalog if not model.replica.is_forked]
        worst = {self._name(id_): (0.0, 0) for id_ in held}
        for one in told:
            for id_, (seconds, records) in one.lag.items():
                before = worst.get(self._name(id_), (0.0, 0))
                worst[self._name(id_)] = max(before[0], seconds), max(before[1], records)
        seconds_of = GaugeMetricFamily(
            "dualstream_replica_lag_seconds",
            "Time since the oldest head that is known and not applied yet was heard of, in the "
            "worker that is furthest behind.",
            labels=["model"],
        )
        records_of = GaugeMetricFamily(
            "dualstream_replica_lag_records",
            "Journalled records that are known and not applied yet, in that worker.",
            labels=["model"],
        )
        for name, (seconds, records) in worst.items():
            seconds_of.add_metric([name], seconds)
            records_of.add_metric([name], records)
        yield seconds_of
        yield records_of

    def _references(self, told: "list[Told]") -> Iterator[Metric]:
        """The newest that was asked for of any worker."""
        newest: dict[str, tuple[float, ...]] = {}
        for one in told:
            for id_, found in one.references.items():
                if id_ not in newest or found[-1] < newest[id_][-1]:
                    newest[id_] = found
        for place, (name, text) in enumerate(_REFERRED.items()):
            family = GaugeMetricFamily(f"dualstream_{name}", text, labels=["model"])
            for id_, values in newest.items():
                family.add_metric([id_], values[place])
            yield family

    def _name(self, model: str) -> str:
        return model if model in self._shown.ids else OTHER


class Waiting(Collector):
    """Rows or messages that wait in the store, by model, as they were counted last."""

    def __init__(
        self, name: str, text: str, shown: ModelFilter, read: Callable[[], Mapping[str, int]]
    ) -> None:
        self._name, self._text, self._shown, self._read = name, text, shown, read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text, labels=["model"])
        others = 0
        for model, count in self._read().items():
            if model in self._shown.ids:
                family.add_metric([model], count)
            else:
                others += count
        if others:
            family.add_metric([OTHER], others)
        yield family
