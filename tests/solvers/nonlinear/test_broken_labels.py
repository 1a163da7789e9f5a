"""Broken labels of regression after the first rows: they do little harm, and steps still pass."""

import math
from functools import cache

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, dump, make_learner, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.nonlinear import net_kernels, splines_kernels

N, DIM = 3000, 5
SPECS = {
    "full": {"members": "full"},
    "fast": {"members": "fast"},
    "boosted": {"algorithm": "boosted"},
    "net": {"algorithm": "net"},
    "neighbours": {"algorithm": "neighbours"},
    "splines": {"algorithm": "splines"},
}
COMPILED = pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")


def learner_of(name):
    spec = {"task": "regression", "features": {"kind": "indexed", "dim": DIM}}
    return make_learner(resolve_spec(spec | SPECS[name]))


@cache
def table(n=N, bend=2.0):
    rng = np.random.default_rng(0)
    x = 3.0 * rng.normal(size=(n, DIM)) + 1.0
    y = x @ [1.0, -2.0, 0.5, 1.0, 0.0] + bend * np.abs(x[:, 0]) + 0.5 * rng.normal(size=n)
    return x, y


def errors(name, x, y, truth=None):
    scores = learner_of(name).learn(Batch.from_dense(x, y)).scores
    return np.abs(scores - (y if truth is None else truth))


@cache
def unbroken(name, level):
    x, y = table()
    return float(errors(name, x, y + level)[1000:].mean())


@COMPILED
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("row", "label", "level"),
    [(33, 1e6, 0.0), (60, -1e100, 0.0), (100, 1e100, 1000.0), (300, -1e6, 0.0)],
)
def test_one_broken_label_does_little_harm(name, row, label, level):
    x, truth = table()
    y = truth + level
    y[row] = label
    result = float(errors(name, x, y, truth + level)[1000:].mean())
    assert result < (1.2 if name == "boosted" else 1.1) * unbroken(name, level)


@COMPILED
@pytest.mark.parametrize("bend", [0.0, 2.0])
def test_a_step_of_the_labels_passes_as_before(bend):
    """1,000 times the noise; the first hundred rows after it may have errors."""
    x, y = table(5200, bend)
    stepped = y.copy()
    stepped[5000:] += 500.0
    result = errors("full", x, stepped)
    assert result[5100:].mean() < 10.0 * result[4000:5000].mean()


def spread_of(name, state, score):
    """What a target is compared with, and the unit of the distance, by a learner's state."""
    if name == "net":
        numbers = state["numbers"]
        return numbers[net_kernels.MEAN], math.sqrt(numbers[net_kernels.SPREAD])
    if name == "splines":
        return score, math.sqrt(state["numbers"][splines_kernels.MEAN_SQUARE])
    if name == "neighbours":
        return score, math.sqrt(state["mean"][2])
    return score, math.sqrt(state["mean_square"])


@pytest.mark.parametrize("name", ["boosted", "net", "neighbours", "splines"])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_far_label_is_learned_as_the_limit(name, sign):
    x, y = table()
    rows = Batch.from_dense(x[:401], y[:401])
    first = learner_of(name)
    first.learn(rows[:400])
    state, row = first.state(), rows[400:]
    middle, unit = spread_of(name, state, first.predict(row)[0])
    far = 15.0 if name == "net" else 10.0
    limit = middle + sign * far * unit
    after = []
    for label in (limit, sign * 1e9, limit - 0.1 * sign):
        learner = learner_of(name)
        learner.restore(state)
        learner.learn(row.with_labels(np.array([label])))
        after.append(dump(learner.state(), {}))
    assert after[0] == after[1] != after[2]


def test_neighbours_keep_the_mean_square_of_their_errors():
    """By the definition, over rows of which two are limited."""
    x, y = table()
    y = y[:300].copy()
    y[[50, 200]] = 1e9, -1e12
    learner = learner_of("neighbours")
    scores = learner.learn(Batch.from_dense(x[:300], y)).scores
    square = 0.0
    for n in range(1, 300):
        error = y[n] - scores[n]
        if square > 0.0:
            error = min(max(error, -10.0 * math.sqrt(square)), 10.0 * math.sqrt(square))
        assert learner.state()["about"][0, n] == pytest.approx(scores[n] + error, rel=1e-9)
        square += max(1.0 / n, 0.01) * (error * error - square)
    assert learner.state()["mean"][2] == pytest.approx(square, rel=1e-9)
    damaged = learner.state()
    damaged["mean"][2] = -1.0
    with pytest.raises(CorruptState):
        learner.restore(damaged)


def test_splines_follow_a_level_from_the_second_row():
    x, y = table()
    x, y = x[:500], y[:500]
    scores, raised = (
        learner_of("splines").learn(Batch.from_dense(x, y + level)).scores for level in (0.0, 1e6)
    )
    assert scores[0] == raised[0] == 0.0
    assert scores[1] == y[0]
    np.testing.assert_allclose(raised[1:] - 1e6, scores[1:], atol=1e-6)
