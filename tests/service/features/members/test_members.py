"""The routes of members: what they answer, refuse, and tell of a model."""

import asyncio
import re
import threading

import pytest

from dualstream.service.features.members.routes import EXAMPLE_MEMBER
from dualstream.service.journal.protocol import JournalUnavailable, OutcomeUnknown
from dualstream.service.metrics import model_series as of_members
from dualstream.service.models.model import Model
from tests.service.conftest import SPEC, assert_problem
from tests.service.features.members.support import FEATURES, PAIR, SPARSE, learn, names
from tests.service.support import bits


@pytest.fixture
def pair(serve, store):
    """A client whose server holds `m` with two members and 60 learned rows."""
    client = serve(store=store)
    assert client.put("/models/m", json=PAIR).status_code == 201
    learn(client, 60)
    return client


def seq(client) -> int:
    return client.get("/models/m").json()["seq"]


def test_members_are_listed_with_their_shares(pair):
    got = pair.get("/models/m/members").json()
    assert (got["model"], got["seq"], got["promoted"]) == ("m", 60, None)
    dual, steps = got["members"]
    assert (dual["name"], steps["name"]) == ("dual", "steps")
    assert dual["weight"] + steps["weight"] == pytest.approx(1.0)
    assert dual["active"] and dual["has_certificate"] and not steps["has_certificate"]
    assert dual["spec"]["algorithm"] == "dual_ascent" and dual["spec"]["rho"] == 0.01
    assert dual["spec"]["window"] == "infinite", "every default is written out"
    assert dual["since_start"]["rows"] == dual["rolling"]["rows"] == 60
    assert 0.0 <= dual["since_start"]["error_rate"] < 0.5
    assert dual["calibration"]["a"] > 0.0


def test_added_member_begins_on_the_retained_rows(pair):
    answer = pair.post("/models/m/members", json=SPARSE)
    assert answer.status_code == 201
    got = answer.json()
    assert (got["model"], got["seq"], got["name"]) == ("m", 61, "sparse")
    assert got["since_start"] == {"rows": 0, "loss": None, "error_rate": None}
    assert 0.0 < got["weight"] < 0.01
    assert pair.get("/models/m/weights?member=sparse").json()["nonzeros"] > 0
    assert names(pair) == ["dual", "steps", "sparse"]
    assert learn(pair, 1)["seq"] == 62
    assert pair.get("/models/m").json()["samples"] == 61


def test_same_member_again_is_the_same_member(pair):
    pair.post("/models/m/members", json=SPARSE)
    again = pair.post("/models/m/members", json=SPARSE)
    assert (again.status_code, again.json()["name"]) == (200, "sparse")
    written_out = again.json()["spec"] | {"name": "sparse"}
    assert pair.post("/models/m/members", json=written_out).status_code == 200
    assert seq(pair) == 61, "nothing more was journalled"
    other = SPARSE | {"prox": "xiao"}
    got = assert_problem(pair.post("/models/m/members", json=other), 409, "conflict")
    assert "'sparse' exists with another spec" in got["detail"]


def test_member_without_a_name_is_given_one(pair):
    got = pair.post("/models/m/members", json={"algorithm": "rda"})
    assert (got.status_code, got.json()["name"]) == (201, "rda-1")


def test_example_of_the_documentation_is_accepted(pair):
    assert pair.post("/models/m/members", json=EXAMPLE_MEMBER).status_code == 201
    document = pair.get("/openapi.json").json()
    described = document["paths"]["/models/{model_id}/members"]["post"]
    assert described["requestBody"]["content"]["application/json"]["example"] == EXAMPLE_MEMBER
    assert {"200", "201"} <= set(described["responses"])
    headers = [p["name"] for p in described["parameters"] if p["in"] == "header"]
    assert headers == ["idempotency-key"]
    for path in ("members/{name}", "members/{name}/promote", "promotion", "members/compare"):
        assert f"/models/{{model_id}}/{path}" in document["paths"]


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"algorithm": "nothing"}, "/algorithm"),
        ({"algorithm": "rda", "rho": 1}, "/rho"),
        ({"algorithm": "dual_ascent", "rho": -1}, "/rho"),
        ({"name": "a/b", "algorithm": "rda"}, "/name"),
        ({"name": "x" * 65, "algorithm": "rda"}, "/name"),
        ({"name": 7, "algorithm": "rda"}, "/name"),
    ],
)
def test_spec_that_is_not_one_is_refused_by_its_field(pair, spec, pointer):
    got = assert_problem(pair.post("/models/m/members", json=spec), 422, "invalid-spec")
    assert got["errors"][0]["pointer"] == pointer
    assert seq(pair) == 60


