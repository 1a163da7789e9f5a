"""Refit of a window: against the definition, outside solvers, and a window that moves on."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, InvalidSpec, RefitError, make_learner, resolve_spec
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.offline import solve
from dualstream.solvers.offline.refit_methods import refit_methods, why_not_refit
from dualstream.solvers.online.dual_ascent.refit import overlap
from dualstream.solvers.refit.refit import begin_refit, enter_refit, problems_of, take_refit
from dualstream.solvers.refit.window_problem import Refitting
from tests.fuzzing import examples
from tests.solvers import reference
from tests.solvers.general_reference import REGULARIZERS, General, primal_map
from tests.solvers.offline.rows import BAD_ROWS
from tests.solvers.online.dual_ascent_support import (
    WINDOWS,
    assert_same,
    bytes_of,
    rows_of,
    spec_of,
)
from tests.solvers.specs import SPECS

SLIDING = {"kind": "sliding", "length": 50}


def refitted(learner, tol=1e-3, max_epochs=300):
    refitting = Refitting(problems_of(learner), tol, max_epochs)
    assert refitting.run()
    return refitting.refitted()


def teach(learner, slow, batch, x):
    learner.learn(batch)
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        slow.learn(np.append(h, 1.0), y, c)


def moves_on(learner, slow, batch, x, retain, make):
    """Refit after 28 rows and apply after 30, with both implementations."""
    teach(learner, slow, batch[:28], x[:28])
    before = learner.certificate()
    result = refitted(learner)
    count = len(result.duals[0])
    begin = len(slow.rows) - count
    teach(learner, slow, batch[28:30], x[28:30])
    dual = learner.certificate().dual
    rows = take_refit(learner, result.fingerprints, result.duals)
    assert before.dual < result.certificate.dual and dual < learner.certificate().dual
    taken = learner.state()["ring_duals"]
    first = len(slow.rows) - min(retain, len(slow.rows))
    if slow.window[0] == "sliding":
        first = max(first, len(slow.rows) - slow.window[1])
    assert rows == begin + count - max(begin, first)
    shares = set()
    for at in range(max(begin, first), begin + count):
        kept, new = slow.rows[at][3], result.duals[0][at - begin]
        slow.rows[at][3] = taken[at - len(slow.rows)]
        if abs(new - kept) > 1e-9:
            shares.add(round((slow.rows[at][3] - kept) / (new - kept), 6))
    # The whole step, or the same share of it for each.
    assert len(shares) == 1 and shares <= {2.0**-k for k in range(7)}
    slow.iterates = [make(slow.numerator() / slow.room())]
    assert_same(learner, slow)
    # Learning continues as if the dual variables had always been these.
    teach(learner, slow, batch[30:], x[30:])
    assert_same(learner, slow)
    return shares.pop()


def test_what_enters_is_the_sum_over_all_rows(subtests):
    for retain, kappa, window, loss in product([1000, 12], [None, 0.8], WINDOWS.values(), LOSSES):
        with subtests.test(retain=retain, kappa=kappa, window=window, loss=loss):
            batch, x = rows_of(40, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, kappa, rho=0.05, retain=retain))
            slow = reference.Reference(loss, window, 0.05, kappa or 0.0)
            share = moves_on(learner, slow, batch, x, retain, lambda dashed: dashed)
            assert share == 1.0 or retain == 12 or window[0] == "sliding"


def test_elastic_net_and_entropy_have_the_same_sum(subtests):
    for window, regularizer in product(WINDOWS.values(), REGULARIZERS.values()):
        with subtests.test(window=window, regularizer=regularizer):
            batch, x = rows_of(40)
            spec = spec_of("logistic", window, 0.8, rho=0.05, retain=20, regularizer=regularizer)
            slow = General("logistic", window, 0.05, 0.8, regularizer=regularizer)
            assert moves_on(
                make_learner(spec), slow, batch, x, 20, partial(primal_map, regularizer)
            )


def rows_for(loss, n=300, dim=8):
    random = np.random.default_rng(3)
    x = random.standard_normal((n, dim))
    y = x @ random.standard_normal(dim) + random.standard_normal(n)
    y = np.where(y >= 0, 1.0, -1.0) if loss in MARGIN_LOSSES else y
    return Batch.from_dense(x, y), x, y


def test_the_gap_comes_down_to_the_tolerance_by_the_learners_own_certificate(subtests):
    for regularizer, kappa, loss in product(
        ["l2", {"kind": "elastic_net", "delta": 0.1}, "entropy"], [None, 0.99], LOSSES
    ):
        with subtests.test(regularizer=regularizer, kappa=kappa, loss=loss):
            batch, _, _ = rows_for(loss)
            spec = spec_of(loss, ("sliding", 300), kappa, 8, rho=0.02, regularizer=regularizer)
            learner = make_learner(spec)
            learner.learn(batch)
            before = learner.certificate()
            result = refitted(learner, max_epochs=3000)
            assert result.converged
            assert take_refit(learner, result.fingerprints, result.duals) == 300
            now = learner.certificate()
            assert not now.estimate and now.relative_gap <= 1e-3 and now.dual >= before.dual
            assert now.primal == pytest.approx(result.certificate.primal, rel=1e-12)
            assert now.gap == pytest.approx(result.certificate.gap, rel=1e-6)


def optimum(loss, x, y, rho):
    """The least objective on these rows with an intercept that is penalised, by another solver."""
    import warnings

    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.svm import LinearSVC, LinearSVR

    n = len(y)
    with_one = np.hstack([x, np.ones((n, 1))])
    if loss == "squared":
        design = np.vstack([with_one, math.sqrt(rho * n) * np.eye(with_one.shape[1])])
        model = LinearRegression(fit_intercept=False)
        model.fit(design, np.append(y, np.zeros(with_one.shape[1])))
    elif loss == "epsilon_insensitive":
        model = LinearSVR(
            epsilon=reference.LOSSES[loss], C=1 / (rho * n), fit_intercept=False, tol=1e-9,
            max_iter=1_000_000,
        )  # fmt: skip
        model.fit(with_one, y)
    else:
        fields = {"C": 1 / (rho * n), "fit_intercept": False, "tol": 1e-7, "max_iter": 1_000_000}
        model = LogisticRegression(**fields)
        if loss in ("hinge", "squared_hinge"):
            model = LinearSVC(loss=loss, dual=True, **fields)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(with_one, y)
    w = model.coef_.ravel()
    k = reference.LOSSES[loss]
    losses = [reference.value(loss, z, label, k) for z, label in zip(with_one @ w, y, strict=True)]
    return float(np.mean(losses) + rho * w @ w / 2)


@pytest.mark.parametrize(
    "loss", ["hinge", "squared_hinge", "logistic", "squared", "epsilon_insensitive"]
)
def test_outside_solvers_find_the_same_optimum(loss):
    batch, x, y = rows_for(loss)
    learner = make_learner(spec_of(loss, ("sliding", 300), dim=8, rho=0.02))
    learner.learn(batch)
    result = refitted(learner, tol=1e-7, max_epochs=20_000)
    take_refit(learner, result.fingerprints, result.duals)
    now = learner.certificate()
    best = optimum(loss, x, y, 0.02)
    # The dual is a lower bound, and with the gap the primal is an upper bound.
    assert now.dual <= best * (1 + 1e-12) and now.primal <= best + now.gap + 1e-6 * best
    assert best <= now.primal * (1 + 1e-6)


def test_a_reference_bounds_what_is_served_on_the_retained_rows():
    batch, x, y = rows_for("logistic")
    more = {"rho": 0.02, "retain": 100}
    learner = make_learner(spec_of("logistic", ("exponential", 0.999), dim=8, **more))
    learner.learn(batch)
    refitting = Refitting(problems_of(learner), 1e-9, 10_000, alone=True)
    refitting.run()
    result = refitting.reference()
    assert result.converged and len(result.losses) == 100
    assert result.lower <= result.found <= result.lower * (1 + 1e-8) <= result.served
    # By definition, for the last 100 rows alone.
    delta = 0.999 ** np.arange(99, -1, -1.0)
    served = np.log1p(np.exp(-y * learner.predict(batch)))[-100:]
    w = np.append(learner.weights, learner.intercept)
    assert result.served == pytest.approx(delta @ served / delta.sum() + 0.01 * w @ w)
    alone = make_learner(spec_of("logistic", ("exponential", 0.999), dim=8, **more))
    alone.learn(batch[200:])
    solved = refitted(alone, 1e-9, 10_000)
    take_refit(alone, solved.fingerprints, solved.duals)
    assert alone.certificate().primal == pytest.approx(result.found, rel=1e-8)
    optimal = np.log1p(np.exp(-y[200:] * alone.predict(batch[200:])))
    np.testing.assert_allclose(result.losses, optimal, rtol=1e-4)


def test_strength_is_the_same_problem():
    batch, _, _ = rows_for("hinge")
    learner = make_learner(spec_of("hinge", dim=8, strength=6.0, retain=300))
    twin = make_learner(spec_of("hinge", dim=8, rho=0.02, retain=300))
    for one in (learner, twin):
        one.learn(batch)
        result = refitted(one, 1e-8, 20_000)
        take_refit(one, result.fingerprints, result.duals)
    np.testing.assert_allclose(learner.weights, twin.weights, atol=1e-3)
    for one in (learner, twin):
        result = Refitting(problems_of(one), 1e-8, 20_000, alone=True)
        result.run()
        assert result.reference().served == pytest.approx(one.certificate().primal)


@pytest.mark.parametrize(
    "more",
    [
        {"norm": "row", "map": {"kind": "fourier", "components": 9}},
        {"scaling": "balanced", "norm": "running", "loss": "hinge"},
        {"map": {"kind": "nystroem", "components": 7}},
    ],
    ids=["fourier", "balanced", "nystroem"],
)
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_rows_are_refitted_as_they_came_out_of_the_stages(more, task):
    """And a class added during the refit receives the values of the prototype."""
    spec = spec_of("logistic", ("exponential", 0.99), dim=6, rho=0.05, retain=60) | more
    random = np.random.default_rng(0)
    x = random.standard_normal((90, 6))
    names = ('"a"', '"b"', '"c"') if task == "multiclass" else ()
    y = np.argmax(x[:, :2], axis=1).astype(np.float64)
    y = y if names else 2.0 * y - 1.0
    y[70:80] = 2.0 if names else y[70:80]
    batch = Batch.from_dense(x, y)
    columns = (batch.indptr, batch.indices, batch.values, y, batch.weights, 6, names)
    batch = Batch(*columns) if names else batch
    learner = make_learner(spec | {"task": task})
    learner.learn(batch[:70])
    before = learner.certificate()
    result = refitted(learner)
    assert result.fingerprints.shape == (3 if names else 1, 60)
    assert result.certificate.relative_gap <= 1e-3 < before.relative_gap
    learner.learn(batch[70:75])
    dual = learner.certificate().dual
    assert take_refit(learner, result.fingerprints, result.duals) == 55
    assert learner.certificate().dual > dual
    twin = make_learner(spec | {"task": task})
    twin.restore(learner.state())
    for one in (learner, twin):
        one.learn(batch[75:])
    assert bytes_of(twin) == bytes_of(learner)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    batch, x = rows_of(80, weighted=False)
    learner = make_learner(spec_of("logistic", rho=0.05, retain=20))
    with pytest.raises(RefitError, match="no row is retained"):
        Refitting(problems_of(learner), 1e-3, 10)
    learner.learn(batch[:40])
    result = refitted(learner)
    good = (result.fingerprints, result.duals)
    states = {}

    def refuses(match, prints, duals):
        before = bytes_of(learner)
        with pytest.raises(RefitError, match=match):
            take_refit(learner, prints, duals)
        assert bytes_of(learner) == before

    refuses("do not fit", result.fingerprints[:, 1:], result.duals)
    refuses("do not fit", np.repeat(result.fingerprints, 2, 0), np.repeat(result.duals, 2, 0))
    refuses("finite", result.fingerprints, np.full((1, 20), np.inf))
    states["before"] = learner.state()
    take_refit(learner, *good)
    # Zeros are feasible too, but decrease the dual at every share.
    refuses("moved on", result.fingerprints, 0.0 * result.duals)
    learner.restore(states["before"])
    learner.unlearn(7)
    refuses("still retained", *good)
    learner.restore(states["before"])
    learner.learn(batch[40:60])
    refuses("still retained", *good)
    learner.restore(states["before"])
    assert take_refit(learner, *good) == 20


@pytest.mark.parametrize("loss", ["hinge", "smooth_hinge"])
def test_cancelled_between_two_pieces(loss):
    """For both implementations of the steps: solve makes those for the hinge."""
    batch, _, _ = rows_for("hinge")
    window = ("sliding", 300)
    learner = make_learner(spec_of(loss, dim=8, rho=1e-6, window=window))
    learner.learn(batch)
    refitting = Refitting(problems_of(learner), 1e-12, 10**9)
    looks, gaps = [], []

    def look(one):
        looks.append(one.epochs)
        gaps.append(one.relative_gap)

    assert not refitting.run(lambda: len(looks) > 3, look)
    assert looks == [0, 1, 2, 3] and not refitting.converged
    assert gaps[0] == refitting.relative_gap_before and gaps[3] != gaps[0]
    # The values reached by then are certified by a reference.
    assert refitting.dual > refitting.dual_before
    assert refitting.dual == refitting.reference().lower


@given(
    st.lists(st.integers(0, 2), max_size=12).map(tuple),
    st.lists(st.integers(0, 2), max_size=12).map(tuple),
    st.integers(0, 12),
)
@examples(400)
def test_the_longest_overlap_is_found(then, tail, common):
    now = then[len(then) - min(common, len(then)) :] + tail
    best = max(n for n in range(min(len(then), len(now)) + 1) if then[len(then) - n :] == now[:n])
    arrays = np.array(then, np.float64), np.array(now, np.float64)
    assert overlap(*arrays, np.empty(len(now) + 1, np.int64)) == best


AWKWARD = {
    "dual_ascent, sliding": {"algorithm": "dual_ascent", "loss": "hinge", "window": SLIDING},
    "dual_ascent, infinite": {"algorithm": "dual_ascent", "loss": "squared_hinge", "retain": 50},
    "dual_ascent, entropy": {
        "algorithm": "dual_ascent", "loss": "logistic", "regularizer": "entropy",
        "window": SLIDING,
    },
    "sgd": {"algorithm": "sgd", "loss": "logistic"},
    "asset": {"algorithm": "asset", "bound": 2.0},
    "passive_aggressive": {"algorithm": "passive_aggressive", "variant": "pa2"},
    "fobos": {"algorithm": "fobos", "loss": "logistic"},
}  # fmt: skip


def test_awkward_windows_are_refitted_or_refused_in_words(subtests):
    """By every method, and with rho, lambda or C at the ends of their range."""
    for kind, name in product(BAD_ROWS, AWKWARD):
        with subtests.test(kind=kind, name=name):
            batch, options = (
                BAD_ROWS[kind],
                {"asset": "lambda", "fobos": "lambda", "passive_aggressive": "C"},
            )
            for size in (1e-100, 1e-9, 1e-3, 1e9, 1e100):
                fields = {
                    options.get(name, "rho"): size,
                    "features": {"kind": "indexed", "dim": batch.dim},
                }
                try:
                    learner = make_learner(AWKWARD[name] | fields)
                except InvalidSpec:
                    assert size != 1e-3
                    continue
                learner.learn(batch)
                before = learner.state()
                for method in refit_methods(learner.spec):
                    learner.restore(before)
                    unchanged = bytes_of(learner)
                    run = begin_refit(problems_of(learner), method, 1e-3, 20, batch)
                    try:
                        assert run.run()
                        enter_refit(learner, run.refitted().arrays)
                    except RefitError as error:
                        got = ("already", "moved on", "cannot solve the window", "is not finite")
                        assert any(words in str(error) for words in got), error
                        assert bytes_of(learner) == unchanged
                    assert np.isfinite(learner.predict(batch)).all()


def test_unsupported_learner_names_the_reason():
    specs = {name: spec for name, spec in SPECS.items() if spec.get("intercept") != "prior"}
    reasons = {name: why_not_refit(resolve_spec(spec)) for name, spec in specs.items()}
    able = {name for name, why in reasons.items() if why is None}
    algorithms = {name: resolve_spec(spec)["algorithm"] for name, spec in specs.items()}
    never = {"rda", "rda_plus", "romma", "alma", "dc", "perceptron", "ogd", "portfolio", *NONLINEAR}
    assert {algorithms[name] for name in able} & never == set()
    assert {algorithms[name] for name in set(specs) - able} - never == {
        "asset",
        "fobos",
        "passive_aggressive",
        "sgd_l1",
        "truncated_gradient",
    }
    assert all(len(why) > 20 for why in reasons.values() if why is not None)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "huber"])
def test_solve_finds_the_same_weights_with_the_part_of_other_rows_fixed(loss):
    """Another implementation, of the problem in the state."""
    batch, x, y = rows_for(loss)
    spec = spec_of(loss, ("exponential", 0.995), dim=8, rho=0.02, retain=100)
    learner = make_learner(spec)
    learner.learn(batch)
    state = learner.state()
    rows = np.hstack([x[-100:], np.ones((100, 1))])
    delta = 0.995 ** np.arange(99, -1, -1.0)
    kept = state["scale"] * state["v"] - (delta * state["ring_duals"]) @ rows
    solution = solve(
        Batch.from_dense(x[-100:], y[-100:], delta), "sdca", loss=reference.loss_spec(loss),
        rho=0.02, tol=1e-12, max_epochs=20_000, intercept="penalized", fixed=kept,
        total=float(state["delta"]),
    )  # fmt: skip
    result = refitted(learner, 1e-12, 20_000)
    take_refit(learner, result.fingerprints, result.duals)
    np.testing.assert_allclose(learner.weights, solution.weights, atol=1e-4)
    assert learner.intercept == pytest.approx(solution.intercept, abs=1e-4)


@pytest.mark.parametrize(
    ("loss", "window", "methods"),
    [
        ("squared_hinge", ("sliding", 250), ("dcd", "spdc", "asdca", "aspdc_i")),
        ("hinge", ("exponential", 0.995), ("dcd",)),
    ],
    ids=["sliding", "exponential"],
)
def test_other_methods_find_the_same_dual_variables(loss, window, methods):
    """With the contribution of rows that are not retained fixed, if there are any."""
    batch, _, _ = rows_for(loss)
    spec = spec_of(loss, window, 0.99, 8, rho=0.2, retain=max(100, window[1]))
    learner = make_learner(spec)
    learner.learn(batch)
    duals = {}
    for method in ("sdca", *methods):
        looks = []
        run = Refitting(problems_of(learner), 1e-6, 5000, method)
        assert run.run(on_look=lambda one: looks.append(one.relative_gap))  # noqa: B023
        twin = make_learner(spec)
        twin.restore(learner.state())
        result = run.refitted()
        assert (
            result.converged and result.epochs > 0 and looks[-1] <= 1e-6 < run.relative_gap_before
        )
        assert take_refit(twin, result.fingerprints, result.duals) == run.rows
        assert twin.certificate().relative_gap <= 2e-6
        duals[method] = twin.certificate().dual
        np.testing.assert_allclose(duals[method], duals["sdca"], rtol=3e-6)
        stopped = Refitting(problems_of(learner), 1e-9, 10**9, method)
        assert not stopped.run(lambda: True)
    reason = "4 R" if window[0] == "sliding" else "fixed"
    with pytest.raises(RefitError, match=reason):
        small = make_learner(spec | {"rho": 1e-6, "loss": "squared_hinge"})
        small.learn(batch)
        Refitting(problems_of(small), 1e-3, 10, "aspdc").run()
