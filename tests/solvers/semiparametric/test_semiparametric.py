"""Semiparametric model: served values before and after refits, and refit results."""

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidSpec,
    RefitError,
    dump,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.offline.refit_methods import (
    SEMIPARAMETRIC_METHODS,
    refit_methods,
    why_not_refit,
)
from dualstream.solvers.offline.semiparametric import (
    constant,
    cosine,
    linear,
    quadratic,
    sinc,
    sine,
    solve_semiparametric,
)
from dualstream.solvers.offline.semiparametric.solve import METHODS
from dualstream.solvers.refit.refit import SOLUTION, begin_refit, enter_refit, problems_of
from dualstream.solvers.semiparametric.coefficients import coefficients_of

BASIS = [
    "constant",
    {"kind": "linear", "feature": 2, "name": "warmth"},
    {"kind": "quadratic", "feature": 2},
    {"kind": "sine", "feature": 1, "period": 0.1},
    {"kind": "cosine", "feature": 1, "period": 0.1, "name": "winter"},
    {"kind": "sinc", "feature": 2, "period": 0.4, "centre": 0.3},
]
OFFLINE = (
    constant(),
    linear(1, "warmth"),
    quadratic(1, "quadratic(2)"),
    sine(0, 0.1, "sine(1, 0.1)"),
    cosine(0, 0.1, "winter"),
    sinc(1, 0.4, 0.3, "sinc(2, 0.4, 0.3)"),
)


def spec_of(retain=120, basis=BASIS, epsilon=0.5, **more):
    return {
        "algorithm": "semiparametric",
        "task": "regression",
        "features": {"kind": "indexed", "dim": 3},
        "loss": {"kind": "epsilon_insensitive", "epsilon": epsilon},
        "basis": basis,
        "gamma": 4.0,
        "C": 2.0,
        "retain": retain,
    } | more


def days(n, seed=0):
    """Deaths by day, in the form of the Milan data: a season, temperature, a bump of pollution."""
    random = np.random.default_rng(seed)
    x = random.random((n, 3))
    x[:, 0] = np.arange(n) / 1000.0
    y = 20.0 - 6.0 * x[:, 1] + 5.0 * np.cos(2.0 * np.pi * x[:, 0] / 0.1)
    y += 3.0 * np.exp(-8.0 * (x[:, 2] - 0.5) ** 2) + random.standard_normal(n)
    weights = random.choice([0.0, 0.5, 1.0, 1.0], n)
    return Batch.from_dense(x, y, weights), x, y


def solved(learner, method="ipm", tol=1e-6):
    run = begin_refit(problems_of(learner), method, tol, 1)
    assert run.run()
    return run, run.refitted()


def refitted(*batches, spec=None):
    """A learner that was refitted after the first batch, and has learned the others."""
    learner = make_learner(spec or spec_of())
    learner.learn(batches[0])
    enter_refit(learner, solved(learner)[1].arrays)
    for batch in batches[1:]:
        learner.learn(batch)
    return learner


def content(learner):
    return dump(learner.state(), {})


def test_the_window_is_solved_as_offline_and_served_as_its_answer_predicts():
    batch, x, y = days(200)
    learner = make_learner(spec_of())
    out = learner.learn(batch)
    # Until then, the mean of the labels before each row, by weight.
    before = np.concatenate([[0.0], np.cumsum(batch.weights * y)])[:-1]
    total = np.concatenate([[0.0], np.cumsum(batch.weights)])[:-1]
    np.testing.assert_allclose(out.scores, before / np.where(total > 0.0, total, 1.0))
    np.testing.assert_allclose(out.losses, np.maximum(0.0, np.abs(y - out.scores) - 0.5))
    assert coefficients_of(learner) is None and not learner.weights.any()
    mean = learner.intercept
    assert np.all(learner.predict(batch) == mean)

    window = batch.take(np.flatnonzero(batch.weights > 0.0)[-120:])
    answer = solve_semiparametric(window, None, OFFLINE, 4.0, 0.5, 2.0, "ipm", tol=1e-6)
    run, result = solved(learner)
    assert run.rows == 120 and run.converged and run.relative_gap <= 1e-6
    assert enter_refit(learner, result.arrays) == 120
    new, _, y_new = days(260, seed=1)
    np.testing.assert_allclose(learner.predict(new), answer.predict(new), rtol=1e-12)
    got = coefficients_of(learner)
    assert {one.name: one.value for one in got.terms} == answer.coefficients
    assert got.are_unique and not any(one.dropped for one in got.terms)
    assert got.support == len(answer.support)
    assert learner.intercept == answer.intercept
    assert learner.weights.tolist() == [0.0, answer.coefficients["warmth"], 0.0]
    # The served function does not change while learning: the losses are those of served scores.
    scores = learner.predict(new)
    out = learner.learn(new)
    assert out.scores.tobytes() == scores.tobytes() and not out.updated.any()
    np.testing.assert_allclose(out.losses, np.maximum(0.0, np.abs(y_new - scores) - 0.5))
    assert learner.predict(new).tobytes() == scores.tobytes()
    # And it knows more than the mean: the season, the warmth, the bump.
    near = days(230)[0][200:]
    assert np.abs(near.labels - learner.predict(near)).mean() < 1.5
    assert np.abs(near.labels - mean).mean() > 2.0


