"""Exports of nonlinear learners, and of portfolios that have some, score as the model does."""

import json
import os
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from dualstream.solvers import Batch, NotExpressible, make_learner, resolve_spec
from tests.service.conftest import assert_problem
from tests.service.features.exported import DIM, INDEXED, batch_of, exported, rows, trained

xgboost = pytest.importorskip("xgboost")

NONLINEAR = ("boosted", "net", "neighbours", "splines")
MODELS = {
    **{f"{name}-{task}": (name, task) for name in NONLINEAR for task in ("binary", "regression")},
    "fast": ("fast", "binary"),
    "full": ("full", "binary"),
    "full-numbers": ("full", "regression"),
    "splines-classes": ("splines", "multiclass"),
}
X = rows(1000, 3)


def spec_of(name: str, task: str) -> dict:
    mine = {"algorithm": name} if name in NONLINEAR else {"members": name, "algorithm": "portfolio"}
    return mine | {"task": task, "features": INDEXED}


def served(learner, batch: Batch) -> np.ndarray:
    """Scores, (n,) or (n, classes)."""
    if learner.spec["task"] == "multiclass":
        return learner.predict_classes(batch).scores
    return learner.predict(batch)


def in_onnx(learner, x: np.ndarray, member: str | None = None) -> np.ndarray:
    session = onnxruntime.InferenceSession(exported("onnx", learner, member))
    return session.run(["scores"], {"x": x})[0]


def in_xgboost(learner, member: str | None = None):
    return xgboost.Booster(model_file=bytearray(exported("xgboost", learner, member)))


def assert_same(got: np.ndarray, expected: np.ndarray, most: float = 1e-9) -> None:
    apart = np.abs(got - expected) / np.maximum(1.0, np.abs(expected))
    assert got.shape == expected.shape and apart.max() <= most


@pytest.fixture(scope="module")
def learners():
    return {name: trained(spec_of(*of), 1500) for name, of in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_scores_as_the_model_does(name, learners):
    expected = served(learners[name], batch_of(X))
    assert np.ptp(expected) > 0.1
    assert_same(in_onnx(learners[name], X), expected)


def test_onnx_has_the_probabilities_of_a_portfolio(learners):
    session = onnxruntime.InferenceSession(exported("onnx", learners["full"]))
    got = session.run(["probabilities"], {"x": X})[0]
    expected = learners["full"].probabilities(learners["full"].predict(batch_of(X)))
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=1e-9)


@pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set")
@pytest.mark.parametrize("name", ["ijcnn1", "spambase", "elec2", "pageblocks"])
def test_portfolios_and_trees_score_real_rows_as_the_model_does(name):
    from load_tests.streams.data import stream

    batch = stream(name)[:3500]
    learned, request = batch[:2500], batch[2500:]
    x = np.zeros((len(request), batch.dim))
    x[np.repeat(np.arange(len(request)), np.diff(request.indptr)), request.indices] = request.values
    for of in ("full", "boosted"):
        features = {"kind": "indexed", "dim": batch.dim}
        learner = make_learner(spec_of(of, "binary") | {"features": features})
        learner.learn(learned)
        assert_same(in_onnx(learner, x), learner.predict(request), 1e-6)
    got = in_xgboost(learner).predict(xgboost.DMatrix(x))
    expected = learner.probabilities(learner.predict(request))
    np.testing.assert_allclose(got, expected, rtol=0.0, atol=1e-6)


def at_the_thresholds(learner) -> np.ndarray:
    """Rows whose values are thresholds of the learner's trees, their neighbours, and extremes."""
    state = learner.state()
    features = dict(zip(state["columns"].tolist(), state["features"].tolist(), strict=True))
    splits = state["feature"] >= 0
    results = []
    for column, threshold in zip(state["feature"][splits], state["threshold"][splits], strict=True):
        single = np.float32(threshold)
        below, above = (np.nextafter(single, np.float32(far)) for far in (-np.inf, np.inf))
        values = [threshold, *np.nextafter(threshold, [-np.inf, np.inf])]
        # A float64 that is halfway between two float32 is rounded to one of them.
        values += [single, below, above, 0.5 * (float(single) + float(above)), 0.0, -0.0, 1e38]
        x = np.zeros((len(values), DIM))
        x[:, features[int(column)]] = values
        results.append(x)
    return np.concatenate(results)


