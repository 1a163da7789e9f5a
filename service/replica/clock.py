"""Clock and nonce source of a process, injectable for deterministic tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dualstream.service.journal.chain import OURS


@dataclass(frozen=True, slots=True)
class Clock:
    """Sources of time and of nonces. The state of a model depends on neither."""

    now: Callable[[], float] = time.perf_counter
    """Monotonic time in seconds."""
    new_nonce: Callable[[], bytes] = OURS.make
    """16 bytes, unique per append."""
    cpu_seconds: Callable[[], float] = time.thread_time
    """CPU time of the calling thread in seconds. Time of other threads is not counted."""


SYSTEM_CLOCK = Clock()
