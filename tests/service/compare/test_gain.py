"""The gain's confidence sequence, and the sentence about it."""

from types import SimpleNamespace

import numpy as np
import pytest

from dualstream.service.compare.contestants import Predictions
from dualstream.service.compare.figures import CLIP, Figures, Gain, losses_of
from dualstream.service.compare.options import Options, Span
from dualstream.service.compare.result import about_large_errors, conclusion
from dualstream.solvers.evaluation.drift import DriftWatch


def test_equal_models_show_no_difference():
    """Over 200 streams and all their rows, at most the promised share excludes 0."""
    excluded = 0
    for seed in range(200):
        rng, gain = np.random.default_rng(seed), Gain("binary")
        ours, others = (rng.random((2, 2_000)) < 0.2).astype(np.float64)
        for first in range(0, 2_000, 100):
            gain.add(ours[first : first + 100], others[first : first + 100])
            got = gain.summary(0.95)
            if got["low"] > 0.0 or got["high"] < 0.0:
                excluded += 1
                break
    assert excluded <= 10


def test_the_gain_is_the_difference_of_the_errors():
    rng = np.random.default_rng(0)
    ours, others = (rng.random((2, 5_000)) < [[0.1], [0.3]]).astype(np.float64)
    gain = Gain("binary")
    for first in range(0, 5_000, 700):
        gain.add(ours[first : first + 700], others[first : first + 700])
    got = gain.summary(0.95)
    assert got["percent"] == pytest.approx(100.0 * (others.mean() - ours.mean()))
    assert 10.0 < got["low"] < got["percent"] < got["high"] and got["rows"] == 5_000


def test_numbers_are_in_units_of_the_running_mean_and_clipped():
    rng = np.random.default_rng(1)
    ours, others = rng.exponential(1.0, (2, 900)) ** 3
    gain, expected, total = Gain("regression"), [], 0.0
    for row in range(900):
        unit = total / row if row else np.inf
        expected.append(min(others[row] / unit, CLIP) - min(ours[row] / unit, CLIP))
        total += 0.5 * (ours[row] + others[row])
    gain.add(ours[:400], others[:400])
    gain.add(ours[400:], others[400:])
    assert gain.summary(0.9)["percent"] == pytest.approx(100.0 * np.mean(expected))
    assert max(map(abs, expected)) > 0.9 * CLIP


def test_figures_are_those_of_their_definitions():
    rng = np.random.default_rng(2)
    truth = np.where(rng.random(900) < 0.3, 1.0, -1.0)
    scores = truth + rng.normal(0, 1.5, 900)
    chances = 1.0 / (1.0 + np.exp(-scores))
    predictions = Predictions(np.where(scores >= 0, 1.0, -1.0), chances, scores)
    figures = Figures("binary", 1_000)
    losses = losses_of("binary", truth, predictions)
    for first, stop in ((0, 250), (250, 900)):
        figures.add(
            100 + first, truth[first:stop], predictions.between(first, stop), losses[first:stop]
        )
    got = figures.summary()
    assert got["error_rate"] == pytest.approx(np.mean((scores >= 0) != (truth > 0)))
    assert got["log_loss"] == pytest.approx(
        -np.log(np.where(truth > 0, chances, 1 - chances)).mean()
    )
    pairs = scores[truth > 0][:, None] > scores[truth < 0]
    assert got["auc"] == pytest.approx(pairs.mean())
    positive = truth[np.argsort(-scores)] > 0
    precisions = np.cumsum(positive) / np.arange(1, 901)
    assert got["average_precision"] == pytest.approx(precisions[positive].mean())
    bins = np.minimum((chances * 20).astype(int), 19)
    gaps = [abs((chances - (truth > 0))[bins == one].sum()) for one in range(20)]
    assert got["calibration_error"] == pytest.approx(sum(gaps) / 900)
    parts = figures.mean_by(10)
    assert parts[0] is None and parts[1] == pytest.approx(losses[:100].mean())


def test_classes_without_probabilities_have_no_log_loss():
    figures = Figures("multiclass", 100)
    truth, labels = np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, -1.0])
    predictions = Predictions(labels)
    figures.add(0, truth, predictions, losses_of("multiclass", truth, predictions))
    assert figures.summary() == {"error_rate": pytest.approx(1 / 3), "log_loss": None}


def sentence(percent, low, high, kind="peer", task="binary", losses=(), every=None):
    gain = {"percent": percent, "low": low, "high": high, "rows": 45_312}
    one = {"name": "LightGBM", "kind": kind, "gain": gain, "trainings": 20}
    drift = DriftWatch()
    if len(losses):
        drift.watch(np.asarray(losses), np.ones(len(losses), np.bool_), 1, 0)
    return conclusion(one, SimpleNamespace(task=task, drift=drift), Options(retrain_every=every))


def test_the_sentence_names_the_better_one():
    assert sentence(1.9, 1.2, 2.6, every=Span(5_000)) == (
        "Ahead of LightGBM retrained every 5,000 rows by 1.9 points (95 %: 1.2 to 2.6)"
        " on 45,312 rows."
    )
    assert sentence(-1.9, -2.6, -0.25) == (
        "Behind LightGBM retrained 20 times by 1.9 points (95 %: 0.25 to 2.6) on 45,312 rows;"
        " keep LightGBM: no drift was detected in this file."
    )
    drifting = [0.0] * 2_000 + [1.0] * 2_000
    assert sentence(-1.9, -2.6, -1.2, losses=drifting).endswith(
        "keep LightGBM, although drift was detected in this file."
    )
    assert sentence(0.1, -0.5, 0.7) == (
        "No difference from LightGBM retrained 20 times can be shown on 45,312 rows:"
        " 0.10 points (95 %: -0.50 to 0.70)."
    )
    assert sentence(8, 7, 9, task="regression").startswith(
        "Ahead of LightGBM retrained 20 times by 8.0 percent of the mean absolute error"
    )
    assert sentence(8, 7, 9, kind="baseline") is None
    assert "these columns do not predict this label" in sentence(-8, -9, -7, kind="baseline")
    assert "use the specification of LightGBM." in sentence(-8, -9, -7, kind="learner")


def test_a_gain_that_contradicts_the_mean_is_named():
    gains = {"worse": (9.0, 1.0), "better": (-9.0, -1.0), "rare": (2.0, 1.0), "even": (2.0, -1.0)}
    maes = {"worse": 6.0, "better": 4.0, "rare": 4.0, "even": 4.0}
    others = [
        {"name": name, "mae": maes[name], "gain": {"low": min(ends), "high": max(ends)}}
        for name, ends in gains.items()
    ]
    ours = {"name": "Dualstream", "mae": 5.0, "gain": None}
    (note,) = about_large_errors([ours, *others])
    assert note.startswith("warning: MAE and gain disagree about rare: the gain clips errors at 10")
    assert about_large_errors([{"name": "Dualstream"}, {"name": "LightGBM", "gain": None}]) == []
