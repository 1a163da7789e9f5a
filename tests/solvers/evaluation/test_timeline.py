"""Timeline: evenly spaced points, a bounded number, plain means between two of them."""

import numpy as np
import pytest

from dualstream.solvers import CorruptState, Progressive, dump
from dualstream.solvers.evaluation.timeline import POINTS, Timeline
from dualstream.solvers.jit import DISABLED


def counted(n, *, batch=None, learned=None):
    """Progressive metrics of n rows whose losses are 1, 2, ...; and these losses."""
    losses = np.arange(1.0, n + 1)
    learned = np.ones(n, bool) if learned is None else learned
    metrics = Progressive("binary")
    for at in range(0, n, batch or n or 1):
        some = slice(at, at + (batch or n))
        ones = np.ones(len(losses[some]))
        metrics.update(ones, -ones, losses[some], learned[some], at + 1)
    return metrics, losses[learned]


@pytest.mark.parametrize("n", [0, 1, 5, 255, 256, 257, 1000] if DISABLED else [0, 1, 256, 9999])
def test_points_are_evenly_spaced_and_hold_the_means_of_both_stretches(n):
    metrics, losses = counted(n)
    points = metrics.timeline()
    spacing = 1
    while n // spacing >= POINTS:
        spacing *= 2
    rows = list(range(spacing, n + 1, spacing))
    rows += [n] if n % spacing else []
    assert [point["rows"] for point in points] == rows
    assert len(points) <= POINTS
    before = 0
    for point in points:
        upto = point["rows"]
        assert point["since_start"]["loss"] == pytest.approx(losses[:upto].mean())
        assert point["since_start"]["error_rate"] == 1.0
        assert point["rolling"]["rows"] == upto - before
        assert point["rolling"]["loss"] == pytest.approx(losses[before:upto].mean())
        before = upto


def test_rejected_rows_make_no_points():
    learned = np.arange(700) % 3 > 0
    metrics, losses = counted(700, learned=learned)
    assert metrics.timeline()[-1]["rows"] == learned.sum()
    assert metrics.timeline()[-1]["since_start"]["loss"] == pytest.approx(losses.mean())


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_cuts_leave_no_trace(batch):
    learned = np.arange(1100) % 5 > 0
    whole, _ = counted(1100, learned=learned)
    parts, _ = counted(1100, batch=batch, learned=learned)
    assert dump(whole.state(), {}) == dump(parts.state(), {})


def test_points_of_another_number_of_rows_are_refused():
    with pytest.raises(CorruptState):
        Timeline.of({"timeline_sums": np.zeros((3, 6))}, 4, 6)
