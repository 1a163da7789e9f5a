"""The comparison of all models in load_tests.streams: its figures, its peers, its kept results."""

from dataclasses import asdict

import numpy as np
import pytest

from dualstream.solvers import Batch
from load_tests.records import moa
from load_tests.streams import comparison, peer_comparison, peer_figures
from load_tests.streams.cases import turned
from load_tests.streams.compared import (
    FAMILIES,
    FLIPPED,
    ORDER,
    STREAMS,
    all_streams,
    share_of_true,
    thinned,
)
from load_tests.streams.figures import BINS, BLOCK, Figures, calibration_error
from load_tests.streams.retrained import EARLY, EVERY, rolling


def stream(rows, positive=0.5):
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(rows) < positive, 1.0, -1.0)
    return Batch.from_dense(rng.normal(size=(rows, 2)), labels)


def figures_of(rows, rate, seed=0):
    """Figures of a learner that errs on each row with this probability."""
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(rows) % 2 == 0, 1.0, -1.0)
    scores = labels * np.where(rng.random(rows) < rate, -1.0, 1.0)
    return Figures.of(scores, labels, 1.0)


def test_figures_are_those_counted_by_hand():
    labels = np.where(np.arange(1200) % 3 == 0, 1.0, -1.0)
    scores = -2.0 * labels
    scores[100:] *= -1.0
    scores[500] = np.nan
    result = Figures.of(scores, labels, 0.0024)
    assert result.rows == 1200
    assert result.us == 2.0
    assert result.errors == pytest.approx(100.0 * 101 / 1200, abs=1e-4)
    assert result.cold == (100.0, 0.0)
    assert result.counts == (100, 1, 0)
    losses = np.log1p(np.exp([2.0] * 100 + [-2.0] * 1099 + [0.0]))
    assert result.log_loss == pytest.approx(losses.mean(), abs=1e-5)


def test_area_and_precision_are_those_of_all_pairs():
    rng = np.random.default_rng(1)
    labels = np.where(rng.random(60) < 0.3, 1.0, -1.0)
    scores = labels + 2.0 * rng.normal(size=60)
    result = Figures.of(scores, labels, 1.0)
    pairs = scores[labels > 0.0][:, None] > scores[labels < 0.0][None, :]
    assert result.auc == pytest.approx(100.0 * pairs.mean(), abs=1e-3)
    above = [(labels[scores >= s] > 0.0).mean() for s in scores[labels > 0.0]]
    assert result.precision == pytest.approx(100.0 * np.mean(above), abs=1e-3)


def test_calibration_error_is_the_mean_difference_over_the_bins():
    scores = np.array([0.1, 0.1, 0.1, 0.1, 40.0])
    positive = np.array([True, True, True, False, False])
    probability = 1.0 / (1.0 + np.exp(-0.1))
    assert int(probability * BINS) == BINS // 2
    expected = (4 * abs(probability - 0.75) + 1.0) / 5
    assert calibration_error(scores, positive) == pytest.approx(expected)


def test_errors_of_the_first_rows_are_those_of_their_blocks():
    result = figures_of(1700, 0.3)
    assert result.errors_until(1700) == result.errors
    assert result.errors_until(BLOCK) == 100.0 * result.counts[0] / BLOCK
    assert Figures.read(asdict(result)) == result


class Recorder:
    """Trains nothing; records the rows that it gets and predicts the number of its training."""

    def __init__(self):
        self.trained, self.served = [], []

    def __call__(self, rows, labels):
        self.trained.append((rows[:, 0].tolist(), labels.tolist()))

        def predict(later):
            self.served.append(later[:, 0].tolist())
            return np.full(len(later), float(len(self.trained)))

        return predict


@pytest.mark.parametrize("window", [None, 700])
def test_rolling_model_is_trained_on_past_rows_only(window):
    batch = stream(1234)
    train = Recorder()
    scores = np.concatenate(list(rolling(train, window, batch)))
    values, labels = batch.values[::2].tolist(), (batch.labels > 0.0).astype(float).tolist()
    ends = [*EARLY, EVERY, 2 * EVERY]
    firsts = [max(0, end - (window or end)) for end in ends]
    assert train.trained == [
        (values[first:end], labels[first:end]) for first, end in zip(firsts, ends, strict=True)
    ]
    assert sum(train.served, []) == values[EARLY[0] :]
    assert (
        scores[EARLY[0] :].tolist()
        == np.repeat(np.arange(1.0, 7.0), np.diff([*ends, 1234])).tolist()
    )
    share = np.mean(labels[:20])
    assert scores[20] == pytest.approx(np.log(share / (1.0 - share)))


