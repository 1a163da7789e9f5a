"""Refits of learners whose state is their weights: the problem, the result, and continuing."""

import json
import math

import numpy as np
import pytest

from dualstream.solvers import Batch, RefitError, make_learner, resolve_spec
from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.features.fourier import Fourier
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.method_registry import METHODS as OFFLINE, method_of
from dualstream.solvers.offline.refit_methods import (
    METHODS,
    refit_methods,
    why_not_method,
    why_not_refit,
)
from dualstream.solvers.protocols.refit_weights import MIN_DOUBT
from dualstream.solvers.refit.refit import begin_refit, enter_refit, problems_of
from tests.solvers import reference
from tests.solvers.conftest import GOLDEN
from tests.solvers.online.asset_support import adult_rows, needs_data
from tests.solvers.online.dual_ascent_support import bytes_of
from tests.solvers.refit.support import DIM, FEATURES, SPECS, every, rows_of, served


def objective(spec, w, x, batch):
    """The objective by its definition, over rows of weight above 0."""
    spec = resolve_spec(spec | FEATURES)
    algorithm, counts = spec["algorithm"], batch.weights > 0.0
    y = batch.labels if spec["task"] == "regression" else np.where(batch.labels > 0, 1.0, -1.0)
    loss = spec.get("loss", "hinge")
    if algorithm == "passive_aggressive":
        loss = "hinge" if spec["variant"] == "pa1" else "squared_hinge"
    z = x @ w[:-1] + w[-1]
    losses = [reference.value(loss, a, b, None) for a, b in zip(z, y, strict=True)]
    total = float((batch.weights * np.array(losses))[counts].sum())
    if algorithm == "passive_aggressive":
        return (0.5 * w @ w + spec["C"] * total) / (spec["C"] * counts.sum())
    mean = total / counts.sum()
    if algorithm in ("fobos", "truncated_gradient", "sgd_l1"):
        return mean + spec["lambda"] * np.abs(w).sum() + 0.5 * spec.get("sigma", 0.0) * w @ w
    if algorithm == "asset":
        g = w[:-1] if spec["bound"] else w
        return mean + 0.5 * spec["lambda"] * g @ g
    return mean + 0.5 * spec["rho"] * w @ w


def solved(learner, batch, method=None, tol=1e-5):
    method = method or refit_methods(learner.spec)[0]
    run = begin_refit(problems_of(learner), method, tol, 100_000, batch)
    assert run.run()
    return run


@every
def test_the_least_objective_of_the_rows_enters_by_each_method(name):
    spec = SPECS[name]
    batch, x = rows_of(is_regression=spec.get("task") == "regression")
    learner = make_learner(spec | FEATURES)
    learner.learn(batch)
    before = objective(spec, served(learner), x, batch)
    duals = []
    for method in refit_methods(learner.spec):
        twin = make_learner(spec | FEATURES)
        twin.restore(learner.state())
        try:
            run = solved(learner, batch, method)
        except RefitError as error:
            assert method == "aspdc" and "4 R^2" in str(error)
            continue
        assert enter_refit(twin, run.refitted().arrays) is None
        assert twin.samples == learner.samples
        after = objective(spec, served(twin), x, batch)
        assert run.dual <= after * (1 + 1e-12) and after - run.dual <= 1.1e-5 * after
        assert run.relative_gap_before == pytest.approx((before - run.dual) / before, rel=1e-9)
        assert (run.rows, run.converged) == (int((batch.weights > 0).sum()), True)
        duals.append(run.dual)
    # Lower bounds of one problem: no weights near those found are below any of them.
    assert max(duals) - min(duals) <= 2e-5 * max(duals)
    result, random = served(twin), np.random.default_rng(1)
    for scale in (1e-3, 1e-2, 0.1):
        nearby = result + scale * random.standard_normal((20, DIM + 1))
        if not learner.spec["intercept"]:
            nearby[:, -1] = 0.0
        assert all(objective(spec, w, x, batch) >= max(duals) for w in nearby)


