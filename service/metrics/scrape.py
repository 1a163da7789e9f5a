"""The scrape of `/metrics`, and the metric families of a process.

A scrape of 500 models has 12,000 lines and takes a tenth of a second, so it is written in slices
that do not block the event loop.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import Head, JournalError, JournalUnavailable
from dualstream.service.metrics.counters import ProcessCounts
from dualstream.service.metrics.families import ModelFamilies, ReportFamilies
from dualstream.service.metrics.model_filter import Folded, ModelFilter
from dualstream.service.metrics.model_series import STATE_AGE_S, MemberSeries, ModelSeries
from dualstream.service.metrics.multiprocess import MetricsDirectory
from dualstream.service.metrics.process_series import MemorySeries, Waiting
from dualstream.service.metrics.source_series import SourceSeries
from dualstream.service.metrics.store_series import StoreSeries
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.wire.problem_json import Problem

LOADS_PER_SCRAPE = 16
"""Models loaded per scrape. Later scrapes load the others."""
CATCH_UP_S = 1.0
"""How long a scrape waits for lagging replicas."""

SLICE_S = 0.002
SAMPLES = 128
"""Lines written at once: a millisecond of work."""


class EventLoopSlices:
    """Lets other tasks run during long work in the event loop."""

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + SLICE_S

    async def end(self) -> None:
        """Yield to other tasks if the present slice has been long enough."""
        if time.perf_counter() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = time.perf_counter() + SLICE_S


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def text_of(families: Iterable[Metric], slices: EventLoopSlices) -> bytes:
    """The families in the Prometheus text format. Each is collected between two slices."""
    text: list[bytes] = []
    for family in families:
        await slices.end()
        samples = family.samples
        for first in range(0, max(1, len(samples)), SAMPLES):
            family.samples = samples[first : first + SAMPLES]
            piece = generate_latest(_One(family))
            # The first piece has the help and type lines.
            text.append(piece.split(b"\n", 2)[2] if first else piece)
            await slices.end()
    return b"".join(text)


class Telemetry(ProcessCounts):
    """The metric families of one process, in their own CollectorRegistry.

    max_models   models with their own series
    metrics_dir  set if this process is one of several workers on a port
    families     of features
    reports      of features
    """

    def __init__(
        self,
        max_models: int = 500,
        metrics_dir: MetricsDirectory | None = None,
        families: Sequence[ModelFamilies] = (),
        reports: Sequence[ReportFamilies] = (),
    ) -> None:
        if metrics_dir is not None:
            metrics_dir.keep_counts()
        self._shown = ModelFilter(max_models)
        super().__init__(self._shown, outlives=metrics_dir is not None)
        self._metrics_dir, self._reports = metrics_dir, reports
        self._waiting = Waiting(self._shown)
        self._models, self._members = ModelSeries(families), MemberSeries()
        self._sources = SourceSeries()
        self._scraping = asyncio.Lock()
        self.registry = CollectorRegistry()
        counts = self._registry if metrics_dir is None else metrics_dir.counts(self._registry)
        self.registry.register(Folded(counts, self._shown))
        self.registry.register(self._models)
        self.registry.register(self._members)
        self.registry.register(self._sources)
        if metrics_dir is None:  # each scrape of several workers would show another process
            ProcessCollector(registry=self.registry)
        self.registry.register(self._waiting)

    def watch(self, model_registry: ModelRegistry) -> None:
        """Export the models of this registry."""
        self.memory = MemorySeries(model_registry, self._shown, self._metrics_dir, self._reports)
        self.registry.register(self.memory)
        self.store = StoreSeries(model_registry, self._shown)
        self.registry.register(self.store)

    def saw_waiting(self, rows: Mapping[str, int]) -> None:
        """Rows that wait for labels, by model."""
        self._waiting.rows = rows

    async def exposition(self, model_registry: ModelRegistry, may_load: bool = False) -> bytes:
        """The text of /metrics, with certificates at most STATE_AGE_S old.

        If `may_load`, shown models that are not in memory are loaded as far as they fit.
        Models that do not fit have no series of their state.
        """
        async with self._scraping:
            with suppress(JournalError):  # the old list stays
                await self._shown.look(
                    model_registry.journal, [model.record.id for model in model_registry]
                )
                if may_load:
                    await self._load_missing(model_registry)
            self._models.forget()
            self._members.forget()
            slices = EventLoopSlices()
            models = await self._caught_up(model_registry)
            await self._sources.read(models)
            for model in models:
                await slices.end()
                with suppress(JournalUnavailable):  # a fork
                    await model.replica.certify(STATE_AGE_S)
                    await model.replica.view(partial(self._read, model))
            return await text_of(self.registry.collect(), slices)

    def _read(self, model: Model) -> None:
        self._models.read(model)
        self._members.read(model)

    async def _load_missing(self, model_registry: ModelRegistry) -> None:
        missing = [id_ for id_ in self._shown.ids if model_registry.find(id_) is None]
        for id_ in missing[:LOADS_PER_SCRAPE]:
            if not model_registry.cache.has_room:
                return
            with suppress(Problem, JournalError):  # unreadable, or deleted
                await model_registry.get(id_)

    async def _caught_up(self, model_registry: ModelRegistry) -> Sequence[Model]:
        """The shown models whose state may be exported.

        A count must not fall between scrapes of two workers: each model is at the
        journal's present end, or left out.
        """
        models = [model for model in model_registry if model.record.id in self._shown.ids]
        if self._metrics_dir is None:
            return models
        try:
            heads = await model_registry.journal.heads([model.record.id for model in models])
        except JournalError:
            return [model for model in models if not model.lag.at(model.replica.seq).records]
        waits = {
            background_task(model.refresh(head.seq)): model
            for model, head in zip(models, heads, strict=True)
            if isinstance(head, Head) and head.seq > model.replica.seq
        }
        late = set()
        if waits:
            done, pending = await asyncio.wait(waits, timeout=CATCH_UP_S)
            # Not cancelled: that would interrupt an apply.
            late = {waits[task] for task in pending}
            late |= {waits[task] for task in done if task.exception() is not None}
        return [model for model in models if model not in late]
