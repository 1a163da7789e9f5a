"""Proximal Newton method against golden numbers, scikit-learn and the optimality conditions."""

import json
from itertools import product

import numpy as np
import pytest

from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline import proximal_newton as local_phase
from dualstream.solvers.offline.proximal_newton import Objective, Rows, mean_loss, minimise
from tests.solvers.conftest import GOLDEN
from tests.solvers.first_order_reference import dense
from tests.solvers.offline.support import everything, rows_of
from tests.solvers.online.first_order_support import weighted

OPTIMA = json.loads((GOLDEN / "dual.json").read_text())[
    "l1_logistic_optimum_500rows_unpenalised_intercept(1-based support)"
]
LOGISTIC = make_loss("logistic").numbers
SMOOTH = [
    make_loss("logistic"),
    make_loss("squared_hinge"),
    make_loss("smooth_hinge", 0.5),
    make_loss("squared"),
    make_loss("huber", 0.5),
]


def nothing(rows):
    return np.zeros(rows.width + 1), np.zeros(rows.width, bool)


@pytest.mark.parametrize("lam", OPTIMA)
@pytest.mark.parametrize("start", [everything, nothing])
def test_minimum_is_the_golden_one(lam, start, adult):
    rows, golden = rows_of(adult), OPTIMA[lam]
    result = minimise(rows, Objective(LOGISTIC, float(lam), 0.0), *start(rows), 1e-11)
    assert result.objective == pytest.approx(golden["objective"], abs=1e-12)
    assert (np.flatnonzero(result.weights[:-1]) + 1).tolist() == golden["support"]
    assert result.weights[-1] == pytest.approx(golden["intercept"], abs=1e-8)
    assert result.weights[:10] == pytest.approx(golden["w10"], abs=1e-8)
    # The golden norm counts the intercept.
    assert np.linalg.norm(result.weights) == pytest.approx(golden["norm"], abs=1e-8)
    assert result.optimality <= 1e-11


def test_minimum_meets_the_conditions_of_optimality(adult, subtests):
    for loss, (lam, sigma), bias in product(
        SMOOTH, [(0.05, 0.0), (0.003, 0.0), (0.01, 0.1), (0.0, 0.02)], [1.0, 0.0]
    ):
        with subtests.test(loss=loss, lam=lam, sigma=sigma, bias=bias):
            batch = weighted(adult[:200])
            rows = rows_of(batch, bias)
            result = minimise(rows, Objective(loss.numbers, lam, sigma), *nothing(rows), 1e-10)
            x, w = dense(batch, bias), result.weights
            slopes = [loss.slope(z, y) for z, y in zip(x @ w, batch.labels, strict=True)]
            gradient = x.T @ (batch.weights * slopes) / len(x)
            gradient[:-1] += sigma * w[:-1]
            assert result.gradient == pytest.approx(gradient, abs=1e-12)
            active = w[:-1] != 0.0
            assert gradient[:-1][active] == pytest.approx(-lam * np.sign(w[:-1][active]), abs=1e-8)
            assert np.all(np.abs(gradient[:-1][~active]) <= lam + 1e-8)
            assert abs(gradient[-1]) <= 1e-8
            values = [loss.value(z, y) for z, y in zip(x @ w, batch.labels, strict=True)]
            mean = np.mean(batch.weights * values)
            assert mean_loss(rows, loss.numbers, w) == pytest.approx(mean, abs=1e-12)
            penalty = lam * np.sum(np.abs(w[:-1])) + 0.5 * sigma * np.sum(w[:-1] ** 2)
            assert result.objective == pytest.approx(mean + penalty, abs=1e-12)


@pytest.mark.parametrize("lam", [0.1, 0.02, 0.01])
def test_minimum_is_that_of_scikit_learn(lam):
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((150, 40)) * np.exp(rng.standard_normal(40))
    truth = np.where(rng.random(40) < 0.2, rng.standard_normal(40), 0.0)
    y = np.where(x @ truth + 0.3 + rng.logistic(size=150) > 0, 1.0, -1.0)
    other = linear_model.LogisticRegression(
        l1_ratio=1.0, C=1.0 / (150 * lam), solver="saga", tol=1e-12, max_iter=200_000
    ).fit(x, y)
    indptr, indices = np.arange(0, 6001, 40), np.tile(np.arange(40, dtype=np.int32), 150)
    rows = Rows(indptr, indices, x.ravel(), y, np.ones(150), 40, 1.0)
    result = minimise(rows, Objective(LOGISTIC, lam, 0.0), *nothing(rows), 1e-12)
    assert result.weights[:-1] == pytest.approx(other.coef_[0], abs=1e-7)
    assert result.weights[-1] == pytest.approx(other.intercept_[0], abs=1e-7)
    assert np.array_equal(result.weights[:-1] != 0.0, np.abs(other.coef_[0]) > 1e-9)


def test_set_without_a_coordinate_of_the_minimum_is_grown(adult):
    rows = rows_of(adult)
    objective = Objective(LOGISTIC, 0.02, 0.0)
    members = np.zeros(123, bool)
    members[[0, 16]] = True
    result = minimise(rows, objective, np.zeros(124), members, 1e-11)
    whole = minimise(rows, objective, *everything(rows), 1e-11)
    assert result.weights == pytest.approx(whole.weights, abs=1e-9)


def test_equal_columns_and_equal_rows_are_no_obstacle():
    x = np.tile([[1.0, 1.0, -2.0], [0.5, 0.5, 1.0]], (10, 1))
    y = np.tile([1.0, -1.0], 10)
    indptr, indices = np.arange(0, 61, 3), np.tile(np.arange(3, dtype=np.int32), 20)
    rows = Rows(indptr, indices, x.ravel(), y, np.ones(20), 3, 1.0)
    result = minimise(rows, Objective(LOGISTIC, 0.01, 0.0), *everything(rows), 1e-9)
    assert result.optimality <= 1e-9


def test_one_class_only_has_an_end(adult):
    rows = rows_of(adult[:50])
    alone = Rows(rows.indptr, rows.indices, rows.values, np.ones(50), rows.weights, rows.width, 1.0)
    result = minimise(alone, Objective(LOGISTIC, 0.02, 0.0), *nothing(alone), 1e-8)
    assert result.objective < 1e-6 and np.all(np.isfinite(result.weights))


def test_set_that_is_too_large_is_refused(adult, monkeypatch):
    monkeypatch.setattr(local_phase, "MAX_MEMBERS", 3)
    rows = rows_of(adult)
    assert minimise(rows, Objective(LOGISTIC, 0.02, 0.0), *nothing(rows), 1e-9) is None
