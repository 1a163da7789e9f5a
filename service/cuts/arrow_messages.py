"""A look at the messages of an Arrow stream before a library unpacks them.

Buffers may be compressed one by one, and a few bytes may then hold as much as they like. Nothing
says so but a field of each message's head, a flatbuffer: message -> header -> compression.
"""

from struct import error as StructError, unpack_from
from typing import NamedTuple

from service.problems import Problem

END, SCHEMA, DICTIONARY, RECORDS = -1, 1, 2, 3
# Places of fields in their tables, in the order of Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_ID_OF_DICTIONARY, _DATA_OF_DICTIONARY, _IS_DELTA = 0, 1, 2
_ENDIANNESS = 0
_ROWS, _NODES, _BUFFERS, _COMPRESSION = range(4)
_CONTINUATION = 0xFFFFFFFF


def check_messages(body: bytes) -> None:
    """Raise Problem 400 for a stream that is cut short or damaged, 415 for compressed buffers."""
    try:
        _check(body)
    except (StructError, IndexError):
        raise _damaged() from None


def _check(body: bytes) -> None:
    p = 0
    while p < len(body):
        message = message_at(body, p)
        if message is None or message.end > len(body):
            raise Problem(400, "malformed-body", "no Arrow stream: it ends too early")
        if message.kind == END:
            return
        p = message.end
        if message.kind in (DICTIONARY, RECORDS):
            records = message.header
            if message.kind == DICTIONARY:
                data_at = _field(body, records, _DATA_OF_DICTIONARY)
                records = _table(body, data_at) if data_at else records
            if _field(body, records, _COMPRESSION):
                reason = (
                    "compressed buffers are not accepted: compress the body, by Content-Encoding"
                )
                raise Problem(415, "unsupported-media-type", reason)


class Message(NamedTuple):
    """One message of a stream, by places in its bytes."""

    kind: int
    """0 also for one that says nothing, END for the mark at the stream's end."""
    header: int
    body: int
    """Where its buffers begin."""
    end: int


def message_at(body: bytes | bytearray | memoryview, p: int) -> Message | None:
    """The message that begins at `p`; it may end behind `body`. None where its end is not known.

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
        return Message(END, 0, p, p)
    head, p = p, p + size
    if p > len(body):
        return None
    message = head + unpack_from("<I", body, head)[0]
    kind_at = _field(body, message, _HEADER_TYPE)
    header_at = _field(body, message, _HEADER)
    length_at = _field(body, message, _BODY_LENGTH)
    begins = p
    p += unpack_from("<q", body, length_at)[0] if length_at else 0
    if p <= head:
        raise IndexError(p)
    if not kind_at or not header_at:
        return Message(0, 0, begins, p)
    return Message(body[kind_at], _table(body, header_at), begins, p)


class MessageCutter:
    """Cuts a stream behind record batches; the schema and the dictionaries go with each chunk."""

    has_lines = False

    def __init__(self) -> None:
        self._schema = b""
        self._dictionaries: dict[int, list[bytes]] = {}

    def end_of(self, text: bytes, size: int) -> int:
        """Behind the last record batch that ends up to `size`, or else behind the next one.

        0 where that is not known before more arrives. Raises Problem 400.
        """
        found = p = 0
        try:
            while (message := message_at(text, p)) and message.end <= len(text):
                p = message.end
                if message.kind == RECORDS and (p <= size or not found):
                    found = p
                if found and p >= size:
                    break
        except (StructError, IndexError):
            raise _damaged() from None
        return found

    def carried_into(self, own: memoryview) -> bytes:
        """What stands before a chunk, which is then looked through for what the next ones need."""
        dictionaries = [part for parts in self._dictionaries.values() for part in parts]
        carried = b"".join([self._schema, *dictionaries])
        p = 0
        try:
            while (message := message_at(own, p)) and message.end <= len(own):
                if message.kind == SCHEMA:
                    self._schema = bytes(own[p : message.end])
                elif message.kind == DICTIONARY:
                    self._keep(own, message, bytes(own[p : message.end]))
                p = message.end
        except (StructError, IndexError):
            raise _damaged() from None
        return carried

    def _keep(self, body: memoryview, message: Message, part: bytes) -> None:
        """A dictionary replaces the one before it, or adds to it."""
        id_at = _field(body, message.header, _ID_OF_DICTIONARY)
        delta_at = _field(body, message.header, _IS_DELTA)
        number = unpack_from("<q", body, id_at)[0] if id_at else 0
        before = self._dictionaries.get(number, []) if delta_at and body[delta_at] else []
        self._dictionaries[number] = [*before, part]


def is_big_endian(body: bytes, schema: Message) -> bool:
    """Whether the numbers of the stream with this schema are written the other way round."""
    order_at = _field(body, schema.header, _ENDIANNESS)
    return bool(order_at) and body[order_at] != 0


def plain_records(body: bytes, message: Message, columns: int) -> list[int] | None:
    """Rows of a record batch, and where in `body` the numbers of each of its columns begin.

    None where it is not plain: a null, other buffers than two a column, or numbers of eight bytes
    that do not all lie within it. Raises StructError or IndexError for a damaged one.
    """
    record = message.header
    length_at = _field(body, record, _ROWS)
    rows = int(unpack_from("<q", body, length_at)[0]) if length_at else 0
    nodes = _pairs(body, record, _NODES)
    buffers = _pairs(body, record, _BUFFERS)
    if len(nodes) != 2 * columns or len(buffers) != 4 * columns or rows < 0:
        return None
    if any(length != rows for length in nodes[::2]) or any(nodes[1::2]):
        return None
    starts = [message.body + offset for offset in buffers[2::4]]
    sizes, room = buffers[3::4], message.end - 8 * rows
    if columns and (min(buffers[2::4]) < 0 or max(starts) > room or min(sizes) < 8 * rows):
        return None
    return [rows, *starts]


def _pairs(body: bytes, table: int, number: int) -> tuple[int, ...]:
    """The numbers in a vector of pairs of them."""
    field = _field(body, table, number)
    if not field:
        return ()
    at = _table(body, field)
    (count,) = unpack_from("<I", body, at)
    if count > len(body) // 16:
        raise IndexError(count)
    return unpack_from(f"<{2 * count}q", body, at + 4)


def _damaged() -> Problem:
    return Problem(400, "malformed-body", "no Arrow stream: it is damaged")


def _field(body: bytes | bytearray | memoryview, table: int, number: int) -> int:
    """Where a field of the flatbuffer table at `table` stands, 0 where it is not there."""
    vtable = table - unpack_from("<i", body, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    (size,) = unpack_from("<H", body, vtable)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = unpack_from("<H", body, vtable + 4 + 2 * number)
    return table + int(offset) if offset else 0


def _table(body: bytes | bytearray | memoryview, field: int) -> int:
    return field + int(unpack_from("<I", body, field)[0])
