"""Which models stay in memory: those used last."""

import asyncio
import random
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dualstream.service.concurrency import run_in_thread
from dualstream.service.features import ALL
from dualstream.service.models.cache import ModelCache
from dualstream.service.replica.state import SHORT_BYTES, Captured

ROOM, MODELS = 50, 1000


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


def use(cache: ModelCache, model_id: str) -> bool:
    """Use the model, and load it first if it is not in memory. Was it there?"""
    if cache.use(model_id) is not None:
        return True
    cache.put(model(model_id))
    return False


def test_cache_evicts_the_model_used_longest_ago():
    """Against a dictionary in the order of use, over random requests."""
    chance, cache, expected = random.Random(5), ModelCache(ROOM * 1000), dict[str, None]()
    for _ in range(20_000):
        model_id = f"m{int(MODELS ** chance.random())}"
        assert use(cache, model_id) == (model_id in expected)
        expected.pop(model_id, None)
        expected[model_id] = None
        if len(expected) > ROOM:
            del expected[next(iter(expected))]
        assert cache.bytes == 1000 * len(cache)
    assert [one.record.id for one in cache] == list(expected)


def test_the_last_model_stays_and_dropped_models_take_no_memory():
    cache = ModelCache(5 * 1000)
    for model_id in "abcdeab":
        use(cache, model_id)
    assert [one.record.id for one in cache] == ["c", "d", "e", "a", "b"]
    b = cache.find("b")
    assert b is not None and cache.drop(b) and not cache.drop(b)
    assert cache.find("b") is None and len(cache) == 4 and cache.bytes == 4000
    only = ModelCache(10)
    for model_id in "abba":
        use(only, model_id)
    assert [one.record.id for one in only] == ["a"]


@pytest.mark.anyio
async def test_a_large_state_is_encoded_while_the_thread_beside_the_loop_is_busy():
    free = threading.Event()
    busy = asyncio.create_task(run_in_thread(free.wait))
    numbers = np.arange(SHORT_BYTES // 8 + 1)
    large = Captured(1, "0" * 40, {"numbers": numbers}, {"seq": "1"}, ALL.parts)
    small = Captured(1, "0" * 40, {"numbers": numbers[:9]}, {"seq": "1"}, ALL.parts)
    waiting = asyncio.create_task(small.encoded())
    try:
        async with asyncio.timeout(20):
            assert await large.encoded() == large.encode()
        assert not waiting.done()
    finally:
        free.set()
    assert await busy and await waiting == small.encode()
