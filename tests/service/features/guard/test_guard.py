"""A guarded model over HTTP: it pauses on bad data, goes back, and resumes on request."""

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.features.guard.controls import Pause
from dualstream.service.features.guard.rollback import GuardRollback
from dualstream.service.journal.protocol import AppendRequest
from dualstream.service.journal.record import Control, KeyKind, decode_merged, make_key
from dualstream.service.replay.replay import replay
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.groups import Group
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from tests.service.conftest import SPEC, assert_problem
from tests.service.features.guard.support import FIELDS, GUARDED, learn, paused, samples, view
from tests.service.replica.snapshot_damage import Kept, bits, run
from tests.service.support import lose_last_entry
from tests.support import until

TIGHT = GUARDED["guard"] | {"loss": 1.2, "deviations": 0, "history": 50}
PAUSED = "paused: the row waits in the journal until the model is resumed"


def resume(client: Any, rows: str, **more: Any) -> Any:
    return client.post(f"/models/m/resume?rows={rows}", **more)


def learned_of(client: TestClient, model: str) -> dict[str, bytes]:
    """All of a model's state that does not speak of guards."""
    replica = client.app._registry.find(model).replica
    arrays = replica.capture().arrays
    mine = ("guard.", "pauses.", "refused_controls")
    return {name: a.tobytes() for name, a in arrays.items() if not name.startswith(mine)}


def controls_in(store: str) -> list[str]:
    async def scenario(kept: Kept) -> list[str]:
        entries = await kept.journal.read(*kept.where, 0, 10**9)
        _, blocks = decode_merged(b"".join(entry.body for entry in entries))
        return [block.kind for block in blocks if isinstance(block, Control)]

    return run(store, scenario)


def test_a_pause_from_beginning_to_end(serve, store):
    one, other = serve(store=store), serve(store=store)
    for model, spec in (("m", GUARDED), ("free", SPEC)):
        one.put(f"/models/{model}", json=spec)
        learn(one, samples(0, 103), model)
    good = view(one)
    assert good["paused"] is None and good["spec"]["guard"]["loss"] == 2.0
    bad = samples(103, 163, bad=True, ids=True)
    key = {"headers": {"idempotency-key": "bad"}}
    got = learn(one, bad, **key)
    learn(one, bad, "free")
    # It trips in the midst of the request; what comes behind is set aside.
    learned = got["learned"]
    assert 0 < learned < got["count"] == 60 and got["rejected"] == 60 - learned
    assert [error["index"] for error in got["errors"]] == list(range(learned, 60))
    assert {error["reason"] for error in got["errors"]} == {PAUSED}
    since = 103 + learned
    assert since % 10 == 0
    now = paused(one)
    assert (now["since"], now["quantity"]) == (since, "loss") and now["value"] > now["limit"]
    assert now["held_from"] == since - 20 and now["held_records"] == 163 - (since - 20) + 1
    # The state is the one of the last good look, and other workers have it, too.
    there = other.get("/models/m/predict?x=1:1&min_seq=164")
    assert there.status_code == 200
    assert view(other) | {"state_digest": 0} == view(one) | {"state_digest": 0}
    assert view(other)["state_digest"] == view(one)["state_digest"]
    assert view(one)["samples"] == now["held_from"] and view(one)["rejected"] == 0
    # The same request has the same answer, and rows are known by their ids.
    assert learn(other, bad, **key) == got | {"duplicate": True}
    assert len(learn(other, bad[:2])["duplicates"]) == 2
    alone = other.post("/models/m/learn", json=samples(163, 164)[0]).json()
    assert (alone["learned"], alone["loss"], alone["scores"]) == (0, None, [None])
    assert alone["errors"] == [{"index": 0, "pointer": "", "reason": PAUSED}]
    learn(one, samples(163, 164), "free")
    text = other.get("/metrics").text
    assert 'dualstream_model_paused{model="m"} 1.0' in text and 'paused{model="free"}' not in text
    assert 'dualstream_guard_trips_total{model="m",quantity="loss"} 1.0' in text
    assert f'dualstream_quarantined_records{{model="m"}} {165 - now["held_from"]}.0' in text
    (held_bytes,) = re.findall(r'dualstream_quarantined_bytes{model="m"} (.*)', text)
    assert float(held_bytes) >= 32 * (164 - since)
    events = one.get("/models/m/timeline").json()["events"]
    (event,) = (event for event in events if event["kind"] == "guard")
    assert (event["seq"], event["rows"], event["paused"]) == (since, since, True)
    # Learned after all, it is the model that it would be without any guard.
    resumed = resume(other, "learn", headers={"idempotency-key": "r"}).json()
    assert (resumed["seq"], resumed["since"]) == (166, since)
    assert resumed["learned"] == 164 - now["held_from"]
    again = resume(one, "learn", headers={"idempotency-key": "r"}).json()
    assert again == resumed | {"duplicate": True}
    other_rows = resume(one, "drop", headers={"idempotency-key": "r"})
    assert_problem(other_rows, 422, "idempotency-key-reused")
    one.get("/models/m/predict?x=1:1&min_seq=166")
    assert view(one)["paused"] is None and view(one)["samples"] == 164
    mine, free = learned_of(one, "m"), learned_of(one, "free")
    # Seqs differ by the controls; all else is the same to the bit.
    for name in ("retained.seqs", "progress.drift_events"):
        mine.pop(name), free.pop(name)
    assert mine == free
    assert_problem(resume(one, "learn"), 409, "not-paused")
    assert controls_in(store) == ["pause", "resume"]

    async def scenario(kept: Kept) -> None:
        assert bits(kept.replica) == bits(one.app._registry.find("m").replica)

    run(store, scenario)


