"""GET /models/{id}/confusion, and the `top` classes of a prediction."""

import json
from collections import Counter

import numpy as np
import pytest

from tests.service.conftest import SPEC, assert_problem

CLASSES = SPEC | {"task": "multiclass", "loss": "logistic"}


def rows(n, names="abcde", seed=0):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 5))
    labels = [names[k % len(names)] for k in (x + 0.5 * draw.normal(size=x.shape)).argmax(axis=1)]
    return [{"x": row, "y": label} for row, label in zip(x.round(3).tolist(), labels, strict=True)]


def confusion(client, query="", model="m"):
    answer = client.get(f"/models/{model}/confusion{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_last_rows_are_counted_by_class_and_predicted_class(serve):
    client = serve()
    client.put("/models/m", json=CLASSES)
    assert confusion(client)["counts"] == [[0]]
    # One row a request: the label that predict answers is what the row counts as.
    truth, guesses, sent = [], [], rows(40)
    for row in sent:
        guesses.append(client.post("/models/m/predict", json={"x": row["x"]}).json()["label"])
        truth.append(row["y"])
        client.post("/models/m/learn", json=row)
    found = confusion(client)
    frequent = Counter(truth) + Counter(one for one in guesses if one is not None)
    assert sorted(found["classes"]) == sorted(frequent)
    assert [frequent[one] for one in found["classes"]] == sorted(frequent.values(), reverse=True)
    named = [*found["classes"], None]
    pairs = Counter(zip(truth, guesses, strict=True))
    assert found["rows"] == 40 and pairs[truth[0], None] == 1
    for i, label in enumerate(named):
        assert found["counts"][i] == [pairs[label, guess] for guess in named]
    # Others are one class; what left the last 1,000 rows no longer counts.
    few = confusion(client, "?top=2")
    assert few["classes"] == found["classes"][:2] and np.sum(few["counts"]) == 40
    client.post("/models/m/learn", json={"samples": rows(1_500, "xyz", seed=1)})
    last = confusion(client)
    assert sorted(last["classes"]) == ["x", "y", "z"] and last["rows"] == 1_000
    rolling = client.get("/models/m/metrics").json()["rolling"]
    right = sum(last["counts"][k][k] for k in range(3))
    assert 1.0 - right / 1_000 == pytest.approx(rolling["error_rate"])
    assert confusion(serve()) == last  # from the snapshot and the journal
    assert_problem(client.get("/models/m/confusion?top=0"), 422, "invalid-request")


def test_two_classes_have_a_calibration(client):
    client.put("/models/m", json=SPEC | {"loss": "logistic", "labels": ["no", "yes"]})
    sent = [row | {"y": "yes" if row["y"] in "ab" else "no"} for row in rows(300)]
    client.post("/models/m/learn", json={"samples": sent})
    found = confusion(client)
    assert found["classes"] == ["no", "yes"]
    positives = sum(row["y"] == "yes" for row in sent)
    assert sum(found["counts"][1]) == positives
    calibration = found["calibration"]
    assert calibration["positive_rate"] == pytest.approx(positives / 300)
    assert (
        0.0 < abs(calibration["mean_probability"] - positives / 300) <= calibration["error"] < 0.3
    )
    client.put("/models/hinge", json=SPEC)
    assert "calibration" not in confusion(client, model="hinge")
    client.put("/models/number", json=SPEC | {"task": "regression", "loss": "squared"})
    assert_problem(client.get("/models/number/confusion"), 404, "no-classes")


def test_predictions_name_the_most_probable_classes(client):
    client.put("/models/m", json=CLASSES)
    x = [1, 0, 0.5, 0, -1]
    assert client.post("/models/m/predict?top=3", json={"x": x}).json()["top"] == []
    client.post("/models/m/learn", json={"samples": rows(200)})
    one = client.post("/models/m/predict?top=3", json={"x": x}).json()
    best = one["top"]
    assert len(best) == 3
    assert {key: one[key] for key in ("label", "score", "probability")} == best[0]
    assert [row["score"] for row in best] == sorted((row["score"] for row in best), reverse=True)
    body = {"samples": [{"x": x}, {"x": "bad"}, {"x": x}]}
    assert client.post("/models/m/predict?top=3", json=body).json()["top"] == [best, None, best]
    query = "x=" + ",".join(f"{k + 1}:{value}" for k, value in enumerate(x))
    assert client.get(f"/models/m/predict?{query}&top=9").json()["top"][:3] == best
    assert "top" not in json.loads(client.post("/models/m/predict", json={"x": x}).text)
    client.put("/models/two", json=SPEC)
    answer = client.post("/models/two/predict?top=3", json={"x": x})
    assert "task multiclass" in assert_problem(answer, 422, "invalid-query")["detail"]
