"""Answers of many lines of JSON, each sent as soon as it is there."""

import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.types import Scope, Send

from service.api.http import NDJSON, Headers
from service.bodies import body_of, is_held
from service.errors import Problem, as_problem, let_go

log = logging.getLogger("dualstream.http")

_encode = msgspec.json.Encoder().encode


async def one_line(told: msgspec.Struct) -> AsyncIterator[msgspec.Struct]:
    """An answer that is there already, as lines."""
    yield told


async def answer_lines(
    send: Send, told_of: AsyncIterator[msgspec.Struct], headers: Headers, scope: Scope
) -> int:
    """Send what is told; the status, or that of the problem that ends it as its last line.

    Raises what comes before the first line.
    """
    status, has_begun = 200, False
    try:
        async for told in told_of:
            if not has_begun:
                has_begun = True
                head = [(b"content-type", NDJSON), *headers]
                await send({"type": "http.response.start", "status": 200, "headers": head})
            await _add(send, _encode(told), scope)
    except Exception as error:
        if not has_begun:
            raise
        problem = problem_of(error, scope)
        status = problem.status
        await _add(send, problem.body(scope["path"]), scope)
    await send({"type": "http.response.body", "body": b""})
    return status


async def _add(send: Send, line: bytes, scope: Scope) -> None:
    message = {"type": "http.response.body", "body": line + b"\n", "more_body": True}
    await (body_of(scope).send(send, message) if is_held(scope) else send(message))


def problem_of(error: Exception, scope: Scope) -> Problem:
    """What the client is told of an error; of one that means nothing to it, the log."""
    problem = as_problem(error)
    if problem is None:
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        problem = Problem(500, "internal-error", "the server failed; its log says why")
    let_go(error)
    return problem
