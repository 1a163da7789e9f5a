"""DCD and SDCA: golden optima, shrinking, ascent."""

import json

import numpy as np
import pytest

from solvers import solve
from solvers.losses import make_loss
from solvers.offline.methods import Start, method_of
from solvers.offline.problem import Problem
from tests.solvers.conftest import GOLDEN
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
    found = solve(adult, method, loss=loss, rho=rho, tol=1e-9, max_epochs=100_000)
    assert found.converged
    assert found.primal / rho == pytest.approx(golden["primal"], rel=1e-8)
    assert found.dual / rho <= golden["primal"] * (1 + 1e-12)
    assert found.weights[:10] == pytest.approx(golden["w10"], abs=1e-3)
    assert found.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-2)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_shrinking_changes_the_work_and_not_the_answer(loss, adult):
    asked = {"loss": loss, "rho": 1e-3, "tol": 1e-7, "max_epochs": 50_000}
    with_it, without = (
        solve(adult, "dcd", shrinking=shrinking, **asked) for shrinking in (True, False)
    )
    assert with_it.primal == pytest.approx(without.primal, rel=1e-7)
    assert with_it.epochs < without.epochs


@pytest.mark.parametrize("method", ["dcd", "sdca"])
def test_the_dual_never_falls_and_weights_stay_those_of_the_duals(method):
    batch = sparse_rows()
    problem = Problem(batch, batch.labels, make_loss("hinge"), 0.01, "penalized")
    chosen = method_of(method)
    options = {name: option.default for name, option in chosen.options.items()}
    run = chosen.begin(problem, Start(), options, np.random.default_rng(1))
    before = -np.inf
    for _ in range(60):
        run.advance()
        assert run.weights == pytest.approx(problem.from_duals(run.duals), abs=1e-11)
        assert np.all((run.duals * batch.labels >= 0) & (run.duals * batch.labels <= 1))
        dual = problem.bounds(run.weights, run.duals).dual
        assert dual >= before - 1e-15
        before = dual


def test_visits_in_permuted_order_leave_no_row_out(adult):
    asked = {"loss": "smooth_hinge", "rho": 0.01, "tol": 1e-6}
    permuted, drawn = (
        solve(adult, "sdca", visits=visits, **asked) for visits in ("permuted", "replacement")
    )
    assert permuted.epochs < drawn.epochs
    assert permuted.primal == pytest.approx(drawn.primal, rel=1e-6)
