"""Losses against their definitions, their conjugates and steps against brute force."""

import math

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from dualstream.solvers.losses import loss_kernels as _steps
from dualstream.solvers.losses.loss_table import LOSSES, make_loss
from dualstream.solvers.rows import scalar as _scalar
from tests.fuzzing import examples
from tests.solvers import reference

EXAMPLES = examples(100)
CASES = [(name, reference.LOSSES[name]) for name in LOSSES]
SCORES = st.floats(-20, 20)
LABELS = st.floats(-5, 5)


def label_of(name, y):
    return math.copysign(1.0, y) if name in reference.MARGIN else y


def test_every_loss_has_a_reference():
    assert set(LOSSES) == set(reference.LOSSES)


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(z=SCORES, y=LABELS)
def test_value_is_the_definition(name, parameter, z, y):
    y = label_of(name, y)
    expected = reference.value(name, z, y, parameter)
    assert make_loss(name, parameter).value(z, y) == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(y=LABELS, place=st.floats(0.001, 0.999))
def test_conjugate_is_the_supremum_over_a_grid(name, parameter, y, place):
    y = label_of(name, y)
    lo, hi = reference.domain(name, y, parameter)
    lo, hi = max(lo, -3.0), min(hi, 3.0)
    tau = lo + place * (hi - lo)

    def objective(z):
        return -tau * z - reference.value(name, z, y, parameter)

    centre, width, best = 0.0, 30.0, -math.inf
    for _ in range(4):  # ever finer grids around the best point so far
        centre = max(np.linspace(centre - width, centre + width, 121), key=objective)
        best, width = max(best, objective(centre)), width / 40
    conjugate = make_loss(name, parameter).conjugate(tau, y)
    assert best <= conjugate + 1e-12
    assert conjugate == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_conjugate_is_infinite_outside_its_domain(name, parameter):
    loss = make_loss(name, parameter)
    lo, hi = reference.domain(name, 1.0, parameter)
    for tau in (lo - 1e-6, hi + 1e-6):
        if math.isfinite(tau):
            assert loss.conjugate(tau, 1.0) == math.inf


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(z=SCORES, y=LABELS)
def test_slope_supports_the_loss_from_below(name, parameter, z, y):
    y, loss = label_of(name, y), make_loss(name, parameter)
    slope = loss.slope(z, y)
    for other in (z - 3.0, z - 1e-3, z + 1e-3, z + 3.0):
        assert loss.value(other, y) >= loss.value(z, y) + slope * (other - z) - 1e-9


def test_slope_of_hinge_still_corrects_a_row_on_its_margin():
    assert make_loss("hinge").slope(1.0, 1.0) == -1.0
    assert make_loss("hinge").slope(-1.0, -1.0) == 1.0
    assert make_loss("absolute").slope(2.0, 2.0) == 0.0


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(m=SCORES, y=LABELS, s=st.floats(-6, 4).map(lambda e: 10.0**e))
def test_dual_step_minimises_by_brute_force(name, parameter, m, y, s):
    y = label_of(name, y)
    lo, hi = reference.domain(name, y, parameter)
    lo, hi = max(lo, -1e3), min(hi, 1e3)

    def objective(tau):
        return reference.conjugate(name, tau, y, parameter) + tau * m + s * tau * tau / 2

    tau = make_loss(name, parameter).dual_step(m, s, y)
    assert lo - 1e-12 <= tau <= hi + 1e-12
    best = _golden_section(objective, lo, hi)
    assert objective(min(max(tau, lo), hi)) <= best + 1e-9 * (1 + abs(best))


def _golden_section(f, lo, hi):
    ratio = (math.sqrt(5) - 1) / 2
    ends = min(f(lo), f(hi))
    for _ in range(100):
        a, b = hi - ratio * (hi - lo), lo + ratio * (hi - lo)
        lo, hi = (lo, b) if f(a) < f(b) else (a, hi)
    return min(ends, f((lo + hi) / 2))


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(m=SCORES, y=LABELS)
def test_step_without_curvature_is_the_limit_of_small_ones(name, parameter, m, y):
    y, loss = label_of(name, y), make_loss(name, parameter)
    # The kinks themselves have the smallest step, which no positive curvature reaches.
    distance = abs(abs(y - m) - (parameter or 0.0)) if name == "epsilon_insensitive" else 1.0
    if min(abs(y - m), abs(1 - y * m), distance) < 1e-6:
        return
    assert loss.dual_step(m, 0.0, y) == pytest.approx(loss.dual_step(m, 1e-14, y), abs=1e-6)


