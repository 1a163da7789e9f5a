"""Late labels: rows are counted with the served scores; nothing else changes."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dualstream.solvers import Batch, make_learner, make_progressive, resolve_spec
from dualstream.solvers.evaluation.late_label_scores import AsServed, why_not_as_served
from tests.solvers.specs import SPECS, stream

CANNOT = {name for name, spec in SPECS.items() if why_not_as_served(resolve_spec(spec))}


def served(batch: Batch, scores: np.ndarray) -> Batch:
    columns = (batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, batch.dim)
    return Batch(*columns, batch.classes, scores)


def test_a_score_that_is_the_learners_own_costs_what_it_costs_there(subtests):
    for name in sorted(set(SPECS) - CANNOT):
        with subtests.test(name=name):
            spec = resolve_spec(SPECS[name])
            batch = stream(spec, 40)
            mine = make_learner(spec).learn(batch)
            got = AsServed(spec).put(served(batch, mine.scores), mine)
            assert np.array_equal(got.scores, mine.scores, equal_nan=True)
            np.testing.assert_allclose(got.losses, mine.losses, rtol=1e-9, atol=1e-12)


def test_only_models_of_dc_cannot():
    for name, spec in SPECS.items():
        assert (name in CANNOT) == (resolve_spec(spec)["algorithm"] == "dc")


CLASSES = ("a", "b", "c", "d")
OF_CLASSES = [
    {"algorithm": "dual_ascent", "loss": "logistic"},
    {"algorithm": "dual_ascent", "loss": "hinge"},
    {"algorithm": "boosted"},
    {"algorithm": "net"},
    {"algorithm": "portfolio"},
]


def rows_of_classes(n: int, classes: int) -> Batch:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 4))
    y = np.argmax(x[:, :classes], axis=1).astype(float)
    return Batch.from_dense(x).with_labels(y, CLASSES)


@pytest.mark.parametrize("options", OF_CLASSES, ids=lambda spec: "-".join(spec.values()))
def test_scores_of_classes_cost_what_they_cost_the_learner(options):
    features = {"kind": "indexed", "dim": 4}
    spec = resolve_spec({"task": "multiclass", "features": features} | options)
    learner, as_served = make_learner(spec), AsServed(spec)
    learner.learn(rows_of_classes(30, 3))
    rows, losses, outcomes = rows_of_classes(40, 4), [], []
    for at in range(40):
        row = rows[at : at + 1]
        of_row = learner.predict_classes(row)
        label, best = CLASSES[int(row.labels[0])], int(of_row.best[0])
        served_row = (of_row.scores[0], of_row.classes, best)
        losses.append(as_served.losses_of_classes(*served_row, label))
        # Of weight 0: its class is not added, and the next row is scored by the same state.
        columns = (row.indptr, row.indices, row.values, row.labels, np.zeros(1), 4, CLASSES)
        outcomes.append((label, learner.learn(Batch(*columns))))
    assert {label for label, _ in outcomes} == set(CLASSES)
    for (loss, log_loss, mistake), (label, outcome) in zip(losses, outcomes, strict=True):
        if label != "d":
            assert loss == pytest.approx(outcome.losses[0], rel=1e-9)
            assert mistake == (CLASSES.index(label) != outcome.predicted[0])
        else:
            assert mistake == 1.0
        if outcome.log_losses is not None:
            assert log_loss == pytest.approx(outcome.log_losses[0], rel=1e-9)


def test_an_unknown_class_costs_score_0_and_the_largest_log_loss():
    spec = resolve_spec(
        {"task": "multiclass", "algorithm": "dual_ascent", "loss": "logistic",
         "features": {"kind": "indexed", "dim": 4}}
    )  # fmt: skip
    scores = np.array([2.0, -1.0])
    loss, log_loss, mistake = AsServed(spec).losses_of_classes(scores, ("a", "b"), 0, "new")
    parts = [np.log1p(np.exp(2.0)), np.log1p(np.exp(-1.0)), np.log(2.0)]
    assert loss == pytest.approx(sum(parts), rel=1e-12)
    assert (log_loss, mistake) == (pytest.approx(-np.log(1e-15)), 1.0)
    none, _, mistake = AsServed(spec).losses_of_classes(np.empty(0), (), -1, "new")
    assert (none, mistake) == (pytest.approx(np.log(2.0)), 1.0)
    absurd = AsServed(spec).losses_of_classes(np.array([np.inf]), ("a",), 0, "new")
    assert np.isfinite(absurd).all()


def test_outcomes_of_classes_count_what_was_served():
    spec = resolve_spec(
        {"task": "multiclass", "algorithm": "dual_ascent", "loss": "logistic",
         "features": {"kind": "indexed", "dim": 4}}
    )  # fmt: skip
    plain = rows_of_classes(6, 3)
    scores = np.array([1.0, np.nan, 0.5, np.nan, 2.0, np.nan])
    losses = np.array([[0.1, 0.2, 0], [np.nan] * 3, [3.0, 4.0, 1], *[[np.nan] * 3] * 3])
    losses[4] = (0.3, 0.4, 0)
    columns = (plain.indptr, plain.indices, plain.values, plain.labels, plain.weights, 4, CLASSES)
    batch = Batch(*columns, scores, losses)
    joined = Batch.concat([plain[:0], batch[:3], batch[3:].take([0, 1, 2])])
    assert np.array_equal(joined.served_parts, losses, equal_nan=True)
    mixed = Batch.concat([plain[:2], batch[2:]])
    assert np.isnan(mixed.served_parts[:2]).all()
    mine = make_learner(spec).learn(plain)
    got = AsServed(spec).put(batch, mine)
    was_served = np.isfinite(scores)
    assert np.array_equal(got.losses[was_served], losses[was_served, 0])
    assert np.array_equal(got.log_losses[was_served], losses[was_served, 1])
    assert np.array_equal(got.losses[~was_served], mine.losses[~was_served])
    right = [CLASSES[int(plain.labels[0])], CLASSES[int(plain.labels[4])]]
    assert [got.classes[index] for index in got.predicted[[0, 4]]] == right
    assert got.predicted[2] == -1
    whole, parts = make_progressive(spec), make_progressive(spec)
    whole.count(batch, got)
    for at in range(6):
        piece = batch[at : at + 1]
        parts.count(piece, AsServed(spec).put(piece, mine[at : at + 1]))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(whole.state().values(), parts.state().values(), strict=True)
    )


def test_what_was_served_stays_with_its_rows_and_does_not_reach_the_step():
    spec = resolve_spec({"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 3}})
    rng = np.random.default_rng(1)
    plain = Batch.from_dense(rng.normal(size=(9, 3)), np.where(rng.random(9) < 0.5, 1.0, -1.0))
    scores = np.array([1.0, np.nan, -2.0, 0.0, np.nan, 3.0, -1.0, np.inf, 0.5])
    batch = served(plain, scores)
    cut = Batch.concat([plain[:0], batch[:2], batch[2:4].take([0, 1]), batch[4:]])
    assert np.array_equal(cut.served, scores, equal_nan=True)
    mixed = Batch.concat([plain[:2], batch[2:]])
    assert np.isnan(mixed.served[:2]).all() and np.array_equal(
        mixed.served[2:], scores[2:], equal_nan=True
    )
    one, other = make_learner(spec), make_learner(spec)
    mine, late = one.learn(plain), other.learn(batch)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(one.state().values(), other.state().values(), strict=True)
    )
    got = AsServed(spec).put(batch, late)
    previous = np.isfinite(scores)
    assert np.array_equal(got.scores[previous], scores[previous])
    assert np.array_equal(got.scores[~previous], mine.scores[~previous])
    expected = np.log1p(np.exp(-plain.labels[previous] * scores[previous]))
    np.testing.assert_allclose(got.losses[previous], expected, rtol=1e-12)
    assert AsServed(spec).put(plain, mine) is mine
    # The metrics have the same bits for every split into batches.
    whole, parts = make_progressive(spec), make_progressive(spec)
    whole.count(batch, got)
    for at in range(len(batch)):
        piece = batch[at : at + 1]
        parts.count(piece, AsServed(spec).put(piece, mine[at : at + 1]))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(whole.state().values(), parts.state().values(), strict=True)
    )
    ranked = roc_auc_score(plain.labels, got.scores)
    assert whole.summary()["rolling"]["auc"] == pytest.approx(ranked)
    assert ranked != roc_auc_score(plain.labels, mine.scores)


def test_an_absurd_score_stays_a_number():
    spec = resolve_spec(
        {"task": "regression", "algorithm": "sgd", "features": {"kind": "indexed", "dim": 1}}
    )
    batch = Batch.from_dense(np.ones((1, 1)), np.ones(1))
    out = make_learner(spec).learn(batch)
    got = AsServed(spec).put(served(batch, np.array([1e300])), out)
    assert np.isfinite(got.losses).all()
