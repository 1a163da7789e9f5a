"""Files of rows: format, decompression, chunks of about 1 MiB with their idempotency keys.

The rows of Parquet and Arrow files are sent as Arrow streams.
The key of a chunk is a digest of the file's path and its content up to the chunk's end. The same
file has the same keys again, so an interrupted run resumes without saved state. The cursor of a
file that is a source has a digest, too, so a file that was replaced is not taken for the same one.
"""

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import BinaryIO, TypeVar, cast

from dualstream.client.arrow_tables import bodies_of_file
from dualstream.client.calls import ARROW, JSON, NDJSON
from dualstream.client.errors import BadInput
from dualstream.client.partitions import partitions_of, values_of, with_columns
from dualstream.client.stores import StoredFile
from dualstream.wire.chunking.chunks import CHUNK_BYTES, CHUNKERS, Chunking
from dualstream.wire.problem_json import Problem
from dualstream.wire.sources import Offset

T = TypeVar("T")

STANDARD_INPUT = "-"
PARQUET = "application/vnd.apache.parquet"
FORMATS = {
    "json": JSON,
    "ndjson": NDJSON,
    "csv": "text/csv",
    "csv-decimal-comma": "text/csv; decimal=%2C",
    "arrow": ARROW,
    "parquet": PARQUET,
    "vw": "text/x-vw",
    "libsvm": "text/x-libsvm",
}
"""Format name -> media type, with parameters."""
_ENDINGS = {
    **{f".{name}": kind for name, kind in FORMATS.items() if "-" not in name},
    ".jsonl": FORMATS["ndjson"],
    ".tsv": FORMATS["csv"],
    ".arrows": ARROW,
    ".feather": ARROW,
    ".svm": FORMATS["libsvm"],
    ".svmlight": FORMATS["libsvm"],
}
_ARROW_FILE, _PARQUET_FILE = b"ARROW1", b"PAR1"
# Magic bytes of each compression; those of zstd also of the 16 kinds of skippable frames.
_MAGIC = {
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".zst": (b"\x28\xb5\x2f\xfd", *(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(80, 96))),
}
# Leaves room for the header or schema in each chunk, so that the server need not split it.
_CHUNK = CHUNK_BYTES - 64 * 1024
_SMALL_CHUNK = _CHUNK // 4
"""Of rows that get columns from partitions."""
LONGEST_ROW = 16 * 1024 * 1024
LONGEST_JSON = 64 * 1024 * 1024
_PIECE = 256 * 1024
_ZSTD_SLICE = 1024
_SAMPLES, _SAMPLE_BYTES = 8, 8192
"""Parts of a Parquet or Arrow file that its digest includes: both ends, and some between them."""


@dataclass(frozen=True)
class Piece:
    """Chunk of a file, as a complete request body."""

    number: int
    """From 0."""
    start: int
    """Offset in the file: of rows in a Parquet or Arrow file, else of decompressed bytes."""
    end: int
    """Offset of the next chunk."""
    cursor: str
    """Cursor of the source before the chunk: its offset, and a digest of the file."""
    next_cursor: str
    content: bytes
    key: str
    line: int
    """Lines of the file before this body's first one."""
    read: int
    """Bytes of the (compressed) file read so far."""


