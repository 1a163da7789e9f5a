"""Open connections of the process: their maximum number, and timeouts of slow clients.

No request starts a timer. Once a second all connections are checked. A connection that has made too
little progress since an earlier check is closed: an unfinished head, a slow body, a client that
does not read. So a timeout is exact to one or two seconds. Checks run in small steps, with pauses
in which requests are served.
"""

import asyncio
import math
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Protocol

from dualstream.wire.problem_json import Problem

CHECK_EVERY_S = 1.0
CHECKED_PER_STEP, CLOSED_PER_STEP = 100, 8
"""Maximum number of connections that a step checks, and closes."""
PAUSE_S = 0.001
"""Pause between two steps. One event-loop iteration is too short for a request."""
MIN_BYTES = 1024
"""Bytes of a body, or of a response that is read, that count as progress."""
MAX_CONNECTIONS = 10_000
"""Maximum number of open connections of a worker."""
MAX_HEAD_BYTES = 64 * 1024
"""Maximum length of a request's path and headers together."""
MAX_HEAD_S = 10.0
"""Time for a request's head, and for the first request of a connection."""
MAX_BODY_STEP_S = 30.0
"""Time for every MIN_BYTES of a body, or of a response that the client reads."""
EVENT_STREAM = "event_stream"
"""Scope key of a request whose response is an endless stream of events."""
RESERVED_FILES = 256
"""File descriptors kept for the store, the log and other files."""
CANDIDATES, MAX_IDLE_CANDIDATES = 64, 8
"""Of up to 64 connections, up to 8 that may be closed are compared."""


class State(Enum):
    """What a connection waits for. Lower values are closed first if there are too many."""

    IDLE = 0
    """The next request."""
    HEAD = 1
    """The rest of a request's head."""
    BODY = 2
    """The rest of a request's body."""
    EVENTS = 3
    """Events, without a time limit."""
    ANSWER = 4
    """The server. Such a connection is never closed."""
    READER = 5
    """The client, which must read what was sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a connection.

    head_bytes  path and headers of a request
    head_s      time for a whole head, and until the first request
    body_s      time for every MIN_BYTES of a body, or of a response that the client reads
    idle_s      time between a response and the next request
    """

    head_bytes: int
    head_s: float
    body_s: float
    idle_s: float


class Connection(Protocol):
    """Interface of a connection that `Connections` checks."""

    checkpoint: "Checkpoint | None"

    def state(self) -> State: ...
    def progress(self) -> tuple[int, int]:
        """Number of requests begun; a number that grows with bytes received or read."""
        ...

    def terminate(self, problem: Problem | None) -> None:
        """Close the connection; send `problem` first if that is still possible."""
        ...


@dataclass(slots=True)
class Checkpoint:
    """State of a connection at the last check that found progress."""

    state: State
    requests: int
    progress: int
    at: float


