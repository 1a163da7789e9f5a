"""Connections that stand still are closed in time, and the idlest make room."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from service.connections import LEAST_BYTES, Connections, Limits, Sight, Waits
from service.problems import Problem

HEAD_S, BODY_S = 10.0, 30.0


@dataclass(eq=False)
class Still:
    """A connection that stands where the test puts it."""

    waits: Waits
    begun: int = 1
    so_far: int = 0
    seen: Sight | None = None
    ended: list[Problem | None] = field(default_factory=list)

    def waits_for(self):
        return self.waits

    def progress(self):
        return self.begun, self.so_far

    def end(self, problem):
        self.ended.append(problem)


class World:
    """All connections at a time of the test's."""

    def __init__(self, most: int = 100) -> None:
        self.now, self.reasons = 0.0, Counter()
        limits = Limits(1000, HEAD_S, BODY_S)
        count = lambda reason: self.reasons.update([reason])  # noqa: E731
        self.open = Connections(most, limits, count, lambda: self.now)

    def add(self, *connections: Still) -> None:
        for one in connections:
            self.open.add(one)

    def wait(self, seconds: float, *connections: Still) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.open.look([one for one in connections if not one.ended])


@pytest.mark.parametrize(
    ("waits", "begun", "limit_s", "reason", "status"),
    [
        (Waits.IDLE, 0, HEAD_S, "idle", None),
        (Waits.HEAD, 1, HEAD_S, "slow-head", 408),
        (Waits.BODY, 1, BODY_S, "slow-body", 408),
        (Waits.READER, 1, BODY_S, "slow-reader", None),
        (Waits.IDLE, 1, None, None, None),  # uvicorn's own timer closes it
        (Waits.ANSWER, 1, None, None, None),  # nobody is closed for what the server takes
    ],
)
def test_who_stands_still_too_long_is_closed(waits, begun, limit_s, reason, status):
    world, one = World(), Still(waits, begun)
    world.add(one)
    world.wait((limit_s or 1000) + 1, one)
    assert not one.ended
    world.wait(1, one)
    assert len(one.ended) == (limit_s is not None)
    assert world.reasons == ({} if reason is None else {reason: 1})
    if status is not None:
        assert one.ended[0].status == status


def test_who_goes_on_is_not_closed():
    world = World()
    asking, sending = Still(Waits.HEAD), Still(Waits.BODY)
    trickling, moving = Still(Waits.BODY), Still(Waits.HEAD)
    world.add(asking, sending, trickling, moving)
    for second in range(300):
        asking.begun += second % 9 == 0  # one request after the other
        sending.so_far += LEAST_BYTES // 30 + 1
        trickling.so_far += LEAST_BYTES // 40
        moving.waits = (Waits.HEAD, Waits.ANSWER)[second // 9 % 2]
        world.wait(1, asking, sending, trickling, moving)
    assert not (asking.ended or sending.ended or moving.ended)
    assert trickling.ended and world.reasons == {"slow-body": 1}


def test_the_idlest_make_room_and_none_that_is_being_answered():
    world = World(most=64)
    answered = [Still(Waits.ANSWER) for _ in range(20)]
    bodies = [Still(Waits.BODY, so_far=100 * n) for n in range(20)]
    heads = [Still(Waits.HEAD) for _ in range(14)]
    idle = [Still(Waits.IDLE) for _ in range(10)]
    world.add(*answered, *bodies, *heads, *idle)
    assert not world.reasons
    order = []
    for _ in range(11):
        newest = Still(Waits.ANSWER)
        world.add(newest)
        gone = [one for one in (*idle, *heads, *bodies) if one.ended and one not in order]
        assert len(gone) == 4 and not newest.ended
        for one in gone:
            world.open.discard(one)
        order += gone
        while len(world.open) < 64:
            world.add(Still(Waits.ANSWER))
    # First those that wait for nothing, the oldest first; of bodies those that brought least.
    assert order == [*idle, *heads, *bodies]
    assert not any(one.ended for one in answered)


def test_who_asks_now_and_then_does_not_make_room_for_a_silent_crowd():
    world = World(most=50)
    asking, asked_once = Still(Waits.IDLE, begun=0), Still(Waits.IDLE)
    silent = [Still(Waits.IDLE, begun=0) for _ in range(40)]
    world.add(asking, asked_once, *silent)
    for _ in range(4):
        asking.begun += 1
        world.wait(1, asking, asked_once, *silent)
    crowd = [Still(Waits.IDLE, begun=0) for _ in range(500)]
    for one in crowd:
        world.add(one)
        for gone in (*silent, *crowd):
            if gone.ended:
                world.open.discard(gone)
    assert not asking.ended and not asked_once.ended and all(one.ended for one in silent)
    # Where all have asked, who stood still longest goes first.
    world = World(most=3)
    world.add(asking, asked_once)
    world.add(Still(Waits.ANSWER), Still(Waits.ANSWER))
    assert asked_once.ended and not asking.ended


def test_where_all_are_being_answered_the_newest_is_refused():
    world = World(most=2)
    first, second, third = (Still(Waits.ANSWER) for _ in range(3))
    world.add(first, second, third)
    assert third.ended == [None] and not first.ended and not second.ended
    assert world.reasons == {"room": 1}


def test_looking_lets_others_be_served_in_between(monkeypatch):
    world, turns = World(most=2000), 0
    monkeypatch.setattr("service.connections.LOOK_S", 0.0)
    world.add(*(Still(Waits.IDLE, 0) for _ in range(1000)))

    async def others() -> None:
        nonlocal turns
        looking = asyncio.create_task(world.open.run())
        while not all(one.seen for one in list(world.open._open)):
            turns += 1
            await asyncio.sleep(0)
        looking.cancel()

    asyncio.run(others())
    assert turns >= 5
