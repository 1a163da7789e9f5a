"""Hashed names and classes met on the way, through the whole server and back after a restart."""

import asyncio
import json
import sqlite3
import time

import numpy as np
import pytest

from dualstream.service.codecs import RowSchema, parse_json
from dualstream.service.codecs.row_schema import LONGEST_NAME, BadRow
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, CorruptState, make_learner, resolve_spec
from dualstream.solvers.rows.class_names import class_indices
from dualstream.solvers.rows.hashing import hash_names
from tests.service.conftest import assert_problem
from tests.service.support import bits, lose_last_entry

HASHED = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
CLASSES = {
    "algorithm": "dual_ascent",
    "task": "multiclass",
    "features": {"kind": "indexed", "dim": 3},
}
PEOPLE = [
    ({"age": 39, "city": "Oslo", "member": True}, 1),
    ({"age": 21.5, "city": "Rome", "member": False}, 0),
    ({"city": "Oslo", "visits": 3}, 1),
    ({"age": 0, "city": "Bergen/ä~"}, 0),
]


def place(name: str) -> int:
    return int(hash_names([name], 10)[0])


def as_pairs(x: dict) -> dict[int, float]:
    """A row as the documentation says, from the definition."""
    row: dict[int, float] = {}
    for name, value in x.items():
        key = f"{name}={value}" if isinstance(value, str) else name
        row[place(key)] = row.get(place(key), 0.0) + (1.0 if isinstance(value, str) else value)
    return {k: v for k, v in sorted(row.items()) if v}


def people_batch() -> Batch:
    rows = [as_pairs(x) for x, _ in PEOPLE]
    dense = np.zeros((len(rows), 1024))
    for i, row in enumerate(rows):
        for j, value in row.items():
            dense[i, j] = value
    return Batch.from_dense(dense, [1.0 if y else -1.0 for _, y in PEOPLE])


def test_named_features_are_hashed_as_documented(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=HASHED).status_code == 201
    learner = make_learner(resolve_spec(HASHED))
    outcome = learner.learn(people_batch())
    scores = [
        client.post("/models/m/learn", json={"x": x, "y": y}).json()["scores"][0] for x, y in PEOPLE
    ]
    assert scores == outcome.scores.tolist()
    weights = client.get("/models/m/weights?top=100").json()
    by_name = {weight["name"]: weight["weight"] for weight in weights["weights"]}
    assert set(by_name) == {"age", "city=Oslo", "city=Rome", "city=Bergen/ä~", "member", "visits"}
    for name, weight in by_name.items():
        assert learner.weights[place(name)] == weight
    got = client.get("/models/m/predict?x.age=39&x.city=Oslo&x.member=true").json()
    assert (
        got["score"] == client.post("/models/m/predict", json={"x": PEOPLE[0][0]}).json()["score"]
    )
    # A second process answers by name, too: names are part of the state.
    other = serve(store=store)
    assert other.get("/models/m/weights?top=100").json() == weights


def test_names_survive_snapshot_and_replay_alike(serve, store):
    client = serve(store=store, snapshot_every=2, keep_records=1000)
    client.put("/models/m", json=HASHED)
    for x, y in PEOPLE * 3:
        client.post("/models/m/learn", json={"x": x, "y": y})
    registry = client.app._registry

    async def load(with_snapshot: bool) -> Replica:
        journal = await open_journal(store)
        try:
            replica = Replica(await journal.get("m"), ALL)
            await (recover(replica, journal) if with_snapshot else replica.catch_up(journal))
            return replica
        finally:
            await journal.close()

    live = bits(registry.find("m").replica)
    for with_snapshot in (True, False):
        replica = asyncio.run(load(with_snapshot))
        assert bits(replica) == live


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([1, 2, 3], "by name"),
        ({"a" * (LONGEST_NAME + 1): 1}, "characters"),
        ({"a": "b" * (LONGEST_NAME + 1)}, "characters"),
        ({"a": 2e100}, "1e100"),
        ({"a": None}, "null"),
    ],
)
def test_bad_named_rows_are_refused(client, x, reason):
    client.put("/models/m", json=HASHED)
    got = assert_problem(client.post("/models/m/learn", json={"x": x, "y": 1}), 422, "invalid-rows")
    assert reason in got["detail"]
    body = client.post(
        "/models/m/learn", content="1 1:1", headers={"content-type": "text/x-libsvm"}
    )
    assert_problem(body, 415, "unsupported-media-type")