def test_body_that_is_no_object_is_refused(pair):
    assert_problem(pair.post("/models/m/members", content=b"{"), 400, "malformed-body")
    assert_problem(pair.post("/models/m/members", json=[]), 422, "invalid-spec")


def test_member_that_takes_too_much_memory_is_refused(client):
    """A learner with an array over all features; the model itself follows what rows touch."""
    spec = {"features": {"kind": "indexed", "dim": 2_147_483_646}}
    assert client.put("/models/m", json=spec).status_code == 201
    answer = client.post("/models/m/members", json=SPARSE)
    problem = assert_problem(answer, 422, "model-too-large")
    assert "the model with this member takes" in problem["detail"]
    assert seq(client) == 0
    assert client.post("/models/m/members", json={"kind": "diagonal_newton"}).status_code == 201


def test_removed_member_is_gone(pair):
    answer = pair.delete("/models/m/members/steps")
    assert (answer.status_code, answer.content) == (204, b"")
    assert names(pair) == ["dual"]
    assert_problem(pair.delete("/models/m/members/steps"), 404, "unknown-member")
    got = assert_problem(pair.delete("/models/m/members/dual"), 409, "conflict")
    assert "last member" in got["detail"]
    assert seq(pair) == 61


def test_promoted_member_is_served_alone_until_it_is_demoted(pair):
    row = "/models/m/predict?x=1:1,2:-0.3"
    mixed = pair.get(row).json()["score"]
    answer = pair.post("/models/m/members/dual/promote")
    assert (answer.status_code, answer.json()["weight"], answer.json()["seq"]) == (200, 1.0, 61)
    got = pair.get("/models/m/members").json()
    assert got["promoted"] == "dual"
    assert [member["active"] for member in got["members"]] == [True, False]
    assert pair.get(row).json()["score"] != mixed
    assert pair.post("/models/m/members/dual/promote").json()["seq"] == 61, "it is already"
    assert_problem(pair.delete("/models/m/members/dual"), 409, "conflict")
    ended = pair.delete("/models/m/promotion")
    assert (ended.status_code, ended.json()["promoted"]) == (200, None)
    assert pair.get(row).json()["score"] == mixed
    again = pair.delete("/models/m/promotion")
    assert (again.status_code, again.json()) == (200, ended.json()), "it is ended already"
    assert_problem(pair.post("/models/m/members/nobody/promote"), 404, "unknown-member")


def test_two_members_are_compared(pair):
    got = pair.get("/models/m/members/compare?a=dual&b=steps&level=0.9").json()
    assert (got["a"], got["b"], got["rows"], got["level"]) == ("dual", "steps", 60, 0.9)
    assert got["low"] < got["mean"] < got["high"]
    assert pair.get("/models/m/members/compare?a=dual&b=steps").json()["level"] == 0.95
    assert_problem(pair.get("/models/m/members/compare?a=dual&b=nobody"), 404, "unknown-member")
    assert_problem(pair.get("/models/m/members/compare?a=dual&b=dual"), 422, "invalid-query")
    assert_problem(pair.get("/models/m/members/compare?a=dual"), 422, "invalid-request")
    level = pair.get("/models/m/members/compare?a=dual&b=steps&level=1")
    assert assert_problem(level, 422, "invalid-request")["detail"].startswith("level: ")


def test_comparison_before_any_row_says_nothing(serve):
    client = serve()
    client.put("/models/m", json=PAIR)
    got = client.get("/models/m/members/compare?a=dual&b=steps").json()
    assert (got["rows"], got["mean"]) == (0, 0.0)
    assert got["low"] == -got["high"] < -1.0


def test_certificate_and_weights_of_one_member(pair):
    got = pair.get("/models/m/certificate?member=dual").json()
    assert got["member"] == "dual" and got["gap"] >= 0.0 and got["rows"] == 60
    answer = pair.get("/models/m/certificate?member=steps")
    assert "'steps'" in assert_problem(answer, 404, "no-certificate")["detail"]
    mine = pair.get("/models/m/weights?member=steps").json()
    assert (mine["member"], mine["dim"]) == ("steps", 5)
    learner = pair.app._registry.find("m").replica.learner
    weights, intercept = learner.member_weights("steps")
    assert mine["intercept"] == intercept
    assert {w["index"]: w["weight"] for w in mine["weights"]} == dict(enumerate(weights, 1))
    assert "member" not in pair.get("/models/m/weights").json()
    for route in ("certificate", "weights"):
        answer = pair.get(f"/models/m/{route}?member=nobody")
        assert_problem(answer, 404, "unknown-member")


