"""Request bodies of all routes: read and decompress them within limits."""

import sys
from collections.abc import AsyncIterator, Iterator

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from dualstream.service.codecs.decompress import Inflating
from dualstream.service.concurrency import SingleThread
from dualstream.service.http.body_memory import body_of, is_tracked
from dualstream.service.http.request_head import Head
from dualstream.wire.problem_json import Problem

# Bytes and pieces of one decompression step. Bodies longer than _INFLATED_INLINE are decompressed
# in one thread for all bodies, at low priority: concurrent bodies take turns step by step, and the
# event loop keeps the core.
_STEP_BYTES = 256 * 1024
_STEP_PIECES = 256
_INFLATED_INLINE = 4096
_DECOMPRESSOR = SingleThread("inflate", niceness=5)


class BodyRefused(HTTPException):
    """A Problem for routes whose body FastAPI reads.

    FastAPI takes every exception but HTTPException for a body that cannot be parsed.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.detail)
        self.problem = problem


async def read_body(receive: Receive, head: Head, limit: int, scope: Scope) -> bytes:
    """The whole body. Raises as `body_pieces`."""
    if head.content_encoding is None and (head.content_length or 0) <= limit:
        message = await receive()  # most bodies arrive in one message
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) <= limit:
                return body
        receive = _again(message, receive)
    pieces = [piece async for piece in body_pieces(receive, head, limit, scope)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def limit_body(receive: Receive, limit: int, scope: Scope) -> Receive:
    """Wrap `receive` for routes whose body FastAPI reads.

    Raises BodyRefused: 413 beyond `limit`, 503 without memory for the body.
    """
    size, memory = 0, None

    async def receive_bounded() -> Message:
        nonlocal size, memory
        try:
            if size and memory is None and not is_tracked(scope):
                memory = body_of(scope)
                memory.reserve(size)
            message = await (receive() if memory is None else memory.receive(receive))
        except Problem as full:
            raise BodyRefused(full) from None
        size += len(message.get("body", b""))
        if size > limit:
            raise BodyRefused(_too_large(limit))
        return message

    return receive_bounded


def _again(message: Message, receive: Receive) -> Receive:
    """A `receive` that returns this message first."""
    first: list[Message] = [message]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def body_pieces(
    receive: Receive, head: Head, limit: int | None, scope: Scope
) -> AsyncIterator[bytes]:
    """The decompressed body piece by piece. All of it counts as memory of bodies
    (`body_memory.py`).

    Raises Problem 413 as soon as the length exceeds `limit`, 400 if the body is truncated, 503
    without memory for it.
    """
    limit = sys.maxsize if limit is None else limit
    size = head.content_length or 0
    inflating = Inflating(head.content_encoding, limit) if head.content_encoding else None
    if size > limit:
        raise _too_large(limit)
    memory = body_of(scope)
    size, goes_on = 0, True
    while goes_on:
        message = await memory.receive(receive)
        if message["type"] == "http.disconnect":
            raise Problem(
                400, "malformed-body", "the connection was closed before the end of the body"
            )
        piece: bytes = message.get("body", b"")
        goes_on = message.get("more_body", False)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if inflating is None:
            yield piece
            continue
        pieces, is_over = inflating.pieces(piece), False
        if len(piece) <= _INFLATED_INLINE:
            inflated, is_over = _step(pieces)
            memory.reserve(len(inflated))
            yield inflated
        while not is_over:
            inflated, is_over = await _DECOMPRESSOR.run(_step, pieces)
            memory.reserve(len(inflated))
            yield inflated
        memory.release(len(piece))
    if inflating is not None:
        inflating.finish()


def _step(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Decompress one step; returns its bytes and whether they are the last."""
    inflated, size = [], 0
    for piece in pieces:
        inflated.append(piece)
        size += len(piece)
        if size >= _STEP_BYTES or len(inflated) >= _STEP_PIECES:
            return b"".join(inflated), False
    return b"".join(inflated), True


async def read_up_to(size: int, pieces: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """Read until the body exceeds `size` or ends; returns its bytes and whether it exceeds."""
    received, so_far = [], 0
    async for piece in pieces:
        received.append(piece)
        so_far += len(piece)
        if so_far > size:
            return b"".join(received), True
    return b"".join(received), False


async def prepend(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The first bytes, then the pieces."""
    yield first
    async for piece in pieces:
        yield piece


def _too_large(limit: int) -> Problem:
    detail = f"the body is longer than {limit} bytes, the maximum; split it into smaller requests"
    return Problem(413, "body-too-large", detail)
