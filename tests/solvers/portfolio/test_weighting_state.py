"""The weighting rule, on the compiled learner: its regret, its weights, equal members.

`rule.recent` of the state has the losses charged to members, `weight` their shares.
"""

import math
import tracemalloc

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio import PRESETS
from tests.solvers.portfolio.support import (
    N,
    assert_bounded,
    portfolio,
    probabilities,
    regression_portfolio as number_portfolio,
    regression_stream as number_stream,
    regret_terms,
    stream,
)
from tests.solvers.portfolio_reference import LINEAR

MANY = 200 if DISABLED else 1500
FEW = 300 if DISABLED else 10_000


def light(batch):
    """The rows with weights for which the loss is exact: eta c is at most 1."""
    weights = np.minimum(batch.weights, 2.0)
    return Batch(batch.indptr, batch.indices, batch.values, batch.labels, weights, batch.dim)


@pytest.mark.parametrize("name", LINEAR)
def test_regret_bound_of_the_learner(name):
    learner = portfolio(members=name)
    assert_bounded(learner, *regret_terms(learner, light(stream(N))))


@pytest.mark.parametrize("fields", [{}, {"eta": 1.0, "share": 0.02}, {"eta": 0.05, "share": 1e-6}])
def test_regret_bound_where_labels_are_chosen_against_the_prediction(fields):
    batch, learner = stream(MANY, seed=2), portfolio(**fields)
    even = Batch(batch.indptr, batch.indices, batch.values, batch.labels, np.ones(MANY), batch.dim)
    mixture, members = regret_terms(learner, even, lambda score: -1.0 if score >= 0.0 else 1.0)
    # Each row is a mistake, and costs at least ln 2.
    assert mixture.min() > math.log(2.0) - 1e-3
    assert_bounded(learner, mixture, members)


def test_regret_bound_where_labels_turn():
    batch, learner = light(stream(MANY, seed=3)), portfolio(members="twelve")
    labels = batch.labels.copy()
    labels[MANY // 2 :] *= -1.0
    assert_bounded(learner, *regret_terms(learner, batch.with_labels(labels)))


def test_regret_bound_for_numbers():
    learner = number_portfolio(8)
    batch = number_stream(N)
    mixture, members = regret_terms(learner, batch)
    assert len(mixture) > 0.7 * N and members.shape[1] == 10
    assert_bounded(learner, mixture, members)


def test_regret_bound_for_numbers_chosen_against_the_prediction():
    learner, batch = number_portfolio(8, share=0.01), number_stream(MANY, seed=2)
    mixture, members = regret_terms(learner, batch, lambda p: 1.0 if p < 0.0 else -1.0)
    assert mixture.mean() > 0.5
    assert_bounded(learner, mixture, members)


EQUAL = [
    {"kind": "dual_ascent", "strength": 3, "norm": "running"},
    {"kind": "dual_ascent", "schedule": "inverse_sqrt", "strength": 0.3},
    {"kind": "spg_fixed_total", "loss": "hinge", "strength": 1},
    {"kind": "adagrad", "norm": "row"},
    {"kind": "diagonal_newton", "gamma": 0.99},
    {"algorithm": "rda"},
    {"kind": "prior"},
]


@pytest.mark.parametrize("spec", EQUAL, ids=lambda spec: "-".join(map(str, spec.values())))
def test_equal_members_keep_equal_shares_and_say_what_one_of_them_says(spec):
    batch = stream(N)
    one = portfolio(members=[spec])
    many = portfolio(members=[spec | {"name": f"m{index}"} for index in range(8)])
    scores = one.learn(batch).scores
    np.testing.assert_allclose(many.learn(batch).scores, scores, rtol=1e-9, atol=1e-12)
    views, weights = many.members(), one.member_weights(one.members()[0].name)
    assert len({view.weight for view in views}) == 1
    assert views[0].weight == pytest.approx(0.125, rel=1e-12)
    assert {view.calibration for view in views} == {one.members()[0].calibration}
    for view in views:
        mine = many.member_weights(view.name)
        assert (mine[0].tobytes(), mine[1]) == (weights[0].tobytes(), weights[1])


@pytest.mark.parametrize("name", LINEAR)
def test_what_a_member_learns_does_not_depend_on_the_others(name):
    batch, learner = stream(N), portfolio(members=name)
    learner.learn(batch)
    for view, member in zip(learner.members(), PRESETS[name], strict=True):
        alone = portfolio(members=[member])
        alone.learn(batch)
        weights, intercept = alone.member_weights(member["name"])
        mine = learner.member_weights(member["name"])
        assert (mine[0].tobytes(), mine[1]) == (weights.tobytes(), intercept)
        assert alone.members()[0].calibration == view.calibration


@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_one_class_only_and_then_the_other(label):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(FEW + 600, 5))
    labels = np.where(x[:, 0] > 0.0, 1.0, -1.0)
    labels[:FEW] = label
    learner, batch = portfolio(5), Batch.from_dense(x, labels)
    first = learner.learn(batch[:FEW]).scores
    assert np.isfinite(first).all() and np.abs(first).max() <= 12.0 + 1e-9
    assert np.all((first[1:] >= 0.0) == (label > 0.0))
    assert all(np.isfinite(array).all() for array in learner.state().values())
    later = learner.learn(batch[FEW:]).scores[300:]
    assert np.mean((later >= 0.0) != (labels[FEW + 300 :] > 0.0)) < 0.1


