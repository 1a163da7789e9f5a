"""Boosted trees against a plain implementation that grows every tree from the raw rows."""

import math

import numpy as np
import pytest

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

    def __init__(self, task):
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
            self.trees = [*self.trees, None][-SPEC["trees"] :][:-1]
            self.base += self.step_of_base()
            self.trees.append(self.grow())

    def step_of_base(self):
        margins = np.array([self.score(x) for x, _ in self.rows])
        targets = np.array([target for _, target in self.rows])
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
        rows = [row for row, _ in self.rows]
        leaves = partition(rows, slopes, bends, SPEC["leaves"], least_gain)
        values = [
            -SPEC["step"] * slopes[rows].sum() / (bends[rows].sum() + RIDGE) for rows, _ in leaves
        ]
        return tree_of([conditions for _, conditions in leaves], values)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_scores_are_those_of_trees_grown_from_the_raw_rows(task):
    rng = np.random.default_rng(1)
    batch = waves(260, 3, task=task)
    # Few distinct values, so that no bin holds two of them.
    x = np.round(rng.normal(size=(260, 3)) * 2.0)
    z = x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=260)
    y = z if task == "regression" else np.where(z > 0.0, 1.0, -1.0)
    batch = batch.from_dense(x, y)
    learner, reference = learner_of(3, task=task, **SPEC), Reference(task)
    found = learner.learn(batch).scores
    for row in range(len(batch)):
        expected = reference.score(x[row])
        assert found[row] == pytest.approx(expected, abs=2e-4 * (1.0 + abs(expected))), row
        reference.learn(x[row], y[row])


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
