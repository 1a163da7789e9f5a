"""Chunking of long bodies at row boundaries, by the server (uploads) and the client (files).

chunks.py          chunkers of all formats
buffer.py          bytes that are not chunked yet
csv_quotes.py      ends of quoted CSV fields
arrow_messages.py  messages of an Arrow stream

Imports no kernels, so that the client starts fast.
"""

from dualstream.wire.chunking.chunks import (
    CHUNK_BYTES,
    CHUNKERS,
    MARK,
    Chunk,
    Chunker,
    Chunking,
    check_is_plain,
    chunks_of,
)

__all__ = [
    "CHUNK_BYTES",
    "CHUNKERS",
    "Chunk",
    "Chunking",
    "Chunker",
    "MARK",
    "check_is_plain",
    "chunks_of",
]
