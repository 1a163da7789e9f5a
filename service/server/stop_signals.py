"""Signals that stop a long-running process gracefully. The `consume` command uses them, too."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_stop_signals(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Call `handler` at signals that stop. Returns the handlers from before.

    SIGHUP stays ignored if it was ignored at the start, by `nohup`.
    """
    ignore_user_signals()
    return {
        number: signal.signal(number, handler)
        for number in STOP_SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }


def ignore_user_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2. By default they end a process at once."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
