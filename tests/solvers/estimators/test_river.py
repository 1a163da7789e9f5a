"""Estimators for River: River's own checks, and further guarantees."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from river import checks, compose, datasets, preprocessing

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.estimators.river import (
    DualstreamClassifier,
    DualstreamRegressor,
    PortfolioClassifier,
    PortfolioRegressor,
)
from dualstream.solvers.rows.hashing import NameIndices, hash_row

ALGORITHMS = ("dual_ascent", "dc", "rda")
MODELS = {f"binary, {name}": DualstreamClassifier(name) for name in ALGORITHMS} | {
    # With many classes the estimator is the same.
    "multiclass, dual_ascent": DualstreamClassifier("dual_ascent", task="multiclass"),
    # dc supports only margins; the steps of rda are for losses of bounded slope.
    "regression, dual_ascent": DualstreamRegressor(),
    "regression, rda": DualstreamRegressor("rda", spec={"loss": "huber"}),
    "binary, portfolio": PortfolioClassifier(),
    # `full` is among the binary ones; with many classes each check takes five times as long.
    "multiclass, portfolio": PortfolioClassifier("eight", task="multiclass"),
    "regression, portfolio": PortfolioRegressor(),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_passes_the_checks_of_river(name):
    for check in checks.yield_checks(MODELS[name]):
        check(MODELS[name].clone())


@pytest.mark.parametrize("name", MODELS)
def test_no_check_of_river_is_skipped(name):
    assert MODELS[name]._unit_test_skips() == set()
    names = {check.__name__ for check in checks.yield_checks(MODELS[name])}
    assert {"check_learn_many_matches_learn_one", "check_predict_many_matches_predict_one"} <= names


FRAME = pd.DataFrame(
    {
        "age": [39.0, 17.5, 62.0, 28.0, 44.0, 51.0],
        "city": ["Oslo", "Rome", "Oslo", "Rome", "Bern", "Bern"],
        "member": [True, False, False, True, True, False],
        7: [0, 1, 2, 3, 4, 5],
    },
    index=list("abcdef"),
)
ROWS = FRAME.to_dict("records")
LABELS = {
    "binary": [True, False, np.bool_(True), 0, 1, -1],
    "multiclass": ["x", 1, np.int64(1), "1", "x", 2.0],
    "regression": [1.0, -2.5, 3, 0.0, np.float64(2.0), 7],
}


def same_state(one, other):
    one, other = one.learner.state(), other.learner.state()
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("name", MODELS)
def test_learn_many_is_learn_one_to_the_bit(name):
    task = name.split(",")[0]
    one, many = MODELS[name].clone(), MODELS[name].clone()
    for index, (x, y) in enumerate(zip(ROWS, LABELS[task], strict=True)):
        one.learn_one(x, y)
        if index == 2:
            one = copy.deepcopy(one)
        if index == 4:
            one = pickle.loads(pickle.dumps(one))
    many.learn_many(FRAME, pd.Series(LABELS[task], index=FRAME.index, dtype=object))
    same_state(one, many)
    predicted = many.predict_many(FRAME)
    assert predicted.index.equals(FRAME.index)
    assert predicted.tolist() == [one.predict_one(x) for x in ROWS]


def test_features_are_those_of_hashing():
    model = DualstreamClassifier("rda", bits=12, spec={"norm": "row"})
    model.learn_one({"age": 39, "city": "Oslo", "member": True, 7: 2}, True)
    features = {"age": 39, "city": "Oslo", "member": True, "7": 2}
    indices, values = hash_row(features, NameIndices(12))
    learner = make_learner(
        {"algorithm": "rda", "norm": "row", "features": {"kind": "hashed", "bits": 12}}
    )
    learner.learn(Batch.from_csr([0, 4], indices, values, [1.0], dim=1 << 12))
    assert model.learner.weights.tobytes() == learner.weights.tobytes()


def test_texts_are_composed_and_long_integers_refused_as_by_the_server():
    composed, decomposed = DualstreamClassifier("rda"), DualstreamClassifier("rda")
    composed.learn_one({"caf\u00e9": 2, "city": "Troms\u00f8 \u00c5"}, True)
    decomposed.learn_one({"cafe\u0301": 2, "city": "Troms\u00f8 A\u030a"}, True)
    same_state(composed, decomposed)
    classes = DualstreamClassifier("sgd", task="multiclass")
    classes.learn_one({"a": 1}, "caf\u00e9")
    classes.learn_one({"a": 1}, "cafe\u0301")
    assert list(classes.predict_proba_one({"a": 1})) == ["caf\u00e9"]
    before = DualstreamClassifier()
    for model in (DualstreamClassifier(), DualstreamRegressor()):
        with pytest.raises(ValueError, match="beyond 2.53 and loses digits"):
            model.learn_one({"a": 2**53 + 1}, 1)
        model.learn_one({"a": 2**53}, 1)
    same_state(before, DualstreamClassifier())


@pytest.mark.parametrize("name", ["binary, portfolio", "regression, portfolio"])
def test_a_portfolio_is_the_learner_of_hashed_rows(name):
    task = name.split(",")[0]
    model = MODELS[name].clone()
    learner = make_learner({"algorithm": "portfolio", "task": task, "features": "hashed"})
    positions = NameIndices(18)
    for x, y in zip(ROWS, LABELS[task], strict=True):
        features = {str(feature): value for feature, value in x.items()}
        indices, values = hash_row(features, positions)
        batch = Batch.from_csr([0, len(indices)], indices, values, [float(y)], dim=1 << 18)
        score = float(learner.predict(batch)[0])
        assert model.predict_one(x) == (score >= 0.0 if task == "binary" else score)
        if task == "binary":
            p = float(learner.probabilities(np.array([score]))[0])
            assert model.predict_proba_one(x) == {False: 1.0 - p, True: p}
        model.learn_one(x, y)
        learner.learn(batch)
    assert model.learner.spec == learner.spec
    for one, array in learner.state().items():
        assert array.tobytes() == model.learner.state()[one].tobytes(), one
    assert model.learner.members() == learner.members()


def test_fields_of_a_portfolio_are_those_of_its_specification():
    fields = {"members": [{"algorithm": "rda"}], "eta": 0.25, "share": 0.01, "retain": 7}
    model = PortfolioClassifier(bits=12, **fields).clone()
    features = {"kind": "hashed", "bits": 12}
    learner = make_learner({"algorithm": "portfolio", "features": features} | fields)
    assert model.learner.spec == learner.spec
    model = PortfolioClassifier(task="multiclass")
    model.learn_many(FRAME, LABELS["multiclass"])
    for probabilities in model.predict_proba_many(FRAME).to_numpy():
        assert probabilities.sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("kind", [DualstreamClassifier, PortfolioClassifier])
def test_classes_are_met_on_the_way(kind):
    model = kind(task="multiclass")
    assert model.predict_one({"a": 1}) is None
    assert model.predict_proba_one({"a": 1}) == {}
    model.learn_many(FRAME, LABELS["multiclass"])
    one = model.predict_proba_one(ROWS[0])
    assert list(one) == ["x", 1, "1", 2]
    many = model.predict_proba_many(FRAME)
    assert list(many.columns) == ["x", 1, "1", 2]
    assert many.loc["a"].to_dict() == one


def test_an_algorithm_without_probabilities_says_so():
    for task in ("binary", "multiclass"):
        model = DualstreamClassifier("dc", task=task)
        with pytest.raises(NotImplementedError, match="dc gives no probabilities"):
            model.predict_proba_one({"a": 1})


@pytest.mark.parametrize(
    "x, y, reason",
    [
        ({"a": float("nan")}, True, "not finite"),
        ({"a": 1e101}, True, "beyond 1e100"),
        ({"a": 1, "\u00e9": 2, "e\u0301": 3}, True, "two features have one name"),
        ({1: 1.0, "1": 2.0}, True, "two features have one name"),
        ({"a": 1}, "yes", "True or False"),
        ({"a": 1}, 2, "True or False"),
        ({"a": 1}, None, "True or False"),
    ],
)
def test_what_cannot_be_learned_leaves_no_trace(x, y, reason):
    model = DualstreamClassifier()
    with pytest.raises(ValueError, match=reason):
        model.learn_one(x, y)
    with pytest.raises(ValueError, match=reason):
        model.learn_many(pd.DataFrame([{"a": 1}, x]), [True, y])
    same_state(model, DualstreamClassifier())


def test_what_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="task must be binary or multiclass"):
        DualstreamClassifier(task="regression")
    with pytest.raises(ValueError, match="members must be one of ten"):
        PortfolioRegressor("eight")
    with pytest.raises(ValueError, match="task must be"):
        DualstreamRegressor("dc")
    with pytest.raises(ValueError, match="spec must not hold 'features'"):
        DualstreamRegressor(spec={"features": {"kind": "hashed"}})


def test_rows_left_out_are_counted():
    model = DualstreamRegressor("sgd")
    model.learn_many(pd.DataFrame({"a": [1e80, -1e80] * 5}), [1.0] * 10)
    assert 0 < model.rejected <= 10


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("binary")])
def test_models_learn_in_a_pipeline(name):
    model = compose.Pipeline(preprocessing.StandardScaler(), MODELS[name].clone())
    right = 0
    for x, y in datasets.Phishing().take(600):
        right += model.predict_one(x) == y
        model.learn_one(x, y)
    assert right > 500


@pytest.mark.parametrize("label", [None, (1, 2), [1], b"a", {"a": 1}, float("nan"), float("inf")])
def test_a_label_that_is_no_label_is_refused_and_leaves_no_trace(label):
    for task, made in (("multiclass", DualstreamClassifier), ("binary", DualstreamClassifier)):
        for model in (made("dual_ascent", task=task), PortfolioClassifier(task=task)):
            with pytest.raises(ValueError, match="label must be"):
                model.learn_one({"a": 1.0}, label)
            with pytest.raises(ValueError, match="label must be"):
                model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), [1, label])
            assert model.learner.samples == 0
            model.learn_one({"a": 1.0}, 1)
            model.learn_one({"a": -1.0}, 0)
            previous = {0, 1} if task == "multiclass" else {False, True}
            assert set(model.predict_proba_one({"a": 1.0})) == previous
    for model in (DualstreamRegressor("dual_ascent"), PortfolioRegressor()):
        with pytest.raises((ValueError, TypeError)):
            model.learn_one({"a": 1.0}, label)
        assert model.learner.samples == 0


def test_labels_of_every_plain_type_are_learned():
    model = DualstreamClassifier("dual_ascent", task="multiclass")
    labels = ["a", 1, 2.5, True, np.str_("b"), np.int64(3), np.float32(0.5), np.bool_(False)]
    for label in labels:
        model.learn_one({"a": 1.0}, label)
    assert set(model.predict_proba_one({"a": 1.0})) == {"a", 1, 2.5, "b", 3, 0.5, False}
    binary = DualstreamClassifier("dual_ascent")
    for label in (True, 1, 0, -1, 1.0, np.bool_(True), np.int8(0), np.float64(-1)):
        binary.learn_one({"a": 1.0}, label)
    assert binary.learner.samples == 8
