"""Long bodies cut into chunks at the ends of rows, each a body of its own.

Where a chunk ends depends on the bytes of the body alone, not on how they arrived: whoever sends a
body again sends the same chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from service.cuts.arrow_messages import MessageCutter
from service.cuts.quotes import quoted_end
from service.problems import Problem

CHUNK_BYTES = 1024 * 1024
"""A chunk ends with the last row that ends within so many bytes; a longer row is one alone."""
MARK = b"\xef\xbb\xbf"
"""A byte order mark is no part of text, and has no place in JSON (RFC 8259, section 8.1)."""

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


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

    def end_of(self, text: bytes, size: int) -> int:
        """Where the next chunk ends that `text`, of more than `size` bytes, begins with.

        0 where that is not known before more arrives.
        """

    def carried_into(self, own: memoryview) -> bytes:
        """What has to stand before the bytes of the next chunk, to make it a body."""


class LineCutter:
    """Of formats whose rows are lines."""

    has_lines = True

    def end_of(self, text: bytes, size: int) -> int:
        return text.rfind(b"\n", 0, size) + 1 or text.find(b"\n", size) + 1

    def carried_into(self, own: memoryview) -> bytes:
        return b""


class RecordCutter:
    """Of CSV, whose quotes may hold ends of lines, and whose header goes with each chunk."""

    has_lines = True

    def __init__(self) -> None:
        self._header = b""

    def end_of(self, text: bytes, size: int) -> int:
        return record_end(text, 0, size)

    def carried_into(self, own: memoryview) -> bytes:
        if self._header:
            return self._header
        own_text = bytes(own)
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

    `longest` is what a row, or a record batch, may take; chunks end within `size` bytes (1 MiB).
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
        self._size = CHUNK_BYTES if size is None else size
        self._line_feeds = line_feeds
        # What came and was not cut yet: joined where it is looked at, not at each piece.
        self._pieces: list[bytes] = []
        self._held = 0
        self._number = self._ends = self._line = 0
        # To look for the end of a long row at each piece would take the square of its length.
        self._looked_at = self._size

    def of(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that are whole with this piece; to be taken before the next one is given.

        Raises Problem 413 for a row that is too long, 400 for damage.
        """
        for start in range(0, len(piece), self._size):  # what is left over is copied each time
            yield from self._of(piece[start : start + self._size])

    def _of(self, piece: bytes) -> Iterator[Chunk]:
        self._pieces.append(piece)
        self._held += len(piece)
        if not self._ends:
            self._pass_mark()
        longest = self._longest
        while self._held > min(self._looked_at, longest):
            if (
                not self._may_have_ended()
                or not 0 < (end := self._cutter.end_of(self._joined(), self._size)) <= longest
            ):
                self._looked_at = 2 * self._held
                break
            yield self._taken(end)
            self._looked_at = self._size
        if self._held > longest:
            raise Problem(
                413, "body-too-large", f"a row (or a record batch) is longer than {longest} bytes"
            )

    def rest(self) -> Iterator[Chunk]:
        """What is left at the body's end. Raises as `of` does."""
        while self._held > self._size:
            if not 0 < (end := self._cutter.end_of(self._joined(), self._size)) < self._held:
                break
            yield self._taken(end)
        if self._held:
            yield self._taken(self._held)

    def _may_have_ended(self) -> bool:
        """Whether it is worth the joining to look again for the end of a long row.

        What was looked at in vain stands first; rows that are lines end where more of them come.
        """
        was_looked_at = self._looked_at > self._size
        return not (
            was_looked_at
            and self._cutter.has_lines
            and all(b"\n" not in piece for piece in self._pieces[1:])
        )

    def _joined(self) -> bytes:
        """All that is held."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def _pass_mark(self) -> None:
        if len(self._pieces[0]) < len(MARK):
            self._joined()
        if self._pieces[0].startswith(MARK):
            self._pieces[0] = self._pieces[0][len(MARK) :]
            self._held -= len(MARK)
            self._ends = len(MARK)

    def _taken(self, end: int) -> Chunk:
        text = self._joined()
        own = memoryview(text)[:end]
        left = text[end:]
        self._pieces, self._held = [left], len(left)
        if self._number == 0:
            check_is_plain(text)
        carried = self._cutter.carried_into(own)
        if len(carried) > self._longest:
            detail = f"a chunk needs more than {self._longest} bytes before it"
            raise Problem(413, "body-too-large", detail)
        self._ends += end
        line = self._line - carried.count(b"\n")
        # Copied once, whatever stands before it.
        body = b"".join((carried, own)) if carried or left else text
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
