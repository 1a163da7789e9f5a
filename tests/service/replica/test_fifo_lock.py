"""Held by one at a time, in their order, whoever leaves meanwhile."""

import asyncio

from dualstream.service.replica.fifo_lock import FifoLock


def test_those_who_wait_have_it_in_their_order_and_nobody_comes_between():
    order = []

    async def wants(baton: FifoLock, name: str) -> None:
        await baton.taken()
        order.append(name)
        await asyncio.sleep(0)
        baton.hand_on()

    async def scenario() -> None:
        baton = FifoLock()
        assert baton.take() and not baton.take()
        waiting = [asyncio.create_task(wants(baton, name)) for name in "abcd"]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        baton.hand_on()
        assert not baton.take()  # it is a's, who does not know yet
        await asyncio.wait(waiting)
        assert not baton.is_held and baton.take()

    asyncio.run(scenario())
    assert order == ["a", "c", "d"]


def test_who_leaves_once_it_was_handed_to_him_hands_it_on():
    async def scenario() -> None:
        baton = FifoLock()
        baton.take()
        leaving, staying = (asyncio.create_task(baton.taken()) for _ in range(2))
        await asyncio.sleep(0)
        baton.hand_on()
        leaving.cancel()
        await asyncio.wait([leaving, staying])
        assert leaving.cancelled() and baton.is_held
        baton.hand_on()
        assert not baton.is_held

    asyncio.run(scenario())