def test_what_every_learner_promises_holds_of_a_fitted_one():
    first, second = days(150)[0], days(150, seed=1)[0]
    whole = refitted(first, second)
    singly = refitted(first, *(second[i : i + 1] for i in range(150)))
    in_pieces = refitted(first, second[:0], second[:67], second[67:68], second[68:])
    assert content(singly) == content(whole) == content(in_pieces)
    # The score of a row does not depend on the other rows of its batch.
    alone = [whole.predict(second[i : i + 1])[0] for i in range(150)]
    assert np.array(alone).tobytes() == whole.predict(second).tobytes()
    twin = make_learner(spec_of())
    twin.learn(days(10, seed=3)[0])
    twin.restore(whole.state())
    assert content(twin) == content(whole)
    third = days(70, seed=2)[0]
    assert twin.learn(third).scores.tobytes() == whole.learn(third).scores.tobytes()
    assert content(twin) == content(whole)
    before = content(whole)
    for name, array in whole.state().items():
        states = [{k: v for k, v in whole.state().items() if k != name}]
        states.append(whole.state() | {name: np.zeros((3, 3, 3))})
        if array.dtype == np.float64 and array.size:
            states.append(whole.state() | {name: np.full_like(array, np.nan)})
        for state in states:
            with pytest.raises(CorruptState):
                whole.restore(state)
    for array in whole.state().values():
        array[...] = 0
    assert content(whole) == before


def test_rows_without_a_finite_score_leave_no_trace():
    first = days(150)[0]
    huge = Batch.from_dense([[0.1, 1e100, 0.1], [0.2, 0.5, 0.5]], [1.0, 20.0])
    basis = ["constant", {"kind": "quadratic", "feature": 2}]
    learner = refitted(first, spec=spec_of(basis=basis))
    # With a coefficient whose square overflows.
    state = learner.state()
    state["beta"][1] = 1e120
    twin = make_learner(spec_of(basis=basis))
    for one in (learner, twin):
        one.restore(state)
    out = learner.learn(huge)
    assert out.rejected.tolist() == [True, False] and np.isnan(out.scores[0])
    twin.learn(huge[1:])
    assert content(learner) == content(twin) and learner.samples == 151


def test_a_window_that_moves_on_and_what_fits_no_more():
    first, second = days(150)[0], days(500, seed=1)[0]
    learner = make_learner(spec_of())
    with pytest.raises(RefitError, match="no row is retained"):
        begin_refit(problems_of(learner), "ipm", 1e-3, 1)
    learner.learn(first)
    _, result = solved(learner)
    there = make_learner(spec_of())
    there.restore(learner.state())
    enter_refit(there, result.arrays)
    learner.learn(second[:20])
    came = int(np.count_nonzero(second[:20].weights))
    left = len(result.arrays["fingerprints"]) + came - 120
    kept = 120 - came
    assert left > 0
    rows = learner.window()[0]
    assert enter_refit(learner, result.arrays) == kept
    # Its support rows are served, including those that have left the window.
    assert learner.predict(second).tobytes() == there.predict(second).tobytes()
    stored, _, duals = learner.window()
    assert stored.values.tobytes() == rows.values.tobytes()
    assert np.array_equal(duals[:kept], result.arrays["duals"][left:])
    assert not duals[kept:].any()
    # A refit can start where the last one ended, and has the same result.
    _, warm = solved(learner, "pdsg", 1e-4)
    _, exact = solved(learner)
    np.testing.assert_allclose(warm.arrays["beta"], exact.arrays["beta"], atol=0.1)

    before = content(learner)
    arrays = dict(result.arrays)
    for wrong, match in (
        ({"duals": arrays["duals"][1:]}, "do not fit"),
        ({"beta": np.append(arrays["beta"], 1.0)}, "do not fit"),
        ({"beta": np.full(6, np.inf)}, "not finite"),
        ({"indices": arrays["indices"] + 3.0}, "damaged"),
        ({"indptr": arrays["indptr"][:-1]}, "damaged"),
        ({"values": np.full_like(arrays["values"], np.nan)}, "damaged"),
    ):
        with pytest.raises(RefitError, match=match):
            enter_refit(learner, arrays | wrong)
    with pytest.raises(RefitError, match="another kind"):
        enter_refit(learner, {"fingerprints": arrays["fingerprints"], "duals": arrays["duals"]})
    linear_model = make_learner({"algorithm": "dual_ascent", "features": spec_of()["features"]})
    with pytest.raises(RefitError, match="another kind"):
        enter_refit(linear_model, arrays)
    assert content(learner) == before and set(arrays) == set(SOLUTION)
    learner.learn(second[20:])
    with pytest.raises(RefitError, match="others"):
        enter_refit(learner, arrays)


