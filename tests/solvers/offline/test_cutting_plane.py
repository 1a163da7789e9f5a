"""OCAS and MCPA: golden numbers, the line search by brute force, bounds, hard rows."""

import json
import warnings

import numpy as np
import pytest
from sklearn.svm import SVC, LinearSVC

from dualstream.solvers import Batch, solve
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.cut_kernels import line_search
from dualstream.solvers.offline.method import Start
from dualstream.solvers.offline.method_registry import method_of
from dualstream.solvers.offline.options import with_defaults
from dualstream.solvers.offline.problem import Problem
from dualstream.solvers.offline.relaxed_problem import Cuts, Relaxed
from tests.solvers.conftest import GOLDEN
from tests.solvers.offline import conic
from tests.solvers.offline.rows import dense, sparse_rows

NUMBERS = json.loads((GOLDEN / "svm.json").read_text())
INTERCEPTS = ("none", "penalized", "free")
METHODS = ("ocas", "mcpa")


def begin(batch, rho, intercept, **options):
    problem = Problem(batch, batch.labels, make_loss("hinge"), rho, intercept)
    settings = with_defaults("ocas", options)
    return method_of("ocas").begin(problem, Start(), settings, np.random.default_rng(0))


def hinge(batch, weights, intercept):
    return np.maximum(0.0, 1.0 - batch.labels * (dense(batch) @ weights + intercept))


@pytest.mark.parametrize("case", NUMBERS["cutting_planes"]["cases"], ids=lambda c: c["bias"])
def test_optimum_is_the_golden_one_in_all_modes_of_the_intercept(case, adult_1000):
    batch, intercept = adult_1000, case["bias"]
    rho = 1.0 / (case["c_over_m"] * len(batch))
    # mcpa1 has one part and the printed safeguard.
    runs = {
        name: solve(batch, method, rho=rho, tol=tol, intercept=intercept, **options)
        for name, method, tol, options in (
            ("ocas", "ocas", 1e-8, {}),
            ("mcpa4", "mcpa", 1e-8, {}),
            ("mcpa1", "mcpa", 1e-4, {"parts": 1, "lazy": True}),
        )
    }
    for name, result in runs.items():
        assert result.converged
        for tol in ("0.01", "0.0001"):
            iterations = next(at for at in result.trace if at.relative_gap <= float(tol)).epochs
            assert iterations <= 1.3 * case[f"iters_{name}_{tol}"], (name, tol)
    assert runs["ocas"].primal / rho == pytest.approx(case["ocas_1e-8"], rel=1e-8)
    for result in (runs["ocas"], runs["mcpa4"]):
        assert -1e-9 <= result.primal / rho / case["objective"] - 1 <= 1e-8
        assert result.dual / rho <= case["objective"] * (1 + 1e-9)
        assert np.linalg.norm(result.weights) == pytest.approx(case["norm_w"], abs=1e-3)
        assert result.intercept == pytest.approx(case.get("b", 0.0), abs=1e-3)


def test_each_iteration_is_the_golden_one(adult_1000):
    golden = NUMBERS["ocas_trace"]
    rho = 1.0 / (golden["c_over_m"] * 1000)
    run = begin(adult_1000, rho, "none", safeguard=golden["lambda"])
    for _, best, lower, k in golden["rows_t"]:
        run.advance()
        bounds = run.bounds()
        assert bounds.primal / rho == pytest.approx(best, abs=1e-4)
        assert bounds.dual / rho == pytest.approx(lower, abs=1e-4)
        assert run.last_step == pytest.approx(k, abs=1e-4)


def test_line_search_is_the_golden_one():
    golden = NUMBERS["line_search"]
    x, y = np.array(golden["X"]), np.array(golden["y"])
    c, w = golden["c_over_m"], np.array(golden["w1"])
    k = line_search(
        np.zeros(6), y * (x @ w), np.full(6, c), 0.0, float(w @ w), np.empty(6), np.empty(6)
    )
    assert k == pytest.approx(golden["k_star"], abs=1e-12)
    least = 0.5 * k * k * w @ w + c * np.maximum(0.0, 1.0 - k * y * (x @ w)).sum()
    assert least == pytest.approx(golden["phi"], abs=1e-12)


