"""newton_l1: golden optima, scikit-learn's l1 logistic regression, bounds, hard rows."""

import json
import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dualstream.solvers import Batch, InvalidSpec, solve
from dualstream.solvers.losses.loss_table import MARGIN_LOSSES
from dualstream.solvers.offline.method_registry import method_of
from tests.solvers import reference
from tests.solvers.conftest import GOLDEN
from tests.solvers.offline.rows import dense, loss_of, sparse_rows

OPTIMA = json.loads((GOLDEN / "dual.json").read_text())[
    "l1_logistic_optimum_500rows_unpenalised_intercept(1-based support)"
]
LOSSES = method_of("newton_l1").losses


def primal(batch, w, intercept, loss, rho):
    """The objective from its definition."""
    scores = dense(batch) @ w + intercept
    losses = [
        reference.value(loss, z, y, loss_of(loss))
        for z, y in zip(scores, batch.labels, strict=True)
    ]
    return np.average(losses, weights=batch.weights) + rho * np.abs(w).sum()


@pytest.mark.parametrize("lam", OPTIMA)
def test_optimum_is_the_golden_one(lam, adult):
    golden = OPTIMA[lam]
    result = solve(adult, "newton_l1", loss="logistic", rho=float(lam), tol=1e-9, intercept="free")
    assert result.converged
    assert result.primal == pytest.approx(golden["objective"], abs=1e-10)
    assert (np.flatnonzero(result.weights) + 1).tolist() == golden["support"]
    assert result.intercept == pytest.approx(golden["intercept"], abs=1e-6)
    # The golden norm, cosines and count have the intercept, too.
    w = np.append(result.weights, result.intercept)
    assert w[:10] == pytest.approx(golden["w10"], abs=1e-6)
    assert np.linalg.norm(w) == pytest.approx(golden["norm"], abs=1e-6)
    assert w @ np.cos(np.arange(1, 125)) == pytest.approx(golden["dot_cos"], abs=1e-6)
    assert np.count_nonzero(w) == golden["nnz"]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", ["none", "free"])
@pytest.mark.parametrize("rho", [0.05, 0.002])
def test_the_gap_closes_from_dual_variables_that_are_allowed(loss, intercept, rho):
    weights = np.random.default_rng(2).uniform(0.2, 2.0, 120)
    weights[7] = 0.0
    batch = sparse_rows(weights=weights, binary=loss in MARGIN_LOSSES)
    spec = reference.loss_spec(loss)
    options = {"loss": spec, "rho": rho, "intercept": intercept}
    result = solve(batch, "newton_l1", tol=1e-9, **options)
    assert result.converged, result
    assert result.primal == pytest.approx(
        primal(batch, result.weights, result.intercept, loss, rho), rel=1e-12
    )
    share = batch.weights / batch.weights.sum()
    assert np.abs(dense(batch).T @ (share * result.duals)).max() <= rho * (1 + 1e-12)
    if intercept == "free":
        assert abs(share @ result.duals) <= 1e-15
    conjugates = [
        reference.conjugate(loss, tau, y, loss_of(loss))
        for tau, y in zip(result.duals, batch.labels, strict=True)
    ]
    assert result.dual == pytest.approx(-share @ conjugates, rel=1e-12)
    nudged = [
        primal(batch, result.weights + 1e-4 * d, result.intercept, loss, rho)
        for d in np.random.default_rng(0).normal(size=(5, batch.dim))
    ]
    assert min(nudged) >= result.primal
    warm = solve(batch, "newton_l1", tol=1e-8, duals=result.duals, **options)
    assert warm.converged and warm.trace[0].dual == pytest.approx(result.dual, rel=1e-12)
    w = np.append(result.weights, result.intercept)
    assert solve(batch, "newton_l1", tol=1e-8, weights=w, **options).epochs == 0.0


def test_objective_is_that_of_scikit_learn(adult):
    x, y = dense(adult), adult.labels
    rho = 0.004
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # How scikit-learn wants l1 asked for changes.
        outside = LogisticRegression(
            penalty="l1", C=1 / (rho * len(y)), solver="liblinear", fit_intercept=False,
            tol=1e-10, max_iter=10_000,
        ).fit(x, y)  # fmt: skip
    result = solve(adult, "newton_l1", loss="logistic", rho=rho, tol=1e-10)
    theirs = primal(adult, outside.coef_[0], 0.0, "logistic", rho)
    assert result.primal == pytest.approx(theirs, rel=1e-6)
    assert result.dual <= theirs * (1 + 1e-12)


def test_hard_rows():
    rng = np.random.default_rng(3)
    wide = Batch.from_dense(rng.normal(size=(20, 400)), np.where(rng.random(20) < 0.5, 1.0, -1.0))
    twice = np.repeat(rng.normal(size=(30, 2)), 2, axis=1)
    for batch in (
        wide,
        Batch.from_dense(twice, np.where(twice[:, 0] > 0, 1.0, -1.0)),
        Batch.from_dense(np.full((10, 3), 2.0), np.tile([1.0, -1.0], 5)),
        Batch.from_dense(np.zeros((4, 3)), np.tile([1.0, -1.0], 2)),
    ):
        for intercept in ("none", "free"):
            result = solve(
                batch, "newton_l1", loss="logistic", rho=0.01, tol=1e-7, intercept=intercept
            )
            assert result.converged, result
    one = Batch.from_dense(rng.normal(size=(10, 3)), np.ones(10))
    result = solve(one, "newton_l1", loss="logistic", rho=0.1, tol=1e-7, intercept="free")
    assert result.primal <= 1e-9 and result.dual == 0.0
    for rho in (1e-100, 1e100):
        result = solve(sparse_rows(), "newton_l1", loss="logistic", rho=rho, max_epochs=5)
        assert (
            np.isfinite(result.weights).all() and result.dual <= result.primal <= np.log(2) + 1e-12
        )
    assert np.count_nonzero(result.weights) == 0


def test_what_it_cannot_have_is_refused_with_the_reason():
    batch = sparse_rows()
    with pytest.raises(InvalidSpec, match="stays out of"):
        solve(batch, "newton_l1", loss="logistic", intercept="penalized")
    with pytest.raises(InvalidSpec, match="regularizer must be one of l1"):
        solve(batch, "newton_l1", loss="logistic", regularizer="l2")
    with pytest.raises(InvalidSpec, match="loss must be one of"):
        solve(batch, "newton_l1", loss="hinge")
    few = solve(batch, "newton_l1", loss="logistic", rho=1e-4, members=2, tol=1e-9)
    assert few.status == "stalled" and few.dual <= few.primal
