"""Chunkers: split long bodies at row boundaries into chunks, each a valid body.

Chunk boundaries depend only on the bytes of the body, not on how they arrive. So a repeated body
has the same chunks, and each chunk the same idempotency key.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dualstream.wire.chunking.arrow_messages import MessageChunker
from dualstream.wire.chunking.buffer import ChunkBuffer
from dualstream.wire.chunking.csv_records import RecordChunker
from dualstream.wire.problem_json import Problem

CHUNK_BYTES = 1024 * 1024
"""Chunk size: a chunk ends with the last row within it. A longer row is its own chunk."""
MARK = b"\xef\xbb\xbf"
"""UTF-8 byte order mark: removed from text, invalid in JSON (RFC 8259, section 8.1)."""

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_ZIP, _PARQUET = b"PK\x03\x04", b"PAR1"
_LONGEST_MAGIC = max(map(len, _PACKED))


def check_is_plain(body: bytes, is_text: bool) -> None:
    """Raise Problem 400 for a compressed body without Content-Encoding, files, and UTF-16.

    Otherwise such a body is parsed as invalid rows.
    """
    for magic, encoding in _PACKED.items():
        if body.startswith(magic):
            detail = f"the body is {encoding} compressed; send Content-Encoding: {encoding}"
            raise Problem(400, "malformed-body", detail)
    if body.startswith(_ZIP):
        detail = "the body is a ZIP archive, such as a spreadsheet; send its rows as text/csv"
        raise Problem(400, "malformed-body", detail)
    if not is_text and body.startswith(_PARQUET):
        detail = "the body is a Parquet file; send its table as an Arrow stream"
        raise Problem(400, "malformed-body", detail)
    if is_text and (body.startswith(_UTF_16) or b"\0" in body[:_LONGEST_MAGIC]):
        detail = "the body is UTF-16; send UTF-8 (iconv -f UTF-16 -t UTF-8)"
        raise Problem(400, "malformed-body", detail)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a longer body, as a valid body."""

    number: int
    """From 0."""
    body: bytes
    ends: int
    """End offset in the whole body."""
    line: int
    """Line offset in the whole body; negative if a header line is carried."""


class Chunker(Protocol):
    """Finds chunk boundaries of one body of one format."""

    has_lines: bool
    """Do errors of this format have line numbers?"""
    size: int
    """Maximum chunk size in multiples of CHUNK_BYTES."""

    def end_of(self, buffer: ChunkBuffer, size: int) -> int:
        """End of the next chunk in `buffer`, which has more than `size` bytes.

        0 if more bytes are needed.
        """

    def carried_into(self, buffer: ChunkBuffer, end: int) -> bytes:
        """Prefix (header, schema) that makes the next chunk, up to `end`, a valid body."""


class LineChunker:
    """Chunker of formats whose rows are lines."""

    has_lines = True
    size = 1

    def end_of(self, buffer: ChunkBuffer, size: int) -> int:
        text = buffer.joined()
        return text.rfind(b"\n", 0, size) + 1 or text.find(b"\n", size) + 1

    def carried_into(self, buffer: ChunkBuffer, end: int) -> bytes:
        return b""


CHUNKERS: dict[str, Callable[[], Chunker]] = {
    "application/x-ndjson": LineChunker,
    "text/csv": RecordChunker,
    "application/vnd.apache.arrow.stream": MessageChunker,
    "text/x-vw": LineChunker,
    "text/x-libsvm": LineChunker,
}


def chunker_of(kind: str, delimiter: str = "") -> Chunker:
    """Chunker of a media type; of CSV with this delimiter, or else the one of its header."""
    return RecordChunker(delimiter) if delimiter else CHUNKERS[kind]()


