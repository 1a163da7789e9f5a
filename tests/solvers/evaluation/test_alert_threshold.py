"""Alerts at a rate: the threshold against brute force, and the rate of any sequence of scores."""

import lzma
import math
import os
from pathlib import Path

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.evaluation.decisions import alerts as a
from dualstream.solvers.evaluation.decisions.monitor import Decisions
from dualstream.solvers.protocols.learner import Outcome

ROWS = 60_000
EMPTY = np.empty(0)


def decisions(rate: float, **fields) -> Decisions:
    return Decisions(resolve_spec({"alert_rate": rate, **fields}))


def outcome_of(scores: np.ndarray) -> Outcome:
    none = np.zeros(len(scores), np.bool_)
    return Outcome(scores, np.zeros(len(scores)), none, none)


def batch_of(labels: np.ndarray, **columns) -> Batch:
    n = len(labels)
    return Batch(
        np.zeros(n + 1, np.int64),
        np.empty(0, np.int32),
        EMPTY,
        np.where(labels, 1.0, -1.0),
        columns.pop("weights", np.ones(n)),
        4,
        **columns,
    )


def follow(one: Decisions, scores, labels=None, size: int = 5000) -> None:
    scores = np.asarray(scores, np.float64)
    labels = np.zeros(len(scores), np.bool_) if labels is None else labels
    for first in range(0, len(scores), size):
        rows = slice(first, first + size)
        one.count(batch_of(labels[rows]), outcome_of(scores[rows]))


def brute_force(scores: list[float], rate: float) -> tuple[list[bool], float]:
    """The definition, without a ring and an order."""
    alerts, trend = [], 0.0

    def threshold() -> float:
        debt = rate * (len(alerts) - a.WARM_UP) - sum(alerts)
        if len(alerts) < a.WARM_UP or debt <= -a.MAX_DEBT:
            return math.inf
        if debt >= a.MAX_DEBT:
            return -math.inf
        level = 1 / (1 + math.exp(-math.log(rate / (1 - rate)) - a.STEP * debt - trend))
        highest = sorted(scores[: len(alerts)][-a.RING :], reverse=True)
        above = level * len(highest)
        tail = min(a.TAIL, len(highest) // 2)
        if above < tail:
            excess = sum(highest[:tail]) / tail - highest[tail]
            return highest[tail] + excess * math.log(tail / above)
        rank = min(int(above), len(highest) - 2)
        part = min(above - rank, 1.0)
        return highest[rank] * (1 - part) + highest[rank + 1] * part

    for score in scores:
        alerts.append(score > threshold())
        if len(alerts) > a.WARM_UP:
            debt = rate * (len(alerts) - a.WARM_UP) - sum(alerts)
            step = a.TREND * rate * max(-a.MAX_DEBT, min(a.MAX_DEBT, debt))
            trend = max(-a.MAX_TREND, min(a.MAX_TREND, trend + step))
    return alerts, threshold()


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3, 0.9])
def test_threshold_is_that_of_the_definition(rate):
    draw = np.random.default_rng(3)
    one, scores = decisions(rate), []
    for piece in (
        draw.normal(size=700),
        np.round(draw.normal(size=500)),
        10 * draw.standard_t(2, 600) + 5,
        np.zeros(150),
    ):
        follow(one, piece)
        scores += piece.tolist()
        alerts, threshold = brute_force(scores, rate)
        figures = one.figures()["alerts"]
        assert figures["since_start"]["alerts"] == sum(alerts)
        assert figures["rolling"]["alerts"] == sum(alerts[-a.RING :])
        assert one.threshold == pytest.approx(threshold, rel=1e-9, abs=1e-9)


def sequences() -> dict[str, np.ndarray]:
    draw, rows = np.random.default_rng(5), np.arange(ROWS)
    noise = draw.normal(size=ROWS)
    return {
        "constant": np.zeros(ROWS),
        "two values": (draw.random(ROWS) < 0.05) * 1.0,
        "rising": rows * 1.0,
        "falling": -rows * 1.0,
        "doubling": 2.0 ** (rows % 900),
        "alternating": rows % 2 * 1.0,
        "constant, then not": np.where(rows < ROWS // 2, 0.0, noise),
        "waves": noise + 20 * np.sin(rows / 3000),
        "sleeping, then loud": np.where(rows % 8000 < 500, noise + 30, noise),
        "largest floats": np.where(rows % 3 == 0, 1e300, -1e300),
        "always above": np.cumsum(np.cumsum(np.ones(ROWS))),
        "zeros of both signs": np.where(rows % 2 == 0, 0.0, -0.0),
    }


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.4])
def test_alerts_of_any_sequence_are_right_within_the_bound(rate, subtests):
    for name, scores in sequences().items():
        with subtests.test(name):
            one = decisions(rate)
            for first in range(0, ROWS, 1000):
                follow(one, scores[first : first + 1000])
                figures = one.figures()["alerts"]["since_start"]
                debt = rate * figures["rows"] - figures["alerts"]
                assert abs(debt) <= a.MAX_DEBT + 1