def test_a_feature_that_appears_once_is_remembered():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    x[:, 3] = 0.0
    x[20, 3] = 5.0
    labels = np.where(x[:, 0] > 0.0, 1.0, -1.0)
    learner = portfolio(4)
    learner.learn(Batch.from_dense(x, labels))
    state = learner.state()
    slot = state["crew.fused.touched"].tolist().index(3)
    assert state["crew.fused.statistics"][slot, :3].tolist() == [1.0, 5.0, 0.0]
    for view in learner.members()[1:]:
        assert learner.member_weights(view.name)[0][3] * labels[20] > 0.0
    assert 4 not in state["crew.fused.touched"][1:]


def test_weight_2_is_one_row_of_twice_the_loss():
    h, y = np.array([0.5, -2.0, 1.0]), 1.0
    member = {"name": "dual", "kind": "dual_ascent", "strength": 3, "scaling": "none"}
    heavy, twice = portfolio(2, members=[member]), portfolio(2, members=[member])
    heavy.learn(Batch.from_dense([h[:2]], [y], [2.0]))
    twice.learn(Batch.from_dense([h[:2], h[:2]], [y, y]))
    w = np.append(*heavy.member_weights("dual"))
    # The minimum of 2 Q(h'w) + 3 |w|^2 / 2, which two steps need not reach.
    np.testing.assert_allclose(3.0 * w, 2.0 * y / (1.0 + math.exp(y * (h @ w))) * h, rtol=1e-12)
    assert abs(np.append(*twice.member_weights("dual")) - w).max() > 1e-3
    one, two = heavy.state(), twice.state()
    # ROWS and DELTA; then the rows of the member, and the weight of the positive rows.
    assert one["crew.fused.numbers"][:2].tolist() == [1.0, 2.0]
    assert two["crew.fused.numbers"][:2].tolist() == [2.0, 2.0]
    assert (heavy.members()[0].rows, twice.members()[0].rows) == (1, 2)
    assert (heavy.samples, twice.samples) == (1, 2)
    assert one["rule.shared"][3:5].tolist() == two["rule.shared"][3:5].tolist() == [2.0, 0.0]
    assert one["crew.fused.statistics"][1, 0] == 1.0 and two["crew.fused.statistics"][1, 0] == 2.0


