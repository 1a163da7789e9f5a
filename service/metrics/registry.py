"""All families of a process, and the text of one scrape."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import Head, JournalError, JournalUnavailable
from dualstream.service.metrics.counters import ProcessCounts
from dualstream.service.metrics.exposition import Turns, text_of
from dualstream.service.metrics.member_series import Members
from dualstream.service.metrics.memory_series import MemorySeries, Waiting
from dualstream.service.metrics.model_filter import Folded, ModelFilter
from dualstream.service.metrics.model_series import Models
from dualstream.service.metrics.multiprocess import Sharing
from dualstream.service.metrics.store_series import StoreSeries
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.wire.problems import Problem

# The certificate shown is computed anew when the one at hand is older.
CERTIFICATE_AGE_S = 15.0
LOADS_PER_SCRAPE = 16
"""So many models at most are loaded for one scrape, and those after it show the others."""
CATCH_UP_S = 1.0
"""How long a scrape waits for replicas that are behind."""


class Telemetry(ProcessCounts):
    """The families of one process, in a registry of their own.

    max_models   models with series of their own
    sharing      where this process is one of several workers of a port
    """

    def __init__(self, max_models: int = 500, sharing: Sharing | None = None) -> None:
        if sharing is not None:
            sharing.keep_counts()
        self._shown = ModelFilter(max_models)
        super().__init__(self._shown, outlives=sharing is not None)
        self._sharing = sharing
        self.pending: Mapping[str, int] = {}
        """Messages that wait in the store's inputs, by model, as they were counted last."""
        self._waiting: Mapping[str, int] = {}
        self._models, self._members = Models(), Members()
        self._scraping = asyncio.Lock()
        self.registry = CollectorRegistry()
        counts = self._registry if sharing is None else sharing.counts()
        self.registry.register(Folded(counts, self._shown))
        self.registry.register(self._models)
        self.registry.register(self._members)
        text = "Rows that wait for their labels, as last looked at."
        waiting = Waiting("dualstream_remembered_rows", text, self._shown, lambda: self._waiting)
        self.registry.register(waiting)

    def watch(self, catalog: ModelRegistry) -> None:
        """Tell of the catalog's models from now on."""
        self.holdings = MemorySeries(catalog, self._shown, self._sharing)
        self.registry.register(self.holdings)
        self.stored = StoreSeries(catalog, self._shown)
        self.registry.register(self.stored)
        if catalog.settings.redis_input:
            text = "Messages that wait in a model's input."
            waiting = Waiting("dualstream_input_pending", text, self._shown, lambda: self.pending)
            self.registry.register(waiting)

    def saw_pending(self, messages: Mapping[str, int]) -> None:
        """Messages that wait in the inputs of models."""
        self.pending = messages

    def saw_waiting(self, rows: Mapping[str, int]) -> None:
        """How many rows wait, of each model that remembers any."""
        self._waiting = rows

    async def exposition(self, catalog: ModelRegistry, may_load: bool = False) -> bytes:
        """The text of /metrics, with certificates at most CERTIFICATE_AGE_S old.

        Models of the store that are shown and are not in memory are loaded as far as there is room,
        where the process `may_load` any; those without room have no series of their state.
        """
        async with self._scraping:
            with suppress(JournalError):  # what was known stays
                await self._shown.look(catalog.journal, [model.record.id for model in catalog])
                if may_load:
                    await self._load_missing(catalog)
            self._models.forget()
            self._members.forget()
            turns = Turns()
            for model in await self._caught_up(catalog):
                await turns.end()
                with suppress(JournalUnavailable):  # a fork
                    await model.replica.certify(CERTIFICATE_AGE_S)
                    async with model.replica.serving():
                        self._models.read(model)
                        self._members.read(model)
            return await text_of(self.registry.collect(), turns)

    async def _load_missing(self, catalog: ModelRegistry) -> None:
        missing = [id_ for id_ in self._shown.ids if catalog.find(id_) is None]
        for id_ in missing[:LOADS_PER_SCRAPE]:
            if not catalog.has_room:
                return
            with suppress(Problem, JournalError):  # unreadable, or gone meanwhile
                await catalog.get(id_)

    async def _caught_up(self, catalog: ModelRegistry) -> Sequence[Model]:
        """The models shown whose state may be told.

        Whoever scraped another worker before must not see a count fall: each is at the journal's
        end as it is now, or left out.
        """
        models = [model for model in catalog if model.record.id in self._shown.ids]
        if self._sharing is None:
            return models
        try:
            heads = await catalog.journal.heads([model.record.id for model in models])
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
            # Those are left to their end: to cancel would cut an apply in two.
            late = {waits[task] for task in pending}
            late |= {waits[task] for task in done if task.exception() is not None}
        return [model for model in models if model not in late]
