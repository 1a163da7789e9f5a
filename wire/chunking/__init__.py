"""Long bodies cut at the ends of rows: by the server as they arrive, by a client before it sends.

chunks.py          chunks of a body, each a body of its own
held.py            bytes that came and were not cut yet
quotes.py          where a quoted field of CSV ends
arrow_messages.py  the messages of an Arrow stream

It needs none of the kernels that read rows, so that a client starts without them.
"""

from dualstream.wire.chunking.chunks import (
    CHUNK_BYTES,
    CUTTERS,
    MARK,
    Chunk,
    Chunking,
    Cutter,
    check_is_plain,
    chunks_of,
)

__all__ = [
    "CHUNK_BYTES",
    "CUTTERS",
    "Chunk",
    "Chunking",
    "Cutter",
    "MARK",
    "check_is_plain",
    "chunks_of",
]
