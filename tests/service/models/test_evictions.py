"""Models that left memory are loaded by the next request, and nobody can tell by the answers."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.http.exceptions_to_problems import as_problem
from dualstream.service.journal.protocol import AppendRequest, JournalUnavailable, Part
from dualstream.service.journal.record import RecordError, encode_control
from dualstream.service.models import creation
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Outcome
from dualstream.wire.problem_json import Problem
from tests.service.models.support import IDS, bits_of, create, learn, leave, rows, serving, shown
from tests.service.replica.snapshot_damage import bits
from tests.service.support import ADULT

WIDER = ADULT | {"features": {"kind": "indexed", "dim": 200}}
HASHED = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "hashed", "bits": 8}}
SGD = ADULT | {"algorithm": "sgd"}
OTHERS = ["x", "y"]


async def evicted(registry: ModelRegistry, length: int = 300) -> None:
    """The model `m` has learned so many rows, and is out of memory."""
    await create(registry, ["m", *OTHERS])
    await learn(registry, "m", rows(0, length))
    await leave(registry, "m", OTHERS)


async def replayed(registry: ModelRegistry) -> dict[str, bytes]:
    """The bits of the journal of `m`, read by another replica."""
    replica = Replica(await registry.journal.get("m"), ALL)
    await replica.catch_up(registry.journal)
    return bits(replica)


def test_a_row_loads_the_model_and_is_scored_by_what_was_learned_before(store):
    async def scenario() -> None:
        async with serving(store, most=2) as registry:
            await evicted(registry)
            receipt = await learn(registry, "m", rows(300, 301))
            assert receipt.position.seq == 301
            model = registry.find("m")
            assert model is not None and bits(model.replica) == await replayed(registry)
            learner = Replica(await registry.journal.get("m"), ALL).learner
            learner.learn(rows(0, 300))
            assert receipt.scores[0] == learner.predict(rows(300, 301))[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("spec", [ADULT, HASHED, SGD], ids=["dual_ascent", "hashed", "sgd"])
def test_models_come_and_go_by_chance_in_two_workers(store, spec):
    """Two workers on one store, each of which holds two of six models."""
    ids, chance = IDS[:6], random.Random(7)

    def batch(n: int) -> Batch:
        result = rows(n, n + 1)
        if spec is not HASHED:
            return result
        return Batch(
            result.indptr, result.indices, result.values, result.labels, result.weights, 256
        )

    async def scenario() -> None:
        # On a slow machine snapshots are due earlier; the reader below needs the whole journal.
        kept = {"most": 2, "keep_records": 10_000}
        async with serving(store, **kept) as one, serving(store, **kept) as other:
            for model_id in ids:
                await creation.create(one, model_id, spec)
            got: dict[str, dict[int, float]] = {model_id: {} for model_id in ids}

            async def client(first: int) -> None:
                for n in range(first, first + 60):
                    model_id = ids[min(chance.randrange(6), chance.randrange(6))]
                    receipt = await learn(chance.choice((one, other)), model_id, batch(n))
                    got[model_id][receipt.position.seq] = receipt.scores[0]

            await asyncio.gather(*(client(100 * n) for n in range(3)))
            for model_id in ids:
                reader = Replica(await one.journal.get(model_id), ALL)
                scores: list[float] = []
                for entry in await one.journal.read(model_id, reader.incarnation, 0):
                    reader.watched = {entry.nonce: None}
                    await reader.apply([entry], one.journal)
                    outcome = reader.watched[entry.nonce]
                    assert isinstance(outcome, Outcome)
                    scores += outcome.scores.tolist()
                assert scores == [got[model_id][seq] for seq in range(1, len(scores) + 1)]
                for registry in (one, other):
                    model = await registry.get(model_id)
                    await model.refresh()
                    assert bits(model.replica) == bits(reader)
            for registry in (one, other):
                counted = shown(registry, await registry.counters.exposition(registry))
                assert counted["dualstream_model_evictions_total"] > 20

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["made anew", "deleted"])
def test_nothing_is_refused_by_what_it_was(serve, store, how):
    """The follower does not report changes of models that are not in memory."""
    here, other = serve(store=store, models_bytes=1), serve(store=store)
    for name in ("m", "x"):
        assert here.put(f"/models/{name}", json=ADULT).status_code == 201
    other.delete("/models/m")
    if how == "made anew":
        other.put("/models/m", json=WIDER)
    answer = here.post("/models/m/learn", json={"x": {"150": 1}, "y": 1})
    assert answer.status_code == (200 if how == "made anew" else 404), answer.text


def test_rows_are_reported_as_journalled_where_a_record_before_them_cannot_be_read(store):
    """A client that sends them again needs to know."""

    async def scenario() -> None:
        async with serving(store) as registry:
            await create(registry, ["m"])
            record = await registry.journal.get("m")
            part = Part(encode_control("of a later version", {}), 1)
            request = AppendRequest("m", record.incarnation, b"n" * 16, 0, [part])
            await registry.journal.append(request)
            with pytest.raises(RecordError, match="of a later version") as failed:
                await learn(registry, "m", rows(0, 1))
            got = as_problem(failed.value)
            assert got is not None
            assert (got.status, got.slug) == (503, "unreadable-journal")
            assert got.extra["outcome"] == "journalled"
            assert (await registry.journal.get("m")).seq == 2
            with pytest.raises(Problem, match="of a later version") as refused:
                await learn(registry, "m", rows(0, 1))
            assert "outcome" not in refused.value.extra

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["read", "appended to", "read, first in vain"])
def test_loss_is_counted_once_however_the_model_is_reloaded(store, monkeypatch, way):
    """The store lost what the model had learned when it left memory."""

    async def scenario() -> None:
        async with serving(store, most=2) as registry:
            await evicted(registry)
            lineage = registry._lineages["m"].lineage
            for seq in (301, 302, 303):
                lineage.add(seq, f"{seq:064}")
            if way == "read, first in vain":

                async def fail(*_: Any) -> Any:
                    raise JournalUnavailable("planted")

                with monkeypatch.context() as planted:
                    planted.setattr(registry.journal, "base", fail)
                    with pytest.raises(JournalUnavailable):
                        await registry.get("m")
            if way == "appended to":
                assert (await learn(registry, "m", rows(300, 301))).position.seq == 301
            for _ in range(2):
                assert await bits_of(registry, "m") == await replayed(registry)
                model = registry.find("m")
                assert model is not None
                registry.cache._evict(model)
            counted = shown(registry, await registry.counters.exposition(registry))
            assert counted['dualstream_lost_records_total{model="m"}'] == 3

    asyncio.run(scenario())


def test_no_loss_is_counted_of_another_incarnation(store):
    async def scenario() -> None:
        async with serving(store, most=2) as registry, serving(store) as other:
            await evicted(registry)
            await creation.delete(other, "m")
            await creation.create(other, "m", ADULT)
            assert (await registry.get("m")).replica.seq == 0
            text = (await registry.counters.exposition(registry)).decode()
            assert 'dualstream_lost_records_total{model="m"}' not in text

    asyncio.run(scenario())


def test_a_loss_is_counted_of_what_learned_before_its_making_was_answered(store, monkeypatch):
    """The answer comes late: others have used the model, and it has left memory."""
    lineages = []

    async def scenario() -> None:
        async with serving(store, most=2) as registry:
            await create(registry, OTHERS)
            made = registry.journal.create

            async def answered_late(*args: Any) -> Any:
                answer = await made(*args)
                await learn(registry, "m", rows(0, 7))
                await leave(registry, "m", OTHERS)
                return answer

            monkeypatch.setattr(registry.journal, "create", answered_late)
            count = Model.count_lost_since
            monkeypatch.setattr(
                Model, "count_lost_since", lambda *args: (lineages.append(args[1]), count(*args))
            )
            await creation.create(registry, "m", ADULT)

    asyncio.run(scenario())
    assert lineages[-1] is not None and lineages[-1].end == 7


def test_the_trails_of_the_models_that_left_last_are_kept(store, monkeypatch):
    monkeypatch.setattr("dualstream.service.models.registry.MAX_LINEAGES", 2)

    async def scenario() -> None:
        async with serving(store, models_bytes=1) as registry:
            await create(registry, IDS[:5])
            assert list(registry._lineages) == IDS[2:4]
            await registry.get(IDS[2])
            assert list(registry._lineages) == [IDS[3], IDS[4]]

    asyncio.run(scenario())


@pytest.fixture
def server(tmp_path) -> Iterator[httpx.Client]:
    with ServerProcess(f"sqlite:///{tmp_path / 'many.db'}", ["--models-bytes", "1"]) as process:
        with httpx.Client(base_url=process.url, timeout=30) as client:
            yield client


def test_requests_learn_by_models_that_come_and_go(server):
    """Over HTTP: refused rows change nothing, and all counts are those of every row."""
    for name in "abcd":
        assert server.put(f"/models/{name}", json=ADULT).status_code == 201
    for round_ in range(5):
        for name in "abcd":
            got = server.post(f"/models/{name}/learn", json={"x": {"1": 1, "7": 1}, "y": 1}).json()
            assert got["seq"] == round_ + 1
            bad = server.post(f"/models/{name}/learn", json={"x": {"124": 1}, "y": 1})
            assert bad.status_code == 422
    for name in "abcd":
        assert server.get(f"/models/{name}/metrics").json()["samples"] == 5
