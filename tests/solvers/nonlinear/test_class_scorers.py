"""Learners that score all classes at once: formulas, new classes, states, and version 2."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, ShapeMismatch, dump, make_learner
from dualstream.solvers.nonlinear.softmax import log_odds_of
from dualstream.solvers.spec import make_learner as maker
from tests.solvers.nonlinear.class_streams import clusters, learner_of_classes, wrong_rows

SPECS = {
    "boosted": {"algorithm": "boosted", "window": 300},
    "net": {"algorithm": "net"},
    "neighbours": {"algorithm": "neighbours", "window": 300},
    "full": {"algorithm": "portfolio", "members": "full"},
}
_MEMBERS = [
    {"kind": "prior"},
    {"kind": "diagonal_newton"},
    {"algorithm": "neighbours", "window": 60},
    {"algorithm": "splines"},
    {"kind": "stack"},
]


def as_bytes(learner):
    return dump(learner.state(), {})


@pytest.mark.parametrize("size", [2, 3, 4, 7, 30])
def test_log_odds_are_those_of_a_softmax(size):
    rng = np.random.default_rng(size)
    margins = rng.normal(size=(200, size)) * rng.choice([0.1, 1.0, 10.0], (200, 1))
    margins[0], margins[1], margins[2] = 0.0, 1e300, -1e300
    margins[3], margins[3, 0] = 0.0, 20.0
    result = np.empty_like(margins)
    log_odds_of(margins, result)
    limited = np.clip(margins, -300.0, 300.0)
    for row, of_row in zip(limited, result, strict=True):
        for c in range(size):
            others = np.delete(row, c)
            top = others.max()
            odds = row[c] - top - math.log(math.fsum(np.exp(others - top)))
            assert of_row[c] == pytest.approx(min(max(odds, -40.0), 40.0), rel=1e-12, abs=1e-12)


SHARED_SPECS = [
    {"algorithm": "neighbours", "window": 60, "neighbours": 9},
    {"algorithm": "portfolio", "members": _MEMBERS, "retain": 20},
]


@pytest.mark.parametrize("spec", SHARED_SPECS)
def test_shared_neighbours_are_those_of_each_class_against_the_rest(spec, monkeypatch):
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 400)
    batch, _ = clusters(400, 6, dim=7, late=200, weights=weights)
    shared = learner_of_classes(7, **spec)
    monkeypatch.setattr(maker, "shared_algorithms", lambda spec: [])
    apart = learner_of_classes(7, **spec)
    for learner in (shared, apart):
        learner.learn(batch[:9])
    assert any(name.startswith("none.") for name in apart.state())
    for first in (9, 50, 201, 390):
        rows = batch[first : first + 60]
        one, other = shared.learn(rows), apart.learn(rows)
        assert one.scores.tobytes() == other.scores.tobytes()
        assert one.predicted.tobytes() == other.predicted.tobytes()
        assert one.losses == pytest.approx(other.losses, rel=1e-12)
        one, other = shared.predict_classes(batch[:50]), apart.predict_classes(batch[:50])
        assert one.scores.tobytes() == other.scores.tobytes()
        assert one.probabilities.tobytes() == other.probabilities.tobytes()


def test_a_step_of_the_net_is_along_the_gradient_of_the_log_loss():
    batch, _ = clusters(300, 4, dim=4, late=100)
    learner = learner_of_classes(4, algorithm="net", units=[4, 2])
    learner.learn(batch[:299])
    before, row = learner.state(), batch[299:]
    scores = learner.predict_classes(row).scores[0]
    learner.learn(row)
    after = learner.state()
    units, last, step = 16, 8, 0.4 * 0.1
    touched = before["scorer.touched"].tolist()
    h = np.zeros(len(touched))
    for feature, value in zip(row.indices.tolist(), row.values.tolist(), strict=True):
        slot = touched.index(feature)
        count, mean, m, _ = after["scorer.blocks"][slot, -4:]
        h[slot] = np.clip((value - mean) / math.sqrt(m / count), -8.0, 8.0)

    def numbers(state):
        """Weights, and their sums of squared gradients."""
        block, outputs = state["scorer.blocks"], state["scorer.outputs"]
        weights = {
            "w": block[:, :units],
            "b": state["scorer.first"][0],
            "u": state["scorer.second"][:, :last],
            "e": state["scorer.third"][0],
            "v": outputs[:, : last + 1],
        }
        sums = {
            "w": block[:, units : 2 * units],
            "b": state["scorer.first"][1],
            "u": state["scorer.second"][:, last:],
            "e": state["scorer.third"][1],
            "v": outputs[:, last + 1 :],
        }
        return weights, sums

    def probabilities(p):
        z = np.maximum(p["b"] + h @ p["w"], 0.0)
        q = np.maximum(p["e"] + z @ p["u"], 0.0)
        shares = np.exp(p["v"] @ np.append(q, 1.0))
        return shares / shares.sum()

    (parts, sums), (now, _) = numbers(before), numbers(after)
    p = probabilities(parts)
    assert scores == pytest.approx(np.log(p / (1.0 - p))[1:], rel=1e-9)
    mine = 1 + learner.classes.index(row.classes[int(row.labels[0])])
    checked = 0
    for name, array in parts.items():
        for index in np.ndindex(array.shape):
            eps = 1e-6
            up, down = ({k: v.copy() for k, v in parts.items()} for _ in range(2))
            up[name][index] += eps
            down[name][index] -= eps
            losses = [-math.log(probabilities(moved)[mine]) for moved in (up, down)]
            slope = (losses[0] - losses[1]) / (2 * eps)
            expected = array[index] - step * slope / math.sqrt(sums[name][index] + slope**2)
            assert now[name][index] == pytest.approx(expected, abs=2e-5), (name, index)
            checked += slope != 0.0
    assert checked > 20


@pytest.mark.parametrize("name", SPECS)
def test_classes_that_no_linear_model_separates_are_learned_also_when_they_come_late(name):
    batch, _ = clusters(2400, 9, dim=5, late=1200)
    learner = learner_of_classes(5, **SPECS[name])
    wrong = wrong_rows(learner, batch)
    assert len(learner.classes) == 9
    assert wrong[800:1200].mean() < 0.08 and wrong[2000:].mean() < 0.1
    got = learner.predict_classes(batch[:50])
    assert got.probabilities.sum(axis=1) == pytest.approx(np.ones(50))
    assert not learner.weights[:, :5].any() or name == "full"


@pytest.mark.parametrize("name", ["boosted", "net", "neighbours"])
def test_rows_wider_than_the_columns_are_learned_one_by_one_as_together(name):
    rng = np.random.default_rng(0)
    batch, x = clusters(1300, 5, dim=4)
    far = rng.integers(0, 300, 1300)
    wide = np.zeros((1300, 400))
    wide[:, 250:254] = x
    wide[np.arange(1300), far] += 1.0
    rows = Batch.from_dense(wide, batch.labels).with_labels(batch.labels, batch.classes)
    spec = SPECS[name] | {"window": 64} if name != "net" else SPECS[name]
    whole, single = learner_of_classes(400, **spec), learner_of_classes(400, **spec)
    out = whole.learn(rows)
    for row in range(900):
        single.learn(rows[row : row + 1])
    other = make_learner(single.spec)
    other.restore(single.state())
    rest = other.learn(rows[900:])
    assert rest.scores.tobytes() == out.scores[900:].tobytes()
    assert as_bytes(other) == as_bytes(whole)


def target_of_no_class(state):
    state["scorer.about"][:, 0] = 1e6


def label_of_no_class(state):
    state["scorer.about"][0, :] = 9.0


def sums_of_0(state):
    state["scorer.outputs"][:, -1] = 0.0


def class_more(state):
    state["class_text"] = np.append(state["class_text"], np.frombuffer(b"77", np.uint8))
    state["class_ends"] = np.append(state["class_ends"], state["class_ends"][-1] + 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("boosted", target_of_no_class),
        ("boosted", class_more),
        ("neighbours", label_of_no_class),
        ("net", sums_of_0),
        ("net", class_more),
    ],
)
def test_a_damaged_state_is_refused(name, damage):
    batch, _ = clusters(400, 4)
    learner, other = (learner_of_classes(3, **SPECS[name]) for _ in range(2))
    learner.learn(batch)
    other.restore(learner.state())
    state = learner.state()
    damage(state)
    with pytest.raises(CorruptState):
        other.restore(state)
    assert as_bytes(other) == as_bytes(learner)


@pytest.mark.parametrize("name", SPECS)
def test_a_batch_of_another_width_adds_no_class(name):
    learner = learner_of_classes(3, **SPECS[name])
    before = as_bytes(learner)
    for read in (learner.learn, learner.predict, learner.predict_classes):
        with pytest.raises(ShapeMismatch):
            read(clusters(9, 2, dim=4)[0])
    assert learner.classes == () and as_bytes(learner) == before
