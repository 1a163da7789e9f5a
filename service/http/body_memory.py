"""Memory limit of request bodies and long responses, over all connections of the process.

A body may have the full size that one request may have, and the client decides when it ends. So the
sum over all connections has a limit. Beyond it the request that needs more memory is refused with
503. If a client sends or reads slowly, the slowest one is aborted instead: otherwise a few clients
that never finish keep all others out.
"""

import asyncio
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from dualstream.wire.problem_json import Problem

MAX_BODIES, MIN_LIMIT_BYTES = 32, 128 * 1024**2
"""Number of bodies of the maximum size that fit in the memory of a worker, and the least memory:
streamed uploads are learned in pieces of 1 MiB, however short a body has to be."""
SLOW_BYTES_PER_S = 256 * 1024
"""A client below this rate may be aborted for others."""
GRACE_S = 1.0
"""Time that the server waits for a client before the client counts as slow."""
HALF_LIFE_S = 5.0
"""Half-life of the moving average of a client's rate, in seconds of waiting."""
CANDIDATES = 64
"""Number of bodies among which the slowest is searched."""
CONNECTION = "connection"
"""Scope key of the request's connection, which `abort` closes; absent without uvicorn."""
_MEMORY, _BODY = "body_memory", "body"


def memory_limit(max_body_bytes: int) -> int:
    """Memory for the bodies of a worker in bytes, by the maximum size of one body."""
    return max(MAX_BODIES * max_body_bytes, MIN_LIMIT_BYTES)


class BodyMemory:
    """Accounts for bodies in memory; `limit` in bytes.

    A single body is always accepted: another limit bounds the size of one. Bodies that arrive whole
    with the first message are not counted.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit, self.clock = limit, clock
        self.used = 0
        self.open: dict[InFlightBody, None] = {}

    def track(self, scope: Scope) -> None:
        """Allow `body_of` to count this request's body, until `release_body`."""
        scope[_MEMORY] = self

    def make_room(self, size: int, newest: "InFlightBody") -> None:
        """Free `size` bytes by aborting slow bodies. Raises Problem 503 if none is slow."""
        while self.used + size > self.limit and self.used > newest.size:
            slowest = self._slowest()
            if slowest is None:
                raise self.full()
            slowest.abort()

    def _slowest(self) -> "InFlightBody | None":
        slow: list[tuple[float, int, InFlightBody]] = []
        for number, body in enumerate(list(islice(self.open, CANDIDATES))):
            rate = body.rate()
            if rate is not None and rate < SLOW_BYTES_PER_S:
                slow.append((rate, number, body))
            else:  # move to the end, so that the next search sees other bodies
                del self.open[body]
                self.open[body] = None
        return min(slow)[-1] if slow else None

    def full(self) -> Problem:
        """503 `too-many-bytes`."""
        detail = f"the request bodies in memory have reached {self.limit} bytes; retry later"
        return Problem(503, "too-many-bytes", detail, retry_after_s=1)


class InFlightBody:
    """Memory and transfer rate of one request's body, or of its long response."""

    def __init__(self, memory: BodyMemory, connection: Any) -> None:
        self.size = 0
        self._memory, self._connection = memory, connection
        self._is_released = self._is_aborted = False
        # Decayed sum of bytes moved, and total time that the server has waited for the client.
        self._moved, self._waited_s = 0.0, 0.0
        # Start of the current wait for the client to send, or to read.
        self._receives_since: float | None = None
        self._sends_since: float | None = None
        # The task that waits for more of the body.
        self._receiver: asyncio.Task[Any] | None = None
        memory.open[self] = None

    async def receive(self, receive: Receive) -> Message:
        """Receive a message and count its bytes. Raises Problem 503."""
        if self._is_aborted:
            raise self._memory.full()
        task = self._receiver = asyncio.current_task()
        since = self._receives_since = self._memory.clock()
        size = 0
        try:
            message = await receive()
            size = len(message.get("body", b""))
        except asyncio.CancelledError:
            if not self._is_aborted:
                raise
            assert task is not None
            task.uncancel()
            raise self._memory.full() from None
        finally:
            self._receiver = self._receives_since = None
            self._measure(since, size)
        self.reserve(size)
        return message

    async def send(self, send: Send, message: Message) -> None:
        """Send a part of the response. An abort closes the connection."""
        since = self._sends_since = self._memory.clock()
        try:
            await send(message)
        finally:
            self._sends_since = None
            self._measure(since, len(message.get("body", b"")))

    def reserve(self, size: int) -> None:
        """Count `size` more bytes. Raises Problem 503."""
        if self._is_aborted:
            raise self._memory.full()
        if not self._is_released:
            self._memory.make_room(size, self)
            self._add(size)

    def reserve_response(self, size: int) -> None:
        """Count `size` bytes of a response instead of the body. Never refused."""
        self.release(self.size)
        if not self._is_released:
            try:
                self._memory.make_room(size, self)
            except Problem:  # the work is done, so its response is sent
                pass
            self._add(size)

    def release(self, size: int) -> None:
        """Count `size` bytes less."""
        self._add(-min(size, self.size))

    def _add(self, size: int) -> None:
        self.size += size
        self._memory.used += size

    def _measure(self, since: float, size: int) -> None:
        waited_s = self._memory.clock() - since
        self._waited_s += waited_s
        self._moved = self._moved * 0.5 ** (waited_s / HALF_LIFE_S) + size

    def rate(self) -> float | None:
        """Recent rate in bytes per second of waiting.

        None if the server does not wait for the client now, or has waited less than GRACE_S.
        """
        since = self._receives_since
        if since is None and self._connection is not None:
            since = self._sends_since
        if since is None:
            return None
        waits_s = self._memory.clock() - since
        waited_s = self._waited_s + waits_s
        if waited_s < GRACE_S:
            return None
        moved: float = self._moved * 0.5 ** (waits_s / HALF_LIFE_S)
        # Correct the decayed sum for a short history, as Adam corrects its moments.
        weight: float = 1 - 0.5 ** (waited_s / HALF_LIFE_S)
        return moved * math.log(2) / HALF_LIFE_S / weight

    def abort(self) -> None:
        """Free the memory: refuse the rest of the body, or close the connection of a reader."""
        self.end()
        self._is_aborted = True
        if self._receiver is not None:
            self._receiver.cancel()
        else:
            self._connection.close_slow()

    def end(self) -> None:
        """Free the memory once the request is answered."""
        self._is_released = True
        self._memory.open.pop(self, None)
        self.release(self.size)


def body_of(scope: Scope) -> InFlightBody:
    """The request's InFlightBody, created on first use."""
    if _BODY not in scope:
        scope[_BODY] = InFlightBody(scope[_MEMORY], scope.get(CONNECTION))
    body: InFlightBody = scope[_BODY]
    return body


def is_tracked(scope: Scope) -> bool:
    """Does the request have an InFlightBody?"""
    return _BODY in scope


def release_body(scope: Scope) -> None:
    """Free the memory of the request's body, if any, once the request is answered."""
    if _BODY in scope:
        scope[_BODY].end()