class Connections:
    """All open connections. `on_close(reason)` is called for each one that a limit closes."""

    def __init__(
        self,
        limit: int,
        limits: Limits,
        on_close: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.limit = limit
        self.limits = limits
        self.count_closed, self._clock = on_close, clock
        # Without a request so far, by age; with requests, by their last progress; closing.
        self._new: dict[Connection, None] = {}
        self._used: dict[Connection, None] = {}
        self._closing: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._used) + len(self._closing)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._used or connection in self._new or connection in self._closing

    def __iter__(self) -> Iterator[Connection]:
        return chain(self._new, self._used, self._closing)

    def add(self, connection: Connection) -> None:
        """Add a connection. Above the limit the idlest one is closed, or else the new one."""
        self._new[connection] = None
        if len(self) > self.limit:
            idlest = self._idlest(connection) or connection
            self.count_closed("room")
            self._terminate(idlest, None)

    def discard(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        for group in (self._new, self._used, self._closing):
            group.pop(connection, None)

    async def run(self) -> None:
        """Check all connections every second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            connections = iter(list(self))
            while self.check(connections):
                await asyncio.sleep(PAUSE_S)

    def check(self, connections: Iterable[Connection]) -> bool:
        """Check the next connections of an iterator; close those without progress.

        Returns True if the iterator may have more.
        """
        now, checked, closed = self._clock(), 0, 0
        for connection in islice(connections, CHECKED_PER_STEP):
            checked += 1
            closed += connection in self and self._check(connection, now)
            if closed == CLOSED_PER_STEP:
                return True
        return checked == CHECKED_PER_STEP

    def _check(self, connection: Connection, now: float) -> bool:
        """Close the connection if its time limit has passed; returns True then."""
        state, (requests, progress) = connection.state(), connection.progress()
        last = connection.checkpoint
        if last is None or last.state is not state or last.requests != requests:
            connection.checkpoint = Checkpoint(state, requests, progress, now)
            self._move_to_end(connection, requests)
            return False
        limit_s, reason = self._limit(last)
        if now - last.at <= limit_s:
            return False
        if progress - last.progress >= MIN_BYTES:
            last.progress, last.at = progress, now
            self._move_to_end(connection, requests)
            return False
        if reason is not None:
            self.count_closed(reason)
        self._terminate(connection, self._timeout_problem(state))
        return True

    def _move_to_end(self, connection: Connection, requests: int) -> None:
        """The connection made progress: make it the last candidate for closing."""
        if requests and connection not in self._closing:
            self._new.pop(connection, None)
            self._used.pop(connection, None)
            self._used[connection] = None

    def _terminate(self, connection: Connection, problem: Problem | None) -> None:
        self.discard(connection)
        self._closing[connection] = None
        connection.terminate(problem)

    def _limit(self, last: Checkpoint) -> tuple[float, str | None]:
        """Time that the connection may stay in this state, and the reason to count."""
        limits = self.limits
        if last.state is State.IDLE:
            return (limits.idle_s, None) if last.requests else (limits.head_s, "idle")
        return {
            State.HEAD: (limits.head_s, "slow-head"),
            State.BODY: (limits.body_s, "slow-body"),
            State.READER: (limits.body_s, "slow-reader"),
        }.get(last.state, (math.inf, None))

    def _timeout_problem(self, state: State) -> Problem | None:
        if state is State.HEAD:
            detail = f"the request's head did not arrive within {self.limits.head_s:g} s"
            return Problem(408, "too-slow", detail)
        if state is State.BODY:
            limit_s = self.limits.body_s
            detail = f"fewer than {MIN_BYTES} bytes of the body arrived within {limit_s:g} s"
            return Problem(408, "too-slow", detail)
        return None

    def _idlest(self, newest: Connection) -> Connection | None:
        """The connection to close for a new one; None if all wait for the server.

        First the oldest connection that never sent a request, so that idle crowds do not displace
        clients that send requests now and then. Else the one without progress for the longest time:
        idle before heads before bodies (fewest bytes first) before event streams.
        """
        for connection in list(islice(self._new, CANDIDATES)):
            requests, _ = connection.progress()
            if requests:
                self._move_to_end(connection, requests)
            elif connection is not newest:
                return connection
        candidates: list[tuple[int, int, float, int, Connection]] = []
        event_stream = None
        for connection in list(islice(self._used, CANDIDATES)):
            state, last = connection.state(), connection.checkpoint
            requests, progress = connection.progress()
            has_progressed = last is None or last.requests != requests
            if state.value > State.BODY.value or has_progressed:
                self._move_to_end(connection, requests)
            if state is State.EVENTS:
                event_stream = event_stream or connection
            if state.value > State.BODY.value or connection is newest:
                continue
            received = 0
            if state is State.BODY:
                received = progress - (0 if last is None else last.progress)
            since = math.inf if last is None or has_progressed else last.at
            candidates.append((state.value, received, since, len(candidates), connection))
            if len(candidates) == MAX_IDLE_CANDIDATES:
                break
        return min(candidates)[-1] if candidates else event_stream


def connection_limit() -> int:
    """MAX_CONNECTIONS, or fewer if the process may not open as many files.

    Raises the process's soft limit of open files to its hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
