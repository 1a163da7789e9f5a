"""Progressive (test-then-train) metrics: each row is scored before it is learned.

Each learned row counts once, whatever its weight; rejected rows do not count. There are three views
of the same rows: since the start, the last 1,000 (exactly), and fading by 0.999 per row; and a
timeline. Two baselines that use only labels are counted alongside the model, and two drift
detectors watch the losses. Binary models also have the AUC and the average precision. All this is
part of the replicated state: the same rows give the same bits, independent of batch boundaries.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.drift import DriftWatch
from dualstream.solvers.evaluation.ranking import NAMES, RECENT, Ranking
from dualstream.solvers.evaluation.timeline import HELD, POINTS, SPACING, Timeline
from dualstream.solvers.jit import B1, F8, F8_2D, I8, RO_F8, RO_F8_2D, Bytes, Flags, Floats, kernel
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.scalar import log1pexp
from dualstream.solvers.spec_cache import SharedDerived

FADING = 0.999
"""Factor of a row's weight per later row, in the fading view."""

MAX_PENDING_ROWS, MAX_PENDING_BATCHES = 4096, 16
"""Maximum pending rows, and pending batches: they take 100 kB or less."""

PendingBatch = tuple[Floats, Floats, Floats, Flags, int]
"""Labels, scores, losses and rejected flags of a batch, and the log position of its first row."""

LARGEST_TERM = 1e290
"""Terms are clipped to this, so one absurd row cannot make a sum infinite."""

# Quantities that are summed per row. Classes: errors are 0 or 1. Regression: absolute and squared
# errors.
_CLASSES = ("loss", "error_rate", "log_loss", "most_frequent", "last_label")
_REGRESSION = ("loss", "mae", "mse", "mean_mae", "mean_mse", "last_mae", "last_mse")

_NO_RANKING: Mapping[str, float | None] = {}
_NO_FIGURES: Mapping[str, float | None] = dict.fromkeys(NAMES)

# What is stored of the labels. Regression uses the sum and the last one.
_N_NEGATIVE, _N_POSITIVE, _FIRST, _LAST, _SUM = range(5)


class _Counted:
    """Sums over the counted rows.

    rows    (1,) int64          their number
    labels  (5,)                what is stored of their labels
    sums    (2, columns + 1)    since the start, and fading; last the weight
    recent  (RECENT, columns)   row t at t mod RECENT
    """

    __slots__ = ("drift", "labels", "ranking", "recent", "rows", "sums", "timeline")

    def __init__(self, columns: int, scaled: Collection[str], is_ranked: bool) -> None:
        self.rows = np.zeros(1, np.int64)
        self.labels = np.zeros(5)
        self.sums = np.zeros((2, columns + 1))
        # Uninitialised: most models never use all 40 kB, and no row is read before it is written.
        self.recent = np.empty((RECENT, columns))
        self.timeline = Timeline(columns + 1)
        self.drift = DriftWatch(scaled)
        self.ranking = Ranking() if is_ranked else None

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        arrays = (self.rows, self.labels, self.sums, self.recent)
        ranking = 0 if self.ranking is None else self.ranking.bytes_held
        parts = ranking + self.timeline.bytes_held + self.drift.bytes_held
        return sum(map(getsizeof, arrays)) + parts


class _NoRowsCounted(_Counted, SharedDerived):
    """The sums of every model without counted rows, shared and read-only."""

    __slots__ = ()


_no_rows_counted = cache(_NoRowsCounted)


