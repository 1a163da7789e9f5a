"""What learn, predict, metrics, weights and certificate answer, against the library itself."""

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from dualstream.solvers import Batch, jit, make_learner, resolve_spec
from tests.service.conftest import SPEC, assert_problem

ROWS = [
    ([1, 0, 0.5, 0, 0], 1),
    ([0, 2, 0, 0, 1], -1),
    ([0, 0, 0, 0, 0], -1),
    ([1, 1, 0, 0, -3], 1),
    ([0, 0, 0.25, 7, 0], -1),
]


def batch_of(rows) -> Batch:
    return Batch.from_dense([x for x, _ in rows], [y for _, y in rows])


@pytest.fixture
def learned():
    """A learner of the library that saw ROWS, and what learning them did."""
    learner = make_learner(resolve_spec(SPEC))
    return learner, learner.learn(batch_of(ROWS))


def test_single_sample_answers_its_progressive_score(model):
    learner = make_learner(resolve_spec(SPEC))
    for seq, (x, y) in enumerate(ROWS, start=1):
        outcome = learner.learn(batch_of([(x, y)]))
        got = model.post("/models/m/learn", json={"x": x, "y": y}).json()
        score = float(outcome.scores[0])
        assert got == {
            "model": "m",
            "seq": seq,
            "count": 1,
            "learned": 1,
            "mistakes": int((score >= 0) != (y > 0)),
            "loss": float(outcome.losses[0]),
            "rejected": 0,
            "duplicate": False,
            "scores": [score],
        }


def test_many_samples_answer_their_sums(model, learned):
    _, outcome = learned
    body = {"samples": [{"x": x, "y": y} for x, y in ROWS]}
    got = model.post("/models/m/learn", json=body).json()
    assert "scores" not in got
    assert (got["seq"], got["count"], got["learned"]) == (5, 5, 5)
    assert got["loss"] == sum(outcome.losses.tolist()) / 5
    labels = np.array([y for _, y in ROWS])
    assert got["mistakes"] == int(np.sum((outcome.scores >= 0) != (labels > 0)))


def test_formats_of_the_same_rows_give_the_same_bits(client):
    columns = {"x": [x for x, _ in ROWS], "y": [y for _, y in ROWS]}
    samples = {"samples": [{"x": x, "y": y} for x, y in ROWS]}
    named = {
        "samples": [
            {"x": {str(j + 1): v for j, v in reversed(list(enumerate(x)))}, "y": y} for x, y in ROWS
        ]
    }
    lines = "\n".join(
        f"{y} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(x) if v) for x, y in ROWS
    )
    weights = []
    for name, body in {"columns": columns, "samples": samples, "named": named}.items():
        client.put(f"/models/{name}", json=SPEC)
        assert client.post(f"/models/{name}/learn", json=body).json()["learned"] == 5
        weights.append(client.get(f"/models/{name}/weights").json() | {"model": ""})
    client.put("/models/libsvm", json=SPEC)
    client.post("/models/libsvm/learn", content=lines, headers={"content-type": "text/x-libsvm"})
    weights.append(client.get("/models/libsvm/weights").json() | {"model": ""})
    assert all(got == weights[0] for got in weights)


def test_predict_forms_agree_with_the_library(model, learned):
    learner, _ = learned
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    scores = learner.predict(batch_of(ROWS)).tolist()
    many = model.post("/models/m/predict", json={"samples": [{"x": x} for x, _ in ROWS]})
    assert many.json() == {
        "model": "m",
        "seq": 5,
        "scores": scores,
        "labels": [int(score >= 0) for score in scores],
        "probabilities": None,
    }
    for (x, _), score in zip(ROWS, scores, strict=True):
        pairs = ",".join(f"{j + 1}:{v}" for j, v in enumerate(x) if v)
        got = {
            "model": "m",
            "seq": 5,
            "score": score,
            "label": int(score >= 0),
            "probability": None,
        }
        one = model.get(f"/models/m/predict?x={pairs}")
        assert one.json() == got
        assert one.headers["etag"] == model.get("/models/m").headers["etag"]
        assert model.get("/predict", params={"model": "m", "x": pairs}).json() == got
        assert model.post("/models/m/predict", json={"x": x}).json() == got


