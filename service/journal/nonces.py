"""The nonces of appends, and whether one can have been used before.

What a process made itself, and no journal of it was given yet, no append has carried. So a store
that keeps the nonce with its entry need not look for it there, which each append would pay for.
"""

import os
import threading
from itertools import count

OWN_BYTES, NUMBER_BYTES = 10, 6
REMEMBERED = 1 << 14
"""Of the numbers that were used; of older ones nobody knows whether they were."""


class Nonces:
    """Makes nonces, and knows which of them it is shown for the first time; of one process alone.

    Each begins with bytes that begin no other process's, and goes on with a number.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget all, as in a process of its own."""
        self._own = os.urandom(OWN_BYTES)
        self._numbers = count(1)
        self._used = set[int]()
        # Of numbers up to this one nobody knows any more.
        self._known_after = 0
        self._lock = threading.Lock()

    def make(self) -> bytes:
        """16 bytes that no other append carries."""
        return self._own + next(self._numbers).to_bytes(NUMBER_BYTES, "big")

    def is_first(self, nonce: bytes) -> bool:
        """Whether it was made here and is certainly used for the first time; it is used then."""
        if nonce[:OWN_BYTES] != self._own:
            return False
        number = int.from_bytes(nonce[OWN_BYTES:], "big")
        with self._lock:
            if number <= self._known_after or number in self._used:
                return False
            self._used.add(number)
            if len(self._used) > REMEMBERED:
                self._known_after = sorted(self._used)[REMEMBERED // 2]
                self._used = {number for number in self._used if number > self._known_after}
        return True


OURS = Nonces()
# What is forked from this process would make the same ones.
os.register_at_fork(after_in_child=OURS.begin)
