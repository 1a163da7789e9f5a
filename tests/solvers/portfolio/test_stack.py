"""The stack against recursive formulas in NumPy, and as members come and go."""

import numpy as np
import pytest

from dualstream.solvers.errors import CorruptState, InvalidSpec, MemberError
from tests.solvers.nonlinear.streams import learner_of, waves
from tests.solvers.portfolio_reference import dual_step

MEMBERS = [
    {"name": "prior", "kind": "prior"},
    {"name": "net", "algorithm": "net"},
    {"name": "splines", "algorithm": "splines"},
    {"name": "newton", "kind": "diagonal_newton"},
]
STACK = {"name": "stack", "kind": "stack"}


def portfolio(members, **spec):
    return learner_of(4, algorithm="portfolio", members=members, **spec)


def test_the_stack_takes_newton_steps_on_the_calibrated_log_odds():
    batch = waves(400)
    learner = portfolio([*MEMBERS, STACK])
    p, w = 0.1 * np.eye(5), np.array([0.25] * 4 + [0.0])
    for i in range(len(batch)):
        row = batch[i : i + 1]
        raw = learner._members.predict(row)[0]
        views = learner.members()
        n0, n1 = learner._rule.g[4], learner._rule.g[3]
        raw[0] = np.log((n1 + 0.5) / (n0 + 0.5))
        z = [a * m + b for m, (a, b) in zip(raw[:4], (v.calibration for v in views), strict=False)]
        h = np.array([*np.clip(z, -6.0, 6.0), 1.0])
        score = float(np.clip(w @ h, -40.0, 40.0))
        learner.learn(row)
        assert learner._rule.scratch[0, 4] == pytest.approx(score, rel=1e-6, abs=1e-7), i
        q = 1.0 / (1.0 + np.exp(-score))
        bend = max(q * (1.0 - q), 1e-3)
        ph = p @ h
        gain = bend / (0.9995 + bend * (h @ ph))
        p = (p - gain * np.outer(ph, ph)) / 0.9995
        direction = ph * (1.0 - gain * (h @ ph)) / 0.9995
        y = float(row.labels[0])
        w = w + dual_step(score, float(h @ direction), y, "logistic") * direction


def test_for_numbers_the_stack_is_least_squares_of_reweighted_errors():
    batch = waves(400, task="regression")
    labels = batch.labels + 0.2 * np.random.default_rng(0).standard_t(1.5, len(batch))
    batch = batch.with_labels(labels)
    learner = portfolio(
        [{**one, "base": "mean"} if one.get("kind") == "prior" else one for one in MEMBERS]
        + [STACK],
        task="regression",
    )
    learner.learn(batch[:3])
    p, w = learner._rule.stack[:6].copy(), learner._rule.stack[6].copy()
    for i in range(3, len(batch)):
        g = learner._rule.g
        mean, low, high, scale = g[5], g[7], g[8], np.sqrt(g[9])
        predicted = learner.learn(batch[i : i + 1]).scores[0]
        mine = learner._rule.scratch[1]
        h = np.array([*(mine[:4] - mean) / scale, 0.0, 0.0])
        beyond = 0.05 * (high - low)
        score = np.clip(mean + scale * (w @ h), low - beyond, high + beyond)
        assert mine[4] == pytest.approx(score, rel=1e-6, abs=1e-7), i
        near = np.clip(batch.labels[i], predicted - 50.0 * scale, predicted + 50.0 * scale)
        error = (near - mean) / scale - w @ h
        c = 1.0 / max(1.0, abs(error))
        p = np.linalg.inv(0.9995 * np.linalg.inv(p) + c * np.outer(h, h))
        w = w + c * error * (p @ h)


def test_the_stack_continues_as_members_come_and_go():
    batch = waves(600)
    learner = portfolio([*MEMBERS, STACK])
    learner.learn(batch[:300])
    learner.add_member({"name": "more", "algorithm": "neighbours"})
    learner.remove_member("splines")
    again = portfolio([*MEMBERS, STACK])
    again.restore(learner.state())
    assert np.array_equal(learner.learn(batch[300:]).scores, again.learn(batch[300:]).scores)
    for row, value in ((0, 1e99), (2, -1e99), (-1, 1e300)):
        damaged = learner.state()
        damaged["rule.stack"][row] = value
        with pytest.raises(CorruptState, match="stack"):
            again.restore(damaged)
    assert {view.name for view in learner.members()} >= {"stack", "more"}
    learner.remove_member("stack")
    assert len(learner._rule.stack) == 0
    learner.learn(batch[:50])
    assert learner.add_member(STACK) == "stack"
    learner.learn(batch[:50])


def test_a_stack_alone_is_refused():
    learner = portfolio([*MEMBERS, STACK])
    with pytest.raises(MemberError, match="combines the other members"):
        learner.promote("stack")
    with pytest.raises(MemberError, match="one is enough"):
        learner.add_member(STACK | {"name": "second"})
    with pytest.raises(InvalidSpec) as caught:
        portfolio([STACK, STACK | {"name": "second"}])
    assert caught.value.field == "/members/1/kind"


def test_a_stack_beats_its_members_where_each_knows_a_part():
    """Two members see different columns only through their own non-linearity."""
    batch = waves(4000)
    learner = portfolio([*MEMBERS, STACK])
    learner.learn(batch)
    losses = {view.name: view.rolling_loss for view in learner.members()}
    assert losses["stack"] <= min(losses.values()) + 0.01
