"""Perceptron, PA, ROMMA and ALMA: against the printed formulas and what their steps promise."""

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from tests.solvers.dc_reference import dense, margin_step
from tests.solvers.specs import DIM, FEATURES, stream

LEARNERS = {
    "perceptron": {"algorithm": "perceptron"},
    "pa": {"algorithm": "passive_aggressive", "variant": "pa"},
    "pa1": {"algorithm": "passive_aggressive", "C": 0.1},
    "pa2": {"algorithm": "passive_aggressive", "variant": "pa2", "C": 0.3},
    "romma": {"algorithm": "romma"},
    "alma": {"algorithm": "alma"},
    "alma-long-steps": {"algorithm": "alma", "alpha": 0.9, "C": 1.5, "p": 6, "normalize": False},
}
PLANE = {"features": {"kind": "indexed", "dim": 2}, "intercept": False}


def plane(algorithm, **fields):
    return make_learner(PLANE | {"algorithm": algorithm} | fields)


def one_row(x, y, c=1.0):
    return Batch.from_dense([x], [y], [c])


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", LEARNERS)
def test_learns_as_the_printed_formulas_do(name, intercept):
    learner = make_learner(FEATURES | LEARNERS[name] | {"intercept": intercept})
    batch = stream(learner.spec, 120)
    w, k, steps = np.zeros(DIM + 1), 1.0, 0
    for i, x in enumerate(dense(batch, float(intercept))):
        out = learner.learn(batch[i : i + 1])
        y, c, before = batch.labels[i], batch.weights[i], w
        assert out.scores[0] == pytest.approx(w @ x, rel=1e-9, abs=1e-9)
        assert out.losses[0] == max(0.0, 1.0 - y * out.scores[0])
        if c > 0.0:
            w, k = margin_step(learner.spec, w, x, y, c, k)
        assert out.updated[0] == bool(np.any(w != before))
        steps += out.updated[0]
        results = [*learner.weights, learner.intercept]
        assert results == pytest.approx(w, rel=1e-8, abs=1e-9)
    assert steps > 10


@pytest.mark.parametrize("name", LEARNERS)
def test_the_weight_of_a_row_is_continuous(name):
    batch = stream(FEATURES, 40, weighted=False)

    def weights(c):
        learner = make_learner(FEATURES | LEARNERS[name])
        learner.learn(batch)
        x, y = -learner.weights, 1.0
        learner.learn(one_row(x / np.linalg.norm(x) + 0.1, y, c))
        return learner.weights

    for c in (0.0, 0.5, 1.0, 2.0):
        assert weights(c) == pytest.approx(weights(c + 1e-9), abs=1e-6)
    assert np.any(weights(0.0) != weights(0.5))
    assert np.any(weights(0.5) != weights(1.0))


def test_a_pa_step_ends_on_the_margin():
    for row in ([3.0, 4.0], [-1.0, 2.0], [1e50, 3.0], [1e-50, 2e-50]):
        learner = plane("passive_aggressive", variant="pa")
        learner.learn(one_row([1.0, 1.0], 1.0))
        batch = one_row(row, -1.0)
        assert learner.learn(batch).updated[0]
        rounding = 1e-15 * np.linalg.norm(row)
        assert learner.predict(batch)[0] == pytest.approx(-1.0, abs=1e-12 + rounding)


def test_a_romma_step_meets_both_of_its_constraints():
    learner = plane("romma")
    learner.learn(one_row([1.0, 2.0], 1.0))
    rng = np.random.default_rng(0)
    steps = 0
    for _ in range(200):
        x = rng.normal(size=2)
        # Labels that weights separate, so that w stays of a size with 1.
        y = 1.0 if x @ [1.0, -0.3] > 0.0 else -1.0
        before = learner.weights
        if learner.learn(one_row(x, y)).updated[0]:
            steps += 1
            after = learner.weights
            assert y * (after @ x) == pytest.approx(1.0, rel=1e-6)
            assert after @ before == pytest.approx(before @ before, rel=1e-6)
            squared = learner.state()["norm_squared"]
            assert squared == pytest.approx(after @ after, rel=1e-6)
    assert steps >= 3


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 12])
def test_romma_learns_on_where_no_weights_separate(dim):
    rng, n = np.random.default_rng(0), 100_000
    batch = Batch.from_dense(rng.normal(size=(n, dim)), rng.choice([-1.0, 1.0], n))
    learner = make_learner(
        {"algorithm": "romma", "features": {"kind": "indexed", "dim": dim}, "intercept": dim == 1}
    )
    out = learner.learn(batch)
    assert not out.rejected.any() and out.updated[-1000:].any()
    w = np.append(learner.weights, learner.intercept)
    squared = learner.state()["norm_squared"]
    assert 1.0 < squared < 1e240 and squared == pytest.approx(w @ w, rel=1e-9)


def test_romma_predicts_the_same_once_it_is_made_smaller():
    plain, huge = plane("romma"), plane("romma")
    state = plain.state() | {"v": np.array([1e60, 2e60, 0.0]), "norm_squared": np.array(5e120)}
    plain.restore(state)
    huge.restore(state | {"v": state["v"] * 1e60, "norm_squared": np.array(5e240)})
    rng = np.random.default_rng(0)
    batch = Batch.from_dense(rng.normal(size=(30, 2)), rng.choice([-1.0, 1.0], 30))
    a, b = plain.learn(batch), huge.learn(batch)
    assert np.array_equal(a.scores >= 0.0, b.scores >= 0.0)
    assert huge.state()["norm_squared"] < 1e240
    ratio = huge.weights / plain.weights
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-9)


