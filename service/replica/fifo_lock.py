"""A lock that is taken at once where it is free, by who is no coroutine, too."""

import asyncio
from collections import deque


class FifoLock:
    """Held by one at a time, in the order in which they came for it.

    Whoever has done with it hands it on: nobody comes in between.
    """

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether anybody has it."""
        return self._is_held

    def take(self) -> bool:
        """Have it now; False where another one has."""
        if self._is_held:
            return False
        self._is_held = True
        return True

    def wait(self) -> "asyncio.Future[None]":
        """Done once the caller has it, which another one has now. Who leaves cancels it before."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def hand_on(self) -> None:
        """Let the next one have it that has not left, or nobody."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._is_held = False

    async def taken(self) -> None:
        """Return once the caller has it."""
        if self.take():
            return
        future = self.wait()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was handed over, and he left before he knew
                self.hand_on()
            raise
