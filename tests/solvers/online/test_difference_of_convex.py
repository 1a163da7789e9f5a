"""ODCA and ODCAk: against the printed formulas, at the ends of the float64 range, and as
specifications."""

import math
from decimal import Decimal, localcontext
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.online.difference_of_convex import sigmoid_slope, sigmoid_surrogate
from tests.solvers.dc_reference import dc_step, dense, surrogate
from tests.solvers.specs import DIM, FEATURES, SPECS, stream

KINDS = ("pil1", "pil2", "sigmoid")
INNERS = ("one_step", "complete")
MILD = {
    "pil1": {"C": 0.5, "surrogate": {"kind": "pil1", "tau1": 0.7}},
    "pil2": {"C": 0.5, "surrogate": {"kind": "pil2", "tau2": 2.0, "tau3": 0.8}},
    "sigmoid": {"C": 0.5, "surrogate": {"kind": "sigmoid", "kappa": 0.4, "epsilon": 0.3}},
}


def dc(kind, inner="one_step", **fields):
    return make_learner(FEATURES | {"algorithm": "dc", "inner": inner} | MILD[kind] | fields)


@pytest.mark.parametrize(
    ("step", "radius"),
    [
        ("sqrt_t", math.inf),
        ({"kind": "sqrt_T", "horizon": 60}, math.inf),
        ({"kind": "strongly_convex", "gamma": 0.8}, math.inf),
        ("sqrt_t", 0.4),
        ({"kind": "strongly_convex", "gamma": 0.1}, 0.3),
    ],
)
@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_learns_as_the_printed_formulas_do(kind, inner, step, radius):
    spec = FEATURES | {"algorithm": "dc", "inner": inner} | MILD[kind] | {"step": step}
    is_strong = "gamma" in step
    if is_strong:
        del spec["C"]
    if radius < math.inf:
        spec["radius"] = radius
    learner = make_learner(spec)
    batch = stream(learner.spec, 60)
    w, t, total, largest = np.zeros(DIM + 1), 0, 0, 0.0
    for i, x in enumerate(dense(batch, 1.0)):
        out = learner.learn(batch[i : i + 1])
        y, c, before = batch.labels[i], batch.weights[i], w
        if c > 0.0:
            t += 1
            if is_strong:
                eta = c / (step["gamma"] * t)
            else:
                eta = c * learner.spec["C"] / math.sqrt(60 if step != "sqrt_t" else t)
            w, inner_steps = dc_step(
                kind, learner.spec["surrogate"], w, x, y, eta, inner == "complete", radius=radius
            )
            total += inner_steps
        f, _ = surrogate(kind, learner.spec["surrogate"], before, x, y)
        if f is not None:
            assert out.losses[0] == pytest.approx(f(before), rel=1e-9)
            assert out.losses[0] >= (y * out.scores[0] <= 0.0) * (1.0 - 1e-12)
        assert out.updated[0] == (w is not before)
        assert [*learner.weights, learner.intercept] == pytest.approx(w, rel=1e-9, abs=1e-9)
        largest = max(largest, float(np.linalg.norm(w)))
    assert learner.state()["inner_steps"] == total
    assert learner.state()["norm_squared"] == pytest.approx(w @ w)
    if radius < math.inf:
        assert math.isclose(largest, radius)


def test_small_scale_is_folded_into_the_weights():
    """A ball so small that each step shrinks all earlier ones to nearly nothing."""
    learner = dc("pil2", C=1.0, radius=1e-9)
    batch = stream(learner.spec, 60)
    out = learner.learn(batch)
    assert not out.rejected.any() and learner.state()["scale"] >= 1e-30
    w = np.append(learner.weights, learner.intercept)
    assert math.sqrt(w @ w) == pytest.approx(1e-9)
    assert learner.state()["norm_squared"] == pytest.approx(w @ w)


@pytest.mark.parametrize("u", [-700.0, -300.0, -20.0, -3.0, -0.1, 0.0, 0.4, 3.0, 12.0, 400.0])
def test_the_sigmoid_surrogate_is_exact_for_any_margin(u):
    above, sech2 = sigmoid_surrogate(u, 0.0)
    with localcontext() as context:
        context.prec = 800
        a = (2 * Decimal(u)).exp()
        assert above == pytest.approx(float(2 / (a + 1)), rel=1e-14)
        expected = float(4 * a / (a + 1) ** 2)
    assert sech2 == pytest.approx(0.0 if u == 400.0 else expected, rel=1e-13)


def test_the_inner_slope_keeps_its_digits(subtests):
    for d, u in product(
        [-2.0, -1e-3, -1e-12, 1e-12, 1e-3, 0.2, 5.0], [-300.0, -20.0, -3.0, -0.1, 0.0, 0.4, 3.0]
    ):
        with subtests.test(d=d, u=u):
            with localcontext() as context:
                context.prec = 800
                a, moved = (2 * Decimal(u)).exp(), (-2 * (Decimal(u) + Decimal(d))).exp()
                m = (2 * a + 1) / (a + 1) ** 2
                gap = -m.ln() / 2
                z = 4 / a * m
                if Decimal(d) < gap:
                    slope = 4 * moved - z
                else:
                    slope = 4 * moved**2 * (moved + 2) / (moved + 1) ** 2 - z
                # Effect of the rounding of d alone on the slope, compared with the slope itself.
                room = max(abs(slope), 8 * moved * Decimal(abs(d)))
                result = Decimal(sigmoid_slope(u, d, float(gap), sigmoid_surrogate(u, 0.0)[1]))
                assert abs(result - slope) <= Decimal(1e-13) * room


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("kind", ["pil2", "sigmoid"])
def test_weights_do_not_depend_on_how_long_all_rows_are(kind, inner):
    batch = stream(SPECS["dc-pil2"], 80)
    plain = dc(kind, inner, intercept=False)
    plain.learn(batch)
    for factor in (2.0**-600, 2.0**-300, 2.0**300):
        scaled = Batch(
            batch.indptr, batch.indices, batch.values * factor, batch.labels, batch.weights, DIM
        )
        learner = dc(kind, inner, intercept=False)
        assert not learner.learn(scaled).rejected.any()
        assert learner.weights == pytest.approx(plain.weights, rel=1e-9, abs=1e-12)


