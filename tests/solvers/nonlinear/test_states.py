"""Damaged states are refused before a kernel follows them; huge weights and labels are outlived."""

import numpy as np
import pytest

from dualstream.service.models.sizeof import bytes_of
from dualstream.solvers import Batch, CorruptState, explain
from dualstream.solvers.portfolio.weighting_state import Rule
from tests.solvers.nonlinear.streams import learner_of, waves

SPECS = {
    "boosted": {"algorithm": "boosted", "window": 300},
    "net": {"algorithm": "net"},
    "neighbours": {"algorithm": "neighbours"},
    "splines": {"algorithm": "splines"},
}


def child_far_away(state):
    state["left"][state["feature"] >= 0] = 2**31 - 1


def ring_without_rows(state):
    state["rows_held"][...], state["ring_at"][...] = 0, 0
    state["ring"] = state["ring"][:0]


def features_without_columns(state):
    state["columns"][:] = -1


def too_many_trees_grown(state):
    state["grown"][...] = 2**62


def weights_below_0(state):
    state["about"][:, 1] = -1.0


def values_far_away(state):
    state["ring"].view(np.float32)[:] = 1e30


def sums_of_0(state):
    state["second"][:, -1] = 0.0


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("boosted", child_far_away),
        ("boosted", too_many_trees_grown),
        ("boosted", weights_below_0),
        ("boosted", features_without_columns),
        ("splines", ring_without_rows),
        ("neighbours", features_without_columns),
        ("neighbours", values_far_away),
        ("net", sums_of_0),
    ],
)
def test_a_damaged_state_is_refused(name, damage):
    learner = learner_of(4, **SPECS[name])
    learner.learn(waves(400))
    other, state = learner_of(4, **SPECS[name]), learner.state()
    other.restore(learner.state())
    damage(state)
    with pytest.raises(CorruptState):
        other.restore(state)
    assert np.array_equal(other.predict(waves(20)), learner.predict(waves(20)))


@pytest.mark.parametrize("broken", [1e3, 1e6, 1e100])
def test_one_early_broken_number_is_outlived(broken):
    batch = waves(5000, task="regression")
    labels = batch.labels.copy()
    labels[5] = broken
    learner = learner_of(4, algorithm="boosted", window=1024, task="regression")
    scores = learner.learn(batch.with_labels(labels)).scores
    assert np.abs(scores - batch.labels)[4000:].mean() < 0.3


def test_numbers_that_move_are_followed():
    batch = waves(12_000, task="regression")
    labels = batch.labels + np.where(np.arange(12_000) >= 3000, 1000.0, 0.0)
    learner = learner_of(4, algorithm="boosted", window=1024, task="regression")
    scores = learner.learn(batch.with_labels(labels)).scores
    assert np.abs(scores - labels)[11_000:].mean() < 5.0


@pytest.mark.parametrize("heavy", [1e3, 1e6, 1e100])
@pytest.mark.parametrize("name", SPECS)
def test_rows_of_huge_weights_are_outlived(name, heavy):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 4))
    y = np.where(np.abs(x[:, 0]) > 0.7, 1.0, -1.0)
    y[rng.random(6000) < 0.1] *= -1.0
    weights = np.where((rng.random(6000) < 0.02) & (np.arange(6000) < 3000), heavy, 1.0)
    learner = learner_of(4, **SPECS[name])
    scores = learner.learn(Batch.from_dense(x, y, weights)).scores
    assert np.isfinite(scores).all() and np.abs(scores).max() < 1e4
    if name in ("boosted", "neighbours"):  # the others do not forget what heavy rows taught
        assert ((scores > 0.0) != (y > 0.0))[5000:].mean() < 0.25


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("heavy", [1e6, 1e20, 1e100])
def test_the_stack_outlives_huge_weights(classes, heavy):
    rng = np.random.default_rng(0)
    members = [{"kind": "prior"}, {"algorithm": "net"}, {"kind": "stack"}]
    rule = Rule(members, 0.5, 0.001, classes=classes)
    scores = rng.normal(size=(3000, 3))
    labels = np.where(scores[:, 1] + rng.normal(size=3000) > 0.0, 1.0, -1.0)
    weights = np.where(rng.random(3000) < 0.02, heavy, 1.0)
    rule.count(scores, labels, weights)
    p, w = rule.stack[:4, :4], rule.stack[4]
    assert np.abs(w).max() < 100.0
    assert np.linalg.eigvalsh(0.5 * (p + p.T)).min() > 0.0


@pytest.mark.parametrize("spec", [{"members": "fast"}, {"members": "fast", "task": "multiclass"}])
def test_a_prediction_of_a_long_row_does_not_make_a_learner_larger(spec):
    learner = learner_of(900, **spec)
    few = waves(60, 900)
    rows = Batch.from_dense(
        np.where(np.arange(900) < 5, few.values.reshape(60, 900), 0.0), few.labels
    )
    if "task" in spec:
        rows = rows.with_labels((rows.labels > 0.0).astype(np.float64), ("a", "b"))
    learner.learn(rows)
    size = bytes_of(learner)
    scores = learner.predict(few)
    one_by_one = [learner.predict(few[i : i + 1]) for i in range(60)]
    np.testing.assert_array_equal(scores, np.concatenate(one_by_one))
    explained = explain(learner, few[:1])
    assert explained.score == pytest.approx(explained.base + explained.contributions.sum())
    assert bytes_of(learner) == size
