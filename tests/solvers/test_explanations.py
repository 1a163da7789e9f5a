"""Explanations: they sum to the score, and are what each learner's definition says."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, NotExpressible, ShapeMismatch, dump, explain, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.nonlinear import SHARED, net_kernels
from dualstream.solvers.portfolio import stack_kernels as stack, weighting_kernels as rule
from dualstream.solvers.protocols.curves import curves_of
from dualstream.solvers.protocols.served_form import classes_of
from tests.solvers.nonlinear.streams import learner_of, waves
from tests.solvers.specs import DIM, SPECS, stream

N = 60 if DISABLED else 500
CLASSES = {
    f"{name} of classes": {**SPECS[name], "task": "multiclass"}
    for name in (
        "dual_ascent-logistic",
        "balanced-norm-running-romma",
        "portfolio-nonlinear",
        "boosted",
        "net",
        "neighbours",
        "splines",
    )
}


def refused(spec):
    shared = SHARED if spec.get("task") == "multiclass" else ()
    unexplained = ("neighbours", "semiparametric", *shared)
    return spec.get("map") is not None or spec["algorithm"] in unexplained


def explained(learner, row):
    """The explanation, and the contribution of each feature (DIM,)."""
    result = explain(learner, row)
    whole = np.zeros(row.dim)
    whole[result.features] = result.contributions
    return result, whole


def test_base_and_contributions_sum_to_the_score_and_no_state_changes(subtests):
    for name in [*SPECS, *CLASSES]:
        with subtests.test(name=name):
            spec = (SPECS | CLASSES)[name]
            batch = stream(spec, N)
            if name in CLASSES:
                batch = batch.with_labels(np.arange(float(N)) % 3, ('"a"', '"b"', '"c"'))
            learner = make_learner(spec)
            rows = [batch[0:1], batch[7:8], Batch.from_dense(np.zeros((1, DIM)))]
            if refused(spec):
                with pytest.raises(NotExpressible, match="whole rows|mixes features|all classes"):
                    explain(learner, rows[0])
                return
            for first in (0, 40, N):
                if first:
                    learner.learn(batch[first - 40 if first == 40 else 40 : first])
                before = dump(learner.state(), {})
                for row in rows:
                    result = explain(learner, row)
                    assert result.score == learner.predict(row)[0]
                    total = result.base + math.fsum(result.contributions)
                    assert total == pytest.approx(result.score, rel=1e-9, abs=1e-12)
                    assert (np.diff(result.features) > 0).all() and (
                        result.contributions != 0.0
                    ).all()
                assert dump(learner.state(), {}) == before
            with pytest.raises(ShapeMismatch):
                explain(learner, Batch.from_dense(np.ones((1, DIM + 1))))


def test_a_linear_contribution_is_weight_times_value():
    learner = make_learner(SPECS["dual_ascent-huber"])
    batch = stream(learner.spec, N)
    learner.learn(batch)
    row = batch[3:4]
    result, contributions = explained(learner, row)
    x = np.zeros(DIM)
    x[row.indices] = row.values
    assert result.base == learner.intercept
    np.testing.assert_allclose(contributions, learner.weights * x, rtol=1e-9, atol=1e-12)


def test_fused_contribution_is_weight_times_normed_value():
    member = {"name": "raw", "kind": "adagrad", "scaling": "none", "norm": "row"}
    spec = {"task": "regression", "members": [member | {"kind": "diagonal_newton"}]}
    learner = learner_of(DIM, **spec)
    batch = stream({"task": "regression"}, N)
    learner.learn(batch)
    row = batch[3:4]
    x = np.zeros(DIM)
    x[row.indices] = row.values
    weights, _ = learner.member_weights("raw")
    _, contributions = explained(learner, row)
    # One member that is not clipped: the portfolio's score is its score and the base.
    np.testing.assert_allclose(contributions, weights * x / np.linalg.norm(x), rtol=1e-9)


def path_contributions(state, row):
    """Base and contributions of trees, by recursion over the arrays of a state."""
    feature, left = state["feature"], state["left"]
    columns = {int(c): int(f) for f, c in zip(state["features"], state["columns"], strict=True)}
    values = dict(zip(row.indices.tolist(), row.values.tolist(), strict=True))
    weights = state["about"][:, 1]
    base, contributions = float(state["base"]), np.zeros(row.dim)

    def leaves_below(tree, node):
        if feature[tree, node] < 0:
            return [node]
        child = int(left[tree, node])
        return leaves_below(tree, child) + leaves_below(tree, child + 1)

    def mean(tree, node):
        leaves = leaves_below(tree, node)
        cover = [weights[state["leaves"][:, tree] == leaf].sum() for leaf in leaves]
        assert sum(cover) > 0.0
        return np.average([state["value"][tree, leaf] for leaf in leaves], weights=cover)

    for tree in range(len(feature)):
        node = 0
        base += mean(tree, 0)
        while feature[tree, node] >= 0:
            name = columns[int(feature[tree, node])]
            is_right = np.float32(values.get(name, 0.0)) > state["threshold"][tree, node]
            child = int(left[tree, node]) + int(is_right)
            contributions[name] += mean(tree, child) - mean(tree, node)
            node = child
    return base, contributions


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_boosted_contributes_the_changes_of_the_mean_along_the_paths(task):
    spec = {"window": 300, "trees": 6, "renewal": 6, "leaves": 5, "task": task}
    learner = learner_of(4, algorithm="boosted", **spec)
    weights = np.random.default_rng(1).choice([0.5, 1.0, 3.0], 400)
    batch = waves(400, task=task, weights=weights)
    learner.learn(batch)
    for row in (batch[5:6], Batch.from_dense(np.array([[0.0, 0.0, -2.0, 0.0]]))):
        result, contributions = explained(learner, row)
        base, expected = path_contributions(learner.state(), row)
        assert result.base == pytest.approx(base, rel=1e-9)
        np.testing.assert_allclose(contributions, expected, rtol=1e-9, atol=1e-12)
        assert np.abs(contributions).max() > 0.01


def test_both_sides_of_a_split_that_no_row_of_the_ring_reaches_count_equally():
    learner = learner_of(2, algorithm="boosted", window=100, trees=40, renewal=4)
    near = waves(300, 2)
    learner.learn(near)
    learner.learn(Batch.from_dense(np.full((100, 2), 9.0), near.labels[:100]))
    state = learner.state()
    contributions = [explained(learner, near[row : row + 1])[1] for row in range(40)]
    assert np.isfinite(contributions).all() and np.ptp(contributions, axis=0).min() > 0.01
    feature, left, means = state["feature"], state["left"], learner._node_means()
    alone = 0
    for tree, node in np.argwhere(feature >= 0).tolist():
        child = left[tree, node]
        is_leaf = (feature[tree, child : child + 2] < 0).all()
        if is_leaf and not np.isin(state["leaves"][:, tree], [child, child + 1]).any():
            alone += 1
            mean = state["value"][tree, child : child + 2].mean()
            assert means[tree, node] == pytest.approx(mean, rel=1e-12)
    assert alone > 0


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_net_contributes_its_numeric_gradient_times_the_standardised_value(task):
    batch = waves(300, task=task)
    spec = {"algorithm": "net", "units": [6, 5], "task": task}
    learner, next_one = learner_of(4, **spec), learner_of(4, **spec)
    learner.learn(batch[:299])
    next_one.learn(batch)
    row, before, after = batch[299:], learner.state(), next_one.state()
    # The moments of a prediction count its row, as those of the next learned row do.
    slots = {int(feature): slot for slot, feature in enumerate(before["touched"].tolist())}
    h = np.zeros(len(slots))
    for feature, value in zip(row.indices.tolist(), row.values.tolist(), strict=True):
        count, mean, m, _ = after["blocks"][slots[feature], -4:]
        h[slots[feature]] = np.clip((value - mean) / math.sqrt(m / count), -8.0, 8.0)
    unit, mean = 1.0, 0.0
    if task == "regression":
        unit = math.sqrt(before["numbers"][net_kernels.SPREAD])
        mean = before["numbers"][net_kernels.MEAN]

    def score(h):
        z = np.maximum(before["first"][0] + h @ before["blocks"][:, :6], 0.0)
        q = np.maximum(before["third"][0] + z @ before["second"][:, :5], 0.0)
        return mean + unit * (before["third"][2] @ q + before["numbers"][net_kernels.BIAS])

    result, contributions = explained(learner, row)
    assert result.score == pytest.approx(score(h), rel=1e-9)
    for feature, slot in slots.items():
        if feature == 4:
            continue  # the intercept's
        step = np.zeros(len(h))
        step[slot] = 1e-5
        slope = (score(h + step) - score(h - step)) / 2e-5
        assert contributions[feature] == pytest.approx(slope * h[slot], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_splines_contribute_the_values_of_their_curves(task):
    learner = learner_of(4, algorithm="splines", task=task)
    assert curves_of(learner) == [[]]
    batch = waves(700, task=task)
    learner.learn(batch)
    (curves,) = curves_of(learner)
    assert [curve.feature for curve in curves] == [0, 1, 2, 3]
    nothing = learner.predict(Batch.from_dense(np.zeros((1, 4))))[0]
    row = Batch.from_dense(np.array([[0.5, -9.0, 0.0, 0.1]]))
    result, contributions = explained(learner, row)
    assert result.base == learner.intercept
    for curve, x, contribution in zip(curves, (0.5, -9.0, 0.0, 0.1), contributions, strict=True):
        assert (np.diff(curve.knots) > 0.0).all()
        assert contribution == np.interp(np.float32(x), curve.knots, curve.heights)
        assert curve.reach == curve.heights.max() - curve.heights.min()
        # The definition: what the column alone changes.
        alone = np.zeros((1, 4))
        alone[0, curve.feature] = x
        change = learner.predict(Batch.from_dense(alone))[0] - nothing
        at_zero = np.interp(0.0, curve.knots, curve.heights)
        assert contribution - at_zero == pytest.approx(change, rel=1e-9, abs=1e-12)


def chained(learner, scores, bases, parts):
    """Contributions of a portfolio by its formulas, one member at a time."""
    r, g, roles = learner._rule.r, learner._rule.g, learner._rule.roles
    weights = learner._rule.stack[learner._rule.size + 1]
    k = len(scores)
    classes = learner.spec["task"] == "binary"
    scale = 1.0 if classes else math.sqrt(g[rule.SQUARE])
    beyond = 0.05 * (g[rule.HIGH] - g[rule.LOW])

    def own(j, m):
        if classes:
            z = r[rule.A, j] * np.clip(m, -40.0, 40.0) + r[rule.B, j]
            return 1.0 / (1.0 + math.exp(-np.clip(z, -12.0, 12.0)))
        base = (g[rule.MEAN], g[rule.LAST], 0.0)[roles[j, 1]]
        if roles[j, 0] == stack.STACK:
            base, m = g[rule.MEAN], scale * m
        return float(np.clip(base + m, g[rule.LOW] - beyond, g[rule.HIGH] + beyond))

    def given(j, m):
        """Input of the stack."""
        if classes:
            return float(np.clip(r[rule.A, j] * np.clip(m, -40, 40) + r[rule.B, j], -6.0, 6.0))
        return float(np.clip((own(j, m) - g[rule.MEAN]) / scale, -50.0, 50.0))

    def part(f, j, m, low, own_parts):
        return own_parts * (f(j, m) - f(j, low)) / (m - low) if m != low else 0.0 * own_parts

    prior = math.log((g[rule.POSITIVE] + 0.5) / (g[rule.NEGATIVE] + 0.5)) if classes else 0.0
    high, low, parts = list(scores), list(bases), list(parts)
    for j in range(k):
        if roles[j, 0] == stack.PRIOR:
            high[j] = low[j] = prior
    s = int(np.flatnonzero(roles[:, 0] == stack.STACK)[0])
    others = [j for j in range(k) if j != s]
    constant = weights[k] if classes else 0.0
    top = constant + sum(weights[j] * given(j, high[j]) for j in others)
    bottom = constant + sum(weights[j] * given(j, low[j]) for j in others)
    parts[s] = sum(weights[j] * part(given, j, high[j], low[j], parts[j]) for j in others)
    high[s], low[s] = top, bottom
    v = r[rule.V]
    total = sum(v[j] * part(own, j, high[j], low[j], parts[j]) for j in range(k))
    p = sum(v[j] * own(j, high[j]) for j in range(k))
    q = sum(v[j] * own(j, low[j]) for j in range(k))
    if not classes:
        return q, total
    log_odds = [math.log(x / (1.0 - x)) for x in (p, q)]
    return log_odds[1], total * (log_odds[0] - log_odds[1]) / (p - q)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_portfolio_contributes_what_the_chain_of_its_rule_does(task):
    small = {"algorithm": "boosted", "window": 200, "trees": 5, "renewal": 10}
    members = [
        {"kind": "prior"},
        {"kind": "diagonal_newton"},
        {"algorithm": "net"},
        small,
        {"algorithm": "neighbours", "window": 50},
        {"algorithm": "splines"},
        {"kind": "stack"},
    ]
    learner = learner_of(4, task=task, members=members)
    batch = waves(600, task=task)
    learner.learn(batch)
    for row in (batch[2:3], batch[9:10]):
        scores, bases, features, parts, _ = learner._members.explain(row)
        assert features.tolist() == [0, 1, 2, 3]
        # Each member sums to its own score; neighbours contribute nothing.
        np.testing.assert_allclose(bases + parts.sum(axis=1), scores, rtol=1e-9, atol=1e-12)
        assert not parts[4].any() and parts[[1, 2, 3, 5]].any(axis=1).all()
        base, expected = chained(learner, scores, bases, parts)
        result, contributions = explained(learner, row)
        assert result.base == pytest.approx(base, rel=1e-9)
        np.testing.assert_allclose(contributions, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_contributions_that_cancel_are_shown(task):
    """Where a score is at its base, contributions are scaled as next to it."""
    linear = {"kind": "diagonal_newton", "scaling": "none", "norm": "none"}
    learner = learner_of(2, task=task, members=[linear, {"kind": "stack"}])
    x = np.tile([[1.0, 0.0], [0.0, 1.0], [0.5, 0.25]], (60, 1))
    learner.learn(Batch.from_dense(x, np.tile([1.0, -1.0, 1.0], 60)))
    weights, _ = learner.member_weights("diagonal_newton-1")
    there = np.array([[1.0, -weights[0] / weights[1]]])
    _, contributions = explained(learner, Batch.from_dense(there))
    _, nearby = explained(learner, Batch.from_dense(there + [[1e-4, 0.0]]))
    assert contributions[0] > 0.1
    assert contributions.sum() == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(contributions, nearby, rtol=1e-2)


def test_a_promoted_member_is_explained_alone():
    learner = learner_of(4, members=[{"algorithm": "splines"}, {"algorithm": "net"}])
    batch = waves(400)
    learner.learn(batch)
    learner.promote("splines-1")
    result, contributions = explained(learner, batch[:1])
    calibration = learner.members()[0].calibration
    mine = np.array(
        [
            np.interp(x, c.knots, c.heights)
            for x, c in zip(batch.values[:4], learner.member_curves("splines-1"), strict=True)
        ]
    )
    np.testing.assert_allclose(contributions, calibration[0] * mine, rtol=1e-9)
    assert result.base + contributions.sum() == pytest.approx(result.score, rel=1e-9)


def test_curves_of_models_with_and_without():
    spec = SPECS["portfolio-nonlinear"]
    learner = make_learner({**spec, "task": "multiclass"})
    assert curves_of(learner) == []
    batch = stream(spec, 200)
    learner.learn(batch.with_labels(np.arange(200.0) % 3, ('"a"', '"b"', '"c"')))
    assert classes_of(learner) == ('"a"', '"b"', '"c"')
    assert [len(of_class) for of_class in curves_of(learner)] == [DIM] * 3
    for name in ("portfolio-eight", "boosted", "dual_ascent-logistic"):
        assert curves_of(make_learner(SPECS[name])) is None
    assert curves_of(make_learner({**SPECS["boosted"], "task": "multiclass"})) is None