class Chunking:
    """Splits one body that arrives piece by piece.

    `longest` is the maximum bytes of a row or record batch. Chunks end within `size` bytes: 1 MiB,
    for Arrow 2 MiB, at most `longest`. `line_feeds` counts line feeds in a text.
    """

    def __init__(
        self,
        chunker: Chunker,
        longest: int,
        size: int | None = None,
        line_feeds: Callable[[bytes], int] = lambda text: text.count(b"\n"),
    ) -> None:
        self._chunker = chunker
        self._longest = longest
        # At most `longest` is buffered, so a larger size makes boundaries depend on the arrival.
        limit = max(CHUNK_BYTES, min(chunker.size * CHUNK_BYTES, longest))
        self._size = limit if size is None else size
        self._line_feeds = line_feeds
        self._buffer = ChunkBuffer()
        self._number = self._ends = self._line = 0
        # Searching the end of a long row on every piece takes quadratic time: search at 2x sizes.
        self._searched = self._size

    def of(self, piece: bytes) -> Iterator[Chunk]:
        """Chunks completed by this piece; the caller must exhaust them before the next piece.

        Raises Problem 413 for a row that is too long, 400 for damage.
        """
        if len(piece) <= self._size:
            yield from self._of(piece)
            return
        for start in range(0, len(piece), self._size):  # limits the bytes joined per step
            yield from self._of(memoryview(piece)[start : start + self._size])

    def _of(self, piece: bytes | memoryview) -> Iterator[Chunk]:
        buffer, longest = self._buffer, self._longest
        buffer.add(piece)
        if not self._ends:
            self._skip_mark()
        while buffer.size > min(self._searched, longest):
            if (
                not self._may_have_ended()
                or not 0 < (end := self._chunker.end_of(buffer, self._size)) <= longest
            ):
                self._searched = 2 * buffer.size
                break
            yield self._take(end)
            self._searched = self._size
        if buffer.size > longest:
            raise Problem(
                413,
                "body-too-large",
                f"a row or record batch has more than {longest} bytes; split it",
            )

    def rest(self) -> Iterator[Chunk]:
        """The last chunks, at the end of the body. Raises as `of`."""
        buffer = self._buffer
        while buffer.size > self._size:
            if not 0 < (end := self._chunker.end_of(buffer, self._size)) < buffer.size:
                break
            yield self._take(end)
        if buffer.size:
            yield self._take(buffer.size)

    def _may_have_ended(self) -> bool:
        """Can the buffer contain the end of a long row now?

        For line formats only a new line feed can end a row, so nothing is joined without one.
        """
        was_searched = self._searched > self._size
        return not (was_searched and self._chunker.has_lines and not self._buffer.later_have(b"\n"))

    def _skip_mark(self) -> None:
        if self._buffer.between(0, len(MARK)) == MARK:
            self._buffer.drop(len(MARK))
            self._ends = len(MARK)

    def _take(self, end: int) -> Chunk:
        buffer = self._buffer
        if self._number == 0:
            check_is_plain(bytes(buffer.between(0, _LONGEST_MAGIC)), self._chunker.has_lines)
        carried = self._chunker.carried_into(buffer, end)
        if len(carried) > self._longest:
            detail = f"the header or dictionaries have more than {self._longest} bytes"
            raise Problem(413, "body-too-large", detail)
        self._ends += end
        line = self._line - carried.count(b"\n")
        body = buffer.take(end, carried)
        chunk = Chunk(self._number, body, self._ends, line)
        self._number += 1
        if self._chunker.has_lines:
            self._line = line + self._line_feeds(body)
        return chunk


async def chunks_of(
    pieces: AsyncIterator[bytes],
    chunker: Chunker,
    longest: int,
    line_feeds: Callable[[bytes], int] = lambda text: text.count(b"\n"),
) -> AsyncGenerator[Chunk]:
    """Chunks of a body that arrives in pieces, each as soon as it is complete.

    Raises Problem 413 for a row or record batch of more than `longest` bytes, 400 for damage.
    """
    chunking = Chunking(chunker, longest, line_feeds=line_feeds)
    async for piece in pieces:
        for chunk in chunking.of(piece):
            yield chunk
    for chunk in chunking.rest():
        yield chunk
