"""First rows: a learner starts again if one of its first rows has a broken number.

Learners take the scale of a column, and of labels that are numbers, from the first rows. One value
of 1e100 there would decide on that scale for ever. So the first ROWS rows of positive weight are
kept until all are learned. If one of their numbers is broken, a new learner learns them with sound
numbers, and takes the place of the first one. Otherwise nothing changes.

Sort the distances of the ROWS numbers of a column from their median; an absent value is 0. If one
of the three largest is more than R times the next smaller one, it and all larger ones are broken. R
is 50, but 350 with two smaller ones above 0, and 125,000 with one, which is about as improbable by
chance. If all others are equal, but not 0, their absolute value takes the place of the next smaller
distance, and R is 125,000: a column can be -1 in most rows, and thousands in a few. A broken number
is replaced by the nearest of the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, SolverError
from dualstream.solvers.jit import Floats
from dualstream.solvers.online.rewind import learn_in_pieces
from dualstream.solvers.protocols.learner import Learner, Outcome, State, has_long_row
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import names_of
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.scalar import unknown_label

ROWS = 32
REACHES = np.array([125_000.0, 125_000.0, 350.0, 50.0])
"""R for 0, 1, 2, and 3 or more smaller distances above 0."""
_MAX_BROKEN, _AT_ONCE = 3, 4096
_ARRAYS = ("indptr", "indices", "values", "labels", "weights")


class FirstRows:
    """Any learner, and its first rows while there are fewer than ROWS."""

    def __init__(self, spec: Mapping[str, Any], make: Callable[[], Learner]) -> None:
        self.spec, self._make = spec, make
        self._learner: Any = make()
        self._rows: Batch | None = Batch.from_dense(np.empty((0, width_of(spec["features"]))))
        """See `_kept`; None once all are learned."""
        self._left_out = 0
        """Rows of weight 0 that a new learner was not shown."""

    def __getattr__(self, name: str) -> Any:
        if name == "_learner":
            raise AttributeError(name)
        return getattr(self._learner, name)

    def learn(self, batch: Batch) -> Outcome:
        """See Learner."""
        if self._rows is None:
            return cast(Outcome, self._learner.learn(batch))
        return learn_in_pieces(batch, self.learn_prefix)

    def learn_prefix(self, batch: Batch) -> Outcome:
        """See Wrapped."""
        learner = self._learner
        outcome: Outcome = getattr(learner, "learn_prefix", learner.learn)(batch)
        if self._rows is None:
            return outcome
        batch = batch[: len(outcome)]
        counted = np.flatnonzero(batch.weights > 0.0)[: ROWS - len(self._rows)]
        self._rows = Batch.concat([self._rows, self._kept(batch.take(counted))])
        if len(self._rows) < ROWS:
            return outcome
        sound, self._rows = sound_rows(self._rows, self.spec["task"] == "regression"), None
        if sound is None:
            return outcome
        return self._start_again(sound, outcome, batch[int(counted[-1]) + 1 :])

    def _kept(self, rows: Batch) -> Batch:
        """Rows whose labels are numbers, -1 and 1, or places in `classes` of the learner."""
        if self.spec["task"] == "binary":
            return rows.with_labels(np.where(rows.labels > 0.0, 1.0, -1.0))
        if not rows.classes:
            return rows
        class_index = {name: index for index, name in enumerate(self._learner.classes)}
        class_ids = np.array([class_index.get(name, -1) for name in rows.classes])
        return rows.with_labels(class_ids[rows.labels.astype(np.int64)])

    def _start_again(self, first: Batch, outcome: Outcome, rest: Batch) -> Outcome:
        """Replace the learner by one of these first rows. `outcome` ends with that of `rest`."""
        old = self._learner
        # Members can have been added, removed or promoted.
        new = old.without_rows() if hasattr(old, "without_rows") else cast(Any, self._make())
        # Without what they served: a state has no more than these columns.
        first = first.with_labels(first.labels, getattr(old, "classes", ()))
        new.learn(replace(first, served=None, served_parts=None, replaced=None))
        if getattr(old, "promoted", None) is not None:
            new.promote(old.promoted)
        relearned = len(outcome) - len(rest)
        if len(rest):
            outcome = Outcome.joined([outcome[: -len(rest)], new.learn(rest)])
        self._left_out, self._learner = old.samples - new.samples, new
        outcome.relearned = relearned
        return outcome

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py: the row that completes the first ones."""
        is_last = self._rows is not None and len(self._rows) + rows >= ROWS
        return is_last or has_long_row(self._learner, rows)

    def forget(self) -> None:
        """See Rewind: there is no saved state here."""

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        return cast(Floats, self._learner.predict(batch))

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._learner.samples) + self._left_out

    def state(self) -> State:
        """See Learner: that of the learner, and `first.` with rows while they are kept."""
        arrays: State = {"first.samples": np.array(self._left_out)}
        if self._rows is not None:
            arrays |= {f"first.{name}": getattr(self._rows, name).copy() for name in _ARRAYS}
            arrays["first.indices"] = arrays["first.indices"].astype(np.int64)
        return cast(State, self._learner.state()) | arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        check_arrays(state, {"first.samples": ()})
        rows = self._rows_of(state) if "first.indptr" in state else None
        self._learner.restore(state)
        self._rows, self._left_out = rows, int(state["first.samples"])

    def _rows_of(self, state: Mapping[str, npt.NDArray[Any]]) -> Batch:
        """The rows of a state. Raises CorruptState."""
        task, width = self.spec["task"], width_of(self.spec["features"])
        classes = names_of(state) if task == "multiclass" else ()
        columns = {name: np.array(state.get(f"first.{name}", [])) for name in _ARRAYS}
        columns["indices"] = columns["indices"].astype(np.int32)
        try:
            rows = Batch(**columns, dim=width, classes=classes)
        except SolverError as error:
            raise CorruptState(f"the first rows are damaged: {error}") from error
        lacks_class = task == "multiclass" and not classes and len(rows) > 0
        is_unknown = unknown_label(rows.labels, task == "binary") >= 0
        if len(rows) >= ROWS or not (rows.weights > 0.0).all() or lacks_class or is_unknown:
            raise CorruptState("the first rows are damaged")
        return rows.with_labels(rows.labels)


