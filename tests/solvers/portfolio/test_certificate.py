"""Certificates of members by name, against the problem written out on each member's own rows."""

import math

import numpy as np
import pytest

from dualstream.solvers import make_learner
from dualstream.solvers.jit import DISABLED
from tests.solvers.portfolio.support import portfolio, stream
from tests.solvers.portfolio_reference import BIAS, LINEAR, Input, dual_step, sigmoid
from tests.solvers.staging import rows_of

N = 60 if DISABLED else 150
SMOOTH_HINGE = {"kind": "smooth_hinge", "gamma": 0.5}
BALANCED = {"kind": "balanced", "power": 0.25, "moments": True}
MEMBERS = [
    {"strength": 3},
    {"strength": 0.03, "norm": "running"},
    {"strength": 100, "scaling": {"kind": "balanced", "power": 0.25, "moments": False}},
    {"strength": 0.1, "scaling": "none", "norm": "row"},
    {"strength": 1, "loss": "hinge"},
    {"strength": 2, "loss": SMOOTH_HINGE, "norm": "row"},
    {"strength": 0.3, "schedule": "inverse_sqrt"},
    {"strength": 0.3, "schedule": "inverse_sqrt", "loss": SMOOTH_HINGE, "norm": "running"},
]


def value(loss, z, y):
    """Q(z; y)."""
    if loss == "hinge":
        return max(0.0, 1.0 - y * z)
    if isinstance(loss, dict):
        gamma = loss["gamma"]
        apart = max(0.0, 1.0 - y * z)
        return apart - 0.5 * gamma if apart > gamma else apart * apart / (2.0 * gamma)
    return math.log1p(math.exp(-abs(z))) + max(-y * z, 0.0)


def conjugate(loss, tau, y):
    """Q*(-tau; y), for tau between 0 and y."""
    b = y * tau
    assert -1e-12 <= b <= 1.0 + 1e-12
    if loss == "hinge":
        return -b
    if isinstance(loss, dict):
        return -b + 0.5 * loss["gamma"] * b * b
    return sum(x * math.log(x) for x in (b, 1.0 - b) if x > 0.0)


class Problem:
    """The rows that one member has learned, as it saw them, and the dual variables it chose.

    min (1/Delta) sum c Q(h'w; y) + (C / Delta) |w|^2 / 2, where C is `total`.
    """

    def __init__(self, spec, batch, since=0):
        self.loss, self.rows = spec.get("loss", "logistic"), []
        scaling = spec.get("scaling", BALANCED)
        scaler = Input(BALANCED if scaling == "balanced" else scaling, spec.get("norm", "none"))
        rising = spec.get("schedule") == "inverse_sqrt"
        u, position, n = np.zeros(batch.dim + 1), batch.dim, 0
        for i, row in enumerate(rows_of(batch)):
            y, c = float(batch.labels[i]), float(batch.weights[i])
            if c == 0.0:
                continue
            n += 1
            h = np.zeros(batch.dim + 1)
            for j, x in scaler.scale(row).items():
                h[position if j == BIAS else j] = x
            self.total = spec["strength"] * (math.sqrt(n) if rising else 1.0)
            tau = 0.0
            if i >= since:
                tau = dual_step(h @ u / self.total, c * (h @ h) / self.total, y, self.loss)
            u += c * tau * h
            self.rows.append((h, y, c, tau))
        self.delta = sum(c for _, _, c, _ in self.rows)
        self.w = u / self.total

    def primal(self, w):
        losses = sum(c * value(self.loss, h @ w, y) for h, y, c, _ in self.rows)
        return (losses + 0.5 * self.total * (w @ w)) / self.delta

    def dual(self):
        below = sum(c * conjugate(self.loss, tau, y) for _, y, c, tau in self.rows)
        return -(below + 0.5 * self.total * (self.w @ self.w)) / self.delta

    def least(self):
        """The least possible objective for the logistic loss, by Newton's method."""
        x = np.array([y * h for h, y, _, _ in self.rows])
        c = np.array([c for _, _, c, _ in self.rows])
        w = np.zeros(x.shape[1])
        for _ in range(100):
            p = np.array([sigmoid(-z) for z in x @ w])
            slope = self.total * w - x.T @ (c * p)
            step = np.linalg.solve(
                (x.T * (c * p * (1.0 - p))) @ x + self.total * np.eye(len(w)), slope
            )
            if slope @ step < 1e-12:
                break
            size = 1.0
            while self.primal(w - size * step) > self.primal(w):
                size *= 0.5
            w = w - size * step
        return self.primal(w)


def assert_certified(learner, name, problem):
    result = learner.member_certificate(name)
    weights, intercept = learner.member_weights(name)
    np.testing.assert_allclose(np.append(weights, intercept), problem.w, rtol=1e-7, atol=1e-9)
    assert result.primal == pytest.approx(problem.primal(problem.w), rel=1e-9)
    assert result.dual == pytest.approx(problem.dual(), rel=1e-9)
    assert result.gap == pytest.approx(problem.primal(problem.w) - problem.dual(), rel=1e-8)
    assert result.relative_gap == pytest.approx(result.gap / result.primal)
    assert (result.rows, result.weight_share) == (len(problem.rows), pytest.approx(1.0))
    return result


def ids(spec):
    return "-".join(str(v) for v in spec.values() if not isinstance(v, dict))


