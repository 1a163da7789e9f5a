"""What is exported scores rows elsewhere as the model does here, to 1e-6."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import onnxruntime
import pytest
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.utils import murmurhash3_32
from vowpalwabbit import Workspace

from dualstream.service.features.export import FormatName
from dualstream.service.http.body_memory import InFlightBody
from dualstream.solvers import NotExpressible
from dualstream.solvers.export import FORMATS, Source
from dualstream.solvers.export.formats import Format
from tests.docs.documents import ROOT
from tests.service.api import numpy_scores
from tests.service.conftest import assert_problem
from tests.service.features.exported import (
    BALANCED,
    COUNTS,
    DIM,
    INDEXED,
    batch_of,
    exported,
    rows,
    source_of,
    trained,
)

X = rows(1000, 3)
LINEAR = {
    "averaged": {"algorithm": "dual_ascent", "loss": "hinge", "features": INDEXED},
    "elastic": {
        "algorithm": "dual_ascent",
        "loss": "logistic",
        "regularizer": {"kind": "elastic_net", "delta": 1.0},
        "window": {"kind": "sliding", "length": 100},
        "average": None,
        "features": INDEXED,
    },
    "entropy": {"algorithm": "dual_ascent", "regularizer": "entropy", "features": INDEXED},
    "counts": {"algorithm": "sgd", "loss": "logistic", "scaling": COUNTS, "features": INDEXED},
    "numbers": {"algorithm": "sgd", "loss": "squared", "task": "regression", "features": INDEXED},
    "rda": {"algorithm": "rda", "features": INDEXED},
    "fobos": {"algorithm": "fobos", "intercept": False, "features": INDEXED},
    "asset": {"algorithm": "asset", "features": INDEXED},
    "alma": {"algorithm": "alma", "features": INDEXED},
    "romma": {"algorithm": "romma", "features": INDEXED},
    "dc": {"algorithm": "dc", "features": INDEXED},
    "classes": {"algorithm": "sgd", "loss": "logistic", "task": "multiclass", "features": INDEXED},
}
CURVED = {
    "balanced": {"algorithm": "sgd", "scaling": "balanced", "features": INDEXED},
    "normed": {"algorithm": "rda", "scaling": BALANCED, "norm": "running", "features": INDEXED},
    "fourier": {
        "algorithm": "dual_ascent",
        "map": {"kind": "fourier", "components": 30},
        "norm": "row",
        "features": INDEXED,
    },
    "nystroem": {
        "algorithm": "dual_ascent",
        "task": "multiclass",
        "scaling": "balanced",
        "map": {"kind": "nystroem", "components": 20},
        "features": INDEXED,
    },
    "twelve": {"algorithm": "portfolio", "members": "twelve", "features": INDEXED},
    "ten": {"task": "regression", "members": "ten", "features": INDEXED},
    "guests": {
        "algorithm": "portfolio",
        "members": [
            {"name": "map", "algorithm": "sgd", "map": {"kind": "fourier", "components": 20}},
            {"name": "rising", "kind": "dual_ascent", "schedule": "inverse_sqrt"},
            {"kind": "prior"},
        ],
        "features": INDEXED,
    },
    "one-vs-rest": {"members": "eight", "task": "multiclass", "features": INDEXED},
}
ALL = LINEAR | CURVED
LINEAR_FORMATS = [name for name in FORMATS if name != "xgboost"]
"""The formats of linear models; test_export_nonlinear.py has the others."""


@pytest.fixture(scope="module")
def learners():
    """Each model, once it has learned."""
    return {name: trained(spec) for name, spec in ALL.items()}


def served(learner, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Scores and probabilities, (n,) or (n, classes), as the server has them."""
    batch = batch_of(x)
    if learner.spec["task"] == "multiclass":
        got = learner.predict_classes(batch)
        return got.scores, got.probabilities
    scores = learner.predict(batch)
    return scores, learner.probabilities(scores)


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert np.ptp(expected) > 0.01, "the rows are told apart"


@pytest.mark.parametrize("name", ALL)
def test_onnx_runtime_scores_as_the_model_does(name, learners):
    session = onnxruntime.InferenceSession(exported("onnx", learners[name]))
    names = [one.name for one in session.get_outputs()]
    got = dict(zip(names, session.run(names, {"x": X}), strict=True))
    scores, probabilities = served(learners[name], X)
    assert_same(got["scores"], scores)
    assert ("probabilities" in got) == (probabilities is not None)
    if probabilities is not None:
        assert_same(got["probabilities"], probabilities)


