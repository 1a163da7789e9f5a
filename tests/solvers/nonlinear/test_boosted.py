"""Boosted trees against a plain implementation that grows every tree from the raw rows."""

import math
from itertools import pairwise

import numpy as np
import pytest

from dualstream.solvers.nonlinear import boosted_kernels as kernels, boosted_ring, growth_kernels
from dualstream.solvers.nonlinear.spec import CELLS
from tests.solvers.nonlinear.streams import learner_of, mistakes, waves
from tests.solvers.nonlinear.tree_reference import RIDGE, partition, tree_of, unit_of

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

    def learn(self, x, y, weight):
        target = (1.0 if y > 0 else 0.0) if self.task == "binary" else y
        self.rows = [*self.rows, (x, target, weight)][-SPEC["window"] :]
        self.since += 1
        self.learned += 1
        if self.learned >= FIRST_TREE and self.since * SPEC["renewal"] >= len(self.rows):
            self.since = 0
            if not self.trees:
                _, targets, weights = map(np.array, zip(*self.rows, strict=True))
                total, n, half = targets @ weights, weights.sum(), 0.5 * unit_of(weights)
                self.base = total / n
                if self.task == "binary":
                    self.base = math.log((total + half) / (n - total + half))
                if self.loss == "absolute":
                    self.base = np.median(np.repeat(targets, weights.astype(int)))
            self.trees = [*self.trees, None][-SPEC["trees"] :][:-1]
            self.base += self.step_of_base()
            self.trees.append(self.grow())

    def step_of_base(self):
        margins = np.array([self.score(x) for x, _, _ in self.rows])
        _, targets, weights = map(np.array, zip(*self.rows, strict=True))
        if self.loss == "absolute":
            return np.median(np.repeat(targets - margins, weights.astype(int)))
        if self.task == "regression":
            return float(np.average(targets - margins, weights=weights))
        p = 1.0 / (1.0 + np.exp(-margins))
        return float(np.clip(weights @ (targets - p) / (weights @ (p * (1.0 - p))), -1.0, 1.0))

    def grow(self):
        slopes, bends = [], []
        for x, target, _ in self.rows:
            m = self.score(x)
            p = sigmoid(m)
            slopes.append(p - target if self.task == "binary" else m - target)
            bends.append(p * (1.0 - p) if self.task == "binary" else 1.0)
        slopes, bends = np.array(slopes), np.array(bends)
        weights = np.array([weight for _, _, weight in self.rows])
        repeats, unit = weights.astype(int), unit_of(weights)
        least_gain = unit * (1e-3 if self.task == "binary" else 1e-12)
        if self.loss == "absolute":
            errors = -slopes
            most = 4.0 * np.median(np.repeat(abs(errors), repeats))
            slopes = -np.clip(errors, -most, most)
        slopes, bends, ridge = weights * slopes, weights * bends, RIDGE * unit
        rows = [row for row, _, _ in self.rows]
        leaves = partition(rows, slopes, bends, SPEC["leaves"], least_gain, ridge)
        values = [
            -SPEC["step"] * slopes[rows].sum() / (bends[rows].sum() + ridge) for rows, _ in leaves
        ]
        if self.loss == "absolute":
            repeated = [np.repeat(errors[rows], repeats[rows]) for rows, _ in leaves]
            values = [SPEC["step"] * np.median(one) for one in repeated]
        return tree_of([conditions for _, conditions in leaves], values)


