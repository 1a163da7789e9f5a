"""What the creation of a model costs."""

import asyncio
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest

from dualstream.service.models import compiled_specs, creation, sizeof
from dualstream.service.replica import state
from dualstream.service.replica.features import Features
from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.rows.intercept import width_of
from tests.service.models.support import serving
from tests.service.support import ADULT, bits

WIDE = ADULT | {"features": {"kind": "indexed", "dim": 1 << 16}}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Learners built from now on, by their width."""
    counts = Counter[int]()

    def count_and_make(spec: Any) -> Any:
        counts[width_of(spec["features"])] += 1
        return make_learner(spec)

    for module in (compiled_specs, sizeof, state):
        monkeypatch.setattr(module, "make_learner", count_and_make)
    return counts


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Objects encoded as canonical JSON from now on."""
    objects: list[Any] = []
    encode = msgspec.json.encode

    def note_and_encode(value: Any, **options: Any) -> bytes:
        if options.get("order") == "sorted":
            objects.append(value)
        return encode(value, **options)

    monkeypatch.setattr(msgspec.json, "encode", note_and_encode)
    return objects


def test_creation_builds_one_learner_and_encodes_the_spec_once(store, built, encoded):
    async def scenario() -> None:
        async with serving(store) as registry:
            model, is_new = await creation.create(registry, "m", ADULT)
            assert is_new and built == {123: 1}
            assert encoded == [resolve_spec(ADULT), ADULT]
            # The learner is the model's alone: the next model of the spec builds its own.
            other, _ = await creation.create(registry, "other", ADULT)
            assert built == {123: 2} and other.replica.learner is not model.replica.learner
            assert bits(other.replica) == bits(model.replica)
            # The size of a wide learner is extrapolated from two narrow ones.
            await creation.create(registry, "wide", WIDE)
            assert built == {123: 2, 1 << 10: 1, 1 << 11: 1, 1 << 16: 1}

    asyncio.run(scenario())


def test_creation_that_is_refused_keeps_no_learner(store, built):
    async def scenario() -> None:
        async with serving(store, max_model_bytes=1) as registry:
            with pytest.raises(Exception, match="bytes of memory before its next row"):
                await creation.create(registry, "m", ADULT)
            assert built == {123: 1}
            (compiled,) = registry.specs._specs.values()
            assert compiled.take_learner() is None

    asyncio.run(scenario())


def test_what_a_spec_needs_is_imported_in_a_thread(store, monkeypatch):
    threads: list[threading.Thread] = []
    parts = Features.parts

    def note_and_make(self: Features, spec: Any) -> Any:
        threads.append(threading.current_thread())
        return parts(self, spec)

    monkeypatch.setattr(Features, "parts", note_and_make)

    async def scenario() -> None:
        async with serving(store) as registry:
            await creation.create(registry, "m", ADULT)

    asyncio.run(scenario())
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread(), "the model's own, once their modules are loaded"
