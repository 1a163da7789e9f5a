"""Boosted trees against a plain implementation that grows every tree from the raw rows."""

import math

import numpy as np
import pytest

from dualstream.solvers.nonlinear import boosted_kernels as kernels
from tests.solvers.nonlinear.streams import learner_of, mistakes, waves
from tests.solvers.nonlinear.tree_reference import RIDGE, partition, tree_of

SPEC = {"algorithm": "boosted", "window": 96, "trees": 4, "renewal": 6, "step": 0.5, "leaves": 5}
FIRST_TREE = 16


def sigmoid(z):
    return 1.0 / (1.0 + math.exp(-z))


class Reference:
    """A tree is a list of (condition of its leaf, value); the ring is a list of rows, newest last.

    Bins are not modelled: with at most 32 distinct values a column every split is possible.
    """

    def __init__(self, task, loss="squared"):
        self.loss = loss
        self.task, self.rows, self.trees, self.since, self.learned = task, [], [], 0, 0
        self.base = 0.0

    def score(self, x):
        return self.base + sum(tree(x) for tree in self.trees)

    def learn(self, x, y):
        target = (1.0 if y > 0 else 0.0) if self.task == "binary" else y
        self.rows = [*self.rows, (x, target)][-SPEC["window"] :]
        self.since += 1
        self.learned += 1
        if self.learned >= FIRST_TREE and self.since * SPEC["renewal"] >= len(self.rows):
            self.since = 0
            if not self.trees:
                total = sum(t for _, t in self.rows)
                n = len(self.rows)
                self.base = total / n
                if self.task == "binary":
                    self.base = math.log((total + 0.5) / (n - total + 0.5))
                if self.loss == "absolute":
                    self.base = np.median([t for _, t in self.rows])
            self.trees = [*self.trees, None][-SPEC["trees"] :][:-1]
            self.base += self.step_of_base()
            self.trees.append(self.grow())

    def step_of_base(self):
        margins = np.array([self.score(x) for x, _ in self.rows])
        targets = np.array([target for _, target in self.rows])
        if self.loss == "absolute":
            return np.median(targets - margins)
        if self.task == "regression":
            return float((targets - margins).mean())
        p = 1.0 / (1.0 + np.exp(-margins))
        return float(np.clip((targets - p).sum() / (p * (1.0 - p)).sum(), -1.0, 1.0))

    def grow(self):
        slopes, bends = [], []
        for x, target in self.rows:
            m = self.score(x)
            p = sigmoid(m)
            slopes.append(p - target if self.task == "binary" else m - target)
            bends.append(p * (1.0 - p) if self.task == "binary" else 1.0)
        slopes, bends = np.array(slopes), np.array(bends)
        least_gain = 1e-3 if self.task == "binary" else 1e-12
        if self.loss == "absolute":
            errors = -slopes
            most = 4.0 * np.median(abs(errors))
            slopes = -np.clip(errors, -most, most)
        rows = [row for row, _ in self.rows]
        leaves = partition(rows, slopes, bends, SPEC["leaves"], least_gain)
        values = [
            -SPEC["step"] * slopes[rows].sum() / (bends[rows].sum() + RIDGE) for rows, _ in leaves
        ]
        if self.loss == "absolute":
            values = [SPEC["step"] * np.median(errors[rows]) for rows, _ in leaves]
        return tree_of([conditions for _, conditions in leaves], values)


@pytest.mark.parametrize(
    ("task", "loss"),
    [("binary", "logistic"), ("regression", "squared"), ("regression", "absolute")],
)
def test_scores_are_those_of_trees_grown_from_the_raw_rows(task, loss):
    rng = np.random.default_rng(1)
    batch = waves(260, 3, task=task)
    # Few distinct values, so that no bin holds two of them.
    x = np.round(rng.normal(size=(260, 3)) * 2.0)
    z = x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=260)
    y = z if task == "regression" else np.where(z > 0.0, 1.0, -1.0)
    batch = batch.from_dense(x, y)
    fields = {"loss": loss} if task == "regression" else {}
    learner, reference = learner_of(3, task=task, **SPEC, **fields), Reference(task, loss)
    result = learner.learn(batch).scores
    for row in range(len(batch)):
        expected = reference.score(x[row])
        assert result[row] == pytest.approx(expected, abs=2e-4 * (1.0 + abs(expected))), row
        reference.learn(x[row], y[row])


@pytest.mark.parametrize("scale", [1e-310, 1.0, 1e90])
def test_medians_are_those_of_rows_repeated_by_their_weights(scale):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 200):
        values = scale * rng.normal(size=n)
        values[rng.random(n) < 0.3] = rng.choice([0.0, -0.0, scale])
        weights = rng.integers(1, 5, n).astype(np.float64)
        rows = rng.permutation(n).astype(np.int32)
        # Rows outside of the range, of which one is the least of all, do not count.
        order = np.concatenate([[n], rows, [n]]).astype(np.int32)
        values, weights = np.append(values, -1e99), np.append(weights, 1e6)
        result = kernels.median_of(values, weights, order, 1, n + 1)
        assert result == np.median(np.repeat(values[:n], weights[:n].astype(int)))
        assert sorted(order[1:-1]) == list(range(n)) and order[0] == order[-1] == n


def test_wild_targets_do_less_damage_to_medians():
    batch = waves(3000, task="regression")
    rng = np.random.default_rng(0)
    wild = batch.labels + 2.0 * rng.standard_t(1.2, len(batch))
    errors = {}
    for loss in ("squared", "absolute"):
        learner = learner_of(4, algorithm="boosted", task="regression", loss=loss)
        outcome = learner.learn(batch.with_labels(wild))
        errors[loss] = np.abs(outcome.scores - batch.labels)[1000:].mean()
        of_row = np.abs(outcome.scores - wild)
        np.testing.assert_array_equal(
            outcome.losses, of_row if loss == "absolute" else 0.5 * (wild - outcome.scores) ** 2
        )
    assert errors["absolute"] < 0.6 * errors["squared"]


def test_targets_that_are_mostly_equal_are_learned():
    x = np.random.default_rng(0).normal(size=(1500, 3))
    y = np.where(x[:, 0] > 1.0, 5.0, 0.0)
    learner = learner_of(3, algorithm="boosted", task="regression", loss="absolute")
    scores = learner.learn(type(waves(1)).from_dense(x, y)).scores
    assert np.abs(scores - y)[1000:].mean() < 0.3 * y.mean()


def test_what_no_linear_model_learns_is_learned():
    batch = waves(6000)
    rate = mistakes(learner_of(4, algorithm="boosted"), batch)[3000:].mean()
    assert rate < 0.12
    assert mistakes(learner_of(4, algorithm="dual_ascent"), batch)[3000:].mean() > 0.4


def test_the_ring_is_shorter_where_rows_are_wide():
    learner = learner_of(200, algorithm="boosted", window=20_480)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 200))
    learner.learn(type(waves(1)).from_dense(x, np.sign(x[:, 3])))
    state = learner.state()
    assert state["rows"].shape == (2**19 // 128, 4 * 128)
    assert sum(array.nbytes for array in state.values()) < 4 << 20
    tree = state["feature"]
    used = {int(feature) for feature in np.unique(tree) if feature >= 0}
    assert 3 in used
