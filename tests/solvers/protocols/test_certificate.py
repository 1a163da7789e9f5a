"""The certificate: an upper bound of the distance to the optimum, term by term."""

from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.protocols.certificate import relative_gap
from tests.solvers import reference
from tests.solvers.online.dual_ascent_support import WINDOWS, rows_of, spec_of


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_before_the_first_row_all_is_zero(window):
    learner = make_learner(spec_of("logistic", window))
    idle = Batch.from_dense(np.ones((1, 6)), np.ones(1), np.zeros(1))
    for _ in range(2):
        certificate = learner.certificate()
        numbers = (certificate.primal, certificate.dual, certificate.gap)
        assert (*numbers, certificate.relative_gap) == (0.0, 0.0, 0.0, 0.0)
        assert (certificate.rows, certificate.weight_share) == (0, 0.0)
        learner.learn(idle)


def test_gap_is_primal_less_dual_and_never_negative(subtests):
    for kappa, window, loss in product([None, 0.9], WINDOWS.values(), LOSSES):
        with subtests.test(kappa=kappa, window=window, loss=loss):
            batch, _ = rows_of(60, regression=loss not in MARGIN_LOSSES)
            learner = make_learner(spec_of(loss, window, kappa, retain=10, rho=0.1))
            for i in range(60):
                learner.learn(batch[i : i + 1])
                certificate = learner.certificate()
                assert certificate.gap >= 0.0
                assert certificate.primal - certificate.dual == pytest.approx(
                    certificate.gap, rel=1e-11, abs=1e-12 * max(1.0, abs(certificate.primal))
                )


def test_a_sliding_window_has_the_exact_primal_though_more_is_retained():
    batch, x = rows_of(50, weighted=False)
    learner = make_learner(spec_of("hinge", ("sliding", 7), 0.9, retain=30, rho=0.1))
    learner.learn(batch)
    certificate = learner.certificate()
    z = x[-7:] @ learner.weights + learner.intercept
    norm = learner.weights @ learner.weights + learner.intercept**2
    primal = np.maximum(0, 1 - batch.labels[-7:] * z).mean() + 0.1 * norm / 2
    assert certificate.primal == pytest.approx(primal, rel=1e-12)
    assert (certificate.rows, certificate.weight_share) == (7, 1.0)
    assert certificate.estimate is False


@pytest.mark.parametrize("window", [("infinite",), ("exponential", 0.95)])
def test_other_windows_weigh_the_retained_rows_by_delta(window):
    batch, x = rows_of(40)
    learner = make_learner(spec_of("hinge", window, None, retain=8, rho=0.1))
    slow = reference.Reference("hinge", window, 0.1)
    learner.learn(batch)
    for h, y, c in zip(x, batch.labels, batch.weights, strict=True):
        slow.learn(np.append(h, 1.0), y, c)
    certificate = learner.certificate()
    deltas, w = slow.deltas(), slow.served()
    brackets = [
        reference.value("hinge", h @ w, y, None)
        + reference.conjugate("hinge", t, y, None)
        + t * (h @ w)
        for h, y, _, t in slow.rows
    ]
    # w is w' here, so that the regularizer's part of the gap is 0.
    assert certificate.gap == pytest.approx(np.average(brackets[-8:], weights=deltas[-8:]))
    assert certificate.dual == pytest.approx(slow.certificate()[1], rel=1e-10)
    assert certificate.weight_share == pytest.approx(deltas[-8:].sum() / deltas.sum())
    assert (certificate.rows, certificate.estimate) == (8, True)
    assert certificate.primal == certificate.dual + certificate.gap


def test_gap_bounds_the_distance_to_the_optimum():
    """Ridge regression has its optimum in closed form."""
    batch, x = rows_of(30, regression=True, weighted=False)
    learner = make_learner(spec_of("squared", ("sliding", 30), None, rho=0.2, retain=30))
    learner.learn(batch)
    h = np.hstack([x, np.ones((30, 1))])
    best = np.linalg.solve(h.T @ h / 30 + 0.2 * np.eye(7), h.T @ batch.labels / 30)
    optimum = ((batch.labels - h @ best) ** 2).mean() / 2 + 0.1 * best @ best
    certificate = learner.certificate()
    assert certificate.dual <= optimum + 1e-12
    assert certificate.primal >= optimum - 1e-12
    assert certificate.primal - optimum <= certificate.gap + 1e-12


def test_the_weights_of_an_average_are_certified_as_served():
    """P of any served weights minus the same dual value."""
    batch, _ = rows_of(40, weighted=False)
    last, average = (
        make_learner(spec_of("hinge", ("sliding", 20), kappa, rho=0.1)) for kappa in (None, 0.9)
    )
    last.learn(batch)
    average.learn(batch)
    assert average.certificate().dual == last.certificate().dual
    assert average.certificate().primal != last.certificate().primal


@pytest.mark.skipif(DISABLED, reason="a long stream, in plain Python")
def test_gap_shrinks_along_a_stationary_stream(adult):
    learner = make_learner({"rho": 0.01, "features": {"kind": "indexed", "dim": 123}})
    gaps = []
    for _ in range(20):
        learner.learn(adult)
        gaps.append(learner.certificate().relative_gap)
    assert gaps[-1] < 0.01 < gaps[0]


def test_relative_gap_of_nothing_is_zero():
    assert relative_gap(0.0, 0.0, 0.0) == 0.0
    assert relative_gap(1.0, 0.5, -2.0) == 0.5
