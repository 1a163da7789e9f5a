"""A request's body on its way in; the sender waits while nobody asks for more of it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from service.api.http import Head
from service.codecs.inflate import Inflating
from service.errors import Problem

# A longer piece of a compressed body is inflated in a thread: it may hold a thousand times as much.
_INFLATED_INLINE = 4096
_INFLATED_AT_ONCE = 1024 * 1024


async def read_body(receive: Receive, head: Head, limit: int) -> bytes:
    """The whole body; raises what `arriving` raises."""
    if head.content_encoding is None and (head.content_length or 0) <= limit:
        message = await receive()  # the whole of most bodies
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) <= limit:
                return body
        receive = _again(message, receive)
    pieces = [piece async for piece in arriving(receive, head, limit)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def bounded(receive: Receive, limit: int) -> Receive:
    """For routes whose bodies the framework reads: it refuses with 413 what is longer than `limit`.

    As an exception of the framework's, which takes any other for a body that cannot be parsed.
    """
    size = 0

    async def receive_bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise HTTPException(413, _too_large(limit).detail)
        return message

    return receive_bounded


def _again(message: Message, receive: Receive) -> Receive:
    """Receives that message, and then what comes next."""
    first: list[Message] = [message]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def arriving(receive: Receive, head: Head, limit: int | None) -> AsyncIterator[bytes]:
    """The body piece by piece, inflated where it is compressed.

    Raises Problem 413 as soon as it is known to be longer than `limit`, 400 where it is cut short.
    """
    limit = sys.maxsize if limit is None else limit
    size = head.content_length or 0
    inflating = Inflating(head.content_encoding, limit) if head.content_encoding else None
    if size > limit:
        raise _too_large(limit)
    size, goes_on = 0, True
    while goes_on:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "malformed-body", "the connection closed before the body's end")
        piece: bytes = message.get("body", b"")
        goes_on = message.get("more_body", False)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if inflating is None:
            yield piece
            continue
        inflated = inflating.pieces(piece)
        if len(piece) <= _INFLATED_INLINE:
            yield b"".join(inflated)
        else:
            while some := await asyncio.to_thread(_some_of, inflated):
                yield some
    if inflating is not None:
        inflating.finish()


def _some_of(pieces: Iterator[bytes]) -> bytes:
    """So many of the pieces that a thread was worth it; nothing at their end."""
    some, size = [], 0
    while size < _INFLATED_AT_ONCE and (piece := next(pieces, None)) is not None:
        some.append(piece)
        size += len(piece)
    return b"".join(some)


async def up_to(size: int, pieces: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """The first pieces, until they are longer than `size`; whether they are."""
    held, so_far = [], 0
    async for piece in pieces:
        held.append(piece)
        so_far += len(piece)
        if so_far > size:
            return b"".join(held), True
    return b"".join(held), False


async def beginning_with(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Those pieces behind the first bytes."""
    yield first
    async for piece in pieces:
        yield piece


def _too_large(limit: int) -> Problem:
    return Problem(413, "body-too-large", f"the body is longer than {limit} bytes")