def test_dependent_functions_are_named_and_coefficients_that_are_not_unique():
    batch, x, y = days(100)
    twice = [*BASIS[:2], {"kind": "linear", "feature": 2, "name": "again"}]
    learner = make_learner(spec_of(basis=twice))
    learner.learn(batch)
    run, result = solved(learner)
    assert result.dropped == ["again"] and result.coefficients_are_unique
    enter_refit(learner, result.arrays)
    got = coefficients_of(learner)
    assert [one.dropped for one in got.terms] == [False, False, True]
    assert got.terms[2].value == 0.0
    # No row is off its bounds: any constant within epsilon of all labels is optimal.
    learner = make_learner(spec_of(basis=["constant"], epsilon=100.0))
    learner.learn(batch)
    _, result = solved(learner)
    assert result.dropped == [] and not result.coefficients_are_unique
    enter_refit(learner, result.arrays)
    got = coefficients_of(learner)
    assert not got.are_unique and got.support == 0
    assert np.abs(batch.labels - learner.predict(batch)).max() <= 100.0


def test_it_is_cancelled_and_bad_windows_are_refused():
    batch = days(100)[0]
    learner = make_learner(spec_of())
    learner.learn(batch)
    run = begin_refit(problems_of(learner), "pdsg", 1e-9, 1)
    assert not run.run(lambda: True)
    absurd = Batch.from_dense([[0.1, 0.2, 0.3]], [1e-300], [1e100])
    tiny = make_learner(spec_of(C=1e12))
    tiny.learn(absurd)
    with pytest.raises(RefitError, match="cannot be solved"):
        begin_refit(problems_of(tiny), "ipm", 1e-3, 1).run()


def test_the_specification():
    assert SEMIPARAMETRIC_METHODS == METHODS
    resolved = resolve_spec(
        {
            "algorithm": "semiparametric",
            "task": "regression",
            "features": {"kind": "indexed", "dim": 4},
        }
    )
    assert resolved == {
        "algorithm": "semiparametric",
        "task": "regression",
        "loss": {"kind": "epsilon_insensitive", "epsilon": 0.1},
        "basis": [{"kind": "constant", "name": "constant"}],
        "gamma": 0.25,
        "C": 1.0,
        "retain": 1000,
        "refit": {"every": 1000, "method": "ipm", "tol": 1e-3},
        "features": {"kind": "indexed", "dim": 4},
        "labels": None,
        "spec_version": 1,
    }
    for spec in (resolved, spec_of(), spec_of(refit=None)):
        assert resolve_spec(resolve_spec(spec)) == resolve_spec(spec)
    assert resolve_spec(spec_of(refit=None))["refit"] is None
    names = [term["name"] for term in resolve_spec(spec_of())["basis"]]
    assert names == [term.name for term in OFFLINE]
    assert refit_methods(resolve_spec(spec_of())) == ("ipm", "pdsg", "mpd")
    assert why_not_refit(resolved) is None
    for wrong, field in (
        ({"task": "binary"}, "/task"),
        ({"features": {"kind": "hashed"}}, "/features"),
        ({"loss": "squared"}, "/loss"),
        ({"basis": "constant"}, "/basis"),
        ({"basis": ["cubic"]}, "/basis/0/kind"),
        ({"basis": ["constant", "constant"]}, "/basis/1/name"),
        ({"basis": [{"kind": "linear", "feature": 4}]}, "/basis/0/feature"),
        ({"basis": [{"kind": "linear"}]}, "/basis/0/feature"),
        ({"basis": [{"kind": "sine", "feature": 1}]}, "/basis/0/period"),
        ({"basis": [{"kind": "constant", "feature": 1}]}, "/basis/0/feature"),
        ({"basis": [{"kind": "constant", "name": ""}]}, "/basis/0/name"),
        ({"basis": [7]}, "/basis/0"),
        ({"retain": 20_001}, "/retain"),
        ({"refit": {"method": "sdca"}}, "/refit/method"),
        ({"refit": {"every": 99}}, "/refit/every"),
        ({"scaling": "balanced"}, "/scaling"),
    ):
        with pytest.raises(InvalidSpec) as error:
            resolve_spec(spec_of() | wrong)
        assert error.value.field == field
    member = {key: value for key, value in spec_of().items() if key not in ("task", "features")}
    portfolio = {"task": "regression", "members": [member], "algorithm": "portfolio"}
    with pytest.raises(InvalidSpec, match="members are not refitted"):
        resolve_spec(portfolio | {"features": spec_of()["features"]})
