"""Versions over HTTP: taken, listed, deleted, gone back to, and predicted by."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from dualstream.service.features import ALL
from dualstream.service.journal.protocol import Limits, Trimmed, Version
from dualstream.service.replica.copies import Rollback
from dualstream.service.replica.point_in_time import state_at
from dualstream.service.replica.requests import ControlRequest
from dualstream.service.replica.state import Captured
from tests.service.conftest import assert_problem
from tests.service.features.versions.support import back, learn, settled, take
from tests.service.replica.snapshot_damage import SPEC, Kept, bits, run, spoil

HASHED = {"algorithm": "perceptron", "features": {"kind": "hashed", "bits": 10}}
ROW = {"x": [1, -2, 0.5, 0, 3]}


def state_of(client: TestClient) -> dict:
    """What must be again as it was."""
    got = client.get("/models/m?digest=true").json()
    metrics = client.get("/models/m/metrics").json()
    weights = client.get("/models/m/weights").json()
    score = client.post("/models/m/predict", json=ROW).json()["score"]
    for part in (metrics, weights):
        del part["seq"]
    return {"digest": got["state_digest"], "metrics": metrics, "weights": weights, "score": score}


def assert_everywhere(store: str, client: TestClient) -> None:
    """A fresh replica, by snapshot or by the whole journal, has the bits of the live one."""
    live = client.app._registry.find("m").replica

    async def scenario(kept: Kept) -> None:
        assert bits(kept.replica) == bits(live)
        assert (kept.replica.seq, kept.replica.chain) == (live.seq, live.chain)

    run(store, scenario)


def test_versions_are_taken_listed_and_deleted(serve, store, monkeypatch):
    monkeypatch.setattr(
        "dualstream.service.server.app.JournalLimits", partial(Limits, max_versions=2)
    )
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 10)
    made = take(client, name="before", note="as we shipped it")
    assert (made["model"], made["name"], made["seq"]) == ("m", "before", 10)
    assert made["note"] == "as we shipped it" and made["bytes"] > 1000
    # The same again changes nothing; the name for another state is refused.
    again = client.post("/models/m/versions", json={"name": "before"})
    assert (again.status_code, again.json()) == (200, made)
    learn(client, 10, 20)
    answer = client.post("/models/m/versions", json={"name": "before"})
    assert_problem(answer, 409, "conflict")
    unnamed = take(client)
    assert unnamed["name"] == "seq-20" and unnamed["digest"] != made["digest"]
    assert_problem(client.post("/models/m/versions", json={"name": "x"}), 409, "too-many-versions")
    listed = client.get("/models/m/versions").json()
    assert listed["versions"] == [made, unnamed]
    assert (listed["seq"], listed["kept_from"]) == (20, 1)
    assert client.get("/models/m/versions/before").json() == made
    assert client.delete("/models/m/versions/before").status_code == 204
    for method in (client.get, client.delete):
        assert_problem(method("/models/m/versions/before"), 404, "unknown-version")
    bad = client.post("/models/m/versions", json={"name": "-no"})
    assert_problem(bad, 422, "invalid-name")
    assert_problem(client.get("/models/other/versions"), 404, "unknown-model")


def test_rollback_to_a_version_is_the_same_for_every_replica(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=SPEC)
    learn(one, 0, 30)
    before, etag = state_of(one), one.get("/models/m").headers["etag"]
    take(one, name="v")
    learn(other, 30, 60)
    after = state_of(other)
    assert after["digest"] != before["digest"]
    got = back(other, version="v").json()
    assert (got["seq"], got["to_seq"], got["version"]) == (61, 30, "v")
    assert state_of(other) == before
    now = other.get("/models/m").json()
    assert (now["seq"], now["samples"]) == (61, 30)
    # The place in the journal is another one, and ETags say so.
    same = {"if-none-match": etag}
    assert other.get("/models/m", headers=same).status_code == 200
    assert 'dualstream_seq{model="m"} 61.0' in other.get("/metrics").text
    assert one.get(f"/models/m/predict?x=1:1&min_seq={61}").json()["seq"] == 61
    assert state_of(one) == before
    # What is learned next goes on from there, as if nothing had come between.
    learn(one, 60, 70)
    assert_everywhere(store, one)
    # And the way there can be gone back.
    take(one, name="w")
    assert back(one, seq=60).json()["seq"] == 72
    assert state_of(one) == after
    assert back(one, version="w").json()["seq"] == 73
    assert one.get("/models/m").json()["samples"] == 40
    assert_everywhere(store, one)


def test_rollback_to_a_seq_finds_the_state_of_that_moment(serve, store):
    client = serve(store=store, snapshot_every=20)
    client.put("/models/m", json=SPEC)
    states = {}
    for n in range(0, 70, 7):
        learn(client, n, n + 7)
        states[n + 7] = state_of(client)
        settled(client)
    listed = client.get("/models/m/versions").json()
    assert listed["kept_from"] == 43
    for seq in (49, 63, 42):
        got = back(client, seq=seq)
        assert got.status_code == 200, got.text
        assert got.json()["to_seq"] == seq and state_of(client) == states[seq]
    # In the midst of an entry, too
    assert back(client, seq=45).status_code == 200
    assert client.get("/models/m").json()["samples"] == 45
    end = client.get("/models/m").json()["seq"]
    for seq, why in ((41, "from seq 42"), (0, "from seq 42"), (10_000, f"ends at seq {end}")):
        got = assert_problem(back(client, seq=seq), 410, "not-kept")
        assert (got["first"], got["last"]) == (42, end) and why in got["detail"]
    assert_everywhere(store, client)


def test_exactly_once_holds_across_a_rollback(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    take(client, name="empty")
    first = learn(client, 0, 5, key="k")
    samples = {"samples": [{"x": [1, 2, 3, 4, 5], "y": 1, "id": "event-1"}]}
    client.post("/models/m/learn", json=samples)
    assert back(client, version="empty", key="undo").json()["seq"] == 7
    assert client.get("/models/m").json()["samples"] == 0
    # Known keys and ids are known still, and the first answer comes again.
    again = learn(client, 0, 5, key="k")
    assert again["duplicate"] and again["loss"] == first["loss"]
    assert client.post("/models/m/learn", json=samples).json()["learned"] == 0
    assert client.get("/models/m").json()["seq"] == 7
    # So is the rollback, even where its version is gone.
    assert client.delete("/models/m/versions/empty").status_code == 204
    got = back(client, version="empty", key="undo").json()
    assert (got["seq"], got["duplicate"]) == (7, True)
    assert_problem(back(client, seq=1, key="undo"), 422, "idempotency-key-reused")
    assert_problem(back(client, version="empty"), 404, "unknown-version")
    both = assert_problem(back(client, seq=1, version="empty"), 422, "invalid-request")
    assert both["detail"] == "send either version or seq"
    assert_problem(back(client), 422, "invalid-request")
    assert back(client, seqs=1).json()["detail"].startswith("seqs: ")
    assert "body" in client.post("/models/m/rollback").json()["detail"]
    assert_everywhere(store, client)


def test_deleting_a_version_keeps_the_copy_that_a_kept_rollback_names(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 10)
    take(client, name="v")
    learn(client, 10, 20)
    back(client, version="v")
    client.delete("/models/m/versions/v")
    assert_everywhere(store, client)
    assert state_of(serve(store=store)) == state_of(client)


@pytest.mark.parametrize("seq", [10, 15])
def test_state_of_lost_records_is_no_state_of_the_journal(store, seq):
    async def scenario(kept: Kept) -> None:
        await kept.learn(10)
        lost = kept.replica.capture()
        header = lost.header | {"chain": "f" * 40}
        data = Captured(10, header["chain"], lost.arrays, header, ALL.parts).as_copy().data
        digest = await kept.journal.copy_put(*kept.where, data)
        version = Version("lost", 10, header["chain"], digest, len(data), created_ms=1)
        assert (await kept.journal.version_put(*kept.where, version))[1]
        await kept.learn(10)
        record = await kept.journal.get("m")
        then = await state_at(ALL, kept.journal, record, seq)
        assert (then.seq, then.chain) == (seq, lost.chain)

    run(store, scenario)


def test_numbers_and_names_of_rollbacks_are_taken_as_they_are(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 5)
    as_json = {"content-type": "application/json"}
    for body in ('{"seq": true}', '{"seq": "1"}', '{"seq": 1.0}', '{"version": "\\ud800"}'):
        answer = client.post("/models/m/rollback", content=body, headers=as_json)
        assert_problem(answer, 422, "invalid-request")
    assert_problem(back(client, seq=10**30), 410, "not-kept")
    assert client.get("/models/m").json()["seq"] == 5


def test_predictions_by_a_version_are_those_of_its_moment(serve, store, monkeypatch):
    monkeypatch.setattr("dualstream.service.api.learn_and_predict.MAX_LOADED_VERSIONS", 2)
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    scores, metrics = {}, {}
    for n in range(0, 40, 10):
        learn(client, n, n + 10)
        take(client, name=f"v{n}")
        metrics[f"v{n}"] = client.get("/models/m/metrics").json()["rolling"]
        scores[f"v{n}"] = client.post("/models/m/predict", json=ROW).json()["score"]
    assert len(set(scores.values())) == 4
    etag = client.get("/models/m").headers["etag"]
    for name, score in [*scores.items(), *scores.items()]:
        got = client.post(f"/models/m/predict?version={name}", json=ROW)
        assert (got.json()["score"], got.json()["seq"]) == (score, int(name[1:]) + 10)
    for name, rolling in metrics.items():
        saved = client.get(f"/models/m/versions/{name}/metrics").json()
        assert saved["rolling"] == rolling and saved["points"][-1]["rows"] == saved["seq"]
    assert got.headers["etag"] == etag
    assert len(client.app._fast_routes._versions) == 2
    row = "1:1,2:-2,3:0.5,5:3"
    for path in (f"/models/m/predict?x={row}&", f"/predict?model=m&x={row}&"):
        assert client.get(f"{path}version=v0").json()["score"] == scores["v0"]
    assert_problem(client.get(f"/models/m/predict?x={row}&version=no"), 404, "unknown-version")
    client.delete("/models/m/versions/v0")
    assert_problem(client.get(f"/models/m/predict?x={row}&version=v0"), 404, "unknown-version")


def test_names_are_shown_again_after_a_rollback(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=HASHED)
    take(one, name="empty")
    for client in (one, other):
        client.post("/models/m/learn", json={"x": {"age": 3, "city": "Oslo"}, "y": 1})
    back(other, version="empty")
    assert one.get("/models/m/predict?x.age=1&min_seq=3").status_code == 200
    for client in (one, other):
        client.post("/models/m/learn", json={"x": {"age": 3, "city": "Oslo"}, "y": 1})
        weights = client.get("/models/m/weights").json()["weights"]
        assert {"age", "city=Oslo"} <= {weight["name"] for weight in weights}
    assert_everywhere_named(store, other)


def assert_everywhere_named(store: str, client: TestClient) -> None:
    live = client.app._registry.find("m").replica

    async def scenario(kept: Kept) -> None:
        assert bits(kept.replica) == bits(live)

    run(store, scenario, HASHED)


def test_members_go_with_the_state(serve, store):
    client = serve(store=store)
    pair = [{"name": "a", "algorithm": "perceptron"}, {"name": "b", "algorithm": "ogd"}]
    spec = {"members": pair, "features": {"kind": "indexed", "dim": 5}, "retain": 20}
    client.put("/models/m", json={"algorithm": "portfolio"} | spec)
    learn(client, 0, 10)
    client.post("/models/m/members/a/promote")
    take(client, name="v")
    client.delete("/models/m/promotion")
    client.post("/models/m/members", json={"name": "c", "algorithm": "perceptron"})
    learn(client, 10, 20)
    back(client, version="v")
    got = client.get("/models/m/members").json()
    assert [member["name"] for member in got["members"]] == ["a", "b"]
    assert got["promoted"] == "a"
    state = state_of(client)
    assert state_of(serve(store=store)) == state


def test_damaged_copy_stops_a_replica_that_needs_it(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 10)
    digest = take(client, name="v")["digest"]
    learn(client, 10, 20)
    back(client, version="v")
    spoil(store, "copy")
    # Whoever has to read it again refuses it by name, and nothing is journalled for it.
    for answer in (back(client, version="v"), client.post("/models/m/predict?version=v", json=ROW)):
        got = assert_problem(answer, 503, "unreadable-version")
        assert digest in got["detail"]
    assert client.get("/models/m").json()["seq"] == 21
    # Whoever replays the rollback stops in front of it.
    got = assert_problem(serve(store=store).get("/models/m"), 503, "unreadable-journal")
    assert digest in got["detail"] and "at seq 20" in got["detail"]


@pytest.mark.parametrize("loses", ["reading", "all"])
def test_rollback_retries_if_the_store_is_unavailable_before_the_copy_is_read(
    serve, store, monkeypatch, loses
):
    from dualstream.service.journal.protocol import JournalUnavailable

    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 10)
    take(client, name="v")
    before = state_of(client)
    learn(client, 10, 20)
    journal = client.app._registry.journal
    read, reads = journal.copy_get, []

    async def refuse(*args):
        reads.append(args)
        if loses == "all" or len(reads) > 1:
            raise JournalUnavailable("planted")
        return await read(*args)

    with monkeypatch.context() as away:
        away.setattr(journal, "copy_get", refuse)
        slug = "store-unavailable" if loses == "all" else "outcome-unknown"
        assert_problem(back(client, version="v", key="k"), 503, slug)
    got = back(client, version="v", key="k").json()
    assert got["seq"] == 21 and got["duplicate"] == (loses == "reading")
    assert state_of(client) == before
    assert_everywhere(store, client)


def test_copy_deleted_with_its_record_does_not_stop_a_replica_that_has_read_it(store):
    async def scenario(kept: Kept) -> None:
        # Given a replica that has read of a rollback and not applied it yet
        await kept.learn_and_write(1)
        copy = kept.replica.capture().as_copy()
        digest = await kept.journal.copy_put(*kept.where, copy.data)
        await kept.committer.submit(ControlRequest.of(Rollback(digest, 10)))
        late = Kept(kept.journal, kept.record)
        entries = await kept.journal.read(*kept.where, 0)
        # When the record is trimmed, and the copy goes with it
        await kept.learn_and_write(2)
        await kept.journal.trim(*kept.where, 100, behind=1)
        assert await kept.journal.copy_get(*kept.where, digest) is None
        # Then the replica is shown so, at the record before, and takes the newest snapshot
        with pytest.raises(Trimmed):
            await late.replica.apply(entries, kept.journal)
        assert late.replica.seq == late.replica.learner.samples == 10
        await late.committer.refresh()
        assert bits(late.replica) == bits(kept.replica)

    run(store, scenario)


def test_there_is_no_way_back_to_a_version_whose_records_are_lost(client, monkeypatch):
    """Other records are going to stand in their places: rows of the state would be taken for those.

    A control that was on its way as they were lost is refused where it stands.
    """
    client.put("/models/m", json=SPEC)
    learn(client, 0, 20)
    taken = take(client, name="lost")
    model = client.app._registry.find("m")
    weights = state_of(client)["weights"]
    order = Rollback(taken["digest"], 21, "lost")
    receipt = client.portal.call(model.submit, ControlRequest.of(order))
    assert (
        receipt.control_outcome.refusal == "cannot go back to seq 21: the model is only at seq 20"
    )
    assert state_of(client)["weights"] == weights
    previous = model.deps.journal.version_get

    async def beyond(*args: Any) -> Version:
        return msgspec.structs.replace(await previous(*args), seq=22)

    monkeypatch.setattr(model.deps.journal, "version_get", beyond)
    got = assert_problem(back(client, version="lost"), 410, "not-kept")
    assert got["last"] == 21
    assert "cannot go back to seq 22: the model is only at seq 21" in got["detail"]
    assert client.get("/models/m").json()["seq"] == 21


def test_predictions_by_one_version_take_turns(client):
    """A learner has one set of scratch arrays: two threads in it score wrong rows."""
    client.put("/models/m", json={"algorithm": "net", "features": SPEC["features"]})
    learn(client, 0, 40)
    take(client, name="v")
    url = "/models/m/predict?version=v"
    want = client.post(url, json=ROW).json()["score"]
    (loaded,) = client.app._fast_routes._versions._loaded.values()
    predict, running, most = loaded.learner.predict, [], []

    def slow(batch):
        running.append(len(batch))
        most.append(len(running))
        time.sleep(0.01)
        try:
            return predict(batch)
        finally:
            running.pop()

    loaded.learner.predict = slow
    long = {"x": [ROW["x"]] * 20_000}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: client.post(url, json=body), [long, ROW, long, ROW]))
    assert [answer.json().get("score", want) for answer in answers] == [want] * 4
    assert set(answers[0].json()["scores"]) == {want}
    assert len(most) > 4 and max(most) == 1
