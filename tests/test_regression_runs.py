"""What load_tests.regression counts, against counts by hand."""

import numpy as np

from dualstream.solvers import resolve_spec
from load_tests.regression import ours
from load_tests.regression.runs import Errors
from load_tests.regression.standings import BASELINES, baselines
from load_tests.regression.tables import PURPOSES

Y = np.array([1.0, 3.0, 2.0, 6.0])


def test_errors_leave_row_1_out_and_take_no_number_as_0():
    assert Errors.of(np.array([9.0, 3.0, np.nan, 2.0]), Y) == Errors(2.0, np.sqrt(20.0 / 3.0))


def test_baselines_see_only_what_came_before():
    mean, last = (baselines(Y)[name] for name in BASELINES)
    assert mean == Errors.of(np.array([0.0, 1.0, 2.0, 2.0]), Y)
    assert last == Errors.of(np.array([0.0, 1.0, 3.0, 2.0]), Y)


def test_every_list_is_a_specification_and_every_member_is_described():
    assert set(PURPOSES) == set(ours.NAMES)
    for spec in (ours.CHOSEN, *ours.ALONE.values(), *ours.WITHOUT.values(), *ours.OTHERS.values()):
        resolve_spec(spec)
