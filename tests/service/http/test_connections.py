"""Connections that stand still are closed in time, and the idlest make room."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from dualstream.service.http.connection_limits import (
    CANDIDATES,
    CLOSED_PER_STEP,
    MIN_BYTES,
    Checkpoint,
    Connections,
    Limits,
    State,
)
from dualstream.wire.problem_json import Problem

HEAD_S, BODY_S, IDLE_S = 10.0, 30.0, 5.0


@dataclass(eq=False)
class Still:
    """A connection that stands where the test puts it."""

    waits: State
    begun: int = 1
    so_far: int = 0
    checkpoint: Checkpoint | None = None
    ended: list[Problem | None] = field(default_factory=list)

    def state(self):
        return self.waits

    def progress(self):
        return self.begun, self.so_far

    def terminate(self, problem):
        self.ended.append(problem)


class World:
    """All connections at a time of the test's."""

    def __init__(self, most: int = 100) -> None:
        self.now, self.reasons = 0.0, Counter()
        limits = Limits(1000, HEAD_S, BODY_S, IDLE_S)
        count = lambda reason: self.reasons.update([reason])  # noqa: E731
        self.open = Connections(most, limits, count, lambda: self.now)

    def add(self, *connections: Still) -> None:
        for one in connections:
            self.open.add(one)

    def wait(self, seconds: float, *connections: Still) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            standing = iter([one for one in connections if not one.ended])
            while self.open.check(standing):
                pass


@pytest.mark.parametrize(
    ("waits", "begun", "limit_s", "reason", "status"),
    [
        (State.IDLE, 0, HEAD_S, "idle", None),
        (State.HEAD, 1, HEAD_S, "slow-head", 408),
        (State.BODY, 1, BODY_S, "slow-body", 408),
        (State.READER, 1, BODY_S, "slow-reader", None),
        (State.IDLE, 1, IDLE_S, None, None),  # which is nothing to count
        (State.ANSWER, 1, None, None, None),  # nobody is closed for what the server takes
    ],
)
def test_idle_connection_is_closed_after_the_timeout(waits, begun, limit_s, reason, status):
    world, one = World(), Still(waits, begun)
    world.add(one)
    world.wait((limit_s or 1000) + 1, one)
    assert not one.ended
    world.wait(1, one)
    assert len(one.ended) == (limit_s is not None)
    assert world.reasons == ({} if reason is None else {reason: 1})
    if status is not None:
        assert one.ended[0].status == status