def test_dropped_rows_are_forgotten_and_the_guard_still_knows_its_history(serve):
    client = serve()
    client.put("/models/m", json=GUARDED)
    learn(client, samples(0, 100))
    learn(client, samples(100, 150, bad=True))
    got = paused(client)
    good, seq = learned_of(client, "m"), view(client)["seq"]
    answer = resume(client, "drop").json()
    assert (answer["learned"], answer["rows"]) == (0, "drop")
    assert learned_of(client, "m") == good
    # It needs no new history: bad rows are found as before, and it goes back to the resumption.
    learn(client, samples(150, 200, bad=True))
    now = paused(client)
    assert now["held_from"] == seq + 1 and now["since"] == seq + 1 + (got["since"] - 100)
    assert view(client)["samples"] == 100


def test_a_full_quarantine_is_429_and_stays_in_the_journal(serve, store, monkeypatch):
    monkeypatch.setattr("dualstream.service.features.guard.state.MAX_QUARANTINE_RECORDS", 100)
    client = serve(store=store, snapshot_every=20)
    client.put("/models/m", json=GUARDED)
    for first in range(0, 100, 10):
        learn(client, samples(first, first + 10))
        settle(client)
    learn(client, samples(100, 130, bad=True))
    held_from = paused(client)["held_from"]
    n = 130
    while (answer := client.post("/models/m/learn", json=samples(n, n + 1)[0])).status_code == 200:
        n += 1
        settle(client)
    got = assert_problem(answer, 429, "quarantine-full")
    assert "100 records" in got["detail"] and int(answer.headers["retry-after"]) >= 1
    assert view(client)["seq"] - held_from == 100
    assert client.get("/models/m/predict?x=1:1").status_code == 200
    settle(client)
    kept = client.get("/models/m/versions").json()["kept_from"]
    assert 1 < kept <= held_from + 1  # snapshots were written on and on
    answer = resume(client, "learn").json()
    settle(client)
    assert view(client)["samples"] == n == held_from + answer["learned"]
    # The older of two snapshots may be from before it: then the quarantine is needed once more.
    digest = view(client)["state_digest"]

    async def scenario(kept: Kept) -> None:
        positions = await kept.journal.snapshots(*kept.where)
        assert min(position.seq for position in positions) < answer["seq"]
        for number in (0, 1):
            replica = Replica(kept.record, ALL)
            replica.restore(await kept.journal.snapshot_get(*kept.where, number))
            await replica.catch_up(kept.journal)
            assert replica.capture().state_digest() == digest

    run(store, scenario)
    for first in range(n, n + 80, 10):
        learn(client, samples(first, first + 10))
        settle(client)
    assert client.get("/models/m/versions").json()["kept_from"] > held_from + 20


