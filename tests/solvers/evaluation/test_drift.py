"""Drift: the detections equal River's, row for row; events and state."""

import itertools
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from river import drift as river_drift

from dualstream.solvers import Batch, CorruptState, Outcome, dump, make_learner, make_progressive
from dualstream.solvers.evaluation.drift import DETECTORS, DriftWatch
from dualstream.solvers.evaluation.drift.monitor import EVENTS
from dualstream.solvers.evaluation.make_progressive import scaled_detectors
from dualstream.solvers.jit import DISABLED

SHORT = 20 if DISABLED else 400


def levels(seed, *, pieces=20, errors=False):
    """Losses whose mean jumps from time to time; `errors` are 0 or 1."""
    random = np.random.default_rng(seed)
    losses = np.concatenate(
        [
            random.random(random.integers(SHORT // 8, 10 * SHORT)) * random.random() * 4
            for _ in range(pieces)
        ]
    )
    return (losses > random.random(len(losses))).astype(float) if errors else losses


def watched(losses):
    watch = DriftWatch()
    watch.watch(losses, np.ones(len(losses), bool), 1, 0)
    return watch


def rivers(losses):
    """(detector, row) of each detection, rows counted from 1, and the final ADWIN."""
    detectors = {
        "adwin": river_drift.ADWIN(delta=0.002),
        "page_hinkley": river_drift.PageHinkley(delta=0.005, threshold=50),
    }
    results = []
    for row, loss in enumerate(losses.tolist(), 1):
        for name, detector in detectors.items():
            detector.update(loss)
            if detector.drift_detected:
                results.append((name, row))
    return results, detectors["adwin"]


def events_of(losses):
    """Events of all rows, although only the last EVENTS are kept."""
    watch, results = DriftWatch(), []
    for at in range(0, len(losses), 500):
        piece = losses[at : at + 500]
        before = sum(itertools.chain(*(c.values() for c in watch.counts().values())))
        watch.watch(piece, np.ones(len(piece), bool), at + 1, at)
        after = sum(itertools.chain(*(c.values() for c in watch.counts().values())))
        assert after - before <= EVENTS
        results += watch.events()[-(after - before) :] if after > before else []
    return results, watch


def check_against_river(losses):
    result, watch = events_of(losses)
    theirs, adwin = rivers(losses)
    assert [(event.detector, event.rows) for event in result] == theirs
    if not adwin.drift_detected:
        assert watch.width == adwin.width
        assert watch.mean == pytest.approx(adwin.estimation, rel=1e-12)
    return theirs


@pytest.mark.parametrize("seed", range(4))
def test_detections_are_rivers(seed):
    theirs = check_against_river(levels(seed, errors=seed % 2 == 1))
    assert DISABLED or len(theirs) > 10


def test_detections_are_rivers_on_a_long_quiet_stream_with_one_jump():
    n = 600 if DISABLED else 60_000
    random = np.random.default_rng(8)
    losses = np.concatenate([random.random(n), random.random(n) + 0.2])
    theirs = check_against_river(losses)
    assert DISABLED or {name for name, row in theirs if row > n} == {"adwin", "page_hinkley"}


@pytest.mark.data
@pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set")
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_detections_on_elec2_are_rivers(loss):
    text = lzma.decompress((Path(os.environ["DUALSTREAM_DATA"]) / "elec2.xz").read_bytes())
    batch = Batch.from_libsvm(text, 6).batch[: 1500 if DISABLED else None]
    learner = make_learner({"loss": loss, "features": {"kind": "indexed", "dim": 6}})
    outcome, progress = learner.learn(batch), make_progressive(learner.spec)
    progress.count(batch, outcome)
    theirs = check_against_river(outcome.losses)
    ours = [event.rows for event in progress.drift.events() if event.detector == "adwin"]
    assert ours == [row for name, row in theirs if name == "adwin"][-len(ours) :]
    errors = ((outcome.scores >= 0) != (batch.labels > 0)).astype(float)
    check_against_river(errors)


def test_an_event_tells_row_place_and_direction():
    n = 1000
    losses = np.concatenate([np.full(n, 0.2), np.full(n, 0.9), np.full(n, 0.1)])
    learned = np.ones(2 * len(losses), bool)
    learned[1::2] = False  # rejected rows have a log position but are not counted as learned
    watch = DriftWatch()
    watch.watch(np.repeat(losses, 2), learned, 1001, 0)
    results = [event for event in watch.events() if event.detector == "adwin"]
    assert [event.rising for event in results] == [True, False]
    for event, jump in zip(results, (n, 2 * n), strict=True):
        assert jump < event.rows <= jump + 200
        assert event.seq == 1001 + 2 * (event.rows - 1)
    assert watch.counts()["adwin"] == {"rising": 1, "falling": 1}


def test_a_loss_beyond_all_measure_does_not_deafen_the_detectors():
    losses = levels(5, pieces=4)
    absurd = np.insert(losses, 50, [1e101, 1e300])
    assert watched(absurd).counts() == watched(losses).counts()


def test_only_the_last_events_are_kept():
    period = np.repeat([0.0, 1.0], 200)
    losses = np.tile(period, 2 if DISABLED else 60)
    watch = watched(losses)
    total = sum(itertools.chain(*(c.values() for c in watch.counts().values())))
    assert len(watch.events()) == min(total, EVENTS)
    assert DISABLED or total > EVENTS
    rows = [event.rows for event in watch.events()]
    assert rows == sorted(rows)


@pytest.mark.parametrize("stop", [0, 1, 5, 33, 700])
def test_restored_state_continues_without_a_difference(stop):
    losses = levels(2, pieces=3)
    stop = min(stop, len(losses))
    whole = watched(losses)
    first = watched(losses[:stop])
    again = DriftWatch.of(first.state())
    assert dump(again.state(), {}) == dump(first.state(), {})
    again.watch(losses[stop:], np.ones(len(losses) - stop, bool), stop + 1, stop)
    assert dump(again.state(), {}) == dump(whole.state(), {})


STATIONARY = ["squared", "absolute", "heavy_tails", "skewed"]


def noise(kind, seed, n):
    """Losses of a regression on a stream that does not change."""
    random = np.random.default_rng(seed)
    if kind == "squared":
        return random.standard_normal(n) ** 2
    if kind == "absolute":
        return np.abs(random.standard_normal(n))
    if kind == "heavy_tails":
        return random.standard_t(3, n) ** 2
    return random.exponential(1.0, n) ** 2


def scaled(losses):
    watch = DriftWatch(DETECTORS)
    watch.watch(losses, np.ones(len(losses), bool), 1, 0)
    return watch


def alarms(watch):
    return [sum(counts.values()) for counts in watch.counts().values()]


@pytest.mark.skipif(DISABLED, reason="too slow without compiled kernels")
@pytest.mark.parametrize("kind", STATIONARY)
def test_few_alarms_on_stationary_losses_of_any_unit(kind):
    """At most half an alarm in 20,000 rows, and the same ones in every unit."""
    result = np.zeros(2)
    for seed in range(50):
        losses = noise(kind, seed, 20_000)
        ours = alarms(scaled(losses))
        result += ours
        for exponent in range(-12, 13, 2) if seed < 10 else ():
            assert alarms(scaled(losses * 10.0**exponent)) == ours, (seed, exponent)
    assert (result / 50 <= 0.5).all(), result


@pytest.mark.skipif(DISABLED, reason="too slow without compiled kernels")
@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_both_detectors_see_losses_change_in_any_unit(factor, unit):
    losses = noise("squared", 3, 20_000) * unit
    losses[10_000:] *= factor
    first = {}
    for event in scaled(losses).events():
        first.setdefault(event.detector, event)
    assert set(first) == {"adwin", "page_hinkley"}
    for event in first.values():
        assert 10_000 < event.rows < 11_500
        assert event.rising == (factor > 1.0)


def test_one_broken_reading_does_not_change_the_scale():
    losses = noise("squared", 5, 1000 if DISABLED else 20_000)
    broken = losses.copy()
    broken[[50, 250, 800]] = 1e8
    assert alarms(scaled(broken)) == alarms(scaled(losses)) == [0, 0]


def test_restored_scaled_state_continues_without_a_difference():
    losses = levels(2, pieces=3) * 1e5
    whole = scaled(losses)
    for stop in (0, 1, 99, 101, 299, 301, len(losses) // 2):
        first = DriftWatch(DETECTORS)
        first.watch(losses[:stop], np.ones(stop, bool), 1, 0)
        again = DriftWatch.of(first.state(), DETECTORS)
        again.watch(losses[stop:], np.ones(len(losses) - stop, bool), stop + 1, stop)
        assert dump(again.state(), {}) == dump(whole.state(), {})


@pytest.mark.parametrize(
    ("task", "scaled"),
    [
        ("regression", ["adwin", "page_hinkley"]),
        ("binary", ["page_hinkley"]),
        ("multiclass", ["page_hinkley"]),
    ],
)
def test_detectors_see_losses_in_units_of_their_mean(task, scaled):
    spec = make_learner({"task": task, "features": "hashed"}).spec
    assert list(scaled_detectors(spec)) == scaled
    progress = make_progressive(spec)
    losses = np.abs(levels(1, pieces=6)) * (1e4 if task == "regression" else 1.0)
    zeros, learned = np.zeros(len(losses)), np.ones(len(losses), bool)
    if task == "multiclass":
        one = Batch.from_libsvm(b"1 1:1\n" * len(losses), 2**18).batch
        rows = Batch(one.indptr, one.indices, one.values, zeros, one.weights, 2**18, ("1",))
        first = np.zeros(len(losses), np.int64)
        progress.count(rows, Outcome(zeros, losses, learned, ~learned, first, ("1",)))
    else:
        progress.update(zeros, zeros, losses, learned)
    expected = DriftWatch(scaled)
    expected.watch(losses, learned, 1, 0)
    assert progress.drift.events() == expected.events()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drift_numbers", np.full(13, np.nan)),
        ("drift_numbers", np.full(13, 99.0)),
        ("drift_buckets", np.zeros((3, 13))),
        ("drift_counts", np.full(4, -1)),
        ("drift_events", np.zeros((70, 4), np.int64)),
    ],
)
def test_damaged_states_are_refused(name, value):
    state = watched(levels(1, pieces=2)).state()
    with pytest.raises(CorruptState):
        DriftWatch.of(state | {name: value})