def test_metrics_tell_of_each_member(pair):
    got = pair.get("/models/m/metrics").json()
    assert [member["name"] for member in got["members"]] == ["dual", "steps"]
    first = got["members"][0]
    assert set(first) == {"name", "weight", "since_start", "rolling", "resets"}
    assert set(first["rolling"]) == {"rows", "loss", "error_rate"}
    assert got["refused_controls"] == 0


def test_empty_spec_over_named_features_has_members(serve):
    client = serve()
    assert client.put("/models/m", json={}).status_code == 201
    rows = [
        {"x": {"age": n % 7, "city": "Oslo" if n % 3 else "Bergen"}, "y": n % 2} for n in range(40)
    ]
    assert client.post("/models/m/learn", json={"samples": rows}).status_code == 200
    assert names(client)[0] == "prior" and len(names(client)) == 15
    for name in names(client):
        if not re.match("boosted|net|neighbours|splines|stack", name):
            mine = client.get(f"/models/m/weights?member={name}&top=3").json()
            assert all(weight["name"] for weight in mine["weights"]), mine
        compared = client.get(f"/models/m/members/compare?a={name}&b=prior").status_code
        assert compared == (422 if name == "prior" else 200)
    assert client.get("/models/m/certificate?member=dual-30").json()["gap"] >= 0.0
    assert_problem(client.get("/models/m/certificate?member=prior"), 404, "no-certificate")
    added = client.post("/models/m/members", json={"kind": "dual_ascent", "strength": 7})
    assert (added.status_code, added.json()["name"]) == (201, "dual_ascent-1")
    assert len(client.get("/models/m/metrics").json()["members"]) == 16


def test_members_of_a_multiclass_portfolio_are_means_over_its_classes(serve):
    client = serve()
    spec = {"algorithm": "portfolio", "task": "multiclass", "features": FEATURES}
    assert client.put("/models/m", json=spec).status_code == 201
    assert len(client.get("/models/m/members").json()["members"]) > 2
    rows = {
        "x": [[1, 0, 0, 2, 0], [0, 1, 0, 0, 3], [0, 0, 2, 1, 0]] * 20,
        "y": ["a", "b", "c"] * 20,
    }
    client.post("/models/m/learn", json=rows)
    members = client.get("/models/m/members").json()["members"]
    assert sum(one["weight"] for one in members) == pytest.approx(1.0)
    assert all(one["since_start"]["loss"] > 0.0 for one in members)
    # They cannot be changed.
    assert_problem(client.post("/models/m/members", json=SPARSE), 404, "no-members")
    assert "members" not in client.get("/models/m/metrics").json()


def test_model_without_members_says_so(model):
    for method, path, body in (
        ("GET", "members", None),
        ("POST", "members", SPARSE),
        ("DELETE", "members/a", None),
        ("POST", "members/a/promote", None),
        ("DELETE", "promotion", None),
        ("GET", "members/compare?a=a&b=b", None),
        ("GET", "certificate?member=a", None),
        ("GET", "weights?member=a", None),
    ):
        answer = model.request(method, f"/models/m/{path}", json=body)
        assert "has no members" in assert_problem(answer, 404, "no-members")["detail"]
    assert "members" not in model.get("/models/m/metrics").json()
    assert model.get("/models/m").json()["seq"] == 0


def test_unknown_model(client):
    assert_problem(client.get("/models/none/members"), 404, "unknown-model")
    assert_problem(client.post("/models/none/members", json=SPARSE), 404, "unknown-model")


