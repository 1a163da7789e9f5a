"""The Open Inference Protocol answers what predict does."""

import pytest

from tests.service.conftest import assert_problem

ROWS = [[1.0, 0.0, 0.5], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
INDEXED = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "indexed", "dim": 3}}
X = {"name": "x", "datatype": "FP64", "shape": [3, 3], "data": ROWS}


def infer(client, *inputs: dict, **more):
    return client.post("/v2/models/m/infer", json={"inputs": list(inputs), **more})


def outputs_of(answer) -> dict:
    assert answer.status_code == 200, answer.text
    got = answer.json()["outputs"]
    assert all(one["shape"] == [len(one["data"])] for one in got)
    return {one["name"]: one["data"] for one in got}


def described(client) -> dict[str, str]:
    got = client.get("/v2/models/m").json()
    return {one["name"]: one["datatype"] for one in got["outputs"]}


@pytest.mark.parametrize(
    ("spec", "labels", "kind"),
    [
        (INDEXED, [1, 0, 1], "INT64"),
        (INDEXED | {"labels": ["no", "yes"]}, ["yes", "no", "yes"], "BYTES"),
        (INDEXED | {"task": "multiclass"}, [7, 8, 9], "INT64"),
        (INDEXED | {"task": "multiclass"}, ["a", True, "c"], "BYTES"),
        (INDEXED | {"task": "regression", "loss": "squared"}, [1.5, 2.0, 0.0], None),
    ],
)
def test_infer_answers_what_predict_does(client, spec, labels, kind):
    client.put("/models/m", json=spec)
    body = {"x": ROWS * 20, "y": labels * 20}
    assert client.post("/models/m/learn", json=body).status_code == 200
    expected = client.post("/models/m/predict", json={"x": ROWS}).json()
    flat = X | {"data": [value for row in ROWS for value in row]}
    for case in (X, flat):
        answer = infer(client, case, id="q")
        got = outputs_of(answer)
        assert got["scores"] == expected["scores"]
        assert got.get("probabilities") == expected["probabilities"]
        names = expected["labels"]
        if kind == "BYTES":
            names = [name if isinstance(name, str) else "true" for name in names]
        assert got.get("labels") == (None if kind is None else names)
    document = answer.json()
    assert (document["model_name"], document["id"]) == ("m", "q")
    assert document["parameters"] == {"seq": 60}
    assert answer.headers["etag"] == client.get("/models/m").headers["etag"]
    assert described(client).get("labels") == kind
    assert {one["name"]: one["datatype"] for one in document["outputs"]} == described(client)
    inputs = client.get("/v2/models/m").json()["inputs"]
    assert inputs == [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}]
    only = infer(client, X, outputs=[{"name": "scores"}])
    assert list(outputs_of(only)) == ["scores"]


def test_features_by_name_are_inputs_of_their_own(client):
    client.put("/models/m", json=INDEXED | {"features": {"kind": "hashed", "bits": 10}})
    samples = [{"x": {"age": 3, "city": "Oslo"}, "y": 1}, {"x": {"age": 1, "new": True}, "y": 0}]
    assert client.post("/models/m/learn", json={"samples": samples}).status_code == 200
    rows = [{"age": 2, "city": "Oslo", "new": False}, {"age": 5, "city": "Rome", "new": True}]
    expected = client.post("/models/m/predict", json={"samples": [{"x": x} for x in rows]}).json()
    got = infer(
        client,
        {"name": "age", "datatype": "INT64", "shape": [2], "data": [2, 5]},
        {"name": "city", "datatype": "BYTES", "shape": [2, 1], "data": [["Oslo"], ["Rome"]]},
        {"name": "new", "datatype": "BOOL", "shape": [2], "data": [False, True]},
    )
    assert outputs_of(got)["scores"] == expected["scores"]
    listed = [one["name"] for one in client.get("/v2/models/m").json()["inputs"]]
    assert sorted(listed) == ["age", "city=Oslo", "new"]


def test_ignored_keys_of_a_history_are_inputs(client):
    types = {"card": "ignore", "note": "ignore", "amount": "number"}
    history = [{"by": "card", "of": "amount", "stats": "last"}]
    client.put("/models/h", json={"columns": {"types": types}, "history": history})
    listed = {one["name"]: one["datatype"] for one in client.get("/v2/models/h").json()["inputs"]}
    assert listed == {"amount": "FP64", "card": "BYTES"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shape": [3, 2], "data": [0.5] * 6}, "of shape [rows, 3]"),
        ({"shape": [2, 3]}, "do not have shape [2, 3]"),
        ({"datatype": "BYTES", "data": ["a"] * 9}, "must have a numeric datatype"),
        ({"data": [[1, 2], [3]]}, "do not have shape"),
        ({"data": [None] * 9}, "3 of 3 rows refused"),
        ({"shape": [0, 3], "data": []}, "the request has no rows"),
    ],
)
def test_other_tensors_are_refused(client, changes, why):
    client.put("/models/m", json=INDEXED)
    answer = infer(client, X | changes)
    assert why in answer.json()["error"] and answer.status_code == 422


def test_a_refused_row_points_to_an_input_of_the_request(client):
    def refused(*inputs):
        document = assert_problem(infer(client, *inputs), 422, "invalid-rows")
        return [(error["index"], error["pointer"]) for error in document["errors"]]

    client.put("/models/m", json=INDEXED)
    assert refused(X | {"data": [*ROWS[:2], [0.0, 1e200, 0.0]]}) == [(2, "/inputs/0")]
    client.delete("/models/m")
    client.put("/models/m", json={"columns": {"label": "y", "types": {"a/b": "number"}}})
    texts = {"name": "a/b", "datatype": "BYTES", "shape": [2], "data": ["1", "x"]}
    numbers = {"name": "n", "datatype": "FP64", "shape": [2], "data": [1e200, 1]}
    assert refused(texts | {"name": "t"}, numbers, texts) == [(0, "/inputs/1"), (1, "/inputs/2")]


def test_what_is_not_there_is_shown(client):
    client.put("/models/m", json=INDEXED)
    assert_problem(infer(client, X, outputs=[{"name": "y"}]), 422, "invalid-tensors")
    without = {name: value for name, value in X.items() if name != "data"}
    assert "binary" in assert_problem(infer(client, without), 422, "invalid-tensors")["detail"]
    assert "binary_tensor_data" in client.get("/v2").json()["extensions"]
    assert_problem(client.post("/v2/models/m/infer", content=b"{"), 400, "malformed-body")
    assert_problem(client.get("/v2/models/x"), 404, "unknown-model")
    assert_problem(client.get("/v2/models/x/ready"), 404, "unknown-model")
    assert client.get("/v2/models/m/ready").json() == {"name": "m", "ready": True}
    assert client.get("/v2").json()["name"] == "dualstream"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
