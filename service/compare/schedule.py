"""Which labels are available when a row is predicted, when peers are retrained, and blocks of rows.

The label of row j is available to row t if j < t and `delay` rows, or as much time, lie between
them. Late labels arrive in groups of a hundredth of those that are still missing, for everyone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dualstream.client import BadInput
from dualstream.service.compare.options import RETRAININGS, Options, Span
from dualstream.solvers.jit import Floats, Ints

BLOCK = 2_000
"""Rows of a block at most."""
MIN_TRAINING = 10
"""Labels that a peer is trained on at least."""


class Block(NamedTuple):
    """Rows that are predicted together."""

    first: int
    stop: int
    labelled: Ints
    """(stop - first,): to each row, how many labels of the first rows are available."""
    retrains: bool
    """Are peers trained before it?"""


@dataclass(slots=True)
class Schedule:
    """The schedule of `rows` rows."""

    rows: int
    available: Ints
    """(rows,): labels that are available to each row."""
    retrainings: list[int]
    """Rows before which peers are trained."""
    starts: list[int]
    """Of each, the first row of its window."""
    is_delayed: bool
    """Do labels arrive late, in groups?"""

    @classmethod
    def of(cls, rows: int, times: Floats, options: Options) -> "Schedule":
        """Raises BadInput if no peer would ever be trained."""
        available = _available(rows, times, options.delay)
        retrainings, starts = [], []
        for row in _retrainings(rows, times, options.retrain_every):
            start = _start(row, int(available[row]), times, options.window)
            if available[row] >= max(MIN_TRAINING, start + 1):  # the window is not empty
                retrainings.append(row)
                starts.append(start)
        if not retrainings:
            every = "" if options.retrain_every is None else f" every {options.retrain_every}"
            late = f", labels {options.delay} late" if options.delay else ""
            seen = f" in a window of {options.window}"
            raise BadInput(
                f"no retraining{every} fits into {rows:,} rows{late}{seen}; give a shorter"
                " --retrain-every or --delay, or a longer --window"
            )
        return cls(rows, available, retrainings, starts, bool(options.delay))

    def blocks(self) -> Iterator[Block]:
        """All rows in order. Peers are retrained at the beginning of a block."""
        ends = [*self.retrainings, self.rows]
        due, first = iter(ends), 0
        next_end = next(due)
        while first < self.rows:
            retrains = first == next_end
            if retrains:
                next_end = next(due)
            stop = min(next_end, first + BLOCK)
            yield Block(first, stop, self._labelled(first, stop), retrains)
            first = stop

    def _labelled(self, first: int, stop: int) -> Ints:
        """Labels that are available to rows, in whole groups from the first row on."""
        available = self.available[first:stop]
        if not self.is_delayed:
            return available
        labelled, row = np.empty(len(available), np.int64), 0
        while row < len(available):
            count = int(available[row])
            group = max(1, (first + row - count) // 100)
            end = max(row + 1, int(np.searchsorted(available, count + group)))
            labelled[row:end] = count
            row = end
        return labelled


def _available(rows: int, times: Floats, delay: Span) -> Ints:
    at = np.arange(rows)
    if delay.seconds is None:
        return np.maximum(at - min(delay.rows, rows), 0)
    return np.minimum(np.searchsorted(times, times - delay.seconds, side="right"), at)


def _retrainings(rows: int, times: Floats, every: Span | None) -> list[int]:
    if every is None:
        parts = RETRAININGS + 1
        return sorted({rows * part // parts for part in range(1, parts)})
    if every.seconds is None:
        return list(range(every.rows, rows, every.rows))
    intervals = np.floor((times - times[0]) / every.seconds)
    return [int(row) for row in np.flatnonzero(np.diff(intervals) > 0.0) + 1]


def _start(row: int, labelled: int, times: Floats, window: Span) -> int:
    if window.seconds is None:
        return max(0, labelled - window.rows)
    return min(int(np.searchsorted(times, times[row] - window.seconds)), labelled)
