"""Worker threads and background tasks: every thread pool and shielded task of the server.

Work on many small arrays takes and releases the interpreter's lock (GIL) at every array. Several
threads with such work hand the lock to each other and to the event loop thousands of times a
second: eight models loaded at once took ten times as long as one after the other. So a
`SingleThread` does one piece of work after another, and `run_in_thread` has one for the process.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# The event loop holds only weak references to its tasks.
_tasks: set["asyncio.Task[Any]"] = set()


class SingleThread:
    """A thread that runs one piece of work after another; `niceness` lowers its priority."""

    def __init__(self, name: str, niceness: int = 0) -> None:
        initializer = partial(lower_priority, niceness) if niceness else None
        self._pool = ThreadPoolExecutor(1, name, initializer)

    async def run(self, work: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Return what `work` returns. It is finished even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """Drop the work that waits. The thread ends after the work that it does now."""
        self._pool.shutdown(wait=False, cancel_futures=True)


run_in_thread = SingleThread("arrays").run
"""Run short work on arrays in the thread that the whole process shares for it."""


def lower_priority(niceness: int) -> None:
    """Set the niceness of the calling thread; on Linux each thread has its own.

    Learning and predictions come first. On a busy core a thread of niceness 5 takes up to a quarter
    of the core, one of 10 a tenth, one of 19 a hundredth.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def background_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a task that the caller need not keep or await. Its error is not logged."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_forget)
    return task


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. It runs to its end even if the caller is cancelled."""
    return await asyncio.shield(background_task(work))


def _forget(task: "asyncio.Task[Any]") -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio logs an error that no caller awaits


def drop_traceback(error: BaseException | None) -> None:
    """Clear the traceback of an error that was reported, to free its frames.

    The frames refer to the request's data, and some of them to the error or its task. Only the
    garbage collector frees such a reference cycle, and it runs rarely.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
