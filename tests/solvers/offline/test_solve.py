"""solve: certificates from the definition, optima of an outside solver, clear refusals."""

import functools
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import InvalidRow, InvalidSpec, NotConverged, ShapeMismatch, solve
from dualstream.solvers.losses.loss_table import MARGIN_LOSSES
from dualstream.solvers.offline import method_registry as methods
from dualstream.solvers.offline.method_registry import method_of
from tests.solvers import reference
from tests.solvers.offline import conic
from tests.solvers.offline.rows import BAD_ROWS, dense, dual, primal, sparse_rows

# newton_l1 solves another problem: test_newton_l1.py.
METHODS = tuple(name for name in methods.METHODS if "l2" in method_of(name).regularizers)
CELLS = [(name, loss) for name in METHODS for loss in method_of(name).losses]
DUAL_METHODS = ("dcd", "sdca")
UNSEEDED = ("ocas", "mcpa")
RHO = 0.02


def rho_for(method, rho=RHO):
    """A rho that the method accepts: ASPDC has a condition."""
    return 3.0 if method == "aspdc" else rho


def first_loss(method):
    """The first loss for which the method itself makes the steps: sdca delegates the hinge
    to dcd.
    """
    return "absolute" if method == "sdca" else method_of(method).losses[0]


def rows_for(loss, **more):
    return sparse_rows(binary=loss in MARGIN_LOSSES, **more)


@pytest.fixture(scope="module")
def optimum():
    """The optimum of each loss with an intercept, by Clarabel, computed once."""
    return functools.cache(lambda loss, rho: conic.optimum(weighted(loss), loss, rho, bias=True))


def weighted(loss):
    """Rows of different weights, one of them of none."""
    weights = np.random.default_rng(5).uniform(0.2, 2.0, 120)
    weights[7] = 0.0
    return rows_for(loss, weights=weights)


