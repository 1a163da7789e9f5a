"""What bodies of requests hold in memory until they are answered, of all connections together.

Each may be as long as one may be, and whoever sends one decides when it ends. So their sum has a
bound: beyond it no more is taken in, and the request that brings it is refused, to be sent again.
Where some are sent slowly the slowest is refused in its place: else a few who never come to an end
would keep all others out.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.types import Message, Receive, Scope

from service.errors import Problem

SLOW = 256 * 1024
"""Bytes a second: who sends fewer makes room for others."""
GRACE_S = 1.0
"""Nobody is slow before he has been waited for so long."""
TRIED = 64
"""The slowest is one of so many."""
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

    def __init__(self, bodies: Bodies) -> None:
        self.size = 0
        self._bodies = bodies
        self._is_over = self._made_room = False
        # What has come, and how long the server waited for it; and who waits, since when.
        self._came, self._waited_s = 0, 0.0
        self._waiting: asyncio.Task[Any] | None = None
        self._since = 0.0
        bodies.open[self] = None

    async def receive(self, receive: Receive) -> Message:
        """The next message, whose bytes are held then. Raises Problem 503."""
        if self._made_room:
            raise self._bodies.full()
        task = self._waiting = asyncio.current_task()
        self._since = self._bodies.clock()
        try:
            message = await receive()
        except asyncio.CancelledError:
            if not self._made_room:
                raise
            assert task is not None
            task.uncancel()
            raise self._bodies.full() from None
        finally:
            self._waiting = None
            self._waited_s += self._bodies.clock() - self._since
        size = len(message.get("body", b""))
        self._came += size
        self.hold(size)
        return message

    def hold(self, size: int) -> None:
        """So many bytes more are held. Raises Problem 503."""
        if self._made_room:
            raise self._bodies.full()
        if not self._is_over:
            self._bodies.make_room(size, self)
            self.size += size
            self._bodies.held += size

    def let_go(self, size: int) -> None:
        """So many bytes are held no longer."""
        size = min(size, self.size)
        self.size -= size
        self._bodies.held -= size

    def speed(self) -> float | None:
        """Bytes a second that come of it; None where the server does not wait for more, or has not
        waited long."""
        if self._waiting is None:
            return None
        waited_s = self._waited_s + self._bodies.clock() - self._since
        return None if waited_s < GRACE_S else self._came / waited_s

    def make_room(self) -> None:
        """Hold nothing more: who waits for the rest of it hears that there is no room."""
        self.over()
        self._made_room = True
        if self._waiting is not None:
            self._waiting.cancel()

    def over(self) -> None:
        """The request is answered."""
        self._is_over = True
        self._bodies.open.pop(self, None)
        self.let_go(self.size)


def body_of(scope: Scope) -> Body:
    """What is held of the body of this request, from now on."""
    if _ONE not in scope:
        scope[_ONE] = Body(scope[_ALL])
    body: Body = scope[_ONE]
    return body


def is_held(scope: Scope) -> bool:
    """Whether somebody says what is held of the body of this request."""
    return _ONE in scope


def over(scope: Scope) -> None:
    """The request is answered, whatever was held of it."""
    if _ONE in scope:
        scope[_ONE].over()