def test_each_name_is_journalled_once_by_a_process():
    schema = RowSchema(resolve_spec(HASHED))
    *_, first = schema.features({"a": 1, "b": "x"})
    assert [name for _, name in first] == ["a", "b=x"]
    assert schema.features({"a": 1})[2] == [(place("a"), "a")], "not journalled yet"
    schema.mark_journalled(first)
    assert schema.features({"a": 2, "b": "x", "c": 1})[2] == [(place("c"), "c")]


def test_each_name_is_journalled_once_by_a_request():
    schema = RowSchema(resolve_spec(HASHED))
    rows = [{"x": {"a": row, "b": 1}, "y": 1} for row in (1, 2)]
    parsed = parse_json(schema, json.dumps({"samples": rows}).encode(), True)
    assert parsed.names == [(place("a"), "a"), (place("b"), "b")]
    rows[1]["id"] = "i"  # a row with an id may be refused by the store, so each brings its names
    parsed = parse_json(schema, json.dumps({"samples": rows}).encode(), True)
    assert [parsed.rows.names_of(row, row + 1) for row in (0, 1)] == [parsed.names[:2]] * 2


def test_name_that_is_shown_as_a_text_may_be_too_long_as_a_name():
    schema = RowSchema(resolve_spec(HASHED))
    half = "h" * (LONGEST_NAME - 1)
    for name, text in ((half, half), ("h", "x")):
        *_, names = schema.features({name: text})
        schema.mark_journalled(names)
        assert schema.features({name: text})[2] == []
    assert schema.features({"h=x": 2})[1:] == ([2.0], [])
    with pytest.raises(BadRow, match="characters"):
        schema.features({f"{half}={half}": 1})


def test_names_of_lost_entries_are_shown_again(serve, tmp_path):
    path = tmp_path / "fork.db"
    client = serve(store=f"sqlite:///{path}")
    client.put("/models/m", json=HASHED)
    client.post("/models/m/learn", json={"x": {"kept": 1}, "y": 1})
    client.post("/models/m/learn", json={"x": {"lost": 1}, "y": 1})
    lose_last_entry(sqlite3.connect(path))
    for _ in range(2):  # the first finds the fork, the second tells the name again
        client.post("/models/m/learn", json={"x": {"lost": 1}, "y": 1})
    deadline = time.monotonic() + 60.0
    # Until the fork is settled, the model is not served.
    while (answer := client.get("/models/m/weights")).status_code == 503:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    weights = answer.json()["weights"]
    assert {weight.get("name") for weight in weights} == {"kept", "lost"}


def test_first_name_of_a_place_wins_and_damage_is_found():
    names = FeatureNames()
    names.keep([(3, "a"), (3, "b"), (5, "ä")])
    assert names.get(3) == "a" and names.get(5) == "ä" and names.get(4) is None
    other = FeatureNames()
    other.restore(names.state())
    assert other.state().keys() == names.state().keys() and other.get(5) == "ä"
    damaged = names.state()
    del damaged["ends"]
    with pytest.raises(CorruptState):
        other.restore(damaged)


