"""Weights that were computed elsewhere: w.x + b of the named features, the same bits for all."""

import asyncio
import io
import json
import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest

from dualstream.client import Client
from dualstream.service.archive.dump import run_dump
from dualstream.service.archive.restore import run_restore
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.replay.replay import replay
from tests.service.api.support import KEY, assert_again
from tests.service.conftest import assert_problem
from tests.service.features.guard.support import GUARDED, learn, paused, samples, view
from tests.service.support import bits, loaded, replica_of

INDEXED = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 5}}
NUMBERED = {"weights": {"1": 0.5, "4": -2.0}, "intercept": 0.25, "rows": 100}
PLAIN = {"algorithm": "passive_aggressive"}
COLUMNS: dict[str, Any] = {
    "columns": {
        "label": "sold",
        "ignore": ["trace.*"],
        "types": {
            "zip": "category", "price": "number", "member": "boolean", "subject": "text",
            "at": {"kind": "time", "parts": ["hour", "weekday"]},
        },
    },
    "crosses": [["zip", "member"]],
}  # fmt: skip


def put(client: Any, body: Any, model: str = "m", **more: Any) -> Any:
    return client.put(f"/models/{model}/weights", json=body, **more)


def score(client: Any, x: Any, model: str = "m") -> float:
    answer = client.post(f"/models/{model}/predict", json={"x": x})
    assert answer.status_code == 200, answer.text
    return answer.json()["score"]


def given(client: Any, model: str = "m", rows: int = 100) -> dict[str, Any]:
    """The body that sets the weights of this model."""
    got = client.get(f"/models/{model}/weights?top=10000").json()
    named = {one.get("name", str(one["index"])): one["weight"] for one in got["weights"]}
    return {"weights": named, "intercept": got["intercept"], "rows": rows}


def test_every_worker_every_replay_and_every_copy_has_the_weights(serve, store, tmp_path):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=INDEXED)
    learn(client, samples(0, 40))
    before = given(client)
    answer = put(client, NUMBERED | {"objective": 0.5, "gap": 0.001})
    assert answer.status_code == 200, answer.text
    got = answer.json()
    assert (got["status"], got["method"], got["seq"], got["entered_seq"], got["rows"]) == (
        "done", "given", 40, 41, 100,
    )  # fmt: skip
    assert got["relative_gap"] == pytest.approx(0.002) and got["dual"] == 0.499
    assert other.get(f"/models/m/refits/{got['job']}").json() == got
    other.get("/models/m/predict?x=1:1&min_seq=41")
    for x in samples(0, 9):
        by_definition = np.dot([0.5, 0, 0, -2, 0], x["x"]) + 0.25
        assert score(other, x["x"]) == pytest.approx(by_definition, abs=1e-14)
    assert given(other) == NUMBERED
    [change] = [one for one in client.get("/audit?model=m").json()["changes"] if one["seq"] == 41]
    assert (change["action"], change["outcome"]) == ("refit", "done")
    assert change["detail"] == {"job": got["job"], "method": "given", "seq": 40, "records": 40}
    assert_problem(client.get("/models/m/certificate"), 404, "no-certificate")
    learn(client, samples(40, 60))
    other.get("/models/m/predict?x=1:1&min_seq=61")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    digest = view(client)["state_digest"]
    assert asyncio.run(replay(ALL, store, "m", None, {})).state_digest == digest
    assert asyncio.run(replay(ALL, store, "m", None, {"rho": 0.5})).left_out_refits == 1

    copied, file = f"sqlite:///{tmp_path / 'copied.db'}", io.BytesIO()
    asyncio.run(run_dump(store, "m", file, str))
    file.seek(0)
    asyncio.run(run_restore(copied, False, file, str))
    assert bits(loaded(copied)) == bits(loaded(store))
    # A rollback undoes it.
    assert client.post("/models/m/rollback", json={"seq": 40}).status_code == 200
    assert given(client) == before