@pytest.mark.parametrize(("method", "loss"), CELLS)
def test_every_method_meets_the_outside_optimum_of_every_loss(method, loss, optimum):
    batch, rho = weighted(loss), rho_for(method)
    result = solve(
        batch,
        method,
        loss=reference.loss_spec(loss),
        rho=rho,
        tol=1e-8,
        intercept="penalized",
        max_epochs=50_000,
    )
    assert result.converged and 0.0 <= result.gap <= 1e-8 * result.primal
    w = np.append(result.weights, result.intercept)
    assert result.primal == pytest.approx(primal(batch, w, loss, rho, bias=True), rel=1e-12)
    assert result.primal == pytest.approx(optimum(loss, rho), rel=1e-6)
    assert result.dual <= optimum(loss, rho) * (1 + 1e-9)
    if result.duals is not None:
        by_definition = dual(batch, result.duals, loss, rho, bias=True)
        assert result.dual == pytest.approx(by_definition, rel=1e-12)
        assert result.duals[7] == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_and_rows_stay_as_they_are(method):
    loss = first_loss(method)
    batch = rows_for(loss)
    columns = [np.copy(c) for c in (batch.indptr, batch.indices, batch.values, batch.labels)]
    first, again, other = (
        solve(batch, method, loss=loss, rho=rho_for(method), tol=1e-4, seed=seed)
        for seed in (4, 4, 5)
    )
    assert np.array_equal(first.weights, again.weights) and first.gap == again.gap
    assert np.array_equal(first.weights, other.weights) == (method in UNSEEDED)
    after = (batch.indptr, batch.indices, batch.values, batch.labels)
    assert all(np.array_equal(a, b) for a, b in zip(columns, after, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_progress_is_shown_each_epoch_and_true_ends_the_run(method):
    got = []

    def watch(progress):
        got.append(progress)
        return len(got) == 3

    loss = first_loss(method)
    result = solve(
        rows_for(loss), method, loss=loss, rho=rho_for(method, 1e-4), tol=0.0, callback=watch
    )
    assert result.status == "cancelled" and len(got) == 3
    epochs = [progress.epochs for progress in got]
    assert epochs == sorted(epochs) and 0.0 < epochs[0] <= 1.0 and result.epochs == epochs[-1]
    assert result.trace[-1].gap == result.gap >= 0.0
    assert np.isfinite(result.weights).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_may_not_go_on_says_so_and_is_certified_all_the_same(method):
    loss = first_loss(method)
    rho = rho_for(method, 1e-4)
    result = solve(rows_for(loss), method, loss=loss, rho=rho, tol=0.0, max_epochs=2)
    assert result.status == "max_epochs" and not result.converged
    assert (
        result.dual
        <= result.primal
        == pytest.approx(primal(rows_for(loss), result.weights, loss, rho), rel=1e-12)
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_warm_start_is_where_it_left_off(method):
    losses = method_of(method).losses
    loss = "smooth_hinge" if "smooth_hinge" in losses else losses[0]
    batch = rows_for(loss)
    options = {"loss": loss, "rho": rho_for(method), "intercept": "penalized", "max_epochs": 50_000}
    cold = solve(batch, method, tol=1e-7, **options)
    assert cold.epochs > 0.0
    assert solve(batch, method, tol=1e-6, duals=cold.duals, **options).epochs == 0.0
    w = np.append(cold.weights, cold.intercept)
    warm = solve(batch, method, tol=1e-7, weights=w, **options)
    assert warm.converged
    if loss == "smooth_hinge":  # At a kink weights do not say what their dual variables are.
        assert warm.trace[0].gap < 1e-2 * cold.trace[0].gap
    beyond = solve(batch, method, tol=1e-2, duals=np.full(len(batch), -9.0), **options)
    assert beyond.converged


@pytest.mark.parametrize("method", DUAL_METHODS)
@pytest.mark.parametrize("intercept", ["none", "penalized"])
def test_rows_that_are_gone_keep_their_part(method, intercept):
    """With fixed optimal duals of some rows, the optimum of the others is the optimum of all."""
    batch = weighted("hinge")
    options = {"loss": "hinge", "rho": RHO, "intercept": intercept, "max_epochs": 50_000}
    if method == "sdca":  # or dcd makes its steps
        options["visits"] = "random"
    whole = solve(batch, method, tol=1e-9, **options)
    gone, kept = slice(0, 50), batch[50:]
    x = dense(batch, intercept == "penalized")[gone]
    fixed = x.T @ (batch.weights[gone] * whole.duals[gone])
    total = batch.weights.sum()
    result = solve(kept, method, tol=1e-9, fixed=fixed, total=total, **options)
    assert result.weights == pytest.approx(whole.weights, abs=1e-4)
    assert result.intercept == pytest.approx(whole.intercept, abs=1e-4)
    u = fixed + dense(kept, intercept == "penalized").T @ (kept.weights * result.duals)
    w = u / (RHO * total)
    assert w[:15] == pytest.approx(result.weights, rel=1e-12)
    losses = [
        max(0.0, 1 - y * z)
        for y, z in zip(
            kept.labels,
            dense(kept) @ w[:15] + (w[15] if intercept == "penalized" else 0.0),
            strict=True,
        )
    ]
    by_definition = kept.weights @ losses / total + RHO / 2 * w @ w - fixed @ w / total
    assert result.primal == pytest.approx(by_definition, rel=1e-12)
    assert 0.0 <= result.gap == pytest.approx(result.primal - result.dual, abs=1e-12)


def test_awkward_rows_give_a_certified_answer_or_a_clear_error(subtests):
    for kind, method, rho in product(BAD_ROWS, METHODS, [1e-100, 1e-3, 1e100]):
        with subtests.test(kind=kind, method=method, rho=rho):
            batch, loss = BAD_ROWS[kind], first_loss(method)
            options = {
                "loss": loss,
                "rho": rho,
                "intercept": "penalized",
                "max_epochs": 5000 if rho == 1e-3 else 50,
            }
            try:
                result = solve(batch, method, tol=1e-4, **options)
            except NotConverged as error:
                assert "exceeded the range of float64" in str(error) and rho < 1.0
                return
            except InvalidSpec as error:
                assert method == "aspdc" and "need not converge below" in str(error)
                return
            assert np.isfinite(
                [*result.weights, result.intercept, result.primal, result.dual]
            ).all()
            assert result.gap >= 0.0
            ordinary = 1e-3 <= rho and kind != "large and small numbers"
            assert result.converged or not ordinary


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "simplex"}, "method must be one of dcd"),
        ({"loss": "hing"}, "loss must be one of hinge"),
        ({"method": "dcd", "loss": "logistic"}, "one of hinge, squared_hinge for dcd"),
        ({"loss": {"kind": "huber", "delta": -1.0}}, "loss.delta must be a number in"),
        ({"regularizer": "l1"}, "regularizer must be one of l2"),
        ({"rho": 0.0}, "rho must be a number in"),
        ({"rho": float("nan")}, "rho must be a number in"),
        ({"tol": -1e-3}, "tol must be a number in"),
        ({"max_epochs": 0}, "max_epochs must be a number in"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"intercept": "maybe"}, "intercept must be one of none, penalized, free"),
        ({"intercept": "free"}, "ties all dual variables together"),
        (
            {"method": "svrg", "loss": "logistic", "shrinking": True},
            "'shrinking' is not a known field",
        ),
        ({"method": "dcd", "shrinking": 1}, "shrinking must be true or false"),
        ({"visits": "sorted"}, "visits must be one of permuted, cyclic, random"),
        ({"fixed": np.zeros(15)}, "total must be given if and only if fixed"),
        ({"fixed": np.zeros(15), "total": 1.0}, "total must be at least the weight of the rows"),
        ({"weights": np.zeros(15), "duals": np.zeros(120)}, "weights must be left out"),
        ({"weights": np.full(15, np.inf)}, "weights must be finite numbers"),
        ({"weights": np.ones(16)}, "0 at the intercept"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_words(more, words):
    method = more.pop("method", "sdca")
    with pytest.raises(InvalidSpec) as refused:
        solve(rows_for("hinge"), method, **more)
    assert words in str(refused.value)


def test_rows_that_fit_nothing_are_refused():
    batch = rows_for("hinge")
    with pytest.raises(InvalidRow, match=r"row 2: hinge takes the labels -1 \(or 0\) and 1, got 3"):
        solve(batch.with_labels(np.where(np.arange(120) == 2, 3.0, batch.labels)))
    with pytest.raises(InvalidRow, match="row 0: squared takes the labels numbers, got nan"):
        solve(batch.with_labels(np.full(120, np.nan)), loss="squared")
    with pytest.raises(ShapeMismatch, match=r"duals have shape \(3,\), expected \(120,\)"):
        solve(batch, duals=np.zeros(3))
    with pytest.raises(ShapeMismatch, match=r"weights have shape \(14,\), expected \(16,\)"):
        solve(batch, weights=np.zeros(14))
    for none in (batch[:0], sparse_rows(weights=np.zeros(120))):
        with pytest.raises(InvalidSpec, match="one row with a weight above 0"):
            solve(none)


def test_zero_and_minus_one_are_the_same_class():
    batch = rows_for("hinge")
    zeros = batch.with_labels(np.where(batch.labels < 0, 0.0, 1.0))
    a, b = solve(batch), solve(zeros)
    assert np.array_equal(a.weights, b.weights)
