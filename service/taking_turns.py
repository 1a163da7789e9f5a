"""More of what a connection has sent at once, when its turn comes.

Whoever sends many requests behind one another, or a head of a thousand lines, has been read by the
loop as a whole; taken up as a whole it would keep all others waiting. So a connection gives the
parser one request, or a little of one, and goes to the end of a queue that all have in common; its
head comes up in each turn of the event loop. Who sends one request at a time waits only where many
come together that take long: a few of these are taken up at once, and the others in turns as well.
"""

import asyncio
from collections import deque
from typing import Protocol

AT_ONCE = 1
"""So many come up in a turn of the loop: what others ask takes several of them."""
FEW = 2
"""Requests that take long begin so many in a turn, without waiting for theirs."""


class Connection(Protocol):
    """One that has more."""

    def go_on(self) -> None:
        """Take up the next of it."""


class TakingTurns:
    """The connections that wait so, of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()
        self._is_running = False
        self._begun = 0

    def may_begin(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether one that takes long begins in this turn; it is counted then."""
        if self._begun >= FEW:
            return False
        if not self._begun:
            loop.call_soon(self._come_round)
        self._begun += 1
        return True

    def _come_round(self) -> None:
        """All that came together are here, and are taken up after this."""
        self._begun = 0

    def wait(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Let this one go on behind those that wait already; to be asked once until it does."""
        self._waiting.append(connection)
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._waiting.popleft().go_on()
        self._is_running = bool(self._waiting)
        if self._is_running:
            loop.call_soon(self._next, loop)