def sound_rows(rows: Batch, with_labels: bool) -> Batch | None:
    """Rows with all broken values replaced, and broken labels if they are numbers; None if there is
    nothing to replace."""
    values, labels = rows.values.copy(), rows.labels
    if with_labels:
        labels = _sound(labels[:, None])[:, 0]
    row = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
    # By column, not all at once, as rows can be very wide.
    entries = np.argsort(rows.indices, kind="stable")
    features, column_of_entry = np.unique(rows.indices[entries], return_inverse=True)
    for first in range(0, len(features), _AT_ONCE):
        begin, end = np.searchsorted(column_of_entry, [first, first + _AT_ONCE])
        here = entries[begin:end]
        at = row[here], column_of_entry[begin:end] - first
        columns = np.zeros((len(rows), min(_AT_ONCE, len(features) - first)))
        columns[at] = values[here]
        values[here] = _sound(columns)[at]
    if np.array_equal(values, rows.values) and np.array_equal(labels, rows.labels):
        return None
    # Drops zeros: the nearest number can be that of a row without the feature.
    return Batch.from_csr(rows.indptr, rows.indices, values, labels, rows.weights, dim=rows.dim)


def _sound(columns: Floats) -> Floats:
    """Columns (n, S) with broken numbers replaced, as the module says."""
    middle = np.sort(columns, axis=0)[len(columns) // 2]
    distances = np.abs(columns - middle)
    ordered = np.sort(distances, axis=0)
    # For each of the largest: itself, the next smaller one, and how many smaller are above 0.
    above, below = ordered[-_MAX_BROKEN:], ordered[-_MAX_BROKEN - 1 : -1]
    ranks = np.arange(len(columns) - _MAX_BROKEN, len(columns))[:, None]
    smaller = np.maximum(ranks - np.count_nonzero(distances == 0.0, axis=0), 0)
    scale = np.where(smaller > 0, below, np.abs(middle))
    is_far = (scale > 0.0) & (above > REACHES[np.minimum(smaller, 3)] * scale)
    limit = np.where(is_far, below, np.inf).min(axis=0)
    near = distances <= limit
    low = np.where(near, columns, np.inf).min(axis=0)
    high = np.where(near, columns, -np.inf).max(axis=0)
    return np.clip(columns, low, high)


def make_restarting(spec: Mapping[str, Any], make: Callable[[], Learner]) -> Learner:
    """The learner that `make` returns, which starts again after broken first rows."""
    return cast(Learner, FirstRows(spec, make))