def rows_of_classes(n: int) -> list[tuple[list[float], object]]:
    rng = np.random.default_rng(1)
    kinds = ["red", 1, "1", True, 2.0]
    results = []
    for _ in range(n):
        kind = int(rng.integers(0, len(kinds)))
        x = rng.standard_normal(3) * 0.2 + np.array([kind % 3, kind // 3, kind == 4])
        results.append((x.tolist(), kinds[kind]))
    return results


def test_classes_are_met_on_the_way(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=CLASSES).status_code == 201
    rows = rows_of_classes(120)
    learner = make_learner(resolve_spec(CLASSES))
    labels, classes = class_indices(
        [json.dumps(2 if y == 2.0 and y is not True else y) for _, y in rows]
    )
    batch = Batch.from_dense([x for x, _ in rows]).with_labels(labels, classes)
    outcome = learner.learn(batch)
    mistakes = sum(
        p < 0 or outcome.classes[p] != classes[int(label)]
        for p, label in zip(outcome.predicted.tolist(), labels.tolist(), strict=True)
    )
    got = 0
    for first in range(0, 120, 8):
        samples = [{"x": x, "y": y} for x, y in rows[first : first + 8]]
        answer = client.post("/models/m/learn", json={"samples": samples})
        assert answer.status_code == 200, answer.text
        got += answer.json()["mistakes"]
    assert got == mistakes
    metrics = client.get("/models/m/metrics").json()["since_start"]
    assert metrics["error_rate"] == mistakes / 120
    assert metrics["error_rate"] < metrics["baselines"]["most_frequent"]["error_rate"]
    many = client.post("/models/m/predict", json={"samples": [{"x": x} for x, _ in rows[-20:]]})
    result = learner.predict_classes(batch[100:120])
    expected = [json.loads(result.classes[best]) for best in result.best.tolist()]
    assert many.json()["labels"] == expected
    assert many.json()["probabilities"][0] == pytest.approx(float(result.probabilities[0].max()))
    one = client.get("/models/m/predict?x=1:0.5").json()
    assert one["label"] in ["red", 1, "1", True, 2]
    weights = client.get("/models/m/weights?top=3").json()
    assert len(weights["intercept"]) == 5 and weights["weights"][0]["label"] in expected
    assert client.get("/metrics").status_code == 200
    assert client.get("/models/m/certificate").json()["gap"] >= 0

    async def load() -> Replica:
        journal = await open_journal(store)
        try:
            replica = Replica(await journal.get("m"), ALL)
            await recover(replica, journal)
            return replica
        finally:
            await journal.close()

    fresh = {k: v.tobytes() for k, v in asyncio.run(load()).learner.state().items()}
    assert fresh == {k: v.tobytes() for k, v in learner.state().items()}


def test_multiclass_libsvm_labels_are_classes(client):
    client.put("/models/m", json=CLASSES)
    text = "3 1:1\n3.0 1:1\nblue 2:1\n-1 3:1\n"
    got = client.post("/models/m/learn", content=text, headers={"content-type": "text/x-libsvm"})
    assert got.json()["learned"] == 4
    learner = client.app._registry.find("m").replica.learner
    assert learner.classes == ("3", '"blue"', "-1")


def test_too_long_and_missing_classes_are_refused(client):
    client.put("/models/m", json=CLASSES)
    for y in ("c" * (LONGEST_NAME + 1), None, {"a": 1}):
        answer = client.post("/models/m/learn", json={"x": [1, 0, 0], "y": y})
        assert_problem(answer, 422, "invalid-rows")
    empty = client.get("/models/m/predict?x=1:1").json()
    assert empty["label"] is None and empty["score"] == 0


def test_support_of_a_sparse_model_and_of_none(client):
    spec = {
        "algorithm": "rda",
        "loss": "logistic",
        "regularizer": {"kind": "l1", "lambda": 0.05},
        "features": {"kind": "indexed", "dim": 6},
    }
    assert client.put("/models/sparse", json=spec).status_code == 201
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    body = {"x": x.tolist(), "y": (x[:, 1] > 0).astype(int).tolist()}
    assert client.post("/models/sparse/learn", json=body).json()["learned"] == 300
    got = client.get("/models/sparse/support").json()
    assert 2 in [feature["index"] for feature in got["features"]]
    assert 0 <= got["unchanged_since"] <= 300 and got["changes_per_1000"] > 0
    assert "local_phases" not in got
    client.put("/models/plus", json=spec | {"algorithm": "rda_plus", "stable": 5, "retain": 100})
    client.post("/models/plus/learn", json=body)
    phases = client.get("/models/plus/support").json()["local_phases"]
    assert phases["accepted"] + phases["refused"] + phases["unsolved"] >= 1
    assert phases["delta"] >= 0.0 and phases["max_features"] == 500
    scraped = client.get("/metrics").text
    assert 'dualstream_local_phases_total{model="plus",outcome="accepted"} ' in scraped
    assert 'dualstream_optimality_delta{model="plus"}' in scraped
    assert_problem(client.get("/models/sparse/certificate"), 404, "no-certificate")
    client.put("/models/dense", json=CLASSES | {"task": "binary"})
    assert_problem(client.get("/models/dense/support"), 404, "no-support")


SPECS = [
    {"algorithm": "dc"},
    {"algorithm": "rda"},
    {"algorithm": "rda_plus", "loss": "logistic"},
    {"algorithm": "sgd"},
    {"algorithm": "spg"},
    {"algorithm": "truncated_gradient"},
    {"algorithm": "fobos"},
    {"algorithm": "asset", "map": {"kind": "fourier", "components": 16, "gamma": 0.5}},
    {"algorithm": "ogd"},
    {"algorithm": "perceptron"},
    {"algorithm": "romma"},
    {"algorithm": "alma"},
    {"algorithm": "passive_aggressive"},
    {"algorithm": "dual_ascent", "scaling": "balanced", "norm": "row", "strength": 30},
    {"algorithm": "dual_ascent", "replay": {"steps": 3}, "window": "exponential"},
    {"algorithm": "dual_ascent", "replay": {"until_gap": 0.1, "max_steps": 4, "every": 25}},
    {"algorithm": "dual_ascent", "regularizer": {"kind": "elastic_net", "delta": 0.1}},
    {"algorithm": "dual_ascent", "regularizer": "entropy", "rho": 0.1},
]


@pytest.mark.parametrize("given", SPECS, ids=lambda spec: "-".join(map(str, spec.values())))
def test_every_algorithm_is_served(serve, store, given):
    client = serve(store=store, snapshot_every=40)
    spec = {"features": {"kind": "indexed", "dim": 4}} | given
    assert client.put("/models/m", json=spec).status_code == 201
    x = np.random.default_rng(2).standard_normal((120, 4))
    y = (x[:, 0] + 0.5 * x[:, 2] > 0).astype(int)
    for first in range(0, 120, 17):
        body = {"x": x[first : first + 17].tolist(), "y": y[first : first + 17].tolist()}
        answer = client.post("/models/m/learn", json=body)
        assert answer.status_code == 200 and answer.json()["rejected"] == 0, answer.text
    learner = make_learner(resolve_spec(spec))
    learner.learn(Batch.from_dense(x, np.where(y > 0, 1.0, -1.0)))
    served = client.app._registry.find("m").replica.learner.state()
    assert {k: v.tobytes() for k, v in served.items()} == {
        k: v.tobytes() for k, v in learner.state().items()
    }
    for path in ("/weights", "/metrics", "/predict?x=1:1"):
        assert client.get(f"/models/m{path}").status_code == 200
    assert client.get("/metrics").status_code == 200


def test_long_names_count_as_memory_whichever_came_first():
    names = FeatureNames()
    names.keep((index, f"n{index}" + 900 * "x" * (index >= 64)) for index in range(1000))
    names.keep([(0, 5000 * "x")])  # the place has one
    restored = FeatureNames()
    restored.restore(names.state())
    for kept in (names, names.copy(), restored):
        assert 900 * 936 < bytes_of(kept) < 1_100_000
    restored.restore({})
    assert bytes_of(restored) < 500
