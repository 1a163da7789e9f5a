"""The estimators for scikit-learn: its own checks, and what they promise beside."""

import copy
import subprocess
import sys
from unittest import SkipTest

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from solvers import Batch, make_learner
from solvers.sklearn import DualstreamClassifier, DualstreamRegressor

ALGORITHMS = ("dual_ascent", "dc", "rda")
ESTIMATORS = [
    *(DualstreamClassifier(algorithm) for algorithm in ALGORITHMS),
    # dc knows margins only; the steps of rda are for losses of bounded slope.
    DualstreamRegressor(),
    DualstreamRegressor("rda", spec={"loss": "huber"}),
]


@parametrize_with_checks(ESTIMATORS)
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    # Else the check with array API dispatch is skipped.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        check(estimator)
    except SkipTest as reason:
        pytest.fail(f"no check may be skipped: {reason}")


@pytest.fixture
def rows():
    """60 rows of three classes in five dimensions, and numbers beside them."""
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
def test_partial_fit_goes_on_wherever_rows_are_cut(model, rows):
    x, classes, numbers = rows
    is_classifier = isinstance(model, DualstreamClassifier)
    y = classes if is_classifier else numbers
    first = {"classes": [0, 1, 2]} if is_classifier else {}
    whole = clone(model).partial_fit(x, y, **first)
    parts = clone(model).partial_fit(x[:1], y[:1], **first)
    parts = copy.deepcopy(parts.partial_fit(sparse.csr_matrix(x[1:20]), y[1:20]))
    parts.partial_fit(x[20:], y[20:])
    states = [one.model_.learner.state() for one in (whole, parts)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name


def test_entries_of_a_sparse_matrix_that_stand_twice_are_added(rows):
    x, classes, _ = rows
    doubled = sparse.csr_matrix(x[:1])
    doubled = sparse.csr_matrix(
        (np.repeat(doubled.data / 2, 2), np.repeat(doubled.indices, 2), 2 * doubled.indptr),
        shape=doubled.shape,
    )
    model = DualstreamClassifier().fit(x, classes)
    assert np.array_equal(model.decision_function(doubled), model.decision_function(x[:1]))


def test_a_class_without_a_row_is_never_predicted(rows):
    x, classes, _ = rows
    model = DualstreamClassifier().partial_fit(x[:9], np.tile([4, 9], 5)[:9], classes=[1, 9, 4])
    scores = model.decision_function(x)
    assert model.classes_.tolist() == [1, 4, 9]
    assert np.all(scores[:, 0] == -np.inf) and np.all(np.isfinite(scores[:, 1:]))
    assert set(model.predict(x)) == {4, 9}


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
    with pytest.raises(ValueError, match="task must be"):
        DualstreamRegressor("dc").fit(x, numbers)
    with pytest.raises(ValueError, match="beyond 1e100"):
        DualstreamRegressor().fit(x, numbers * 1e101)
    with pytest.raises(ValueError, match="beyond 1e100"):
        model.predict(x * 1e101)


def test_rows_that_fit_leaves_out_are_told():
    x = np.array([[1e80], [-1e80]] * 20)
    model = DualstreamRegressor("sgd", spec={"loss": "squared"})
    with pytest.warns(ConvergenceWarning, match="rows were left out"):
        model.fit(x, x[:, 0])
    assert model.model_.rejected > 0
    assert np.all(np.isfinite(model.predict(x)))


def test_solvers_imports_no_library_of_an_extra():
    code = "import sys, solvers; print({'sklearn', 'river', 'pandas'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
