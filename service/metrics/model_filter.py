"""Selects the models with their own Prometheus series, so that a scrape stays small."""

import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from dualstream.service.journal.protocol import Journal

OTHER = "_other"
"""Label of the sum over all other models. No model can have this id."""

LISTED_S = 15.0
"""Interval at which the models of the store are listed again."""


class ModelFilter:
    """The first models of the store by id.

    The rule is the same in every process, whatever is in memory. A series does not appear and
    disappear with the use of its model.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.stored = 0
        """Models in the store, as last counted."""
        self.ids: dict[str, None] = {}
        self._listed_at = float("-inf")

    async def look(self, journal: Journal, cached_ids: Iterable[str]) -> None:
        """List the models of the store again if the list may be outdated. `cached_ids` are ids
        in memory.

        Raises what the journal raises; the old list stays then.
        """
        stored = await journal.count()
        is_new = stored != self.stored or time.monotonic() - self._listed_at > LISTED_S
        if is_new or any(self.is_named(id_) and id_ not in self.ids for id_ in cached_ids):
            self.ids = {record.id: None for record in await journal.list("", self.most)}
            self.stored, self._listed_at = stored, time.monotonic()

    def is_named(self, model: str) -> bool:
        """Is or will this id be in the list, as far as known?"""
        return len(self.ids) < self.most or model <= next(reversed(self.ids))


class Folded(Collector):
    """Families of another source, with models without their own series summed as OTHER."""

    def __init__(self, of: CollectorRegistry | Collector, shown: ModelFilter) -> None:
        self._of, self._shown = of, shown

    def collect(self) -> Iterator[Metric]:
        for family in self._of.collect():
            folded = Metric(family.name, family.documentation, family.type)
            rest: dict[str, float] = {}
            for sample in family.samples:
                if sample.name.endswith("_created"):  # one useless gauge per series
                    continue
                model = sample.labels.get("model")
                if model is None or model in self._shown.ids:
                    folded.add_sample(sample.name, sample.labels, sample.value)
                else:
                    rest[sample.name] = rest.get(sample.name, 0.0) + sample.value
            for name, value in rest.items():
                folded.add_sample(name, {"model": OTHER}, value)
            yield folded