def test_step_of_a_row_just_inside_its_margin_is_a_part_of_the_whole_one():
    assert make_loss("hinge").dual_step(1 - 1e-6, 1e-5, 1.0) == pytest.approx(0.1)
    assert make_loss("absolute").dual_step(2.0, 1e-9, 2.0 - 1e-10) == pytest.approx(-0.1)


def test_step_of_a_zero_row_at_a_tie_is_zero():
    assert make_loss("hinge").dual_step(1.0, 0.0, 1.0) == 0.0
    assert make_loss("absolute").dual_step(2.0, 0.0, 2.0) == 0.0
    assert make_loss("hinge").dual_step(0.0, 0.0, -1.0) == -1.0


@EXAMPLES
@given(
    sign=st.sampled_from([-1.0, 1.0]),
    m=st.floats(-300, 300).map(lambda e: 10.0**e),
    s=st.floats(-300, 300).map(lambda e: 10.0**e),
)
def test_logistic_step_is_a_number_in_its_domain_at_any_scale(sign, m, s):
    b, conjugate = _steps.logistic_step(sign * m, s)
    assert 0.0 <= b <= 1.0
    assert -0.6932 <= conjugate <= 0.0
    assert conjugate == pytest.approx(_scalar.xlogx(b) + _scalar.xlogx(1 - b), abs=1e-15)


@EXAMPLES
@given(c=st.floats(-700, 700), s=st.floats(-12, 300).map(lambda e: 10.0**e))
@example(c=-1.0, s=1e300)
@example(c=500.0, s=1e200)
@example(c=-700.0, s=350.0)
def test_logistic_step_solves_its_equation(c, s):
    """For large s Newton's steps alone would advance by one unit at a time."""
    b, _ = _steps.logistic_step(c, s)
    expected = reference._logistic(c, s)
    assert b == pytest.approx(expected, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(("name", "parameter"), CASES)
@EXAMPLES
@given(z=SCORES, y=LABELS, place=st.floats(0, 1))
def test_gap_term_is_never_negative_and_zero_at_the_slope(name, parameter, z, y, place):
    y, loss = label_of(name, y), make_loss(name, parameter)
    lo, hi = reference.domain(name, y, parameter)
    lo, hi = max(lo, -4.0), min(hi, 4.0)
    tau = min(max(lo + place * (hi - lo), lo), hi)
    term = _steps.gap_term(z, tau, y, tuple(loss.numbers))
    expected = loss.value(z, y) + reference.conjugate(name, tau, y, parameter) + tau * z
    assert term >= 0.0
    assert term == pytest.approx(expected, abs=1e-10)
    at_optimum = _steps.gap_term(z, -loss.slope(z, y), y, tuple(loss.numbers))
    assert at_optimum == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("name", ["squared", "squared_hinge"])
@pytest.mark.parametrize("z", [1e160, -1e160, 1e200, -1e300])
@pytest.mark.parametrize("tau", [0.0, 1.0, 1e150])
def test_gap_term_that_overflows_is_no_better_than_the_truth(name, z, tau):
    """The true term is about z^2 / 2, or at least -tau z: never 0 where it cannot be computed."""
    y = 1.0
    term = _steps.gap_term(z, tau, y, tuple(make_loss(name).numbers))
    is_zero = name == "squared_hinge" and z > 1.0
    assert term == (pytest.approx(tau * z, rel=1e-9) if is_zero and tau * z < 1e308 else np.inf)


def test_stable_functions_at_the_ends():
    assert _scalar.sigmoid(1e4) == 1.0
    assert _scalar.sigmoid(-1e4) == 0.0
    assert _scalar.log1pexp(1e4) == 1e4
    assert _scalar.log1pexp(-1e4) == 0.0
    assert _scalar.xlogx(0.0) == 0.0
    assert _scalar.soft(-3.0, 1.0) == -2.0
    assert _scalar.clip(5.0, -1.0, 1.0) == 1.0


def test_exp_and_log_of_sums_and_products_meet_the_library():
    rng = np.random.default_rng(0)
    for x in np.concatenate([rng.uniform(-708, 709, 2000), rng.uniform(-1, 1, 500), [0.0]]):
        assert _scalar.exp_of(x) == pytest.approx(math.exp(x), rel=4e-16)
        z = max(x, -700.0)
        assert _scalar.sigmoid_of(z) == pytest.approx(_scalar.sigmoid(z), rel=1e-15)
    for x in np.exp(rng.uniform(-700, 700, 2000)):
        assert _scalar.log_of(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-16)
    assert _scalar.log_of(1.0) == 0.0 and _scalar.exp_of(0.0) == 1.0
    assert math.isnan(_scalar.exp_of(math.nan))
