"""The schedule by its definition: available labels, retrainings, windows, blocks."""

import numpy as np
import pytest

from dualstream.client import BadInput
from dualstream.service.compare.options import Options, Span, span_of
from dualstream.service.compare.schedule import BLOCK, MIN_TRAINING, Schedule

TIMES = np.cumsum(np.random.default_rng(0).exponential(100.0, 5_000)).round()


def schedule(rows: int = 5_000, **spans: str) -> Schedule:
    options = Options(**{name: span_of(name, text) for name, text in spans.items()})
    return Schedule.of(rows, TIMES[:rows], options)


def test_spans_are_rows_or_times():
    assert span_of("--delay", "5_000") == Span(5_000, None, "5_000")
    assert span_of("--delay", "1.5d").seconds == 129_600.0
    for text in ("", "1.5", "-3", "7 days", "1y", "d"):
        with pytest.raises(BadInput, match="--delay must be a number of rows or a time"):
            span_of("--delay", text)


@pytest.mark.parametrize("delay", ["0", "1", "300", "1h", "1d"])
def test_a_label_is_available_after_the_delay(delay):
    got, late = schedule(delay=delay), span_of("", delay)
    for row in range(0, 5_000, 37):
        if late.seconds is None:
            labels = [at for at in range(row) if at + late.rows < row]
        else:
            labels = [at for at in range(row) if TIMES[at] + late.seconds <= TIMES[row]]
        assert got.available[row] == len(labels), row


def test_twenty_retrainings_are_at_equal_distances():
    got = schedule(rows=2_100)
    assert got.retrainings == [100 * part for part in range(1, 21)]
    assert got.starts == [0] * 20


def test_windows_have_the_newest_labelled_rows():
    got = schedule(retrain_every="1000", window="700", delay="250")
    assert got.retrainings == [1_000, 2_000, 3_000, 4_000]
    assert got.starts == [50, 1_050, 2_050, 3_050]
    timed = schedule(retrain_every="1d", window="2d")
    for number, (row, start) in enumerate(zip(timed.retrainings, timed.starts, strict=True), 1):
        due = TIMES[0] + number * 86_400.0
        assert TIMES[row - 1] < due <= TIMES[row]
        assert start == sum(TIMES < TIMES[row] - 172_800.0)


def test_a_retraining_is_left_out_if_its_window_is_empty():
    times = np.concatenate([np.arange(100.0), 1e6 + np.arange(100.0)])
    options = Options(retrain_every=span_of("", "25"), window=span_of("", "50s"))
    got = Schedule.of(200, times, options)
    assert got.retrainings == [25, 50, 75, 125, 150, 175]  # not 100: all rows are too old
    assert got.starts == [0, 0, 25, 100, 100, 125]


@pytest.mark.parametrize("delay", ["0", "40", "1000", "6h"])
def test_blocks_cover_all_rows_once(delay):
    got = schedule(delay=delay, retrain_every="900")
    first = 0
    for block in got.blocks():
        assert block.first == first < block.stop <= first + BLOCK
        assert block.retrains == (first in got.retrainings)
        available = got.available[first : block.stop]
        groups = np.flatnonzero(np.diff(block.labelled, prepend=-1))
        np.testing.assert_array_equal(block.labelled[groups], available[groups])
        missing = np.arange(first, block.stop) - available
        withheld = available - block.labelled
        assert (withheld <= (missing + withheld) // 100).all() and (withheld >= 0).all()
        first = block.stop
    assert first == 5_000


def test_a_schedule_without_retrainings_is_refused():
    for spans in ({"retrain_every": "5000"}, {"delay": "4995"}, {"retrain_every": "1w"}):
        with pytest.raises(BadInput, match="no retraining"):
            schedule(**spans)
    with pytest.raises(BadInput, match="rows, labels 2d late in a window of 1d"):
        schedule(window="1d", delay="2d")
    assert schedule(delay=str(4_761 - MIN_TRAINING)).retrainings == [4_761]


def test_a_retraining_needs_a_row_in_its_interval():
    got = schedule(retrain_every="1s")  # 100 intervals a row
    due = [row for row in range(1, 5_000) if TIMES[row] >= TIMES[row - 1] + 1.0]
    assert got.retrainings == [row for row in due if row >= MIN_TRAINING]
