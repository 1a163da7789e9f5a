"""The open connections of a process: how many there may be, and how long one may keep it waiting.

Nothing is timed while requests come and go. Once a second all connections are looked at, and what
has stood still since it was first seen so is found then: a head that does not come to its end, a
body that brings too little, a client that does not read its answer. So limits hold to a second or
two.
"""

import asyncio
import math
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from service.errors import Problem

LOOK_S = 1.0
AT_ONCE = 200
"""So many are looked at before others are served again."""
LEAST_BYTES = 1024
"""Of a body or an answer, within the time that it is given: else it counts as standing still."""
RESERVED_FILES = 256
"""Descriptors for the store, the log and whatever else is not a connection."""
ROOM = 16
"""One in so many makes room when there are too many: looking for them is dear."""


class Waits(Enum):
    """What a connection waits for; in this order they make room for others."""

    IDLE = 0
    """For a request to begin."""
    HEAD = 1
    BODY = 2
    ANSWER = 3
    """For the server; never closed for it."""
    READER = 4
    """For the client to read what it was sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may take.

    head_bytes  of a head, which has the path and all headers
    head_s      until a head has come whole, and until the first one begins
    body_s      for each LEAST_BYTES of a body, and of an answer that the client has to read
    """

    head_bytes: int
    head_s: float
    body_s: float


class Connection(Protocol):
    """What is asked of a connection."""

    seen: "Sight | None"

    def waits_for(self) -> Waits: ...
    def progress(self) -> tuple[int, int]:
        """How many requests have begun; and what grows as a body comes, or an answer is read."""
        ...

    def end(self, problem: Problem | None) -> None:
        """Close it, with a refusal where one can still be told."""
        ...


@dataclass(slots=True)
class Sight:
    """Where a connection was when it was last seen to go on."""

    waits: Waits
    begun: int
    so_far: int
    at: float


class Connections:
    """Those that are open. `on_close` is called with the reason for each that is closed here."""

    def __init__(
        self,
        most: int,
        limits: Limits,
        on_close: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.most = most
        self.limits = limits
        self._on_close, self._clock = on_close, clock
        # In the order in which they came.
        self._open: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """One more; where that is one too many others are closed for it, or it is itself."""
        self._open[connection] = None
        if len(self._open) > self.most:
            self._make_room(connection)

    def discard(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def closed(self, reason: str) -> None:
        """A connection is closed for a reason that it found itself."""
        self._on_close(reason)

    async def run(self) -> None:
        """Look at them, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            found = list(self._open)
            for first in range(0, len(found), AT_ONCE):
                self.look(found[first : first + AT_ONCE])
                await asyncio.sleep(0)

    def look(self, connections: Iterable[Connection]) -> None:
        """Close those of them that have stood still for too long."""
        now = self._clock()
        for connection in connections:
            if connection not in self._open:
                continue
            waits, (begun, so_far) = connection.waits_for(), connection.progress()
            seen = connection.seen
            if seen is None or seen.waits is not waits or seen.begun != begun:
                connection.seen = Sight(waits, begun, so_far, now)
                continue
            reason = self._reason(seen, now - seen.at)
            if reason is None:
                continue
            if so_far - seen.so_far >= LEAST_BYTES:
                seen.so_far, seen.at = so_far, now
                continue
            self._on_close(reason)
            connection.end(self._too_slow(waits))

    def _reason(self, seen: Sight, still_s: float) -> str | None:
        """Why a connection that has stood so for so long is closed; None where it is not."""
        if seen.waits is Waits.IDLE and seen.begun:
            return None  # uvicorn's own timer runs
        if seen.waits in (Waits.IDLE, Waits.HEAD):
            reason = "idle" if seen.waits is Waits.IDLE else "slow-head"
            return reason if still_s > self.limits.head_s else None
        if seen.waits in (Waits.BODY, Waits.READER):
            reason = "slow-body" if seen.waits is Waits.BODY else "slow-reader"
            return reason if still_s > self.limits.body_s else None
        return None

    def _too_slow(self, waits: Waits) -> Problem | None:
        if waits is Waits.HEAD:
            return Problem(
                408, "too-slow", f"the request's head took more than {self.limits.head_s:g} s"
            )
        if waits is Waits.BODY:
            detail = (
                f"the body brought less than {LEAST_BYTES} bytes within {self.limits.body_s:g} s"
            )
            return Problem(408, "too-slow", detail)
        return None

    def _make_room(self, newest: Connection) -> None:
        """Close the idlest, a sixteenth of all; the newest where all others are being answered.

        Of those that wait for the same, such first as never asked for anything: a client that asks
        now and then is not closed for a crowd that says nothing. Then who stood still longest.
        """
        found = []
        for place, connection in enumerate(self._open):
            waits, seen, brought = connection.waits_for(), connection.seen, 0
            if waits.value > Waits.BODY.value or connection is newest:
                continue
            begun, so_far = connection.progress()
            if waits is Waits.BODY:  # those first that have brought least since they were looked at
                brought = so_far - (0 if seen is None else seen.so_far)
            still_since = math.inf if seen is None or seen.begun != begun else seen.at
            order = (waits.value, brought, begun > 0, still_since, place)
            found.append((order, connection))
        found.sort(key=lambda one: one[0])
        idlest = [connection for _, connection in found[: max(1, self.most // ROOM)]]
        for connection in idlest or [newest]:
            self._on_close("room")
            connection.end(None)


def room_for(most: int) -> int:
    """So many connections, or as many as the process may have files open, less a reserve.

    Its own limit of files is raised to as much as it is allowed to.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, soft - RESERVED_FILES))