def test_idempotency_key_adds_once(pair):
    key = {"idempotency-key": "one"}
    unnamed = {"algorithm": "rda"}
    first = pair.post("/models/m/members", json=unnamed, headers=key)
    again = pair.post("/models/m/members", json=unnamed, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["name"] == again.json()["name"] == "rda-1"
    assert names(pair) == ["dual", "steps", "rda-1"]
    other = pair.post("/models/m/members", json=SPARSE, headers=key)
    assert_problem(other, 422, "idempotency-key-reused")
    bad = pair.post("/models/m/members", json=SPARSE, headers={"idempotency-key": ""})
    assert_problem(bad, 422, "invalid-idempotency-key")
    pair.delete("/models/m/members/rda-1")
    gone = pair.post("/models/m/members", json=unnamed, headers=key)
    assert "and no longer exists" in assert_problem(gone, 409, "conflict")["detail"]


def test_key_of_a_named_member_is_asked_for_first(serve, store):
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=PAIR).status_code == 201
    key, second = {"idempotency-key": "one"}, {"name": "second", "algorithm": "perceptron"}
    first = one.post("/models/m/members", json=SPARSE, headers=key)
    assert first.status_code == 201 and "idempotency-replayed" not in first.headers
    assert one.post("/models/m/members", json=second).status_code == 201
    written_out = first.json()["spec"] | {"name": "sparse"}
    for client in (one, other):
        for body in (SPARSE, written_out):
            again = client.post("/models/m/members", json=body, headers=key)
            assert (again.status_code, again.json()["name"]) == (200, "sparse")
            assert again.headers["idempotency-replayed"] == "true"
        reused = client.post("/models/m/members", json=second, headers=key)
        assert_problem(reused, 422, "idempotency-key-reused")
        there = client.post("/models/m/members", json=second, headers={"idempotency-key": "two"})
        assert there.status_code == 200 and "idempotency-replayed" not in there.headers
    assert names(other) == ["dual", "steps", "sparse", "second"] and seq(other) == 2


def test_promotion_that_another_one_ends_first_is_ended(serve, store, monkeypatch):
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=PAIR).status_code == 201
    assert one.post("/models/m/members/dual/promote").status_code == 200
    true, left = Model.submit, [lambda: other.delete("/models/m/promotion")]

    async def late(self, request):
        while left:
            assert (await asyncio.to_thread(left.pop())).status_code == 200
        return await true(self, request)

    monkeypatch.setattr(Model, "submit", late)
    ended = one.delete("/models/m/promotion")
    assert (ended.status_code, ended.json()["promoted"]) == (200, None)
    assert one.get("/models/m/metrics").json()["refused_controls"] == 1


def test_change_that_the_learner_refuses_takes_no_seq(pair):
    pair.post("/models/m/members/dual/promote")
    for _ in range(2):
        got = assert_problem(pair.post("/models/m/members", json=SPARSE), 409, "conflict")
        assert "'dual' is promoted" in got["detail"]
        unnamed = {"algorithm": "rda"}
        assert_problem(pair.post("/models/m/members", json=unnamed), 409, "conflict")
        assert_problem(pair.delete("/models/m/members/steps"), 409, "conflict")
    assert names(pair) == ["dual", "steps"] and seq(pair) == 61
    assert pair.get("/models/m/metrics").json()["refused_controls"] == 0
    assert pair.delete("/models/m/promotion").status_code == 200
    assert pair.post("/models/m/members", json=SPARSE).status_code == 201
    assert seq(pair) == 63


def test_a_stack_that_cannot_be_promoted_takes_no_seq(client):
    members = [{"kind": "prior"}, {"name": "stack", "kind": "stack"}]
    client.put("/models/m", json={"members": members})
    got = assert_problem(client.post("/models/m/members/stack/promote"), 409, "conflict")
    assert "cannot be served alone" in got["detail"]
    metrics = client.get("/models/m/metrics").json()
    assert (metrics["seq"], metrics["refused_controls"]) == (0, 0)


def test_other_process_sees_what_was_just_changed(serve, store):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=PAIR)
    assert names(other) == ["dual", "steps"]
    one.post("/models/m/members", json=SPARSE)
    # A change is held against the journal's end, however far behind the replica was.
    assert other.post("/models/m/members", json=SPARSE).status_code == 200
    assert other.post("/models/m/members/sparse/promote").status_code == 200
    assert_problem(one.delete("/models/m/members/sparse"), 409, "conflict")
    assert names(one) == names(other) == ["dual", "steps", "sparse"]


