"""Short work on arrays in a thread beside the event loop, one piece after the other.

Such work takes and gives back the interpreter's lock at every array. Side by side, pieces of it
hand the lock to each other and to the event loop thousands of times a second, and each time a
thread has to be woken: eight models that were loaded at once took ten times as long as one after
the other, and everything else waited for them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_thread = ThreadPoolExecutor(1, "beside")


async def beside(work: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
    """What the work returns or raises; it is finished even where the caller is cancelled."""
    return await asyncio.get_running_loop().run_in_executor(_thread, work, *args)
