"""What the models shown take in the store, and how old what is there is."""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.journal.protocol import JournalError, ModelChanged, Revision
from dualstream.service.journal.usage import Usage
from dualstream.service.metrics.model_filter import ModelFilter
from dualstream.service.models.registry import ModelRegistry

log = logging.getLogger("dualstream.telemetry")

LOOK_S = 5.0
# Of the time, no more than this share goes into measuring.
MEASURING_SHARE = 0.01

_FAMILIES = {
    "journal_bytes": "What the model's journal takes in the store, as measured last.",
    "snapshots_bytes": "What its snapshots take there.",
    "journal_age_seconds": "Time since the oldest kept record was appended; 0 without any.",
    "unsaved_age_seconds": "Time since the oldest record that no snapshot holds was appended; 0 "
    "without any.",
}


class StoreSeries(Collector):
    """Measures one model after the other, in the background: a scrape asks the store nothing."""

    def __init__(self, catalog: ModelRegistry, shown: ModelFilter) -> None:
        self._catalog, self._shown = catalog, shown
        self._found: dict[str, Usage] = {}
        # Of the store, as each of them was measured.
        self._revisions: dict[str, Revision | None] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(LOOK_S)

    async def measure(self) -> None:
        """Measure once each model that is shown and held, unless nothing was committed since."""
        models = [model for model in self._catalog if model.record.id in self._shown.ids]
        held = {model.record.id for model in models}
        self._found = {id_: found for id_, found in self._found.items() if id_ in held}
        self._revisions = {id_: at for id_, at in self._revisions.items() if id_ in held}
        journal = self._catalog.journal
        try:
            revision = await journal.revision()
        except JournalError:
            return
        for model in models:
            began = time.monotonic()
            record = model.record
            is_known = record.id in self._found and self._revisions.get(record.id) == revision
            if is_known and revision is not None:
                continue
            try:
                self._found[record.id] = await journal.usage(record.id, record.incarnation)
                self._revisions[record.id] = revision
            except ModelChanged:
                self._found.pop(record.id, None)
            except JournalError:  # the store is away, which others say; what was known stays
                return
            except Exception:
                log.exception("what model %r takes in the store cannot be measured", record.id)
            await asyncio.sleep((time.monotonic() - began) / MEASURING_SHARE)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        now_ms = time.time() * 1000
        families = {
            name: GaugeMetricFamily(f"dualstream_{name}", text, labels=["model"])
            for name, text in _FAMILIES.items()
        }
        for id_, found in self._found.items():
            ages = [
                0.0 if ms is None else max(0.0, now_ms - ms) / 1000
                for ms in (found.oldest_ms, found.unsaved_ms)
            ]
            told = (found.log_bytes, found.snapshots_bytes, *ages)
            for family, value in zip(families.values(), told, strict=True):
                family.add_metric([id_], value)
        yield from families.values()
