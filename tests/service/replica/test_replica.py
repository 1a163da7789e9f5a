"""Many appenders, lost entries, snapshots, other versions: the replica follows its journal."""

import asyncio
from itertools import count

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, JournalUnavailable, ModelRecord, Part
from dualstream.service.journal.record import encode_control
from dualstream.service.models.model import Model
from dualstream.service.models.registry import Unreadable
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import NewRows, Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, numeric_identity, resolve_spec
from tests.adult import adult_lines
from tests.service.conftest import assert_problem
from tests.service.support import (
    ADULT,
    bits,
    learn_adult,
    loaded,
    lose_last_entry,
    replica_of,
    until_answered,
    until_reason,
    until_written,
)
from tests.support import until


def test_still_replica_learns_nothing():
    async def scenario() -> None:
        spec = canonical(resolve_spec(ADULT))
        replica = Replica(ModelRecord("m", "i", spec, spec, 0, 0, ""), ALL)
        row = Batch.from_dense(np.ones((1, 123)), np.ones(1))
        async with replica.still():
            learning = asyncio.create_task(replica.apply_own(1, "c" * 40, NewRows(row)))
            for _ in range(5):
                await asyncio.sleep(0)
            assert replica.seq == replica.learner.samples == 0
        await learning
        assert replica.seq == replica.learner.samples == 1

    asyncio.run(scenario())


def test_two_processes_append_to_one_model(serve, store):
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=ADULT).status_code == 201
    assert other.put("/models/m", json=ADULT).status_code == 200
    for first in range(0, 200, 10):
        client = one if first % 20 else other
        answer = learn_adult(client, first, first + 10).json()
        assert answer["seq"] == first + 10
    # Each learned its own batches from memory and the other's from the journal.
    learn_adult(one, 200, 201)
    learn_adult(other, 201, 202)
    learn_adult(one, 202, 203)
    learn_adult(other, 203, 204)
    learn_adult(one, 204, 205)
    fresh = loaded(store)
    assert bits(replica_of(one)) == bits(fresh)
    assert fresh.seq == 205 and fresh.learner.samples == 205
    learn_adult(other, 0, 1)
    assert bits(replica_of(other)) == bits(loaded(store))


def test_lagging_replica_reads_several_pages(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=ADULT)
    other.get("/models/m")
    for _ in range(4):
        learn_adult(one, 0, 12_000)
    assert learn_adult(other, 0, 1).json()["seq"] == 48_001
    assert bits(replica_of(other)) == bits(loaded(store))


def test_model_made_again_elsewhere_is_not_fed_old_rows(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=ADULT)
    learn_adult(one, 0, 50)
    other.delete("/models/m")
    other.put("/models/m", json=ADULT)
    # What is sent now is sent to the new model.
    assert learn_adult(one, 50, 60).json()["seq"] == 10
    assert learn_adult(one, 0, 5).json()["seq"] == 15
    assert bits(replica_of(one)) == bits(loaded(store))


def test_model_deleted_elsewhere_is_unknown(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=ADULT)
    learn_adult(one, 0, 5)
    other.delete("/models/m")
    assert_problem(learn_adult(one, 5, 6), 404, "unknown-model")


def test_lost_entries_make_the_replica_start_over(serve, tmp_path):
    # Given a server that learned 40 rows of which the store then loses the last 10
    import sqlite3

    path = tmp_path / "fork.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=ADULT)
    for first in range(0, 40, 10):
        learn_adult(client, first, first + 10)
    lose_last_entry(sqlite3.connect(path))
    # When it learns again, not while it is rebuilt: who follows may have seen the loss before
    answer = until_answered(lambda: learn_adult(client, 60, 65)).json()
    # Then the lost span is gone from its state too, and that is counted
    assert answer["seq"] == 35 and answer["learned"] == 5
    fresh = loaded(f"sqlite:///{path}")
    assert fresh.learner.samples == 35
    until_answered(lambda: client.get("/models/m"))
    assert bits(replica_of(client)) == bits(fresh)
    assert 'dualstream_forks_total{model="m"} 1.0' in client.get("/metrics").text


