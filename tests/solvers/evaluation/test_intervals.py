"""Adaptive conformal inference: thresholds by brute force, the bound on coverage, sets, states."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualstream.solvers import Batch, CorruptState, InvalidSpec, Outcome, make_learner, resolve_spec
from dualstream.solvers.evaluation.intervals import kernels
from dualstream.solvers.evaluation.intervals.calibration import Calibration, losses_of
from dualstream.solvers.evaluation.late_label_scores import AsServed

NO_FLAGS, NOTHING_SERVED = np.empty(0, np.bool_), np.empty((0, 0))
LEVELS = (0.8, 0.9, 0.95)
STEP, WINDOW, MIN_RESIDUALS = 0.01, 1000, 20
INDEXED = {"kind": "indexed", "dim": 3}


def outcome_of(scores, rejected=None, relearned=0) -> Outcome:
    n = len(scores)
    flags = np.zeros(n, np.bool_) if rejected is None else rejected
    numbers = np.asarray(scores, np.float64)
    return Outcome(numbers, np.zeros(n), np.ones(n, np.bool_), flags, relearned=relearned)


def batch_of(labels, weights=None) -> Batch:
    n = len(labels)
    return Batch.from_dense(np.ones((n, 1)), np.asarray(labels, np.float64), weights)


def learn(calibration, scores, labels, weights=None, rejected=None, waited=NO_FLAGS, served=None):
    served = NOTHING_SERVED if served is None else np.array(served, np.float64)
    outcome = outcome_of(scores, rejected)
    calibration.learn(batch_of(labels, weights), outcome, np.asarray(waited, np.bool_), served)


def same_state(one, other) -> bool:
    a, b = one.state(), other.state()
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def by_hand(residuals, level):
    """Threshold of each row and a at the end, by sorting the last residuals at each row."""
    thresholds, a = [], 1.0 - level
    for t, residual in enumerate(residuals):
        window = np.sort(residuals[max(0, t - WINDOW) : t])
        n_residuals = len(window)
        if n_residuals < MIN_RESIDUALS:
            thresholds.append(math.nan)
            continue
        if a <= 0:
            q = math.inf
        elif a >= 1:
            q = -math.inf
        else:
            q = window[min(math.ceil((n_residuals + 1) * (1.0 - a)), n_residuals) - 1]
        thresholds.append(q)
        a += STEP * (1.0 - level - (residual > q))
    return np.array(thresholds), a


@pytest.mark.parametrize("level", [0.05, 0.5, 0.8, 0.9, 0.95, 0.999])
def test_thresholds_are_quantiles_of_the_last_residuals(level):
    rng = np.random.default_rng(1)
    labels = rng.standard_t(2, 3000) * np.linspace(1, 4, 3000)
    labels[500:700] = np.round(labels[500:700])  # ties
    labels[700:900] = 0.0
    expected, a = by_hand(np.abs(labels), level)
    calibration = Calibration("regression", [level])
    for row, (label, threshold) in enumerate(zip(labels, expected, strict=True)):
        if row % 7 == 0:
            np.testing.assert_array_equal(calibration.thresholds(), [threshold])
        learn(calibration, [0.0], [label])
    [figures] = calibration.figures()
    judged = ~np.isnan(expected)
    covered = (np.abs(labels) <= expected) | (labels == 0.0)
    open_ = np.isposinf(expected)
    assert calibration.misses.tolist() == [a]
    assert figures.rows == judged.sum() == 2980
    assert figures.covered == covered[judged].sum()
    assert figures.coverage == covered[judged].mean()
    assert figures.recent_coverage == covered[-WINDOW:].mean()
    assert figures.unbounded == open_.sum()
    widths = 2 * np.maximum(expected[judged & ~open_], 0)
    assert figures.mean_size == pytest.approx(widths.mean())


ADVERSARIAL = {
    "doubling": 2.0 ** np.minimum(np.arange(4000), 330),
    "doubling again": 2.0 ** (np.arange(4000) % 330),
    "halving": 0.5 ** np.minimum(np.arange(4000), 900),
    "constant": np.ones(4000),
    "zero": np.zeros(4000),
    "alternating": np.arange(4000) % 2.0,
    "jumps": np.where(np.arange(4000) // 500 % 2, 1e6, 1.0) * (1 + np.arange(4000) % 3),
}


def deviation(calibration: Calibration, level: float) -> float:
    """How far the share of residuals within their thresholds is from the level.

    Each row moves a by STEP (1 - level - missed), so a says how many rows were missed.
    """
    [figures] = calibration.figures()
    moved = (calibration.misses[0] - (1.0 - level)) / STEP
    return abs(moved) / figures.rows


def bound(level: float, rows: int) -> float:
    return (max(level, 1.0 - level) + STEP) / (STEP * rows)


@pytest.mark.parametrize("level", [0.5, *LEVELS, 0.99])
@pytest.mark.parametrize("residuals", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_coverage_of_adversarial_residuals_is_within_the_bound(residuals, level):
    calibration = Calibration("regression", [level])
    learn(calibration, np.zeros(len(residuals)), residuals)
    [figures] = calibration.figures()
    thresholds, _ = by_hand(np.minimum(residuals, 1e290), level)
    hits = np.mean(residuals[MIN_RESIDUALS:] <= thresholds[MIN_RESIDUALS:])
    assert abs(hits - level) <= bound(level, figures.rows) + 1e-9
    assert deviation(calibration, level) == pytest.approx(abs(hits - level), abs=1e-9)
    assert figures.coverage >= level - bound(level, figures.rows) - 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e90, 1e90), min_size=21, max_size=300),
    st.sampled_from([0.1, 0.5, 0.9, 0.99]),
    st.integers(1, 12),
)
def test_coverage_of_any_labels_is_within_the_bound(labels, level, repeats):
    labels = np.tile(labels, repeats)
    calibration = Calibration("regression", [level])
    learn(calibration, np.zeros(len(labels)), labels)
    [figures] = calibration.figures()
    assert deviation(calibration, level) <= bound(level, figures.rows) + 1e-9
    assert -STEP <= calibration.misses[0] <= 1.0 + STEP


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2300), st.lists(st.integers(1, 400), min_size=1))
def test_batches_equal_rows_and_restored_states_go_on(seed, rows, pieces):
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(2, rows))
    labels[rng.random(rows) < 0.3] = 1.5
    weights = np.where(rng.random(rows) < 0.1, 0.0, 2.0)
    rejected = rng.random(rows) < 0.05
    waited = rng.random(rows) < 0.3
    served = rng.normal(1.0, 0.5, size=(rows, 6))
    served[rng.random(rows) < 0.2] = np.nan
    whole, other = Calibration("regression", LEVELS), Calibration("regression", LEVELS)
    learn(whole, scores, labels, weights, rejected, waited, served)
    done = 0
    while done < rows:
        end = done + pieces[done % len(pieces)]
        columns = (scores, labels, weights, rejected, waited, served)
        learn(other, *(column[done:end] for column in columns))
        fresh = Calibration("regression", LEVELS)
        fresh.restore(other.state())
        other, done = fresh, end
    assert same_state(whole, other)
    assert whole.thresholds().tobytes() == other.thresholds().tobytes()


def test_rows_that_do_not_count():
    calibration, other = Calibration("regression", [0.9]), Calibration("regression", [0.9])
    labels = np.arange(40.0)
    weights, rejected = np.ones(40), np.zeros(40, np.bool_)
    weights[5], rejected[6] = 0.0, True
    scores = np.zeros(40)
    scores[6] = np.nan
    learn(calibration, scores, labels, weights, rejected)
    learn(other, np.zeros(38), np.delete(labels, [5, 6]))
    assert same_state(calibration, other) and calibration.figures()[0].rows == 18


def test_late_rows_are_judged_by_what_they_were_served():
    calibration = Calibration("regression", [0.5, 0.9])
    learn(calibration, np.zeros(30), np.arange(30.0))
    before = calibration.misses
    rows = [a.rows for a in calibration.figures()]
    # Within neither, within the second, without an interval, unbounded in the second.
    served = [[1, 2, 3, 6], [1, 2, 30, 60], [math.nan] * 4, [0, 0, math.inf, 0]]
    learn(calibration, np.zeros(4), [20.0] * 4, waited=np.ones(4, np.bool_), served=served)
    moved = (calibration.misses - before) / STEP
    np.testing.assert_allclose(moved, [3 * (0.5 - 1), 3 * 0.1 - 1], atol=1e-9)
    figures = calibration.figures()
    assert [one.rows - n for one, n in zip(figures, rows, strict=True)] == [3, 3]
    assert [one.unbounded for one in figures] == [0, 1]
    assert calibration.state()["counts"].tolist() == [34, 13]


def test_a_learner_that_starts_again_takes_the_calibration_along():
    calibration, other = Calibration("regression", [0.9]), Calibration("regression", [0.9])
    learn(calibration, np.zeros(30), np.full(30, 1e9))
    labels = np.arange(30.0)
    calibration.learn(
        batch_of(labels), outcome_of(np.zeros(30), relearned=4), NO_FLAGS, NOTHING_SERVED
    )
    learn(other, np.zeros(26), labels[4:])
    assert same_state(calibration, other)


def test_sets_of_two_classes_have_the_order_of_probabilities():
    """The margin of the label has the order of the probability of the other class."""
    rng = np.random.default_rng(3)
    scores = rng.normal(0.3, 2.0, 3000)
    labels = np.where(rng.random(3000) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    residuals = 1 / (1 + np.exp(labels * scores))  # 1 - p(label)
    expected, a = by_hand(residuals, 0.9)
    calibration = Calibration("binary", [0.9])
    learn(calibration, scores, labels)
    [figures] = calibration.figures()
    judged = slice(MIN_RESIDUALS, None)
    is_right = (scores >= 0) == (labels > 0)
    covered = (residuals <= expected) | is_right
    sizes = 1 + (1 - np.minimum(residuals, 1 - residuals) <= expected)
    is_open = np.isposinf(expected[judged])
    assert calibration.misses.tolist() == [a]
    assert figures.covered == covered[judged].sum()
    assert figures.mean_size == pytest.approx(sizes[judged][~is_open].mean())
    assert 0.9 <= figures.coverage < 0.95


def test_easy_classes_are_covered_by_the_predicted_class():
    calibration = Calibration("binary", [0.8])
    rng = np.random.default_rng(4)
    labels = np.where(rng.random(3000) < 0.5, 1.0, -1.0)
    scores = np.where(rng.random(3000) < 0.97, labels, -labels) * rng.random(3000)
    learn(calibration, scores, labels)
    [figures] = calibration.figures()
    assert figures.coverage > 0.96 and figures.mean_size == pytest.approx(1.0, abs=0.02)
    assert deviation(calibration, 0.8) <= bound(0.8, figures.rows)


CLASS_SPECS = {
    "logistic": {"algorithm": "dual_ascent", "loss": "logistic"},
    "hinge": {"algorithm": "dual_ascent", "loss": "hinge"},
    "scaled": {"algorithm": "sgd", "loss": "logistic", "scaling": "balanced"},
    "neighbours": {"algorithm": "neighbours"},
    "portfolio": {},
}


@pytest.mark.parametrize("spec", CLASS_SPECS.values(), ids=CLASS_SPECS)
def test_losses_of_all_classes_are_those_of_predictions(spec):
    whole = {"task": "multiclass", "features": INDEXED, "intervals": {"coverage": 0.9}} | spec
    learner, plain = (make_learner(resolve_spec(one)) for one in (whole, without(whole)))
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 3))
    texts = [f'"{"abc"[k]}"' for k in (x[:, 0] > 0) + 1 * (x[:, 1] > 1.0)]
    for row in range(120):
        one = Batch.from_dense(x[row : row + 1]).with_labels([0.0], (texts[row],))
        scored = learner.predict_classes(one)
        outcome, other = learner.learn(one), plain.learn(one)
        assert outcome.losses.tobytes() == other.losses.tobytes() and other.class_losses is None
        losses = losses_of(scored)
        n_classes = len(scored.classes)
        assert outcome.class_losses[:, :n_classes].tobytes() == losses.tobytes()
        assert np.isnan(outcome.class_losses[:, n_classes:]).all()
        if scored.probabilities is not None and n_classes:
            np.testing.assert_allclose(np.exp(-losses), scored.probabilities, rtol=1e-9)
            label_loss = scored.classes.index(texts[row]) if texts[row] in scored.classes else None
            if label_loss is not None:
                np.testing.assert_allclose(losses[0, label_loss], outcome.log_losses[0], rtol=1e-12)


def without(spec):
    return {name: value for name, value in spec.items() if name != "intervals"}


def test_outcomes_of_classes_are_cut_and_joined():
    spec = {"task": "multiclass", "features": INDEXED, "intervals": {"coverage": 0.9}}
    learner = make_learner(resolve_spec(spec | {"algorithm": "sgd", "loss": "logistic"}))
    rows = Batch.from_dense(np.eye(3)).with_labels([0.0, 1.0, 0.0], ('"a"', '"b"'))
    outcome = learner.learn(rows)
    assert outcome.class_losses.shape == (3, 2)
    assert np.isnan(outcome.class_losses[:2]).tolist() == [[True, True], [False, True]]
    assert outcome[1:].class_losses.tobytes() == outcome.class_losses[1:].tobytes()
    joined = Outcome.joined([outcome[:1], outcome[1:]])
    assert joined.class_losses.tobytes() == outcome.class_losses.tobytes()
    assert np.isnan(Outcome.of_rows_set_aside(outcome, 2).class_losses).all()


def test_sets_of_classes_are_counted_by_hand():
    rng = np.random.default_rng(6)
    n, k = 1500, 4
    losses = -np.log(rng.dirichlet(np.ones(k), n))
    labels = np.array([rng.choice(k, p=np.exp(-row)) for row in losses], np.float64)
    best = losses.argmin(axis=1)
    losses[7] = np.nan  # no class was known
    label_loss = np.nan_to_num(losses[np.arange(n), labels.astype(int)], nan=1e290)
    expected, a = by_hand(label_loss, 0.9)
    outcome = outcome_of(np.zeros(n))
    outcome.predicted, outcome.class_losses = best, losses
    outcome.classes = names = tuple(f'"{name}"' for name in "abcd")
    calibration = Calibration("multiclass", [0.9])
    batch = Batch.from_dense(np.ones((n, 1))).with_labels(labels, names)
    calibration.learn(batch, outcome, NO_FLAGS, NOTHING_SERVED)
    [figures] = calibration.figures()
    judged = slice(MIN_RESIDUALS, None)
    covered = (label_loss <= expected) | (best == labels)
    sizes = np.maximum((losses <= expected[:, None]).sum(axis=1), 1)
    assert calibration.misses.tolist() == [a]
    assert figures.covered == covered[judged].sum()
    assert figures.mean_size == pytest.approx(sizes[judged].mean())
    assert abs(figures.coverage - 0.9) < 0.02


def test_late_classes_have_the_loss_of_their_prediction():
    spec = resolve_spec({"task": "multiclass", "features": INDEXED, "algorithm": "sgd"})
    outcome = outcome_of(np.zeros(2))
    outcome.classes, outcome.predicted = ('"a"', '"b"'), np.array([0, 1])
    outcome.class_losses = np.array([[0.1, 2.0], [0.3, 1.0]])
    batch = Batch.from_dense(np.ones((2, 1))).with_labels([0.0, 1.0], ('"a"', '"b"'))
    parts = np.array([[1.0, 0.7, 0.0], [np.nan] * 3])
    served = Batch.of_checked(
        batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, 1, batch.classes,
        np.array([0.5, np.nan]), parts,
    )  # fmt: skip
    put = AsServed(spec).put(served, outcome)
    assert put.class_losses.tolist() == [[0.7, 2.0], [0.3, 1.0]]
    assert outcome.class_losses[0, 0] == 0.1


def test_damaged_states_are_refused():
    calibration = Calibration("regression", LEVELS)
    learn(calibration, np.zeros(50), np.arange(50.0))
    state = calibration.state()
    for name, array in {
        "counts": np.array([10, 20]),
        "residuals": np.zeros(49),
        "misses": np.array([0.1, 0.2, np.nan]),
        "recent": np.zeros((2, 3), np.uint8),
        "sizes": np.zeros(2),
    }.items():
        with pytest.raises(CorruptState):
            Calibration("regression", LEVELS).restore(state | {name: array})
    with pytest.raises(CorruptState, match="no totals"):
        Calibration("regression", LEVELS).restore(
            {name: one for name, one in state.items() if name != "totals"}
        )
    assert Calibration("regression", LEVELS).state() == {}


GOOD = {0.9: 0.9, (0.8, 0.95): [0.8, 0.95], (0.5,): [0.5]}


def test_levels_of_a_specification():
    for coverage, read in GOOD.items():
        wanted = list(coverage) if isinstance(coverage, tuple) else coverage
        for spec in ({}, {"algorithm": "dual_ascent", "task": "multiclass"}):
            resolved = resolve_spec(spec | {"features": INDEXED, "intervals": {"coverage": wanted}})
            assert resolved["intervals"] == {"coverage": read}
            assert resolve_spec(resolved) == resolved
            assert resolved["algorithm"] == spec.get("algorithm", "portfolio")
    resolved = resolve_spec({"features": INDEXED, "intervals": None})
    assert "intervals" not in resolved


BAD = [
    (0.9, "/intervals"),
    ({}, "/intervals/coverage"),
    ({"coverage": None}, "/intervals/coverage"),
    ({"coverage": True}, "/intervals/coverage"),
    ({"coverage": "0.9"}, "/intervals/coverage"),
    ({"coverage": 0}, "/intervals/coverage"),
    ({"coverage": 1}, "/intervals/coverage"),
    ({"coverage": -0.1}, "/intervals/coverage"),
    ({"coverage": 90}, "/intervals/coverage"),
    ({"coverage": math.nan}, "/intervals/coverage"),
    ({"coverage": []}, "/intervals/coverage"),
    ({"coverage": [0.5, 1.0]}, "/intervals/coverage/1"),
    ({"coverage": [0.5, "a"]}, "/intervals/coverage/1"),
    ({"coverage": [0.9, 0.8, 0.9]}, "/intervals/coverage"),
    ({"coverage": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "/intervals/coverage"),
    ({"coverage": 0.9, "window": 5}, "/intervals/window"),
]


def test_wrong_levels_are_refused(subtests):
    for wrong, pointer in BAD:
        with subtests.test(wrong), pytest.raises(InvalidSpec) as error:
            resolve_spec({"features": INDEXED, "intervals": wrong})
        assert error.value.field == pointer
    member = {"name": "a", "algorithm": "sgd", "intervals": {"coverage": 0.9}}
    with pytest.raises(InvalidSpec):
        resolve_spec({"features": INDEXED, "members": [member]})


def test_constants_are_those_of_the_documents():
    assert (kernels.STEP, kernels.WINDOW, kernels.MIN_RESIDUALS) == (STEP, WINDOW, MIN_RESIDUALS)
