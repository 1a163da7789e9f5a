"""Prometheus text format, written in slices so that the event loop is not blocked.

A scrape of 500 models has 12,000 lines and takes a tenth of a second.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

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
            text.append(_without_head(piece) if first else piece)
            await slices.end()
    return b"".join(text)


def _without_head(piece: bytes) -> bytes:
    """The samples without the help and type lines."""
    return piece.split(b"\n", 2)[2]