def test_line_search_finds_the_least_value_by_brute_force():
    rng = np.random.default_rng(4)
    for trial in range(300):
        n = int(rng.integers(1, 40))
        # Whole numbers make ties, among them margins of just 1 and moves of 0.
        grid = (lambda a: np.round(a)) if trial % 2 else (lambda a: a)
        margins, moves = grid(rng.normal(1, 1.5, n)), grid(rng.normal(0, 1.5, n))
        costs, slope, curve = rng.uniform(0.1, 1, n), rng.normal(0, 3), rng.uniform(0.05, 2)

        def value(k, m=margins, d=moves, c=costs, s=slope, q=curve):
            return s * k + q * k * k / 2 + c @ np.maximum(0.0, 1.0 - m - k * d)

        k = line_search(margins, moves, costs, slope, curve, np.empty(n), np.empty(n))
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = (1.0 - margins) / moves
        kinks = np.sort(kinks[np.isfinite(kinks) & (kinks > 0.0)])
        ends = np.concatenate([[0.0], kinks, [kinks[-1] + 100.0 if len(kinks) else 100.0]])
        inner = []
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            middle = 0.5 * (a + b)
            on = margins + middle * moves < 1.0
            rise = slope - costs[on] @ moves[on]
            inner.append(np.clip(-rise / curve, a, b))
        least = min(value(q) for q in np.concatenate([ends, inner]))
        assert k >= 0.0 and value(k) <= least + 1e-12 * (1.0 + abs(least))


def test_relaxed_problem_has_the_golden_value_and_not_the_printed_one(adult_1000):
    golden = NUMBERS["relaxed_dual"]
    rho = 1.0 / (golden["c_over_m"] * 1000)
    batch, x = adult_1000, dense(adult_1000)
    cuts, relaxed = Cuts(123, 1), None
    for size in golden["cut_sizes_sum_d"]:
        w = np.zeros(123) if relaxed is None else relaxed.weights
        active = batch.labels * (x @ w) < 1.0
        assert np.count_nonzero(active) == size
        cuts.add(x[active].T @ batch.labels[active] / 1000, size / 1000, 0.0, 0)
        relaxed = Relaxed(cuts, np.arange(cuts.count), rho, 0.0, 1e-12)
    primal = 0.5 * rho * relaxed.weights @ relaxed.weights + relaxed.levels.sum()
    assert relaxed.lower / rho == pytest.approx(golden["dual_value_with_sum_d"], rel=1e-7)
    assert primal / rho == pytest.approx(golden["primal_relaxed_value"], rel=1e-7)


@pytest.mark.parametrize("intercept", INTERCEPTS)
def test_bounds_contain_the_optimum_at_every_iteration(intercept):
    rng = np.random.default_rng(8)
    batch = sparse_rows(n=150, dim=10, weights=rng.uniform(0.0, 2.0, 150))
    best = conic.optimum(batch, "hinge", 0.003, bias=intercept != "none", free=intercept == "free")
    for options in ({"parts": 3, "rest": 1, "recall": 4}, {"lazy": True}, {"parts": 20}):
        run = begin(batch, 0.003, intercept, **options)
        before = (np.inf, -1.0)
        for _ in range(25):
            if not run.advance():
                break
            bounds = run.bounds()
            assert bounds.dual <= best * (1 + 1e-9) and bounds.primal >= best * (1 - 1e-9)
            assert bounds.primal <= before[0] and bounds.dual >= before[1]
            before = bounds.primal, bounds.dual
        assert bounds.primal == pytest.approx(best, rel=1e-2)
        # The dual variables of the rows are worth the bound, by the definition.
        by_duals = run._problem.bounds(run.weights, run.duals).dual
        if intercept != "free":
            assert by_duals == pytest.approx(bounds.dual, rel=1e-9)
        else:
            share = batch.weights / batch.weights.sum()
            assert abs(share @ run.duals) <= 1e-7


@pytest.mark.parametrize("method", METHODS)
def test_one_class_with_a_free_intercept_costs_nothing_and_ends(method):
    batch = Batch.from_dense(np.random.default_rng(0).normal(size=(30, 4)), np.ones(30))
    result = solve(batch, method, rho=0.1, tol=1e-6, intercept="free")
    assert result.converged and result.epochs < 10
    assert result.primal == pytest.approx(0.0, abs=1e-12) and result.dual == 0.0


