"""What a process takes from outside that is not the journal: time and chance.

A test gives others, so that whatever happens can be made to happen again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dualstream.service.journal.nonces import OURS


@dataclass(frozen=True, slots=True)
class Outside:
    """Where time and chance come from; no state of a model depends on either."""

    clock: Callable[[], float] = time.perf_counter
    """Seconds that never go back."""
    nonce: Callable[[], bytes] = OURS.make
    """16 bytes that no other append carries."""
    effort: Callable[[], float] = time.thread_time
    """Seconds of a core that this thread has had; what others took meanwhile is not in it."""


REAL = Outside()