class Progressive:
    """Metrics of a `task`; `log_loss` if scores are log odds.

    scaled      the drift detectors that divide losses by their mean
    is_ranked   whether a binary model has the AUC and the average precision
    """

    __slots__ = (
        "_counted", "_is_ranked", "_pending", "_pending_rows", "_scaled", "log_loss", "task",
    )  # fmt: skip

    def __init__(
        self,
        task: str,
        *,
        log_loss: bool = False,
        scaled: Collection[str] = (),
        is_ranked: bool = False,
    ) -> None:
        self.task = task
        self.log_loss = log_loss
        self._scaled = scaled
        self._is_ranked = is_ranked
        shape = len(self._names), tuple(scaled), is_ranked
        self._counted: _Counted = _no_rows_counted(*shape)
        # Pending rows that are not counted yet, in order.
        self._pending: list[PendingBatch] = []
        self._pending_rows = 0

    @property
    def _names(self) -> tuple[str, ...]:
        return _REGRESSION if self.task == "regression" else _CLASSES

    @property
    def rows(self) -> int:
        """Rows counted."""
        self._catch_up()
        return int(self._counted.rows[0])

    @property
    def drift(self) -> DriftWatch:
        """The detectors, after all rows."""
        self._catch_up()
        return self._counted.drift

    def count(self, batch: Batch, outcome: Outcome, first_seq: int = 1) -> None:
        """Count the learned rows of a batch, in order; the first is at log position `first_seq`."""
        # Counted on demand, because learning does not depend on it: a model that is loaded for one
        # row and evicted again would otherwise count thousands of replayed rows that no client
        # reads.
        labels = batch.labels
        if labels.base is not None:
            labels = labels.copy()  # avoids keeping a whole request body alive
        pending = self._pending
        pending.append((labels, outcome.scores, outcome.losses, outcome.rejected, first_seq))
        self._pending_rows += len(labels)
        if self._pending_rows > MAX_PENDING_ROWS or len(pending) > MAX_PENDING_BATCHES:
            self._catch_up()

    def _catch_up(self) -> None:
        """Count the pending rows; consecutive batches are counted together."""
        if not self._pending:
            return
        pending, self._pending, self._pending_rows = self._pending, [], 0
        for batches in _consecutive(pending):
            columns = zip(*batches, strict=True)
            labels, scores, losses, rejected = map(_joined, islice(columns, 4))
            self.update(labels, scores, losses, ~rejected, batches[0][-1])

    def _none_counted(self) -> _Counted:
        return _Counted(len(self._names), self._scaled, self._is_ranked)

    def _to_count_in(self) -> _Counted:
        """The sums, of this model alone."""
        if isinstance(self._counted, _NoRowsCounted):
            self._counted = self._none_counted()
        return self._counted

    def update(
        self, labels: Floats, scores: Floats, losses: Floats, learned: Flags, first_seq: int = 1
    ) -> None:
        """Count the learned rows, in order; all arrays are (n,), as in Outcome."""
        self._catch_up()
        counted = self._to_count_in()
        counted.drift.watch(losses, learned, first_seq, int(counted.rows[0]))
        if counted.ranking is not None:
            counted.ranking.add(labels, scores, learned, int(counted.rows[0]))
        row, timeline = 0, counted.timeline
        if len(labels) > len(timeline.points):
            timeline.make_room(len(labels))
        while True:
            row = count_rows(
                labels, scores, losses, learned, row, self.task == "binary", self.log_loss,
                counted.rows, counted.labels, counted.sums, counted.recent,
                timeline.points, timeline.place,
            )  # fmt: skip
            if row == len(labels):
                return
            timeline.make_room(len(labels) - row)

    def _add(self, terms: Floats, learned: Flags) -> None:
        """Add the learned rows, whose quantities are in `terms` (n, m)."""
        counted = self._to_count_in()
        row, timeline = 0, counted.timeline
        while True:
            row = add_rows(
                terms, learned, row,
                counted.rows, counted.sums, counted.recent, timeline.points, timeline.place,
            )  # fmt: skip
            if row == len(terms):
                return
            timeline.make_room(len(terms) - row)

    def summary(self) -> dict[str, Any]:
        """The means of all three views; None without rows, or without such a quantity.

        Binary models have `auc` and `average_precision`, except in the fading view; None while one
        class is missing.
        `drift` has the number of events of each detector: losses that rose, and losses that fell.
        """
        self._catch_up()
        total, faded = self._counted.sums
        recent = np.zeros(len(total))
        count = min(self.rows, RECENT)
        sum_rows(self._counted.recent, count, recent)
        rankings: Sequence[Mapping[str, float | None]] = [_NO_RANKING] * 2
        if self.task == "binary":
            ranking = self._counted.ranking
            rankings = [_NO_FIGURES] * 2 if ranking is None else ranking.figures(self.rows)
        return {
            "rows": self.rows,
            "since_start": self._view(total, rankings[0]),
            "rolling": {"rows": count} | self._view(recent, rankings[1]),
            "fading": self._view(faded),
            "drift": self.drift.counts(),
        }

    def recent_scores(self) -> tuple[Floats, Bytes]:
        """Scores (n,) of the last 1,000 rows of a ranked model, and 1 for positive labels."""
        n, ranking = min(self.rows, RECENT), self._counted.ranking
        assert ranking is not None
        return ranking.scores[:n], ranking.positive[:n]

    def timeline(self) -> list[dict[str, Any]]:
        """Points of the stream so far, oldest first: `rows`, and the means of two stretches.

        `since_start` is of all rows up to that one, `rolling` of those since the previous point.
        The last point is the current one.
        """
        self._catch_up()
        sums = self._counted.sums[0]
        points = [*self._counted.timeline.sums, sums]
        stretches, before = [], np.zeros(len(sums))
        for sums in points:
            if sums[-1] > before[-1]:
                between = {"rows": int(sums[-1] - before[-1])} | self._view(sums - before)
                stretches.append(
                    {"rows": int(sums[-1]), "since_start": self._view(sums), "rolling": between}
                )
            before = sums
        return stretches

    def _view(self, sums: Floats, ranking: Mapping[str, Any] = _NO_RANKING) -> dict[str, Any]:
        """Means by name, and `ranking`; the last of `sums` is the weight of all rows."""
        weight = float(sums[-1])
        means = {
            name: float(number) / weight if weight > 0.0 else None
            for name, number in zip(self._names, sums[:-1], strict=True)
        }
        if self.task != "regression":
            return {
                "loss": means["loss"],
                "error_rate": means["error_rate"],
                "log_loss": means["log_loss"] if self.log_loss else None,
                **ranking,
                "baselines": {
                    "most_frequent": {"error_rate": means["most_frequent"]},
                    "last_label": {"error_rate": means["last_label"]},
                },
            }
        return {
            "loss": means["loss"],
            "mae": means["mae"],
            "rmse": _root(means["mse"]),
            "baselines": {
                "running_mean": {"mae": means["mean_mae"], "rmse": _root(means["mean_mse"])},
                "last_label": {"mae": means["last_mae"], "rmse": _root(means["last_mse"])},
            },
        }

    def state(self) -> State:
        """The state, as copies."""
        self._catch_up()
        counted = self._counted
        return {
            "metrics_rows": counted.rows.copy(),
            "metrics_labels": counted.labels.copy(),
            "metrics_sums": counted.sums.copy(),
            "metrics_recent": counted.recent[: min(self.rows, RECENT)].copy(),
            **counted.timeline.state(),
            **counted.drift.state(),
            **({} if counted.ranking is None else counted.ranking.state(self.rows)),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state, to the bit. Raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"metrics_rows": (1,)})
        rows = int(state["metrics_rows"][0])
        if rows < 0:
            raise CorruptState("a count of rows is negative")
        count, counted = min(rows, RECENT), self._none_counted()
        check_arrays(
            state,
            {
                "metrics_labels": counted.labels.shape,
                "metrics_sums": counted.sums.shape,
                "metrics_recent": (count, len(self._names)),
            },
        )
        counted.timeline = Timeline.of(state, rows, len(self._names) + 1)
        counted.drift = DriftWatch.of(state, self._scaled)
        if self._is_ranked:
            counted.ranking = Ranking.of(state, rows)
        counted.rows[0] = rows
        counted.labels[:] = state["metrics_labels"]
        counted.sums[:] = state["metrics_sums"]
        counted.recent[:count] = state["metrics_recent"]
        self._pending, self._pending_rows = [], 0
        self._counted = counted