@pytest.mark.parametrize("spec", [{"algorithm": "sgd"}, PLAIN, PLAIN | COLUMNS])
def test_weights_of_one_model_serve_in_another(client, spec):
    for model in ("one", "two", "three"):
        assert client.put(f"/models/{model}", json=spec).status_code == 201
    rng, rows, y = np.random.default_rng(3), [], "sold" if "columns" in spec else "y"
    for n in range(60):
        x = {"zip": str(rng.choice(["02134", "é"])), "price": float(rng.normal())}
        x |= {"member": bool(rng.random() < 0.5), "subject": "free money" if n % 3 else "Free"}
        if "columns" in spec:
            x["at"] = f"2024-05-{1 + n % 28:02}T{n % 24:02}:00:00Z"
        rows.append(x)
    flat = [row if y == "sold" else {"x": row} for row in rows]
    learn(client, [row | {y: n % 2} for n, row in enumerate(flat)], "one")
    body = given(client, "one")
    assert len(body["weights"]) > 5
    assert put(client, body, "two").status_code == 200
    assert put(client, body, "three").status_code == 200
    learn(client, [row | {y: 1, "weight": 0} for row in flat], "three")
    assert given(client, "three") == body  # rows bring the names
    scores = {
        model: client.post(f"/models/{model}/predict", json={"samples": flat}).json()["scores"]
        for model in ("one", "two", "three")
    }
    assert scores["two"] == scores["three"]
    if spec["algorithm"] == "passive_aggressive":
        assert scores["two"] == scores["one"]
    assert scores["two"] == pytest.approx(scores["one"], rel=1e-12, abs=1e-15)


