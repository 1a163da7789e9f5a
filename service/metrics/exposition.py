"""The text of an exposition, written in slices of the event loop.

Of 500 models it has 12,000 lines, which take a tenth of a second: as a whole they would keep all
who learn or predict waiting so long at every scrape.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

SLICE_S = 0.002
SAMPLES = 128
"""So many lines are written at once: a millisecond's work."""


class EventLoopSlices:
    """Of a long piece of work in the event loop, which others may interrupt."""

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + SLICE_S

    async def end(self) -> None:
        """Let others have theirs, where this one has been long enough."""
        if time.perf_counter() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = time.perf_counter() + SLICE_S


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def text_of(families: Iterable[Metric], slices: EventLoopSlices) -> bytes:
    """The families in Prometheus' text format; each is collected as a whole, between two slices."""
    text: list[bytes] = []
    for family in families:
        await slices.end()
        samples = family.samples
        for first in range(0, max(1, len(samples)), SAMPLES):
            family.samples = samples[first : first + SAMPLES]
            piece = generate_latest(_One(family))
            text.append(_without_head(piece) if first else piece)
            await slices.end()
    return b"".join(text)


def _without_head(piece: bytes) -> bytes:
    """What follows the lines of help and type, which stand before a family's first sample."""
    return piece.split(b"\n", 2)[2]