def test_a_tie_within_rounding_is_a_tie():
    # w.x is 0 but for what rounding may leave behind.
    rows, labels = [[1.0, 2.0, 3.0], [0.1, 0.1, -0.1]], [1.0, 1.0]
    spec = {"algorithm": "dc", "features": {"kind": "indexed", "dim": 3}, "intercept": False}
    batch = Batch.from_dense(rows, labels)
    for zero_tol, is_jump in ((1e-12, False), (0.0, True)):
        kind = {"kind": "pil1", "tau1": 0.7, "zero_tol": zero_tol}
        learner = make_learner(spec | {"surrogate": kind})
        state = learner.state()
        state["v"] = np.array([1.0, 2.0, 3.0 + 1e-13, 0.0])
        state["norm_squared"] = np.array(14.0)
        learner.restore(state)
        learner.learn(batch[1:2])
        assert (np.abs(learner.weights).max() > 1e6) == is_jump


def test_the_weight_of_a_row_multiplies_its_step():
    batch = stream(SPECS["dc-pil2"], 1)
    for kind in KINDS:
        learners = {c: dc(kind, intercept=False) for c in (0.25, 1.0, 3.0)}
        for c, learner in learners.items():
            learner.learn(Batch(*(getattr(batch, n) for n in ("indptr", "indices", "values")),
                                batch.labels, np.array([c]), DIM))  # fmt: skip
        one = learners[1.0].weights
        assert np.any(one)
        for c, learner in learners.items():
            assert learner.weights == pytest.approx(c * one)


def test_the_squared_norm_is_exact_again_after_a_fall():
    learner = dc("pil2", C=1.0)
    state = learner.state()
    state["v"] = np.append(np.ones(DIM), 1.0)
    state["norm_squared"], state["norm_squared_peak"] = np.array(1e12), np.array(1e30)
    learner.restore(state)
    batch = stream(learner.spec, 20)
    assert learner.learn(batch).updated.any()
    w = np.append(learner.weights, learner.intercept)
    assert learner.state()["norm_squared"] == pytest.approx(w @ w, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_squared_norm_does_not_drift(kind):
    learner = dc(kind)
    batch = stream(learner.spec, 2_000)
    for _ in range(10):
        learner.learn(batch)
    w = np.append(learner.weights, learner.intercept)
    assert learner.state()["norm_squared"] == pytest.approx(w @ w, rel=1e-9)


def test_has_no_certificate_and_no_probabilities():
    learner = dc("pil2")
    assert learner.certificate() is None
    assert learner.probabilities(np.zeros(3)) is None


def test_defaults_are_written_out():
    resolved = resolve_spec(FEATURES | {"algorithm": "dc"})
    assert {name: resolved[name] for name in ("surrogate", "inner", "C", "step")} == {
        "surrogate": {"kind": "pil2", "tau2": 16.0, "tau3": 1.0, "relative_tau2": True},
        "inner": "one_step",
        "C": 8.0,
        "step": "sqrt_t",
    }
    full = resolve_spec(
        FEATURES | {"algorithm": "dc", "surrogate": "pil1", "inner": "complete", "step": "sqrt_T"}
    )
    assert full["surrogate"] == {"kind": "pil1", "tau1": 0.125, "zero_tol": 1e-12}
    assert full["inner"] == {"kind": "complete", "tol": 1e-4, "max_inner": 5000}
    assert full["step"] == {"kind": "sqrt_T", "horizon": 10_000}
    assert resolve_spec(full) == full
    ball = resolve_spec(FEATURES | {"algorithm": "dc", "step": "strongly_convex", "radius": 2})
    assert ball["step"] == {"kind": "strongly_convex", "gamma": 1.0} and ball["radius"] == 2.0
    assert "C" not in ball and resolve_spec(ball) == ball


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task": "regression"}, "/task"),
        ({"C": 0}, "/C"),
        ({"surrogate": "pil3"}, "/surrogate"),
        ({"surrogate": {"kind": "pil1", "tau2": 1}}, "/surrogate/tau2"),
        ({"surrogate": {"kind": "pil1", "zero_tol": -1}}, "/surrogate/zero_tol"),
        ({"surrogate": {"kind": "pil2", "relative_tau2": 1}}, "/surrogate/relative_tau2"),
        ({"surrogate": {"kind": "sigmoid", "epsilon": 1}}, "/surrogate/epsilon"),
        ({"inner": {"kind": "one_step", "tol": 1}}, "/inner/tol"),
        ({"inner": {"kind": "complete", "max_inner": 0}}, "/inner/max_inner"),
        ({"step": {"kind": "sqrt_T", "horizon": 0}}, "/step/horizon"),
        ({"step": "1/t"}, "/step"),
        ({"step": {"kind": "strongly_convex", "gamma": 0}}, "/step/gamma"),
        ({"step": "strongly_convex", "C": 1}, "/C"),
        ({"radius": 0}, "/radius"),
        ({"loss": "hinge"}, "/loss"),
        ({"average": None}, "/average"),
    ],
)
def test_a_field_out_of_range_is_named(fields, field):
    with pytest.raises(InvalidSpec) as error:
        resolve_spec(FEATURES | {"algorithm": "dc"} | fields)
    assert error.value.field == field