def steps_from(spec, w, batch, x, t, reach, norm):
    """The iterates from w on, row by row, as each algorithm is printed."""
    spec = resolve_spec(spec | FEATURES)
    algorithm, w = spec["algorithm"], w.copy()
    has_box = bool(spec.get("bound"))
    chosen = make_loss(spec.get("loss", "hinge"))
    radius = math.sqrt(chosen.value(0.0, 1.0) / (spec.get("lambda") or 1.0))
    results = []
    for row, y, c in zip(x, batch.labels, batch.weights, strict=True):
        if c == 0.0:
            continue
        h = np.append(row, 1.0 if spec["intercept"] else 0.0)
        y = y if spec["task"] == "regression" or y else -1.0
        m, t = float(h @ w), t + 1
        if algorithm == "asset":
            is_strong = spec["step"] == "strongly_convex"
            lam, hit = spec["lambda"], float(y * m < 1.0)
            if "loss" in spec:
                hit = -y * chosen.slope(m, y)
            eta = 1.0 / (lam * t) if is_strong else reach / math.sqrt(norm * t)
            shrunk = (1.0 - eta * lam) * w + eta * c * y * hit * h
            g = shrunk[:-1] if has_box else shrunk
            w_next = shrunk * min(1.0, radius / max(np.linalg.norm(g), 1e-300))
            if has_box:
                b = w[-1] + eta * c * y * hit
                w_next[-1] = min(max(b, -spec["bound"]), spec["bound"])
            w = w_next
        elif algorithm == "passive_aggressive":
            loss, hh = max(0.0, 1.0 - y * m), float(h @ h)
            cost = c * spec["C"]
            tau = min(cost, loss / hh) if spec["variant"] == "pa1" else loss / (hh + 0.5 / cost)
            w = w + tau * y * h
        else:
            slope = chosen.slope(m, y)
            if algorithm == "sgd":
                w = (1.0 - spec["mu"] * spec["rho"]) * w - spec["mu"] * c * slope * h
            else:
                alpha, period = math.sqrt(2.0 / t) / spec["gamma"], spec.get("period", 1)
                if algorithm == "sgd_l1":
                    w = w - alpha * spec["lambda"] * np.sign(w)
                w = w - alpha * c * slope * h
                if t % period == 0 and algorithm != "sgd_l1":
                    cut = alpha * spec["lambda"] * period
                    w = np.sign(w) * np.maximum(np.abs(w) - cut, 0.0)
                w = w / (1.0 + alpha * spec.get("sigma", 0.0))
        results.append(w)
    return results


@pytest.mark.parametrize("name", [name for name in SPECS if name != "spg-hinge-average"])
def test_learner_continues_after_a_refit_with_its_step(name):
    spec = SPECS[name] | ({} if "from" in name else {"average": None})
    spec = SPECS[name] if SPECS[name]["algorithm"] not in ("sgd", "asset") else spec
    batch, x = rows_of(200, is_regression=spec.get("task") == "regression")
    learner = make_learner(spec | FEATURES)
    learner.learn(batch[:160])
    arrays = solved(learner, batch[:160], tol=1e-2).refitted().arrays
    rows = int((batch.weights[:160] > 0).sum())
    enter_refit(learner, arrays)
    w = served(learner)
    state = learner.state()
    t, reach, norm = rows, float(arrays["reach"][0]), 0.0
    if spec["algorithm"] == "asset":
        norm = float(state["norm_sum"] / state["norm_rows"])
        is_sqrt = "strongly" not in name
        t = 0 if is_sqrt else rows
        assert state["steps"] == t and ("distance" in state) == is_sqrt
        # Within the gap: the bound of rho |w - w*|^2 / 2, and shorter than a cold start.
        assert 0.0 < reach < math.sqrt(1 / 0.02) and reach >= math.sqrt(2 * MIN_DOUBT * 0.1 / 0.02)
    learner.learn(batch[160:])
    iterates = steps_from(spec, w, batch[160:], x[160:], t, reach, norm)
    expected = iterates[-1]
    if "from" in name:
        steps = 1.0 / np.sqrt(np.arange(5, len(iterates) + 1))
        expected = steps @ np.array(iterates[4:]) / steps.sum()
    if name == "fobos-average":
        expected = np.mean([w, *iterates], axis=0)
    np.testing.assert_allclose(served(learner), expected, rtol=1e-9, atol=1e-11)


@every
def test_state_after_a_refit_continues_bit_for_bit_and_averages_restart(name):
    spec = SPECS[name]
    batch, _ = rows_of(is_regression=spec.get("task") == "regression")
    learner, single = make_learner(spec | FEATURES), make_learner(spec | FEATURES)
    learner.learn(batch[:100])
    fresh = set(learner.state())
    arrays = solved(learner, batch[:100], tol=1e-2).refitted().arrays
    enter_refit(learner, arrays)
    w = np.zeros(DIM + 1)
    w[arrays["places"].astype(int)] = arrays["weights"]
    np.testing.assert_allclose(served(learner), w, rtol=1e-12)
    assert set(learner.state()) - fresh <= {"distance"}
    single.restore(learner.state())
    assert bytes_of(single) == bytes_of(learner)
    learner.learn(batch[100:])
    for row in range(100, len(batch)):
        single.learn(batch[row : row + 1])
    assert bytes_of(single) == bytes_of(learner)
    before = bytes_of(learner)
    bad = dict(arrays) | {"weights": np.full(len(arrays["weights"]), np.inf)}
    for wrong, match in (
        (bad, "finite"),
        (dict(arrays) | {"width": np.array([DIM + 5.0])}, "do not fit"),
        ({"fingerprints": np.zeros((1, 1)), "duals": np.zeros((1, 1))}, "another kind"),
    ):
        with pytest.raises(RefitError, match=match):
            enter_refit(learner, wrong)
        assert bytes_of(learner) == before