def test_snapshot_and_replay_have_the_same_bits(serve, store):
    client = serve(store=store, snapshot_every=100, keep_records=1000)
    client.put("/models/m", json=ADULT)
    for first in range(0, 570, 30):
        learn_adult(client, first, first + 30)
    until_written(client)
    live = bits(replica_of(client))

    async def both() -> tuple[Replica, Replica, int]:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            restored, replayed = Replica(record, ALL), Replica(record, ALL)
            snapshot = await journal.snapshot_get("m", record.incarnation)
            assert snapshot is not None
            await recover(restored, journal)
            await replayed.catch_up(journal)
            return restored, replayed, snapshot.seq
        finally:
            await journal.close()

    restored, replayed, seq = asyncio.run(both())
    assert 100 <= seq <= 540
    assert bits(restored) == bits(replayed) == live


def test_snapshot_of_another_identity_is_not_used(serve, store, monkeypatch):
    client = serve(store=store, snapshot_every=10, keep_records=1000)
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 25)
    until_written(client)
    expected = bits(replica_of(client))
    monkeypatch.setattr("dualstream.service.replica.state.numeric_identity", lambda: "another")
    assert bits(loaded(store)) == expected


def test_store_of_another_identity_is_not_served(serve, store, monkeypatch):
    serve(store=store)
    monkeypatch.setattr(
        "dualstream.service.models.store_status.numeric_identity", lambda: "other-cpu"
    )
    from starlette.testclient import TestClient

    from dualstream.service.server.app import create_app
    from dualstream.service.settings import Settings

    with TestClient(create_app(Settings(store=store))) as client:
        got = until_reason(client, "DUALSTREAM_CPU")
        assert "--adopt" in got["reason"]
        assert numeric_identity() in got["reason"]
        assert_problem(client.get("/models"), 503, "store-unavailable")
        assert client.get("/livez").status_code == 200


def test_store_of_another_identity_is_adopted(serve, store, monkeypatch):
    # Given a store with snapshots that another version wrote
    with monkeypatch.context() as before:
        for module in ("models.store_status", "replica.state"):
            before.setattr(
                f"dualstream.service.{module}.numeric_identity", lambda: "an-older-version"
            )
        client = serve(store=store, snapshot_every=10, keep_records=1000)
        client.put("/models/m", json=ADULT)
        client.put("/models/empty", json=ADULT)
        learn_adult(client, 0, 12, **{"idempotency-key": "k"})
        until_written(client)
        learn_adult(client, 12, 27)
        until_written(client)
        learn_adult(client, 27, 28)
        expected = bits(replica_of(client))
    # When one worker adopts it
    adopting = serve(store=store, adopt=True)
    # Then its state is that of the whole journal, there is a snapshot of it, and others may join
    assert bits(replica_of(adopting)) == expected == bits(loaded(store))
    assert learn_adult(adopting, 0, 12, **{"idempotency-key": "k"}).json()["learned"] == 12

    async def newest() -> None:
        journal = await open_journal(store)
        try:
            assert await journal.claim_identity("anything") == numeric_identity()
            record = await journal.get("m")
            snapshot = await journal.snapshot_get("m", record.incarnation)
            assert snapshot is not None and snapshot.seq == 28
            Replica(record, ALL).restore(snapshot)
        finally:
            await journal.close()

    asyncio.run(newest())
    assert learn_adult(serve(store=store), 28, 30).json()["seq"] == 30
    assert serve(store=store, adopt=True).get("/models/m").json()["seq"] == 30


