"""A registry of models in this process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from dualstream.service.features import ALL, FEATURES
from dualstream.service.features.feature import jobs_of
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.metrics import Telemetry
from dualstream.service.models import creation
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.requests import Request
from dualstream.service.settings import Settings
from dualstream.solvers import Batch
from tests.adult import adult_lines
from tests.service.support import ADULT, bits
from tests.support import PATIENCE_S

IDS = [f"m{n}" for n in range(8)]


@contextlib.asynccontextmanager
async def serving(
    store: str, most: int | None = None, **options: object
) -> AsyncIterator[ModelRegistry]:
    """A registry as a server has it, with memory for `most` models, however large they are."""
    journal = await open_journal(store)
    registry = ModelRegistry(
        journal, Settings(store=store, **options), Telemetry(), ALL, jobs_of(FEATURES)
    )
    registry.counters.watch(registry)
    if most is not None:
        registry.cache._is_over = lambda count, size: count > most
    try:
        yield registry
    finally:
        await registry.close()
        await journal.close()


def rows(first: int, last: int) -> Batch:
    return Batch.from_libsvm(b"\n".join(adult_lines()[first:last]) + b"\n", 123).batch


async def create(registry: ModelRegistry, ids: list[str]) -> None:
    for model_id in ids:
        with registry.pinned(model_id):
            await creation.create(registry, model_id, ADULT)


async def learn(registry: ModelRegistry, model_id: str, batch: Batch, key: str | None = None):
    """As a request does."""
    with registry.pinned(model_id):
        model = await registry.get(model_id)
        stored = None if key is None else make_key(KeyKind.REQUEST, key)
        return await model.submit(Request.of(batch, stored, None if key is None else b"f" * 16))


async def bits_of(registry: ModelRegistry, model_id: str) -> dict[str, bytes]:
    with registry.pinned(model_id):
        return bits((await registry.get(model_id)).replica)


async def leave(registry: ModelRegistry, model_id: str, others: list[str]) -> None:
    """Use others until the model is out of memory."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for other in others:
            await bits_of(registry, other)
        if registry.find(model_id) is None:
            return
        assert time.monotonic() < deadline, f"{model_id} does not leave memory"
        await asyncio.sleep(0.01)


def shown(registry: ModelRegistry, text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
