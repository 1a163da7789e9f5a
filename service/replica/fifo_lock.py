"""A lock that is taken at once where it is free, by who is no coroutine, too."""

import asyncio
from collections import deque


class FifoLock:
    """Held by one at a time, in the order in which they came for it.

    Whoever has done with it hands it on: nobody comes in between.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether anybody has it."""
        return self._is_taken

    def try_acquire(self) -> bool:
        """Have it now; False where another one has."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def enqueue(self) -> "asyncio.Future[None]":
        """Done once the caller has it, which another one has now. Who leaves cancels it before."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def release(self) -> None:
        """Let the next one have it that has not left, or nobody."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._is_taken = False

    async def acquire(self) -> None:
        """Return once the caller has it."""
        if self.try_acquire():
            return
        future = self.enqueue()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was handed over, and he left before he knew
                self.release()
            raise