def test_exports_limit_broken_readings_as_the_model_does(learners):
    learner = learners["ten"]
    far = X.copy()
    far[::2] *= 50.0
    expected, _ = served(learner, far)
    session = onnxruntime.InferenceSession(exported("onnx", learner))
    assert_same(session.run(["scores"], {"x": far})[0], expected)
    form = json.loads(exported("json", learner))["form"]
    assert_same(numpy_scores.scores(form, far).reshape(expected.shape), expected)


@pytest.mark.parametrize("name", ALL)
def test_numpy_scores_the_json_as_the_model_does(name, learners):
    got = json.loads(exported("json", learners[name]))
    expected, probabilities = served(learners[name], X)
    result = numpy_scores.scores(got["form"], X).reshape(expected.shape)
    assert_same(result, expected)
    assert got["has_probabilities"] == (probabilities is not None)
    if probabilities is not None:
        mine = expit(result)
        assert_same(
            mine / mine.sum(axis=1, keepdims=True) if mine.ndim == 2 else mine, probabilities
        )
    classes = {"multiclass": expected.shape[-1], "binary": 2, "regression": 0}
    assert len(got["classes"] or ()) == classes[got["task"]]


@pytest.mark.parametrize("name", LINEAR)
def test_scikit_learn_scores_as_the_model_does(name, learners):
    got = json.loads(exported("sklearn-coef", learners[name]))
    matrix = got["coef_"]
    parts = (matrix["data"], matrix["indices"], matrix["indptr"])
    coefficients = csr_matrix(parts, matrix["shape"])
    scores, probabilities = served(learners[name], X)
    if got["estimator"] == "SGDRegressor":
        estimator = SGDRegressor()
        estimator.coef_ = coefficients.toarray()[0]
        estimator.intercept_ = np.array(got["intercept_"])
        assert_same(estimator.predict(X), scores)
        return
    estimator = SGDClassifier(loss=got["loss"])
    estimator.classes_ = np.array(got["classes_"])
    estimator.coef_, estimator.intercept_ = coefficients.toarray(), np.array(got["intercept_"])
    assert_same(estimator.decision_function(X), scores)
    if probabilities is not None:
        result = estimator.predict_proba(X)
        assert_same(result if probabilities.ndim == 2 else result[:, 1], probabilities)


def in_vw(tmp_path, body: bytes, lines: list[str]) -> np.ndarray:
    (tmp_path / "model.vw").write_bytes(body)
    workspace = Workspace(f"-t -i {tmp_path / 'model.vw'} --quiet")
    result = np.array([workspace.predict(line) for line in lines])
    workspace.finish()
    return result


@pytest.mark.parametrize("name", sorted(set(LINEAR) - {"classes"}))
def test_vowpal_wabbit_scores_as_the_model_does(name, learners, tmp_path):
    lines = [
        "| " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row) if v) for row in X.tolist()
    ]
    result = in_vw(tmp_path, exported("vw", learners[name]), lines)
    # Its numbers are float32, in sums of terms up to this large.
    scores, learner = served(learners[name], X)[0], learners[name]
    if name != "counts":
        size = np.abs(X) @ np.abs(learner.weights) + abs(learner.intercept)
        np.testing.assert_allclose(result, scores, rtol=0.0, atol=1e-6 * max(1.0, size.max()))
    assert_same(result / np.abs(scores).max(), scores / np.abs(scores).max())


def test_formats_are_those_of_the_route():
    assert set(get_args(FormatName)) == set(FORMATS)


@pytest.mark.parametrize("format", LINEAR_FORMATS)
def test_the_same_state_gives_the_same_bytes(format, learners):
    learner = learners["counts"]
    again = trained(LINEAR["counts"])
    assert exported(format, learner) == exported(format, again)


@pytest.mark.parametrize(
    ("format", "name", "reason"),
    [
        ("vw", "balanced", "moments"),
        ("sklearn-coef", "normed", "moments"),
        ("sklearn-coef", "fourier", "map"),
        ("vw", "guests", "choose one of them as `member`"),
        ("vw", "classes", "one per class"),
    ],
)
def test_what_a_format_cannot_say_is_refused(format, name, reason, learners):
    with pytest.raises(NotExpressible, match=reason):
        FORMATS[format].write(source_of(learners[name]))


def test_a_kernel_expansion_is_refused_by_all():
    spec = {"algorithm": "semiparametric", "task": "regression", "features": INDEXED}
    with pytest.raises(NotExpressible, match="kernel expansion"):
        source_of(trained(spec, 20))


