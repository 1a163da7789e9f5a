"""More models than there is memory for: those used longest ago leave it, and come back."""

import asyncio
import gc
import json
import random
import threading
import tracemalloc
import weakref
from functools import partial
from types import SimpleNamespace

import pytest

from dualstream.service.api.request_rows import request_of
from dualstream.service.codecs import parse_json
from dualstream.service.features.certificate.reference_optimum import References
from dualstream.service.features.guard.rollback import GuardRollback
from dualstream.service.features.refits.job import Refits
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread
from dualstream.service.models import creation, readiness, snapshots as snapshots_module
from dualstream.service.models.cache import MAX_EVICTION_SNAPSHOTS, ModelCache
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.replica.requests import Request
from dualstream.solvers import make_learner
from tests.adult import adult_lines
from tests.service.conftest import SPEC
from tests.service.models.support import IDS, bits_of, create, learn, leave, rows, serving, shown
from tests.service.support import ADULT
from tests.shared_state import changeable


@pytest.fixture
def cheap_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 0.2 ms: less than 1,500 rows take to replay, and more than 20, on any machine."""
    monkeypatch.setattr(snapshots_module, "WRITTEN_S", 2e-4)
    monkeypatch.setattr(snapshots_module, "WRITTEN_BYTE_S", 0.0)
    monkeypatch.setattr(snapshots_module, "RESTORED_BYTE_S", 0.0)


def held(registry: ModelRegistry) -> list[str]:
    return [model.record.id for model in registry]


async def quiet(registry: ModelRegistry) -> list[str]:
    """What is held once no snapshot is being written any more."""
    for model in registry:
        await model.close()
    return held(registry)


def test_models_stay_within_their_number_under_load_and_keep_their_bits(store):
    async def run():
        chance = random.Random(3)
        rows_of = dict.fromkeys(IDS, 0)
        async with serving(store, most=3) as registry:
            await create(registry, IDS)

            async def client(first: int):
                for n in range(first, first + 12):
                    model_id = IDS[min(chance.randrange(8), chance.randrange(8))]
                    rows_of[model_id] += 1
                    receipt = await learn(registry, model_id, rows(n, n + 1))
                    assert receipt.position.count == 1
                    # Above it are those alone that somebody uses.
                    assert len(registry) <= 3 + 4 + MAX_EVICTION_SNAPSHOTS

            await asyncio.gather(*(client(100 * n) for n in range(4)))
            assert len(await quiet(registry)) <= 3
            live = {model_id: await bits_of(registry, model_id) for model_id in IDS}
            await quiet(registry)
            got = shown(registry, await registry.counters.exposition(registry))
            assert got['dualstream_models{state="stored"}'] == 8
            assert got['dualstream_models{state="held"}'] <= 3
            assert got["dualstream_model_evictions_total"] >= 5
            loads = got["dualstream_model_load_duration_seconds_count"]
            assert loads - got["dualstream_model_evictions_total"] == len(registry)
        async with serving(store) as fresh:
            for model_id in IDS:
                assert await bits_of(fresh, model_id) == live[model_id]
                assert fresh.find(model_id).replica.seq == rows_of[model_id]

    asyncio.run(run())


def test_models_stay_within_their_bytes_as_they_grow(store):
    async def run():
        budget = 700_000
        async with serving(store, models_bytes=budget) as registry:
            await create(registry, IDS)
            assert len(registry) == len(IDS)  # they are small while they are new
            for first in range(0, 1000, 250):
                for model_id in IDS:
                    await learn(registry, model_id, rows(first, first + 250))
            await quiet(registry)
            assert 1 <= len(registry) < len(IDS)
            assert registry.cache.bytes == sum(model.bytes for model in registry) <= budget

    asyncio.run(run())


def test_a_model_larger_than_the_budget_is_served_and_stays(store):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, IDS[:2])
            await learn(registry, "m0", rows(0, 10))
            assert await quiet(registry) == ["m0"]
            model = registry.find("m0")
            await learn(registry, "m0", rows(10, 20))
            assert registry.find("m0") is model
            await learn(registry, "m1", rows(0, 10))
            assert await quiet(registry) == ["m1"]

    asyncio.run(run())


def test_a_model_in_use_does_not_leave_until_it_is_not(store):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, IDS[:3])
            with registry.pinned("m0"):
                model = await registry.get("m0")
                for other in ("m1", "m2"):
                    await learn(registry, other, rows(0, 5))
                assert registry.find("m0") is model
                with registry.pinned("m0"):
                    await model.submit(Request.of(rows(0, 3), None, None))
                assert registry.find("m0") is model
            assert await quiet(registry) == ["m2"]

    asyncio.run(run())


@pytest.mark.parametrize("many", [1500, 20])
def test_reloaded_model_has_the_same_bits_and_continues(store, many, cheap_snapshots):
    """A long journal leaves with a snapshot, a short one without."""

    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            for first in range(0, many, many // 10):
                await learn(registry, "m0", rows(first, first + many // 10))
            before = await bits_of(registry, "m0")
            incarnation = registry.find("m0").record.incarnation
            await leave(registry, "m0", ["m1"])
            snapshot = await registry.journal.snapshot_get("m0", incarnation)
            assert (snapshot is not None and snapshot.seq == many) == (many == 1500)
            assert await bits_of(registry, "m0") == before
            assert registry.find("m0").replica.restored_seq == (many if many == 1500 else 0)
            await leave(registry, "m0", ["m1"])
            receipt = await learn(registry, "m0", rows(many, many + 7))
            assert receipt.position.first_seq == many + 1
            live = await bits_of(registry, "m0")
        learner = make_learner(ADULT)
        learner.learn(rows(0, many + 7))
        state = learner.state()
        assert {name: live[f"learner.{name}"] for name in state} == {
            name: array.tobytes() for name, array in state.items()
        }

    asyncio.run(run())


def test_the_memory_of_what_leaves_is_free_at_once(store):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            for first in (0, 1000):
                await learn(registry, "m0", rows(first, first + 1000))
            model = registry.find("m0")
            for errand in (
                model.job(Refits),
                model.job(References),
                model.job(GuardRollback),
                model.job(UnlearnCleanup),
            ):
                assert not errand.is_busy
            parts = (
                model,
                model.replica,
                model.replica.learner,
                model.committer,
                model.job(Refits),
            )
            gone = [weakref.ref(part) for part in parts]
            del model, errand, parts
            gc.collect()
            gc.disable()
            await leave(registry, "m0", ["m1"])
            assert [part() for part in gone] == [None] * 5

    try:
        asyncio.run(run())
    finally:
        gc.enable()


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_a_forgotten_model_has_under_way_is_left(store, monkeypatch, is_planted):
    """Where nothing stops the rollback of a pause, this shows that it goes on."""
    paused = SimpleNamespace(needs_rollback=True, since=1, held_from=1)
    monkeypatch.setattr(GuardRollback, "pauses", paused)
    monkeypatch.setattr(GuardRollback, "_try", lambda *_: asyncio.sleep(3600))

    async def run():
        async with serving(store) as registry:
            await create(registry, ["m0"])
            model = registry.find("m0")
            model.job(GuardRollback).on_advance()
            model.job(UnlearnCleanup).begin(3600.0)
            await asyncio.sleep(0)
            assert (
                model.job(GuardRollback).is_busy
                and model.job(UnlearnCleanup).is_busy
                and not model.is_idle
            )
            with monkeypatch.context() as planted:
                if is_planted:
                    planted.setattr(GuardRollback, "stop", lambda _: None)
                registry.forget(model)
            for _ in range(5):  # turns, in which what was cancelled ends
                await asyncio.sleep(0)
            assert (
                model.job(GuardRollback).is_busy is is_planted
                and not model.job(UnlearnCleanup).is_busy
            )
            await model.close()

    asyncio.run(run())


def test_loading_continues_after_its_client_disconnects(store):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            first, *others = (asyncio.create_task(registry.get("m0")) for _ in range(4))
            await asyncio.sleep(0)
            first.cancel()
            others[0].cancel()
            inputs = await asyncio.gather(*others[1:])
            assert inputs == [registry.find("m0")] * 2 and first.cancelled()
            assert not registry._loads

    asyncio.run(run())


def test_request_waiting_for_a_loading_gets_its_error(store):
    async def run():
        async with serving(store) as registry:
            got = await asyncio.gather(
                *(registry.get("m9") for _ in range(3)), return_exceptions=True
            )
            assert [one.status for one in got] == [404] * 3
            assert not registry._loads

    asyncio.run(run())


def test_keys_and_first_answers_survive(store):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            first = await learn(registry, "m0", rows(0, 4), "k")
            for n in range(4, 904, 100):
                await learn(registry, "m0", rows(n, n + 100))
            await leave(registry, "m0", ["m1"])
            again = await learn(registry, "m0", rows(0, 4), "k")
            assert again.position.duplicate and again.position.seq == first.position.seq
            assert again.answer is not None
            assert list(again.answer.rows.scores) == list(first.scores)

    asyncio.run(run())


def test_requests_for_one_missing_model_share_one_load(store, monkeypatch):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            await leave(registry, "m0", ["m1"])
            loads = []
            monkeypatch.setattr(registry.counters, "saw_load", loads.append)
            receipts = await asyncio.gather(
                *(learn(registry, "m0", rows(n, n + 1)) for n in range(30))
            )
            assert len(loads) == 1
            assert sorted(receipt.position.seq for receipt in receipts) == list(range(1, 31))

    asyncio.run(run())


def test_a_model_wanted_while_its_snapshot_is_written_stays(store, monkeypatch, cheap_snapshots):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            for first in range(0, 1500, 100):
                await learn(registry, "m0", rows(first, first + 100))
            model = registry.find("m0")
            may_end, put = asyncio.Event(), registry.journal.snapshot_put

            async def slow(*args):
                await may_end.wait()
                return await put(*args)

            monkeypatch.setattr(registry.journal, "snapshot_put", slow)
            await bits_of(registry, "m1")
            assert not model.is_idle and registry.find("m0") is model
            receipt = await learn(registry, "m0", rows(0, 1))  # not held up by it
            assert receipt.position.seq == 1501
            may_end.set()
            await model.close()
            assert registry.find("m0") is model and held(registry) == ["m0"]

    asyncio.run(run())


def test_model_is_evicted_although_its_snapshot_fails(store, monkeypatch, cheap_snapshots):
    async def run():
        async with serving(store, models_bytes=1) as registry:
            await create(registry, ["m0", "m1"])
            for first in range(0, 1500, 100):
                await learn(registry, "m0", rows(first, first + 100))
            before = await bits_of(registry, "m0")

            async def refuse(*_):
                raise JournalUnavailable("planted")

            monkeypatch.setattr(registry.journal, "snapshot_put", refuse)
            await leave(registry, "m0", ["m1"])
            assert await bits_of(registry, "m0") == before

    asyncio.run(run())


def test_a_start_loads_the_first_models_and_the_others_when_asked(serve, store, monkeypatch):
    monkeypatch.setattr(readiness, "LOADED_AT_START", 3)
    monkeypatch.setattr(readiness, "START_S", 60.0)
    first = serve(store=store)
    for model_id in IDS:
        assert first.put(f"/models/{model_id}", json=SPEC).status_code == 201
        first.post(f"/models/{model_id}/learn", json={"x": [1, 0, 0, 0, 2], "y": 1})
    monkeypatch.setattr(ModelCache, "_is_over", lambda cache, count, size: count > 5)
    client = serve(store=store)
    registry = client.app._registry
    assert held(registry) == IDS[:3]
    # A list loads none, and tells of the others what the store knows.
    listed = client.get("/models").json()["models"]
    assert [view["id"] for view in listed] == IDS
    assert [view["seq"] for view in listed] == [1] * 8
    assert [view.get("samples") for view in listed] == [1] * 3 + [None] * 5
    assert held(registry) == IDS[:3]
    for model_id in IDS:
        assert client.get(f"/models/{model_id}").json()["samples"] == 1
    assert held(registry) == IDS[3:]
    assert client.get("/readyz?verbose").json()["models"] == 5
    # Those not in memory are deleted and replaced as any others.
    assert client.delete("/models/m0").status_code == 204
    assert client.get("/models/m0").status_code == 404
    etag = first.get("/models/m1").headers["etag"]
    answer = client.put("/models/m1", json=SPEC | {"rho": 0.5}, headers={"if-match": etag})
    assert answer.status_code == 201 and answer.json()["samples"] == 0


def test_a_start_does_not_wait_for_a_model_that_takes_long(serve, store, monkeypatch):
    first = serve(store=store)
    for model_id in IDS[:2]:
        assert first.put(f"/models/{model_id}", json=SPEC).status_code == 201
    monkeypatch.setattr(readiness, "START_S", 0.1)
    load, goes_on = ModelRegistry._load, threading.Event()

    async def slowly(self, model_id):
        if model_id == IDS[0]:
            await asyncio.to_thread(goes_on.wait, 30)
        return await load(self, model_id)

    monkeypatch.setattr(ModelRegistry, "_load", slowly)
    client = serve(store=store)  # ready
    assert held(client.app._registry) == []
    assert client.get(f"/models/{IDS[1]}").status_code == 200
    goes_on.set()
    assert client.get(f"/models/{IDS[0]}").status_code == 200


def test_metrics_show_cached_models_and_counts_continue(serve):
    client = serve(models_bytes=1)

    def metrics():
        return shown(client.app._registry, client.get("/metrics").content)

    for model_id in ("m0", "m1"):
        client.put(f"/models/{model_id}", json=SPEC)
    bad = {"x": [1, 2], "y": 1}
    good = {"x": [1, 0, 0, 0, 2], "y": 1}
    client.post("/models/m0/learn", json={"samples": [bad, good]})
    assert metrics()['dualstream_refused_rows_total{model="m0"}'] == 1
    client.get("/models/m1")
    got = metrics()
    assert 'dualstream_samples_total{model="m0",outcome="learned"}' not in got
    assert got['dualstream_refused_rows_total{model="m0"}'] == 1
    client.post("/models/m0/learn", json={"samples": [bad, good]})
    got = metrics()
    assert got['dualstream_refused_rows_total{model="m0"}'] == 2
    assert got['dualstream_samples_total{model="m0",outcome="learned"}'] == 2
    client.post("/models/m1/learn", json=good)
    got = metrics()
    assert got['dualstream_samples_total{model="m1",outcome="learned"}'] == 1
    assert got["dualstream_models_bytes"] == client.app._registry.cache.bytes > 0
    client.delete("/models/m0")
    client.put("/models/m0", json=SPEC)
    assert 'dualstream_refused_rows_total{model="m0"}' not in metrics()


def test_adoption_loads_all_models_within_the_budget(serve, store, monkeypatch):
    first = serve(store=store)
    for model_id in IDS:
        first.put(f"/models/{model_id}", json=SPEC)
        first.post(f"/models/{model_id}/learn", json={"x": [1, 0, 0, 0, 2], "y": 1})
    monkeypatch.setattr(
        "dualstream.service.models.store_status.numeric_identity", lambda: "another machine"
    )
    monkeypatch.setattr(
        "dualstream.service.replica.state.numeric_identity", lambda: "another machine"
    )
    client = serve(store=store, adopt=True, models_bytes=1)
    assert len(client.app._registry) <= 2
    journal = client.app._registry.journal

    async def snapshots():
        results = [await journal.get(model_id) for model_id in IDS]
        return [await journal.snapshot_get(one.id, one.incarnation) for one in results]

    assert [snapshot.seq for snapshot in client.portal.call(snapshots)] == [1] * 8


@pytest.mark.parametrize(
    "spec",
    [
        ADULT,
        {"algorithm": "perceptron", "features": {"kind": "indexed", "dim": 123}},
        {"features": {"kind": "indexed", "dim": 123}},
    ],
    ids=["dual_ascent", "perceptron", "eight"],
)
def test_measured_bytes_are_what_is_allocated(spec):
    batch = rows(0, 1500)
    before_it = make_learner(spec)
    before_it.learn(batch)
    before_it.state()  # whatever is allocated once
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    learner = make_learner(spec)
    learner.learn(batch)
    learner.state()  # rows in bulk are copied as somebody looks, and counted before
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    allocated = after - before
    assert abs(bytes_of(learner) - allocated) < 0.2 * allocated + 1000


def test_measuring_counts_what_is_shared_once_and_long_lists_by_their_beginning():
    shared = b"x" * 10_000
    assert bytes_of([shared, shared]) < 11_000
    long = [float(n) for n in range(10_000)]
    assert 0.9 < bytes_of(long) / (bytes_of(*long) + 8 * len(long)) < 1.1


def named(many: int) -> bytes:
    """Rows of features by name, as a body."""
    lines = [line.decode().split() for line in adult_lines()[:many]]
    samples = [
        {"x": dict.fromkeys([pair.split(":")[0] for pair in line[1:]], 1), "y": line[0]}
        for line in lines
    ]
    return json.dumps({"samples": samples}).encode()


@pytest.mark.parametrize("many", [1, 1500])
@pytest.mark.parametrize("features", [ADULT["features"], {"kind": "hashed", "bits": 8}])
def test_loaded_models_take_the_memory_that_they_tell(store, many, features):
    """Within a twentieth."""

    async def run():
        async with serving(store) as registry:
            for model_id in IDS:
                model, _ = await creation.create(registry, model_id, ADULT | {"features": features})
                parsed = parse_json(model.row_schema, named(many), True)
                await model.submit(
                    await request_of(parsed, make_key(KeyKind.REQUEST, "k"), b"f" * 16)
                )
        async with serving(store) as registry:
            for model_id in IDS[:2]:  # whatever is allocated once
                await registry.get(model_id)
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            models = [await registry.get(model_id) for model_id in IDS[2:]]
            got = sum(model.bytes for model in models)
            for model in models:  # rows in bulk are copied as somebody looks, and counted before
                model.replica.learner.state()
            del models, model
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert got == pytest.approx(after - before, rel=0.05)

    asyncio.run(run())


def test_models_of_one_specification_share_nothing_that_changes(store):
    async def run():
        async with serving(store) as registry:
            await create(registry, IDS[:2])
            parts = []
            for model_id in IDS[:2]:
                await learn(registry, model_id, rows(0, 20), "k")
                model = registry.find(model_id)
                state, schema = model.replica.state, model.row_schema
                of = (state, model.replica.first_responses, model.replica.control_outcomes)
                parts.append(
                    changeable(of, model.replica.lineage, model.lag, schema.owned_objects())
                )
            assert not parts[0].keys() & parts[1].keys()

    asyncio.run(run())


def test_a_model_tells_no_fewer_bytes_than_its_state_has(store):
    async def run():
        async with serving(store) as registry:
            await create(registry, ["m0"])
            await learn(registry, "m0", rows(0, 1500))
            model: Model = registry.find("m0")
            state = sum(array.nbytes for array in model.replica.capture().snapshot_arrays.values())
            assert state / 2 < model.bytes < 4 * state

    asyncio.run(run())


def test_request_after_an_eviction_loads_the_model_again(store):
    async def run():
        async with serving(store) as registry:
            await create(registry, ["m0"])
            registry.forget(registry.find("m0"))
            put, requests = registry.cache.put, []

            def put_and_drop(model):
                # It leaves, and somebody asks, before whoever waited for the loading goes on.
                put(model)
                if not requests:
                    registry.cache.drop(model)
                    requests.append(asyncio.create_task(registry.get("m0")))

            registry.cache.put = put_and_drop
            gone = await registry.get("m0")
            inputs = await requests[0]
            assert inputs is registry.find("m0")
            assert inputs is not gone

    asyncio.run(run())


def test_a_model_of_sqlite_is_loaded_by_one_call_or_without_a_snapshot_by_two(
    tmp_path, monkeypatch
):
    async def run():
        async with serving(f"sqlite:///{tmp_path / 'one.db'}") as registry:
            await create(registry, IDS[:2])
            for model_id in IDS[:2]:
                await learn(registry, model_id, rows(0, 30))
            await registry.find(IDS[0]).snapshots.write()
            await learn(registry, IDS[0], rows(30, 40))
            before = [await bits_of(registry, model_id) for model_id in IDS[:2]]
            calls = []
            reader = registry.journal._reader

            async def counted(task, way):
                calls.append(task)
                return await way(reader, task)

            for model_id in IDS[:2]:
                registry.forget(registry.find(model_id))
            for way in ("run", "read"):
                monkeypatch.setattr(
                    reader, way, partial(counted, way=getattr(ConnectionThread, way))
                )
            assert [await bits_of(registry, model_id) for model_id in IDS[:2]] == before
            assert len(calls) == 3  # the second has no snapshot, and an older one is looked for

    asyncio.run(run())
