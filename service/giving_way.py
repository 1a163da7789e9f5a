"""Threads that let others have the core."""

import contextlib
import os
import threading


def give_way(niceness: int) -> None:
    """Learning and predictions come first: Linux gives each thread a priority of its own.

    On a busy core a thread of niceness 5 takes up to a quarter of it, which requests then wait for,
    one of 10 a tenth, one of 19 a hundredth.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