@pytest.mark.parametrize("spec", MEMBERS, ids=ids)
def test_certificate_is_that_of_the_problem_on_the_members_own_rows(spec):
    batch = stream(N)
    members = [{"name": "own", "kind": "dual_ascent"} | spec, {"kind": "adagrad"}]
    learner = portfolio(members=members, retain=N)
    learner.learn(batch)
    problem = Problem(spec, batch)
    result = assert_certified(learner, "own", problem)
    if problem.loss == "logistic":
        assert result.dual <= problem.least() + 1e-9 and problem.least() <= result.primal + 1e-9
    assert learner.member_certificate("adagrad-1") is None
    assert [view.has_certificate for view in learner.members()] == [True, False]


@pytest.mark.parametrize("name", LINEAR)
def test_every_dual_member_of_a_preset_is_certified(name):
    batch = stream(N)
    learner = portfolio(members=name, retain=N)
    assert learner.certificate() is None
    for view in learner.members():
        if view.has_certificate:
            before = learner.member_certificate(view.name)
            assert (before.primal, before.gap, before.rows) == (0.0, 0.0, 0)
    learner.learn(batch)
    for view in learner.members():
        assert view.has_certificate == (view.spec["kind"] == "dual_ascent")
        if view.has_certificate:
            assert_certified(learner, view.name, Problem(view.spec, batch))
        else:
            assert learner.member_certificate(view.name) is None


@pytest.mark.parametrize("spec", MEMBERS, ids=ids)
def test_certificate_after_a_member_was_reset(spec):
    batch = stream(N)
    at = next(i for i in range(N // 2, N) if batch.weights[i] > 0.0)
    members = [{"kind": "prior"}, {"name": "own", "kind": "dual_ascent"} | spec]
    learner = portfolio(members=members, retain=N)
    learner.learn(batch[:at])
    learner._members._fused._table[0, 0] = np.nan
    learner.learn(batch[at:])
    assert learner.members()[1].resets == 1
    # Rows before it, and the one in which it was reset, have dual variables of 0.
    assert_certified(learner, "own", Problem(spec, batch, since=at + 1))


@pytest.mark.parametrize("spec", MEMBERS, ids=ids)
def test_certificate_of_the_last_rows_is_an_estimate(spec):
    batch, retain = stream(N), 20
    learner = portfolio(
        members=[{"name": "own", "kind": "dual_ascent"} | spec], retain=retain, share=0.0
    )
    learner.learn(batch)
    problem = Problem(spec, batch)
    result = learner.member_certificate("own")
    gap = sum(
        c * (value(problem.loss, z := h @ problem.w, y) + conjugate(problem.loss, t, y) + t * z)
        for h, y, c, t in problem.rows[-retain:]
    )
    weight = sum(c for _, _, c, _ in problem.rows[-retain:])
    assert result.dual == pytest.approx(problem.dual(), rel=1e-9)
    assert result.gap == pytest.approx(gap / weight, rel=1e-8)
    assert (result.rows, result.estimate) == (retain, True)
    assert result.weight_share == pytest.approx(weight / problem.delta)


@pytest.mark.parametrize("retain", [20, 1000])
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared_hinge", SMOOTH_HINGE], ids=str)
@pytest.mark.parametrize(("scaling", "norm"), [("none", "none"), ("balanced", "running")])
def test_one_dual_member_is_dual_ascent_of_that_strength(loss, scaling, norm, retain):
    batch = stream(N)
    batch.values[:] = np.sign(batch.values) * np.minimum(np.abs(batch.values), 3.0)
    fields = {"loss": loss, "strength": 3, "scaling": scaling, "norm": norm}
    learner = portfolio(batch.dim, members=[{"kind": "dual_ascent"} | fields], retain=retain)
    features = {"kind": "indexed", "dim": batch.dim}
    model = {"algorithm": "dual_ascent", "average": None, "retain": retain, "features": features}
    single = make_learner(model | fields)
    results, scores = [], []
    for i in range(N):
        results.append(learner._members.predict(batch[i : i + 1])[0, 0])
        scores.append(single.predict(batch[i : i + 1])[0])
        learner.learn(batch[i : i + 1])
        single.learn(batch[i : i + 1])
    np.testing.assert_allclose(results, scores, rtol=1e-11, atol=1e-12)
    weights, intercept = learner.member_weights("dual_ascent-1")
    np.testing.assert_allclose(weights, single.weights, rtol=1e-11, atol=1e-13)
    assert intercept == pytest.approx(single.intercept, rel=1e-11)
    mine, its = learner.member_certificate("dual_ascent-1"), single.certificate()
    for field in ("primal", "dual", "gap", "relative_gap", "weight_share"):
        assert getattr(mine, field) == pytest.approx(getattr(its, field), rel=1e-9), field
    assert (mine.rows, mine.estimate) == (its.rows, its.estimate)


def test_a_challenger_is_certified_on_the_rows_that_it_learned():
    batch, more = stream(N), stream(40, seed=2)
    learner = portfolio(retain=30)
    learner.learn(batch)
    kind = learner.add_member({"name": "late", "kind": "dual_ascent", "strength": 3})
    model = learner.add_member({"algorithm": "dual_ascent", "strength": 3, "retain": 30})
    rows = batch.take(batch.weights > 0.0)
    rows = rows[len(rows) - 30 :]
    assert_certified(learner, kind, Problem({"strength": 3}, rows))
    learner.learn(more)
    alone = make_learner({"strength": 3, "retain": 30, "features": learner.spec["features"]})
    for part in (rows, more):
        alone.learn(part)
    assert learner.member_certificate(model) == alone.certificate()
    assert learner.member_certificate(kind).rows == 30
