"""DCD and SDCA: golden optima, shrinking, ascent."""

import json

import numpy as np
import pytest

from dualstream.solvers import Batch, NotConverged, solve
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.method import Start
from dualstream.solvers.offline.method_registry import method_of
from dualstream.solvers.offline.options import with_defaults
from dualstream.solvers.offline.problem import Problem
from tests.solvers import reference
from tests.solvers.conftest import GOLDEN
from tests.solvers.golden_cells import golden_rows
from tests.solvers.offline.rows import sparse_rows

NUMBERS = json.loads((GOLDEN / "dual.json").read_text())
COSINES = np.cos(np.arange(1, 124))


@pytest.mark.parametrize("method", ["dcd", "sdca"])
@pytest.mark.parametrize("cell", NUMBERS["dcd_500rows_nobias"])
def test_optimum_is_the_golden_one(method, cell, adult):
    golden = NUMBERS["dcd_500rows_nobias"][cell]
    name, c = cell.split("/C=")
    loss = {"l1": "hinge", "l2": "squared_hinge"}[name]
    rho = 1 / (float(c) * len(adult))
    result = solve(adult, method, loss=loss, rho=rho, tol=1e-9, max_epochs=100_000)
    assert result.converged
    assert result.primal / rho == pytest.approx(golden["primal"], rel=1e-8)
    assert result.dual / rho <= golden["primal"] * (1 + 1e-12)
    assert result.dual / rho == pytest.approx(golden["dual_max"], rel=1e-9)
    assert result.weights[:10] == pytest.approx(golden["w10"], abs=1e-3)
    assert np.linalg.norm(result.weights) == pytest.approx(golden["norm"], rel=1e-6)
    assert result.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-2)
    assert np.count_nonzero(result.weights) == golden["nnz"]