@dataclass(frozen=True)
class RowFile:
    """A file of rows, or standard input, named `-`.

    With `key`, the key of a chunk is `key` and the chunk's number, instead of path and content. A
    chunk that was learned with other content is then refused.
    """

    name: str
    kind: str
    """Media type of the file."""
    key: str | None = None
    stream: BinaryIO | None = None
    """Source of the bytes, if not the file `name`."""
    stored: StoredFile | None = None
    """The file `name` of an object store or a web server."""
    source: str | None = None
    """Name of the source that the file is. Its chunks then have offsets instead of keys."""

    def size(self) -> int | None:
        """Bytes of the (compressed) file, if known."""
        if self.stored is not None:
            return self.stored.size
        if self.is_pipe:
            return None
        with suppress(OSError):
            return Path(self.name).stat().st_size
        return None

    @property
    def sent_as(self) -> str:
        """Media type of the chunks."""
        return ARROW if self.kind == PARQUET else self.kind

    @property
    def is_pipe(self) -> bool:
        """Is this standard input, or another source that can be read once only?"""
        return self.stream is not None or is_pipe(self.name)

    def pieces(self, cursor: str | None = None) -> Iterator[Piece]:
        """The chunks from the cursor of the source. Raises BadInput if the file cannot be read, or
        if it is not the file that was learned up to there."""
        try:
            if self.stream is not None:
                yield from self._pieces(self.stream, cursor)
            elif self.stored is not None:
                with self.stored.opened(self.kind in (PARQUET, ARROW)) as opened:
                    yield from self._pieces(opened, cursor)
            else:
                with open(self.name, "rb") as opened:
                    yield from self._pieces(opened, cursor)
        except OSError as wrong:
            raise BadInput(f"{self.name}: {wrong.strerror or wrong}") from None

    def _pieces(self, stream: BinaryIO, cursor: str | None) -> Iterator[Piece]:
        start = 0 if cursor is None else int(cursor.partition(":")[0])
        counted = _Counted(stream)
        digest = hashlib.sha256(f"{self.kind}\0{self._location()}\0".encode())
        is_table = self._is_table(counted)
        is_sampled = is_table and self.source is not None
        if is_sampled:
            digest.update(_sample(stream))
        cut = self._of_table(counted, start) if is_table else self._of_bytes(counted)
        first = start if is_table else 0
        at = _cursor(first, digest)
        if first == start and cursor not in (None, at):
            raise self._changed(start, is_table)
        for number, (content, line, end) in enumerate(cut):
            if not is_sampled:
                digest.update(content)
            begin, at = at, _cursor(end, digest)
            if first < start < end:
                break
            if end > start:
                if self.key is None:
                    key = f"file:{digest.hexdigest()[:40]}:{number}"
                else:
                    key = f"{self.key}:{number}"
                yield Piece(number, first, end, begin, at, content, key, line, counted.count)
            elif end == start and at != cursor:
                break
            first = end
        if first < start:
            raise self._changed(start, is_table)

    def _changed(self, start: int, is_table: bool) -> BadInput:
        return BadInput(
            f"{self.name}: it has changed since its source {self.source} learned"
            f" {start:,} {'rows' if is_table else 'bytes'}; put new rows into a new file"
        )

    def _location(self) -> str:
        if self.stored is not None:
            return self.name
        return STANDARD_INPUT if self.stream is not None else str(Path(self.name).resolve())

    def _is_table(self, stream: "_Counted") -> bool:
        """Is this a Parquet or Arrow file? Raises BadInput for an Arrow file of another format."""
        is_arrow_file = stream.peek(len(_ARROW_FILE)) == _ARROW_FILE
        if is_arrow_file and self.kind not in (ARROW, PARQUET):
            raise BadInput(f"{self.name}: this is an Arrow file; give the format arrow")
        return is_arrow_file or self.kind == PARQUET

    def _of_bytes(self, stream: "_Counted") -> Iterator[tuple[bytes, int, int]]:
        """Bodies, each with the lines before it and the offset after it."""
        inflated = _inflated(stream, self.name)
        if self.kind == JSON:
            whole = _whole(inflated, self.name)
            yield whole, 0, len(whole)
            return
        columns = partitions_of(self._location())
        size = _SMALL_CHUNK if columns else _CHUNK
        kind = self.kind.partition(";")[0]
        chunking = Chunking(CHUNKERS[kind](), LONGEST_ROW, size)
        try:
            for some in chain(inflated, [None]):
                for chunk in chunking.rest() if some is None else chunking.of(some):
                    yield with_columns(kind, chunk.body, columns), chunk.line, chunk.ends
        except Problem as wrong:
            raise BadInput(f"{self.name}: {wrong.detail}") from None

    def _of_table(self, stream: "_Counted", start: int) -> Iterator[tuple[bytes, int, int]]:
        """As `_of_bytes`, of a Parquet or Arrow file from a row, which pyarrow reads by itself."""
        if self.is_pipe:
            raise BadInput(
                f"{self.name}: Parquet and Arrow files are read from their ends, which a pipe does"
                " not have; give the name of a file, or an Arrow stream"
            )
        size, is_parquet = self.size() or 0, self.kind == PARQUET
        file = self.name if self.stored is None else stream.stream
        columns = values_of(partitions_of(self._location()))
        for body, end, share in bodies_of_file(self.name, file, is_parquet, columns, start):
            stream.count = int(size * share)
            yield body.content, 0, end


def is_cursor(offset: Offset) -> bool:
    """Can this be the cursor of a file?"""
    return isinstance(offset, str) and offset.partition(":")[0].isdecimal()


def _cursor(offset: int, digest: "hashlib._Hash") -> str:
    return f"{offset}:{digest.hexdigest()[:16]}"


def _sample(stream: BinaryIO) -> bytes:
    """Size and some bytes of a file. The whole content of a small one."""
    size = stream.seek(0, os.SEEK_END)
    parts = [str(size).encode()]
    for number in range(_SAMPLES):
        stream.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
        parts.append(stream.read(_SAMPLE_BYTES))
    return b"\0".join(parts)


def is_pipe(name: str) -> bool:
    """Is this path a pipe, a terminal or a device, as `/dev/stdin` and `<(command)` are?"""
    path = Path(name)
    return path.exists() and not path.is_file() and not path.is_dir()


def kind_of(name: str) -> str:
    """Media type of a file, by its name; of Parquet and Arrow files by their first bytes.

    Raises BadInput for an unknown name.
    """
    begins = _first_bytes(name)
    if begins.startswith(_PARQUET_FILE):
        return PARQUET
    if begins.startswith(_ARROW_FILE):
        return ARROW
    endings = [ending.lower() for ending in Path(name).suffixes]
    while endings and endings[-1] in _MAGIC:
        endings.pop()
    kind = _ENDINGS.get(endings[-1]) if endings else None
    if kind is None:
        supported = ", ".join(sorted(_ENDINGS))
        raise BadInput(
            f"{name}: unknown file extension; give the format with --format (known: {supported})"
        )
    return kind


