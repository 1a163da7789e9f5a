"""Waiting for what servers in other processes do."""

import time
from collections.abc import Callable


def wait_for(holds: Callable[[], bool], stand: Callable[[], object] = lambda: "") -> None:
    """Wait for a condition; on timeout the error has the output of `stand`."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, stand()
        time.sleep(0.02)