def test_a_quarantine_is_full_by_its_bytes_too(serve, store, monkeypatch):
    clients = [serve(store=store) for _ in range(2)]
    monkeypatch.setattr("dualstream.service.features.guard.state.MAX_QUARANTINE_BYTES", 2000)
    clients[0].put("/models/m", json=GUARDED)
    learn(clients[0], samples(0, 100))
    learn(clients[0], samples(100, 130, bad=True))
    before = paused(clients[0])["held_bytes"]
    n, row = 130, 16 * 5 + 32
    while (answer := clients[0].post("/models/m/learn", json=samples(n, n + 1)[0])).is_success:
        n += 1
    assert "2000 bytes" in assert_problem(answer, 429, "quarantine-full")["detail"]
    kept = paused(clients[0])["held_bytes"]
    assert before < kept <= before + row * (n - 130) and kept - row < 2000 <= kept
    # It is a bound of the door alone: whoever lets in more has a journal that all apply.
    monkeypatch.undo()
    seq = learn(clients[1], samples(n, n + 5))["seq"]
    clients[0].get(f"/models/m/predict?x=1:1&min_seq={seq}")
    one, other = map(view, clients)
    assert one["paused"]["held_bytes"] == other["paused"]["held_bytes"]
    assert kept < one["paused"]["held_bytes"] <= kept + 5 * row  # a zero counts nothing
    assert one["state_digest"] == other["state_digest"]
    assert view(serve(store=store))["paused"] == one["paused"]
    learned = resume(clients[1], "learn").json()
    clients[0].get(f"/models/m/predict?x=1:1&min_seq={learned['seq']}")
    assert view(clients[0])["samples"] == n + 5
    assert view(clients[0])["state_digest"] == view(clients[1])["state_digest"]


def settle(client: TestClient) -> None:
    """No snapshot is being written."""
    until(lambda: client.app._registry.find("m").is_idle, every_s=0.002)


def test_what_else_may_happen_while_it_is_paused(serve):
    client = serve()
    client.put("/models/m", json=GUARDED | {"retain": 500})
    learn(client, samples(0, 60, ids=True))
    client.post("/models/m/versions", json={"name": "early"})
    wait = {"samples": [{"x": [1, 1, 0, 0, 0], "id": "late"}]}
    assert client.post("/models/m/predict?remember=true", json=wait).status_code == 200
    learn(client, samples(60, 100))
    learn(client, samples(100, 140, bad=True))
    now = paused(client)
    # Neither unlearned nor refitted.
    assert_problem(client.delete("/models/m/samples/s3"), 409, "paused")
    assert_problem(client.post("/models/m/refit"), 409, "paused")
    label = client.post("/models/m/labels", json={"id": "late", "y": 1}).json()
    assert (label["learned"], label["rejected"]) == (0, 1)
    assert label["errors"][0]["reason"] == PAUSED
    # Going back further leaves the quarantine as it is.
    assert client.post("/models/m/rollback", json={"version": "early"}).status_code == 200
    then = view(client)
    assert then["samples"] == 60 and then["paused"]["held_from"] == now["held_from"]
    answer = resume(client, "learn").json()
    assert answer["learned"] == 140 - now["held_from"] + 1
    assert view(client)["samples"] == 60 + answer["learned"]
    assert client.delete("/models/m/samples/s3").status_code in (200, 202)


def test_rows_of_before_an_unlearned_sample_go_and_those_in_quarantine_stay(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=GUARDED | {"retain": 500})
    learn(client, samples(0, 100, ids=True))
    # The clean-up may be under way while the guard trips.
    assert client.delete("/models/m/samples/s3").status_code in (200, 202)
    learn(client, samples(100, 140, bad=True))
    held_from = paused(client)["held_from"]
    until(lambda: client.delete("/models/m/samples/s3").status_code == 200)
    kept_from = client.get("/models/m/versions").json()["kept_from"]
    assert 101 <= kept_from <= held_from + 1
    assert resume(client, "learn").json()["learned"] == 141 - held_from
    digest = view(client)["state_digest"]

    async def scenario(kept: Kept) -> str:
        return kept.replica.capture().state_digest()

    assert run(store, scenario) == digest


def test_another_spec_learns_what_was_set_aside(serve, store):
    client = serve(store=store, keep_records=10_000)
    client.put("/models/m", json=GUARDED)
    learn(client, samples(0, 100) + samples(100, 140, bad=True))
    seq = paused(client)["held_from"] + 41
    resume(client, "drop")
    learn(client, samples(140, 150))
    result = asyncio.run(replay(ALL, store, "m", None, {"rho": 0.01}))
    assert (result.samples, result.left_out_pauses, result.refused_controls) == (150, 2, 0)
    then = asyncio.run(replay(ALL, store, "m", None, {}))
    assert then.state_digest == view(client)["state_digest"]
    assert then.samples == view(client)["samples"] < seq


