"""How much waits in this process, and what is refused for it: learning first, then predicting.

A queue that grows makes everybody wait and nobody faster. So what cannot be served soon is refused
before its body is parsed: 503, to be sent again. Two things are counted: requests that wait for
their rows to be appended (`model.py`), with the age of the oldest, and predictions that arrived
together, which one iteration of the event loop serves one after the other.

It takes FEW that wait at once before anything is refused: so many clients may each wait for their
answers. Once something was, there is a rush, and the queue is kept SHORT: whoever is let in is
served soon. Should the event loop have nothing to do then, as it waits for a slow store, the queue
may be longer. A rush is over when those who were refused in a while are so few that they may wait.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from dualstream.service.journal.protocol import OutcomeUnknown
from dualstream.wire.problems import Problem

FEW = 288
"""So many at once are never too many: 256 clients that each wait for their answers may."""
MAX_WAIT_S = 0.05
"""Wait of the oldest of FEW or more requests above which learning is refused."""
SHORT = 8
"""So many may wait in a rush, or more: enough to share an append, and to keep one core busy."""
MUCH_IDLE, LITTLE_IDLE = 0.15, 0.05
"""Shares of the time: with more the queue is made longer, with less it is made shorter again."""
WHILE_S = 1.0
"""Whoever is refused and does as he is told is back by then."""
MANY = 16
"""When so many predictions come together it counts how long they took."""
REFUSE_AFTER_S = 0.15
"""Refusals are delayed: clients that retry at once then leave time for learning."""
LOOK_S = 0.25
LEARN, PREDICT = "learn", "predict"
_KINDS = {"learn": LEARN, "labels": LEARN, "predict": PREDICT, "infer": PREDICT}
_BEARS = {LEARN: 1, PREDICT: 2}
"""Predictions are refused at so many times as many requests, and as long waits."""


class Client(Protocol):
    """A connection, and the number of the while in which it was refused something last."""

    refused_in: int


def kind_of(path: str) -> str | None:
    """What a request to this path is refused as; None for those that are always served."""
    return _KINDS.get(path.rpartition("/")[2])


class AdmissionControl:
    """Counts what waits.

    most       requests at once, beyond which learning is refused
    patience_s beyond which it is refused, too, when the oldest has waited so long, once there are
               FEW; predictions that arrived together are a wait as well
    timeout_s  how long a request waits for its rows to be journalled and applied
    on_refusal is called with the kind of each request that is refused
    idle       tells which share of the time the event loop had nothing to do since the last call
    """

    def __init__(
        self,
        most: int,
        patience_s: float,
        timeout_s: float,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._most, self._few, self._shortest = most, min(FEW, most), min(SHORT, most)
        self._short = self._shortest
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._on_refusal, self._clock, self._idle = on_refusal, clock, idle
        # Of rows that wait: since when, and who is told. In the order in which they came.
        self._waiting: dict[int, tuple[float, asyncio.Future[Any]]] = {}
        self._number = 0
        # Predictions of this iteration of the event loop; how long they took the last time that
        # they were many; and how long the request waited that left last.
        self._arrived = 0
        self._turn_s = 0.0
        self._wait_s = 0.0
        # What is kept short, and whether anything was at the last look; and of the while that
        # runs its number, when it began, and how many clients were refused something in it.
        self.rush: set[str] = set()
        self._was_rush = False
        self._while, self._while_began, self._refused = 0, 0.0, 0

    @property
    def waiting(self) -> int:
        """Requests whose rows wait to be journalled and applied."""
        return len(self._waiting)

    @property
    def oldest_s(self) -> float:
        """How long the first of them has waited."""
        first = next(iter(self._waiting.values()), None)
        return 0.0 if first is None else self._clock() - first[0]

    def enter(self, future: "asyncio.Future[Any]") -> int:
        """The rows behind this future wait from now on; the number to `leave` by."""
        self._number = number = self._number + 1
        self._waiting[number] = self._clock(), future
        return number

    def leave(self, number: int) -> None:
        self._wait_s = self._clock() - self._waiting.pop(number)[0]

    def admits(self, kind: str, client: Client | None = None) -> bool:
        """Whether a request that has just arrived is served; one that is not is counted."""
        if self.refuses(kind, client):
            return False
        if kind == PREDICT:  # it is served at once, where learning waits
            self._arrived += 1
            if self._arrived == 1:
                asyncio.get_running_loop().call_soon(self._come_round, self._clock())
        return True

    def check(self, kind: str) -> None:
        """Raise Problem 503 where a request whose body is there now comes at a bad time."""
        if self.refuses(kind):
            raise overloaded(kind)

    def refuses(self, kind: str, client: Client | None = None) -> bool:
        """Whether one more of this kind would wait too long; it is counted then."""
        count = len(self._waiting) + self._arrived
        if count < _BEARS[kind] * self._short:
            return False
        if kind not in self.rush:
            if not self._is_too_much(count, _BEARS[kind]):
                return False
            self._begin_while()
            # Where predictions are refused learning is all the more.
            self.rush |= {LEARN, kind}
        if client is None:
            self._refused += 1
        elif client.refused_in != self._while:
            client.refused_in = self._while
            self._refused += 1
        self._on_refusal(kind)
        return True

    def _is_too_much(self, count: int, bears: int) -> bool:
        if count < bears * self._few:
            return False
        if count >= bears * self._most:
            return True
        # Those who come all at once find nobody waiting: those before them tell how it will be.
        return max(self.oldest_s, self._wait_s, self._turn_s) > bears * self._patience_s

    def _begin_while(self) -> None:
        self._while += 1
        self._while_began, self._refused = self._clock(), 0

    def _come_round(self, began: float) -> None:
        """All predictions that came together are answered."""
        self._turn_s = self._clock() - began if self._arrived >= MANY else 0.0
        self._arrived = 0

    async def run(self) -> None:
        """Tell those who have waited too long, until cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._timeout_s / 4))
            self.look()

    def look(self) -> None:
        """See how long the queue may be, whether a rush is over, and who has waited too long."""
        if self.rush:
            idle = self._idle()  # since the last look, if that saw a rush, too
            if idle is not None and self._was_rush:
                self._lengthen(idle)
        else:
            self._short = self._shortest
        self._was_rush = bool(self.rush)
        self._turn_s = 0.0  # unless more predictions come together
        if self.rush and self._clock() - self._while_began >= WHILE_S:
            may_wait = self._few - self._short
            self.rush -= {kind for kind in self.rush if self._refused <= _BEARS[kind] * may_wait}
            self._begin_while()
        self.give_up()

    def _lengthen(self, idle: float) -> None:
        if idle > MUCH_IDLE:
            self._short = min(2 * self._short, self._few)
        elif idle < LITTLE_IDLE:
            self._short = max(self._short // 2, self._shortest)

    def give_up(self) -> None:
        """Tell those who have waited too long that nobody knows what becomes of their rows."""
        now = self._clock()
        for since, future in self._waiting.values():
            if now - since <= self._timeout_s:
                return
            if not future.done():
                reason = f"the rows were not learned within {self._timeout_s:g} s, and may still be"
                future.set_exception(OutcomeUnknown(reason))


def overloaded(kind: str) -> Problem:
    """Nothing was done of a request of this kind."""
    doing = {LEARN: "to learn", PREDICT: "to predict"}[kind]
    detail = f"the server has more {doing} than it can soon; nothing was done, send it again later"
    return Problem(503, "overloaded", detail, retry_after_s=1)


_STAT = Path("/proc/thread-self/schedstat")


class IdleShare:
    """Of the thread that asks. A core that is taken by others leaves no thread idle."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def share(self) -> float | None:
        """Since it was asked last: 0 to 1. None at first, and where the kernel does not tell."""
        try:
            ran_ns, waited_ns, _ = map(int, _STAT.read_text().split())
        except (OSError, ValueError):
            return None
        now, busy = time.monotonic(), 1e-9 * (ran_ns + waited_ns)
        before, self._before = self._before, (now, busy)
        if before is None or now <= before[0]:
            return None
        return min(1.0, max(0.0, 1.0 - (busy - before[1]) / (now - before[0])))
