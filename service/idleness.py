"""How much of the time this thread had nothing to do, as the kernel counts it."""

import time
from pathlib import Path

_STAT = Path("/proc/thread-self/schedstat")


class Idleness:
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
