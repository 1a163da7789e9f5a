"""The dual steps of several members at once against those of one."""

import numpy as np

from dualstream.solvers.losses.loss_kernels import logistic_step
from dualstream.solvers.portfolio.logistic_roots import (
    CONJUGATE,
    N_LANES,
    B,
    C,
    S,
    U,
    logistic_roots,
)


def test_every_lane_is_the_root_of_its_own_equation():
    rng = np.random.default_rng(0)
    for _ in range(200):
        lanes = np.zeros((N_LANES, 8))
        c = rng.normal(size=8) * 10.0 ** rng.uniform(-3.0, 2.5, 8)
        s = 10.0 ** rng.uniform(-8.0, 8.0, 8)
        s[rng.integers(0, 8)] = 0.0
        lanes[C], lanes[S] = c, s
        logistic_roots(8, lanes)
        for j in range(8):
            b, conjugate = logistic_step(float(c[j]), float(s[j]))
            np.testing.assert_allclose(lanes[B, j], b, rtol=1e-12)
            np.testing.assert_allclose(lanes[CONJUGATE, j], conjugate, rtol=1e-12, atol=1e-13)
            assert abs(lanes[U, j] + c[j] + s[j] * lanes[B, j]) <= 1e-11 * (1.0 + abs(c[j]) + s[j])


def test_a_lane_does_not_depend_on_its_neighbours():
    rng = np.random.default_rng(1)
    c, s = rng.normal(size=8) * 5.0, 10.0 ** rng.uniform(-3.0, 4.0, 8)
    together = np.zeros((N_LANES, 8))
    together[C], together[S] = c, s
    logistic_roots(8, together)
    for first in (0, 4):
        alone = np.zeros((N_LANES, 8))
        alone[C, :4], alone[S, :4] = c[first : first + 4], s[first : first + 4]
        logistic_roots(4, alone)
        assert alone[B, :4].tobytes() == together[B, first : first + 4].tobytes()


def test_what_is_not_finite_comes_back_as_no_number_and_ends():
    lanes = np.zeros((N_LANES, 4))
    lanes[C], lanes[S] = [0.0, np.inf, 1.0, np.nan], [np.inf, 1.0, np.nan, 1.0]
    logistic_roots(4, lanes)
    assert not np.isfinite(lanes[B]).all() or not np.isfinite(lanes[U]).all()