HARD = {
    "constant feature": (np.full((20, 1), 3.0), np.tile([1.0, -1.0], 10)),
    "duplicate columns": (np.repeat(np.random.default_rng(1).normal(size=(20, 1)), 3, 1), None),
    "more features than rows": (np.random.default_rng(2).normal(size=(8, 60)), None),
    "one row": (np.array([[1.0, -2.0]]), np.array([-1.0])),
    "rows of zeros": (np.zeros((6, 2)), np.tile([1.0, -1.0], 3)),
    "the same row with both labels": (np.ones((2, 2)), np.array([1.0, -1.0])),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_rows_are_solved_as_the_outside_solver_has_it(name):
    x, y = HARD[name]
    y = np.where(x[:, 0] > 0, 1.0, -1.0) if y is None else y
    batch = Batch.from_dense(x, y)
    for intercept in INTERCEPTS:
        result = solve(batch, "mcpa", parts=5, rho=0.02, tol=1e-7, intercept=intercept)
        best = conic.optimum(
            batch, "hinge", 0.02, bias=intercept != "none", free=intercept == "free"
        )
        assert result.converged, (intercept, result)
        assert result.primal == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_golden_optimum_with_more_parts_than_rows(adult):
    golden = NUMBERS["edge"]["cuts_P_gt_m"]
    rho = 1.0 / (golden["c_over_m"] * golden["rows"])
    result = solve(adult[: golden["rows"]], "mcpa", parts=16, rho=rho, tol=1e-9, intercept="free")
    assert result.primal / rho == pytest.approx(golden["objective"], rel=1e-8)


@pytest.mark.parametrize("rho", [1e-100, 1e-12, 1e12, 1e100])
def test_rho_at_the_ends_of_its_range_gives_finite_bounds(rho, adult):
    for intercept in ("penalized", "free"):
        result = solve(adult[:100], "mcpa", rho=rho, tol=1e-6, intercept=intercept, max_epochs=10)
        numbers = (result.primal, result.dual, result.gap, result.intercept, result.weights.sum())
        assert np.isfinite(numbers).all()
        assert result.dual <= result.primal
        assert result.primal <= 1.0
        if rho > 1.0 and intercept != "free":
            assert result.converged and result.primal == pytest.approx(1.0, rel=1e-3)


def svm(batch, weights, intercept, c, penalized=False):
    """LIBSVM's objective, or LIBLINEAR's."""
    square = weights @ weights + (intercept**2 if penalized else 0.0)
    return 0.5 * square + c * hinge(batch, weights, intercept).sum()


def test_objective_is_that_of_libsvm_and_of_liblinear(adult):
    batch, c = adult[:300], 0.1
    x = dense(batch)
    options = {"rho": 1.0 / (c * len(batch)), "tol": 1e-8}
    free = SVC(kernel="linear", C=c, tol=1e-8).fit(x, batch.labels)
    theirs = svm(batch, free.coef_[0], free.intercept_[0], c)
    result = solve(batch, "mcpa", intercept="free", **options)
    assert result.primal / options["rho"] == pytest.approx(theirs, rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        penalized = LinearSVC(C=c, loss="hinge", tol=1e-9, max_iter=1_000_000).fit(x, batch.labels)
    theirs = svm(batch, penalized.coef_[0], penalized.intercept_[0], c, penalized=True)
    result = solve(batch, "mcpa", intercept="penalized", **options)
    assert result.primal / options["rho"] == pytest.approx(theirs, rel=1e-6)


def test_objective_on_an_exact_map_is_that_of_the_kernel_machine(adult):
    batch, c = adult[:120], 2.0
    x = dense(batch)
    gram = np.exp(-0.05 * ((x[:, None] - x[None]) ** 2).sum(axis=2))
    outside = SVC(C=c, gamma=0.05, tol=1e-9).fit(x, batch.labels)
    delta = np.zeros(len(batch))
    delta[outside.support_] = outside.dual_coef_[0]
    scores = gram @ delta + outside.intercept_[0]
    theirs = 0.5 * delta @ gram @ delta + c * np.maximum(0.0, 1.0 - batch.labels * scores).sum()
    mapped = Batch.from_dense(np.linalg.cholesky(gram + 1e-13 * np.eye(len(gram))), batch.labels)
    rho = 1.0 / (c * len(batch))
    result = solve(mapped, "mcpa", rho=rho, tol=1e-7, intercept="free")
    assert result.primal / rho == pytest.approx(theirs, rel=1e-6)
