"""Long bodies cut into chunks at the ends of rows, each a body of its own.

Where a chunk ends depends on the bytes of the body alone, not on how they arrived: whoever sends a
body again sends the same chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from service.codecs.csv_rows import quoted_end
from service.errors import Problem

CHUNK_BYTES = 1024 * 1024
"""A chunk ends with the last row that ends within so many bytes; a longer row is one alone."""
MARK = b"\xef\xbb\xbf"
"""A byte order mark is no part of text, and has no place in JSON (RFC 8259, section 8.1)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a longer body, as a body."""

    number: int
    """From 0."""
    body: bytes
    ends: int
    """The byte of the whole body where it ends."""
    line: int
    """Lines of the whole body before this body's first one; below 0 where lines are carried."""


class Cutter(Protocol):
    """Cuts one body of one format."""

    def end_of(self, text: bytearray) -> int:
        """Where the next chunk ends that `text`, of more than CHUNK_BYTES, begins with.

        0 where that is not known before more arrives.
        """

    @property
    def carried(self) -> bytes:
        """What stands before the rows of each chunk but the first."""


class LineCutter:
    """Of formats whose rows are lines."""

    carried = b""

    def end_of(self, text: bytearray) -> int:
        return text.rfind(b"\n", 0, CHUNK_BYTES) + 1 or text.find(b"\n", CHUNK_BYTES) + 1


class RecordCutter:
    """Of CSV, whose quotes may hold ends of lines, and whose header goes with each chunk."""

    def __init__(self) -> None:
        self.carried = b""

    def end_of(self, text: bytearray) -> int:
        if not self.carried:
            start = len(text) - len(text.lstrip(b"\r\n"))
            self.carried = bytes(text[start : record_end(text, start, start)])
        return record_end(text, 0, CHUNK_BYTES) if self.carried else 0


def record_end(text: bytes | bytearray, start: int, target: int) -> int:
    """Behind the last record of CSV that ends up to `target`, or else behind the next one.

    A record begins at `start`. 0 where that is not known before more arrives.
    """
    p, found = start, 0
    while True:
        quote = text.find(b'"', p)
        stop = len(text) if quote < 0 else quote
        found = text.rfind(b"\n", p, min(stop, target)) + 1 or found
        if stop >= target:
            found = found or text.find(b"\n", max(p, target), stop) + 1
            if found or quote < 0:
                return found
        if quote < 0:
            return 0
        p = quote + 1
        if quote == start or text[quote - 1] in b",\n":  # it opens a field
            p = quoted_end(text, quote)
            if not 0 < p < len(text):
                return found
            if text[p] not in b",\r\n":  # a bad record, which ends with its line
                p = text.find(b"\n", p)
                if p < 0:
                    return found


CUTTERS: dict[str, Callable[[], Cutter]] = {
    "application/x-ndjson": LineCutter,
    "text/csv": RecordCutter,
    "text/x-vw": LineCutter,
    "text/x-libsvm": LineCutter,
}


async def chunks_of(
    pieces: AsyncIterator[bytes], cutter: Cutter, longest: int
) -> AsyncGenerator[Chunk]:
    """The chunks of the body that comes in these pieces, each as soon as it is there.

    Raises Problem 413 for a row of more than `longest` bytes.
    """
    text = bytearray()
    number = ends = line = 0

    def taken(size: int) -> Chunk:
        nonlocal number, ends, line
        own = bytes(text[:size])
        del text[:size]
        carried = cutter.carried if number else b""
        ends += size
        chunk = Chunk(number, carried + own, ends, line - carried.count(b"\n"))
        number += 1
        line += own.count(b"\n")
        return chunk

    async for piece in pieces:
        text += piece
        if not ends and text.startswith(MARK):
            del text[: len(MARK)]
            ends = len(MARK)
        while len(text) > CHUNK_BYTES and 0 < (size := cutter.end_of(text)) <= longest:
            yield taken(size)
        if len(text) > longest:
            raise Problem(413, "body-too-large", f"a row is longer than {longest} bytes")
    if text:
        yield taken(len(text))
