"""Net, neighbours and splines against their formulas in plain Python."""

import math

import numpy as np
import pytest

from dualstream.solvers.nonlinear import net_kernels, standardise
from tests.solvers.nonlinear.streams import learner_of, mistakes, waves


def test_a_step_of_the_net_is_along_the_gradient_of_its_loss():
    batch = waves(300)
    learner = learner_of(4, algorithm="net", units=[6, 5])
    learner.learn(batch[:299])
    before = learner.state()
    row = batch[299:]
    score = float(learner.learn(row).scores[0])
    after = learner.state()
    units, last = 6, 5
    slots = {int(feature): slot for slot, feature in enumerate(before["touched"].tolist())}
    moments = after["blocks"][:, -4:]
    rows = 300.0
    h = np.zeros(len(slots))
    for feature, value in zip(row.indices.tolist(), row.values.tolist(), strict=True):
        slot = slots[feature]
        count, mean, m, _ = moments[slot]
        assert count == rows  # every column is dense here
        h[slot] = np.clip((value - mean) / math.sqrt(m / rows), -8.0, 8.0)
    parts = {
        "w": before["blocks"][:, :units],
        "b": before["first"][0],
        "u": before["second"][:, :last],
        "e": before["third"][0],
        "v": before["third"][2],
        "c": before["numbers"][net_kernels.BIAS : net_kernels.BIAS + 1],
    }
    sums = {
        "w": before["blocks"][:, units : 2 * units],
        "b": before["first"][1],
        "u": before["second"][:, last:],
        "e": before["third"][1],
        "v": before["third"][3],
        "c": before["numbers"][net_kernels.SUM_OF_BIAS : net_kernels.SUM_OF_BIAS + 1],
    }

    def output(p):
        z = np.maximum(p["b"] + h @ p["w"], 0.0)
        q = np.maximum(p["e"] + z @ p["u"], 0.0)
        return float(p["v"] @ q + p["c"][0])

    assert score == pytest.approx(output(parts), rel=1e-12, abs=1e-12)
    y = float(row.labels[0])

    def loss(p):
        return math.log1p(math.exp(-y * output(p)))

    now = {
        "w": after["blocks"][:, :units],
        "b": after["first"][0],
        "u": after["second"][:, :last],
        "e": after["third"][0],
        "v": after["third"][2],
        "c": after["numbers"][net_kernels.BIAS : net_kernels.BIAS + 1],
    }
    checked = 0
    for name, array in parts.items():
        for index in np.ndindex(array.shape):
            eps = 1e-6
            up, down = ({k: v.copy() for k, v in parts.items()} for _ in range(2))
            up[name][index] += eps
            down[name][index] -= eps
            slope = (loss(up) - loss(down)) / (2 * eps)
            expected = array[index] - 0.1 * slope / math.sqrt(sums[name][index] + slope**2)
            assert now[name][index] == pytest.approx(expected, abs=2e-5), (name, index)
            checked += slope != 0.0
    assert checked > 8


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_neighbours_are_those_of_a_search_through_all_rows(task):
    batch = waves(300, 5, task=task)
    learner = learner_of(5, algorithm="neighbours", window=150, neighbours=7, task=task)
    result = learner.learn(batch).scores
    x = np.zeros((300, 5))
    for i in range(300):
        part = slice(batch.indptr[i], batch.indptr[i + 1])
        x[i, batch.indices[part]] = batch.values[part]
    moments, ring, mean = np.zeros((3, 5)), [], 0.0
    for i, y in enumerate(batch.labels.tolist()):
        scaled = [standardise.standardised(float(v), j, moments) for j, v in enumerate(x[i])]
        near = sorted(
            (sum((a - b) ** 2 for a, b in zip(scaled, other, strict=True)), label)
            for other, label in ring
        )[:7]
        expected = 0.0
        if near:
            width = near[-1][0] + 1e-9
            share = [math.exp(-(3.0 if task == "binary" else 2.0) * d / width) for d, _ in near]
            if task == "binary":
                odds = [
                    0.3 + sum(s for s, (_, t) in zip(share, near, strict=True) if t == side)
                    for side in (1.0, -1.0)
                ]
                expected = math.log(odds[0] / odds[1])
            else:
                total = sum(s * t for s, (_, t) in zip(share, near, strict=True))
                expected = total / sum(share)
        assert result[i] == pytest.approx(expected, rel=1e-3, abs=1e-4), i
        standardise.count_moments(5, x[i], moments)
        scaled = [standardise.standardised(float(v), j, moments) for j, v in enumerate(x[i])]
        ring = [*ring, (scaled, y)][-150:]
        mean += (y - mean) / (i + 1)


def test_moments_forget_and_one_broken_reading_does_little():
    moments = np.zeros((3, 1))
    rng = np.random.default_rng(0)
    for value in rng.normal(5.0, 2.0, 3000):
        standardise.count_moments(1, np.array([value]), moments)
    assert moments[standardise.MEAN, 0] == pytest.approx(5.0, abs=0.2)
    assert moments[standardise.MEAN_SQUARE, 0] == pytest.approx(4.0, rel=0.1)
    standardise.count_moments(1, np.array([1e100]), moments)
    assert moments[standardise.MEAN_SQUARE, 0] < 4.5
    for value in rng.normal(50.0, 1.0, 10_000):
        standardise.count_moments(1, np.array([value]), moments)
    assert moments[standardise.MEAN, 0] == pytest.approx(50.0, abs=1.0)


def test_splines_learn_a_curve_of_each_column_and_keep_it_at_new_knots():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, (9000, 2))
    z = 3.0 * np.sin(1.5 * x[:, 0]) + x[:, 1] ** 2 - 3.0
    batch = waves(1).from_dense(x, np.where(z > 0.0, 1.0, -1.0))
    learner = learner_of(2, algorithm="splines")
    assert mistakes(learner, batch)[4000:].mean() < 0.06
    assert mistakes(learner_of(2, algorithm="dual_ascent"), batch)[4000:].mean() > 0.2
    # Rows 2,047 and 2,048 are on both sides of new knots: the function is nearly the same.
    learner = learner_of(2, algorithm="splines")
    learner.learn(batch[:2047])
    before = learner.predict(batch[3000:3100])
    learner.learn(batch[2047:2048])
    after = learner.predict(batch[3000:3100])
    assert np.abs(after - before).max() < 0.3 * before.std()
    assert np.corrcoef(before, after)[0, 1] > 0.995
