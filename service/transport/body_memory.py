"""What bodies of requests, and long answers, hold in memory, of all connections together.

Each may be as long as one may be, and whoever sends one, or reads one, decides when it ends. So
their sum has a bound: beyond it no more is taken in, and the request that brings it is refused, to
be sent again. Where some are sent or read slowly the slowest gives way in its place: else a few who
never come to an end would keep all others out.
"""

import asyncio
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from dualstream.wire.problems import Problem

SLOW = 256 * 1024
"""Bytes a second: who sends or reads fewer makes room for others."""
GRACE_S = 1.0
"""Nobody is slow before he has been waited for so long."""
HALF_S = 5.0
"""Of waiting: what came before it counts half."""
TRIED = 64
"""The slowest is one of so many."""
CONNECTION = "connection"
"""In the scope of a request: what can be closed to `make_room`, where there is one."""
_ALL, _ONE = "bodies", "body"


class Bodies:
    """Those that are under way, but for such as came whole at once. `most` bytes of them are held.

    One that is alone always has room: how long it may be is told elsewhere.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most, self.clock = most, clock
        self.held = 0
        self.open: dict[Body, None] = {}

    def may_be_held_for(self, scope: Scope) -> None:
        """The request of this scope may hold a body, until `over`."""
        scope[_ALL] = self

    def make_room(self, size: int, newest: "Body") -> None:
        """Have room for so many bytes more. Raises Problem 503."""
        while self.held + size > self.most and self.held > newest.size:
            slowest = self._slowest()
            if slowest is None:
                raise self.full()
            slowest.make_room()

    def _slowest(self) -> "Body | None":
        found: list[tuple[float, int, Body]] = []
        for number, one in enumerate(list(islice(self.open, TRIED))):
            speed = one.speed()
            if speed is not None and speed < SLOW:
                found.append((speed, number, one))
            else:  # others are looked at the next time
                del self.open[one]
                self.open[one] = None
        return min(found)[-1] if found else None

    def full(self) -> Problem:
        detail = (
            f"the bodies of requests hold {self.most} bytes together, and no more is taken in now;"
            " send it again later"
        )
        return Problem(503, "too-many-bytes", detail, retry_after_s=1)


class Body:
    """One of them: `size` bytes of it are held."""

    def __init__(self, bodies: Bodies, connection: Any) -> None:
        self.size = 0
        self._bodies, self._connection = bodies, connection
        self._is_over = self._made_room = False
        # What has come or gone, the latest most; how long the other side was waited for; since when
        # it is, if it is, for more of the body or to read; and by whom for more of the body.
        self._moved, self._waited_s = 0.0, 0.0
        self._receives_since: float | None = None
        self._sends_since: float | None = None
        self._receives: asyncio.Task[Any] | None = None
        bodies.open[self] = None

    async def receive(self, receive: Receive) -> Message:
        """The next message, whose bytes are held then. Raises Problem 503."""
        if self._made_room:
            raise self._bodies.full()
        task = self._receives = asyncio.current_task()
        since = self._receives_since = self._bodies.clock()
        size = 0
        try:
            message = await receive()
            size = len(message.get("body", b""))
        except asyncio.CancelledError:
            if not self._made_room:
                raise
            assert task is not None
            task.uncancel()
            raise self._bodies.full() from None
        finally:
            self._receives = self._receives_since = None
            self._saw(since, size)
        self.hold(size)
        return message

    async def send(self, send: Send, message: Message) -> None:
        """Send a part of the answer; nobody hears it who reads too slowly."""
        since = self._sends_since = self._bodies.clock()
        try:
            await send(message)
        finally:
            self._sends_since = None
            self._saw(since, len(message.get("body", b"")))

    def hold(self, size: int) -> None:
        """So many bytes more are held. Raises Problem 503."""
        if self._made_room:
            raise self._bodies.full()
        if not self._is_over:
            self._bodies.make_room(size, self)
            self._add(size)

    def hold_answer(self, size: int) -> None:
        """So many bytes of an answer are there in place of the body, and have to be sent."""
        self.let_go(self.size)
        if not self._is_over:
            try:
                self._bodies.make_room(size, self)
            except Problem:  # what was done is told
                pass
            self._add(size)

    def let_go(self, size: int) -> None:
        """So many bytes are held no longer."""
        self._add(-min(size, self.size))

    def _add(self, size: int) -> None:
        self.size += size
        self._bodies.held += size

    def _saw(self, since: float, size: int) -> None:
        waited_s = self._bodies.clock() - since
        self._waited_s += waited_s
        self._moved = self._moved * 0.5 ** (waited_s / HALF_S) + size

    def speed(self) -> float | None:
        """Bytes a second that come, or are read, of late; None where the server does not wait for
        them, or has not waited long."""
        since = self._receives_since
        if since is None and self._connection is not None:
            since = self._sends_since
        if since is None:
            return None
        waits_s = self._bodies.clock() - since
        waited_s = self._waited_s + waits_s
        if waited_s < GRACE_S:
            return None
        moved: float = self._moved * 0.5 ** (waits_s / HALF_S)
        # What was waited for long ago is forgotten: the rest counts over as much time as is not.
        known: float = 1 - 0.5 ** (waited_s / HALF_S)
        return moved * math.log(2) / HALF_S / known

    def make_room(self) -> None:
        """Hold nothing more: who sends hears that there is no room, who does not read is left."""
        self.over()
        self._made_room = True
        if self._receives is not None:
            self._receives.cancel()
        else:
            self._connection.make_room()

    def over(self) -> None:
        """The request is answered."""
        self._is_over = True
        self._bodies.open.pop(self, None)
        self.let_go(self.size)


def body_of(scope: Scope) -> Body:
    """What is held of the body of this request, from now on."""
    if _ONE not in scope:
        scope[_ONE] = Body(scope[_ALL], scope.get(CONNECTION))
    body: Body = scope[_ONE]
    return body


def is_held(scope: Scope) -> bool:
    """Whether somebody says what is held of the body of this request."""
    return _ONE in scope


def over(scope: Scope) -> None:
    """The request is answered, whatever was held of it."""
    if _ONE in scope:
        scope[_ONE].over()
