"""Refusals in a rush are told a moment later.

Who asks again at once, whatever he is told, takes the time that learning needs; on so many
connections he can ask that much less often. Who waits as he is told loses nothing.
"""

import asyncio
from collections import deque
from typing import Any, Protocol

HOLD_S = 0.025
LET_GO_S = 0.0025
"""So often those are told whose time has come: few enough together that no turn is long."""


class Connection(Protocol):
    """One that waits for an answer, until the loop's clock says so much."""

    held_until: float

    def let_go(self) -> None:
        """Send what is held back."""


class HoldingBack:
    """The connections that wait so, of one event loop."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Connection]] = deque()
        self._is_running = False

    def hold(self, connection: Connection, now: float, loop: Any) -> None:
        """Let go of what this connection holds back in a moment."""
        connection.held_until = until = now + HOLD_S
        self._held.append((until, connection))
        if not self._is_running:
            self._is_running = True
            loop.call_later(LET_GO_S, self._let_go, loop)

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        held, now = self._held, loop.time()
        while held and held[0][0] <= now:
            until, connection = held.popleft()
            if connection.held_until == until:  # else it has let go by itself
                connection.let_go()
        self._is_running = bool(held)
        if held:
            loop.call_later(LET_GO_S, self._let_go, loop)
