"""Work that goes on when the one who waits for it leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# The event loop holds its tasks weakly.
_tasks: set["asyncio.Task[Any]"] = set()


async def outliving(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns; it is not cancelled with its caller."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_let_go)
    return await asyncio.shield(task)


def _let_go(task: "asyncio.Task[Any]") -> None:
    """An error that nobody waits for any more is looked at here, else asyncio complains of it."""
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()
