"""FIFO lock: one holder at a time, in order of arrival, also when waiters are cancelled."""

import asyncio

from dualstream.service.concurrency import FifoLock


def test_lock_is_granted_in_order_of_arrival():
    order = []

    async def wants(lock: FifoLock, name: str) -> None:
        async with lock:
            order.append(name)
            await asyncio.sleep(0)

    async def scenario() -> None:
        lock = FifoLock()
        assert lock.try_acquire() and not lock.try_acquire() and not lock.has_waiters
        waiting = [asyncio.create_task(wants(lock, name)) for name in "abcd"]
        await asyncio.sleep(0)
        assert lock.has_waiters
        waiting[1].cancel()
        await asyncio.sleep(0)
        lock.release()
        assert not lock.try_acquire()  # a holds it and has not run yet
        await asyncio.wait(waiting)
        assert not lock.is_held and lock.try_acquire()

    asyncio.run(scenario())
    assert order == ["a", "c", "d"]


def test_cancelled_owner_passes_the_lock_on():
    async def scenario() -> None:
        lock = FifoLock()
        lock.try_acquire()
        leaving, staying = (asyncio.create_task(lock.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        lock.release()
        leaving.cancel()
        await asyncio.wait([leaving, staying])
        assert leaving.cancelled() and lock.is_held
        lock.release()
        assert not lock.is_held

    asyncio.run(scenario())