def _consecutive(pending: Sequence[PendingBatch]) -> Iterator[Sequence[PendingBatch]]:
    """Group the batches into runs without gaps in log positions."""
    first, end = 0, pending[0][-1]
    for number, (labels, *_, first_seq) in enumerate(pending):
        if first_seq != end:
            yield pending[first:number]
            first = number
        end = first_seq + len(labels)
    yield pending[first:]


def _joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _root(mean: float | None) -> float | None:
    return None if mean is None else math.sqrt(mean)


@kernel
def errors_of(guess: float, y: float) -> tuple[float, float]:
    """Absolute and squared error, bounded."""
    error = min(abs(guess - y), 1e145)
    return error, error * error


@kernel(inline=True)
def add_row(at: int, rows: I8, sums: F8_2D, recent: F8_2D, points: F8_2D, timeline: I8) -> None:
    """Add row `at` of `recent`, the next one, to the sums; then add a point to the timeline if due.

    points, timeline  those of a Timeline that has room for one more point
    """
    m = recent.shape[1]
    # Unsigned, so that numba skips the check for negative indices.
    for j in range(np.uint64(m)):
        sums[0, j] += recent[at, j]
        sums[1, j] = FADING * sums[1, j] + recent[at, j]
    sums[0, m] += 1.0
    sums[1, m] = FADING * sums[1, m] + 1.0
    rows[0] += 1
    if rows[0] < timeline[SPACING] * (timeline[HELD] + 1):
        return
    for j in range(m + 1):
        points[timeline[HELD], j] = sums[0, j]
    timeline[HELD] += 1
    if timeline[HELD] == POINTS:
        timeline[HELD] //= 2
        for k in range(timeline[HELD]):
            for j in range(m + 1):
                points[k, j] = points[2 * k + 1, j]
        timeline[SPACING] *= 2


