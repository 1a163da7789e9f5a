"""Estimators for scikit-learn: scikit-learn's own checks, and further guarantees."""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.estimators.sklearn import (
    DualstreamClassifier,
    DualstreamRegressor,
    PortfolioClassifier,
    PortfolioRegressor,
)
from dualstream.solvers.portfolio import PRESETS, REGRESSION_PRESETS

ALGORITHMS = ("dual_ascent", "dc", "rda")
ESTIMATORS = [
    *(DualstreamClassifier(algorithm) for algorithm in ALGORITHMS),
    # dc supports only margins; the steps of rda are for losses of bounded slope.
    DualstreamRegressor(),
    DualstreamRegressor("rda", spec={"loss": "huber"}),
    PortfolioClassifier(),
    PortfolioRegressor(),
]


@parametrize_with_checks(ESTIMATORS)
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    # Without it the check with array API dispatch is skipped.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        check(estimator)
    except SkipTest as reason:
        pytest.fail(f"no check may be skipped: {reason}")


@pytest.fixture
def rows():
    """60 rows of three classes in five dimensions, and their targets."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, 60)
    x = random.normal(size=(60, 5)) + 2.0 * np.eye(5)[classes]
    x[random.random(x.shape) < 0.3] = 0.0
    return x, classes, x @ np.arange(5.0) + 1.0


def test_fit_is_seeded_passes_of_the_learner(rows):
    x, classes, _ = rows
    y = np.where(classes == 1, "yes", "no")
    model = DualstreamClassifier(passes=3, random_state=7, spec={"loss": "hinge"}).fit(x, y)
    learner = make_learner({"loss": "hinge", "features": {"kind": "indexed", "dim": 5}})
    batch = Batch.from_dense(x, np.where(y == "yes", 1.0, -1.0))
    random = np.random.RandomState(7)
    for _ in range(3):
        learner.learn(batch.take(random.permutation(60)))
    scores = model.decision_function(x)
    assert scores.tobytes() == learner.predict(batch).tobytes()
    assert model.predict(x).tolist() == ["yes" if score >= 0 else "no" for score in scores]


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_partial_fit_continues_at_every_split_of_the_rows(model, rows):
    x, classes, numbers = rows
    y = classes if is_classifier(model) else numbers
    first = {"classes": [0, 1, 2]} if is_classifier(model) else {}
    whole = clone(model).partial_fit(x, y, **first)
    parts = clone(model).partial_fit(x[:1], y[:1], **first)
    parts = copy.deepcopy(parts.partial_fit(sparse.csr_matrix(x[1:20]), y[1:20]))
    parts = pickle.loads(pickle.dumps(parts.partial_fit(x[20:30], y[20:30])))
    parts.partial_fit(x[30:], y[30:])
    states = [one.model_.learner.state() for one in (whole, parts)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name


def test_duplicate_entries_of_a_sparse_matrix_are_added(rows):
    x, classes, _ = rows
    doubled = sparse.csr_matrix(x[:1])
    doubled = sparse.csr_matrix(
        (np.repeat(doubled.data / 2, 2), np.repeat(doubled.indices, 2), 2 * doubled.indptr),
        shape=doubled.shape,
    )
    model = DualstreamClassifier().fit(x, classes)
    assert np.array_equal(model.decision_function(doubled), model.decision_function(x[:1]))


@pytest.mark.parametrize("kind", [DualstreamClassifier, PortfolioClassifier])
def test_a_class_without_a_row_is_never_predicted(kind, rows):
    x, classes, _ = rows
    model = kind().partial_fit(x[:9], np.tile([4, 9], 5)[:9], classes=[1, 9, 4])
    scores, probabilities = model.decision_function(x), model.predict_proba(x)
    assert model.classes_.tolist() == [1, 4, 9]
    assert np.all(scores[:, 0] == -np.inf) and np.all(np.isfinite(scores[:, 1:]))
    assert np.all(probabilities[:, 0] == 0.0) and np.all(probabilities[:, 1:] > 0.0)
    assert set(model.predict(x)) == {4, 9}


def portfolio(dim=5, **fields):
    features = {"kind": "indexed", "dim": dim}
    return make_learner({"algorithm": "portfolio", "features": features} | fields)


def test_a_portfolio_in_order_is_its_learner(rows):
    x, classes, numbers = rows
    batch = Batch.from_dense(x)
    ones = np.where(classes == 1, 1.0, -1.0)
    binary, regression = portfolio(), portfolio(task="regression")
    binary.learn(batch.with_labels(ones))
    regression.learn(batch.with_labels(numbers))
    for passed in (
        PortfolioClassifier(shuffle=False).fit(x, ones),
        PortfolioClassifier().partial_fit(x, ones, classes=[-1.0, 1.0]),
    ):
        assert passed.decision_function(x).tobytes() == binary.predict(batch).tobytes()
        assert passed.members_ == binary.members()
    for passed in (
        PortfolioRegressor(shuffle=False).fit(x, numbers),
        PortfolioRegressor().partial_fit(x, numbers),
    ):
        assert passed.predict(x).tobytes() == regression.predict(batch).tobytes()
        assert passed.members_ == regression.members()


def test_each_pass_of_a_portfolio_is_shuffled_unless_it_is_shown_not_to(rows):
    x, classes, _ = rows
    batch = Batch.from_dense(x, np.where(classes == 1, 1.0, -1.0))
    random = np.random.RandomState(3)
    orders = [random.permutation(60), random.permutation(60)]
    for shuffle, got in ((True, orders), (False, [np.arange(60)] * 2)):
        learner = portfolio()
        for order in got:
            learner.learn(batch.take(order))
        model = PortfolioClassifier(passes=2, shuffle=shuffle, random_state=3)
        scores = model.fit(x, classes == 1).decision_function(x)
        assert scores.tobytes() == learner.predict(batch).tobytes()


def test_fields_of_a_portfolio_are_those_of_its_specification(rows):
    x, classes, numbers = rows
    members = [{"name": "one", "algorithm": "rda"}, {"kind": "adagrad", "eta": 0.1}]
    fields = {"members": members, "eta": 0.25, "share": 0.01, "retain": 7}
    model = clone(PortfolioClassifier(**fields)).fit(x, classes == 1)
    assert model.model_.learner.spec == portfolio(**fields).spec
    assert [one.name for one in model.members_] == ["one", "adagrad-1"]
    two, number = PortfolioClassifier().fit(x, classes == 1), PortfolioRegressor().fit(x, numbers)
    for fitted, previous in ((two, PRESETS["full"]), (number, REGRESSION_PRESETS["full"])):
        assert [one.name for one in fitted.members_] == [one["name"] for one in previous]


def test_members_are_shown_of_one_portfolio(rows):
    x, classes, _ = rows
    assert not hasattr(PortfolioClassifier(), "members_")
    model = PortfolioClassifier().fit(x, classes)
    with pytest.raises(AttributeError, match="each class has its own members"):
        _ = model.members_


MODELS_WITH_WEIGHTS = [
    ("dual_ascent", {}),
    ("sgd", {"intercept": False}),
    ("rda", {"regularizer": {"kind": "l1", "lambda": 0.01}}),
]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("algorithm", "spec"), MODELS_WITH_WEIGHTS)
def test_weights_and_intercepts_give_the_scores(algorithm, spec, classes):
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(200, 5)) * [1, 2, 0.1, 1, 1] + [0, 1, 0, 0, -1]
    y = np.argmax(X[:, :classes] + rng.normal(size=(200, classes)), axis=1)
    model = DualstreamClassifier(algorithm, spec=spec).fit(X, y)
    count = 1 if classes == 2 else 3
    assert model.coef_.shape == (count, 5) and model.intercept_.shape == (count,)
    scores = model.decision_function(X).reshape(200, count)
    assert np.allclose(X @ model.coef_.T + model.intercept_, scores, rtol=1e-9, atol=1e-9)
    numbers = DualstreamRegressor(algorithm="sgd").fit(X, X[:, 1] - X[:, 4])
    assert numbers.coef_.shape == (5,) and isinstance(numbers.intercept_, float)
    assert np.allclose(X @ numbers.coef_ + numbers.intercept_, numbers.predict(X), atol=1e-9)


def test_weights_are_there_where_scores_are_linear(rows):
    X, y, _ = rows
    for model in (
        DualstreamClassifier("net"),
        DualstreamClassifier(norm="row"),
        DualstreamClassifier(scaling="balanced"),
        DualstreamClassifier(spec={"map": {"kind": "fourier", "components": 8}}),
        PortfolioClassifier("eight"),
    ):
        model.fit(X[:50], y[:50])
        assert not hasattr(model, "coef_") and not hasattr(model, "intercept_"), model
    assert not hasattr(DualstreamClassifier(), "coef_")
    with pytest.raises(NotFittedError):
        DualstreamClassifier().coef_  # noqa: B018
    unseen = DualstreamClassifier("sgd").partial_fit(X[:20], np.zeros(20, int), classes=[0, 1, 2])
    assert unseen.intercept_[2] == -np.inf and not unseen.coef_[2].any()


@pytest.mark.parametrize("model", [PortfolioClassifier(), DualstreamClassifier("rda")], ids=repr)
def test_probabilities_are_those_of_the_learner(model, rows):
    x, classes, _ = rows
    two = model.fit(x, classes == 1).predict_proba(x)
    learner = model.model_.learner
    assert np.array_equal(two[:, 1], learner.probabilities(model.decision_function(x)))
    three = model.fit(x, classes).predict_proba(x)
    sigmoids = 1.0 / (1.0 + np.exp(-model.decision_function(x)))
    np.testing.assert_allclose(three, sigmoids / sigmoids.sum(axis=1, keepdims=True), rtol=1e-12)
    for columns in (two, three):
        np.testing.assert_allclose(columns.sum(axis=1), 1.0, rtol=1e-12)


def test_probabilities_are_there_where_the_loss_gives_any(rows):
    x, classes, _ = rows
    for model in (DualstreamClassifier("dc"), DualstreamClassifier(spec={"loss": "hinge"})):
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model.fit(x, classes), "predict_proba")
    assert not hasattr(DualstreamClassifier(spec={"rho": -1.0}), "predict_proba")
    # Parameters set after fitting do not affect the fitted model.
    model.set_params(spec=None)
    assert not hasattr(model, "predict_proba")
    assert hasattr(model.fit(x, classes), "predict_proba")


def test_many_classes_and_numbers_are_learned(rows):
    x, classes, numbers = rows
    assert DualstreamClassifier().fit(x, classes).score(x, classes) > 0.7
    assert DualstreamRegressor().fit(x, numbers).score(x, numbers) > 0.9


def test_what_cannot_be_is_refused(rows):
    x, classes, numbers = rows
    model = DualstreamClassifier()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(x, classes)
    model.partial_fit(x, classes, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="since the first call"):
        model.partial_fit(x, classes, classes=[0, 1])
    with pytest.raises(ValueError, match="unseen labels"):
        model.partial_fit(x, classes + 1)
    with pytest.raises(ValueError, match="at least 2 classes"):
        model.fit(x, np.ones(60))
    with pytest.raises(ValueError, match="passes must be at least 1"):
        DualstreamClassifier(passes=0).fit(x, classes)
    with pytest.raises(ValueError, match="spec must not hold 'task'"):
        DualstreamClassifier(spec={"task": "binary"}).fit(x, classes)
    with pytest.raises(ValueError, match="rho must be"):
        DualstreamClassifier(spec={"rho": -1.0}).fit(x, classes)
    with pytest.raises(ValueError, match="eta must be"):
        PortfolioClassifier(eta=2.0).fit(x, classes)
    with pytest.raises(ValueError, match="members must be one of ten"):
        PortfolioRegressor("eight").fit(x, numbers)
    with pytest.raises(ValueError, match="task must be"):
        DualstreamRegressor("dc").fit(x, numbers)
    with pytest.raises(ValueError, match="beyond 1e100"):
        DualstreamRegressor().fit(x, numbers * 1e101)
    with pytest.raises(ValueError, match="beyond 1e100"):
        model.predict(x * 1e101)


def test_rows_that_fit_leaves_out_are_shown():
    x = np.array([[1e80], [-1e80]] * 20)
    model = DualstreamRegressor("sgd", spec={"loss": "squared"})
    with pytest.warns(ConvergenceWarning, match="rows left out"):
        model.fit(x, x[:, 0])
    assert model.model_.rejected > 0
    assert np.all(np.isfinite(model.predict(x)))


def test_solvers_imports_no_library_of_an_extra():
    code = "import sys; from dualstream import solvers;"
    code += "print({'sklearn', 'river', 'pandas'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_the_example_of_the_document_prints_what_it_says(capsys):
    text = (Path(__file__).parents[3] / "docs/guides/python-learners.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    exec(code, {})
    got = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(got) == code.count("print(")
    assert capsys.readouterr().out.splitlines() == got