def test_what_cannot_be_set_is_named_and_changes_nothing(client):
    def refused(spec: dict[str, Any], body: Any, status: int, slug: str) -> str:
        client.delete("/models/m")
        assert client.put("/models/m", json=spec).status_code == 201
        before = view(client)
        content = body if isinstance(body, str) else json.dumps(body)
        head = {"content-type": "application/json"}
        answer = client.put("/models/m/weights", content=content, headers=head)
        got = assert_problem(answer, status, slug)
        assert view(client) == before
        assert client.get("/models/m/refits").json()["refits"] == []
        return got["detail"]

    features, small = {"features": INDEXED["features"]}, {"kind": "hashed", "bits": 10}
    hashed = {"algorithm": "sgd", "features": small}
    for spec, why in (
        ({}, 'create a model with "algorithm": "sgd" and the loss'),
        ({"algorithm": "dual_ascent"}, "follow from the dual variables of its rows; create"),
        ({"algorithm": "rda"}, "computed from the sum of all gradients"),
        ({"algorithm": "net"}, "its loss is not convex in its weights"),
        ({"algorithm": "sgd", "rho": 0}, "with rho 0"),
        ({"algorithm": "sgd", "task": "multiclass"}, "a binary model for each class"),
        ({"algorithm": "sgd", "scaling": "balanced"}, "a model without these"),
        ({"algorithm": "sgd", "norm": "row"}, "a model without these"),
        ({"algorithm": "sgd", "map": "fourier"}, "a model without these"),
    ):
        detail = refused(spec | features, NUMBERED, 409, "cannot-refit")
        assert "the weights of model 'm' cannot be set" in detail and why in detail
    for spec, change, why in (
        (INDEXED, {"weights": {"6": 1}}, "/weights/6: index 6 is above dim 5"),
        (INDEXED, {"weights": {"age": 1}}, "'age' is not an index from 1 to 5"),
        (INDEXED, {"weights": {"1": 1e101}}, "/weights/1: the number must be in [-1e100, 1e100]"),
        (INDEXED, {"weights": {"1": 10**30}}, "the integer 1000000000000000000000000000000 is"),
        (INDEXED, {"weights": {"1": True}}, "/weights/1: '1' must have a number, got True"),
        (INDEXED, {"weights": {"1": None}}, "got None"),
        (INDEXED, {"weights": [1.0]}, "Expected `object`, got `array` - at `$.weights`"),
        (INDEXED, {"intercept": -1e101}, "at `$.intercept`"),
        (INDEXED, {"intercept": True}, "at `$.intercept`"),
        (INDEXED, {"rows": 0}, "at `$.rows`"),
        (INDEXED, {"gap": 0.1}, "both objective and gap"),
        (INDEXED, {"gap": -0.1, "objective": 1.0}, "at `$.gap`"),
        (INDEXED, {"loss": "hinge"}, "unknown field `loss`"),
        (INDEXED | {"intercept": False}, {}, "the model has no intercept"),
        (INDEXED | {"algorithm": "asset", "lambda": 1.0}, {}, "in the ball of radius"),
        ({"algorithm": "asset", "bound": 0.1, **features}, {}, "the intercept within `bound`"),
        (hashed, {"weights": {"a/b": 1e101}}, "/weights/a~1b: the number"),
        (hashed, {"weights": {"": 1}}, "a feature has no name"),
        (hashed, {"weights": {"x" * 1025: 1}}, "at most 1024 characters"),
        (hashed, {"weights": {"e\u0301": 1, "\xe9": 2}}, "has the index of 'e\u0301'"),
        (
            {"algorithm": "sgd", "features": {"kind": "hashed", "bits": 1}},
            {"weights": {"a": 1, "b": 2, "c": 3}}, "use more `bits`",
        ),
    ):  # fmt: skip
        assert why in refused(spec, NUMBERED | change, 422, "invalid-weights")
    columns = COLUMNS | hashed
    for name, why in (
        ("zip", "of column 'zip' of type category"),
        ("price=3", "of column 'price' of type number"),
        ("at", "of column 'at' of type time"),
        ("subject=free", "of column 'subject' of type text"),
        ("at.hour", "of column 'at' of type time"),
        ("at.year_day.sin", "of column 'at' of type time"),
        ("at.weekday=Monday", "of column 'at' of type time"),
        ("subject:Free", "of column 'subject' of type text"),
        ("subject:free money", "of column 'subject' of type text"),
        ("zip=", "of column 'zip' of type category"),
        ("price=missing", "of column 'price' of type number"),
        ("age=39", "leave it out or read it otherwise"),
        ("sold", "the model's `columns` leave it out"),
        ("trace.id", "the model's `columns` leave it out"),
    ):
        body = {"weights": {name: 1.0}, "rows": 1}
        assert why in refused(columns, body, 422, "invalid-weights")
    strict = hashed | {"columns": COLUMNS["columns"] | {"unknown": "refuse"}}
    body = {"weights": {"zipp=1": 1.0}, "rows": 1}
    assert "'zipp=1' is not the name" in refused(strict, body, 422, "invalid-weights")
    twice = '{"weights": {"1": 1, "1": 2}, "rows": 1}'
    assert "'1' is duplicated" in refused(INDEXED, twice, 422, "invalid-weights")
    for number, status, slug, why in (
        ("NaN", 400, "malformed-body", "the body is not JSON"),
        ("1e999", 422, "invalid-weights", "Number out of range"),
    ):
        body = f'{{"weights": {{"1": {number}}}, "rows": 1}}'
        assert why in refused(INDEXED, body, status, slug)
    assert_problem(put(client, NUMBERED, "none"), 404, "unknown-model")


def test_features_of_flat_rows_may_be_new(client):
    """Names of every type, of a cross, and of a column without a type."""
    assert client.put("/models/m", json=COLUMNS | {"algorithm": "sgd"}).status_code == 201
    named = {"zip=1": 1.0, "price": 2.0, "member": 4.0, "subject:free": 8.0, "at.hour.sin": 16.0}
    named |= {"at.weekday=mon": 32.0, "zip*member=1,true": 64.0, "city=Oslo": 128.0, "age": 256.0}
    assert put(client, {"weights": named, "rows": 1}).status_code == 200
    row = {"zip": "1", "price": 1, "member": True, "subject": "Free", "city": "Oslo", "age": 1}
    answer = client.post("/models/m/predict", json=row | {"at": "2024-05-06T06:00:00Z"}).json()
    assert answer["score"] == pytest.approx(511.0)
    spec = {"algorithm": "sgd", "columns": COLUMNS["columns"] | {"missing_indicator": True}}
    assert client.put("/models/n", json=spec).status_code == 201
    named = {"zip=missing": 1.0, "price=missing": 2.0, "city=missing": 4.0}
    assert put(client, {"weights": named, "rows": 1}, "n").status_code == 200
    answer = client.post("/models/n/predict", json={"city": None}).json()
    assert answer["score"] == pytest.approx(7.0)