def test_model_whose_spec_is_of_a_later_version_is_set_aside(serve, store):
    async def create() -> None:
        journal = await open_journal(store)
        await journal.create("m", b'{"algorithm": "later"}', b"{}")
        await journal.close()

    asyncio.run(create())
    client = serve(store=store)
    assert client.put("/models/other", json=ADULT).status_code == 201
    assert_problem(client.get("/models/m"), 503, "unreadable-journal")
    assert client.get("/readyz?verbose").json()["unreadable"].keys() == {"m"}


def test_control_record_of_a_later_version_stops_that_model_alone(serve, store, monkeypatch):
    client = serve(store=store)
    client.put("/models/m", json=ADULT)
    client.put("/models/other", json=ADULT)
    learn_adult(client, 0, 5)

    async def append_control() -> None:
        journal = await open_journal(store)
        record = await journal.get("m")
        part = Part(encode_control("pause", {"why": "test"}), 1)
        await journal.append(AppendRequest("m", record.incarnation, b"n" * 16, 0, [part]))
        await journal.close()

    asyncio.run(append_control())
    late = serve(store=store)
    for path in ("", "/metrics", "/predict?x=1:1", "/weights"):
        got = assert_problem(late.get(f"/models/m{path}"), 503, "unreadable-journal")
        assert "'pause'" in got["detail"]
    assert_problem(learn_adult(late, 5, 6), 503, "unreadable-journal")
    assert "'pause'" in late.get("/readyz?verbose").json()["unreadable"]["m"]
    assert learn_adult(late, 0, 5, "other").status_code == 200
    listed = late.get("/models").json()["models"]
    assert [("unreadable" in view) for view in listed] == [True, False]
    # A process that loaded it before stops in front of it as well, once it notices.
    until(lambda: client.get("/models/m").status_code != 200)
    assert client.get("/readyz?verbose").json()["unreadable"].keys() == {"m"}
    # Created again, it is served here at once and there at the next attempt.
    assert late.delete("/models/m").status_code == 204
    assert late.put("/models/m", json=ADULT).status_code == 201
    assert learn_adult(late, 0, 5).json()["seq"] == 5
    assert late.get("/readyz?verbose").json()["unreadable"] == {}
    monkeypatch.setattr("dualstream.service.models.registry.UNREADABLE_S", 0.0)
    client.app._registry.unreadable["m"] = Unreadable("tried again", 0.0)
    assert client.get("/models/m").json()["seq"] == 5
    assert client.get("/readyz?verbose").json()["unreadable"] == {}


@pytest.mark.parametrize(("pieces", "read_bytes"), [(1, 1 << 22), (7, 1), (500, 1000)])
def test_group_borders_leave_no_trace(store, pieces, read_bytes, monkeypatch):
    monkeypatch.setattr("dualstream.service.replica.replica.READ_BYTES", read_bytes)
    rows = Batch.from_libsvm(b"\n".join(adult_lines()[:500]), 123).batch

    async def run() -> Replica:
        journal = await open_journal(store)
        try:
            spec = canonical(resolve_spec(ADULT))
            record, _ = await journal.create("m", spec, spec)
            for number, part in enumerate(np.array_split(np.arange(500), pieces)):
                request = Request.of(rows[int(part[0]) : int(part[-1]) + 1], None, None)
                nonce = number.to_bytes(16, "big")
                await journal.append(
                    AppendRequest("m", record.incarnation, nonce, 10**9, request.parts)
                )
            replica = Replica(record, ALL)
            await recover(replica, journal)
            return replica
        finally:
            await journal.close()

    replica = asyncio.run(run())
    learner, progress = replica.learner, replica.progress
    replica.start_over()
    replica._learn_slice(rows)
    assert {k: v.tobytes() for k, v in learner.state().items()} == {
        k: v.tobytes() for k, v in replica.learner.state().items()
    }
    assert {k: v.tobytes() for k, v in progress.state().items()} == {
        k: v.tobytes() for k, v in replica.progress.state().items()
    }


