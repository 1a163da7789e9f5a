"""Boosted trees for classes against a plain implementation that grows trees from the raw rows."""

import numpy as np
import pytest

from dualstream.solvers.nonlinear import boosted_classes
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from tests.solvers.nonlinear.class_streams import clusters, learner_of_classes, texts_of
from tests.solvers.nonlinear.tree_reference import RIDGE, partition, tree_of

SPEC = {"algorithm": "boosted", "window": 96, "trees": 3, "renewal": 3, "step": 0.5, "leaves": 5}
TREES, RENEWAL, FIRST_TREE = 6, 6, 16


def softmax(margins):
    shares = np.exp(margins - margins.max())
    return shares / shares.sum()


class Reference:
    """The trees are functions from a row to what they add to the margins; output 0 is no class."""

    def __init__(self):
        self.rows, self.trees, self.since, self.learned, self.grown = [], [], 0, 0, 0
        self.classes, self.base = [], np.zeros(1)

    def margins(self, x):
        return self.base + sum((tree(x) for tree in self.trees), np.zeros(len(self.base)))

    def odds(self, x):
        """Log odds of the classes so far."""
        p = softmax(self.margins(x))
        return np.log(p / (1.0 - p))[1:] if len(p) > 1 else np.empty(0)

    def add_class(self, text):
        self.classes.append(text)
        self.base = np.append(self.base, self.base[0])
        self.trees = [lambda x, old=old: np.append(old(x), old(x)[0]) for old in self.trees]

    def learn(self, x, text):
        if text not in self.classes:
            self.add_class(text)
        self.rows = [*self.rows, (x, 1 + self.classes.index(text))][-SPEC["window"] :]
        self.since += 1
        self.learned += 1
        if self.learned >= FIRST_TREE and self.since * RENEWAL >= len(self.rows):
            self.since = 0
            self.grow()

    def grow(self):
        outputs = 1 + len(self.classes)
        x, target = [row for row, _ in self.rows], np.array([mine for _, mine in self.rows])
        self.trees = [*self.trees, None][-TREES:][:-1]
        self.base = np.log(np.bincount(target, minlength=outputs) + 0.5)
        p = np.array([softmax(self.margins(row)) for row in x])
        slopes = p - np.eye(outputs)[target]
        drawn = [drawn_number(0, 1024 * self.grown + c) for c in range(outputs)]
        # The Hessian of a row is diag(p) - p p'.
        bends = np.array([drawn @ (np.diag(q) - np.outer(q, q)) @ drawn for q in p])
        leaves = partition(x, slopes @ drawn, bends, SPEC["leaves"], 1e-3)
        k = len(self.classes)
        step = 2.0 / 3.0 * SPEC["step"] * max(0.5, 1.0 - 1.0 / k)
        values = [
            -step * slopes[mine].sum(axis=0) / ((p[mine] * (1.0 - p[mine])).sum(axis=0) + RIDGE)
            for mine, _ in leaves
        ]
        self.trees.append(tree_of([conditions for _, conditions in leaves], values))
        self.grown += 1


def test_log_odds_are_those_of_trees_grown_from_the_raw_rows():
    batch, x = clusters(260, 5, late=150, is_rounded=True)
    learner, reference = learner_of_classes(3, **SPEC), Reference()
    for row, text in enumerate(texts_of(batch)):
        result = learner.predict_classes(batch[row : row + 1]).scores[0]
        expected = reference.odds(x[row])
        assert result == pytest.approx(expected, abs=2e-4 * (1.0 + np.abs(expected).max(initial=0)))
        learner.learn(batch[row : row + 1])
        reference.learn(x[row], text)


def test_the_leaves_of_all_trees_are_limited():
    learner = learner_of_classes(3, algorithm="boosted", trees=1000, renewal=1000, leaves=127)
    batch, _ = clusters(300, 3)
    learner.learn(batch)
    state = learner.state()
    assert state["scorer.grown"] > 64
    assert state["scorer.vectors"].shape == (2**14 // 254, 254, 4)


def test_margins_in_the_ring_are_those_of_the_living_trees(monkeypatch):
    """Also where the ring became shorter, as classes and columns were added."""
    monkeypatch.setattr(boosted_classes, "MAX_MARGINS", 1024)
    batch, _ = clusters(900, 20, dim=9, late=300)
    learner = learner_of_classes(9, algorithm="boosted", window=200)
    learner.learn(batch[:250])
    assert learner.state()["scorer.rows_held"] == 64 and len(learner.classes) < 16
    learner.learn(batch[250:])
    state = learner.state()
    assert len(learner.classes) == 20 and state["scorer.rows_held"] == 1024 // 32
    scorer = learner._known.scorer
    kept = scorer._margins.astype(np.float64)[:, :21]
    order = np.r_[state["scorer.at"] : 32, 0 : state["scorer.at"]]
    now = learner.predict_classes(batch[-32:]).scores
    p = np.array([softmax(margins) for margins in kept[order]])
    assert np.log(p / (1.0 - p))[:, 1:] == pytest.approx(now, abs=1e-3)
