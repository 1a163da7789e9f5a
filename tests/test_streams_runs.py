"""What load_tests.streams counts, against counts by hand."""

import numpy as np
import pytest

from load_tests.streams.cases import kappa_temporal, newest_labels
from load_tests.streams.prequential import Peer, scores
from load_tests.streams.runs import Run


class Diary(Peer):
    """Records its calls."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def score(self, row: int) -> float:
        self.entries.append(f"score {row}")
        return float(row)

    def learn(self, row: int) -> None:
        self.entries.append(f"learn {row}")


def test_row_is_learned_once_the_row_that_many_later_is_scored():
    diary = Diary()
    assert scores(diary, 3, delay=1).tolist() == [0.0, 1.0, 2.0]
    assert diary.entries == ["score 0", "score 1", "learn 0", "score 2", "learn 1"]


def test_row_without_delay_is_learned_before_the_next_is_scored():
    diary = Diary()
    assert scores(diary, 2).tolist() == [0.0, 1.0]
    assert diary.entries == ["score 0", "learn 0", "score 1", "learn 1"]


def test_run_counts_mistakes_in_blocks():
    result = Run.of(
        np.array([0.0, 1.0, -2.0, 5.0, -1.0]), np.array([1.0, -1.0, -1.0, -1.0, 1.0]), 2
    )
    assert result.mistakes == 60.0
    assert result.counts == (1, 1, 1)


def test_loss_is_that_of_the_clipped_score():
    result = Run.of(np.array([1000.0, 0.0]), np.array([-1.0, 1.0]), 1)
    assert result.log_loss == pytest.approx((30.0 + np.log(2.0)) / 2, abs=1e-5)


def test_rolling_mistakes_are_over_the_last_blocks_alone():
    run = Run(0.0, 0.0, rows=5, block=2, counts=(2, 0, 1))
    rows, errors = run.rolling(2)
    assert rows.tolist() == [2, 4, 5]
    assert errors.tolist() == pytest.approx([100.0, 50.0, 100.0 / 3.0])


def test_kappa_temporal_compares_with_the_last_known_label():
    labels = np.array([1.0, 1.0, -1.0, 1.0])
    assert newest_labels(labels, 0).tolist() == [0.0, 1.0, 1.0, -1.0]
    assert newest_labels(labels, 1).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert kappa_temporal(15.0, 60.0) == 0.75
    assert kappa_temporal(60.0, 60.0) == 0.0
