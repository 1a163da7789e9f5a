"""AUC and average precision against scikit-learn."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from dualstream.solvers import CorruptState, Progressive, dump, make_progressive, resolve_spec
from dualstream.solvers.evaluation.ranking import (
    BINS,
    LARGEST_SCORE,
    RECENT,
    SIDE,
    Ranking,
    count_bins,
)
from dualstream.solvers.jit import DISABLED
from tests.fuzzing import examples

FEW = examples(25 if DISABLED else 100)
N = 2500
RANDOM = np.random.default_rng(0)


def drawn(share, scale=1.0, shift=1.5, centre=0.0):
    """Labels with a share of positives, and scores that are larger for these."""
    labels = np.where(RANDOM.random(N) < share, 1.0, RANDOM.choice([-1.0, 0.0], N))
    return labels, scale * (RANDOM.standard_normal(N) + shift * (labels > 0.0)) + centre


def tied(share):
    labels, scores = drawn(share)
    return labels, np.round(scores)


STREAMS = {
    "random": drawn(0.5, shift=0.0),
    "good": drawn(0.4),
    "rare": drawn(0.01, centre=-4.6),
    "frequent": drawn(0.97, centre=3.5),
    "large": drawn(0.3, scale=2000.0),
    "small": drawn(0.3, scale=0.02),
    "wide": drawn(0.3, scale=np.exp(RANDOM.normal(0.0, 4.0, N))),
    "tied": tied(0.3),
    "constant": (drawn(0.2)[0], np.full(N, 0.7)),
    "reversed": drawn(0.3, shift=-3.0),
    "beyond the last bin": drawn(0.3, scale=1e8),
}


def counted(labels, scores, learned=None, **options):
    metrics = Progressive("binary", is_ranked=True, **options)
    learned = np.ones(len(labels), bool) if learned is None else learned
    metrics.update(labels, scores, np.zeros(len(labels)), learned)
    return metrics


def bins_of(scores):
    bins = np.zeros((2, BINS), np.int64)
    results = []
    for k in range(len(scores)):
        count_bins(scores[k : k + 1], np.ones(1, np.uint8), bins)
        results.append(int(np.flatnonzero(bins[1])[0]))
        bins[:] = 0
    return np.array(results)


def assert_exact(result, positive, scores):
    assert result["auc"] == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    precision = average_precision_score(positive, scores)
    assert result["average_precision"] == pytest.approx(precision, abs=1e-12)


@pytest.mark.parametrize("name", STREAMS)
def test_rolling_figures_are_exact(name):
    labels, scores = STREAMS[name]
    learned = RANDOM.random(N) < 0.9
    metrics = counted(labels, scores, learned)
    positive, scores = labels[learned] > 0.0, scores[learned]
    assert_exact(metrics.summary()["rolling"], positive[-RECENT:], scores[-RECENT:])


@pytest.mark.parametrize("name", STREAMS)
def test_figures_since_start_are_exact_before_any_row_is_counted_in_a_bin(name):
    labels, scores = STREAMS[name]
    for n in (RECENT, RECENT // 2):
        summary = counted(labels[:n], scores[:n]).summary()
        for view in ("since_start", "rolling"):
            assert_exact(summary[view], labels[:n] > 0.0, scores[:n])


def bounds(positive, bins):
    """How far AUC and average precision may move when the scores are rounded to bins.

    AUC: a pair in one bin counts half instead of 0 or 1. Average precision: with all rows of larger
    bins and some rows of its own, the precision at a positive row is between two values.
    """
    n, p = (np.bincount(bins[positive == one], minlength=BINS) for one in (False, True))
    auc = 0.5 * (n * p).sum() / (n.sum() * p.sum())
    above_n, above_p = (np.cumsum(rows[::-1])[::-1] - rows for rows in (n, p))
    low = (above_p + 1) / (above_p + 1 + above_n + n)
    high = (above_p + p) / np.maximum(above_p + p + above_n, 1)
    return auc, (p * (high - low))[p > 0].sum() / p.sum()


@pytest.mark.parametrize("name", STREAMS)
def test_figures_since_start_are_those_of_scores_rounded_to_bins(name):
    labels, scores = STREAMS[name]
    positive, bins = labels > 0.0, bins_of(scores)
    result = counted(labels, scores).summary()["since_start"]
    assert_exact(result, positive, bins)
    auc, precision = bounds(positive, bins)
    assert abs(result["auc"] - roc_auc_score(positive, scores)) <= auc + 1e-12
    moved = abs(result["average_precision"] - average_precision_score(positive, scores))
    assert moved <= precision + 1e-12


@pytest.mark.parametrize("name", ["random", "good", "rare", "frequent", "large", "wide"])
def test_bins_move_the_figures_little(name):
    labels, scores = STREAMS[name]
    positive = labels > 0.0
    result = counted(labels, scores).summary()["since_start"]
    assert result["auc"] == pytest.approx(roc_auc_score(positive, scores), abs=0.002)
    precision = average_precision_score(positive, scores)
    assert result["average_precision"] == pytest.approx(precision, abs=0.01)


def test_bins_are_ordered_and_as_narrow_as_stated():
    sizes = np.concatenate([[0.0, 5e-324], np.geomspace(1e-9, 16_383.9, 2000), [2e4, 1e290]])
    scores = np.concatenate([-sizes[:0:-1], sizes])
    bins = bins_of(scores)
    assert np.all(np.diff(bins) >= 0) and set(bins) == set(range(BINS)) - set(gaps(bins))
    assert (bins[0], bins[-1]) == (0, BINS - 1)
    # Both ends of a step of the width bound are in different bins.
    inner = np.abs(scores) < 16_000.0
    apart = scores + (0.25 + np.abs(scores)) / 32 * np.where(scores < 0.0, -1.0, 1.0)
    assert np.all(bins_of(apart[inner]) != bins[inner])
    assert list(bins_of(np.array([-0.0, 0.0, -1e-300]))) == [SIDE, SIDE, SIDE - 1]


def gaps(bins):
    """Bins between two found ones that no sampled score is in."""
    return [k for k in range(BINS) if k not in set(bins) and bins[0] < k < bins[-1]]


@pytest.mark.parametrize("label", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("n", [0, 1, 20, N])
def test_there_are_no_figures_while_one_class_is_missing(label, n):
    summary = counted(np.full(n, label), np.arange(n, dtype=float)).summary()
    for view in ("since_start", "rolling"):
        assert summary[view]["auc"] is summary[view]["average_precision"] is None
    assert "auc" not in summary["fading"]


def test_a_class_that_left_the_recent_rows_is_missing_there_only():
    labels = np.zeros(N)
    labels[0] = 1.0
    summary = counted(labels, np.arange(N, dtype=float)).summary()
    assert summary["rolling"]["auc"] is None
    assert summary["since_start"]["auc"] == pytest.approx(0.0, abs=0.001)


def test_scores_that_are_not_finite_are_stored_as_large_ones():
    scores = np.array([np.inf, -np.inf, np.nan, 1e300, 0.0])
    labels = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    metrics = counted(labels, scores)
    stored = np.array([1.0, -1.0, -1.0, 1.0, 0.0]) * LARGEST_SCORE
    assert np.array_equal(metrics.state()["ranking_scores"], stored)
    assert_exact(metrics.summary()["rolling"], labels > 0.0, stored)
    again = counted(*STREAMS["good"])
    again.restore(metrics.state())
    assert again.summary() == metrics.summary()


@FEW
@given(cuts=st.lists(st.integers(0, N), max_size=6), stop=st.integers(0, N))
def test_batches_and_restarts_leave_the_same_bits(cuts, stop):
    labels, scores = STREAMS["rare"]
    learned = np.random.default_rng(1).random(N) < 0.8
    losses = np.zeros(N)
    whole, parts = counted(labels, scores, learned), counted(labels[:0], scores[:0])
    for a, b in itertools.pairwise([0, *sorted(cuts), N]):
        parts.update(labels[a:b], scores[a:b], losses[a:b], learned[a:b])
    again = counted(*STREAMS["good"])  # the previous content must not matter
    again.restore(counted(labels[:stop], scores[:stop], learned[:stop]).state())
    again.update(labels[stop:], scores[stop:], losses[stop:], learned[stop:])
    assert dump(whole.state(), {}) == dump(parts.state(), {}) == dump(again.state(), {})
    assert whole.summary() == parts.summary() == again.summary()


def test_rows_one_by_one_are_the_batch():
    labels, scores = (column[: RECENT + 300] for column in STREAMS["tied"])
    whole, single = counted(labels, scores), counted(labels[:0], scores[:0])
    for k in range(len(labels)):
        single.update(labels[k : k + 1], scores[k : k + 1], np.zeros(1), np.ones(1, bool))
    assert dump(whole.state(), {}) == dump(single.state(), {})


@pytest.mark.parametrize("n", [50, N])
def test_no_damaged_state_is_restored(n):
    labels, scores = STREAMS["good"]
    metrics = counted(labels[:n], scores[:n])
    good, before = metrics.state(), dump(metrics.state(), {})
    bins = good["ranking_bins"]
    fewer = bins.copy()
    fewer[1, :1] -= 1
    beyond = np.array([[BINS], [0], [max(n - RECENT, 0)]])
    wrong = [
        {name: array for name, array in good.items() if name != "ranking_scores"},
        good | {"ranking_scores": good["ranking_scores"] * np.nan},
        good | {"ranking_positive": good["ranking_positive"][1:]},
        good | {"ranking_positive": good["ranking_positive"] + 1},
        good | {"ranking_bins": np.zeros((2, 3), np.int64)},
        good | {"ranking_bins": np.zeros(3, np.int64)},
        good | {"ranking_bins": np.int64(3)},
        good | {"ranking_bins": beyond},
        good | {"ranking_bins": beyond - BINS - 1},
        good | {"ranking_bins": np.hstack([np.zeros((3, 1), np.int64), bins])},
        good | ({"ranking_bins": bins[:, ::-1]} if n > RECENT else {"ranking_bins": beyond - 1}),
        good | ({"ranking_bins": fewer} if n > RECENT else {"metrics_rows": np.array([n + 1])}),
    ]
    for state in wrong:
        with pytest.raises(CorruptState):
            metrics.restore(state)
        assert dump(metrics.state(), {}) == before


def test_bins_of_a_batch_that_was_rejected_are_no_state():
    labels, scores = STREAMS["good"]
    metrics = counted(labels, scores, np.arange(N) < 10)
    assert dump(metrics.state(), {}) == dump(counted(labels[:10], scores[:10]).state(), {})


def test_memory_is_counted_and_bins_come_with_the_first_older_row():
    labels, scores = STREAMS["good"]
    few, many = counted(labels[:10], scores[:10]), counted(labels, scores)
    plain = Progressive("binary")
    plain.update(labels[:10], scores[:10], np.zeros(10), np.ones(10, bool))
    kept = few._counted.bytes_held - plain._counted.bytes_held
    assert 9 * RECENT < kept < 9 * RECENT + 1000
    ranking = many._counted.ranking
    assert ranking.bytes_held - few._counted.ranking.bytes_held == 16 * BINS
    assert Ranking().state(0)["ranking_scores"].size == 0


def test_binary_models_have_the_figures():
    features = {"kind": "indexed", "dim": 2}
    labels, scores = STREAMS["good"]
    metrics = make_progressive(resolve_spec({"features": features}))
    metrics.update(labels, scores, np.zeros(N), np.ones(N, bool))
    view = metrics.summary()["since_start"]
    assert all(math.isfinite(view[name]) for name in ("auc", "average_precision"))
    assert any(name.startswith("ranking") for name in metrics.state())
    assert "auc" not in metrics.timeline()[0]["since_start"]
    for task in ("regression", "multiclass"):
        metrics = make_progressive(resolve_spec({"features": features, "task": task}))
        assert "auc" not in metrics.summary()["since_start"]
        assert not any(name.startswith("ranking") for name in metrics.state())