def test_adversary_with_the_threshold_does_not_break_the_bound():
    for aim in (1.0, -1.0):
        one, rate = decisions(0.05), 0.05
        for _ in range(3000):
            threshold = one.threshold
            follow(one, [threshold + aim if math.isfinite(threshold) else 0.0])
            figures = one.figures()["alerts"]["since_start"]
            assert abs(rate * figures["rows"] - figures["alerts"]) <= a.MAX_DEBT + 1


def rare_positives(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of 300,000 rows, 1 % positive, as log odds of a model that sees something
    of the label."""
    draw = np.random.default_rng(11)
    n = 300_000
    labels = draw.random(n) < 0.01
    scores = draw.normal(-5, 1, n) + labels * draw.normal(4, 1.5, n)
    at = np.linspace(0, 1, n)
    if kind == "scale grows":
        scores = scores * np.exp(2 * at)
    elif kind == "level jumps":
        scores = scores + 3 * (at * 12 % 2 > 1)
    elif kind == "level falls":
        scores = scores - 40 * at
    elif kind == "positives come in waves":
        scores = scores + 4 * (at * 30 % 1 < 0.03)
    elif kind == "heavy tails":
        scores = draw.standard_t(2, n) + 5 * labels
    return scores, labels


@pytest.mark.parametrize(
    "kind",
    [
        "steady",
        "scale grows",
        "level jumps",
        "level falls",
        "positives come in waves",
        "heavy tails",
    ],
)
def test_rate_of_drifting_streams_is_within_two_percent(kind, subtests):
    scores, labels = rare_positives(kind)
    for rate in (0.003, 0.01, 0.05):
        with subtests.test(rate):
            one = decisions(rate)
            follow(one, scores, labels)
            figures = one.figures()["alerts"]["since_start"]
            assert figures["rate"] == pytest.approx(rate, rel=0.02)
            if rate == 0.01 and kind in ("steady", "scale grows", "level jumps"):
                assert figures["precision"] > 0.65
                assert figures["recall"] > 0.65


@pytest.mark.data
@pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set")
def test_rate_of_a_real_stream_with_one_percent_positives_is_within_two_percent(subtests):
    path = Path(os.environ["DUALSTREAM_DATA"]) / "ijcnn1.xz"
    rows = Batch.from_libsvm(lzma.decompress(path.read_bytes()), 22).batch
    # Of ten positive rows, one stays.
    positive = rows.labels > 0
    rows = rows.take(np.flatnonzero(~positive | (np.cumsum(positive) % 10 == 0)))
    labels = rows.labels > 0
    assert 0.01 < labels.mean() < 0.012
    features = {"features": {"kind": "indexed", "dim": 22}}
    learner = make_learner(
        resolve_spec({"algorithm": "dual_ascent", "loss": "logistic", **features})
    )
    scores = np.concatenate(
        [learner.learn(rows[k : k + 5000]).scores for k in range(0, 50_000, 5000)]
    )
    for rate in (0.01, 0.02, 0.05):
        with subtests.test(rate):
            one = decisions(rate)
            follow(one, scores, labels)
            figures = one.figures()["alerts"]["since_start"]
            assert figures["rate"] == pytest.approx(rate, rel=0.02)
            assert figures["precision"] > 4 * labels.mean()


def test_alerts_are_those_above_the_threshold():
    draw, one = np.random.default_rng(2), decisions(0.1)
    scores, labels = draw.normal(size=400), draw.random(400) < 0.3
    alerts = []
    for score, label in zip(scores, labels, strict=True):
        alerts.append(score > one.threshold)
        follow(one, [score], np.array([label]))
    alerts = np.array(alerts)
    figures = one.figures()["alerts"]["since_start"]
    assert figures["alerts"] == alerts.sum()
    assert figures["precision"] == (alerts & labels).sum() / alerts.sum()
    assert figures["recall"] == (alerts & labels).sum() / labels.sum()
    assert figures["labelled"] == 400
    assert figures["rows"] == 400 - a.WARM_UP


def test_batches_equal_rows_and_a_restored_state_continues(subtests):
    draw = np.random.default_rng(4)
    scores, labels = draw.normal(size=2500), draw.random(2500) < 0.2
    whole, single, restored = (decisions(0.02) for _ in range(3))
    follow(whole, scores, labels)
    follow(single, scores, labels, size=1)
    for first in range(0, 2500, 250):
        follow(restored, scores[first : first + 250], labels[first : first + 250])
        state, restored = restored.state(), decisions(0.02)
        restored.restore(state)
    for name, array in whole.state().items():
        with subtests.test(name):
            assert array.tobytes() == single.state()[name].tobytes()
            assert array.tobytes() == restored.state()[name].tobytes()
    assert whole.threshold == single.threshold == restored.threshold


def test_rows_of_weight_0_and_rejected_rows_do_nothing():
    one = decisions(0.5)
    follow(one, np.arange(100.0))
    before = one.state()
    labels = np.ones(3, np.bool_)
    one.count(batch_of(labels, weights=np.zeros(3)), outcome_of(np.full(3, 1e6)))
    rejected = outcome_of(np.full(3, np.nan))
    rejected.rejected = labels
    one.count(batch_of(labels), rejected)
    assert all(one.state()[name].tobytes() == array.tobytes() for name, array in before.items())


COLUMNS = {
    "columns": {"types": {"card": "category", "at": "time"}},
    "history": [{"by": ["card"], "time": "at", "stats": ["count"], "half_life": ["1d"]}],
    "features": {"kind": "hashed", "bits": 10},
}


@pytest.mark.parametrize("field", [{"alert_rate": 0.1}, {"costs": {"false_positive": 2}}], ids=str)
def test_a_learner_that_starts_again_takes_the_decisions_along(field):
    rng = np.random.default_rng(4)
    one, other = (Decisions(resolve_spec(field)) for _ in range(2))
    follow(one, rng.normal(1e9, 1.0, 30))
    scores, labels = rng.normal(size=60), rng.random(60) > 0.5
    observed = np.arange(60) % 7 == 0
    served = np.where(observed, scores, np.nan)
    outcome = outcome_of(scores)
    outcome.rejected, outcome.observed, outcome.relearned = observed, observed, 25
    as_served = np.where(observed, 0.0, np.nan)
    one.count(batch_of(labels, served=served), outcome, as_served)
    other.count(batch_of(labels[25:], served=served[25:]), outcome[25:], as_served[25:])
    states = one.state(), other.state()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])
    assert other.figures() == one.figures()


def test_remembered_row_moves_the_threshold_once():
    one = decisions(0.1, **COLUMNS)
    served = batch_of(np.zeros(1, np.bool_), weights=np.zeros(1), served=np.array([3.0]))
    served.labels[:] = np.nan
    observed = outcome_of(np.array([np.nan]))
    observed.rejected = observed.observed = np.array([True])
    one.count(served, observed, np.array([1.0]))
    late = batch_of(np.ones(1, np.bool_), served=np.array([3.0]))
    one.count(late, outcome_of(np.array([3.0])))
    counts = one.state()["counts"]
    assert counts[a.MOVED] == counts[a.ROWS] == counts[a.POSITIVES] == 1
    plain = decisions(0.1)
    plain.count(late, outcome_of(np.array([3.0])))
    assert plain.state()["counts"][a.MOVED] == 1


def test_alerts_a_day_are_those_of_the_time_column():
    one = decisions(0.2, **COLUMNS)
    draw = np.random.default_rng(1)
    from dualstream.solvers.rows.columns.inputs import inputs_of

    spec = resolve_spec({"alert_rate": 0.2, **COLUMNS})
    inputs = inputs_of(spec)
    at = inputs.index_of_time("at")
    for number in range(2000):  # one each minute
        rows = Batch(
            np.array([0, 1]),
            np.array([at], np.int32),
            np.array([1.7e9 + 60 * number]),
            np.ones(1),
            np.ones(1),
            inputs.row_width,
        )
        one.count(rows, outcome_of(draw.normal(size=1)))
    assert one.figures()["alerts"]["alerts_a_day"] == pytest.approx(0.2 * 1440, rel=0.2)
    plain = decisions(0.2)
    follow(plain, draw.normal(size=2000))
    assert plain.figures()["alerts"]["alerts_a_day"] is None
