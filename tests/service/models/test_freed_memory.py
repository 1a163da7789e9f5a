"""A model that leaves memory is freed at once, without the garbage collector, in every way out."""

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable

import pytest

from dualstream.service.concurrency import drop_traceback
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.models import creation
from dualstream.service.models.registry import ModelRegistry
from tests.service.models.support import create, learn, leave, rows, serving
from tests.service.support import ADULT
from tests.support import PATIENCE_S

Way = Callable[[ModelRegistry], Awaitable[object]]
OTHER = ADULT | {"loss": "logistic"}


async def refused(registry: ModelRegistry) -> None:
    """A request that finds that the model is gone, up to the answer."""
    try:
        await learn(registry, "m", rows(0, 1))
    except ModelChanged as error:
        drop_traceback(error)
    else:
        raise AssertionError("learned")


async def evict(registry: ModelRegistry) -> None:
    await leave(registry, "m", ["x", "y"])


async def delete(registry: ModelRegistry) -> None:
    await creation.delete(registry, "m")


async def replace(registry: ModelRegistry) -> None:
    await creation.create(registry, "m", OTHER, lambda record: True)


async def deleted_by_another_process(registry: ModelRegistry) -> None:
    await registry.journal.delete("m")
    await refused(registry)


async def replaced_by_another_process(registry: ModelRegistry) -> None:
    await registry.journal.delete("m")
    await registry.journal.create("m", b"{}", b"{}")
    await refused(registry)


async def unreadable(registry: ModelRegistry) -> None:
    model = registry.find("m")
    assert model is not None
    model.replica.is_forked = True
    model.on_failure(RuntimeError("it cannot be rebuilt"))


@pytest.mark.parametrize(
    "way",
    [evict, delete, replace, deleted_by_another_process, replaced_by_another_process, unreadable],
)
def test_a_model_that_leaves_memory_is_freed_at_once(tmp_path, way: Way) -> None:
    async def scenario() -> list[object]:
        async with serving(f"sqlite:///{tmp_path / 'store.db'}", most=2) as registry:
            await create(registry, ["m", "x", "y"])
            await learn(registry, "m", rows(0, 300))
            model = registry.find("m")
            assert model is not None
            results = [weakref.ref(one) for one in (model, model.replica, model.replica.learner)]
            del model
            gc.collect()
            gc.disable()
            try:
                await way(registry)
                # A worker thread drops its last task when it runs next.
                deadline = time.monotonic() + PATIENCE_S
                while any(one() is not None for one in results) and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                return [one() for one in results if one() is not None]
            finally:
                gc.enable()

    assert asyncio.run(scenario()) == []


def test_a_dropped_model_in_a_reference_cycle_is_collected(tmp_path, monkeypatch) -> None:
    """As after an error whose traceback refers to itself."""
    generations: list[int] = []
    monkeypatch.setattr("dualstream.service.models.cache.FREED_AFTER_S", 0.05)

    async def scenario() -> None:
        async with serving(f"sqlite:///{tmp_path / 'store.db'}") as registry:
            await create(registry, ["m"])
            model = registry.find("m")
            assert model is not None
            cycle: list[object] = [model]
            cycle.append(cycle)
            replica = weakref.ref(model.replica)
            del model, cycle
            gc.disable()
            gc.callbacks.append(lambda phase, info: generations.append(info["generation"]))
            try:
                await delete(registry)
                assert generations or replica() is not None
                deadline = time.monotonic() + PATIENCE_S
                while replica() is not None and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                assert replica() is None
            finally:
                gc.callbacks.pop()
                gc.enable()
        assert generations and 2 not in generations, "a full collection stalls the event loop"

    asyncio.run(scenario())


def test_a_cycle_that_outlives_the_first_collection_is_collected(tmp_path, monkeypatch) -> None:
    """As after a snapshot that takes longer: the model is still in use at the first collection."""
    monkeypatch.setattr("dualstream.service.models.cache.FREED_AFTER_S", 0.02)

    async def scenario() -> None:
        async with serving(f"sqlite:///{tmp_path / 'store.db'}") as registry:
            await create(registry, ["m", "other"])
            in_use = [registry.find("m")]
            replica = weakref.ref(in_use[0].replica)
            gc.disable()
            try:
                await delete(registry)
                await asyncio.sleep(0.1)
                assert replica() is not None
                cycle: list[object] = [in_use.pop()]
                cycle.append(cycle)
                del cycle
                assert replica() is not None
                for _ in range(100):  # other models leave all the time
                    await evict_again(registry)
                    await asyncio.sleep(0.01)
                assert replica() is None
            finally:
                gc.enable()

    asyncio.run(scenario())


async def evict_again(registry: ModelRegistry) -> None:
    model = await registry.get("other")
    registry.forget(model)