def test_the_client_sends_names_or_a_sequence(client):
    with Client(http=client) as sender:
        sender.create("m", INDEXED)
        got = sender.set_weights("m", np.array([0.5, 0.0, 0.0, -2.0, 0.0]), 0.25, rows=100)
        assert (got.status, got.rows, got.entered_seq, got.relative_gap) == ("done", 100, 1, None)
        assert given(client) == NUMBERED
        got = sender.set_weights("m", {"2": 1.0}, rows=9, objective=0.5, gap=0.5)
        assert got.relative_gap == 1.0 and given(client)["weights"] == {"2": 1.0}


def test_weights_under_a_key_are_set_once(serve, store, overtaken):
    one, other = serve(store=store), serve(store=store)
    one.put("/models/m", json=INDEXED)
    learn(one, samples(0, 10))

    def send(client: Any, **change: Any) -> Any:
        return put(client, NUMBERED | change, headers=KEY)

    first = send(one)
    assert first.status_code == 200
    learn(one, samples(10, 20))
    assert_again(first, send, one, other, serve(store=store))
    assert_problem(send(other, intercept=0.0), 422, "idempotency-key-reused")
    assert one.get("/models/m").json()["seq"] == 21
    # Another change comes first, or more rows than the weights were computed from.
    key = {"headers": {"idempotency-key": "late"}}
    for rows, change in (
        (100, lambda: put(other, NUMBERED | {"rows": 7})),
        (3, lambda: other.post("/models/m/learn", json={"samples": samples(20, 23)})),
    ):
        overtaken(change)
        body = NUMBERED | {"rows": rows, "intercept": 0.5}
        late = put(one, body, **key)
        why = "changed by hand" if rows == 100 else "3 rows came since"
        assert why in assert_problem(late, 409, "conflict")["detail"]
        assert_again(late, lambda client, body=body, key=key: put(client, body, **key), one, other)
        key = {"headers": {"idempotency-key": "later"}}
    assert given(other)["intercept"] != 0.5
    other.get(f"/models/m/predict?x=1:1&min_seq={view(one)['seq']}")
    assert bits(replica_of(other)) == bits(replica_of(one)) == bits(loaded(store))


def test_a_guard_takes_the_new_norm_and_a_pause_refuses(client):
    spec = INDEXED | {"guard": GUARDED["guard"]}
    client.put("/models/m", json=spec)
    learn(client, samples(0, 103))
    # The labels are those of x1 + x2: a norm far beyond the history, and losses near 0.
    assert put(client, {"weights": {"1": 50, "2": 50}, "rows": 100}).status_code == 200
    learn(client, samples(103, 200))
    assert view(client)["paused"] is None
    learn(client, samples(200, 260, bad=True))
    paused(client)
    assert_problem(put(client, NUMBERED), 409, "paused")


def test_a_killed_server_has_the_weights_or_has_them_not(tmp_path):
    """The acknowledged weights or those of the request under way; never some of each."""
    store = f"sqlite:///{tmp_path / 'killed.db'}"
    spec = INDEXED | {"features": {"kind": "indexed", "dim": 1000}}

    def body(value: float) -> dict[str, Any]:
        return {"weights": {str(n): value for n in range(1, 1001)}, "intercept": value, "rows": 9}

    acknowledged = [0.0]
    with ServerProcess(store) as server, httpx.Client(base_url=server.url) as client:
        client.put("/models/m", json=spec)

        def send() -> None:
            try:
                while True:
                    answer = put(client, body(acknowledged[-1] + 1.0))
                    assert answer.status_code == 200, answer.text
                    acknowledged.append(acknowledged[-1] + 1.0)
            except httpx.TransportError:
                pass

        sending = threading.Thread(target=send)
        sending.start()
        deadline = time.monotonic() + 60
        while len(acknowledged) < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
        server.kill()
        sending.join()
    assert len(acknowledged) >= 5
    learner = loaded(store).learner
    values = {*learner.weights.tolist(), learner.intercept}
    assert values <= {acknowledged[-1], acknowledged[-1] + 1.0} and len(values) == 1
