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

from dualstream.service.concurrency import run_in_thread
from dualstream.service.models.cache import ModelCache
from dualstream.service.replica.state import SHORT_BYTES, Captured

ROOM, MODELS, USES = 50, 1000, 20_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def model(model_id: str) -> Any:
    return SimpleNamespace(
        record=SimpleNamespace(id=model_id),
        bytes=1000,
        is_idle=True,
        snapshots=SimpleNamespace(is_worth_writing=lambda size: False),
        stop=lambda: None,
        release=lambda: None,
    )


def use(held: ModelCache, model_id: str) -> bool:
    """Whether it was there."""
    if held.use(model_id) is not None:
        return True
    held.put(model(model_id))
    return False


def found_by_last_use(wanted: list[str]) -> int:
    """How often a model was there, where only the time of its last use counts."""
    held, found = OrderedDict[str, None](), 0
    for model_id in wanted:
        found += model_id in held
        held[model_id] = None
        held.move_to_end(model_id)
        if len(held) > ROOM:
            held.popitem(last=False)
    return found


def by_a_zipf_law(uses: int = USES) -> list[int]:
    weights = list(itertools.accumulate(1 / k**1.1 for k in range(1, MODELS + 1)))
    return random.Random(5).choices(range(MODELS), cum_weights=weights, k=uses)


def found(wanted: list[str]) -> int:
    """How often a model was there."""
    held, count = ModelCache(ROOM * 1000), 0
    for model_id in wanted:
        count += use(held, model_id)
        assert len(held) <= ROOM and held.bytes == 1000 * len(held)
    return count


def test_a_zipf_law_finds_more_of_its_models_than_by_their_last_use():
    wanted = [f"m{k}" for k in by_a_zipf_law()]
    weights = [1 / k**1.1 for k in range(1, MODELS + 1)]
    best = USES * sum(weights[:ROOM]) / sum(weights)
    by_last_use = found_by_last_use(wanted)
    # Most of what could be won at all.
    assert 0.75 * (best - by_last_use) < found(wanted) - by_last_use < best - by_last_use


def test_models_that_are_favourites_for_a_short_time_are_found_as_by_their_last_use():
    wanted = [f"m{(k + use // 20) % MODELS}" for use, k in enumerate(by_a_zipf_law())]
    assert found(wanted) > 0.97 * found_by_last_use(wanted)


def test_a_sweep_over_all_models_pushes_out_few_that_were_used_again():
    held = ModelCache(ROOM * 1000)
    favourites = [f"f{k}" for k in range(ROOM // 2)]
    for model_id in favourites * 2 + [f"m{k}" for k in range(MODELS)]:
        use(held, model_id)
    assert sum(held.find(model_id) is not None for model_id in favourites) > 20


def test_what_was_used_but_once_goes_first_and_the_last_one_stays():
    held = ModelCache(5 * 1000)
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
    only = ModelCache(10)
    for model_id in "abba":
        use(only, model_id)
    assert [one.record.id for one in only] == ["a"]


@pytest.mark.anyio
async def test_a_large_state_is_encoded_while_the_thread_beside_the_loop_is_busy():
    free = threading.Event()
    busy = asyncio.create_task(run_in_thread(free.wait))
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