@pytest.mark.parametrize("weight", [0.25, 1.0, 2.0, 7.0])
def test_a_weight_is_the_exponent_of_the_shares_up_to_that_of_1_over_eta(weight):
    learner, batch = portfolio(), stream(N)
    learner.learn(batch)
    shares = learner._rule.shares
    learner.learn(Batch.from_dense(np.ones((1, 12)), [1.0], [weight]))
    recent = learner.state()["rule.recent"][int(learner._rule.g[2]) - 1]
    q = np.exp(-recent[: len(recent) // 2])
    v = shares * q ** min(0.5 * weight, 1.0)
    expected = 0.999 * v / v.sum() + 0.001 / len(v)
    np.testing.assert_allclose(learner._rule.shares, expected, rtol=1e-12)


def test_shares_that_all_vanished_are_reset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 2))
    good = {"name": "good", "kind": "dual_ascent", "strength": 0.01}
    learner = portfolio(2, members=[good, {"kind": "prior"}], share=0.0, eta=1.0)
    learner.learn(Batch.from_dense(x, np.where(x[:, 0] > 0.0, 1.0, -1.0)))
    if learner.members()[1].weight > 0.0:
        learner._rule.r[0] = 1.0, 0.0
    learner.remove_member("good")
    assert learner.members()[0].weight == 1.0
    assert np.isfinite(learner.learn(Batch.from_dense(x, np.ones(1200))).scores).all()


def test_served_weights_are_no_priors():
    members = [{"kind": "prior"}, {"name": "prior", "kind": "adagrad"}]
    learner = portfolio(members=members)
    assert learner.heaviest == "prior"
    learner.learn(stream(30))
    assert learner.nonzeros > 0
    numbers = number_portfolio(8)
    rows = number_stream(60)
    numbers.learn(rows.with_labels(np.random.default_rng(0).normal(size=60)))
    assert numbers.members()[0].weight == max(one.weight for one in numbers.members())
    assert numbers.heaviest not in ("mean", "last") and numbers.nonzeros > 0


def test_empty_rows_and_batches():
    learner = portfolio()
    nothing = Batch.from_csr([0], [], [], [], dim=12)
    before = learner.state()
    assert len(learner.learn(nothing)) == 0 and len(learner.predict(nothing)) == 0
    assert all(array.tobytes() == before[name].tobytes() for name, array in learner.state().items())
    rows = Batch.from_dense(np.zeros((40, 12)), np.tile([1.0, 1.0, 1.0, -1.0], 10))
    scores = learner.learn(rows).scores
    assert scores[0] == 0.0
    # Nothing but the intercepts and the prior can learn.
    assert learner.state()["crew.fused.touched"].tolist() == [12]
    np.testing.assert_allclose(probabilities(scores[30:]), 0.75, atol=0.1)


@pytest.mark.skipif(DISABLED, reason="memory is that of the compiled learner")
@pytest.mark.parametrize("name", ["eight", "twelve"])
def test_memory_is_that_of_the_features_seen(name):
    spec = {"algorithm": "portfolio", "members": name, "features": {"kind": "hashed", "bits": 22}}
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, 2**22, (3000, 20)), axis=1)
    rows = [np.unique(row) for row in indices]
    indptr = np.cumsum([0] + [len(row) for row in rows])
    batch = Batch.from_csr(
        indptr, np.concatenate(rows), np.ones(indptr[-1]), rng.choice([-1.0, 1.0], 3000), dim=2**22
    )
    seen = len(np.unique(np.concatenate(rows)))
    got = {"eight": 148, "twelve": 212}[name]
    make_learner(spec).learn(batch[:10])
    tracemalloc.start()
    try:
        learner = make_learner(spec)
        empty = tracemalloc.get_traced_memory()[0]
        assert empty < 1_000_000
        learner.learn(batch)
        grown = tracemalloc.get_traced_memory()[0] - empty
        # Scoring leaves nothing in memory except room for a row as long as the longest.
        for first in range(3):
            wide = Batch.from_csr([0, 900], first + np.arange(900) * 4000, np.ones(900), dim=2**22)
            before = tracemalloc.get_traced_memory()[0]
            learner.predict(wide)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    # Room doubles, and 2,000 rows are retained, twice, of 20 entries each.
    assert grown < 2 * got * seen + 4_000_000, grown / seen
    state = sum(array.nbytes for array in learner.state().values())
    assert state < got * seen + 2_000_000
