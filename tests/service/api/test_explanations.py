"""`explain=true` of all prediction routes, and GET curves."""

import math
import threading
from functools import partial

import numpy as np
import pytest

from dualstream.service.api import explanations
from dualstream.solvers import explain
from dualstream.solvers.protocols.curves import curves_of
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.wire.schemas import MAX_EXPLAINED
from tests.service.conftest import assert_problem

MODELS = {
    "full": {},
    "fast": {"members": "fast"},
    "numbers": {"task": "regression"},
    "shared": {"task": "multiclass"},
    "classes": {"task": "multiclass", "members": [{"algorithm": "splines"}, {"kind": "stack"}]},
    "boosted": {"algorithm": "boosted", "window": 100, "renewal": 10},
    "net": {"algorithm": "net"},
    "splines": {"algorithm": "splines"},
    "linear": {"algorithm": "sgd", "scaling": "balanced", "norm": "row"},
}
NAMES = ("age", "hour", "price")


def rows_of(spec, n=200):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(n, 3)).round(6)
    signal = np.sin(2.0 * values[:, 0]) * values[:, 1]
    labels = {
        "binary": (signal > 0.0).astype(int),
        "regression": signal.round(6),
        "multiclass": np.where(signal > 0.2, "up", np.where(signal < -0.2, "down", "flat")),
    }[spec.get("task", "binary")]
    xs = [dict(zip(NAMES, row, strict=True)) for row in values.tolist()]
    return [{"x": x, "y": y} for x, y in zip(xs, labels.tolist(), strict=True)]


def make(client, spec):
    """The model `m`, which has learned named rows; returns them and its Model."""
    assert client.put("/models/m", json=spec).status_code == 201
    rows = rows_of(spec)
    assert client.post("/models/m/learn", json={"samples": rows}).status_code == 200
    return [row["x"] for row in rows], client.app._registry.find("m")


def total(explanation):
    listed = (one["contribution"] for one in explanation["contributions"])
    return math.fsum([explanation["base"], explanation["rest"], *listed])


@pytest.mark.parametrize("name", MODELS)
def test_every_route_explains_every_model(client, name):
    rows, model = make(client, MODELS[name])
    x = rows[5]
    digest = client.get("/models/m?digest=true").json()["state_digest"]
    plain = client.post("/models/m/predict", json={"x": x}).json()
    assert "explanation" not in plain
    one = client.post("/models/m/predict?explain=true", json={"x": x}).json()
    explanation = one.pop("explanation")
    assert one == plain
    assert total(explanation) == pytest.approx(one["score"], rel=1e-9, abs=1e-12)
    listed = explanation["contributions"]
    assert {result["name"] for result in listed} <= set(NAMES) and len(listed) >= 2
    sizes = [abs(result["contribution"]) for result in listed]
    assert sizes == sorted(sizes, reverse=True) and explanation["rest"] == 0.0
    query = "&".join(f"x.{key}={value!r}" for key, value in x.items())
    for path in ("/models/m/predict?", "/predict?model=m&"):
        assert client.get(f"{path}explain=true&{query}").json()["explanation"] == explanation
        assert "explanation" not in client.get(f"{path}explain=false&{query}").json()
    bad = {"x": {"age": "NaN-is-text", "hour": None}}
    samples = {"samples": [{"x": x}, bad, {"x": rows[6]}]}
    many = client.post("/models/m/predict?explain=true", json=samples).json()
    assert many["explanations"][0] == explanation and many["explanations"][1] is None
    assert total(many["explanations"][2]) == pytest.approx(many["scores"][2], rel=1e-9)
    assert client.get("/models/m?digest=true").json()["state_digest"] == digest
    client.post("/models/m/versions", json={"name": "v"})
    client.post("/models/m/learn", json={"samples": rows_of(MODELS[name], 20)})
    old = client.post("/models/m/predict?explain=true&version=v", json={"x": x}).json()
    assert old["explanation"] == explanation


def test_indexed_features_and_the_rest_of_long_rows(client, monkeypatch):
    spec = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 5}}
    client.put("/models/m", json=spec)
    client.post("/models/m/learn", json={"x": [[1, 2, 0, 4, 5]], "y": [1]})
    row = {"x": [1, 2, 0, 4, 5]}
    whole = client.post("/models/m/predict?explain=true", json=row).json()
    listed = whole["explanation"]["contributions"]
    assert [one["index"] for one in listed] == [5, 4, 2, 1] and "name" not in listed[0]
    monkeypatch.setattr(explanations, "MAX_LISTED", 1)
    short = client.post("/models/m/predict?explain=true", json=row).json()["explanation"]
    assert short["contributions"] == listed[:1]
    assert short["rest"] == pytest.approx(sum(one["contribution"] for one in listed[1:]))
    assert total(short) == pytest.approx(whole["score"], rel=1e-9)


