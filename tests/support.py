"""Helpers for tests of every folder."""

import time

# For what takes about a second on an idle machine.
PATIENCE_S = 30.0


def until(reached, patience_s: float = PATIENCE_S, every_s: float = 0.01) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < patience_s
        time.sleep(every_s)
    return time.monotonic() - began