def test_models_that_know_nothing_yet_are_refused_or_zero():
    with pytest.raises(NotExpressible, match="landmarks"):
        source_of(trained(CURVED["nystroem"] | {"task": "binary"}, 5))
    with pytest.raises(NotExpressible, match="no class yet"):
        source_of(trained(LINEAR["classes"], 0))
    for format in LINEAR_FORMATS:
        assert exported(format, trained(LINEAR["averaged"], 0))
    for name in ("twelve", "ten"):
        session = onnxruntime.InferenceSession(exported("onnx", trained(CURVED[name], 0)))
        assert np.all(session.run(["scores"], {"x": X[:3]})[0] == 0.0)


HASHED = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "hashed", "bits": 12}}
WORDS = ["age", "city=Oslo", "city=Rome", "17", "größe"]


@pytest.fixture
def named(client):
    """A client whose server holds `m` of features by name, one of them a number."""
    assert client.put("/models/m", json=HASHED).status_code == 201
    rng = np.random.default_rng(4)
    got = [{word: float(rng.standard_normal()) for word in WORDS} for _ in range(60)]
    samples = [{"x": x, "y": int(x["age"] > x["17"])} for x in got]
    assert client.post("/models/m/learn", json={"samples": samples}).status_code == 200
    answer = client.post("/models/m/predict", json={"samples": [{"x": x} for x in got]}).json()
    return client, got, np.array(answer["scores"])


def test_hashed_features_are_found_by_name_elsewhere(named, tmp_path):
    client, got, scores = named
    get = {name: client.get(f"/models/m/export?format={name}") for name in LINEAR_FORMATS}
    assert {answer.status_code for answer in get.values()} == {200}

    lines = ["| " + " ".join(f"{word}:{value!r}" for word, value in x.items()) for x in got]
    np.testing.assert_allclose(in_vw(tmp_path, get["vw"].content, lines), scores, atol=1e-6)

    session = onnxruntime.InferenceSession(get["onnx"].content)
    about = session.get_modelmeta().custom_metadata_map
    names = json.loads(about["names"])
    columns = [names[str(index)] for index in json.loads(about["indices"])]
    assert sorted(columns) == sorted(WORDS)
    x = np.array([[row[word] for word in columns] for row in got])
    np.testing.assert_allclose(session.run(["scores"], {"x": x})[0], scores, atol=1e-9)

    coef = get["sklearn-coef"].json()
    weights = dict(zip(coef["coef_"]["indices"], coef["coef_"]["data"], strict=True))
    positions = {word: murmurhash3_32(word, positive=True) % 2**12 for word in WORDS}
    results = [sum(weights[positions[word]] * v for word, v in x.items()) for x in got]
    np.testing.assert_allclose(np.array(results) + coef["intercept_"][0], scores, atol=1e-9)
    assert get["json"].json()["names"] == {str(positions[word] + 1): word for word in WORDS}


def test_a_file_has_the_model_s_etag_and_a_name(named):
    client, _, _ = named
    answer = client.get("/models/m/export?format=onnx")
    etag = client.get("/models/m").headers["etag"]
    assert answer.headers["etag"] == etag
    assert answer.headers["content-disposition"] == 'attachment; filename="m.onnx"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.content == client.get("/models/m/export?format=onnx").content
    previous = {"if-none-match": etag}
    assert client.get("/models/m/export?format=onnx", headers=previous).status_code == 304
    assert_problem(client.get("/models/m/export?format=pickle"), 422, "invalid-request")
    assert_problem(client.get("/models/x/export?format=json"), 404, "unknown-model")
    assert_problem(client.get("/models/m/export?format=json&member=a"), 404, "no-members")


def test_one_file_is_built_at_a_time_and_counts_as_memory(named, monkeypatch):
    client, _, _ = named
    write, reserve, end = Format.write, InFlightBody.reserve, InFlightBody.end
    seen: list[tuple[int, int]] = []
    building: list[Source] = []
    counted: dict[InFlightBody, int] = {}

    def noted(self: Format, source: Source) -> bytes:
        building.append(source)
        time.sleep(0.01)
        seen.append((len(building), sum(counted.values())))
        body = write(self, source)
        building.remove(source)
        return body

    def counting(self: InFlightBody, size: int) -> None:
        reserve(self, size)
        counted[self] = self.size

    def ended(self: InFlightBody) -> None:
        end(self)
        counted.pop(self, None)

    monkeypatch.setattr(Format, "write", noted)
    monkeypatch.setattr(InFlightBody, "reserve", counting)
    monkeypatch.setattr(InFlightBody, "end", ended)
    with ThreadPoolExecutor(4) as threads:
        path = "/models/m/export?format=onnx"
        bodies = {answer.content for answer in threads.map(client.get, [path] * 4)}
    assert len(bodies) == 1
    assert {files for files, _ in seen} == {1}
    assert all(size > 0 for _, size in seen), seen
    assert not counted