def test_active_connection_is_not_closed():
    world = World()
    asking, sending = Still(State.HEAD), Still(State.BODY)
    trickling, moving = Still(State.BODY), Still(State.HEAD)
    world.add(asking, sending, trickling, moving)
    for second in range(300):
        asking.begun += second % 9 == 0  # one request after the other
        sending.so_far += MIN_BYTES // 30 + 1
        trickling.so_far += MIN_BYTES // 40
        moving.waits = (State.HEAD, State.ANSWER)[second // 9 % 2]
        world.wait(1, asking, sending, trickling, moving)
    assert not (asking.ended or sending.ended or moving.ended)
    assert trickling.ended and world.reasons == {"slow-body": 1}


def test_the_idlest_make_room_and_none_that_is_being_answered():
    world = World(most=64)
    answered = [Still(State.ANSWER) for _ in range(20)]
    bodies = [Still(State.BODY, so_far=100 * n) for n in range(3)]
    heads = [Still(State.HEAD) for _ in range(3)]
    idle = [Still(State.IDLE) for _ in range(2)]
    silent = [Still(State.IDLE, begun=0) for _ in range(36)]
    world.add(*answered, *bodies, *heads, *idle, *silent)
    assert not world.reasons
    order = []
    for _ in range(44):
        newest = Still(State.ANSWER)
        world.add(newest)
        gone = [one for one in (*silent, *idle, *heads, *bodies) if one.ended and one not in order]
        assert len(gone) == 1 and not newest.ended, "one for one"
        order += gone
        world.open.discard(gone[0])
    # First those that never asked, the oldest first; of bodies those that brought least.
    assert order == [*silent, *idle, *heads, *bodies]
    assert not any(one.ended for one in answered)
    last = Still(State.ANSWER)
    world.add(last)
    assert last.ended == [None] and world.reasons == {"room": 45}


@pytest.mark.parametrize("is_known", [True, False])
def test_eviction_does_not_scan_all_connections(is_known):
    world = World(most=10_000)
    looks = 0

    class Counted(Still):
        def progress(self):
            nonlocal looks
            looks += 1
            return self.begun, self.so_far

        __hash__ = object.__hash__

    everyone = [Counted(State.ANSWER) for _ in range(9_000)]
    everyone += [Counted(State.IDLE, begun=n % 2) for n in range(1_000)]
    world.add(*everyone)
    world.wait(is_known, *everyone)
    for _ in range(200):
        looks, newest = 0, Counted(State.IDLE)
        world.add(newest)
        assert looks <= 2 * CANDIDATES and not (is_known and newest.ended)
    assert world.reasons == {"room": 200}
    if is_known:
        assert all(one.ended for one in everyone[9_000:9_400:2])


def test_few_are_closed_before_others_are_served():
    world = World()
    heads = [Still(State.HEAD) for _ in range(50)]
    world.add(*heads)
    world.wait(1, *heads)
    world.now += HEAD_S + 1
    standing, closed = iter(heads), [0]
    while world.open.check(standing):
        closed.append(world.reasons["slow-head"])
    closed.append(world.reasons["slow-head"])
    assert closed == [0, *range(CLOSED_PER_STEP, 50, CLOSED_PER_STEP), 50]


def test_occasional_requests_do_not_exempt_from_the_connection_limit():
    world = World(most=50)
    asking, asked_once = Still(State.IDLE, begun=0), Still(State.IDLE)
    silent = [Still(State.IDLE, begun=0) for _ in range(40)]
    world.add(asking, asked_once, *silent)
    for _ in range(4):
        asking.begun += 1
        world.wait(1, asking, asked_once, *silent)
    crowd = [Still(State.IDLE, begun=0) for _ in range(500)]
    for one in crowd:
        world.add(one)
        for gone in (*silent, *crowd):
            if gone.ended:
                world.open.discard(gone)
    assert not asking.ended and not asked_once.ended and all(one.ended for one in silent)
    # Where all have asked, who stood still longest goes first.
    world = World(most=3)
    world.add(asking, asked_once)
    world.add(Still(State.ANSWER), Still(State.ANSWER))
    assert asked_once.ended and not asking.ended


def test_where_all_are_being_answered_the_newest_is_refused():
    world = World(most=2)
    first, second, third = (Still(State.ANSWER) for _ in range(3))
    world.add(first, second, third)
    assert third.ended == [None] and not first.ended and not second.ended
    assert world.reasons == {"room": 1}


def test_streams_of_events_make_room_where_no_other_can():
    world = World(most=20)
    streams = [Still(State.EVENTS) for _ in range(15)]
    answered, idle = Still(State.ANSWER), [Still(State.IDLE) for _ in range(4)]
    world.add(*streams, answered, *idle)
    world.wait(1, *streams, answered, *idle)
    for number in range(6):
        world.add(Still(State.ANSWER))
        for gone in [one for one in (*streams, *idle) if one.ended]:
            world.open.discard(gone)
        assert sum(bool(one.ended) for one in idle) == min(number + 1, 4)
        assert sum(bool(one.ended) for one in streams) == max(0, number - 3)
    world.wait(1000, *streams)
    assert world.reasons == {"room": 6} and not answered.ended


def test_looking_lets_others_be_served_in_between(monkeypatch):
    world, turns = World(most=2000), 0
    monkeypatch.setattr("dualstream.service.http.connection_limits.CHECK_EVERY_S", 0.0)
    world.add(*(Still(State.IDLE, 0) for _ in range(1000)))

    async def others() -> None:
        nonlocal turns
        looking = asyncio.create_task(world.open.run())
        while not all(one.checkpoint for one in list(world.open)):
            turns += 1
            await asyncio.sleep(0)
        looking.cancel()

    asyncio.run(others())
    assert turns >= 5
