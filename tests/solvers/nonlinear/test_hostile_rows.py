"""Streams that ruin learners: constant, late and huge columns, one class, turned labels."""

import numpy as np
import pytest

from dualstream.solvers import Batch, dump
from tests.solvers.nonlinear.streams import learner_of, mistakes, waves

SPECS = {
    "boosted": {"algorithm": "boosted", "window": 2048},
    "net": {"algorithm": "net"},
    "neighbours": {"algorithm": "neighbours"},
    "splines": {"algorithm": "splines"},
    "full": {"algorithm": "portfolio", "members": "full"},
}


def dense(n, dim=6, seed=0):
    """Rows that every learner of this package learns well: a curve of one column."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    return x, np.where(np.abs(x[:, 0]) > 0.7, 1.0, -1.0)


@pytest.fixture(params=SPECS)
def spec(request):
    return SPECS[request.param]


def test_one_value_of_1e100_ruins_nothing(spec):
    x, y = dense(4000)
    x[2000, :] = 1e100
    x[2001, 0] = -1e100
    wrong = mistakes(learner_of(6, **spec), Batch.from_dense(x, y))
    assert wrong[3000:].mean() < wrong[1000:2000].mean() + 0.05 < 0.3


@pytest.mark.parametrize("label", [1e100, -1e18])
def test_neighbours_forget_a_broken_number(label):
    """Its row leaves the ring after 1,000 rows, and the mean of all labels by the next review."""
    spec = {"algorithm": "neighbours", "task": "regression"}
    x, _ = dense(3500)
    y = 3.0 + np.abs(x[:, 0])
    clean = learner_of(6, **spec).learn(Batch.from_dense(x, y)).scores
    broken, single = y.copy(), learner_of(6, **spec)
    broken[40] = label
    batch = Batch.from_dense(x, broken)
    scores = np.concatenate([single.learn(batch[i : i + 250]).scores for i in range(0, 3500, 250)])
    np.testing.assert_allclose(scores[2048:], clean[2048:], rtol=1e-9)
    whole = learner_of(6, **spec)
    whole.learn(batch)
    assert dump(whole.state(), {}) == dump(single.state(), {})


def test_turned_labels_are_learned_again(spec):
    x, y = dense(6000)
    y[3000:] *= -1.0
    wrong = mistakes(learner_of(6, **spec), Batch.from_dense(x, y))
    assert wrong[5500:].mean() < 0.3


def test_a_column_that_comes_late_is_used(spec):
    x, y = dense(14_000)
    x[:10_000, 0] = 0.0
    y[:10_000] = np.where(np.abs(x[:10_000, 1]) > 0.7, 1.0, -1.0)
    sparse = Batch.from_dense(x, y)
    piece = 1000
    wrong = mistakes(learner_of(6, **spec), sparse, piece)
    assert wrong[13_000:].mean() < (0.45 if spec["algorithm"] == "splines" else 0.3)


@pytest.mark.parametrize("rows", ["constant", "one class", "equal", "empty", "duplicates"])
def test_rows_that_say_nothing_are_scored_and_learned(spec, rows):
    x, y = dense(3000)
    if rows == "constant":
        x[:] = 3.0
    elif rows == "one class":
        y[:] = 1.0
    elif rows == "equal":
        x[:], y[:] = x[0], y[0]
    elif rows == "empty":
        x[:] = 0.0
    else:
        x, y = np.repeat(x[:100], 30, 0), np.repeat(y[:100], 30)
    learner = learner_of(6, **spec)
    out = learner.learn(Batch.from_dense(x, y))
    assert np.isfinite(out.scores).all() and np.isfinite(out.losses).all()
    again = learner_of(6, **spec)
    again.restore(learner.state())
    probe = Batch.from_dense(*dense(20, seed=1))
    assert np.array_equal(learner.learn(probe).scores, again.learn(probe).scores)
    if rows in ("one class", "equal"):
        assert (out.scores[1000:] * y[1000:] > 0.0).all()


def test_a_hundred_thousand_sparse_names_are_bounded(spec):
    rng = np.random.default_rng(0)
    n, per_row, dim = 2000, 50, 100_000
    indices = np.sort(rng.integers(1, dim, (n, per_row)), axis=1)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    keep = np.diff(indices, axis=1, prepend=-1) > 0
    indptr = np.concatenate([[0], np.cumsum(keep.sum(1) + 1)])
    flat, values = [], []
    for row in range(n):
        flat += [0, *indices[row][keep[row]]]
        values += [float(y[row]), *np.ones(int(keep[row].sum()))]
    batch = Batch(
        indptr.astype(np.int64), np.array(flat, np.int32), np.array(values), y, np.ones(n), dim
    )
    learner = learner_of(dim, **spec)
    wrong = mistakes(learner, batch)
    size = sum(array.nbytes for array in learner.state().values())
    assert size < (32 << 20 if spec["algorithm"] == "portfolio" else 4 << 20)
    if spec["algorithm"] != "neighbours":  # distances in 128 columns of noise
        assert wrong[1500:].mean() < 0.1


def test_weights_count_rows(spec):
    """A row of weight 2 moves a learner, and one of weight 0 does not."""
    batch = waves(400)
    first, second = learner_of(4, **spec), learner_of(4, **spec)
    first.learn(batch)
    heavy = Batch.from_dense(np.ones((1, 4)), [1.0], [0.0])
    second.learn(batch)
    second.learn(heavy)
    probe = waves(20, seed=3)
    assert np.array_equal(first.predict(probe), second.predict(probe))
