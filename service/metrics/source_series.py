"""Prometheus series of the sources of models, read from the store: equal in every worker."""

import asyncio
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dualstream.service.journal.protocol import JournalUnavailable, ModelChanged, UnknownModel
from dualstream.service.models.model import Model
from dualstream.service.models.sources import SourceCursor, read_sources

SOURCES_IN_ALL = 1000
"""Sources shown of all models together: a scrape stays small."""
MODELS_AT_ONCE = 50


class SourceSeries(Collector):
    """Shows the sources read last."""

    def __init__(self) -> None:
        self._cursors: list[tuple[str, str, SourceCursor]] = []
        self._left_out = 0

    async def read(self, models: Sequence[Model]) -> None:
        """Read the cursors of these models. While the store is unavailable, the last ones stay."""
        ordered = sorted(models, key=lambda model: model.record.id)
        entries: list[tuple[str, str, SourceCursor]] = []
        for first in range(0, len(ordered), MODELS_AT_ONCE):
            few = ordered[first : first + MODELS_AT_ONCE]
            try:
                cursors = await asyncio.gather(*map(_read, few))
            except JournalUnavailable:
                return
            for model, sources in zip(few, cursors, strict=True):
                entries += [(model.record.id, name, cursor) for name, cursor in sources.items()]
        self._cursors, self._left_out = entries[:SOURCES_IN_ALL], len(entries[SOURCES_IN_ALL:])

    def collect(self) -> Iterator[Metric]:
        rows = CounterMetricFamily(
            "dualstream_source_rows",
            "Rows of a source's batches, by outcome: accepted or refused as malformed.",
            labels=["model", "source", "outcome"],
        )
        lags = GaugeMetricFamily(
            "dualstream_source_lag_rows",
            "Rows that a source had after its last batch, as its reader reported.",
            labels=["model", "source"],
        )
        for model, name, cursor in self._cursors:
            rows.add_metric([model, name, "accepted"], cursor.rows)
            rows.add_metric([model, name, "refused"], cursor.refused)
            if cursor.lag is not None:
                lags.add_metric([model, name], cursor.lag)
        yield rows
        yield lags
        yield GaugeMetricFamily(
            "dualstream_sources_left_out",
            f"Sources without series, beyond {SOURCES_IN_ALL}.",
            self._left_out,
        )


async def _read(model: Model) -> dict[str, SourceCursor]:
    try:
        return await read_sources(model)
    except (ModelChanged, UnknownModel):
        return {}