def test_probabilities_of_logistic_loss(client):
    client.put("/models/p", json=SPEC | {"loss": "logistic"})
    client.post("/models/p/learn", json={"x": [1, 0, 0, 0, 0], "y": 1})
    got = client.get("/models/p/predict?x=1:2").json()
    assert got["probability"] == pytest.approx(1 / (1 + math.exp(-got["score"])), rel=1e-15)


def test_predict_refuses_bad_rows_alone(model):
    got = model.post("/models/m/predict", json={"samples": [{"x": {"9": 1}}, {"x": {"1": 1}}]})
    assert got.json()["scores"] == [None, 0.0]
    assert got.json()["rejected"] == 1
    bad = model.post("/models/m/predict", json={"x": {"9": 1}})
    assert_problem(bad, 422, "invalid-rows")


def test_regression_has_no_mistakes_and_no_labels(client):
    client.put("/models/r", json=SPEC | {"task": "regression", "loss": "squared"})
    got = client.post("/models/r/learn", json={"x": [1, 0, 0, 0, 0], "y": 3.5}).json()
    assert got["mistakes"] is None and got["loss"] == 3.5**2 / 2
    assert client.get("/models/r/predict?x=1:1").json()["label"] is None
    refused = client.post("/models/r/learn", json={"x": [1, 0, 0, 0, 0], "y": "3.5"})
    assert_problem(refused, 422, "invalid-rows")


def test_weight_zero_is_scored_and_counted_and_touches_nothing(model):
    model.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1})
    before = model.get("/models/m/weights").json()
    got = model.post("/models/m/learn", json={"x": [2, 0, 0, 0, 0], "y": -1, "weight": 0}).json()
    assert got["learned"] == 1 and got["mistakes"] == 1
    after = model.get("/models/m/weights").json()
    assert after == before | {"seq": 2}
    assert model.get("/models/m/metrics").json()["samples"] == 2


def test_duplicate_is_answered_as_the_first_time(model):
    body = {"x": [1, 0, 0, 0, 0], "y": 1}
    headers = {"idempotency-key": "once"}
    answer = model.post("/models/m/learn", json=body, headers=headers)
    first = answer.json()
    assert first["duplicate"] is False and "idempotency-replayed" not in answer.headers
    model.post("/models/m/learn", json=body)
    again = model.post("/models/m/learn", json=body, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first | {"duplicate": True}
    # What is asked for of the answer is no part of the request.
    again = model.post("/models/m/learn?scores=true", json=body, headers=headers)
    assert again.json() == first | {"duplicate": True}
    assert model.get("/models/m").json()["seq"] == 2


def test_every_learn_answer_names_the_durability(model, monkeypatch):
    answer = model.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1})
    assert answer.headers["dualstream-durability"] == "normal"
    verbose = model.get("/readyz?verbose").json()
    assert verbose["durability"] == "normal" and verbose["ready"] is True
    for is_complete in (True, False):
        monkeypatch.setattr(jit, "is_complete", lambda is_complete=is_complete: is_complete)
        assert model.get("/readyz?verbose").json()["compiling"] is not is_complete


def test_certificate_is_the_librarys(model, learned):
    learner, _ = learned
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    got = model.get("/models/m/certificate").json()
    certificate = learner.certificate()
    for name in ("primal", "dual", "gap", "relative_gap", "rows", "weight_share", "estimate"):
        assert got[name] == getattr(certificate, name)
    assert got["gap"] >= 0 and got["seq"] == 5


def test_metrics_compare_with_both_baselines(model):
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    got = model.get("/models/m/metrics").json()["since_start"]
    # Labels + - - + -. Majority so far: none (negative), +, + (tie: first seen), -, + (tie).
    assert model.get("/models/m/metrics").json()["rows"] == 5
    assert got["baselines"]["most_frequent"]["error_rate"] == 1
    assert got["baselines"]["last_label"]["error_rate"] == 4 / 5


def test_metrics_have_the_ranking_of_the_scores_before_learning(model, learned):
    _, outcome = learned
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    got = model.get("/models/m/metrics").json()
    positive = [y == 1 for _, y in ROWS]
    for view in ("since_start", "rolling"):
        assert got[view]["auc"] == pytest.approx(roc_auc_score(positive, outcome.scores))
        precision = average_precision_score(positive, outcome.scores)
        assert got[view]["average_precision"] == pytest.approx(precision)
    assert "auc" not in got["fading"]


