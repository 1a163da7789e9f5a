"""A request's body on its way in; the sender waits while nobody asks for more of it."""

import sys
from collections.abc import AsyncIterator, Iterator

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from dualstream.service.api.http import Head
from dualstream.service.codecs.decompress import Inflating
from dualstream.service.concurrency import SingleThread
from dualstream.service.transport.body_memory import body_of, is_tracked
from dualstream.wire.problems import Problem

# Of a compressed body so much is inflated at once: bytes that come out, and pieces that they are.
# What is more goes on in a thread. There is one for all bodies: however many come at the same time,
# others wait for a single step at most, and it gives way to those who answer on the same core.
_STEP_BYTES = 256 * 1024
_STEP_PIECES = 256
_INFLATED_INLINE = 4096
_INFLATER = SingleThread("inflate", niceness=5)


class BodyRefused(HTTPException):
    """For routes whose bodies the framework reads, which takes any exception but its own for a body
    that cannot be parsed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.detail)
        self.problem = problem


async def read_body(receive: Receive, head: Head, limit: int, scope: Scope) -> bytes:
    """The whole body; raises what `arriving` raises."""
    if head.content_encoding is None and (head.content_length or 0) <= limit:
        message = await receive()  # the whole of most bodies
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) <= limit:
                return body
        receive = _again(message, receive)
    pieces = [piece async for piece in arriving(receive, head, limit, scope)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def bounded(receive: Receive, limit: int, scope: Scope) -> Receive:
    """For routes whose bodies the framework reads: it refuses with 413 what is longer than `limit`,
    and with 503 what there is no room for."""
    size, held = 0, None

    async def receive_bounded() -> Message:
        nonlocal size, held
        try:
            if size and held is None and not is_tracked(scope):
                held = body_of(scope)
                held.reserve(size)
            message = await (receive() if held is None else held.receive(receive))
        except Problem as full:
            raise BodyRefused(full) from None
        size += len(message.get("body", b""))
        if size > limit:
            raise BodyRefused(_too_large(limit))
        return message

    return receive_bounded


def _again(message: Message, receive: Receive) -> Receive:
    """Receives that message, and then what comes next."""
    first: list[Message] = [message]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def arriving(
    receive: Receive, head: Head, limit: int | None, scope: Scope
) -> AsyncIterator[bytes]:
    """The body piece by piece, inflated where it is compressed; all of it is held (`bodies.py`).

    Raises Problem 413 as soon as it is known to be longer than `limit`, 400 where it is cut short,
    503 where there is no room for it.
    """
    limit = sys.maxsize if limit is None else limit
    size = head.content_length or 0
    inflating = Inflating(head.content_encoding, limit) if head.content_encoding else None
    if size > limit:
        raise _too_large(limit)
    held = body_of(scope)
    size, goes_on = 0, True
    while goes_on:
        message = await held.receive(receive)
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
        pieces, is_over = inflating.pieces(piece), False
        if len(piece) <= _INFLATED_INLINE:
            some, is_over = _step(pieces)
            held.reserve(len(some))
            yield some
        while not is_over:
            some, is_over = await _INFLATER.run(_step, pieces)
            held.reserve(len(some))
            yield some
        held.release(len(piece))
    if inflating is not None:
        inflating.finish()


def _step(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The next ones, as long as they are not many; whether they were the last."""
    some, size = [], 0
    for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _STEP_BYTES or len(some) >= _STEP_PIECES:
            return b"".join(some), False
    return b"".join(some), True


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
