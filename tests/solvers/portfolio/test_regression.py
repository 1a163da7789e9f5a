"""The regression portfolio: against a plain reference and golden numbers on real streams."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dualstream.solvers import InvalidSpec, dump
from dualstream.solvers.jit import DISABLED
from load_tests.regression import data
from tests.solvers.portfolio.support import regression_portfolio, regression_stream
from tests.solvers.regression_reference import MEMBERS, RegressionPortfolio, regret_bound
from tests.solvers.staging import rows_of

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "regression.json").read_text())
N = 60 if DISABLED else 400


@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_is_predicted_and_learned_as_the_reference_does(seed):
    batch = regression_stream(N, seed=seed)
    broken = (np.arange(batch.nnz) % 97 == 0) & (batch.indices != 7)
    batch.values[broken] *= 1e3
    # Without the new start after broken first rows, which the reference does not have.
    learner, reference = regression_portfolio(batch.dim)._learner, RegressionPortfolio()
    result = learner.learn(batch).scores
    mixture, best = 0.0, np.zeros(len(MEMBERS))
    expected, counted = [], 0
    for row, y, c in zip(
        rows_of(batch), batch.labels.tolist(), batch.weights.tolist(), strict=True
    ):
        expected.append(reference.learn(row, y, c)[0])
        if c > 0.0 and reference.regret_terms is not None:
            mixture += reference.regret_terms[0]
            best += reference.regret_terms[1]
            counted += 1
    np.testing.assert_allclose(result, expected, rtol=1e-7)
    np.testing.assert_allclose([one.weight for one in learner.members()], reference.v, atol=1e-7)
    assert mixture <= best.min() + regret_bound(counted, len(MEMBERS))
    assert all(one.calibration is None for one in learner.members())


def test_a_shift_and_a_factor_of_the_targets_are_those_of_the_predictions():
    batch = regression_stream(N)
    moved = batch.with_labels(-3.0 * batch.labels + 7e3)
    plain, other = (
        regression_portfolio(batch.dim).learn(batch),
        regression_portfolio(batch.dim).learn(moved),
    )
    first = int(np.argmax(batch.weights > 0.0)) + 1
    expected = -3.0 * plain.scores[first:] + 7e3
    np.testing.assert_allclose(other.scores[first:], expected, rtol=1e-6)


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("name", ["diabetes", "trump", "chicks", "water", "friedman_gra"])
def test_the_figures_of_the_reference_are_met(name):
    got = GOLDEN["streams"][name]
    batch = data.as_batch(data.load(name))
    learner = regression_portfolio(batch.dim)._learner
    errors = (learner.learn(batch).scores - batch.labels)[1:]
    figures = [np.abs(errors).mean(), math.sqrt((errors * errors).mean())]
    assert len(batch) == got["rows"]
    np.testing.assert_allclose(figures, got["mixture"], rtol=1e-6)
    # On `water` a value equal to its column's mean up to rounding counts as 0 or not.
    near = 1e-4 if name == "water" else 1e-6
    np.testing.assert_allclose([one.weight for one in learner.members()], got["weights"], atol=near)


def test_constant_targets_and_huge_ones_stay_finite():
    batch = regression_stream(N)
    constant = regression_portfolio(batch.dim).learn(batch.with_labels(np.full(N, 4.0)))
    first = int(np.argmax(batch.weights > 0.0)) + 1
    assert np.all(constant.scores[first:] == 4.0)
    labels = batch.labels.copy()
    labels[5::50] = 1e100
    learner = regression_portfolio(batch.dim)
    assert np.isfinite(learner.learn(batch.with_labels(labels)).scores).all()
    assert all(np.isfinite(array).all() for array in learner.state().values())


def test_a_long_calm_after_a_huge_error_stays_finite():
    rule = regression_portfolio(1, members=[{"name": "mean", "kind": "prior"}])._rule
    n = 130_000 if not DISABLED else 100
    labels = np.zeros(n)
    labels[:3] = 0.0, 1e100, -1e100
    out = rule.count(np.zeros((n, 1)), labels, np.ones(n))
    assert np.isfinite(out[1:, :2]).all() and np.isfinite(rule.g).all()
    assert rule.r[0, 0] == 1.0


def test_a_model_joins_and_a_kind_does_not():
    batch = regression_stream(N)
    learner = regression_portfolio(batch.dim)
    learner.learn(batch)
    assert learner.add_member({"algorithm": "spg", "scaling": "balanced"}) == "spg-1"
    learner.learn(batch)
    restored = regression_portfolio(batch.dim)
    restored.restore(learner.state())
    assert dump(restored.state(), {}) == dump(learner.state(), {})
    with pytest.raises(InvalidSpec, match="kind must be left out"):
        learner.add_member({"kind": "dual_ascent"})