@pytest.mark.parametrize(
    "more",
    [
        {"norm": "row", "map": {"kind": "fourier", "components": 9}},
        {"scaling": "balanced", "map": {"kind": "nystroem", "components": 7}},
    ],
    ids=["fourier", "nystroem"],
)
@pytest.mark.parametrize("algorithm", ["asset", "fobos"])
def test_classes_are_refitted_on_rows_as_a_prediction_shows_them(algorithm, more):
    """And a class added during the refit receives the weights of the prototype."""
    spec = {"algorithm": algorithm, "lambda": 0.03, "task": "multiclass"} | FEATURES | more
    batch, x = rows_of()
    labels = np.argmax(x[:, :2], axis=1).astype(float)
    labels[120:] = 2.0
    columns = batch.indptr, batch.indices, batch.values, labels, batch.weights, DIM
    batch = Batch(*columns, ('"a"', '"b"', '"c"'))
    learner = make_learner(spec)
    if "scaling" in more:
        with pytest.raises(RefitError, match="landmarks"):
            begin_refit(problems_of(learner), "ocas", 1e-2, 10, batch[:100])
    learner.learn(batch[:120])
    before = learner.predict_classes(batch[:120]).scores
    run = solved(learner, batch[:120], tol=1e-3)
    arrays = run.refitted().arrays
    assert len(arrays["counts"]) == len(arrays["reach"]) == 3 and run.converged
    rows, labels = learner.window(batch[:120])
    learner.learn(batch[120:])
    enter_refit(learner, arrays)
    counts = rows.weights > 0.0
    total = 0.0
    for index, w in enumerate(learner.served()[:3]):
        z = np.array([
            rows.values[a:b] @ w[rows.indices[a:b]]
            for a, b in zip(rows.indptr, rows.indptr[1:], strict=False)
        ]) + w[-1]  # fmt: skip
        loss = "hinge" if algorithm == "asset" else "logistic"
        pairs = zip(z, labels[index], strict=True)
        losses = np.array([reference.value(loss, a, b, None) for a, b in pairs])
        size = 0.5 * w @ w if algorithm == "asset" else np.abs(w).sum()
        if index in (1, 2):
            total += (rows.weights * losses)[counts].mean() + 0.03 * size
    assert run.dual <= total + 1e-9 and total - run.dual <= 2e-3 * total
    assert not np.array_equal(before, learner.predict_classes(batch[:120]).scores[:, :2])
    assert np.array_equal(learner.served()[3], learner.served()[0])


def test_what_is_served_already_is_not_made_worse():
    batch, _ = rows_of()
    learner = make_learner(SPECS["asset"] | FEATURES)
    learner.learn(batch)
    enter_refit(learner, solved(learner, batch, tol=1e-6).refitted().arrays)
    run = begin_refit(problems_of(learner), "mcpa", 0.5, 1, batch)
    with pytest.raises(RefitError, match="already"):
        run.run()
    # The bound is of the best free intercept, which is outside these bounds.
    narrow = make_learner(SPECS["asset-bound"] | FEATURES | {"bound": 0.01})
    narrow.learn(batch)
    run = solved(narrow, batch)
    enter_refit(narrow, run.refitted().arrays)
    assert abs(narrow.intercept) == 0.01 and not run.converged and run.relative_gap > 1e-3
    looks = []
    run = begin_refit(problems_of(learner), "sdca", 1e-12, 10**9, batch)
    assert not run.run(lambda: len(looks) > 3, lambda one: looks.append(one.epochs))
    with pytest.raises(RefitError, match="no row"):
        begin_refit(problems_of(learner), "mcpa", 0.5, 1, batch.take(batch.weights == 0.0))


def test_short_steps_keep_what_was_solved_for():
    """With the steps of a cold start the first rows undo the solution."""
    batch, _ = rows_of(1500, seed=3)
    learner = make_learner(SPECS["asset"] | FEATURES | {"lambda": 1e-4, "average": None})
    learner.learn(batch[:500])
    errors = {}
    arrays = solved(learner, batch[:500], tol=1e-3).refitted().arrays
    for name, reach in {"short": float(arrays["reach"][0]), "cold": math.inf}.items():
        one = make_learner(learner.spec)
        one.restore(learner.state())
        enter_refit(one, dict(arrays) | {"reach": np.array([min(reach, 100.0)])})
        errors[name] = one.learn(batch[500:]).losses.mean()
    assert errors["short"] < 0.8 * errors["cold"]


