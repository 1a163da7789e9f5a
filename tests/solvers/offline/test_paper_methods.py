"""SPDC, ASDCA, ASPDC, ASPDC-i, SVRG: golden trajectories, and the properties of each."""

import json

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, solve
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.method import Start
from dualstream.solvers.offline.method_registry import method_of
from dualstream.solvers.offline.options import with_defaults
from dualstream.solvers.offline.problem import Problem
from tests.solvers.conftest import GOLDEN
from tests.solvers.offline.rows import dense, sparse_rows

NUMBERS = json.loads((GOLDEN / "dual.json").read_text())
OPTIMA = NUMBERS["smooth_hinge_erm_500rows_bias_unitrows_optimum"]
TRAJECTORIES = NUMBERS["trajectories_[P,D]_order_i=(7919t+13)%500,t<1000"]
COSINES = np.cos(np.arange(1, 125))
METHODS = ("sdca", "spdc", "asdca", "aspdc", "aspdc_i", "svrg")


@pytest.fixture(scope="module")
def unit_rows(adult) -> Batch:
    """[x, 1] of each row, scaled to norm 1, as the authors of ASPDC have it."""
    x = dense(adult, bias=True)
    return Batch.from_dense(x / np.linalg.norm(x, axis=1, keepdims=True), adult.labels)


class InOrder:
    """Visits of a known order, 500 at a time."""

    def __init__(self, order):
        self.parts = [np.array(order[first : first + 500]) for first in range(0, len(order), 500)]

    def epoch(self):
        return self.parts.pop(0)


def run_of(method, batch, loss, rho, intercept="none", **options):
    problem = Problem(batch, batch.labels, make_loss(loss), rho, intercept)
    settings = with_defaults(method, options)
    return method_of(method).begin(problem, Start(), settings, np.random.default_rng(1))


@pytest.mark.parametrize("cell", TRAJECTORIES)
def test_trajectory_is_the_golden_one(cell, unit_rows):
    name, rho = cell.split("/")
    method, stages = ("aspdc_i", 3) if name.startswith("aspdc_i") else (name, 1)
    more = {"stage_epochs": 2} if stages > 1 else {}
    run = run_of(method, unit_rows, "smooth_hinge", float(rho), **more)
    run._visits = InOrder([(7919 * t + 13) % 500 for t in range(1000)] * stages)
    for _ in range(2 * stages):
        run.advance()
    bounds = run.bounds()
    assert [bounds.primal, bounds.dual] == pytest.approx(TRAJECTORIES[cell], abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_optimum_is_the_golden_one(method, unit_rows):
    golden = OPTIMA["0.01"]
    result = solve(unit_rows, method, loss="smooth_hinge", rho=0.01, tol=1e-12, max_epochs=3000)
    assert result.converged
    assert result.primal == pytest.approx(golden["primal"], rel=1e-10)
    assert result.dual == pytest.approx(golden["dual"], rel=1e-10)
    assert result.weights[:10] == pytest.approx(golden["w10"], abs=1e-5)
    assert np.linalg.norm(result.weights) == pytest.approx(golden["norm"], abs=1e-5)
    assert result.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-5)
    assert np.count_nonzero(np.abs(result.weights) > 1e-6) == golden["nnz"]


@pytest.mark.parametrize("method", ["sdca", "spdc", "asdca", "aspdc_i"])
def test_badly_conditioned_optimum_is_the_golden_one(method, unit_rows):
    golden = OPTIMA["1e-05"]
    result = solve(unit_rows, method, loss="smooth_hinge", rho=1e-5, tol=1e-7, max_epochs=3000)
    assert result.converged
    assert result.primal == pytest.approx(golden["primal"], rel=2e-7)
    assert result.dual == pytest.approx(golden["dual"], rel=2e-7)
    assert result.dual <= golden["primal"] * (1 + 1e-12)
    # A primal that close leaves the weights |w - w*| <= sqrt(2 gap / rho) = 0.05.
    assert result.weights[:10] == pytest.approx(golden["w10"], abs=5e-3)
    assert np.linalg.norm(result.weights) == pytest.approx(golden["norm"], abs=0.05)
    assert result.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=0.1)


def test_acceleration_helps_where_the_problem_is_badly_conditioned(unit_rows):
    options = {"loss": "smooth_hinge", "rho": 1e-5, "tol": 1e-4, "max_epochs": 5000}
    epochs = {name: solve(unit_rows, name, **options).epochs for name in ("sdca", "asdca", "spdc")}
    assert 3 * epochs["asdca"] < epochs["sdca"] and epochs["spdc"] < epochs["sdca"]