@kernel
def count_rows(
    labels: RO_F8,
    scores: RO_F8,
    losses: RO_F8,
    learned: B1,
    row: int,
    binary: bool,
    log_loss: bool,
    rows: I8,
    seen: F8,
    sums: F8_2D,
    recent: F8_2D,
    points: F8_2D,
    timeline: I8,
) -> int:
    """Add the learned rows from `row` on to every view, in order; return the first uncounted row.

    rows    (1,)          rows counted so far
    seen    (5,)          what is stored of the labels
    sums    (2, m + 1)    since the start, and fading; last the weight
    recent  (RECENT, m)   row t at t mod RECENT
    points, timeline      those of a Timeline; counting stops when it has no room
    """
    at = rows[0] % recent.shape[0]
    for i in range(row, labels.shape[0]):
        if not learned[i]:
            continue
        if timeline[HELD] == points.shape[0]:
            return i
        y, score = labels[i], scores[i]
        recent[at, 0] = min(losses[i], LARGEST_TERM)
        if binary:
            positive = y > 0.0
            recent[at, 1] = 1.0 if positive != (score >= 0.0) else 0.0
            recent[at, 2] = (
                min(log1pexp(-score if positive else score), LARGEST_TERM) if log_loss else 0.0
            )
            ahead = seen[_N_POSITIVE] - seen[_N_NEGATIVE]
            guess = ahead > 0.0 or (ahead == 0.0 and seen[_FIRST] > 0.0)
            recent[at, 3] = 1.0 if positive != guess else 0.0
            recent[at, 4] = 1.0 if positive != (seen[_LAST] > 0.0) else 0.0
            seen[_N_POSITIVE if positive else _N_NEGATIVE] += 1.0
            seen[_LAST] = 1.0 if positive else -1.0
            if seen[_FIRST] == 0.0:
                seen[_FIRST] = seen[_LAST]
        else:
            mean = seen[_SUM] / rows[0] if rows[0] > 0 else 0.0
            recent[at, 1], recent[at, 2] = errors_of(score, y)
            recent[at, 3], recent[at, 4] = errors_of(mean, y)
            recent[at, 5], recent[at, 6] = errors_of(seen[_LAST], y)
            seen[_SUM] += y
            seen[_LAST] = y
        add_row(at, rows, sums, recent, points, timeline)
        at = at + 1 if at + 1 < recent.shape[0] else 0
    return len(labels)


@kernel
def add_rows(
    terms: RO_F8_2D,
    learned: B1,
    row: int,
    rows: I8,
    sums: F8_2D,
    recent: F8_2D,
    points: F8_2D,
    timeline: I8,
) -> int:
    """Like `count_rows`, for rows whose quantities are already in `terms` (n, m)."""
    for i in range(row, terms.shape[0]):
        if not learned[i]:
            continue
        if timeline[HELD] == points.shape[0]:
            return i
        at = rows[0] % recent.shape[0]
        for j in range(recent.shape[1]):
            recent[at, j] = terms[i, j]
        add_row(at, rows, sums, recent, points, timeline)
    return len(terms)


@kernel
def sum_rows(recent: F8_2D, count: int, out: F8) -> None:
    """out (m + 1,): the sum of the first `count` rows, in order, and their number."""
    m = recent.shape[1]
    for t in range(count):
        for j in range(m):
            out[j] += recent[t, j]
        out[m] += 1.0