@pytest.mark.parametrize("kind", ["whole", "real"])
def test_branches_at_thresholds_are_those_of_the_trees(kind):
    x = rows(2000, 5)
    # Thresholds between whole numbers are float32; those between others mostly are not.
    x = np.round(4.0 * x) if kind == "whole" else x * 0.7
    learner = make_learner(spec_of("boosted", "binary"))
    learner.learn(batch_of(x, np.where(np.sin(x[:, 0]) + x[:, 3] > 0.3, 1.0, -1.0)))
    request = at_the_thresholds(learner)
    expected = learner.predict(batch_of(request))
    thresholds = learner.state()["threshold"][learner.state()["feature"] >= 0]
    are_single = thresholds == thresholds.astype(np.float32)
    assert are_single.all() if kind == "whole" else (~are_single).mean() > 0.3
    assert len(np.unique(expected)) > 30
    assert_same(in_onnx(learner, request), expected)
    booster = in_xgboost(learner)
    margins = booster.predict(xgboost.DMatrix(request), output_margin=True)
    assert_same(margins, expected, 1e-6)
    # Values that are absent are 0.
    absent = np.where(request == 0.0, np.nan, request)
    assert np.array_equal(booster.predict(xgboost.DMatrix(absent), output_margin=True), margins)


@pytest.mark.parametrize("name", [*NONLINEAR, "full"])
def test_onnx_limits_huge_values_as_the_model_does(name, learners):
    learner = learners[name if name == "full" else f"{name}-binary"]
    far = X[:300].copy()
    far[::3] *= 1e39
    far[1::3] *= 1e90
    far[2::3] *= 1e-44
    assert_same(in_onnx(learner, far), served(learner, batch_of(far)))


@pytest.mark.parametrize(
    ("spec", "dim"),
    [
        ({"algorithm": "net"}, 1),
        ({"members": "full", "algorithm": "portfolio"}, 1),
        ({"algorithm": "sgd", "norm": "running"}, 3),
    ],
)
def test_numbers_that_are_0_in_single_precision_count(spec, dim):
    x = 1e-50 * (3.0 + rows(500, 5)[:, :dim])
    learner = make_learner(spec | {"features": {"kind": "indexed", "dim": dim}})
    learner.learn(batch_of(x, np.where(x[:, 0] > 3e-50, 1.0, -1.0)))
    expected = learner.predict(batch_of(x))
    assert np.ptp(expected) > 0.1
    assert_same(in_onnx(learner, x), expected)


