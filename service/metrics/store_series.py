"""Prometheus series of the journal and snapshots of a model: size and age in the store."""

import asyncio
import logging
import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.journal.protocol import JournalError, ModelChanged, Revision, Usage
from dualstream.service.metrics.model_filter import ModelFilter
from dualstream.service.models.registry import ModelRegistry

log = logging.getLogger("dualstream.metrics")

LOOK_S = 5.0
# Largest share of the time that measuring takes.
MEASURING_SHARE = 0.01

_FAMILIES = {
    "journal_bytes": "Bytes of the model's journal in the store, as last measured.",
    "snapshots_bytes": "Bytes of its snapshots in the store, as last measured.",
    "journal_age_seconds": "Time since the oldest kept record was appended; 0 without any.",
    "unsaved_age_seconds": "Time since the oldest record that is in no snapshot was appended; 0 "
    "without any.",
}


class StoreSeries(Collector):
    """Measures one model after another in the background: a scrape does not query the store."""

    def __init__(self, model_registry: ModelRegistry, shown: ModelFilter) -> None:
        self._model_registry, self._shown = model_registry, shown
        self._usages: dict[str, Usage] = {}
        # Revision of the store at each measurement.
        self._revisions: dict[str, Revision | None] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(LOOK_S)

    async def measure(self) -> None:
        """Measure each shown model in memory, unless nothing was committed since."""
        models = [model for model in self._model_registry if model.record.id in self._shown.ids]
        model_ids = {model.record.id for model in models}
        self._usages = {id_: usage for id_, usage in self._usages.items() if id_ in model_ids}
        self._revisions = {id_: at for id_, at in self._revisions.items() if id_ in model_ids}
        journal = self._model_registry.journal
        try:
            revision = await journal.revision()
        except JournalError:
            return
        for model in models:
            began = time.monotonic()
            record = model.record
            is_measured = record.id in self._usages and self._revisions.get(record.id) == revision
            if is_measured and revision is not None:
                continue
            try:
                self._usages[record.id] = await journal.usage(record.id, record.incarnation)
                self._revisions[record.id] = revision
            except ModelChanged:
                self._usages.pop(record.id, None)
            except JournalError:  # the follower reports it; old values stay
                return
            except Exception:
                log.exception("model %r: cannot measure its size in the store", record.id)
            await asyncio.sleep((time.monotonic() - began) / MEASURING_SHARE)

    def collect(self) -> Iterator[Metric]:
        now_ms = time.time() * 1000
        families = {
            name: GaugeMetricFamily(f"dualstream_{name}", text, labels=["model"])
            for name, text in _FAMILIES.items()
        }
        for id_, usage in self._usages.items():
            ages = [
                0.0 if ms is None else max(0.0, now_ms - ms) / 1000
                for ms in (usage.oldest_ms, usage.unsaved_ms)
            ]
            values = (usage.log_bytes, usage.snapshots_bytes, *ages)
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric([id_], value)
        yield from families.values()