def test_weights_are_the_largest_first(model, learned):
    learner, _ = learned
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    got = model.get("/models/m/weights?top=2").json()
    order = sorted(range(5), key=lambda j: -abs(learner.weights[j]))[:2]
    assert got["weights"] == [{"index": j + 1, "weight": learner.weights[j]} for j in order]
    assert got["intercept"] == learner.intercept
    assert got["nonzeros"] == learner.nonzeros


def test_prometheus_tells_the_same_as_metrics(model):
    model.post("/models/m/learn", json={"samples": [{"x": x, "y": y} for x, y in ROWS]})
    model.post("/models/m/learn", json={"x": [1], "y": 1})
    shown = {}
    for line in model.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            shown[name] = float(value)
    got = model.get("/models/m/metrics").json()["since_start"]
    certificate = model.get("/models/m/certificate").json()
    assert shown['dualstream_samples_total{model="m",outcome="learned"}'] == 5
    assert shown['dualstream_samples_total{model="m",outcome="rejected"}'] == 0
    assert shown['dualstream_refused_rows_total{model="m"}'] == 1
    assert shown['dualstream_seq{model="m"}'] == 5
    assert shown['dualstream_progressive_loss{model="m"}'] == got["loss"]
    assert shown['dualstream_progressive_error_ratio{model="m"}'] == got["error_rate"]
    rolling = model.get("/models/m/metrics").json()["rolling"]
    for figure in ("auc", "average_precision"):
        assert shown[f'dualstream_progressive_{figure}{{model="m"}}'] == got[figure]
        assert shown[f'dualstream_rolling_{figure}{{model="m"}}'] == rolling[figure]
    for baseline, values in got["baselines"].items():
        name = f'dualstream_baseline_error_ratio{{baseline="{baseline}",model="m"}}'
        assert shown[name] == values["error_rate"]
    for name in ("gap", "primal", "dual"):
        assert shown[f'dualstream_{name}{{model="m"}}'] == certificate[name]
    assert shown['dualstream_gap_ratio{model="m"}'] == certificate["relative_gap"]
    assert 0 <= shown['dualstream_gap_age_seconds{model="m"}'] < 15
    assert shown["dualstream_append_duration_seconds_count"] == 1
    requests = "dualstream_request_duration_seconds_count"
    assert shown[f'{requests}{{method="POST",route="learn",status="422"}}'] == 1
    put = 'method="PUT",route="/models/{model_id}",status="201"'
    assert shown[f"{requests}{{{put}}}"] == 1


def test_put_of_the_same_spec_is_200_in_any_form(client):
    assert client.put("/models/m", json=SPEC).status_code == 201
    assert client.put("/models/m", json=dict(reversed(SPEC.items()))).status_code == 200
    whole = client.get("/models/m").json()["spec"]
    assert client.put("/models/m", json=whole).status_code == 200
    assert client.put("/models/m", json=SPEC | {"rho": 0.001}).status_code == 200


def test_list_is_paged_and_delete_removes(client):
    for name in ("b", "a", "c"):
        client.put(f"/models/{name}", json=SPEC)
    page = client.get("/models?limit=2").json()
    assert [model["id"] for model in page["models"]] == ["a", "b"] and page["next"] == "b"
    page = client.get("/models?limit=2&after=b").json()
    assert [model["id"] for model in page["models"]] == ["c"] and page["next"] is None
    assert client.delete("/models/b").status_code == 204
    assert client.get("/models/b").status_code == 404
    assert [m["id"] for m in client.get("/models").json()["models"]] == ["a", "c"]


def test_recreated_model_starts_empty(model):
    model.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1})
    model.delete("/models/m")
    assert model.put("/models/m", json=SPEC).status_code == 201
    got = model.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1}).json()
    assert got["seq"] == 1 and got["scores"] == [0.0]


def test_long_bodies_are_read_beside_the_event_loop(client):
    client.put("/models/m", json=SPEC)
    rows = [{"x": [1, 0, 0.5, k % 7, 0], "y": k % 2} for k in range(6000)]
    got = client.post("/models/m/learn", json={"samples": [*rows, {"x": [1], "y": 1}]}).json()
    assert (got["learned"], got["rejected"]) == (6000, 1)
    learner = make_learner(resolve_spec(SPEC))
    learner.learn(Batch.from_dense([r["x"] for r in rows], [r["y"] for r in rows]))
    weights = client.get("/models/m/weights").json()["weights"]
    assert weights[0]["weight"] in learner.weights.tolist()
    assert client.post("/models/m/predict", json={"samples": rows}).json()["seq"] == 6000