def test_romma_takes_no_step_along_its_own_weights():
    learner = plane("romma")
    learner.learn(one_row([0.1, 0.7], 1.0))
    for factor in (1.0, 0.3, 7.1, 1e-80, 1e80):
        row = one_row([0.1 * factor, 0.7 * factor], -1.0)
        out = learner.learn(row)
        assert not out.updated[0] and not out.rejected[0]
    assert learner.weights.tolist() == [0.1, 0.7]


@pytest.mark.parametrize("factor", [2.0**-250, 2.0**250])
@pytest.mark.parametrize("name", ["pa", "romma"])
def test_weights_shrink_as_all_rows_grow(name, factor):
    plain, scaled = (make_learner(FEATURES | LEARNERS[name] | {"intercept": False}) for _ in "ab")
    batch = stream(plain.spec, 60, weighted=False)
    values = batch.values * factor
    plain.learn(batch)
    first = one_row(np.zeros(DIM), 1.0)
    scaled.learn(first)
    if name == "romma":
        # The first of its steps, w = y x, is the one that grows with the rows.
        plain = make_learner(plain.spec)
        state = plain.state()
        state["v"][:3], state["norm_squared"] = [1.0, -2.0, 0.5], np.array(5.25)
        plain.restore(state)
        state["v"] = state["v"] / factor
        state["norm_squared"] = np.array(5.25 / factor**2)
        scaled.restore(state)
        plain.learn(batch)
    out = scaled.learn(Batch(batch.indptr, batch.indices, values, batch.labels, batch.weights, DIM))
    assert not out.rejected.any()
    assert scaled.weights * factor == pytest.approx(plain.weights, rel=1e-9)


@pytest.mark.parametrize("factor", [2.0**-600, 2.0**300])
def test_alma_does_not_depend_on_how_long_rows_are(factor):
    plain, scaled = (make_learner(FEATURES | LEARNERS["alma"] | {"intercept": False}) for _ in "ab")
    batch = stream(plain.spec, 60)
    plain.learn(batch)
    values = batch.values * factor
    scaled.learn(Batch(batch.indptr, batch.indices, values, batch.labels, batch.weights, DIM))
    assert scaled.weights == pytest.approx(plain.weights, rel=1e-12)


def test_alma_stays_in_the_unit_ball_and_folds_its_scale():
    learner = plane("alma", C=1e6, alpha=0.9)
    rng = np.random.default_rng(0)
    for _ in range(60):
        learner.learn(one_row(rng.normal(size=2), rng.choice([-1.0, 1.0])))
        assert np.linalg.norm(learner.weights) <= 1.0 + 1e-12
        assert 1e-30 <= learner.state()["scale"] <= 1e30
    assert learner.state()["norm_squared"] == pytest.approx(1.0)


def test_a_pa2_row_of_hardly_any_weight_hardly_moves():
    for c in (1e-300, 1e-100, 1e-10):
        learner = plane("passive_aggressive", variant="pa2")
        assert not learner.learn(one_row([1.0, 2.0], 1.0, c)).rejected[0]
        assert np.all(np.abs(learner.weights) <= 10.0 * c)


@pytest.mark.parametrize("name", LEARNERS)
def test_has_no_certificate_and_no_probabilities(name):
    learner = make_learner(FEATURES | LEARNERS[name])
    assert learner.certificate() is None
    assert learner.probabilities(np.zeros(3)) is None


def test_defaults_are_written_out():
    alma = resolve_spec(FEATURES | {"algorithm": "alma"})
    assert [alma[name] for name in ("alpha", "C", "p", "normalize")] == [0.6, 0.0625, 2.0, True]
    aggressive = resolve_spec(FEATURES | {"algorithm": "passive_aggressive"})
    assert (aggressive["variant"], aggressive["C"]) == ("pa1", 1.0)
    assert "C" not in resolve_spec(FEATURES | LEARNERS["pa"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"algorithm": "perceptron", "task": "regression"}, "/task"),
        ({"algorithm": "perceptron", "C": 1}, "/C"),
        ({"algorithm": "romma", "task": "regression"}, "/task"),
        ({"algorithm": "alma", "task": "regression"}, "/task"),
        ({"algorithm": "alma", "p": 1}, "/p"),
        ({"algorithm": "alma", "alpha": 0}, "/alpha"),
        ({"algorithm": "alma", "normalize": 1}, "/normalize"),
        ({"algorithm": "passive_aggressive", "task": "regression"}, "/task"),
        ({"algorithm": "passive_aggressive", "variant": "pa3"}, "/variant"),
        ({"algorithm": "passive_aggressive", "variant": "pa", "C": 1}, "/C"),
    ],
)
def test_a_field_out_of_range_is_named(fields, field):
    with pytest.raises(InvalidSpec) as error:
        resolve_spec(FEATURES | fields)
    assert error.value.field == field
