"""Confidence sequence of two members: the boundary, its coverage, the counted rows."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, MemberError, UnknownMember
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.portfolio.confidence_sequence import compare, stitched_boundary
from dualstream.solvers.portfolio.weighting_kernels import MAX_LOG_LOSS
from tests.solvers.portfolio.support import (
    portfolio,
    regression_portfolio as number_portfolio,
    regression_stream as number_stream,
    stream,
)

N = 60 if DISABLED else 300
PATHS, LENGTH = 100, 400


def test_boundary_is_that_of_its_authors():
    # The value in the authors' library's tests of poly_stitching_bound.
    assert stitched_boundary(100, 0.05, 3, least=10) == pytest.approx(64.48755, abs=1e-5)


def test_boundary_is_flat_below_the_least_variance_and_grows_beyond():
    assert stitched_boundary(0.0, 0.05, 3.0) == stitched_boundary(1.0, 0.05, 3.0)
    values = [stitched_boundary(v, 0.05, 3.0) for v in (1.0, 2.0, 10.0, 1e3, 1e6)]
    assert values == sorted(values) and len(set(values)) == 5
    # Of the order of the law of the iterated logarithm, not of v.
    assert 1.0 < values[-1] / math.sqrt(2.0 * 1e6 * math.log(math.log(1e6))) < 2.5
    for more, less in (((0.01, 3.0), (0.05, 3.0)), ((0.05, 6.0), (0.05, 3.0))):
        assert stitched_boundary(100.0, *more) > stitched_boundary(100.0, *less)


def drifting(rng, mean):
    """Differences whose mean depends on earlier values, with a heavy tail on one side."""
    up = np.clip(0.5 * (1.0 + mean), 0.0, 1.0)
    return np.where(rng.random(len(mean)) < up, 1.0, -1.0)


def skewed(rng, mean):
    """Rarely the largest difference, otherwise slightly negative ones."""
    p = 0.02 + 0.5 * np.abs(mean)
    return np.where(rng.random(len(mean)) < p, 1.0, (mean - p) / (1.0 - p))


@pytest.mark.parametrize(("draw", "most"), [(drifting, 1.0), (skewed, MAX_LOG_LOSS)])
def test_interval_holds_the_mean_at_every_row_at_once(draw, most):
    rng = np.random.default_rng(0)
    level, missed = 0.8, np.zeros(PATHS, bool)
    total, expected, squares = np.zeros(PATHS), np.zeros(PATHS), np.zeros(PATHS)
    for t in range(1, LENGTH + 1):
        # Opposite in sign to the sum, and with another size in other rows.
        mean = -0.1 * np.sign(total - expected) + 0.2 * math.sin(t / 40.0)
        x = draw(rng, mean)
        assert np.abs(x).max() <= 1.0
        total, expected, squares = total + x, expected + mean, squares + x * x
        for k in range(PATHS):
            result = compare("a", "b", t, most * total[k], most**2 * squares[k], most, level)
            assert -most <= result.low <= result.mean <= result.high <= most
            missed[k] |= not result.low <= most * expected[k] / t <= result.high
    # Even when stopped at the worst row of each path, the interval has the promised coverage.
    assert missed.mean() <= 1.0 - level
    assert compare("a", "b", LENGTH, 0.0, LENGTH * most**2, most, level).high < 0.4 * most


def test_a_narrower_boundary_would_be_crossed():
    # The coverage above is not due to a boundary that is never reached.
    rng = np.random.default_rng(0)
    sums = np.cumsum(rng.choice([-1.0, 1.0], (PATHS, 2000)), axis=1)
    bound = np.array([stitched_boundary(t, 0.1, 1.0) for t in range(1, 2001)])
    reached = np.abs(sums / bound).max(axis=1)
    assert reached.max() > 0.6 and np.mean(reached >= 1.0) <= 0.2
    assert np.mean(reached > 0.4) > 0.2


def test_no_rows_say_nothing():
    result = portfolio().compare("dual-3", "dual-30")
    assert (result.rows, result.mean, result.low, result.high) == (
        0,
        0.0,
        -MAX_LOG_LOSS,
        MAX_LOG_LOSS,
    )


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, math.nan])
def test_level_that_is_no_probability_is_refused(level):
    with pytest.raises(MemberError, match="level must be in .0, 1."):
        portfolio().compare("dual-3", "dual-30", level)


def mirrored(result):
    return result.b, result.a, result.rows, -result.mean, -result.high, -result.low, result.level


@pytest.mark.parametrize("make", [portfolio, lambda: number_portfolio(8)])
def test_both_orders_say_the_same(make):
    learner = make()
    learner.learn(stream(N) if learner.spec["task"] == "binary" else number_stream(N))
    names = [view.name for view in learner.members()]
    for a in names:
        with pytest.raises(MemberError, match="with itself"):
            learner.compare(a, a)
        for pair in ((a, "missing"), ("missing", a)):
            with pytest.raises(UnknownMember):
                learner.compare(*pair)
        for b in names:
            if a != b:
                result, other = learner.compare(a, b, 0.9), learner.compare(b, a, 0.9)
                assert mirrored(result) == (
                    other.a,
                    other.b,
                    other.rows,
                    other.mean,
                    other.low,
                    other.high,
                    other.level,
                )
                assert (result.a, result.b) == (a, b)
                wider = learner.compare(a, b, 0.99)
                assert wider.low <= result.low <= result.mean <= result.high <= wider.high


def test_differences_are_those_of_the_losses():
    batch, learner = stream(N), portfolio()
    learner.learn(batch)
    recent = learner.state()["rule.recent"]
    costs = recent[:, : recent.shape[1] // 2]
    views = learner.members()
    for i, a in enumerate(views):
        for j, b in enumerate(views):
            if i == j:
                continue
            result = learner.compare(a.name, b.name)
            apart = costs[:, i] - costs[:, j]
            assert result.rows == len(apart) == np.count_nonzero(batch.weights)
            assert result.mean == pytest.approx(apart.mean(), abs=1e-12)
            assert result.mean == pytest.approx(a.loss - b.loss, abs=1e-12)
            u = stitched_boundary(float(apart @ apart), 0.025, MAX_LOG_LOSS) / result.rows
            assert result.high == pytest.approx(min(result.mean + u, MAX_LOG_LOSS), rel=1e-12)


def test_a_challenger_counts_from_when_it_joined():
    learner = portfolio()
    learner.learn(stream(N))
    name = learner.add_member({"algorithm": "sgd"})
    assert learner.compare(name, "dual-3").rows == 0
    before = learner.compare("dual-30", "dual-3").rows
    more = stream(50, seed=3)
    learner.learn(more)
    fresh = int(np.count_nonzero(more.weights))
    assert learner.compare(name, "dual-3").rows == learner.compare("dual-3", name).rows == fresh
    assert learner.compare("dual-30", "dual-3").rows == before + fresh
    # Removing other members changes nothing between the remaining ones.
    got = learner.compare(name, "dual-3"), learner.compare("dual-3", "newton-row")
    for gone in ("prior", "dual-30", "spg-1-hinge"):
        learner.remove_member(gone)
    assert (learner.compare(name, "dual-3"), learner.compare("dual-3", "newton-row")) == got


def test_promotion_stops_the_counting():
    learner = portfolio()
    learner.learn(stream(N))
    before = learner.compare("dual-30", "dual-3")
    learner.promote("dual-3")
    learner.learn(stream(40, seed=1))
    assert learner.compare("dual-30", "dual-3") == before
    assert learner.compare("dual-30", "prior").rows == before.rows
    learner.demote()
    more = stream(40, seed=2)
    learner.learn(more)
    rows = before.rows + np.count_nonzero(more.weights)
    assert learner.compare("dual-30", "dual-3").rows == rows


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
def test_a_real_difference_is_found():
    x = np.random.default_rng(0).normal(size=(2000, 3))
    learner = portfolio(3)
    learner.learn(Batch.from_dense(x, np.where(x[:, 0] > 0.0, 1.0, -1.0)))
    result = learner.compare("prior", "dual-3")
    assert result.low > 0.0 and learner.compare("dual-3", "prior").high == -result.low
