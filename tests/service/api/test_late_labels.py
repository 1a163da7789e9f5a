"""Labels that come later: learned once, and scored as their rows were served."""

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from functools import partial

import httpx
import pytest

from dualstream.service.api import late_labels as of_labels
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features.unlearning.state import RetainedIds, digest_of
from dualstream.service.journal.protocol import Limits
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models import late_labels
from dualstream.service.models.late_labels import Label, Labelled, learn_labels
from tests.service.conftest import SPEC, assert_problem
from tests.service.features.guard import support as guard
from tests.service.features.guard.support import GUARDED

LOGISTIC = SPEC | {"loss": "logistic"}


@pytest.fixture
def late(serve, store):
    """A client whose server holds the model `m`, on each store."""
    client = serve(store=store)
    assert client.put("/models/m", json=LOGISTIC).status_code == 201
    return client


def row(number: int, **more) -> dict:
    return {"x": [1.0, number % 3 - 1.0, number % 5 / 2, 0.0, 0.5]} | more


def remember(client, *ids: str, **query) -> list[float]:
    """Predict a row for each id, to be remembered; the scores."""
    samples = [row(number, id=id) for number, id in enumerate(ids)]
    query = {"remember": "true"} | query
    answer = client.post("/models/m/predict", params=query, json={"samples": samples})
    assert answer.status_code == 200, answer.text
    assert answer.json()["remembered"] == len(ids)
    return answer.json()["scores"]


def label(client, *labels: tuple[str, int], key: str | None = None):
    body = {"labels": [{"id": id, "y": y} for id, y in labels]}
    headers = {} if key is None else {"idempotency-key": key}
    return client.post("/models/m/labels", json=body, headers=headers)


def learn(client, count: int, y: int = 1) -> None:
    samples = [row(number, y=y) for number in range(count)]
    assert client.post("/models/m/learn", json={"samples": samples}).status_code == 200


def state(client) -> dict:
    got = client.get("/models/m?digest=true").json()
    return {name: got[name] for name in ("seq", "samples", "state_digest")}


def wait_until(happened) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sums(client) -> tuple[float, float]:
    """Of all rows: losses and mistakes."""
    got = client.get("/models/m/metrics").json()
    return tuple(got["since_start"][name] * got["rows"] for name in ("loss", "error_rate"))


def logistic(score: float, y: int) -> float:
    return math.log1p(math.exp(-score if y else score))


def test_many_rows_and_labels_leave_the_event_loop(late, monkeypatch):
    """Encoding 50,000 rows, and joining them with their labels, takes half a second each."""
    in_loop = []

    def watch(module, name):
        work = getattr(module, name)

        def watched(*args, **more):
            in_loop.append(name) if asyncio._get_running_loop() else None
            return work(*args, **more)

        monkeypatch.setattr(module, name, watched)

    for name in ("encode_rows", "_look_up", "request_of"):
        watch(late_labels, name)
    watch(of_labels, "_label")
    few, many = [f"f{at}" for at in range(2)], [f"m{at}" for at in range(500)]
    for ids in (many, few):
        assert in_loop == []
        remember(late, *ids)
        assert label(late, *((id, 1) for id in ids)).json()["learned"] == len(ids)
    assert set(in_loop) == {"encode_rows", "_look_up", "request_of", "_label"}


def test_labels_are_scored_as_their_rows_were_served(late):
    learn(late, 20)
    scores = remember(late, "a", "b", "c")
    learn(late, 40, y=0)  # by now they would be scored otherwise
    fresh = late.post("/models/m/predict", json=row(1)).json()["score"]
    assert scores[1] > 0 > fresh
    before = sums(late)
    got = label(late, ("b", 0), ("a", 1)).json()
    losses = [logistic(scores[1], 0), logistic(scores[0], 1)]
    assert got["loss"] == pytest.approx(sum(losses) / 2, rel=1e-12)
    assert (got["seq"], got["count"], got["learned"], got["rejected"]) == (62, 2, 2, 0)
    assert got["mistakes"] == 1
    after = sums(late)
    assert after[0] - before[0] == pytest.approx(sum(losses), rel=1e-9)
    assert after[1] - before[1] == pytest.approx(1, rel=1e-9)


