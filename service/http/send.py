"""Responses of plain ASGI endpoints: JSON, NDJSON, problem documents, long bodies in pieces."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.types import Message, Scope, Send

from dualstream.service.http.body_memory import body_of, is_tracked
from dualstream.service.http.exceptions_to_problems import problem_of
from dualstream.service.http.request_head import NDJSON
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.wire.problem_json import MEDIA_TYPE, Problem

PIECE_BYTES = 64 * 1024
"""A longer answer is sent in pieces of this size."""
_encode = msgspec.json.Encoder().encode
Headers = list[tuple[bytes, bytes]]


def json_line(answered: Any) -> bytes:
    """JSON of an answer, with a newline at its end for terminals."""
    return _encode(answered) + b"\n"


def without_body(send: Send) -> Send:
    """`send` for a response to HEAD: it ends after the headers, which are those for GET."""

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return send_head


async def send_json(send: Send, body: bytes, headers: Headers, scope: Scope) -> None:
    """Send 200 with a JSON body."""
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    head += headers
    await send({"type": "http.response.start", "status": 200, "headers": head})
    message = {"type": "http.response.body", "body": body}
    await (send(message) if len(body) <= PIECE_BYTES else send_in_pieces(send, message, scope))


async def send_in_pieces(send: Send, message: Message, scope: Scope) -> None:
    """Send a long part of an answer piece by piece, each after most of the previous one was sent.

    So a client that does not read occupies few socket buffers, and a fast client delays others by
    one piece. The rest counts as memory of bodies (`body_memory.py`).
    """
    memory = body_of(scope)
    memory.reserve_response(len(message["body"]))
    body, size = memoryview(message["body"]), len(message["body"])
    for start in range(0, size, PIECE_BYTES):
        more = start + PIECE_BYTES < size or message.get("more_body", False)
        piece = body[start : start + PIECE_BYTES]
        await memory.send(send, {"type": message["type"], "body": piece, "more_body": more})
        await asyncio.sleep(0)


async def send_problem(send: Send, problem: Problem, instance: str) -> None:
    body = problem.body(instance, REQUEST_ID.get())
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        *((name.encode(), value.encode()) for name, value in problem.headers().items()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def one_line(answered: msgspec.Struct) -> AsyncIterator[msgspec.Struct]:
    """An iterator of one line."""
    yield answered


async def answer_lines(
    send: Send, lines: AsyncIterator[msgspec.Struct], headers: Headers, scope: Scope
) -> int:
    """Send an answer as NDJSON. Returns 200, or the status of the problem in the last line.

    Raises an exception that occurs before the first line.
    """
    status, has_begun = 200, False
    try:
        async for answered in lines:
            if not has_begun:
                has_begun = True
                head = [(b"content-type", NDJSON), *headers]
                await send({"type": "http.response.start", "status": 200, "headers": head})
            await _send_line(send, json_line(answered), scope)
    except Exception as error:
        if not has_begun:
            raise
        problem = problem_of(error, scope)
        status = problem.status
        await _send_line(send, problem.body(scope["path"], REQUEST_ID.get()), scope)
    await send({"type": "http.response.body", "body": b""})
    return status


async def _send_line(send: Send, line: bytes, scope: Scope) -> None:
    message = {"type": "http.response.body", "body": line, "more_body": True}
    await (body_of(scope).send(send, message) if is_tracked(scope) else send(message))