@pytest.mark.parametrize("finder", ["append", "refresh"])
def test_rebuilding_that_the_store_interrupts_is_made_up_for(
    serve, no_follower, tmp_path, monkeypatch, finder
):
    import sqlite3

    # Given a server whose store has lost an entry, and goes away while the replica is rebuilt
    path = tmp_path / "fork.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=ADULT)
    for first in range(0, 30, 10):
        learn_adult(client, first, first + 10)
    lose_last_entry(sqlite3.connect(path))

    async def refuse(*_):
        raise JournalUnavailable("planted")

    async def suspected(model: Model) -> None:
        model.committer.suspect()
        await model.refresh()

    with monkeypatch.context() as away:
        away.setattr(client.app._registry.journal, "read", refuse)
        away.setattr(client.app._registry.journal, "base", refuse)
        if finder == "refresh":
            with pytest.raises(JournalUnavailable, match="planted"):
                client.portal.call(suspected, client.app._registry.find("m"))
        assert learn_adult(client, 60, 65).json()["error"].startswith("planted")
    # When the store is back, the model is served again, from the journal
    seq = client.get("/models/m").json()["seq"]
    assert seq == (25 if finder == "append" else 20)
    assert learn_adult(client, 65, 70).json()["seq"] == seq + 5
    assert bits(replica_of(client)) == bits(loaded(f"sqlite:///{path}"))


def test_time_that_others_had_the_core_is_not_taken_for_work():
    spec = canonical(resolve_spec(ADULT))
    record = ModelRecord("m", "0" * 32, spec, spec, 0, 0, "")
    moments, worked = count(step=10.0), count(step=1e-5)
    clock = Clock(lambda: next(moments), cpu_seconds=lambda: next(worked))
    replica = Replica(record, ALL, clock=clock)
    batch = Batch.from_libsvm(b"\n".join(adult_lines()[:100]) + b"\n", 123).batch
    for _ in range(50):
        asyncio.run(replica._learn(batch))
    estimated = replica.learning.cost.seconds(100, batch.nnz)
    assert replica.learning.ratio == pytest.approx(1e-5 / estimated, rel=1e-2)


@pytest.mark.parametrize(
    "given",
    [
        {"task": "multiclass"},
        {
            "algorithm": "perceptron",
            "task": "multiclass",
            "features": {"kind": "hashed", "bits": 8},
        },
        {"algorithm": "dual_ascent", "replay": {"until_gap": 1e-6, "every": 3, "max_steps": 50}},
    ],
)
def test_slices_in_threads_give_the_same_bits_as_one_batch(given):
    spec = canonical(resolve_spec({"features": {"kind": "hashed", "bits": 8}, **given}))
    classes = tuple(f'"c{k}"' for k in range(30)) if "task" in given else ()
    labels = np.arange(60) * 7 % 30 if classes else np.arange(60) % 2 * 2 - 1
    indices = np.arange(120).reshape(60, 2).astype(np.int32).ravel()
    columns = np.arange(0, 121, 2), indices, np.linspace(0.5, 2.0, 120), labels.astype(float)
    batch = Batch(*columns, np.ones(60), 256, classes)
    whole = Replica(ModelRecord("m", "0" * 32, spec, spec, 0, 0, ""), ALL)
    expected = whole._learn_slice(batch)
    sliced = Replica(ModelRecord("m", "0" * 32, spec, spec, 0, 0, ""), ALL)
    sliced.learning.ratio = 1e6
    learned: list[int] = []
    learn_adult = sliced._learn_slice
    sliced._learn_slice = lambda rows: learned.append(len(rows)) or learn_adult(rows)
    outcome = asyncio.run(sliced._learn(batch))
    assert len(learned) > 5 and sum(learned) == 60
    assert outcome.scores.tobytes() == expected.scores.tobytes()
    assert sliced.capture().state_digest() == whole.capture().state_digest()
    sliced.predicting.ratio = 1e6
    scores, seq, _ = asyncio.run(sliced.predict(batch))
    assert seq == 60 and scores.tobytes() == whole.learner.predict(batch).tobytes()
