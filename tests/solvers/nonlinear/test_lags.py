"""Past targets as columns of boosted trees."""

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, NotExpressible, explain, resolve_spec
from dualstream.solvers.nonlinear.lags import follow_each_other
from dualstream.solvers.nonlinear.spec import lag_name
from dualstream.solvers.protocols.served_form import served_form
from tests.solvers.nonlinear.streams import learner_of

DIM, N = 3, 1200
FULL = {"task": "regression", "algorithm": "portfolio"}
TREES = {"task": "regression", "algorithm": "boosted", "window": 256, "renewal": 16}


def oscillation(rng, n=N):
    """Targets that follow from the last two, and columns that say nothing."""
    y = np.zeros(n)
    for i in range(2, n):
        y[i] = 1.8 * y[i - 1] - 0.95 * y[i - 2] + rng.normal()
    return y


def rows_of(y, seed=0, weights=None):
    x = np.random.default_rng(seed).normal(size=(len(y), DIM))
    return Batch.from_dense(x, y, weights)


def follow(targets, at=0):
    at, rows = at or len(targets), np.column_stack([np.zeros(len(targets)), targets])
    return follow_each_other(rows, 1, len(targets), at)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def test_a_row_has_the_targets_before_it(rng):
    y = rng.normal(size=40)
    y[7] = 0.0
    weights = np.where(rng.random(40) < 0.2, 0.0, 1.0)
    batch = rows_of(y, weights=weights)
    late = np.where(rng.random(40) < 0.2, 0.5, np.nan)
    batch = Batch(batch.indptr, batch.indices, batch.values, y, weights, DIM, served=late)
    learner = learner_of(DIM, **TREES, lags=3)
    learner.learn(batch)
    before: list[float] = []
    expected = []
    for i in np.flatnonzero(weights):
        steps = -np.diff(before[::-1][:3])
        lags = [*before[-1:], *steps] if np.isnan(late[i]) else []
        expected.append([*lags, 0.0, 0.0, 0.0][:3])
        if np.isnan(late[i]):
            before.append(y[i])
    state = learner.state()
    np.testing.assert_array_equal(sampled(state)[:, DIM:], np.float32(expected))
    assert state["targets"] == len(before)


def sampled(state):
    """The rows of a ring of up to 2,048 rows, a column for each feature."""
    values = state["sample"].view(np.float32)
    matrix = np.zeros((len(values), 1 + state["features"].max()), np.float32)
    matrix[:, state["features"]] = values[:, state["columns"]]
    return matrix


def test_targets_in_random_order_do_not_follow_each_other(rng):
    assert not any(follow(rng.standard_cauchy(2048)) for _ in range(100))
    assert follow(np.cumsum(rng.normal(size=200)))
    assert not follow(np.ones(500))
    assert not follow(np.empty(0))
    # A ring whose oldest row is in the middle.
    assert follow(np.roll(np.cumsum(rng.normal(size=200)), 70), 70)


@pytest.mark.parametrize("spec", [TREES, FULL, {**FULL, "members": "fast"}])
def test_targets_that_follow_each_other_are_predicted_better(spec, rng):
    batch = rows_of(oscillation(rng))
    errors = []
    for lags in (0, 3):
        scores = learner_of(DIM, **spec, lags=lags).learn(batch).scores
        errors.append(np.abs(scores - batch.labels)[300:].mean())
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("spec", [{**TREES, "lags": 3}, {**FULL, "lags": 3}])
def test_a_batch_equals_its_rows_after_a_restore(spec, rng):
    batch = rows_of(oscillation(rng), weights=np.where(rng.random(N) < 0.1, 0.0, 1.0))
    whole, apart = learner_of(DIM, **spec), learner_of(DIM, **spec)
    scores = whole.learn(batch).scores
    first = [apart.learn(batch[i : i + 1]).scores for i in range(600)]
    resumed = learner_of(DIM, **spec)
    resumed.restore(apart.state())
    rest = []
    for i in range(600, N):
        predicted = resumed.predict(batch[i : i + 1])
        rest.append(resumed.learn(batch[i : i + 1]).scores)
        np.testing.assert_array_equal(predicted, rest[-1])
    np.testing.assert_array_equal(np.concatenate([*first, *rest]), scores)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, resumed.state()[name], err_msg=name)


def test_a_random_order_has_the_scores_of_no_lags(rng):
    x = rng.normal(size=(N, 50)) * (rng.random((N, 50)) < 0.3)
    batch = Batch.from_dense(x, x[:, 0] * x[:, 1] + x[:, 7])
    scores = [learner_of(50, **TREES, lags=lags).learn(batch).scores for lags in (0, 3)]
    np.testing.assert_array_equal(*scores)


def test_trees_of_a_random_order_split_no_past_target(rng):
    batch = rows_of(rng.normal(size=N))
    learner = learner_of(DIM, **TREES, lags=3)
    learner.learn(batch)
    (trees,) = served_form(learner).scores
    assert set(trees.columns) == set(range(DIM))