def test_rolling_model_is_not_trained_on_one_class():
    train = Recorder()
    scores = np.concatenate(list(rolling(train, None, stream(120, positive=0.0))))
    assert not train.trained
    assert scores[0] == 0.0
    assert (scores[1:] == -30.0).all()


def test_thinned_stream_keeps_negatives_in_order_and_a_hundredth_of_positives():
    batch = stream(4000, positive=0.3)
    result = thinned(batch)
    positive = result.labels > 0.0
    assert positive.mean() == pytest.approx(0.01, abs=1e-3)
    values = batch.values[::2]
    np.testing.assert_array_equal(result.values[::2][~positive], values[batch.labels < 0.0])
    # Values differ, so that a row is found by its value: their places ascend.
    positions = [int(np.flatnonzero(values == value)[0]) for value in result.values[::2]]
    assert positions == sorted(positions)


def test_labels_turn_at_a_whole_block():
    batch = stream(1800)
    result = turned(batch, BLOCK)
    np.testing.assert_array_equal(result.labels[:BLOCK], batch.labels[:BLOCK])
    np.testing.assert_array_equal(result.labels[BLOCK:], -batch.labels[BLOCK:])


def test_peer_that_was_stopped_is_compared_on_the_rows_that_it_scored():
    full, peer = figures_of(2000, 0.4), figures_of(1000, 0.1, seed=1)
    figures = {"eight": full, "full": full, "vw": peer}
    assert comparison.gap(figures, "vw") == full.errors_until(1000) - peer.errors
    assert comparison.finished(figures, ["vw", "full"]) == {"full": full}
    assert comparison.best_of(figures, ["vw"]) is None


@pytest.mark.parametrize(
    ("votes", "share"),
    [({}, 0.5), ({False: 0.0}, 0.5), ({False: 3.0}, 0.0), ({True: 0.2}, 1.0), ({0: 1, 1: 3}, 0.75)],
)
def test_class_without_votes_has_no_share(votes, share):
    assert share_of_true(votes) == share


def test_streams_where_a_peer_is_ahead_are_listed():
    full, peer = figures_of(2000, 0.4), figures_of(1000, 0.1, seed=1)
    result = {name: {"full": full, "eight": full} for name in STREAMS}
    assert comparison.ahead(result) == "- nowhere.\n"
    result["mnist"] = {"full": full, "eight": full, "vw": peer}
    part = full.errors_until(1000)
    assert comparison.ahead(result) == (
        f"- **mnist**: vw {peer.errors:.2f} (`full` {part:.2f} on the same 1,000 rows); "
        f"`full` {full.errors:.2f}.\n"
    )


def test_recovery_is_counted_from_the_block_in_which_labels_turn():
    rows = 12 * BLOCK
    labels = np.where(np.arange(rows) % 2 == 0, 1.0, -1.0)
    scores = labels.copy()
    scores[5 * BLOCK : 5 * BLOCK + 50] *= -1.0
    scores[6 * BLOCK : 7 * BLOCK] *= -1.0
    one = Figures.of(scores, labels, 1.0)
    result = {name: dict.fromkeys(comparison.OURS, one) for name in FLIPPED}
    table = comparison.recovery(result, dict.fromkeys(FLIPPED, (rows, 1)))
    cells = table.splitlines()[2].split(" | ")
    assert cells[2:] == ["10.0", "100.0", *["0.0"] * 5, "16.67 |"]


def test_kept_figures_are_of_known_streams_and_peers_and_consistent():
    kept = peer_comparison.kept()
    assert set(kept.versions) == {*peer_comparison.PACKAGES, *moa.VERSION}
    assert set(kept.figures) == set(kept.digests) == set(all_streams())
    assert set(ORDER) == {peer for family in FAMILIES.values() for peer in family}
    for figures in kept.figures.values():
        assert set(figures) - set(ORDER) == set(comparison.OURS)
        longest = max(one.rows for one in figures.values())
        for one in figures.values():
            assert one.rows == longest or one.rows % BLOCK == 0
            assert 100.0 * sum(one.counts) / one.rows == pytest.approx(one.errors, abs=1e-4)
            assert len(one.counts) == -(-one.rows // BLOCK)


def test_peers_err_as_often_as_in_the_run_on_whole_streams():
    _, whole = peer_figures.kept()
    both = [
        (figures[peer], whole[stream][peer])
        for stream, figures in peer_comparison.kept().figures.items()
        for peer in figures
        if peer in whole.get(stream, {}) and whole[stream][peer].rows == figures[peer].rows
    ]
    assert len(both) > 20
    for result, run in both:
        assert result.errors == pytest.approx(run.mistakes, abs=1e-3)
        assert result.log_loss == pytest.approx(run.log_loss, abs=1e-4)
