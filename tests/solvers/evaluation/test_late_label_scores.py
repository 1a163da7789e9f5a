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


def test_only_models_of_classes_and_dc_cannot():
    for name, spec in SPECS.items():
        resolved = resolve_spec(spec)
        cannot = resolved["task"] == "multiclass" or resolved["algorithm"] == "dc"
        assert (name in CANNOT) == cannot


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