@pytest.mark.parametrize(
    ("task", "loss"),
    [("binary", "logistic"), ("regression", "squared"), ("regression", "absolute")],
)
@pytest.mark.parametrize("heaviest", [1, 4])
def test_scores_are_those_of_trees_grown_from_the_raw_rows(task, loss, heaviest):
    rng = np.random.default_rng(1)
    batch = waves(260, 3, task=task)
    # Few distinct values, so that no bin holds two of them.
    x = np.round(rng.normal(size=(260, 3)) * 2.0)
    z = x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=260)
    y = z if task == "regression" else np.where(z > 0.0, 1.0, -1.0)
    weights = rng.integers(1, heaviest + 1, 260).astype(float)
    batch = batch.from_dense(x, y, weights)
    fields = {"loss": loss} if task == "regression" else {}
    learner, reference = learner_of(3, task=task, **SPEC, **fields), Reference(task, loss)
    result = learner.learn(batch).scores
    for row in range(len(batch)):
        expected = reference.score(x[row])
        assert result[row] == pytest.approx(expected, abs=2e-4 * (1.0 + abs(expected))), row
        reference.learn(x[row], y[row], weights[row])


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_only_ratios_of_weights_matter(task):
    scores = []
    for scale in (1.0, 2.0**-9, 2.0**9):
        learner, batch = learner_of(3, task=task, **SPEC), waves(300, 3, task="regression")
        batch.weights[:] = scale * np.random.default_rng(0).integers(1, 5, 300)
        if task == "multiclass":
            batch = batch.with_labels((batch.labels > 0.0).astype(float), ("a", "b"))
        elif task == "binary":
            batch = batch.with_labels(np.where(batch.labels > 0.0, 1.0, -1.0))
        scores.append(learner.learn(batch).scores)
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-5)


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
        result = growth_kernels.median_of(values, weights, order, 1, n + 1)
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


def test_the_ring_is_shorter_where_rows_are_wide(monkeypatch):
    monkeypatch.setitem(CELLS, "standard", 2**17)
    features = {"kind": "hashed", "bits": 8}
    learner = learner_of(8, features=features, algorithm="boosted", window=2**14)
    assert learner.max_rows == 2**14
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 200))
    batch = type(waves(1)).from_dense(x, np.sign(x[:, 3]))
    learner.learn(batch.with_rows(batch.indptr, batch.indices, batch.values, 256))
    state = learner.state()
    assert learner.max_rows == 2**17 // 128
    assert state["codes"].shape == (1024, 128) and state["sample"].shape == (1024, 4 * 128)
    tree = state["feature"]
    used = {int(feature) for feature in np.unique(tree) if feature >= 0}
    assert 3 in used


