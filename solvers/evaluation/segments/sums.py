"""SegmentSums: progressive metrics of the rows with each value of some columns.

A segment is found by the feature that the value gives, `country=DE`, so a row needs nothing but its
features. A name counts from the row that brought it, as in the profile of columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.decisions.spec import ALERT_RATE
from dualstream.solvers.evaluation.intervals.spec import levels_of
from dualstream.solvers.evaluation.make_progressive import scores_are_log_odds
from dualstream.solvers.evaluation.segments import kernels as k
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.profile.kernels import (
    CODE_SHIFT,
    IS_CATEGORY,
    IS_MISSING,
    IS_NUMBER,
    enter_features,
)
from dualstream.solvers.profile.named_rows import NamedRows, Pairs
from dualstream.solvers.profile.names import column_names_of
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns.spec import name_of
from dualstream.solvers.spec_fields import INTERVALS, SEGMENTS

ALL, MISSING, OTHER = "(all)", "(missing)", "(other)"
"""Names of all rows, and of the segments of rows without a value, and with a value after the first
100."""
_LEAST_ROWS = 0.5
"""Weight up to which a segment has left the fading view."""
_TRUE, _FALSE = "true", "false"
_SHARED = {MISSING: k.MISSING, OTHER: k.OTHER, ALL: k.OTHER}
_TASKS = {"binary": k.BINARY, "regression": k.REGRESSION, "multiclass": k.MULTICLASS}
_NONE, _NO_MARKS = np.empty(0), np.empty((0, 0), np.uint8)


@dataclass(frozen=True, slots=True)
class SegmentMeans:
    """Means of the rows of a segment; None without such a quantity."""

    value: str
    rows: float
    harm: float
    """By how much the mean over all rows is higher than if this segment were like the average."""
    error_rate: float | None = None
    mae: float | None = None
    log_loss: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None
    coverage: dict[str, float | None] | None = None
    """Of the intervals or sets of each level."""
    alert_rate: float | None = None


class Totals(NamedTuple):
    """Sums over the rows of a segment, and rates in them."""

    sums: list[float | None]
    """(MARKS,); None for quantities that the model does not have."""
    coverage: dict[str, float | None]
    alert_rate: float | None


def marks_of(spec: Mapping[str, Any]) -> list[str]:
    """Names of the marks that rows of a model of this resolved specification have."""
    levels = levels_of(spec) if INTERVALS in spec else []
    return [*map(str, levels), *([ALERT_RATE] if ALERT_RATE in spec else [])]


class SegmentSums(NamedRows):
    """Sums by segment of a model's columns. Part of the replicated state; constant memory.

    The same rows give the same bits, independent of batch boundaries.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self._spec = spec
        self.columns: list[str] = spec[SEGMENTS]
        self._prefixes = tuple(self.columns)
        self._names = column_names_of(spec)
        self._task, self._has_log_loss = _TASKS[spec["task"]], scores_are_log_odds(spec)
        is_multiclass, is_regression = self._task == k.MULTICLASS, self._task == k.REGRESSION
        predicts = is_regression or (self._has_log_loss and not is_multiclass)
        self._has = (True, True, self._has_log_loss, predicts, not is_multiclass)
        """Which of the sums the model has."""
        types = spec["columns"]["types"]
        are_boolean = [name_of(types[name]) == "boolean" for name in self.columns]
        self._values = [[_TRUE, _FALSE] if one else [] for one in are_boolean]
        """Values of each column that have a segment, in order of arrival."""
        starts = 1 + k.SEGMENTS * np.arange(len(self.columns))
        self._absent: Ints = starts + np.where(are_boolean, k.FIRST + 1, k.MISSING)
        self._table = np.zeros(64, np.int64)
        self._features = 0
        self._marks = marks_of(spec)
        self._weight, self._terms = np.ones(1), np.zeros(k.MARKS + 2 * len(self._marks))
        shape = (k.VIEWS, 1 + k.SEGMENTS * len(self.columns), len(self._terms))
        self._sums = np.zeros(shape)

    # -- names -----------------------------------------------------------------------------------

    def _enter(self, pairs: Pairs) -> None:
        lines = [
            (index, line)
            for index, name in pairs
            if name.startswith(self._prefixes) and (line := self._line_of(name)) is not None
        ]
        if not lines:
            return
        self._features += len(lines)
        if 2 * self._features >= len(self._table):
            old = self._table[self._table != 0]
            self._table = np.zeros(1 << (2 * self._features).bit_length(), np.int64)
            indices = (old & ((1 << CODE_SHIFT) - 1)) - 1
            enter_features(self._table, indices, old >> CODE_SHIFT)
        entered = np.array(lines, np.int64)
        enter_features(self._table, *np.ascontiguousarray(entered.T))

    def _line_of(self, name: str) -> int | None:
        """The line of a feature, whose segment is added if it is new; None for other columns."""
        group = self._names.column_of(name)
        if group is None or group[0] not in self.columns:
            return None
        number = self.columns.index(group[0])
        start, values = 1 + k.SEGMENTS * number, self._values[number]
        if group[2] == IS_MISSING:
            return start + k.MISSING
        if group[2] == IS_NUMBER:  # a boolean that is true
            return start + k.FIRST
        if group[2] != IS_CATEGORY:
            return None
        value = name[len(group[0]) + 1 :]
        if value in _SHARED:
            return start + _SHARED[value]
        if len(values) == k.MAX_VALUES:
            return start + k.OTHER
        values.append(value)
        return start + k.FIRST + len(values) - 1

    # -- rows ------------------------------------------------------------------------------------

    def count(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        """As NamedRows; begins again where metrics do."""
        if (first := outcome.relearned) > 0:
            self._weight[0] = 1.0
            self._sums[:] = 0.0
            batch, outcome, first_seq = batch[first:], outcome[first:], first_seq + first
        super().count(batch, outcome, first_seq)

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        labels, scores, log_losses = batch.labels, outcome.scores, _NONE
        if self._task == k.MULTICLASS:
            if not batch.classes:  # no rows, or observed ones alone
                return
            # Imported on demand, because importing compiles its kernels.
            from dualstream.solvers.evaluation import class_progressive as classes

            class_labels = classes.class_labels(batch, outcome)
            mistakes = classes.mistakes_of(batch.classes, class_labels, outcome)
            labels, scores = np.zeros(len(batch)), mistakes.astype(np.float64)
            log_losses = _NONE if outcome.log_losses is None else outcome.log_losses
        marks = _NO_MARKS
        if self._marks:
            assert outcome.marks is not None
            marks = np.stack([outcome.marks[name] for name in self._marks])
        k.add_rows_to_segments(
            batch.indptr, batch.indices, labels, scores, log_losses, outcome.rejected, marks,
            self._task, self._has_log_loss, self._table, self._absent,
            self._weight, self._terms, self._sums,
        )  # fmt: skip

    # -- reading ---------------------------------------------------------------------------------

    def since_start(self, column: str) -> list[SegmentMeans]:
        """Segments of a column by all rows, the most harmful one first; before them all rows."""
        return self._means(column, self._sums[k.SINCE_START], 0.0)

    def fading(self, column: str) -> list[SegmentMeans]:
        """As `since_start`, by the latest rows: a row's weight falls by 1/10,000 per later row."""
        return self._means(column, self._sums[k.FADING] / self._weight[0], _LEAST_ROWS)

    def _means(self, column: str, sums: Floats, least: float) -> list[SegmentMeans]:
        total, number = sums[0], self.columns.index(column)
        if not total[k.ROWS] > 0.0:
            return []
        names = [MISSING, OTHER, *self._values[number]]
        measure = k.LOG_LOSS if self._has_log_loss else k.ERRORS
        mean = total[measure] / total[k.ROWS]
        segments = [
            self._segment(name, line, float((line[measure] - line[k.ROWS] * mean) / total[k.ROWS]))
            for name, line in zip(names, sums[1 + k.SEGMENTS * number :], strict=False)
            if line[k.ROWS] > least
        ]
        segments.sort(key=lambda one: (-one.harm, one.value))
        return [self._segment(ALL, total, 0.0), *segments]

    def _segment(self, name: str, line: Floats, harm: float) -> SegmentMeans:
        rows = float(line[k.ROWS])
        _, error, log_loss, prediction, label = self._present(line / rows)
        coverage, alert_rate = self._rates(line)
        is_regression = self._task == k.REGRESSION
        return SegmentMeans(
            name,
            rows,
            harm,
            error_rate=None if is_regression else error,
            mae=error if is_regression else None,
            log_loss=log_loss,
            mean_prediction=prediction,
            mean_label=label,
            coverage=coverage or None,
            alert_rate=alert_rate,
        )

    def totals(self, column: str, most: int) -> dict[str, Totals]:
        """Sums over all rows of the first `most` values of a column, and of the others together."""
        number = self.columns.index(column)
        start = 1 + k.SEGMENTS * number
        lines = self._sums[k.SINCE_START, start : start + k.SEGMENTS].copy()
        lines[k.OTHER] += lines[k.FIRST + most :].sum(axis=0)
        names = [MISSING, OTHER, *self._values[number][:most]]
        return {
            name: Totals(self._present(line), *self._rates(line))
            for name, line in zip(names, lines, strict=False)
            if line[k.ROWS] > 0.0
        }

    def _rates(self, line: Floats) -> tuple[dict[str, float | None], float | None]:
        """Coverage by level, and the rate of alerts, in the rows of a segment."""
        marked, counted = line[k.MARKS :: 2].tolist(), line[k.MARKS + 1 :: 2].tolist()
        rates = {
            name: one / of if of else None
            for name, of, one in zip(self._marks, marked, counted, strict=True)
        }
        alert_rate = rates.pop(ALERT_RATE, None)
        return rates, alert_rate

    def _present(self, line: Floats) -> list[float | None]:
        """Sums or means of a segment; None for quantities that the model does not have."""
        return [x if one else None for x, one in zip(line.tolist(), self._has, strict=False)]

    @property
    def measure(self) -> str:
        """The quantity that harm is measured in."""
        if self._has_log_loss:
            return "log_loss"
        return "mae" if self._task == k.REGRESSION else "error_rate"

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        values = [value for some in self._values for value in some]
        return sum(map(getsizeof, (self._sums, self._table, self._terms, *values)))

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """The state, as copies; none before the first row. Values are in the names of features."""
        if not self._sums[k.SINCE_START, 0, k.ROWS]:
            return {}
        used = np.flatnonzero(self._sums[k.SINCE_START, :, k.ROWS])
        return {
            "weight": self._weight.copy(),
            "lines": used,
            "sums": np.ascontiguousarray(self._sums[:, used]),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], names: Pairs) -> None:
        """Restore this state, to the bit, of a model with these names of features, in their order.

        Raises CorruptState; the object is unusable then.
        """
        self.__init__(self._spec)  # type: ignore[misc]
        self._enter(names)
        if not state:
            return
        used = np.shape(state.get("lines", ()))[:1]
        shapes = {"lines": used, "sums": (k.VIEWS, *used, len(self._terms))}
        check_arrays(state, {"weight": (1,), **shapes})
        lines = state["lines"]
        is_line = (lines >= 0) & (lines < self._sums.shape[1])
        if not np.all(is_line) or not np.all(np.diff(lines) > 0):
            raise CorruptState("a segment is out of range")
        self._weight[:] = state["weight"]
        self._sums[:, lines] = state["sums"]
