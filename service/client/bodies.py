"""Samples into bodies of NDJSON, each of so many rows and bytes that it is one append."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from service.client.errors import BadInput
from service.client.rows import sample_of
from service.client.values import sample_line

ROWS_PER_REQUEST = 1000
# The server would cut a longer body; it takes 1 MiB whole.
LARGEST_BODY = 1024 * 1024


class Body(NamedTuple):
    """Some samples as they are sent."""

    content: bytes
    rows: int


class Batching:
    """Gathers samples until a body is full."""

    def __init__(self, rows_per_request: int = ROWS_PER_REQUEST) -> None:
        if rows_per_request < 1:
            raise BadInput(f"rows_per_request must be >= 1, got {rows_per_request}")
        self._most = rows_per_request
        self._lines: list[bytes] = []
        self._size = 0
        self._row = 0

    def add(self, sample: Mapping[str, Any]) -> Body | None:
        """The body that is full before this sample joins the next one. Raises BadInput."""
        line = sample_line(sample, self._row) + b"\n"
        self._row += 1
        is_full = len(self._lines) == self._most or self._size + len(line) > LARGEST_BODY
        body = self.rest() if is_full else None
        self._lines.append(line)
        self._size += len(line)
        return body

    def rest(self) -> Body | None:
        """What is gathered, if there is any."""
        if not self._lines:
            return None
        body = Body(b"".join(self._lines), len(self._lines))
        self._lines, self._size = [], 0
        return body


def bodies_of(samples: Iterable[Mapping[str, Any]], rows_per_request: int) -> Iterator[Body]:
    """The bodies of all samples, in their order; each is made when it is asked for."""
    batching = Batching(rows_per_request)
    for sample in samples:
        body = batching.add(sample)
        if body is not None:
            yield body
    body = batching.rest()
    if body is not None:
        yield body


async def bodies_arriving(
    samples: Iterable[Any] | AsyncIterable[Any], rows_per_request: int
) -> AsyncIterator[Body]:
    """As `bodies_of`, of samples that may arrive over time, and as callers have them."""
    if not isinstance(samples, AsyncIterable):
        for body in bodies_of(map(sample_of, samples), rows_per_request):
            yield body
        return
    batching = Batching(rows_per_request)
    async for given in samples:
        full = batching.add(sample_of(given))
        if full is not None:
            yield full
    last = batching.rest()
    if last is not None:
        yield last
