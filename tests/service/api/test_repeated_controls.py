"""A control repeated under its Idempotency-Key has its first answer again, a refusal too."""

from typing import Any

from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from tests.service.api.support import KEY, assert_again
from tests.service.conftest import assert_problem
from tests.service.features.guard.support import GUARDED, learn, paused, samples, view
from tests.service.features.members.support import PAIR
from tests.service.replica.snapshot_damage import SPEC


def test_a_refused_resumption_is_refused_again(serve, store, overtaken):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=GUARDED)
    learn(one, samples(0, 100) + samples(100, 140, bad=True))
    paused(one), paused(other)

    def send(client: Any) -> Any:
        return client.post("/models/m/resume?rows=learn", headers=KEY)

    overtaken(lambda: other.post("/models/m/resume?rows=drop"))
    first = send(one)
    assert_problem(first, 409, "not-paused")
    assert_again(first, send, one, other, serve(store=store))
    # It was of this pause: the next one is another, and needs a key of its own.
    learn(one, samples(140, 200, bad=True))
    paused(one)
    assert_again(first, send, one)


def test_a_refused_rollback_is_refused_again(serve, store, overtaken, monkeypatch):
    monkeypatch.setattr(UnlearnCleanup, "begin", lambda *args: None)  # which takes the version away
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=SPEC | {"retain": 100})
    learn(one, samples(0, 30, ids=True))
    assert one.post("/models/m/versions", json={"name": "early"}).status_code == 201

    def send(client: Any) -> Any:
        return client.post("/models/m/rollback", json={"version": "early"}, headers=KEY)

    other.get("/models/m/predict?x=1:1&min_seq=30")
    overtaken(lambda: other.delete("/models/m/samples/s3"))
    first = send(one)
    assert "unlearned at seq 31" in assert_problem(first, 410, "not-kept")["detail"]
    assert_again(first, send, one, other)
    # Whoever comes by a snapshot of later knows it as well.
    learn(one, samples(30, 60))
    one.portal.call(one.app._registry.find("m").snapshots.write)
    late = serve(store=store)
    assert_again(first, send, late)
    assert late.app._registry.find("m").replica.restored_seq == view(one)["seq"]


def test_a_refused_member_is_refused_again(serve, store, overtaken):
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=PAIR).status_code == 201

    def add(client: Any, algorithm: str, **more: Any) -> Any:
        member = {"name": "new", "algorithm": algorithm}
        return client.post("/models/m/members", json=member, **more)

    def first_there() -> Any:
        assert add(other, "perceptron").status_code == 201
        return other.get("/models/m")

    overtaken(first_there)
    first = add(one, "romma", headers=KEY)
    assert_problem(first, 409, "conflict")
    again = add(other, "romma", headers=KEY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (409, "true")
    assert other.delete("/models/m/members/new").status_code == 204
    for client in (one, other, serve(store=store)):
        again = add(client, "romma", headers=KEY)
        assert_problem(again, 409, "conflict")
        assert again.headers["idempotency-replayed"] == "true"
    assert add(one, "romma").status_code == 201


def test_a_member_that_another_one_added_first_is_shown_again(serve, store, overtaken):
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=PAIR).status_code == 201
    member = {"name": "new", "algorithm": "romma"}

    def first_there() -> Any:
        assert other.post("/models/m/members", json=member).status_code == 201
        return other.get("/models/m")

    def send(client: Any) -> Any:
        return client.post("/models/m/members", json=member, headers=KEY)

    overtaken(first_there)
    first = send(one)
    assert first.status_code == 200
    assert_again(first, send, one, other, serve(store=store))


def test_what_was_done_is_shown_in_full_again(serve, store, monkeypatch):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=SPEC)
    learn(one, samples(0, 30))
    one.post("/models/m/versions", json={"name": "early"})
    learn(one, samples(30, 40))
    for to in ({"version": "early"}, {"seq": 35}):
        headers = {"idempotency-key": str(to)}
        first = one.post("/models/m/rollback", json=to, headers=headers)
        assert first.status_code == 200 and "idempotency-replayed" not in first.headers
        again = other.post("/models/m/rollback", json=to, headers=headers)
        assert again.json() == first.json() | {"duplicate": True}
        assert again.headers["idempotency-replayed"] == "true"
    # Where it is no longer kept, it is known all the same.
    monkeypatch.setattr("dualstream.service.models.registry.MAX_KEPT_ANSWERS", 0)
    forgetful = serve(store=store)
    got = forgetful.post("/models/m/rollback", json=to, headers=headers).json()
    assert got == first.json() | {"duplicate": True, "digest": None}
