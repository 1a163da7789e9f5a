"""Which models have series of their own: a scrape stays small however many models there are."""

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dualstream.service.journal.protocol import Journal

OTHER = "_other"
"""Whose series are those of all the other models; no model can have this id."""

LISTED_S = 15.0
"""So often the store is asked anew which models there are."""


class ModelFilter:
    """The first models of the store, in the order of their ids.

    That rule is the same in every process, whatever it holds in memory, and a series does not come
    and go with the use of its model.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.stored = 0
        """Models of the store, as they were counted last."""
        self.ids: dict[str, None] = {}
        self._listed_at = float("-inf")

    async def look(self, journal: Journal, held: Iterable[str]) -> None:
        """Ask the store, where what was known may not do; `held` are ids that are in memory.

        Raises what the journal raises; what was known stays then.
        """
        stored = await journal.count()
        is_new = stored != self.stored or time.monotonic() - self._listed_at > LISTED_S
        if is_new or any(self.is_named(id_) and id_ not in self.ids for id_ in held):
            self.ids = {record.id: None for record in await journal.list("", self.most)}
            self.stored, self._listed_at = stored, time.monotonic()

    def is_named(self, model: str) -> bool:
        """Whether this id is or will be among them, as far as is known."""
        return len(self.ids) < self.most or model <= next(reversed(self.ids))


class Collects(Protocol):
    """What there is to collect of a registry, or of files."""

    def collect(self) -> Iterable[Metric]:
        """The families as they stand."""


class Folded(Collector):
    """What is collected elsewhere, those models together that have no series of their own."""

    def __init__(self, of: Collects, shown: ModelFilter) -> None:
        self._of, self._shown = of, shown

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._of.collect():
            folded = Metric(family.name, family.documentation, family.type)
            rest: dict[str, float] = {}
            for sample in family.samples:
                if sample.name.endswith("_created"):  # a gauge of no use, one for each series
                    continue
                model = sample.labels.get("model")
                if model is None or model in self._shown.ids:
                    folded.add_sample(sample.name, sample.labels, sample.value)
                else:
                    rest[sample.name] = rest.get(sample.name, 0.0) + sample.value
            for name, value in rest.items():
                folded.add_sample(name, {"model": OTHER}, value)
            yield folded
