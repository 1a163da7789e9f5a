"""Long bodies cut into chunks at the ends of rows, each a body of its own.

Where a chunk ends depends on the bytes of the body alone, not on how they arrived: whoever sends a
body again sends the same chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dualstream.wire.chunking.arrow_messages import MessageCutter
from dualstream.wire.chunking.buffer import ChunkBuffer
from dualstream.wire.chunking.csv_quotes import quoted_end
from dualstream.wire.problems import Problem

CHUNK_BYTES = 1024 * 1024
"""A longer body is cut. A chunk ends with the last row that ends within so many bytes, or what the
format makes of that; a longer row is one alone."""
MARK = b"\xef\xbb\xbf"
"""A byte order mark is no part of text, and has no place in JSON (RFC 8259, section 8.1)."""

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_LONGEST_MAGIC = max(map(len, _PACKED))


def check_is_plain(body: bytes) -> None:
    """Raise Problem 400 for a body that is compressed and does not say so.

    A line that could not be made shorter would be taken for a row.
    """
    for magic, encoding in _PACKED.items():
        if body.startswith(magic):
            detail = f"the body is {encoding}: say so by Content-Encoding: {encoding}"
            raise Problem(400, "malformed-body", detail)


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

    has_lines: bool
    """Whether a row is told by its line, too."""
    size: int
    """So many times `CHUNK_BYTES` a chunk may take."""

    def end_of(self, held: ChunkBuffer, size: int) -> int:
        """Where the next chunk ends that `held`, of more than `size` bytes, begins with.

        0 where that is not known before more arrives.
        """

    def carried_into(self, held: ChunkBuffer, end: int) -> bytes:
        """What has to stand before the next chunk, up to `end`, to make it a body."""


class LineCutter:
    """Of formats whose rows are lines."""

    has_lines = True
    size = 1

    def end_of(self, held: ChunkBuffer, size: int) -> int:
        text = held.joined()
        return text.rfind(b"\n", 0, size) + 1 or text.find(b"\n", size) + 1

    def carried_into(self, held: ChunkBuffer, end: int) -> bytes:
        return b""


class RecordCutter:
    """Of CSV, whose quotes may hold ends of lines, and whose header goes with each chunk."""

    has_lines = True
    size = 1

    def __init__(self) -> None:
        self._header = b""

    def end_of(self, held: ChunkBuffer, size: int) -> int:
        return record_end(held.joined(), 0, size)

    def carried_into(self, held: ChunkBuffer, end: int) -> bytes:
        if self._header:
            return self._header
        own_text = bytes(held.between(0, end))
        start = len(own_text) - len(own_text.lstrip(b"\r\n"))
        self._header = own_text[start : record_end(own_text, start, start)]
        return b""


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
    "application/vnd.apache.arrow.stream": MessageCutter,
    "text/x-vw": LineCutter,
    "text/x-libsvm": LineCutter,
}


class Chunking:
    """Cuts one body that is given piece by piece.

    `longest` is what a row, or a record batch, may take; chunks end within `size` bytes (1 MiB,
    of Arrow 2 MiB, but no more than `longest`).
    `line_feeds` counts them in a text, for those who know how to do that sooner.
    """

    def __init__(
        self,
        cutter: Cutter,
        longest: int,
        size: int | None = None,
        line_feeds: Callable[[bytes], int] = lambda text: text.count(b"\n"),
    ) -> None:
        self._cutter = cutter
        self._longest = longest
        # As more than `longest` is never held, cuts behind that would tell how bytes arrived.
        most = max(CHUNK_BYTES, min(cutter.size * CHUNK_BYTES, longest))
        self._size = most if size is None else size
        self._line_feeds = line_feeds
        self._held = ChunkBuffer()
        self._number = self._ends = self._line = 0
        # To look for the end of a long row at each piece would take the square of its length.
        self._looked_at = self._size

    def of(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that are whole with this piece; to be taken before the next one is given.

        Raises Problem 413 for a row that is too long, 400 for damage.
        """
        if len(piece) <= self._size:
            yield from self._of(piece)
            return
        for start in range(0, len(piece), self._size):  # what is left over is joined each time
            yield from self._of(memoryview(piece)[start : start + self._size])

    def _of(self, piece: bytes | memoryview) -> Iterator[Chunk]:
        held, longest = self._held, self._longest
        held.add(piece)
        if not self._ends:
            self._pass_mark()
        while held.size > min(self._looked_at, longest):
            if (
                not self._may_have_ended()
                or not 0 < (end := self._cutter.end_of(held, self._size)) <= longest
            ):
                self._looked_at = 2 * held.size
                break
            yield self._taken(end)
            self._looked_at = self._size
        if held.size > longest:
            raise Problem(
                413, "body-too-large", f"a row (or a record batch) is longer than {longest} bytes"
            )

    def rest(self) -> Iterator[Chunk]:
        """What is left at the body's end. Raises as `of` does."""
        held = self._held
        while held.size > self._size:
            if not 0 < (end := self._cutter.end_of(held, self._size)) < held.size:
                break
            yield self._taken(end)
        if held.size:
            yield self._taken(held.size)

    def _may_have_ended(self) -> bool:
        """Whether it is worth the joining to look again for the end of a long row.

        What was looked at in vain stands first; rows that are lines end where more of them come.
        """
        was_looked_at = self._looked_at > self._size
        return not (was_looked_at and self._cutter.has_lines and not self._held.later_have(b"\n"))

    def _pass_mark(self) -> None:
        if self._held.between(0, len(MARK)) == MARK:
            self._held.drop(len(MARK))
            self._ends = len(MARK)

    def _taken(self, end: int) -> Chunk:
        held = self._held
        if self._number == 0:
            check_is_plain(bytes(held.between(0, _LONGEST_MAGIC)))
        carried = self._cutter.carried_into(held, end)
        if len(carried) > self._longest:
            detail = f"a chunk needs more than {self._longest} bytes before it"
            raise Problem(413, "body-too-large", detail)
        self._ends += end
        line = self._line - carried.count(b"\n")
        body = held.take(end, carried)
        chunk = Chunk(self._number, body, self._ends, line)
        self._number += 1
        if self._cutter.has_lines:
            self._line = line + self._line_feeds(body)
        return chunk


async def chunks_of(
    pieces: AsyncIterator[bytes],
    cutter: Cutter,
    longest: int,
    line_feeds: Callable[[bytes], int] = lambda text: text.count(b"\n"),
) -> AsyncGenerator[Chunk]:
    """The chunks of the body that comes in these pieces, each as soon as it is there.

    Raises Problem 413 for a row, or a record batch, of more than `longest` bytes, 400 for damage.
    """
    chunking = Chunking(cutter, longest, line_feeds=line_feeds)
    async for piece in pieces:
        for chunk in chunking.of(piece):
            yield chunk
    for chunk in chunking.rest():
        yield chunk
