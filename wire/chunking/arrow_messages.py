"""Parser of Arrow stream messages: refuses compressed buffers, splits streams at record batches.

Compressed buffers can expand to any size. Only the metadata of each message, a flatbuffer, shows
them: message -> header -> compression, or a key of the message's custom metadata.
"""

from struct import error as StructError, unpack_from
from typing import NamedTuple

from dualstream.wire.chunking.buffer import ChunkBuffer
from dualstream.wire.problem_json import Problem

END, SCHEMA, DICTIONARY, RECORDS = -1, 1, 2, 3
# Field numbers in their tables, from Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_ID_OF_DICTIONARY, _DATA_OF_DICTIONARY, _IS_DELTA = 0, 1, 2
_COMPRESSION = 3
_COMPRESSION_KEY = b"ARROW:experimental_compression"
"""Arrow 0.17 named the compression in custom metadata, and pyarrow still honours it."""
_CONTINUATION = 0xFFFFFFFF
_FILE_MAGIC = b"ARROW1"
_HEAD_BYTES = 64 * 1024
"""Most metadata is shorter."""


def streams_in(body: bytes) -> list[tuple[int, int]]:
    """Start and end of each of the concatenated streams.

    Raises Problem 400 for a truncated or damaged stream, or for bytes after the end of one that are
    no stream; 415 for compressed buffers.
    """
    check_is_no_file(body)
    streams: list[tuple[int, int]] = []
    start = p = 0
    is_open = False
    while p < len(body):
        is_after_the_end = bool(streams) and not is_open
        try:
            message = message_at(body, p)
            is_whole = message is not None and message.end <= len(body)
            if is_after_the_end and not (is_whole and message and message.kind == SCHEMA):
                raise _after_the_end()
            if message is None or not is_whole:
                raise Problem(400, "malformed-body", "not a valid Arrow stream: it is truncated")
            _check_is_not_compressed(message)
        except (StructError, IndexError):
            raise _after_the_end() if is_after_the_end else _damaged() from None
        if message.kind == SCHEMA:
            if is_open:
                streams.append((start, p))
            start, is_open = p, True
        p = message.end
        if message.kind == END:
            streams.append((start, p))
            is_open = False
    return [*streams, (start, p)] if is_open or not streams else streams


def check_is_no_file(body: bytes | memoryview) -> None:
    """Raise Problem 400 for an Arrow file: its rows are a stream, and more."""
    if bytes(body[: len(_FILE_MAGIC)]) == _FILE_MAGIC:
        reason = "this is an Arrow file; send an Arrow stream (in Python: pyarrow.ipc.new_stream)"
        raise Problem(400, "malformed-body", reason)


def _check_is_not_compressed(message: "Message") -> None:
    if message.kind not in (DICTIONARY, RECORDS):
        return
    head, records = message.head, message.header
    if message.kind == DICTIONARY:
        data_at = _field(head, records, _DATA_OF_DICTIONARY)
        records = _table(head, data_at) if data_at else records
    if _field(head, records, _COMPRESSION) or _COMPRESSION_KEY in bytes(head):
        reason = "compressed buffers are not supported; compress the body instead"
        raise Problem(415, "unsupported-media-type", reason)


class Message(NamedTuple):
    """One message of a stream."""

    kind: int
    """Header type of Message.fbs; 0 without a header, END for the end-of-stream marker."""
    head: memoryview
    """The flatbuffer without the bytes after it, so that its offsets cannot refer to them."""
    header: int
    """Offset of the header table in `head`."""
    end: int


_NO_HEAD = memoryview(b"")


def message_at(body: bytes | memoryview, p: int) -> Message | None:
    """Parse the message at `p`, which may end after `body`. None if its end is not known yet.

    Raises StructError or IndexError for a damaged one.
    """
    if len(body) - p < 4:
        return None
    (size,) = unpack_from("<I", body, p)
    p += 4
    if size == _CONTINUATION:
        if len(body) - p < 4:
            return None
        (size,) = unpack_from("<I", body, p)
        p += 4
    if size == 0:
        return Message(END, _NO_HEAD, 0, p)
    begins = p + size
    if begins > len(body):
        return None
    head = memoryview(body)[p:begins]
    message = _table(head, 0)
    kind_at = _field(head, message, _HEADER_TYPE)
    header_at = _field(head, message, _HEADER)
    length_at = _field(head, message, _BODY_LENGTH)
    length = unpack_from("<q", head, length_at)[0] if length_at else 0
    if length < 0:
        raise IndexError(length)
    end = begins + length
    if not kind_at or not header_at:
        return Message(0, head, 0, end)
    return Message(head[kind_at], head, _table(head, header_at), end)