def test_rows_with_late_labels_have_no_past_targets(rng):
    batch = rows_of(oscillation(rng))
    late = Batch(
        batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, DIM,
        served=np.zeros(N),
    )  # fmt: skip
    scores = []
    for lags in (0, 3):
        learner = learner_of(DIM, **TREES, lags=lags)
        learner.learn(late)
        scores.append(learner.predict(batch[:50]))
    np.testing.assert_array_equal(*scores)


def test_an_explanation_has_past_targets_and_a_file_has_not(rng):
    batch = rows_of(oscillation(rng))
    learner = learner_of(DIM, **FULL)
    learner.learn(batch)
    explained = explain(learner, batch[:1])
    assert explained.features.max() >= DIM
    y = batch.labels
    assert explained.values == {DIM: y[-1], DIM + 1: y[-1] - y[-2], DIM + 2: y[-2] - y[-3]}
    assert explained.score == pytest.approx(explained.base + explained.contributions.sum())
    names = [lag_name(learner.spec, DIM + at) for at in (-1, 0, 1, 15, 16)]
    assert names == [None, "label.1", "label.1-label.2", "label.15-label.16", None]
    with pytest.raises(NotExpressible, match="lags"):
        learner.form()
    assert learner.member_form("newton").dim == DIM
    # Members that are not active are not in the file.
    learner.promote("newton")
    (mixture,) = learner.form().scores
    assert [part.name for part in mixture.parts] == ["newton"]
    learner.demote()
    learner.promote("boosted-16384")
    with pytest.raises(NotExpressible, match="lags"):
        learner.form()


def test_an_explanation_has_the_past_targets_of_active_members(rng):
    y = oscillation(rng)
    members = [
        {"name": name, "algorithm": "boosted", "window": 256, "lags": lags}
        for name, lags in (("one", 1), ("two", 2))
    ]
    learner = learner_of(DIM, **FULL, members=members)
    learner.learn(rows_of(y))
    learner.promote("one")
    learner.learn(rows_of(np.array([5.0])))
    assert explain(learner, rows_of(y)[:1]).values == {DIM: 5.0}
    learner.demote()
    learner.promote("two")
    assert explain(learner, rows_of(y)[:1]).values == {DIM: y[-1], DIM + 1: y[-1] - y[-2]}


def test_a_member_that_is_added_sees_past_targets(rng):
    batch = rows_of(oscillation(rng))
    learner = learner_of(DIM, **FULL, members="ten", lags=2)
    learner.learn(batch)
    name = learner.add_member({"algorithm": "boosted", "window": 256})
    assert explain_features(learner, name, batch) - {0, 1, 2} <= {3, 4}


def test_members_can_differ_in_past_targets(rng):
    batch = rows_of(oscillation(rng))
    tree = {"algorithm": "boosted", "window": 256}
    members = [{"name": f"trees-{lags}", **tree, "lags": lags} for lags in (0, 5)]
    learner = learner_of(DIM, **FULL, members=[*members, {"name": "trees", **tree}])
    assert resolve_spec(learner.spec) == learner.spec
    learner.learn(batch)
    other = learner_of(DIM, **FULL, lags=3, members="ten")
    other.restore(learner.state())
    for name, lags in (("trees-0", 0), ("trees-5", 5), ("trees", 3)):
        features = explain_features(other, name, batch)
        assert features <= set(range(DIM + lags)) and len(features & {3, 4, 5}) == min(lags, 3)


def test_the_window_of_a_member_fits_with_past_targets_of_the_portfolio():
    features = {"kind": "indexed", "dim": 8}
    spec = {**FULL, "features": features, "members": [{"algorithm": "boosted", "window": 2**18}]}
    assert resolve_spec(spec | {"lags": 0})["members"][0]["window"] == 2**18
    with pytest.raises(InvalidSpec, match="131072") as error:
        resolve_spec(spec)
    assert error.value.field == "/members/0/window"
    with pytest.raises(InvalidSpec) as error:
        resolve_spec(spec | {"lags": 99})
    assert error.value.field == "/lags"


def explain_features(learner, name, batch):
    learner.promote(name)
    return set(explain(learner, batch[-1:]).features.tolist())


def test_the_field_is_of_regression():
    assert resolve_spec({"task": "regression"})["lags"] == 3
    assert resolve_spec({"task": "regression", "members": "ten"})["lags"] == 0
    assert resolve_spec({"task": "regression", "lags": 0})["lags"] == 0
    assert "lags" not in resolve_spec({})
    wide = {"kind": "indexed", "dim": 2**31 - 3}
    assert resolve_spec({"task": "regression", "features": wide})["lags"] == 1
    for spec in (
        {"lags": 2},
        {"task": "regression", "lags": 17},
        {"lags": 1, **TREES, "task": "binary"},
    ):
        with pytest.raises(InvalidSpec) as error:
            resolve_spec(spec)
        assert error.value.field == "/lags"