def test_it_warns_where_it_is_to_warn(serve):
    client = serve()
    client.put("/models/m", json=GUARDED | {"guard": {"mode": "warn", **FIELDS}})
    learn(client, samples(0, 100))
    got = learn(client, samples(100, 200, bad=True))
    assert got["learned"] == 100 and view(client)["paused"] is None
    events = client.get("/models/m/timeline").json()["events"]
    results = [(event["seq"], event["paused"]) for event in events if event["kind"] == "guard"]
    assert results == [(120, False)]
    assert 'dualstream_model_paused{model="m"} 0.0' in client.get("/metrics").text


def test_pause_survives_a_killed_server(tmp_path: Path, serve):
    """The trip is in the journal, the rollback perhaps not: who loads the model sees to it."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with ServerProcess(store) as server, httpx.Client(base_url=server.url) as client:
        client.put("/models/m", json=GUARDED)
        learn(client, samples(0, 100))
        got = learn(client, samples(100, 160, bad=True))
        server.kill()
    client = serve(store=store)
    assert paused(client)["since"] == 100 + got["learned"]
    assert controls_in(store) == ["pause"]
    live = client.app._registry.find("m").replica

    async def scenario(kept: Kept) -> None:
        assert bits(kept.replica) == bits(live)

    run(store, scenario)


def test_the_rollback_of_a_pause_that_is_lost_on_its_way_does_not_enter(
    serve, no_follower, tmp_path, monkeypatch
):
    """Or it would use up the key of the next one, should learning pause at the same seq again."""
    monkeypatch.setattr("dualstream.service.features.guard.rollback.RETRY_S", 0.01)
    path = tmp_path / "lossy.db"
    client, dry = serve(store=f"sqlite:///{path}"), serve(store=f"sqlite:///{tmp_path / 'dry.db'}")
    for one in (client, dry):
        one.put("/models/m", json=GUARDED)
        learn(one, samples(0, 100))
    append, lost = Committer._send, []

    def lose_first(self: Committer, group: Group) -> Any:
        if isinstance(group.requests[0], ControlRequest) and not lost:
            lost.append(group.requests[0].control.fields["since"])
            lose_last_entry(sqlite3.connect(path))
        return append(self, group)

    monkeypatch.setattr(Committer, "_send", lose_first)
    learn(client, samples(100, 160, bad=True))
    until(lambda: lost and view(client).get("seq") == 100)  # 503 while it is rebuilt
    for one in (client, dry):
        learn(one, samples(100, 160, bad=True))
    assert lost == [paused(client)["since"]] == [paused(dry)["since"]]
    assert learned_of(client, "m") == learned_of(dry, "m")
    assert controls_in(f"sqlite:///{path}") == ["pause"]


def test_what_a_client_asks_for_of_a_state_that_is_lost_on_its_way_does_not_enter(
    serve, no_follower, tmp_path, monkeypatch
):
    path = tmp_path / "lossy.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=GUARDED)
    learn(client, samples(0, 60))
    client.post("/models/m/versions", json={"name": "good"})
    append, doomed = Committer._send, set[str]()

    def lose_under(self: Committer, group: Group) -> Any:
        request = group.requests[0]
        if isinstance(request, ControlRequest) and request.control.kind in doomed:
            doomed.remove(request.control.kind)
            lose_last_entry(sqlite3.connect(path))
        return append(self, group)

    monkeypatch.setattr(Committer, "_send", lose_under)
    for to in ({"seq": 30}, {"version": "good"}):
        learn(client, samples(60, 80))
        doomed.add("rollback")
        got = assert_problem(client.post("/models/m/rollback", json=to), 409, "conflict")
        assert "does not contain chain" in got["detail"] and not doomed
        assert_problem(client.post("/models/m/rollback", json={"seq": 80}), 410, "not-kept")
    learn(client, samples(60, 160, bad=True))
    paused(client)
    doomed.add("resume")
    assert_problem(client.post("/models/m/resume?rows=learn"), 409, "conflict")
    assert not doomed and set(controls_in(f"sqlite:///{path}")) <= {"pause"}


def test_no_rollback_is_appended_of_a_pause_that_the_store_has_lost(
    serve, no_follower, tmp_path, monkeypatch
):
    path = tmp_path / "lossy.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=GUARDED)
    learn(client, samples(0, 100))
    begin = GuardRollback.on_advance
    monkeypatch.setattr(GuardRollback, "on_advance", lambda self: None)
    learn(client, samples(100, 160, bad=True))
    model = client.app._registry.find("m")

    async def lose_and_go_back() -> None:
        assert model.job(GuardRollback).pauses.needs_rollback
        lose_last_entry(sqlite3.connect(path))
        begin(model.job(GuardRollback))
        await asyncio.wait([model.job(GuardRollback)._task])

    client.portal.call(lose_and_go_back)
    assert controls_in(f"sqlite:///{path}") == []
    assert view(client)["samples"] == 100 and view(client)["seq"] == 100


@pytest.mark.parametrize("is_seen", [True, False])
def test_copy_of_a_rollback_settled_elsewhere_is_deleted(serve, store, monkeypatch, is_seen):
    """They name no state, and what is on its way to the store by then is named by nobody."""
    monkeypatch.setattr(GuardRollback, "on_advance", lambda self: None)
    client = serve(store=store)
    client.put("/models/m", json=GUARDED)
    learn(client, samples(0, 100) + samples(100, 160, bad=True))
    registry = client.app._registry
    model = registry.find("m")
    where = ("m", model.record.incarnation)
    copy_put, put = registry.journal.copy_put, []

    async def late(*args: Any) -> str:
        since = model.job(GuardRollback).pauses.since
        key = make_key(KeyKind.PAUSE, str(since))
        request = ControlRequest.of(Pause(since), key, b"pause")
        if is_seen:
            await model.submit(request)
        else:  # by another worker
            await registry.journal.append(
                AppendRequest(*where, bytes(16), model.replica.seq, request.parts)
            )
        put.append(await copy_put(*args))
        return put[-1]

    async def go_back() -> None:
        monkeypatch.setattr(registry.journal, "copy_put", late)
        await model.job(GuardRollback)._go_back(model)
        assert len(put) == 1 and not await registry.journal.copies(*where)

    client.portal.call(go_back)
    assert paused(client)["is_settled"]


KINDS = {
    "classes": {"task": "multiclass", "algorithm": "dual_ascent", "retain": 40},
    "members": {"algorithm": "portfolio", "members": "eight"},
    "landmarks": {
        "algorithm": "dual_ascent",
        "map": {"kind": "nystroem", "components": 16, "gamma": 0.05},
        "retain": 40,
    },
    "numbers": {"task": "regression", "algorithm": "dual_ascent", "retain": 40},
}


def test_models_of_every_kind_are_paused_and_learn_after_all(client):
    """In one request and row by row; afterwards they are what they would be without a guard."""
    for kind, spec in KINDS.items():
        spec |= {"features": SPEC["features"]}
        rows = samples(0, 150)
        for row in rows[90:130]:
            row["y"] = 1 - row["y"]
        if kind == "numbers":
            for n, row in enumerate(rows):
                row["y"] = row["x"][0] * (-8 if 90 <= n < 130 else 2)
        names = [f"{kind}-{name}" for name in ("whole", "rows", "free")]
        for name in names:
            guard = {} if name.endswith("free") else {"guard": TIGHT}
            assert client.put(f"/models/{name}", json=spec | guard).status_code == 201
        learn(client, rows, names[0])
        learn(client, rows[:90], names[1])
        for row in rows[90:]:
            client.post(f"/models/{names[1]}/learn", json=row)
        learn(client, rows, names[2])
        assert paused(client, names[0])["since"] == paused(client, names[1])["since"] > 90
        for name in names[:2]:
            assert client.post(f"/models/{name}/resume?rows=learn").status_code == 200
        states = [learned_of(client, name) for name in names]
        for state in states:
            for name in ("retained.seqs", "progress.drift_events"):
                state.pop(name, None)
        assert states[0] == states[1] == states[2], kind


@pytest.mark.parametrize("rows", ["", "keep"])
def test_rows_are_learned_or_dropped(model, rows):
    assert_problem(model.post(f"/models/m/resume?rows={rows}"), 422, "invalid-request")
    assert_problem(model.post("/models/m/resume?rows=learn"), 409, "not-paused")