def test_past_targets_have_a_name_and_a_value(client):
    members = [{"algorithm": "boosted", "window": 128}]
    client.put("/models/m", json={"task": "regression", "members": members})
    sums = np.cumsum(np.random.default_rng(0).normal(size=400)).tolist()
    client.post("/models/m/learn", json={"samples": [{"x": {"age": 1}, "y": y} for y in sums]})
    answer = client.post("/models/m/predict?explain=true", json={"x": {"age": 1}}).json()
    shown = {one.get("name"): one for one in answer["explanation"]["contributions"]}
    assert shown["label.1"]["value"] == sums[-1] and "value" not in shown.get("age", {})
    assert total(answer["explanation"]) == pytest.approx(answer["score"], rel=1e-9)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"algorithm": "neighbours"}, "neighbours has no explanations: it compares whole rows"),
        ({"algorithm": "boosted", "task": "multiclass"}, "one learner scores all classes"),
        ({"map": {"kind": "fourier", "components": 8}}, "its map mixes features"),
        ({"algorithm": "semiparametric", "task": "regression", "basis": ["constant"]}, "kernel"),
    ],
)
def test_models_without_explanations_refuse_by_name(client, spec, reason):
    features = {"kind": "indexed", "dim": 3}
    assert client.put("/models/m", json=spec | {"features": features}).status_code == 201
    answer = client.post("/models/m/predict?explain=true", json={"x": [1, 0, 2]})
    problem = assert_problem(answer, 409, "no-explanation")
    assert reason in problem["detail"] and problem["detail"].endswith("omit explain")


def test_bad_requests(model):
    rows = {"x": [[1, 0, 0, 0, 0]] * (MAX_EXPLAINED + 1)}
    answer = model.post("/models/m/predict?explain=true", json=rows)
    assert "up to 20 rows, got 21" in assert_problem(answer, 422, "invalid-query")["detail"]
    assert model.post("/models/m/predict", json=rows).status_code == 200
    answer = model.get("/models/m/predict?x=1:1&explain=maybe")
    assert_problem(answer, 422, "invalid-query")
    assert_problem(model.get("/models/m/curves"), 404, "no-curves")
    assert_problem(model.get("/models/none/curves"), 404, "unknown-model")


@pytest.mark.parametrize("place", ["score", "base", "contributions"])
def test_numbers_that_are_not_finite_have_no_explanation(place):
    fields = {"score": 3.0, "base": 1.0, "contributions": np.array([2.0])}
    view = partial(explanations._view_of, name_of={0: "age"}.get)
    assert view(Explanation(features=np.array([0]), **fields)).contributions[0].name == "age"
    fields[place] = fields[place] * math.inf
    assert view(Explanation(features=np.array([0]), **fields)) is None


def test_curves_are_those_of_the_learner(client):
    _, model = make(client, {"algorithm": "splines"})
    answer = client.get("/models/m/curves")
    result = answer.json()
    (curves,) = curves_of(model.replica.learner)
    by_index = {curve.feature + 1: curve for curve in curves}
    assert result["seq"] == 200 and len(result["curves"]) == 3
    for one in result["curves"]:
        curve = by_index[one["index"]]
        assert one["x"] == curve.knots.tolist() and one["y"] == curve.heights.tolist()
        assert one["range"] == max(one["y"]) - min(one["y"]) and one["name"] in NAMES
    ranges = [one["range"] for one in result["curves"]]
    assert ranges == sorted(ranges, reverse=True)
    assert client.get("/models/m/curves?top=1").json()["curves"] == result["curves"][:1]
    same = client.get("/models/m/curves", headers={"if-none-match": answer.headers["etag"]})
    assert same.status_code == 304


def test_curves_of_members_and_classes(client):
    members = [{"name": "bends", "algorithm": "splines"}, {"name": "deep", "algorithm": "net"}]
    make(client, {"members": members})
    result = client.get("/models/m/curves?member=bends").json()
    assert result["member"] == "bends" and len(result["curves"]) == 3
    assert client.get("/models/m/curves").json()["curves"] == result["curves"]
    refused = client.get("/models/m/curves?member=deep")
    assert "member 'deep' has no curves" in assert_problem(refused, 404, "no-curves")["detail"]
    assert_problem(client.get("/models/m/curves?member=no"), 404, "unknown-member")
    client.delete("/models/m")
    make(client, MODELS["classes"])
    result = client.get("/models/m/curves").json()["curves"]
    assert {one["label"] for one in result} == {"up", "down", "flat"} and len(result) == 9


def test_explaining_does_not_run_in_the_event_loop(client, monkeypatch):
    make(client, {"algorithm": "splines"})
    threads = []

    def seen(learner, row):
        threads.append(threading.current_thread().name)
        return explain(learner, row)

    monkeypatch.setattr(explanations, "explain", seen)
    client.post("/models/m/predict?explain=true", json={"samples": [{"x": {"age": 1}}] * 3})
    assert len(threads) == 3 and all(name.startswith("views") for name in threads)


def test_past_targets_are_named_after_the_features(client):
    spec = {"task": "regression", "features": {"kind": "indexed", "dim": 2}}
    assert client.put("/models/m", json=spec).status_code == 201
    targets = np.cumsum(np.random.default_rng(4).normal(size=400)).round(6).tolist()
    rows = [{"x": [i % 5, 1.0], "y": y} for i, y in enumerate(targets)]
    assert client.post("/models/m/learn", json={"samples": rows}).status_code == 200
    answered = client.post("/models/m/predict?explain=true", json={"x": [1.0, 1.0]}).json()
    names = {one["index"]: one.get("name") for one in answered["explanation"]["contributions"]}
    assert names[3] == "label.1"
    assert names.get(4, "label.1-label.2") == "label.1-label.2"
    assert {names.get(index) for index in (1, 2)} == {None}