def test_one_member_of_a_portfolio(client, tmp_path):
    members = [{"name": "raw", "algorithm": "sgd"}, {"name": "b", "kind": "dual_ascent"}]
    spec = {"algorithm": "portfolio", "members": members, "features": INDEXED}
    client.put("/models/m", json=spec)
    y = (X[:200, 0] > 0).astype(int).tolist()
    assert client.post("/models/m/learn", json={"x": X[:200].tolist(), "y": y}).status_code == 200
    refused = client.get("/models/m/export?format=vw")
    assert "choose one of them" in assert_problem(refused, 409, "not-exportable")["detail"]
    assert_problem(client.get("/models/m/export?format=vw&member=b"), 409, "not-exportable")
    assert_problem(client.get("/models/m/export?format=vw&member=c"), 404, "unknown-member")
    answer = client.get("/models/m/export?format=vw&member=raw")
    assert answer.headers["content-disposition"] == 'attachment; filename="m.raw.vw"'
    got = client.get(f"/models/m/weights?member=raw&top={DIM}").json()
    w = {one["index"]: one["weight"] for one in got["weights"]}
    lines = ["| " + " ".join(f"{j}:{x[j - 1]!r}" for j in w) for x in X[:50].tolist()]
    expected = [got["intercept"] + sum(w[j] * x[j - 1] for j in w) for x in X[:50].tolist()]
    np.testing.assert_allclose(in_vw(tmp_path, answer.content, lines), expected, atol=1e-5)


def test_a_missing_package_is_named(model, monkeypatch):
    onnx = FORMATS["onnx"]
    absent = type(onnx)(onnx.media_type, onnx.suffix, onnx.module, needs="no_such_package")
    monkeypatch.setitem(FORMATS, "onnx", absent)
    got = assert_problem(model.get("/models/m/export?format=onnx"), 501, "not-installed")
    assert "dualstream[no_such_package]" in got["detail"]


def test_the_blocks_of_the_guide_run_as_written(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "indexed", "dim": 123}}
    client.put("/models/clicks", json=spec)
    body = {"samples": [{"x": {"3": 1.0, "7": 0.5}, "y": 1}, {"x": {"9": 2.0}, "y": 0}]}
    assert client.post("/models/clicks/learn", json=body).status_code == 200
    for format, suffix in (("onnx", "onnx"), ("sklearn-coef", "coef.json")):
        answer = client.get(f"/models/clicks/export?format={format}")
        (tmp_path / f"clicks.{suffix}").write_bytes(answer.content)
    spec = {"algorithm": "boosted", "features": {"kind": "indexed", "dim": 4}}
    client.put("/models/trees", json=spec)
    answer = client.get("/models/trees/export?format=xgboost")
    (tmp_path / "trees.xgboost.json").write_bytes(answer.content)
    guide = (ROOT / "docs/guides/export.md").read_text()
    got: dict = {}
    for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(block, got)
    x = [{"3": 1.0}, {}]
    expected = client.post("/models/clicks/predict", json={"samples": [{"x": row} for row in x]})
    dense = np.zeros((2, 123))
    dense[0, 2] = 1.0
    np.testing.assert_allclose(got["model"].decision_function(dense), expected.json()["scores"])
    np.testing.assert_allclose(got["scores"], expected.json()["scores"][1:])
    assert got["predictions"].tolist() == [0.5]


@pytest.mark.parametrize("spec", [{}, {"members": "eight"}, {"algorithm": "sgd", "norm": "row"}])
def test_a_model_with_a_norm_has_a_column_for_each_name(client, spec):
    assert client.put("/models/m", json=spec).status_code == 201
    chance = np.random.default_rng(3)
    names = ["age", "size", "zero", "rare"]
    x = chance.standard_normal((80, 4)) * [1.0, 9.0, 0.0, 1.0]
    x[:70, 3] = 0.0
    rows = [{"x": dict(zip(names, row, strict=True)), "y": int(row[0] > 0)} for row in x.tolist()]
    assert client.post("/models/m/learn", json={"samples": rows}).json()["learned"] == 80
    unlabelled = {"samples": [{"x": row["x"]} for row in rows]}
    scores = client.post("/models/m/predict", json=unlabelled).json()["scores"]
    answer = client.get("/models/m/export?format=onnx")
    session = onnxruntime.InferenceSession(answer.content)
    about = session.get_modelmeta().custom_metadata_map
    previous = json.loads(about["names"])
    columns = [previous[str(index)] for index in json.loads(about["indices"])]
    assert sorted(columns) == ["age", "rare", "size"]
    mine = x[:, [names.index(name) for name in columns]]
    np.testing.assert_allclose(session.run(["scores"], {"x": mine})[0], scores, atol=1e-9)
    assert len(answer.content) < 220_000
