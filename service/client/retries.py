"""How long a call is tried again: while nobody answers, or says to come back later.

Every call may be repeated: to learn goes under a key, so that what was learned before its answer
was lost is not learned twice.
"""

import random
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx

from service.client.calls import Call
from service.client.errors import BadInput, Unreachable

T = TypeVar("T")

AGAIN = (429, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


@dataclass
class Attempts(Generic[T]):
    """The attempts at one call, for `patience_s` from its first failure on."""

    call: Call[T]
    patience_s: float
    failures: int = 0
    lost: bool = False
    """Whether an attempt may have been carried out, its answer lost."""
    _first: float = field(default=0.0, repr=False)

    def after_silence(self, silence: httpx.TransportError) -> float:
        """Seconds to wait before the next attempt. Raises Unreachable, BadInput."""
        if isinstance(silence, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            raise BadInput(str(silence)) from silence
        self.lost = self.lost or not isinstance(silence, httpx.ConnectError)
        reason = str(silence) or type(silence).__name__
        return self._wait(f"no answer: {reason}", 0.0, silence)

    def after_answer(self, response: httpx.Response) -> float | None:
        """Seconds to wait before the next attempt; None where this answer is one.

        Raises Unreachable.
        """
        if response.status_code not in AGAIN:
            return None
        try:
            asked_s = float(response.headers.get("retry-after", "0"))
        except ValueError:
            asked_s = 0.0
        try:
            reason = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            reason = f"status {response.status_code}"
        return self._wait(f"the server cannot serve now: {reason}", asked_s, None)

    def read(self, response: httpx.Response) -> T:
        """The answer. Raises Refused."""
        is_deletion = self.call.method == "DELETE" and self.call.answer is None
        if is_deletion and self.lost and response.status_code == 404:
            return self.call.read(204, b"")  # an earlier attempt has deleted it
        return self.call.read(response.status_code, response.content)

    def _wait(self, reason: str, asked_s: float, cause: Exception | None) -> float:
        now = time.monotonic()
        if not self.failures:
            self._first = now
        self.failures += 1
        left_s = self._first + self.patience_s - now
        if left_s <= 0:
            times = f", tried {self.failures} times" if self.failures > 1 else ""
            raise Unreachable(f"{reason}{times}") from cause
        backoff_s = min(FIRST_WAIT_S * 2 ** (self.failures - 1), LONGEST_WAIT_S)
        spread = random.uniform(0.5, 1.0)  # noqa: S311 - parts clients; nothing is secret
        wait_s: float = max(backoff_s * spread, asked_s)
        return min(wait_s, left_s)