def _message_in(buffer: ChunkBuffer, p: int, stop: int | None = None) -> Message | None:
    """As `message_at`, in the buffer up to `stop`; joins only the metadata of most messages."""
    stop = buffer.size if stop is None else stop
    for end in (min(p + _HEAD_BYTES, stop), stop):
        message = message_at(buffer.between(p, end), 0)
        if message is not None:
            return message._replace(end=message.end + p)
    return None


class MessageChunker:
    """Splits a stream after record batches; every chunk gets the schema and dictionaries."""

    has_lines = False
    # Arrow is parsed so fast that the fixed cost of a chunk is a quarter of the time at 1 MiB.
    size = 2

    def __init__(self) -> None:
        self._schema = b""
        self._dictionaries: dict[int, list[bytes]] = {}

    def end_of(self, buffer: ChunkBuffer, size: int) -> int:
        """End of the last record batch that ends within `size`, or else of the next one.

        0 if more bytes are needed. Raises Problem 400 for damage before the end of the first record
        batch. Rows before the damage are chunked first, whether or not the damage has arrived.
        """
        end = p = 0
        has_ended = False
        if not self._schema:
            check_is_no_file(buffer.between(0, len(_FILE_MAGIC)))
        try:
            while (message := _message_in(buffer, p)) and message.end <= buffer.size:
                if has_ended and message.kind != SCHEMA:
                    raise IndexError(p)
                has_ended = message.kind == END
                p = message.end
                if message.kind == RECORDS and (p <= size or not end):
                    end = p
                if end and p >= size:
                    break
        except (StructError, IndexError):
            if not end:
                raise _damaged() from None
        return end

    def carried_into(self, buffer: ChunkBuffer, end: int) -> bytes:
        """Schema and dictionaries to put before the chunk; remembers those in the chunk."""
        dictionaries = [part for parts in self._dictionaries.values() for part in parts]
        carried = b"".join([self._schema, *dictionaries])
        p = 0
        try:
            while (message := _message_in(buffer, p, end)) and message.end <= end:
                if message.kind == SCHEMA:
                    self._dictionaries.clear()  # another stream has its own
                    self._schema = bytes(buffer.between(p, message.end))
                elif message.kind == DICTIONARY:
                    self._keep(message, bytes(buffer.between(p, message.end)))
                p = message.end
        except (StructError, IndexError):
            raise _damaged() from None
        return carried

    def _keep(self, message: Message, part: bytes) -> None:
        """Store a dictionary, which replaces the previous one or extends it (delta)."""
        head = message.head
        id_at = _field(head, message.header, _ID_OF_DICTIONARY)
        delta_at = _field(head, message.header, _IS_DELTA)
        number = unpack_from("<q", head, id_at)[0] if id_at else 0
        before = self._dictionaries.get(number, []) if delta_at and head[delta_at] else []
        self._dictionaries[number] = [*before, part]


def _after_the_end() -> Problem:
    reason = "what follows the end of the Arrow stream is not another complete stream"
    return Problem(400, "malformed-body", reason)


def _damaged() -> Problem:
    return Problem(400, "malformed-body", "the body is not a valid Arrow stream")


def _field(head: memoryview, table: int, number: int) -> int:
    """Offset of a field of the flatbuffer table at `table`; 0 if absent."""
    vtable = table - unpack_from("<i", head, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    (size,) = unpack_from("<H", head, vtable)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = unpack_from("<H", head, vtable + 4 + 2 * number)
    return table + int(offset) if offset else 0


def _table(head: memoryview, field: int) -> int:
    return field + int(unpack_from("<I", head, field)[0])