def test_neighbours_at_equal_distances_are_the_same_ones():
    rng = np.random.default_rng(7)
    x = rng.integers(0, 3, (600, DIM)).astype(float) * (np.arange(DIM) < 3)
    for task, y in (("binary", rng.choice([-1.0, 1.0], 600)), ("regression", rng.normal(size=600))):
        learner = make_learner(spec_of("neighbours", task) | {"window": 100})
        learner.learn(batch_of(x, y))
        expected = learner.predict(batch_of(x))
        assert len(np.unique(expected)) > 10
        assert_same(in_onnx(learner, x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_learned_few_rows_are_exported(name):
    algorithm, task = MODELS[name]
    for n in (0, 1, 5, 40):
        if n == 0 and task == "multiclass":
            continue
        learner = trained(spec_of(algorithm, task), n)
        assert_same(in_onnx(learner, X[:50]), served(learner, batch_of(X[:50])))
        if algorithm == "boosted" and task != "multiclass":
            got = in_xgboost(learner).predict(xgboost.DMatrix(X[:50]), output_margin=True)
            assert_same(got, learner.predict(batch_of(X[:50])), 1e-6)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_exports_have_both_rules_of_a_portfolio_with_late_labels_or_are_refused(task):
    learner, batch = trained(spec_of("full", task), 500), batch_of(X)
    kept = dict(zip(("served", "served_parts"), learner.predict_waiting(batch), strict=True))
    learner.learn(replace(batch.with_labels(np.where(X[:, 0] > 0.0, 1.0, -1.0)), **kept))
    first, second = learner.predict_waiting(batch)[1][:, 2:4].T
    assert np.abs(first - second).max() > 1e-3
    learner._late._evidence[:] = 100.0, 60.0
    assert_same(in_onnx(learner, X), learner.predict(batch))
    with pytest.raises(NotExpressible, match="its member '[a-z0-9-]+' is .*`onnx`"):
        exported("json", learner)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_stack_has_only_the_active_members(task):
    members = [
        {"name": "p", "kind": "prior"} | ({"base": "mean"} if task == "regression" else {}),
        {"name": "n", "algorithm": "net"},
        {"name": "stack", "kind": "stack"},
        {"name": "s", "algorithm": "splines"},
    ]
    # With `share` 0 and a large `eta` shares become 0; the stack has these members as inputs.
    spec = spec_of("full", task) | {"members": members, "share": 0.0, "eta": 1.0}
    learner = trained(spec, 1500)
    batch = batch_of(X)
    for change in (
        lambda: None,
        lambda: learner.add_member({"name": "b", "algorithm": "boosted"}),
        lambda: learner.learn(batch.with_labels(np.where(X[:, 0] > 0.0, 1.0, -1.0))),
        lambda: learner.remove_member("n"),
        lambda: learner.promote("s"),
        lambda: learner.demote(),
    ):
        change()
        assert_same(in_onnx(learner, X), learner.predict(batch))


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_xgboost_predicts_as_the_trees_do(task, learners):
    learner = learners[f"boosted-{task}"]
    booster, scores = in_xgboost(learner), learner.predict(batch_of(X))
    expected = scores if task == "regression" else learner.probabilities(scores)
    # XGBoost adds in float32, here numbers of up to this size.
    size = max(1.0, np.abs(expected).max())
    assert_same(booster.predict(xgboost.DMatrix(X)) / size, expected / size, 1e-6)
    assert json.loads(booster.attr("features")) == INDEXED
    assert booster.num_features() == DIM and booster.num_boosted_rounds() == 31


def test_xgboost_has_the_raw_score_of_a_boosted_member(learners):
    learner = learners["fast"]
    booster = in_xgboost(learner, "boosted-1024")
    expected = in_onnx(learner, X, "boosted-1024")
    assert_same(booster.predict(xgboost.DMatrix(X)), expected, 1e-6)
    assert booster.attr("member") == "boosted-1024"


def test_the_same_state_gives_the_same_bytes(learners):
    again = trained(spec_of("full", "binary"), 1500)
    assert exported("onnx", again) == exported("onnx", learners["full"])
    again = trained(spec_of("boosted", "binary"), 1500)
    assert exported("xgboost", again) == exported("xgboost", learners["boosted-binary"])


@pytest.mark.parametrize(
    ("name", "format", "reason"),
    [
        ("boosted-binary", "json", "boosted trees, not .*`onnx` or `xgboost`"),
        ("splines-classes", "sklearn-coef", "splines, not .*`onnx`"),
        ("net-binary", "vw", "a neural network, not .* as `onnx`"),
        ("net-binary", "xgboost", "a neural network, .*boosted trees only: use `onnx`"),
        ("splines-regression", "sklearn-coef", "splines, not .*`onnx`"),
        ("neighbours-binary", "vw", "nearest neighbours, not .*`onnx`"),
        ("full", "json", "member 'net' is a neural network, .*`onnx`, or a linear member"),
        ("full", "vw", "as `member`, or export it as `onnx`"),
        ("full", "xgboost", "a boosted member as `member`"),
    ],
)
def test_other_formats_are_refused_by_name(name, format, reason, learners):
    with pytest.raises(NotExpressible, match=reason):
        exported(format, learners[name])


def test_other_refusals_say_what_to_do():
    members = [{"name": "d", "kind": "dual_ascent"}, {"name": "stack", "kind": "stack"}]
    learner = trained(spec_of("full", "binary") | {"members": members}, 50)
    assert_same(in_onnx(learner, X), learner.predict(batch_of(X)))
    with pytest.raises(NotExpressible, match="a stack combines its members: .*`onnx`"):
        exported("json", learner)
    with pytest.raises(NotExpressible, match="export the whole portfolio as onnx"):
        exported("onnx", learner, "stack")
    huge = make_learner(resolve_spec(spec_of("boosted", "regression")))
    huge.learn(batch_of(X, 1e60 * X[:, 0]))
    assert_same(in_onnx(huge, X), huge.predict(batch_of(X)))
    with pytest.raises(NotExpressible, match="exceed float32: export it as `onnx`"):
        exported("xgboost", huge)


def test_the_route_exports_hashed_trees_and_portfolios(client):
    rng = np.random.default_rng(4)
    got = [{w: float(rng.normal()) for w in ("age", "city=Oslo", "size")} for _ in range(300)]
    samples = [{"x": x, "y": int(x["age"] * x["size"] > 0.0)} for x in got]
    features = {"kind": "hashed", "bits": 12}
    for name, spec in (("t", {"algorithm": "boosted"}), ("p", {"members": "fast"})):
        spec = spec | {"features": features}
        assert client.put(f"/models/{name}", json=spec).status_code == 201
        body = {"samples": samples}
        assert client.post(f"/models/{name}/learn", json=body).status_code == 200
    ask = {"samples": [{"x": x} for x in got]}
    answers = {name: client.post(f"/models/{name}/predict", json=ask).json() for name in "tp"}

    answer = client.get("/models/t/export?format=xgboost")
    assert answer.headers["content-disposition"] == 'attachment; filename="t.xgboost.json"'
    booster = xgboost.Booster(model_file=bytearray(answer.content))
    names, indices = (json.loads(booster.attr(key)) for key in ("names", "indices"))
    x = np.array([[row[names[str(index)]] for index in indices] for row in got])
    expected = np.array(answers["t"]["probabilities"])
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(x)), expected, atol=1e-6)

    for name in "tp":
        answer = client.get(f"/models/{name}/export?format=onnx")
        session = onnxruntime.InferenceSession(answer.content)
        about = session.get_modelmeta().custom_metadata_map
        width = session.get_inputs()[0].shape[1]
        columns = json.loads(about.get("indices", "null")) or list(range(1, width + 1))
        positions = {
            word: columns.index(int(index)) for index, word in json.loads(about["names"]).items()
        }
        dense = np.zeros((len(got), width))
        for line, row in zip(dense, got, strict=True):
            for word, value in row.items():
                line[positions[word]] = value
        scores = np.array(answers[name]["scores"])
        assert_same(session.run(["scores"], {"x": dense})[0], scores)
    refused = client.get("/models/t/export?format=json")
    assert "`xgboost`" in assert_problem(refused, 409, "not-exportable")["detail"]


@pytest.mark.parametrize("name", ["boosted", "full"])
def test_learners_that_classes_share_are_refused_by_name(name):
    learner = trained(spec_of(name, "multiclass"), 50)
    with pytest.raises(NotExpressible, match="several classes"):
        exported("onnx", learner)


def test_a_broken_label_leaves_the_digits_of_others_in_neighbours():
    spec = {"algorithm": "neighbours", "task": "regression", "neighbours": 3}
    learner = make_learner(resolve_spec(spec | {"features": INDEXED}))
    x = rows(31, 1)
    y = 10.0 + 3.0 * x[:, 0]
    y[0] = 1e100
    learner.learn(batch_of(x, y))
    scores = learner.predict(batch_of(x))
    session = onnxruntime.InferenceSession(exported("onnx", learner))
    np.testing.assert_allclose(session.run(["scores"], {"x": x})[0], scores, rtol=1e-9)
    assert sum(0.0 < scores) == 31 and sum(scores < 50.0) > 15
