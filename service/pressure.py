"""How much waits in this process, and what is refused for it: learning first, then predicting.

A queue that grows makes everybody wait and nobody faster. So what cannot be served soon is refused
at once, before its body is read: 503, to be sent again. What waits is counted where requests come
in (`receiving.py`: those that arrived together, which one turn of the event loop serves one after
the other) and where they wait to be appended (`model.py`), with the age of the oldest.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from service.errors import Problem
from service.journal.protocol import OutcomeUnknown

FEW = 288
"""So many at once are never too many: 256 clients that each wait for their answers may."""
PREDICTING_BEARS = 2
"""Predictions are refused at so many times as many requests, and as long waits."""
TURN = 16
"""So many requests are let in before it is looked when the event loop has come round."""
LOOK_S = 0.25
LEARN, PREDICT = "learn", "predict"
_KINDS = {"learn": LEARN, "labels": LEARN, "predict": PREDICT}


def kind_of(path: str) -> str | None:
    """What a request to this path is refused as; None for those that are always served."""
    return _KINDS.get(path.rpartition("/")[2])


class Pressure:
    """Counts what waits.

    most       requests at once, beyond which learning is refused
    patience_s beyond which it is refused, too, when the oldest has waited so long, once there are
               FEW; a turn of the event loop is a wait as well
    timeout_s  how long a request waits for its rows to be journalled and applied
    on_refusal is called with the kind of each request that is refused
    """

    def __init__(
        self,
        most: int,
        patience_s: float,
        timeout_s: float,
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._most, self._few = most, min(FEW, most)
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._on_refusal, self._clock = on_refusal, clock
        # Of rows that wait: since when, and who is told. In the order in which they came.
        self._waiting: dict[int, tuple[float, asyncio.Future[Any]]] = {}
        self._number = 0
        # Let in since the event loop came round, about; and how long it took the last time.
        self._arrived = 0
        self._turn_began = 0.0
        self._turn_s = 0.0

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
        del self._waiting[number]

    def admits(self, path: str) -> bool:
        """Whether a request that has just arrived is served; one that is not is counted."""
        if len(self._waiting) + self._arrived >= self._few:
            kind = kind_of(path)
            if kind is not None and self.is_too_much(kind):
                self._on_refusal(kind)
                return False
        self._arrived += 1
        if self._arrived == TURN:
            self._turn_began = self._clock()
            asyncio.get_running_loop().call_soon(self._come_round)
        return True

    def check(self, kind: str) -> None:
        """Raise Problem 503 where a request whose body is there now comes at a bad time."""
        if len(self._waiting) >= self._few and self.is_too_much(kind):
            self._on_refusal(kind)
            raise overloaded(kind)

    def is_too_much(self, kind: str) -> bool:
        """Whether one more of this kind would wait too long."""
        bears = PREDICTING_BEARS if kind == PREDICT else 1
        count = len(self._waiting) + self._arrived
        if count < bears * self._few:
            return False
        if count >= bears * self._most:
            return True
        return max(self.oldest_s, self._turn_s) > bears * self._patience_s

    def _come_round(self) -> None:
        self._arrived = 0
        self._turn_s = self._clock() - self._turn_began

    async def run(self) -> None:
        """Tell those who have waited too long, until cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._timeout_s / 4))
            self.give_up()

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