@pytest.mark.parametrize("same", [True, False])
def test_one_of_many_that_add_one_name_wins(serve, store, same):
    clients = [serve(store=store), serve(store=store)]
    clients[0].put("/models/m", json=PAIR)
    clients[1].get("/models/m")
    answers = []

    def add(turn: int) -> None:
        spec = {"name": "new", "algorithm": "rda"}
        if not same:
            spec["regularizer"] = {"kind": "l1", "lambda": 0.001 * (turn + 1)}
        answers.append(clients[turn % 2].post("/models/m/members", json=spec))

    threads = [threading.Thread(target=add, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == ([200] * 7 + [201] if same else [201] + [409] * 7)
    for answer in answers:
        if answer.status_code == 409:
            assert_problem(answer, 409, "conflict")
    for client in clients:
        client.post("/models/m/members/dual/promote")
        assert names(client) == ["dual", "steps", "new"]


def test_store_that_is_away_is_shown(pair, monkeypatch):
    journal = pair.app._registry.journal

    async def refuse(*_):
        raise JournalUnavailable("planted")

    monkeypatch.setattr(journal, "append", refuse)
    for method, path in CHANGES:
        answer = pair.request(method, f"/models/m/{path}", json=SPARSE)
        assert_problem(answer, 503, "store-unavailable")
    monkeypatch.setattr(journal, "read", refuse)
    assert_problem(pair.post("/models/m/members", json=SPARSE), 503, "store-unavailable")
    assert names(pair) == ["dual", "steps"]


CHANGES = [("POST", "members"), ("DELETE", "members/dual"), ("POST", "members/dual/promote")]


def test_outcome_that_stays_unknown_is_shown(serve, store, monkeypatch):
    monkeypatch.setattr("dualstream.service.models.model.MAX_APPEND_S", 0.05)
    client = serve(store=store)
    client.put("/models/m", json=PAIR)
    journal = client.app._registry.journal
    append = journal.append

    async def lose(*args):
        await append(*args)
        raise OutcomeUnknown("planted")

    with monkeypatch.context() as losing:
        losing.setattr(journal, "append", lose)
        got = client.post("/models/m/members", json=SPARSE)
        assert assert_problem(got, 503, "outcome-unknown")["outcome"] == "unknown"
    # It was done, and its repetition finds it.
    assert client.post("/models/m/members", json=SPARSE).status_code == 200
    assert seq(client) == 1


def test_forked_replica_is_rebuilt_before_a_change(serve, no_follower, tmp_path):
    import sqlite3

    from tests.service.support import lose_last_entry

    client = serve(store=f"sqlite:///{tmp_path / 'fork.db'}")
    client.put("/models/m", json=PAIR)
    learn(client, 5)
    client.post("/models/m/members", json=SPARSE)
    lose_last_entry(sqlite3.connect(tmp_path / "fork.db"))
    learn(client, 5, seed=2)
    assert names(client) == ["dual", "steps"]
    assert client.post("/models/m/members", json=SPARSE).status_code == 201
    assert seq(client) == 11


def test_prometheus_families_of_members(pair):
    pair.put("/models/plain", json=SPEC)
    text = pair.get("/metrics").text
    weight = pair.get("/models/m/members").json()["members"][0]["weight"]
    assert f'dualstream_member_weight_ratio{{member="dual",model="m"}} {weight}' in text
    assert 'dualstream_member_resets_total{member="steps",model="m"} 0.0' in text
    assert 'dualstream_member_loss{member="dual",model="m"}' in text
    assert 'dualstream_member_error_ratio{member="dual",model="m"}' in text
    gap = pair.get("/models/m/certificate?member=dual").json()["relative_gap"]
    assert f'dualstream_member_gap_ratio{{member="dual",model="m"}} {gap}' in text
    assert "dualstream_members_left_out 0.0" in text
    assert 'model="plain",member' not in text


def test_a_model_without_a_certificate_names_its_members_that_have_one(pair):
    got = assert_problem(pair.get("/models/m/certificate"), 404, "no-certificate")
    assert "set `member` to one of: dual" in got["detail"]


def test_series_of_members_are_bounded(pair, monkeypatch):
    monkeypatch.setattr(of_members, "MEMBERS_PER_MODEL", 2)
    monkeypatch.setattr(of_members, "MEMBERS_IN_ALL", 5)
    pair.post("/models/m/members", json=SPARSE)
    for other in ("n", "o", "p"):
        pair.put(f"/models/{other}", json=PAIR)
    text = pair.get("/metrics").text
    assert text.count("dualstream_member_weight_ratio{") == 5
    assert "dualstream_members_left_out 4.0" in text


def test_reads_of_members_change_nothing(pair):
    replica = pair.app._registry.find("m").replica
    before = bits(replica)
    for path in ("members", "members/compare?a=dual&b=steps", "certificate?member=dual", "metrics"):
        assert pair.get(f"/models/m/{path}").status_code == 200
    pair.get("/models/m/weights?member=dual")
    pair.get("/metrics")
    assert before == bits(replica)
