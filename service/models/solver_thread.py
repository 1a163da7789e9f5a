"""Low-priority thread for long solves: refits and reference optima."""

import asyncio

from dualstream.service.concurrency import SingleThread

NICENESS = 19
"""The lowest priority of ordinary threads.

SCHED_IDLE is lower still, but such a thread may be suspended for half a second while it holds the
GIL, and every request then waits.
"""


class SolverThread(SingleThread):
    """Runs one solve after another."""

    def __init__(self) -> None:
        super().__init__("refit", NICENESS)
        self.turn = asyncio.Lock()
        """Held for a whole solve, which runs several pieces of work in the thread."""