@needs_data
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("lam", ["1e-4", "1e-5"])
def test_a_warm_start_is_worth_what_the_golden_one_is(lam):
    golden = json.loads((GOLDEN / "svm.json").read_text())["warm_start"]
    golden = golden["prequential_error_percent"][f"lam_{lam}"]
    draw, stage = np.random.default_rng(0), Fourier(123, 512, 0.01, 0)
    nu = draw.standard_normal((123, 512)) * np.sqrt(2 * 0.01)
    stage.restore({"nu": nu, "beta": draw.uniform(0, 2 * np.pi, 512)})
    rows = stage.peek(adult_rows("a9a")[:6000])
    spec = {
        "algorithm": "asset", "lambda": float(lam), "intercept": False, "average": None,
        "features": {"kind": "indexed", "dim": 512},
    }  # fmt: skip
    cold = make_learner(spec)
    # D_G = 1 is part of the recipe.
    cold.restore(cold.state() | {"norm_sum": np.array(100.0), "norm_rows": np.array(100)})
    arrays = solved(cold, rows[:2000], "mcpa", tol=1e-2).refitted().arrays
    warm, slow = make_learner(spec), make_learner(spec)
    for learner in (warm, slow):
        learner.restore(cold.state())
        enter_refit(learner, dict(arrays))
    # The steps of a cold start, from the 2,000 rows on.
    state = slow.state() | {"steps": np.array(2000)}
    slow.restore(state | {"distance": np.array(float(lam) ** -0.5)})
    errors = {
        name: 100 * np.mean(np.sign(one.learn(rows[2000:]).scores) != rows[2000:].labels)
        for name, one in {"cold": cold, "w_only_jW": slow, "w_plus_D": warm}.items()
    }
    assert errors["cold"] == pytest.approx(golden["cold"], abs=0.02)
    assert errors["w_plus_D"] <= errors["cold"] - 2.0
    # Weights to 1e-2 of the optimum are not those of the golden run.
    assert errors["w_plus_D"] == pytest.approx(golden["w_plus_D"], abs=0.5)
    assert errors["w_only_jW"] == pytest.approx(golden["w_only_jW"], abs=1.0)


def test_the_table_of_methods_is_that_of_the_solvers():
    assert set(METHODS) == set(OFFLINE)
    for name, got in METHODS.items():
        method = method_of(name)
        assert set(got.losses) == set(method.losses) and got.takes_fixed == method.takes_fixed
        assert (got.regularizer,) == method.regularizers
        assert got.regularizer == "l1" or got.intercept_may_be_free == (
            "free" not in method.intercepts
        )


def test_each_that_cannot_says_why():
    def why(**spec):
        return why_not_refit(resolve_spec(FEATURES | spec))

    assert "margin" in why(algorithm="passive_aggressive", variant="pa")
    assert "rho 0" in why(algorithm="sgd", rho=0.0)
    assert "lambda 0" in why(algorithm="fobos", **{"lambda": 0})
    assert "theta" in why(algorithm="truncated_gradient", theta=0.5)
    assert "hinge" in why(algorithm="fobos", loss="hinge")
    assert "convex" in why(algorithm="dc") and "gradients" in why(algorithm="rda")
    assert "regularizer" in why(algorithm="ogd") and "objective" in why(algorithm="perceptron")

    def why_method(method, **spec):
        return why_not_method(resolve_spec(FEATURES | spec), method)

    assert "unpenalised" in why_method("sdca", algorithm="asset", bound=1.0)
    assert "hinge" in why_method("dcd", algorithm="sgd")
    assert "l1" in why_method("sdca", algorithm="fobos")
    assert "dual variables" in why_method("svrg", algorithm="dual_ascent")
    assert "infinite" in why_method("asdca", algorithm="dual_ascent")
    sliding = {"algorithm": "dual_ascent", "window": "sliding"}
    assert why_method("asdca", **sliding) is None
    assert "l2" in why_method("asdca", regularizer="entropy", **sliding)
    assert "not a method" in why_method("ipm", **sliding)
    for case, field in (
        ({"algorithm": "sgd", "refit": {"method": "dcd"}}, "/refit/method"),
        ({"algorithm": "sgd", "rho": 0, "refit": {}}, "/refit"),
        ({"algorithm": "dual_ascent", "refit": {"rows": 5}}, "/refit/rows"),
        ({"algorithm": "ogd", "refit": {}}, "/refit"),
    ):
        with pytest.raises(InvalidSpec) as error:
            resolve_spec(FEATURES | case)
        assert error.value.field == field
    mine = resolve_spec(FEATURES | {"algorithm": "asset", "refit": {"rows": 500}})["refit"]
    assert mine == {"every": 10_000, "method": "mcpa", "tol": 1e-3, "rows": 500}
    assert resolve_spec(resolve_spec(FEATURES | {"algorithm": "asset", "refit": {}}))
