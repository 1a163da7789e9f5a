"""A look at the messages of an Arrow stream before a library unpacks them.

Buffers may be compressed one by one, and a few bytes may then hold as much as they like. Nothing
says so but a field of each message's head, a flatbuffer: message -> header -> compression.
"""

from struct import error as StructError, unpack_from

from service.errors import Problem

_DICTIONARY, _RECORDS = 2, 3
# Places of fields in their tables, in the order of Arrow's Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DATA_OF_DICTIONARY = 1
_COMPRESSION = 3
_CONTINUATION = 0xFFFFFFFF


def check_messages(body: bytes) -> None:
    """Raise Problem 400 for a stream that is cut short or damaged, 415 for compressed buffers."""
    try:
        _check(body)
    except (StructError, IndexError):
        raise Problem(400, "malformed-body", "no Arrow stream: it is damaged") from None


def _check(body: bytes) -> None:
    p = 0
    while p < len(body):
        (size,) = unpack_from("<I", body, p)
        p += 4
        if size == _CONTINUATION:
            (size,) = unpack_from("<I", body, p)
            p += 4
        if size == 0:
            return
        head, p = p, p + size
        if p > len(body):
            raise Problem(400, "malformed-body", "no Arrow stream: it ends too early")
        message = head + unpack_from("<I", body, head)[0]
        kind_at = _field(body, message, _HEADER_TYPE)
        header_at = _field(body, message, _HEADER)
        if kind_at and header_at and body[kind_at] in (_DICTIONARY, _RECORDS):
            records = _table(body, header_at)
            if body[kind_at] == _DICTIONARY:
                data_at = _field(body, records, _DATA_OF_DICTIONARY)
                records = _table(body, data_at) if data_at else records
            if _field(body, records, _COMPRESSION):
                reason = (
                    "compressed buffers are not accepted: compress the body, by Content-Encoding"
                )
                raise Problem(415, "unsupported-media-type", reason)
        length_at = _field(body, message, _BODY_LENGTH)
        p += unpack_from("<q", body, length_at)[0] if length_at else 0
        if not head < p <= len(body):
            raise Problem(400, "malformed-body", "no Arrow stream: it ends too early")


def _field(body: bytes, table: int, number: int) -> int:
    """Where a field of the flatbuffer table at `table` stands, 0 where it is not there."""
    vtable = table - unpack_from("<i", body, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    (size,) = unpack_from("<H", body, vtable)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = unpack_from("<H", body, vtable + 4 + 2 * number)
    return table + int(offset) if offset else 0


def _table(body: bytes, field: int) -> int:
    return field + int(unpack_from("<I", body, field)[0])
