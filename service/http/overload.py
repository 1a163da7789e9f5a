"""Admission control: under overload, 503 for learning first, then for predictions.

A growing queue makes every request slower and none faster. So a request that cannot be served soon
is refused before its body is parsed, with `Retry-After`. Two queues count: requests that wait for
their append (`WaitingRequests`), with the age of the oldest, and predictions that arrived in one
event-loop iteration.

No overload begins below MIN_QUEUE requests: 256 clients may each wait for an answer. During an
overload the queue is kept at OVERLOAD_QUEUE, so that each admitted request is served soon. If the
event loop is idle then, the store is slow and the queue may be longer. An overload ends when the
clients refused within PERIOD_S are few enough to wait in the queue.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dualstream.service.models.waiting_requests import WaitingRequests
from dualstream.wire.problem_json import Problem

MAX_WAITING = 512
"""Waiting requests of a worker above which learning is refused."""
MIN_QUEUE = 288
"""Requests that may always wait at once: 256 clients that each wait for an answer, and some."""
MAX_WAIT_S = 0.05
"""Wait of the oldest of MIN_QUEUE or more requests above which learning is refused."""
OVERLOAD_QUEUE = 8
"""Queue limit during an overload: enough to share an append and to keep one core busy."""
HIGH_IDLE, LOW_IDLE = 0.15, 0.05
"""Idle shares of the event loop above which the limit doubles, and below which it is halved."""
PERIOD_S = 1.0
"""A client that is refused and follows Retry-After is back within this time."""
BURST = 16
"""Predictions in one event-loop iteration from which their time is measured."""
REFUSE_AFTER_S = 0.15
"""Delay of a refusal. It slows clients that retry at once, and leaves time for learning."""
CHECK_S = 0.25
"""Interval of `update`."""
LEARN, PREDICT = "learn", "predict"
_KINDS = {
    ("POST", "learn"): LEARN,
    ("POST", "labels"): LEARN,
    ("POST", "predict"): PREDICT,
    ("GET", "predict"): PREDICT,
    ("POST", "infer"): PREDICT,
}
_FOLDERS = ("/models", "/v2/models")
_FACTORS = {LEARN: 1, PREDICT: 2}
"""Predictions are refused at twice the requests and twice the waits of learning."""


class Client(Protocol):
    """A connection, and the number of the period in which it was last refused."""

    refused_in: int


def kind_of(method: str, path: str) -> str | None:
    """The kind under which such a request may be refused. None: it is always served."""
    model, _, action = path.rpartition("/")
    kind = _KINDS.get((method, action))
    # A model, member or version may have the name of an action.
    is_route = kind is None or path == "/predict" or model.rpartition("/")[0] in _FOLDERS
    return kind if is_route else None


class AdmissionControl:
    """Decides which requests are refused.

    waiting      the requests whose rows wait to be journalled and applied
    on_refusal   called with the kind of each refused request
    max_waiting  requests at once beyond which learning is refused
    patience_s   wait of the oldest of MIN_QUEUE requests beyond which learning is refused; the time
                 that a burst of predictions takes counts as a wait, too
    idle         the idle share of the event loop since the last call
    """

    def __init__(
        self,
        waiting: WaitingRequests,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
        max_waiting: int,
        patience_s: float,
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._waiting = waiting
        self._on_refusal, self._clock, self._idle = on_refusal, clock, idle
        self._max_waiting, self._patience_s = max_waiting, patience_s
        self._min_queue = min(MIN_QUEUE, max_waiting)
        self._limit = self._min_limit = min(OVERLOAD_QUEUE, max_waiting)
        # Predictions that arrived and are not answered, since when, and the time that the last
        # burst took.
        self._arrived, self._burst_began, self._burst_s = 0, 0.0, 0.0
        # Kinds that are overloaded now, and whether any was at the last update. The current period:
        # its number, its begin, and the clients that were refused in it.
        self.overloaded_kinds: set[str] = set()
        self._was_overloaded = False
        self._period, self._period_began, self._refused = 0, 0.0, 0

    def admits(self, kind: str, client: Client | None = None, is_joined: bool = False) -> bool:
        """Is a request served that has just arrived? A refusal is counted.

        is_joined   the caller calls `end_burst` when predictions are answered; the others are
                    answered in one event-loop iteration
        """
        if self.refuses(kind, client):
            return False
        if kind == PREDICT:  # served at once; learning waits
            self._arrived += 1
            if self._arrived == 1:
                self._burst_began = self._clock()
                if not is_joined:
                    asyncio.get_running_loop().call_soon(self.end_burst)
        return True

    def check(self, kind: str) -> None:
        """Raise Problem 503 if a request whose body has arrived is refused."""
        if self.refuses(kind):
            raise overloaded(kind)

    def refuses(self, kind: str, client: Client | None = None) -> bool:
        """Would one more request of this kind wait too long? A refusal is counted."""
        count = len(self._waiting) + self._arrived
        if count < _FACTORS[kind] * self._limit:
            return False
        if kind not in self.overloaded_kinds:
            if not self._begins_overload(count, _FACTORS[kind]):
                return False
            self._begin_period()
            # Refusing predictions implies refusing learning.
            self.overloaded_kinds |= {LEARN, kind}
        if client is None:
            self._refused += 1
        elif client.refused_in != self._period:
            client.refused_in = self._period
            self._refused += 1
        self._on_refusal(kind)
        return True

    def _begins_overload(self, count: int, factor: int) -> bool:
        if count < factor * self._min_queue:
            return False
        if count >= factor * self._max_waiting:
            return True
        # Requests that arrive all at once find an empty queue: earlier waits predict theirs.
        waiting = self._waiting
        return max(waiting.oldest_s, waiting.last_wait_s, self._burst_s) > factor * self._patience_s

    def _begin_period(self) -> None:
        self._period += 1
        self._period_began, self._refused = self._clock(), 0

    def end_burst(self) -> None:
        """Measure the predictions that arrived together, now that all are answered."""
        took_s = self._clock() - self._burst_began
        self._burst_s = took_s if self._arrived >= BURST else 0.0
        self._arrived = 0

    async def run(self) -> None:
        """Update every CHECK_S until cancelled."""
        while True:
            await asyncio.sleep(min(CHECK_S, self._waiting.timeout_s / 4))
            self.update()

    def update(self) -> None:
        """Adapt the queue limit, end an overload that is over, and fail expired requests."""
        if self.overloaded_kinds:
            idle = self._idle()  # since the last update
            if idle is not None and self._was_overloaded:
                self._adapt_limit(idle)
        else:
            self._limit = self._min_limit
        self._was_overloaded = bool(self.overloaded_kinds)
        self._burst_s = 0.0
        if self._clock() - self._waiting.last_left_at > PERIOD_S:
            self._waiting.last_wait_s = 0.0  # it no longer predicts the waits of new requests
        if self.overloaded_kinds and self._clock() - self._period_began >= PERIOD_S:
            may_wait = self._min_queue - self._limit
            self.overloaded_kinds -= {
                kind for kind in self.overloaded_kinds if self._refused <= _FACTORS[kind] * may_wait
            }
            self._begin_period()
        self._waiting.expire()

    def _adapt_limit(self, idle: float) -> None:
        if idle > HIGH_IDLE:
            self._limit = min(2 * self._limit, self._min_queue)
        elif idle < LOW_IDLE:
            self._limit = max(self._limit // 2, self._min_limit)


def overloaded(kind: str) -> Problem:
    """The problem of a refused request. Nothing was done."""
    doing = {LEARN: "to learn", PREDICT: "to predict"}[kind]
    detail = f"the server is overloaded with requests {doing}; nothing was done, retry later"
    return Problem(503, "overloaded", detail, retry_after_s=1)


_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class IdleShare:
    """Idle share of the calling thread, from /proc. Waiting for a busy core is not idle."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def share(self) -> float | None:
        """Idle share since the last call, 0 to 1. None at first, and without /proc/schedstat."""
        try:
            ran_ns, waited_ns, _ = map(int, _SCHEDSTAT.read_text().split())
        except (OSError, ValueError):
            return None
        now, busy = time.monotonic(), 1e-9 * (ran_ns + waited_ns)
        before, self._before = self._before, (now, busy)
        if before is None or now <= before[0]:
            return None
        return min(1.0, max(0.0, 1.0 - (busy - before[1]) / (now - before[0])))