@pytest.mark.parametrize("cell", NUMBERS["odca_optimum_l2_rho0.01"])
def test_optimum_that_replays_come_to_is_that_of_the_golden_rows(cell, adult):
    golden, loss = NUMBERS["odca_optimum_l2_rho0.01"][cell], cell.split("/")[1]
    spec = reference.loss_spec(loss) if loss == "huber" else loss
    result = solve(golden_rows(loss, adult), "sdca", loss=spec, rho=0.01, tol=1e-11)
    assert result.converged and result.dual <= golden["optimum"] + 1e-12
    assert result.primal == pytest.approx(golden["optimum"], rel=1e-10)
    assert result.weights[:10] == pytest.approx(golden["w10"], abs=1e-5)
    assert np.linalg.norm(result.weights) == pytest.approx(golden["norm"], abs=1e-5)
    assert result.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-5)
    assert np.count_nonzero(result.weights) == golden["nnz"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_shrinking_changes_the_work_and_not_the_answer(loss, adult):
    options = {"loss": loss, "rho": 1e-3, "tol": 1e-7, "max_epochs": 50_000}
    with_it, without = (
        solve(adult, "dcd", shrinking=shrinking, newton=False, **options)
        for shrinking in (True, False)
    )
    assert with_it.primal == pytest.approx(without.primal, rel=1e-7)
    assert with_it.epochs < without.epochs


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_permuted_steps_of_sdca_are_those_of_dcd(loss, adult):
    """Including shrinking; with replacement, rows are visited as in the paper, with the same
    result."""
    options = {"loss": loss, "rho": 1e-3, "tol": 1e-7, "max_epochs": 50_000}
    dcd, sdca = solve(adult, "dcd", **options), solve(adult, "sdca", **options)
    assert sdca.method == "sdca" and sdca.epochs == dcd.epochs
    assert sdca.duals.tobytes() == dcd.duals.tobytes()
    drawn = solve(adult, "sdca", visits="random", **options)
    assert drawn.epochs > sdca.epochs
    assert drawn.primal == pytest.approx(sdca.primal, rel=1e-7)


@pytest.mark.parametrize("method", ["dcd", "sdca"])
def test_the_dual_never_falls_and_weights_stay_those_of_the_duals(method):
    batch = sparse_rows()
    problem = Problem(batch, batch.labels, make_loss("hinge"), 0.01, "penalized")
    chosen = method_of(method)
    options = with_defaults(method, {})
    if method == "sdca":  # or dcd makes its steps
        options["visits"] = "random"
    run = chosen.begin(problem, Start(), options, np.random.default_rng(1))
    before = -np.inf
    for _ in range(60):
        run.advance()
        assert run.weights == pytest.approx(problem.from_duals(run.duals), abs=1e-11)
        assert np.all((run.duals * batch.labels >= 0) & (run.duals * batch.labels <= 1))
        dual = problem.bounds(run.weights, run.duals).dual
        assert dual >= before - 1e-15
        before = dual


def by_definition(x, y, orders):
    """Dual variables after these visits, with C = 1: Danda and Naik, section V."""
    alpha, w = np.zeros(len(y)), np.zeros(x.shape[1])
    for order in orders:
        for i in order:
            gradient = y[i] * (w @ x[i]) - 1.0
            new = min(max(alpha[i] - gradient / (x[i] @ x[i]), 0.0), 1.0)
            w += (new - alpha[i]) * y[i] * x[i]
            alpha[i] = new
    return y * alpha


@pytest.mark.parametrize("visits", ["cyclic", "random"])
def test_visits_are_those_of_the_definition(visits):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, 5))
    y = np.where(x[:, 0] + 0.5 * rng.standard_normal(60) > 0.0, 1.0, -1.0)
    options = {"loss": "hinge", "rho": 1.0 / 60, "tol": 0.0, "shrinking": False, "newton": False}
    result = solve(Batch.from_dense(x, y), "dcd", visits=visits, max_epochs=5, seed=7, **options)
    if visits == "cyclic":
        orders = [range(60)] * 5
        kept = solve(
            Batch.from_dense(x, y),
            "dcd",
            visits=visits,
            max_epochs=5,
            **(options | {"shrinking": True}),
        )
        assert np.array_equal(kept.duals, result.duals)
    else:
        draws, rows, orders = np.random.default_rng(7), np.arange(60), []
        for _ in range(5):
            drawn = (draws.random(60) * 60).astype(int)
            order = []
            for at, other in enumerate(drawn):
                rows[[at, other]] = rows[[other, at]]
                order.append(rows[at])
            orders.append(order)
    assert result.epochs == 5
    assert result.duals == pytest.approx(by_definition(x, y, orders), abs=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("visits", ["cyclic", "random"])
def test_every_order_of_visits_comes_to_the_same_optimum(loss, visits):
    batch = sparse_rows()
    options = {"loss": loss, "rho": 0.01, "tol": 1e-8}
    permuted = solve(batch, "dcd", **options)
    for method in ("dcd", "sdca"):
        other = solve(batch, method, visits=visits, **options)
        assert other.converged and other.primal == pytest.approx(permuted.primal, rel=1e-7)


def test_visits_in_permuted_order_leave_no_row_out(adult):
    options = {"loss": "smooth_hinge", "rho": 0.01, "tol": 1e-6}
    permuted, drawn = (
        solve(adult, "sdca", visits=visits, **options) for visits in ("permuted", "random")
    )
    assert permuted.epochs < drawn.epochs
    assert permuted.primal == pytest.approx(drawn.primal, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", ["none", "penalized"])
@pytest.mark.parametrize("is_part", [False, True], ids=["all", "beside-others"])
def test_steps_on_all_active_rows_come_to_the_same_and_sooner(adult, intercept, is_part):
    """Also with a fixed part of other rows, and with columns that do not occur."""
    random = np.random.default_rng(2)
    batch = adult.take(np.arange(300)) if is_part else adult
    weights = random.integers(0, 4, len(batch)).astype(float)
    columns = batch.indptr, batch.indices, batch.values, batch.labels, weights, batch.dim
    batch = Batch(*columns)
    options = {"loss": "squared_hinge", "rho": 1e-4, "intercept": intercept, "max_epochs": 50_000}
    if is_part:
        kept = random.standard_normal(batch.dim + (intercept == "penalized"))
        options |= {"fixed": kept, "total": 2.0 * weights.sum()}
    result = solve(batch, "dcd", tol=1e-13, **options)
    passes = solve(batch, "dcd", tol=1e-8, newton=False, **options)
    assert result.converged and result.epochs < 0.5 * passes.epochs
    assert max(result.dual, passes.dual) <= result.primal + 1e-12
    assert result.primal == pytest.approx(passes.primal, rel=1e-8)
    assert result.weights == pytest.approx(passes.weights, abs=1e-3)
    assert np.all(result.duals * np.where(batch.labels > 0, 1.0, -1.0) >= 0.0)
    begun = solve(batch, "dcd", tol=1e-12, duals=passes.duals, **options)
    assert begun.converged and begun.epochs <= result.epochs


def rows_that_are_hard(name):
    x, y = np.random.default_rng(0).standard_normal((40, 6)), np.tile([1.0, -1.0], 20)
    if name == "one class":
        y[:] = 1.0
    elif name == "equal columns":
        x[:, 1:] = x[:, :1]
    elif name == "large":
        x *= 1e70
    elif name == "nothing":
        x[:] = 0.0
    elif name == "wide":
        x = np.random.default_rng(0).standard_normal((12, 400))
        y = y[:12]
    return Batch.from_dense(x, y)


@pytest.mark.parametrize("rho", [1e-12, 1e-3, 1e12])
@pytest.mark.parametrize(
    "name", ["one class", "equal columns", "large", "nothing", "wide", "separable or not"]
)
def test_hard_rows_end_with_no_less_than_passes_alone_reach(name, rho):
    batch = rows_that_are_hard(name)
    options = {"loss": "squared_hinge", "rho": rho, "tol": 1e-6, "max_epochs": 300}
    for intercept in ("none", "penalized"):
        try:
            passes = solve(batch, "dcd", newton=False, intercept=intercept, **options)
        except NotConverged:
            continue
        result = solve(batch, "dcd", intercept=intercept, **options)
        # At 1e70 rho is negligible compared with the squares of the rows: 300 passes do not suffice
        # either.
        share = 0.9 if name == "large" else 1 - 1e-6
        assert result.converged or result.dual >= share * passes.dual
        assert max(result.dual, passes.dual) <= result.primal * (1 + 1e-12)
