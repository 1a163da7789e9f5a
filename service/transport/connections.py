"""The open connections of a process: how many there may be, and how long one may keep it waiting.

Nothing is timed while requests come and go. Once a second all connections are looked at, and what
has stood still since it was first seen so is found then: a head that does not come to its end, a
body that brings too little, a client that does not read its answer. So limits hold to a second or
two. However many are to be closed, others are served in between: a few are closed at a time.
"""

import asyncio
import math
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Protocol

from dualstream.wire.problems import Problem

LOOK_S = 1.0
AT_ONCE, CLOSED_AT_ONCE = 100, 8
"""So many are looked at, or closed, before others are served again."""
PAUSE_S = 0.001
"""For them to be served: in one turn of the loop a request does not get far."""
MIN_BYTES = 1024
"""Of a body or an answer, within the time that it is given: else it counts as standing still."""
MAX_HEAD_BYTES = 64 * 1024
"""Longest path and headers of a request together."""
MAX_HEAD_S = 10.0
"""Time for a request's head, and for the first request of a connection."""
MAX_BODY_STEP_S = 30.0
"""Time for every MIN_BYTES of a body, or of an answer that the client reads."""
LISTENS = "listens"
"""In the scope of a request whose answer is a stream without an end."""
RESERVED_FILES = 256
"""Descriptors for the store, the log and whatever else is not a connection."""
TRIED, CHOICE = 64, 8
"""Whoever makes room is one of so many that could, found among so many."""


class Waits(Enum):
    """What a connection waits for; in this order they make room for others."""

    IDLE = 0
    """For a request to begin."""
    HEAD = 1
    BODY = 2
    LISTENS = 3
    """For events, for as long as it likes."""
    ANSWER = 4
    """For the server; never closed for it."""
    READER = 5
    """For the client to read what it was sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may take.

    head_bytes  of a head, which has the path and all headers
    head_s      until a head has come whole, and until the first one begins
    body_s      for each MIN_BYTES of a body, and of an answer that the client has to read
    idle_s      between an answer and the next request
    """

    head_bytes: int
    head_s: float
    body_s: float
    idle_s: float


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
        # Who never asked for anything, as they came; who did, those last that were seen to go on
        # last; and who has been closed and is not gone.
        self._silent: dict[Connection, None] = {}
        self._asked: dict[Connection, None] = {}
        self._ended: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._asked) + len(self._ended)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._asked or connection in self._silent or connection in self._ended

    def __iter__(self) -> Iterator[Connection]:
        return chain(self._silent, self._asked, self._ended)

    def add(self, connection: Connection) -> None:
        """One more; where that is one too many another is closed for it, or it is itself."""
        self._silent[connection] = None
        if len(self) > self.most:
            idlest = self._idlest(connection) or connection
            self._on_close("room")
            self._end(idlest, None)

    def discard(self, connection: Connection) -> None:
        for some in (self._silent, self._asked, self._ended):
            some.pop(connection, None)

    def closed(self, reason: str) -> None:
        """A connection is closed for a reason that it found itself."""
        self._on_close(reason)

    async def run(self) -> None:
        """Look at them, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            found = iter(list(self))
            while self.look(found):
                await asyncio.sleep(PAUSE_S)

    def look(self, connections: Iterable[Connection]) -> bool:
        """Look at some of them and close those that have stood still for too long.

        Whether there may be more: of an iterator it takes those that it has looked at.
        """
        now, looked_at, closed = self._clock(), 0, 0
        for connection in islice(connections, AT_ONCE):
            looked_at += 1
            closed += connection in self and self._look_at(connection, now)
            if closed == CLOSED_AT_ONCE:
                return True
        return looked_at == AT_ONCE

    def _look_at(self, connection: Connection, now: float) -> bool:
        """Whether it is closed, having stood still for too long."""
        waits, (begun, so_far) = connection.waits_for(), connection.progress()
        seen = connection.seen
        if seen is None or seen.waits is not waits or seen.begun != begun:
            connection.seen = Sight(waits, begun, so_far, now)
            self._goes_on(connection, begun)
            return False
        limit_s, reason = self._limit(seen)
        if now - seen.at <= limit_s:
            return False
        if so_far - seen.so_far >= MIN_BYTES:
            seen.so_far, seen.at = so_far, now
            self._goes_on(connection, begun)
            return False
        if reason is not None:
            self._on_close(reason)
        self._end(connection, self._too_slow(waits))
        return True

    def _goes_on(self, connection: Connection, begun: int) -> None:
        if begun and connection not in self._ended:
            self._silent.pop(connection, None)
            self._asked.pop(connection, None)
            self._asked[connection] = None

    def _end(self, connection: Connection, problem: Problem | None) -> None:
        self.discard(connection)
        self._ended[connection] = None
        connection.end(problem)

    def _limit(self, seen: Sight) -> tuple[float, str | None]:
        """How long a connection may stand still so, and the reason that its closing counts as."""
        limits = self.limits
        if seen.waits is Waits.IDLE:
            return (limits.idle_s, None) if seen.begun else (limits.head_s, "idle")
        return {
            Waits.HEAD: (limits.head_s, "slow-head"),
            Waits.BODY: (limits.body_s, "slow-body"),
            Waits.READER: (limits.body_s, "slow-reader"),
        }.get(seen.waits, (math.inf, None))

    def _too_slow(self, waits: Waits) -> Problem | None:
        if waits is Waits.HEAD:
            return Problem(
                408, "too-slow", f"the request's head took more than {self.limits.head_s:g} s"
            )
        if waits is Waits.BODY:
            detail = f"the body brought less than {MIN_BYTES} bytes within {self.limits.body_s:g} s"
            return Problem(408, "too-slow", detail)
        return None

    def _idlest(self, newest: Connection) -> Connection | None:
        """Who makes room: who came first of those that never asked for anything.

        A client that asks now and then is not closed for a crowd that says nothing. Where there is
        no crowd it is one of those who stand still longest, those first that wait for a request to
        begin, of bodies that which has brought least, and streams of events last; None where
        all are being answered.
        """
        for connection in list(islice(self._silent, TRIED)):
            begun, _ = connection.progress()
            if begun:
                self._goes_on(connection, begun)
            elif connection is not newest:
                return connection
        found: list[tuple[int, int, float, int, Connection]] = []
        listening = None
        for connection in list(islice(self._asked, TRIED)):
            waits, seen = connection.waits_for(), connection.seen
            begun, so_far = connection.progress()
            has_gone_on = seen is None or seen.begun != begun
            if waits.value > Waits.BODY.value or has_gone_on:
                self._goes_on(connection, begun)
            if waits is Waits.LISTENS:
                listening = listening or connection
            if waits.value > Waits.BODY.value or connection is newest:
                continue
            brought = 0
            if waits is Waits.BODY:
                brought = so_far - (0 if seen is None else seen.so_far)
            still_since = math.inf if seen is None or has_gone_on else seen.at
            found.append((waits.value, brought, still_since, len(found), connection))
            if len(found) == CHOICE:
                break
        return min(found)[-1] if found else listening


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
