"""What load_tests.regression counts, against counts by hand."""

import numpy as np

from dualstream.solvers import resolve_spec
from load_tests.regression import ours
from load_tests.regression.runs import Errors
from load_tests.regression.standings import BASELINES, Standing, baselines
from load_tests.regression.tables import PURPOSES, losses, worse

Y = np.array([1.0, 3.0, 2.0, 6.0])


def test_errors_leave_row_1_out_and_take_no_number_as_0():
    assert Errors.of(np.array([9.0, 3.0, np.nan, 2.0]), Y) == Errors(2.0, np.sqrt(20.0 / 3.0))


def test_baselines_see_only_what_came_before():
    mean, last = (baselines(Y)[name] for name in BASELINES)
    assert mean == Errors.of(np.array([0.0, 1.0, 2.0, 2.0]), Y)
    assert last == Errors.of(np.array([0.0, 1.0, 3.0, 2.0]), Y)


def test_every_list_is_a_specification_and_every_member_is_described():
    assert set(PURPOSES) == set(ours.NAMES)
    for spec in (
        ours.CHOSEN,
        ours.FULL,
        *ours.ALONE.values(),
        *ours.WITHOUT.values(),
        *ours.OTHERS.values(),
    ):
        resolve_spec(spec)


def stand(name, *, full, ten, best):
    """A stream with these mean absolute errors."""
    full, ten, best = (Errors(mae, 2.0) for mae in (full, ten, best))
    others = {"vw": Errors(9.0, 1.0), "river_lr": best}
    return Standing(name, 10, 2, ten, full, (1.0, 2.0), {}, {}, {}, {}, others)


def test_streams_are_listed_where_others_or_ten_win():
    won, lost = (
        stand("won", full=1.0, ten=1.5, best=1.01),
        stand("lost", full=2.0, ten=1.6, best=1.0),
    )
    assert won.ratios("full") == (1.0 / 1.01, 2.0)
    assert lost.ratios() == (1.6, 2.0)
    assert losses([won, lost]) == (
        "- **won**, RMSE: vw 1; `full` 2.\n"
        "- **lost**, MAE: river_lr 1; `full` 2.\n"
        "- **lost**, RMSE: vw 1; `full` 2.\n"
    )
    assert worse([won, lost]) == "- **lost**: MAE 25% larger (2 / 2 against 1.6 / 2).\n"
    assert losses([]) == "- none.\n"
