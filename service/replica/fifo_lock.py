"""FIFO lock that callbacks can take without awaiting."""

import asyncio
from collections import deque


class FifoLock:
    """Mutual exclusion in order of arrival.

    `release` hands the lock to the next waiter directly, so no later caller can overtake it.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Is the lock taken?"""
        return self._is_taken

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether it was."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def enqueue(self) -> "asyncio.Future[None]":
        """Wait for a lock that is taken: the future is done when the caller has it.

        Cancel the future to leave the queue.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def release(self) -> None:
        """Hand the lock to the next waiter that was not cancelled, or free it."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._is_taken = False

    async def acquire(self) -> None:
        """Take the lock, waiting if needed."""
        if self.try_acquire():
            return
        future = self.enqueue()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # cancelled after the lock was handed over
                self.release()
            raise