def test_aspdc_outside_its_condition_is_refused_with_the_reason(unit_rows):
    least = 4 / 500
    options = {"loss": "smooth_hinge", "tol": 1e-4}
    assert solve(unit_rows, "aspdc", rho=least * (1 + 1e-9), **options).converged
    with pytest.raises(InvalidSpec, match=r"at least 4 R\^2 / \(n gamma\) = 0.008 of these rows"):
        solve(unit_rows, "aspdc", rho=0.9 * least, **options)
    # R^2 of rows four times as long is sixteen times as much, and so is it for heavy rows.
    longer = Batch.from_dense(4 * dense(unit_rows), unit_rows.labels)
    with pytest.raises(InvalidSpec, match="= 0.128 of these rows"):
        solve(longer, "aspdc", rho=0.1, **options)


def test_a_certified_stage_ends_when_its_own_gap_is_small(unit_rows):
    """Algorithm 2 from its definition: the gap of each stage's problem when the next one begins."""
    run = run_of("aspdc_i", unit_rows, "smooth_hinge", 1e-3, stages="certified")
    x, y, n, rho, kappa = dense(unit_rows), unit_rows.labels, 500, 1e-3, run.kappa
    assert kappa == pytest.approx(4 / n - rho)
    eta = rho / (rho + 2 * kappa)
    xi = (1 + 1 / eta) * 0.5  # P(0) - D(0)
    ended = 0
    for _ in range(60):
        centre = run._centre.copy()
        run.advance()
        w, b = run.weights[:-1], y * run.duals
        margins = y * (x @ w)
        losses = np.where(margins < 0, 0.5 - margins, 0.5 * np.maximum(0, 1 - margins) ** 2)
        z = run._centre[:-1] if not np.array_equal(centre, run._centre) else centre[:-1]
        primal = losses.mean() + rho / 2 * w @ w + kappa / 2 * w @ w - kappa * w @ z
        u = kappa * z + x.T @ run.duals / n
        dual = np.mean(b - b * b / 2) - u @ u / (2 * (rho + kappa))
        is_small = primal - dual <= eta * xi / (2 * (1 + 1 / eta)) + 1e-15
        assert (run._epochs_left == 0) == is_small
        if is_small:
            ended += 1
            xi *= 1 - eta / 2
    assert 0 < ended < 60


@pytest.mark.parametrize("intercept", ["none", "penalized"])
def test_lazy_steps_are_those_of_the_dense_definition(intercept):
    """SPDC and SVRG, whose steps move every coordinate, row after row as the papers have them."""
    batch = sparse_rows(n=40, dim=12, weights=np.random.default_rng(2).uniform(0.5, 2, 40))
    x, y = dense(batch, bias=True), batch.labels
    if intercept == "none":
        x[:, -1] = 0.0
    n, rho = 40, 0.01
    k = n * batch.weights / batch.weights.sum()
    order = [(7 * t + 3) % n for t in range(n)] * 3
    slope = lambda z, i: -y[i] * np.clip(1 - y[i] * z, 0, 1)  # noqa: E731

    spdc = run_of("spdc", batch, "smooth_hinge", rho, intercept)
    spdc._visits = InOrder(order)
    r, gamma = np.sqrt(np.max(np.sum(x * x, 1))), 1 / k.max()
    tau, sigma = np.sqrt(gamma / (n * rho)) / (2 * r), np.sqrt(n * rho / gamma) / (2 * r)
    theta = 1 - 1 / (n + 2 * r * np.sqrt(n / (rho * gamma)))
    w, bar, u, duals = (np.zeros(size) for size in (13, 13, 13, n))
    for i in order:
        s = k[i] / sigma
        new = y[i] * np.clip((1 - y[i] * (x[i] @ bar - s * duals[i])) / (1 + s), 0, 1)
        d, duals[i] = k[i] * (new - duals[i]), new
        after = (w + tau * (u + d * x[i])) / (1 + rho * tau)
        u += d * x[i] / n
        w, bar = after, after + theta * (after - w)
    spdc.advance()
    assert spdc.weights == pytest.approx(w, abs=1e-12)
    assert spdc.duals == pytest.approx(duals, abs=1e-12)

    svrg = run_of("svrg", batch, "smooth_hinge", rho, intercept)
    svrg._visits = InOrder(order)
    eta = 0.25 / (np.max(k * np.sum(x * x, 1)) + rho)
    anchor = np.zeros(13)
    mu = sum(k[i] * slope(0.0, i) * x[i] for i in range(n)) / n
    w = anchor
    for i in order:
        g = k[i] * (slope(x[i] @ w, i) - slope(x[i] @ anchor, i)) * x[i]
        w = w - eta * (g + rho * (w - anchor) + mu)
    svrg.advance()
    svrg.advance()
    assert svrg.weights == pytest.approx(w, abs=1e-12)
