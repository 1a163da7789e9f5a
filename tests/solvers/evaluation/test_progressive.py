"""Progressive metrics against plain Python sums."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import (
    Batch,
    CorruptState,
    Outcome,
    Progressive,
    dump,
    make_learner,
    make_progressive,
    resolve_spec,
)
from dualstream.solvers.evaluation.make_progressive import scores_are_log_odds
from dualstream.solvers.evaluation.progressive import MAX_PENDING_BATCHES
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.spec_cache import SharedDerived
from tests.fuzzing import examples

FEW = examples(25 if DISABLED else 100)
N = 300 if DISABLED else 2500


def stream(task, n=N, seed=0):
    random = np.random.default_rng(seed)
    scores = random.standard_normal(n)
    if task == "binary":
        labels = random.choice([-1.0, 0.0, 1.0], n, p=[0.3, 0.1, 0.6])
    else:
        labels = scores + random.standard_normal(n)
    return labels, scores, random.random(n), random.random(n) > 0.1


def view(rows, weights):
    return [float(np.average(column, weights=weights)) for column in zip(*rows, strict=True)]


def three_views(rows):
    """Means of the columns of rows: since start, last 1,000, fading."""
    n = len(rows)
    return {
        "since_start": view(rows, np.ones(n)),
        "rolling": view(rows[-1000:], np.ones(min(n, 1000))),
        "fading": view(rows, 0.999 ** np.arange(n - 1, -1, -1.0)),
    }


def test_binary_metrics_are_the_plain_ones():
    labels, scores, losses, learned = stream("binary")
    metrics = Progressive("binary", log_loss=True)
    metrics.update(labels, scores, losses, learned)
    rows, seen, first = [], [], None
    for y, z, loss in zip(labels[learned], scores[learned], losses[learned], strict=True):
        positive = bool(y > 0)
        ones = sum(seen)
        ahead = ones > len(seen) - ones or (2 * ones == len(seen) and first is True)
        last = seen[-1] if seen else False
        log_loss = math.log1p(math.exp(-z if positive else z))
        rows.append([loss, positive != (z >= 0), log_loss, positive != ahead, positive != last])
        seen.append(positive)
        first = seen[0]
    summary = metrics.summary()
    assert summary["rows"] == metrics.rows == learned.sum()
    for name, (loss, error, log_loss, most_frequent, last) in three_views(rows).items():
        result = summary[name]
        assert result["loss"] == pytest.approx(loss)
        assert result["error_rate"] == pytest.approx(error)
        assert result["log_loss"] == pytest.approx(log_loss)
        assert result["baselines"]["most_frequent"]["error_rate"] == pytest.approx(most_frequent)
        assert result["baselines"]["last_label"]["error_rate"] == pytest.approx(last)
    assert summary["rolling"]["rows"] == min(1000, learned.sum())


def test_regression_metrics_are_the_plain_ones():
    labels, scores, losses, learned = stream("regression")
    metrics = Progressive("regression")
    metrics.update(labels, scores, losses, learned)
    rows, seen = [], []
    for y, z, loss in zip(labels[learned], scores[learned], losses[learned], strict=True):
        mean, last = (float(np.mean(seen)), seen[-1]) if seen else (0.0, 0.0)
        errors = [abs(guess - y) for guess in (z, mean, last)]
        rows.append([loss, *(number for e in errors for number in (e, e * e))])
        seen.append(y)
    summary = metrics.summary()
    for name, (loss, mae, mse, mean_mae, mean_mse, last_mae, last_mse) in three_views(rows).items():
        result = summary[name]
        assert result["loss"] == pytest.approx(loss)
        assert (result["mae"], result["rmse"]) == pytest.approx((mae, math.sqrt(mse)))
        mean, last = result["baselines"]["running_mean"], result["baselines"]["last_label"]
        assert (mean["mae"], mean["rmse"]) == pytest.approx((mean_mae, math.sqrt(mean_mse)))
        assert (last["mae"], last["rmse"]) == pytest.approx((last_mae, math.sqrt(last_mse)))


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_without_rows_there_is_no_mean(task):
    summary = Progressive(task).summary()
    assert summary["rows"] == 0
    assert summary["since_start"]["loss"] is None
    assert all(
        number is None
        for baseline in summary["fading"]["baselines"].values()
        for number in baseline.values()
    )


def one(metrics, y, z=0.0):
    metrics.update(np.array([y]), np.array([z]), np.zeros(1), np.ones(1, bool))


def errors(metrics):
    result = metrics.summary()["since_start"]
    return [
        result["error_rate"],
        result["baselines"]["most_frequent"]["error_rate"],
        result["baselines"]["last_label"]["error_rate"],
    ]


def test_baselines_guess_negative_before_any_label():
    metrics = Progressive("binary")
    one(metrics, -1.0, -1.0)
    assert errors(metrics) == [0.0, 0.0, 0.0]
    metrics = Progressive("binary")
    one(metrics, 1.0, -1.0)
    assert errors(metrics) == [1.0, 1.0, 1.0]


def test_tie_of_labels_is_won_by_the_first_seen():
    metrics = Progressive("binary")
    for y in (1.0, 0.0, 1.0):  # wrong (none seen), wrong (1 leads), right (tie: 1 was first)
        one(metrics, y)
    assert errors(metrics)[1] == pytest.approx(2 / 3)


def test_a_score_of_zero_is_positive():
    metrics = Progressive("binary")
    one(metrics, 1.0, 0.0)
    one(metrics, 1.0, -0.0)
    assert errors(metrics)[0] == 0.0


def test_log_loss_is_left_out_where_scores_are_no_log_odds():
    metrics = Progressive("binary")
    one(metrics, 1.0)
    assert metrics.summary()["since_start"]["log_loss"] is None
    features = {"kind": "indexed", "dim": 2}
    assert make_progressive(resolve_spec({"features": features})).log_loss
    assert not make_progressive(resolve_spec({"loss": "hinge", "features": features})).log_loss


@pytest.mark.parametrize("algorithm", NONLINEAR)
@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_scores_are_log_odds_where_the_learner_gives_probabilities(algorithm, task):
    features = {"kind": "indexed", "dim": 2}
    learner = make_learner(
        resolve_spec({"algorithm": algorithm, "task": task, "features": features})
    )
    is_classes = task != "regression"
    assert scores_are_log_odds(learner.spec) is is_classes
    metrics = make_progressive(learner.spec)
    table = np.random.default_rng(0).standard_normal((20, 2))
    labels = (table[:, 0] > 0.0).astype(float)
    classes = ("a", "b") if task == "multiclass" else ()
    plain = Batch.from_dense(table, labels)
    columns = (plain.indptr, plain.indices, plain.values, plain.labels, plain.weights)
    batch = Batch(*columns, 2, classes)
    outcome = learner.learn(batch)
    metrics.count(batch, outcome)
    if task == "binary":
        inputs = learner.probabilities(outcome.scores)
        mine = np.where(labels > 0.0, inputs, 1.0 - inputs)
        expected = pytest.approx(-np.log(mine).mean())
    else:
        expected = pytest.approx(outcome.log_losses.mean()) if is_classes else None
    assert metrics.summary()["since_start"].get("log_loss") == expected


def test_one_absurd_row_does_not_make_a_mean_infinite():
    metrics = Progressive("regression")
    metrics.update(np.array([-1e100]), np.array([1e300]), np.array([1e307]), np.ones(1, bool))
    one(metrics, 1.0)
    result = metrics.summary()["since_start"]
    assert all(math.isfinite(result[name]) for name in ("loss", "mae", "rmse"))


@pytest.mark.parametrize("task", ["binary", "regression"])
@FEW
@given(cuts=st.lists(st.integers(0, 1500), max_size=6), stop=st.integers(0, 1500))
def test_batches_and_restarts_leave_the_same_bits(task, cuts, stop):
    labels, scores, losses, learned = stream(task, 1500)
    whole, parts, again = (Progressive(task, log_loss=task == "binary") for _ in range(3))
    whole.update(labels, scores, losses, learned)
    edges = [0, *sorted(cuts), 1500]
    for a, b in zip(edges, edges[1:], strict=False):
        parts.update(labels[a:b], scores[a:b], losses[a:b], learned[a:b])
    before = Progressive(task, log_loss=task == "binary")
    before.update(labels[:stop], scores[:stop], losses[:stop], learned[:stop])
    again.update(labels, scores, losses, learned)  # the previous content must not matter
    again.restore(before.state())
    again.update(labels[stop:], scores[stop:], losses[stop:], learned[stop:])
    assert dump(whole.state(), {}) == dump(parts.state(), {}) == dump(again.state(), {})
    assert whole.summary() == parts.summary() == again.summary()


def test_reading_the_summary_changes_nothing():
    metrics = Progressive("binary")
    metrics.update(*stream("binary", 1200))
    before = dump(metrics.state(), {})
    metrics.summary()
    for array in metrics.state().values():
        array[...] = 1
    assert dump(metrics.state(), {}) == before


def test_no_state_of_another_shape_is_restored():
    metrics = Progressive("binary")
    metrics.update(*stream("binary", 50))
    good, before = metrics.state(), dump(metrics.state(), {})
    wrong = [
        {name: array for name, array in good.items() if name != "metrics_sums"},
        good | {"metrics_recent": good["metrics_recent"][:-1]},
        good | {"metrics_rows": np.array([49])},
        good | {"metrics_sums": good["metrics_sums"] * np.nan},
        Progressive("regression").state(),
        Progressive("binary").state() | {"metrics_rows": np.array([-1])},
    ]
    for state in wrong:
        with pytest.raises(CorruptState):
            metrics.restore(state)
        assert dump(metrics.state(), {}) == before


def counted(cuts, request, task="binary"):
    """The bytes of the metrics of a stream, split into batches, and read after some of them."""
    labels, scores, losses, learned = stream(task, 600)
    metrics = Progressive(task)
    for first, last in zip([0, *cuts], [*cuts, len(labels)], strict=True):
        rows = slice(first, last)
        n = last - first
        batch = Batch.from_dense(np.zeros((n, 1)), labels[rows])
        outcome = Outcome(scores[rows], losses[rows], np.ones(n, bool), ~learned[rows])
        metrics.count(batch, outcome, first + 1)
        if first in request:
            metrics.summary()
    return dump(metrics.state(), {})


@FEW
@given(st.sets(st.integers(1, 599), max_size=60), st.data())
def test_rows_that_wait_until_somebody_asks_are_counted_as_if_he_always_did(cuts, data):
    cuts = sorted(cuts)
    request = data.draw(st.sets(st.sampled_from([0, *cuts]))) if cuts else set()
    assert counted(cuts, request) == counted(cuts, set()) == counted([], set())


def test_few_rows_wait_and_they_hold_nothing_else():
    """Reading the metrics counts pending rows first."""
    labels, scores, losses, _ = stream("binary", 64)
    metrics = Progressive("binary")
    table = np.zeros((64, 100))
    table[:, 0] = labels
    for n in range(MAX_PENDING_BATCHES + 1):
        column = table[:, 0]
        batch = SimpleNamespace(labels=column)
        outcome = Outcome(scores, losses, np.ones(64, bool), np.zeros(64, bool))
        assert len(metrics._pending) == n
        metrics.count(batch, outcome, 1 + 64 * n)
        assert all(part[0].base is None for part in metrics._pending)
    assert not metrics._pending
    metrics.count(batch, outcome, 1)
    assert metrics._pending and metrics.drift.counts() and not metrics._pending
    metrics.count(batch, outcome, 1)
    state = metrics.state()
    metrics.count(batch, outcome, 1)
    metrics.restore(state)
    assert metrics.rows == 64 * (MAX_PENDING_BATCHES + 3)


def test_rows_that_wait_are_counted_in_one_pass_as_far_as_they_follow_each_other(monkeypatch):
    labels, scores, losses, _ = stream("binary", 6)
    metrics, passes, update = Progressive("binary"), [], Progressive.update

    def watched(self: Progressive, *columns: Any) -> None:
        passes.append((len(columns[0]), columns[-1]))
        update(self, *columns)

    monkeypatch.setattr(Progressive, "update", watched)
    for n, seq in enumerate((1, 2, 3, 7, 8, 8)):
        row = slice(n, n + 1)
        outcome = Outcome(scores[row], losses[row], np.ones(1, bool), np.zeros(1, bool))
        metrics.count(SimpleNamespace(labels=labels[row]), outcome, seq)
    assert metrics.rows == 6
    assert passes == [(3, 1), (2, 7), (1, 8)]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_models_that_have_counted_nothing_share_that_and_change_nothing_of_it(task):
    untouched = Progressive(task)
    before = dump(untouched.state(), {})
    columns = stream(task, 40)
    got, restored, beside = Progressive(task), Progressive(task), Progressive(task)
    assert got._counted is restored._counted is untouched._counted
    got.update(*columns)
    restored.restore(got.state())
    with pytest.raises(CorruptState):
        beside.restore(got.state() | {"metrics_sums": np.zeros(1)})
    restored.update(*columns)
    assert got.rows and (restored.rows, beside.rows) == (2 * got.rows, 0)
    assert len({id(metrics._counted) for metrics in (got, restored, beside)}) == 3
    assert dump(untouched.state(), {}) == dump(beside.state(), {}) == before
    # It counts as no model's memory.
    assert isinstance(untouched._counted, SharedDerived) and not isinstance(
        got._counted, SharedDerived
    )