def test_the_step_is_the_one_of_a_row_that_brought_its_label(serve, tmp_path):
    late, plain = (serve(store=f"sqlite:///{tmp_path / name}.db") for name in "ab")
    for client in (late, plain):
        client.put("/models/m", json=SPEC)
        learn(client, 7)
    remember(late, "a", "b")
    for client in (late, plain):
        learn(client, 5, y=0)
    assert label(late, ("b", 1), ("a", 0)).json()["learned"] == 2
    for number, y in ((1, 1), (0, 0)):
        plain.post("/models/m/learn", json=row(number, y=y))
    weights = [client.get("/models/m/weights").json() for client in (late, plain)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("given", [{}, {"task": "regression"}])
def test_portfolios_count_what_was_served_too(model, given):
    spec = given | {"algorithm": "portfolio", "features": {"kind": "indexed", "dim": 5}}
    model.delete("/models/m")
    assert model.put("/models/m", json=spec).status_code == 201
    learn(model, 30)
    [score] = remember(model, "a")
    learn(model, 30, y=0)
    got = label(model, ("a", 0)).json()
    expected = 0.5 * score * score if given else logistic(score, 0)
    assert got["loss"] == pytest.approx(expected, rel=1e-12)
    assert got["mistakes"] == (None if given else 1)


@pytest.mark.parametrize("options", [{}, {"task": "regression"}])
def test_late_labels_weigh_members_alike_on_every_worker(late, serve, store, options):
    spec = options | {"algorithm": "portfolio", "features": {"kind": "indexed", "dim": 5}}
    late.delete("/models/m")
    assert late.put("/models/m", json=spec).status_code == 201
    learn(late, 30)
    remember(late, *"abcdef")
    learn(late, 30, y=0)
    shares = [one["weight"] for one in late.get("/models/m/members").json()["members"]]
    removed = late.get("/models/m/members").json()["members"][1]["name"]
    other = serve(store=store)
    assert label(late, ("c", 1), ("a", 0)).json()["learned"] == 2
    served = [one["weight"] for one in late.get("/models/m/members").json()["members"]]
    assert served != shares
    # These rows were served by one member more: one request has both kinds.
    assert late.delete(f"/models/m/members/{removed}").status_code == 204
    remember(late, "g")
    assert label(other, ("b", 1), ("g", 0)).json()["learned"] == 2
    wait_until(lambda: state(late)["seq"] == state(other)["seq"])
    assert state(late) == state(other) == state(serve(store=store))


def test_rows_of_portfolios_with_a_history_keep_their_scores(late, serve, store):
    spec = {
        "features": {"kind": "hashed", "bits": 10},
        "members": "eight",
        "columns": {"label": "y", "id": "tx", "types": {"card": "category", "amount": "number"}},
        "history": [{"by": "card", "of": "amount", "stats": ["mean"], "half_life": [10]}],
    }
    assert late.put("/models/h", json=spec).status_code == 201
    rows = [{"card": f"c{n % 3}", "amount": n + 1.0, "y": n % 2} for n in range(12)]
    late.post("/models/h/learn", json=rows).raise_for_status()
    sample = {"card": "c1", "amount": 5.0, "tx": "t1"}
    late.post("/models/h/predict?remember=true", json=sample).raise_for_status()
    late.post("/models/h/learn", json=rows).raise_for_status()
    assert late.post("/models/h/labels", json={"id": "t1", "y": 1}).json()["learned"] == 1
    learner = late.portal.call(late.app._registry.get, "h").replica.learner
    assert "core.late.evidence" in learner.state()
    digests = [
        client.get("/models/h?digest=true").json()["state_digest"]
        for client in (late, serve(store=store))
    ]
    assert digests[0] == digests[1]


def test_a_prediction_changes_no_state_and_writes_only_when_it_is_to_remember(late):
    learn(late, 5)
    before = state(late)
    journal = late.app._registry.journal
    waiting = lambda: late.portal.call(journal.awaiting_labels)  # noqa: E731
    late.post("/models/m/predict", json={"samples": [row(1, id="a")]})
    late.post("/models/m/predict?remember=false", json=row(2, id="b"))
    assert waiting() == []
    remember(late, "a", "b")
    assert [got.rows for got in waiting()] == [2]
    assert state(late) == before
    assert label(late, ("a", 1), ("b", 1)).json()["count"] == 2
    assert waiting() == []


def test_replay_another_worker_and_a_restart_have_the_same_bits(late, serve, store):
    learn(late, 30)
    remember(late, *"abcdef")
    other = serve(store=store)
    learn(late, 10, y=0)
    assert label(late, ("c", 1), ("a", 0), key="k").status_code == 200
    assert label(other, ("b", 1), ("f", 0), ("c", 1)).json()["count"] == 2
    wait_until(lambda: state(late)["seq"] == 44)
    assert state(late) == state(other) == state(serve(store=store))
    replayed = label(other, ("c", 1), ("a", 0), key="k")
    assert replayed.headers["idempotency-replayed"] == "true"
    assert replayed.json()["count"] == 2 and replayed.json()["duplicate"]


def test_a_label_is_learned_once_and_says_where(late):
    remember(late, "a", "b", "c")
    one = late.post("/models/m/labels", json={"id": "a", "y": 1}).json()
    assert (one["seq"], one["count"], one["duplicate"]) == (1, 1, False)
    again = late.post("/models/m/labels", json={"id": "a", "y": True}).json()
    assert (again["count"], again["duplicate"]) == (0, True)
    assert again["duplicates"] == [{"index": 0, "seq": 1}]
    # Other labels, unknown samples and bad rows are errors of their own rows.
    rows = [{"id": "b", "y": 0}, {"id": "a", "y": 0}, {"id": "x", "y": 1}, {"id": "c", "y": "?"},
            {"id": "a", "y": 1}, {"id": "b", "y": 0}, {"id": "b", "y": 1}, {"y": 1}]  # fmt: skip
    got = late.post("/models/m/labels", json={"labels": rows}).json()
    assert (got["seq"], got["count"], got["rejected"]) == (2, 1, 5)
    assert got["duplicates"] == [{"index": 4, "seq": 1}, {"index": 5, "seq": 2}]
    pointers = [(error["index"], error["pointer"]) for error in got["errors"]]
    assert pointers == [(1, "/labels/1/id"), (2, "/labels/2/id"), (3, "/labels/3/y"),
                        (6, "/labels/6/id"), (7, "/labels/7")]  # fmt: skip
    assert "another label" in got["errors"][0]["reason"]
    assert "unknown-sample" in got["errors"][1]["reason"]
    assert state(late)["seq"] == 2
    # Where none is taken, the problem says why.
    assert_problem(label(late, ("x", 1)), 404, "unknown-sample")
    assert_problem(label(late, ("a", 0)), 422, "invalid-rows")
    got = assert_problem(label(late, ("x", 1), ("a", 0)), 422, "invalid-rows")
    assert [error["index"] for error in got["errors"]] == [0, 1] and "'x'" in got["detail"]
    huge = b'{"labels": [{"id": "c", "y": 1e999}, {"id": "c", "y": 0}]}'
    got = late.post("/models/m/labels", content=huge).json()
    assert (got["count"], got["errors"][0]["index"]) == (1, 0)
    assert_problem(late.post("/models/m/labels", json={"labels": []}), 422, "invalid-rows")
    assert_problem(late.post("/models/m/labels", content=b"{"), 400, "malformed-body")
    assert_problem(late.post("/models/m/labels", json=[]), 422, "invalid-body")
    assert_problem(late.post("/models/n/labels", json={}), 404, "unknown-model")


def test_a_keyed_request_has_its_first_answer_again(late):
    remember(late, "a", "b")
    first = label(late, ("a", 1), ("x", 1), key="k").json()
    again = label(late, ("a", 1), ("x", 1), key="k")
    same = ("seq", "count", "learned", "mistakes", "loss", "rejected", "errors")
    assert {n: again.json()[n] for n in same} == {n: first[n] for n in same}
    assert again.json()["duplicate"] and "idempotency-replayed" in again.headers
    assert_problem(label(late, ("b", 1), key="k"), 422, "idempotency-key-reused")
    assert label(late, ("b", 1)).json()["seq"] == 2


def first_and_again(client, *labels: tuple[str, int], key: str) -> tuple[dict, list[dict]]:
    """What is answered first, and what twice more: before and after `v2` has its label."""
    first = label(client, *labels, key=key)
    assert first.status_code == 200 and "idempotency-replayed" not in first.headers
    again = [label(client, *labels, key=key)]
    remember(client, "v2")
    again.append(label(client, *labels, key=key))
    assert label(client, ("v2", 0)).json()["count"] == 1
    again.append(label(client, *labels, key=key))
    for answer in again:
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.json()["duplicate"]
    return first.json(), [answer.json() | {"duplicate": False} for answer in again]


def test_repeated_keyed_request_returns_the_same_missing_ids(late, serve, store):
    learn(late, 4)
    remember(late, "v1")
    labels = [("v1", 1), ("v2", 0), ("v1", 1), ("v1", 0)]
    first, again = first_and_again(late, *labels, key="L1")
    assert (first["seq"], first["count"], first["rejected"]) == (5, 1, 2)
    assert first["duplicates"] == [{"index": 2, "seq": 5}]
    errors = {error["index"]: error["reason"] for error in first["errors"]}
    assert list(errors) == [1, 3]
    assert "unknown-sample" in errors[1] and "another label" in errors[3]
    assert again == [first] * 3
    # And so does a worker that was started since, of a request of which it has seen nothing.
    elsewhere = label(serve(store=store), *labels, key="L1")
    assert elsewhere.json() | {"duplicate": False} == first
    # Of labels known before it, too.
    remember(late, "v3")
    first = label(late, ("v1", 0), ("v3", 1), ("v2", 0), key="L2").json()
    again = label(late, ("v1", 0), ("v3", 1), ("v2", 0), key="L2").json()
    assert again | {"duplicate": False} == first
    assert (first["count"], first["rejected"]) == (1, 1)
    assert first["duplicates"] == [{"index": 2, "seq": 6}]


def test_a_keyed_request_of_known_labels_alone_uses_its_key(late):
    remember(late, "v1", "v3")
    assert label(late, ("v3", 1), ("v1", 1)).json()["seq"] == 2
    learn(late, 2)
    for key, labels, seq, errors in (
        ("all", (("v1", 1), ("v3", 1)), 4, []),
        ("some", (("v1", 1), ("v2", 0), ("v1", 0)), 4, [1, 2]),
    ):
        first, *again = (label(late, *labels, key=key) for _ in range(3))
        assert first.status_code == 200 and "idempotency-replayed" not in first.headers
        got = first.json()
        assert (got["seq"], got["count"], got["learned"]) == (seq, 0, 0)
        assert [error["index"] for error in got.get("errors", ())] == errors
        assert got["duplicate"] == (not errors)
        for answer in again:
            assert answer.headers["idempotency-replayed"] == "true"
            assert answer.json() == got | {"duplicate": True}
        assert_problem(label(late, ("v1", 0), key=key), 422, "idempotency-key-reused")
        remember(late, "v4")
        assert_problem(label(late, ("v4", 0), key=key), 422, "idempotency-key-reused")
    # What is refused as a whole leaves its key to whoever sends it right.
    assert_problem(label(late, ("x", 0), key="new"), 404, "unknown-sample")
    assert label(late, ("v4", 0), key="new").json()["count"] == 1
    assert state(late)["samples"] == 5


def test_labels_that_are_not_learned_are_shown_again_with_their_reasons(serve, store):
    client = serve(store=store)
    spec = {"algorithm": "sgd", "features": SPEC["features"], "loss": "squared"}
    client.put("/models/m", json={"task": "regression"} | spec)
    samples = [{"x": [1e100] * 5, "id": "huge"}, row(1, id="a"), row(2, id="b")]
    answer = client.post("/models/m/predict?remember=true", json={"samples": samples})
    assert answer.json()["remembered"] == 3
    labels = [("a", 1), ("x", 1), ("huge", 1e100), ("b", 0)]
    first, *again = (label(client, *labels, key="k").json() for _ in range(2))
    assert (first["count"], first["learned"], first["rejected"]) == (3, 2, 2)
    assert [error["index"] for error in first["errors"]] == [1, 3]
    assert "finite" in first["errors"][1]["reason"]
    assert again == [first | {"duplicate": True}]


def test_labels_that_wait_for_a_paused_model_are_shown_again_as_such(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=GUARDED)
    remember(client, "a", "b")
    for first in range(0, 400, 50):
        guard.learn(client, guard.samples(first, first + 50, bad=first >= 200))
    guard.paused(client)
    first, *again = (label(client, ("a", 1), ("x", 1), ("b", 0), key="k").json() for _ in range(2))
    assert (first["count"], first["learned"], first["rejected"]) == (2, 0, 3)
    reasons = [error["reason"].partition(":")[0] for error in first["errors"]]
    assert reasons == ["paused", "unknown-sample", "paused"]
    assert again == [first | {"duplicate": True}]


def test_a_keyed_request_that_comes_by_two_ways_at_once_has_one_outcome(late):
    remember(late, "v1", "v2")
    label(late, ("v2", 1))
    registry = late.app._registry
    mine = [Label(0, "v1", 1.0), Label(1, "x", 1.0), Label(2, "v2", 1.0), Label(3, "v1", 0.0)]
    key, mark = make_key(KeyKind.REQUEST, "k"), bytes(16)

    async def twice(labels: list[Label], key: bytes) -> list[Labelled]:
        request = (registry.journal, registry.find("m"), labels, key, mark)
        return await asyncio.gather(learn_labels(*request), learn_labels(*request))

    one, other = late.portal.call(twice, mine, key)
    assert one.repeats is None and one.receipt.position.seq == 2
    assert other.repeats == (2, 1) and other.answer.learned == 1
    assert (other.journalled, other.unknown) == ({0: mine[0]}, [1])
    assert (other.duplicates, other.conflicts) == ([(2, 1)], [(3, 2)])
    # Of labels that are known, too.
    one, other = late.portal.call(twice, mine[2:3], make_key(KeyKind.REQUEST, "l"))
    assert one.repeats is None and one.receipt.position.count == 0
    assert other.repeats == (2, 0) and other.answer.count == 0
    assert one.duplicates == other.duplicates == [(2, 1)]


def test_an_expired_row_is_shown_from_an_unknown_one(serve, tmp_path):
    path = tmp_path / "s.db"
    client = serve(store=f"sqlite:///{path}", remember_s=60)
    client.put("/models/m", json=SPEC)
    remember(client, "a", "b")
    # A minute earlier: they have expired, and are known to have for a minute.
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as db, db:
        db.execute("UPDATE remembered SET due_ms = due_ms - 60000")
    wait_until(lambda: 'remembered_expired_total{model="m"} 2.0' in client.get("/metrics").text)
    assert_problem(label(client, ("a", 1)), 410, "expired-sample")
    got = assert_problem(label(client, ("x", 1), ("b", 1)), 422, "invalid-rows")
    assert [error["index"] for error in got["errors"]] == [0, 1]
    assert client.get("/models/m").json()["seq"] == 0


def test_what_cannot_wait_is_refused(model, serve, tmp_path, monkeypatch):
    ask = {"remember": "true"}
    predict = lambda client=model, **options: client.post("/models/m/predict", **options)  # noqa: E731
    answer = model.get("/models/m/predict", params=ask | {"x": "1:1"})
    assert_problem(answer, 422, "invalid-query")
    assert_problem(predict(params=ask, json=row(1)), 422, "invalid-rows")
    two = {"samples": [row(1, id="a"), row(2), row(3, id="a"), row(4, id="\n")]}
    got = predict(params=ask, json=two).json()
    assert (got["remembered"], got["rejected"]) == (1, 3)
    assert [error["pointer"] for error in got["errors"]] == [
        f"/samples/{position}/id" for position in (1, 2, 3)
    ]
    assert got["scores"][1:] == [None] * 3
    libsvm = {"content": "1:1", "headers": {"content-type": "text/x-libsvm"}}
    assert_problem(predict(params=ask, **libsvm), 415, "unsupported-media-type")
    for wrong in (
        {"default_label": "2"},
        {"default_after_s": "1"},
        {"default_label": "0", "default_after_s": "0"},
        {"default_label": "0", "default_after_s": "1e9"},
        {"default_label": "0", "default_after_s": "soon"},
    ):
        request = predict(params=ask | wrong, json=row(1, id="b"))
        assert_problem(request, 422, "invalid-query")
    request = predict(params={"default_label": "0"}, json=row(1, id="b"))
    assert_problem(request, 422, "invalid-query")
    monkeypatch.setattr(
        "dualstream.service.server.app.JournalLimits", partial(Limits, max_remembered=2)
    )
    few = serve(store=f"sqlite:///{tmp_path / 'few.db'}")
    few.put("/models/m", json=SPEC)
    remember(few, "a", "b")
    full = assert_problem(predict(few, params=ask, json=row(1, id="c")), 429, "too-many-remembered")
    assert "2 rows" in full["detail"]
    few.delete("/models/m")
    spec = {"algorithm": "dc", "features": SPEC["features"]}
    assert few.put("/models/m", json=spec).status_code == 201
    request = predict(few, params=ask, json=row(1, id="c"))
    assert_problem(request, 409, "cannot-remember")


def test_names_of_features_come_with_the_label(late, serve, store):
    spec = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
    late.put("/models/h", json=spec)
    sample = {"x": {"city": "Oslo", "age": 3}, "id": "a", "weight": 2}
    late.post("/models/h/predict?remember=true", json=sample)
    assert late.post("/models/h/labels", json={"id": "a", "y": 1}).status_code == 200
    for client in (late, serve(store=store)):
        got = client.get("/models/h/weights").json()["weights"]
        assert {"city=Oslo", "age"} <= {weight["name"] for weight in got}


def test_a_sample_whose_label_came_late_is_unlearned_by_its_id(late):
    remember(late, "a")
    digest = digest_of(make_key(KeyKind.LABEL, "a"))
    assert digest == digest_of(make_key(KeyKind.SAMPLE, "a"))
    assert_problem(late.delete("/models/m/samples/a"), 404, "unknown-sample")
    label(late, ("a", 1))
    assert late.delete("/models/m/samples/a").status_code in (200, 202)


def test_an_event_that_comes_both_ways_is_learned_twice_under_one_id(late):
    remember(late, "a")
    sample = {"samples": [row(0, id="a", y=1)]}
    assert late.post("/models/m/learn", json=sample).json()["seq"] == 1
    assert label(late, ("a", 1)).json()["seq"] == 2
    # Each way knows its own.
    again = late.post("/models/m/learn", json=sample).json()
    assert (again["count"], again["duplicates"]) == (0, [{"index": 0, "seq": 1}])
    again = label(late, ("a", 1)).json()
    assert (again["count"], again["duplicates"]) == (0, [{"index": 0, "seq": 2}])
    retained = late.app._registry.find("m").replica.parts.find(RetainedIds)
    digest = digest_of(make_key(KeyKind.SAMPLE, "a"))
    assert state(late)["samples"] == 2 and retained.seqs(digest) == [1, 2]
    assert late.delete("/models/m/samples/a").status_code in (200, 202)
    assert retained.seqs(digest) == []


def test_default_labels_are_learned_once_by_two_workers_and_no_label_after(late, serve, store):
    other = serve(store=store)
    ids = [f"i{number}" for number in range(60)]
    remember(late, *ids, default_label="0", default_after_s="0.5")
    remember(late, "never")
    # Both workers label a half of them while both timers label what is due.
    said: list[dict] = []

    def send(client, some) -> None:
        for id in some:
            answer = label(client, (id, 1))
            assert answer.status_code in (200, 422), answer.text
            said.append(answer.json() | {"id": id, "status": answer.status_code})
            time.sleep(0.02)

    threads = [
        threading.Thread(target=send, args=(client, some))
        for client, some in ((late, ids[:50]), (other, ids[40:1:-1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: state(late)["seq"] == state(other)["seq"] == 60)
    time.sleep(1.2)  # both timers look once more
    assert state(late) == state(other) == state(serve(store=store))
    assert state(late)["samples"] == 60
    journalled = {got["id"] for got in said if got.get("count") == 1}
    for id in ids:
        truly = label(late, (id, 1))
        assert (truly.status_code == 200) == (id in journalled)
    assert late.portal.call(late.app._registry.journal.awaiting_labels)[0].rows == 1
    assert "dualstream_default_labels_total" in late.get("/metrics").text


def test_a_row_predicted_again_after_its_label_is_not_learned_twice(serve, store):
    late = serve(store=store, key_ttl_s=3)
    late.put("/models/m", json=LOGISTIC)
    wait = {"default_label": "0", "default_after_s": "4"}
    remember(late, "view-1", **wait)
    assert label(late, ("view-1", 1)).json()["seq"] == 1
    # As a client does that has lost the answer; a row beside it is new.
    samples = [row(0, id="view-1"), row(1, id="view-2")]
    request = {"remember": "true"} | wait
    got = late.post("/models/m/predict", params=request, json={"samples": samples}).json()
    assert (got["remembered"], len(got["scores"])) == (1, 2)
    single = late.post("/models/m/predict?remember=true", json=row(0, id="view-1")).json()
    assert single["remembered"] == 0 and isinstance(single["score"], float)
    # The wait of the row beside it is over, by which time the key of the label is forgotten.
    wait_until(lambda: state(late)["seq"] >= 2)
    journal = late.app._registry.journal
    assert late.portal.call(journal.awaiting_labels) == []
    assert state(late)["samples"] == 2
    assert_problem(label(late, ("view-1", 1)), 404, "unknown-sample")


def test_labels_are_learned_once_through_kill_9(store):
    ids = [f"i{number}" for number in range(120)]
    server = ServerProcess(store)
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            client.put("/models/m", json=LOGISTIC).raise_for_status()
            remember(client, *ids)
        acked = []

        def send(url: str) -> None:
            with httpx.Client(base_url=url, timeout=30) as client:
                for id in ids:
                    try:
                        label(client, (id, 1)).raise_for_status()
                    except httpx.TransportError:
                        return
                    acked.append(id)

        sender = threading.Thread(target=send, args=(server.url,))
        sender.start()
        while len(acked) < 40 and sender.is_alive():
            time.sleep(0.001)
        server.kill()
        sender.join()
        server = ServerProcess(store)
        with httpx.Client(base_url=server.url, timeout=30) as client:
            learned = client.get("/models/m").json()["seq"]
            assert len(acked) <= learned <= len(acked) + 1
            got = label(client, *((id, 1) for id in ids)).json()
            assert got["count"] == len(ids) - learned and got["rejected"] == 0
            assert len(got.get("duplicates", [])) == learned
            assert state(client)["samples"] == len(ids)
    finally:
        server.kill()
