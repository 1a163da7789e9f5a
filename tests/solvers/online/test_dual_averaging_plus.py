"""RDA+: when its local phase runs, its result, and its exact history."""

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidSpec,
    dump,
    load,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.offline.proximal_newton import Objective, minimise
from tests.solvers.first_order_reference import dense
from tests.solvers.offline.support import everything, rows_of
from tests.solvers.online.first_order_support import INDEXED, L1, all_weights, weighted

LOGISTIC = make_loss("logistic").numbers
# The first attempt is at row 300.
PLUS = {
    "algorithm": "rda_plus",
    "regularizer": {"kind": "l1", "lambda": 0.05},
    "stable": 3,
    "retain": 300,
    "tol": 1e-11,
    "features": INDEXED,
}


def first_try(learner, batch):
    """Learn row by row until the local phase has run; the number of rows."""
    start = learner.state()["next_try"]
    for n in range(len(batch)):
        learner.learn(batch[n : n + 1])
        steps = learner.state()["steps"]
        if steps >= start and learner.state()["next_try"] == 2 * steps:
            phases = learner.local_phases()
            if phases.accepted or phases.refused or phases.unsolved:  # else a check alone
                return n + 1
    raise AssertionError("no local phase")


@pytest.mark.parametrize(
    "regularizer",
    [PLUS["regularizer"], {"kind": "elastic_net", "lambda": 0.05, "sigma": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "huber"])
def test_local_phase_leaves_the_minimum_over_the_retained_rows(regularizer, loss, adult):
    learner = make_learner(PLUS | {"regularizer": regularizer, "loss": loss})
    batch = weighted(adult)
    n = first_try(learner, batch)
    assert learner.samples == n
    seen = batch[:n]
    seen = seen.take(seen.weights > 0)
    rows = rows_of(seen[len(seen) - 300 :])
    objective = Objective(
        make_loss(loss).numbers, regularizer["lambda"], regularizer.get("sigma", 0.0)
    )
    expected = minimise(rows, objective, *everything(rows), 1e-11)
    # Some columns of these rows are equal: then only their sum is known.
    x, result = dense(batch[:n], 1.0), all_weights(learner)
    assert x @ result == pytest.approx(x @ expected.weights, abs=1e-7)
    assert np.sum(np.abs(result[:-1])) == pytest.approx(np.sum(np.abs(expected.weights[:-1])))
    assert learner.predict(batch[:n]) == pytest.approx(x @ result, abs=1e-12)


@pytest.mark.parametrize("stable", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("lam", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("is_dense", [True, False])
def test_local_phase_begins_when_the_last_iterates_share_their_signs(lam, stable, is_dense, adult):
    """Line 9 of Algorithm 2: after row j, of w_(j+1) and `stable` - 1 iterates before it."""
    batch = drifting(500, 123, 0, seed=1) if is_dense else adult
    fields, retain = {"regularizer": {"kind": "l1", "lambda": lam}}, 15
    begins = first_try(make_learner(PLUS | fields | {"stable": stable, "retain": retain}), batch)
    plain = make_learner(PLUS_AS_RDA | fields)
    patterns, due = [np.zeros(123)], []  # of w_1; rows after which line 9 holds
    for row in range(1, begins + 1):
        plain.learn(batch[row - 1 : row])
        patterns.append(np.sign(plain.weights))
        last = np.array(patterns[-stable:])
        if row >= retain and len(last) == stable and np.all(last == last[-1]):
            due.append(row)
    # A weight that no row touches and that becomes 0 is seen late, see dual_averaging.py.
    assert due[0] == begins if is_dense else begins in due


def test_before_its_first_local_phase_it_is_rda(adult):
    plus, plain = make_learner(PLUS), make_learner(PLUS_AS_RDA)
    a, b = plus.learn(adult[:299]), plain.learn(adult[:299])
    assert a.scores.tobytes() == b.scores.tobytes()
    assert plus.weights.tobytes() == plain.weights.tobytes()
    mine, theirs = plus.support(), plain.support()
    assert mine.features.tolist() == theirs.features.tolist()
    assert mine.unchanged_since == theirs.unchanged_since
    assert mine.changes_per_1000 == pytest.approx(theirs.changes_per_1000, rel=1e-12)


PLUS_AS_RDA = {"algorithm": "rda", "regularizer": PLUS["regularizer"], "features": INDEXED}


def test_features_outside_the_retained_rows_keep_their_weights():
    learner = make_learner(
        {
            "algorithm": "rda_plus",
            "regularizer": {"kind": "l1", "lambda": 1e-6},
            "retain": 20,
            "stable": 40,
            "features": {"kind": "indexed", "dim": 3},
        }
    )
    learner.learn(Batch.from_dense(np.tile([0.0, 0.0, 1.0], (5, 1)), np.ones(5)))
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal((300, 2)), np.zeros(300)])
    y = np.where(x[:, 0] - x[:, 1] > 0, 1.0, -1.0)
    before = learner.state()["gradient_sum"][2]
    first_try(learner, Batch.from_dense(x, y))
    assert learner.state()["gradient_sum"][2] == before != 0.0
    assert learner.weights[2] != 0.0


def test_tries_are_at_twice_as_many_steps(adult):
    learner, tries = make_learner(PLUS | {"retain": 100, "stable": 1}), []
    for i in range(3 * len(adult)):
        before = int(learner.state()["next_try"])
        learner.learn(adult[i % 500 : i % 500 + 1])
        if learner.state()["next_try"] >= 2 * (i + 1) > 2 * before - 1:
            tries.append(i + 1)
    assert len(tries) >= 3
    assert all(later >= 2 * earlier for earlier, later in zip(tries, tries[1:], strict=False))


def drifting(n, dim, column, seed):
    """Rows whose label depends on one column alone."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim))
    noisy = 2.0 * x[:, column] + rng.logistic(size=n)
    return Batch.from_dense(x, np.where(noisy > 0, 1.0, -1.0))


def beside_plain(lam, dim, stable, retain, batches):
    """The last 1,000 losses of each batch by RDA+ and by RDA, and the state of RDA+."""
    shared = {
        "regularizer": {"kind": "l1", "lambda": lam},
        "features": {"kind": "indexed", "dim": dim},
    }
    plus = make_learner(shared | {"algorithm": "rda_plus", "stable": stable, "retain": retain})
    plain = make_learner(shared | {"algorithm": "rda"})
    pairs = [(plus.learn(batch).losses, plain.learn(batch).losses) for batch in batches]
    return [(a[-1000:], b[-1000:]) for a, b in pairs], plus.state()


def test_changed_world_is_taken_over():
    batches = [drifting(2000, 10, 0, seed=1), drifting(6000, 10, 1, seed=2)]
    (_, (followed, lagged)), _ = beside_plain(0.1, 10, 100, 400, batches)
    assert np.mean(followed) < np.mean(lagged) - 0.005


def test_few_rows_do_not_replace_what_many_have_said():
    # The pattern is stable late, when 100 rows are far fewer than those learned.
    batches = [drifting(5000, 30, 0, seed=5)]
    ((plus, plain),), state = beside_plain(0.01, 30, 20, 100, batches)
    assert state["next_try"] > 2 * 400
    assert plus.tobytes() == plain.tobytes()


SPECS = [
    PLUS | {"retain": 100},
    PLUS | {"retain": 60, "stable": 1, "regularizer": {"kind": "l2", "sigma": 0.05}},
    PLUS | {"retain": 150, "regularizer": L1, "loss": "squared_hinge", "prox": "xiao"},
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_rows_one_by_one_and_restarts_give_the_same_bits(spec, adult):
    batch = weighted(Batch.concat([adult, adult]))
    whole, single, resumed = (make_learner(spec) for _ in range(3))
    outcome = whole.learn(batch)
    assert whole.state()["next_try"] > 2 * spec["retain"]
    scores = np.concatenate([single.learn(batch[i : i + 1]).scores for i in range(len(batch))])
    for start in range(0, len(batch), 37):
        resumed.learn(batch[start : start + 37])
        arrays, _ = load(dump(resumed.state(), {}))
        resumed = make_learner(spec)
        resumed.restore(arrays)
        resumed.predict(batch[:3])
        resumed.support()
    assert outcome.scores.tobytes() == scores.tobytes()
    for learner in (single, resumed):
        for name, array in whole.state().items():
            assert array.tobytes() == learner.state()[name].tobytes(), name


def test_support_history_is_that_of_the_served_weights(adult):
    batch = Batch.concat([adult, adult])
    learner, before, since, faded = make_learner(SPECS[0]), np.zeros(123), 0, 0.0
    for n in range(1, len(batch) + 1):
        learner.learn(batch[n - 1 : n])
        signs = np.sign(learner.weights)
        faded = 0.999 * faded + np.sum(signs != before)
        if not np.array_equal(signs, before):
            before, since = signs, n
        support = learner.support()
        assert support.unchanged_since == since, n
        assert support.features.tolist() == (np.flatnonzero(signs) + 1).tolist()
    # At a local phase a row can change a sign and the phase change it again.
    assert support.changes_per_1000 == pytest.approx(faded, rel=0.05)


def test_memory_is_bounded_by_what_is_retained(adult):
    learner = make_learner(PLUS | {"retain": 50})
    for _ in range(5):
        learner.learn(adult)
    state = learner.state()
    assert len(state["ring_labels"]) == 50
    assert len(state["ring_values"]) <= 50 * 15


@pytest.mark.parametrize(
    "damage",
    [
        {"listed": np.array([], np.int64)},
        {"listed": np.array([5, 5], np.int64)},
        {"next_try": np.array(-1)},
        {"ring_losses": np.full(300, np.nan)},
        {"gradient_sum": np.full(124, np.inf)},
        {"signs": np.zeros(123, np.uint8)},
        {"signs": np.zeros(123)},
        {"signs": np.full(123, 9, np.uint8)},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_damaged_state_is_refused_and_nothing_changes(damage, adult):
    learner = make_learner(PLUS)
    learner.learn(adult[:310])
    state = learner.state()
    with pytest.raises(CorruptState):
        learner.restore(state | damage)
    missing = dict(state)
    del missing[next(iter(damage))]
    with pytest.raises(CorruptState):
        learner.restore(missing)
    for name, array in learner.state().items():
        assert array.tobytes() == state[name].tobytes(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": "hinge"},
        {"task": "regression", "loss": "absolute"},
        {"stable": 0},
        {"safeguard": 1.5},
        {"tol": 0.0},
        {"retain": 1},
    ],
    ids=str,
)
def test_wrong_field_is_refused(fields):
    with pytest.raises(InvalidSpec):
        resolve_spec(PLUS | fields)


def delta_of(learner, batch, lam, sigma):
    """(2.45) over rows of weight above 0, written out for the logistic loss."""
    x, w = dense(batch, 1.0), all_weights(learner)
    slopes = -batch.labels / (1 + np.exp(batch.labels * (x @ w)))
    gradient = x.T @ (batch.weights * slopes) / len(x) + sigma * np.append(w[:-1], 0.0)
    inner, free = gradient[:-1], gradient[-1]
    at_zero = np.maximum(np.abs(inner) - lam, 0.0)
    rest = np.where(w[:-1] != 0.0, inner + lam * np.sign(w[:-1]), at_zero)
    return np.sqrt(np.mean(np.append(rest, free) ** 2))


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_report_of_local_phases_has_delta_of_the_retained_rows(sigma, adult):
    kind = {"kind": "elastic_net", "lambda": 0.05, "sigma": sigma}
    learner = make_learner(PLUS | {"regularizer": kind})
    assert learner.local_phases().delta is None
    batch = weighted(adult)
    for n in (1, 40, 250):
        learner.learn(batch[learner.samples : n])
        seen = batch[:n].take(batch.weights[:n] > 0)
        if len(seen):
            result = learner.local_phases().delta
            assert result == pytest.approx(delta_of(learner, seen, 0.05, sigma), rel=1e-9)
    assert learner.local_phases().accepted == 0
    first_try(learner, batch[250:])
    report = learner.local_phases()
    assert report.delta < 1e-8
    assert (report.accepted, report.refused, report.unsolved, report.max_features) == (1, 0, 0, 500)


def test_report_counts_refused_local_phases():
    learner = make_learner(
        {
            "algorithm": "rda_plus",
            "regularizer": {"kind": "l1", "lambda": 0.01},
            "features": {"kind": "indexed", "dim": 30},
            "stable": 20,
            "retain": 100,
        }
    )
    learner.learn(drifting(5000, 30, 0, seed=5))
    report = learner.local_phases()
    assert report.refused >= 1 and report.unsolved == 0
    other = make_learner(learner.spec)
    other.restore(learner.state())
    fresh = other.local_phases()
    assert (fresh.accepted, fresh.refused) == (0, 0) and fresh.delta == report.delta


def test_report_counts_local_phases_with_too_many_features():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 600))
    learner = make_learner(
        {
            "algorithm": "rda_plus",
            "regularizer": {"kind": "l1", "lambda": 0.0},
            "features": {"kind": "indexed", "dim": 600},
            "stable": 1,
            "retain": 10,
        }
    )
    for _ in range(8):
        learner.learn(Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0)))
    report = learner.local_phases()
    assert report.unsolved >= 1 and report.accepted == report.refused == 0
