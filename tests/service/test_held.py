"""Which models stay in memory: those used again and again, however many others come by."""

import asyncio
import itertools
import random
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.beside import beside
from service.held import Held
from service.states import SHORT_BYTES, Captured

ROOM, MODELS, USES = 50, 1000, 20_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def model(model_id: str) -> Any:
    return SimpleNamespace(
        record=SimpleNamespace(id=model_id),
        bytes=1000,
        is_idle=True,
        is_worth_a_snapshot=False,
        stop=lambda: None,
        release=lambda: None,
    )


def use(held: Held, model_id: str) -> bool:
    """Whether it was there."""
    if held.use(model_id) is not None:
        return True
    held.put(model(model_id))
    return False


def test_a_zipf_law_finds_more_of_its_models_than_by_their_last_use():
    chance = random.Random(5)
    weights = list(itertools.accumulate(1 / k**1.1 for k in range(1, MODELS + 1)))
    wanted = chance.choices([f"m{k}" for k in range(MODELS)], cum_weights=weights, k=USES)
    held, by_last_use = Held(ROOM * 1000), OrderedDict[str, None]()
    found = found_so = 0
    for model_id in wanted:
        found += use(held, model_id)
        assert len(held) <= ROOM and held.bytes == 1000 * len(held)
        found_so += model_id in by_last_use
        by_last_use[model_id] = None
        by_last_use.move_to_end(model_id)
        if len(by_last_use) > ROOM:
            by_last_use.popitem(last=False)
    best = USES * weights[ROOM - 1] / weights[-1]
    assert found_so < found < best
    # Half of what could be won at all.
    assert found - found_so > 0.5 * (best - found_so)


def test_what_was_used_but_once_goes_first_and_the_last_one_stays():
    held = Held(5 * 1000)
    for model_id in "abcde":
        use(held, model_id)
    for model_id in "abab":
        use(held, model_id)
    assert [one.record.id for one in held] == ["c", "d", "e", "a", "b"]
    for model_id in "fgh":
        use(held, model_id)
    assert [one.record.id for one in held] == ["f", "g", "h", "a", "b"]
    # Of those used again there is room for four; the one used longest ago makes room for a fifth.
    for model_id in "fgh":
        use(held, model_id)
    assert [one.record.id for one in held] == ["a", "b", "f", "g", "h"]
    b = held.find("b")
    assert b is not None and held.drop(b) and not held.drop(b)
    assert held.find("b") is None and len(held) == 4 and held.bytes == 4000
    only = Held(10)
    for model_id in "abba":
        use(only, model_id)
    assert [one.record.id for one in only] == ["a"]


@pytest.mark.anyio
async def test_work_beside_the_event_loop_is_done_one_after_the_other():
    under_way, most, threads = 0, 0, set()

    def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threads.add(threading.get_ident())
        threading.Event().wait(0.001)
        under_way -= 1
        if number == 3:
            raise ValueError(number)
        return number

    told = await asyncio.gather(*(beside(work, n) for n in range(8)), return_exceptions=True)
    assert most == 1 and threading.get_ident() not in threads
    assert [n for n in told if isinstance(n, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(told[3], ValueError)


@pytest.mark.anyio
async def test_a_large_state_is_encoded_while_the_thread_beside_the_loop_is_busy():
    free = threading.Event()
    busy = asyncio.create_task(beside(free.wait))
    numbers = np.arange(SHORT_BYTES // 8 + 1)
    large = Captured(1, "0" * 40, {"numbers": numbers}, {"seq": "1"})
    small = Captured(1, "0" * 40, {"numbers": numbers[:9]}, {"seq": "1"})
    waiting = asyncio.create_task(small.encoded())
    try:
        async with asyncio.timeout(20):
            assert await large.encoded() == large.encode()
        assert not waiting.done()
    finally:
        free.set()
    assert await busy and await waiting == small.encode()