def rounded(n, dim=3, seed=1):
    """Rows of few distinct values, so that bins are exact."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(n, dim)) * 2.0)
    z = x[:, 0] * x[:, 1] + 0.5 * rng.normal(size=n)
    return type(waves(1)).from_dense(x, np.where(z > 0.0, 1.0, -1.0))


def test_margins_of_a_long_ring_are_its_scores(monkeypatch):
    monkeypatch.setattr(boosted_ring, "AT_ONCE", 300)
    learner = learner_of(3, **{**SPEC, "window": 350})
    batch = rounded(1000)
    learner.learn(batch)
    ring = learner._learner
    at = int(ring._k[kernels.AT])
    margins = ring._about[:350, kernels.MARGIN][np.r_[at:350, 0:at]]
    np.testing.assert_allclose(margins, learner.predict(batch[650:]), rtol=1e-12, atol=1e-12)


def test_a_tree_that_grows_during_several_rows_is_that_of_one_row(monkeypatch):
    monkeypatch.setattr(boosted_ring, "AT_ONCE", 300)
    spec = {**SPEC, "window": 2000, "trees": 2, "renewal": 2}
    slow, batch = learner_of(3, **spec), rounded(800)
    # Trees begin with rows 194, 291 and so on: the ring is not full, so that no row leaves it.
    slow.learn(batch[:300])
    monkeypatch.setattr(boosted_ring, "AT_ONCE", 2**18)
    fast = learner_of(3, **spec)
    fast.learn(batch[:300])
    ring, other = slow._learner, fast._learner
    assert ring._k[kernels.GROWN] == other._k[kernels.GROWN] and not ring._k[kernels.GROW_ROWS]
    np.testing.assert_array_equal(ring._feature, other._feature)
    np.testing.assert_allclose(slow.predict(batch), fast.predict(batch), atol=1e-9)


def test_a_long_ring_learns_what_a_short_one_learns(monkeypatch):
    batch = waves(6000)
    whole = mistakes(learner_of(4, algorithm="boosted", window=4000), batch)[3000:].mean()
    monkeypatch.setattr(boosted_ring, "AT_ONCE", 4000)
    slowly = mistakes(learner_of(4, algorithm="boosted", window=4000), batch)[3000:].mean()
    assert abs(slowly - whole) < 0.01


@pytest.mark.parametrize("at_once", [2**18, 8000])
def test_a_ring_longer_than_its_sample_is_restored_to_the_bit(monkeypatch, at_once):
    monkeypatch.setattr(boosted_ring, "AT_ONCE", at_once)
    # The last feature comes late, and the ring gets shorter then.
    monkeypatch.setitem(CELLS, "standard", 5000 * 8)
    n, dim = 12_000, 9
    x = np.random.default_rng(0).normal(size=(n, dim))
    x[:9000, 8] = 0.0
    x[6000:, :8] = 50.0 + 3.0 * x[6000:, :8]
    batch = type(waves(1)).from_dense(x, np.sign(x[:, 0] * x[:, 1]))
    spec = {"algorithm": "boosted", "window": 5000, "features": {"kind": "hashed", "bits": 4}}
    batch = batch.with_rows(batch.indptr, batch.indices, batch.values, 16)
    one, two = learner_of(1, **spec), learner_of(1, **spec)
    one.learn(batch)
    pieces, growing = [*range(0, n, 1500), *range(8000, 8100, 7), n], 0
    for first, end in pairwise(sorted(pieces)):
        again = learner_of(1, **spec)
        again.restore(two.state())
        growing += int(two.state()["grow_rows"]) > 0
        again.learn(batch[first:end])
        two = again
    assert (growing > 0) == (at_once == 8000)
    assert one.max_rows == 2500
    states = one.state(), two.state()
    for name in states[0]:
        np.testing.assert_array_equal(states[0][name], states[1][name], name)


def test_bins_of_a_long_ring_follow_values_that_move():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    y = np.sign(x[:, 0] * x[:, 1])
    x += 300.0 * (np.arange(20_000) >= 10_000)[:, None]
    learner = learner_of(3, algorithm="boosted", window=6000)
    wrong = mistakes(learner, type(waves(1)).from_dense(x, y))
    assert wrong[5000:10_000].mean() < 0.12 and wrong[17_000:].mean() < 0.12


def test_pairs_that_share_a_bin_are_counted():
    rng = np.random.default_rng(0)
    for n, bins in ((1, 4), (50, 8), (300, 32)):
        values = np.sort(np.round(rng.normal(size=n) * 8.0)).astype(np.float32)
        edges = np.zeros(kernels.MAX_BINS)
        n_edges = kernels.quantile_edges(values, bins, edges)
        codes = np.searchsorted(edges[:n_edges], values)
        same = codes[:, None] == codes[None, :]
        expected = (same & (values[:, None] != values[None, :])).sum() / 2
        assert kernels.shared_bins(values, edges, n_edges) == expected


def test_old_bins_are_those_of_their_middle_values():
    values = np.sort(np.random.default_rng(0).normal(size=400)).astype(np.float32)
    old, new = np.zeros(kernels.MAX_BINS), np.zeros(kernels.MAX_BINS)
    n_old, n_new = (
        kernels.quantile_edges(values[:200], 16, old),
        kernels.quantile_edges(values, 32, new),
    )
    codes = np.searchsorted(old[:n_old], values).astype(np.uint8)[:, None]
    before = codes[:, 0].copy()
    code_of = np.empty(kernels.MAX_BINS, np.uint8)
    kernels.recode_column(values, codes, 400, 0, old, n_old, new, n_new, code_of)
    for b in range(n_old + 1):
        inside = values[before == b]
        middle = np.searchsorted(new[:n_new], inside[len(inside) // 2])
        assert (codes[before == b, 0] == middle).all()