def _first_bytes(name: str) -> bytes:
    """The first bytes of a file; none if it is no file that can be read."""
    with suppress(OSError):
        if Path(name).is_file():
            with open(name, "rb") as opened:
                return opened.read(len(_ARROW_FILE))
    return b""


class _Counted:
    """Bytes as they are read, and how many."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self._ahead = b""
        self.count = 0

    def peek(self, size: int) -> bytes:
        """The first bytes, which are read again."""
        while len(self._ahead) < size and (more := self.stream.read(size - len(self._ahead))):
            self._ahead += more
        return self._ahead

    def read(self, size: int = -1) -> bytes:
        size = size if size > 0 else _PIECE
        # A pipe shall not wait for more than there is.
        read = getattr(self.stream, "read1", self.stream.read)
        data = self._ahead[:size] or cast(bytes, read(size))
        self._ahead = self._ahead[size:]
        self.count += len(data)
        return data


def _inflated(stream: _Counted, name: str) -> Iterator[bytes]:
    """Decompressed content; detects the compression by magic bytes. Raises BadInput."""
    begins = stream.peek(6)
    compression = next((ending for ending, magic in _MAGIC.items() if begins.startswith(magic)), "")
    called = Path(name).suffix.lower()
    if begins and called in _MAGIC and compression != called:
        raise BadInput(f"{name}: the file is not {called} compressed; rename it")
    try:
        yield from _READERS[compression](stream)
    except ImportError:
        needed = "files need zstandard: pip install zstandard"
        raise BadInput(f"{name}: {compression} {needed}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as wrong:
        if compression and not (isinstance(wrong, OSError) and wrong.errno):
            raise BadInput(f"{name}: damaged {compression} compression: {wrong}") from None
        raise


def _zstd(stream: _Counted) -> Iterator[bytes]:
    """Frame by frame, because the library's own reader accepts a truncated frame."""
    import zstandard  # optional dependency

    frame = zstandard.ZstdDecompressor().decompressobj()
    has_begun = False
    while read := stream.read(_PIECE):
        # The output of a slice is returned at once, so slices are small.
        for start in range(0, len(read), _ZSTD_SLICE):
            some = read[start : start + _ZSTD_SLICE]
            while some:
                if frame.eof:
                    frame, has_begun = zstandard.ZstdDecompressor().decompressobj(), False
                has_begun = True
                try:
                    inflated = frame.decompress(some)
                except zstandard.ZstdError as wrong:
                    raise EOFError(str(wrong)) from None
                yield inflated
                some = frame.unused_data if frame.eof else b""
    if has_begun and not frame.eof:
        raise EOFError("the file is truncated")


def _xz(stream: _Counted) -> Iterator[bytes]:
    """Stream by stream, because the library's own reader drops what follows padding."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    padding = 0
    while read := stream.read(_PIECE):
        while read:
            if decoder.eof:
                rest = read.lstrip(b"\0")
                padding += len(read) - len(rest)
                read = rest
                if not rest:
                    break
                if padding % 4:
                    raise lzma.LZMAError("a stream begins after padding of an odd length")
                decoder, padding = lzma.LZMADecompressor(lzma.FORMAT_XZ), 0
            yield decoder.decompress(read, _PIECE)
            while not (decoder.eof or decoder.needs_input):
                yield decoder.decompress(b"", _PIECE)
            read = decoder.unused_data if decoder.eof else b""
    if not decoder.eof or padding % 4:
        raise EOFError("the file is truncated")


def _pieces_of(stream: _Counted | gzip.GzipFile) -> Iterator[bytes]:
    while some := stream.read(_PIECE):
        yield some


_READERS: dict[str, Callable[[_Counted], Iterator[bytes]]] = {
    "": _pieces_of,
    ".gz": lambda stream: _pieces_of(gzip.GzipFile(fileobj=cast(BinaryIO, stream))),
    ".xz": _xz,
    ".zst": _zstd,
}
"""Ending of a compressed file -> reader of its content."""


def _whole(pieces: Iterator[bytes], name: str) -> bytes:
    """A JSON document, which cannot be split into chunks."""
    text = bytearray()
    for piece in pieces:
        text += piece
        if len(text) > LONGEST_JSON:
            size = LONGEST_JSON // 1024 // 1024
            raise BadInput(f"{name}: more than {size} MiB of JSON; write NDJSON, one row per line")
    return bytes(text)


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Iterate with read-ahead: a thread makes the next item while the caller uses the last.

    Raises the iterator's errors. The threads are daemons, so that a process can exit while one
    waits for input.
    """
    ahead = _in_thread(items)
    while (item := ahead.result()) is not None:
        ahead = _in_thread(items)
        yield item


def _in_thread(items: Iterator[T]) -> "Future[T | None]":
    """The next item, made in a thread; None after the last one."""
    future: Future[T | None] = Future()

    def make() -> None:
        try:
            future.set_result(next(items, None))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=make, daemon=True).start()
    return future
