"""Replay of a journal under another history: its rows with the inputs of other groups.

A row with a late label is served again by the replica at the record from which it was served: with
the columns of the new history in the place of those that it has, and with a new score. If the
journal no longer has that record, the first state of the replay serves it.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualstream.service.journal.protocol import Journal, ModelRecord
from dualstream.service.journal.record import Rows
from dualstream.service.models.late_labels import Kept, stored_scores
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.entries import as_batch, decoded
from dualstream.service.replica.features import Features
from dualstream.service.replica.parts import Scored
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch, Outcome
from dualstream.solvers.evaluation import late_label_scores
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.protocols.learner import predict_waiting
from dualstream.solvers.rows.columns.inputs import Inputs, depends_on_past, inputs_of

if TYPE_CHECKING:
    from dualstream.solvers.online.class_choice import ClassScores

_ORDINARY, _LATE, _OBSERVED = range(3)
_NO_FEATURES = np.empty(0, np.int64)


def why_not(before: Inputs, after: Inputs) -> str | None:
    """Why rows with the inputs `before` cannot get the inputs `after`; None if they can."""
    for kind in ("key", "time", "value"):
        available, needed = getattr(before, f"{kind}s"), getattr(after, f"{kind}s")
        for name in needed:
            if name not in available:
                others = f"its {kind}s are {', '.join(available)}" if available else "it has none"
                return f"the journal has no {kind} {name!r} ({others})"
    return None


class LateRows(NamedTuple):
    """Rows with late labels, in the order in which they were served.

    seqs         (n,) of the records that have the labels
    served_seqs  (n,) of the states from which the rows were served, ascending
    """

    rows: Batch
    seqs: Ints
    served_seqs: Ints


async def read_late_rows(
    journal: Journal, record: ModelRecord, after: int, until: int, dim: int
) -> LateRows | None:
    """The rows with late labels among the records after `after` up to `until`; None without any."""
    rows, seqs, served_seqs = list[Batch](), list[Ints](), list[Ints]()
    seq, absent = after, AbsentSeqs()
    absent.add(1, after)
    while seq < until:
        entries = await journal.read(record.id, record.incarnation, seq)
        if not entries:
            break
        for block in decoded(entries)[1]:
            if isinstance(block, Rows) and block.served_seqs is not None:
                late = np.flatnonzero(block.served_seqs >= 0)
                rows.append(as_batch(block, dim, seq + 1, absent).take(late))
                seqs.append(seq + 1 + late)
                # A store that lost records may have served a row at a later seq.
                served_seqs.append(np.minimum(block.served_seqs[late], seq + late))
            seq += len(block) if isinstance(block, Rows) else 1
    if not rows:
        return None
    served = np.concatenate(served_seqs)
    order = np.argsort(served, kind="stable")
    return LateRows(Batch.concat(rows).take(order), np.concatenate(seqs)[order], served[order])


class ReplicaOfOtherHistory(Replica):
    """A replica of a journal whose specification has another history than the model's.

    before   inputs of the journal's rows
    columns  features of the history columns in rows with late labels
    late     the rows with late labels; None without any
    """

    def __init__(
        self,
        record: ModelRecord,
        features: Features,
        spec: bytes,
        before: Inputs,
        columns: Ints,
        late: LateRows | None,
    ) -> None:
        super().__init__(record, features, kept_answers=0, spec=spec)
        self.dim = before.row_width
        self._before, self._after = before, inputs_of(self.spec)
        self._has_past = depends_on_past(self.spec)
        self._columns, self._late = columns, late
        self._served: dict[int, Batch] = {}
        """Rows that have been served and not yet labelled, by the seq of the label."""
        self._served_count = 0

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows of the journal; the first is at `first_seq`."""
        kinds = np.where(np.isnan(batch.labels), _OBSERVED, _ORDINARY)
        if batch.served is not None:
            kinds[~np.isnan(batch.served) & ~np.isnan(batch.labels)] = _LATE
        edges = {0, len(batch), *(np.flatnonzero(np.diff(kinds)) + 1).tolist()}
        if self._late is not None:
            # Rows are served from the state before the row at `edge`.
            seqs = self._late.served_seqs
            begin, end = np.searchsorted(seqs, (first_seq, first_seq + len(batch) - 1)).tolist()
            edges.update((seqs[begin:end] + 1 - first_seq).tolist())
        outcomes = [
            self._learn_piece(int(kinds[begin]), batch[begin:end], first_seq + begin)
            for begin, end in pairwise(sorted(edges))
        ]
        return Outcome.joined(outcomes)

    def _learn_piece(self, kind: int, batch: Batch, first_seq: int) -> Outcome:
        """Learn rows of one kind; only the state before the first one may have served rows."""
        if kind == _OBSERVED and not self._has_past:
            return Outcome.of_rows_set_aside(
                self.learner.learn(self._converted(batch[:0])), len(batch)
            )
        self._serve(first_seq - 1)
        if kind == _LATE:
            seqs = range(first_seq, first_seq + len(batch))
            rows = Batch.concat([self._served.pop(seq) for seq in seqs])
        else:
            # Scores that observed rows bring are of the other history.
            rows = replace(self._converted(batch), served=None, served_parts=None)
        return super().learn_rows(rows, first_seq)

    def _serve(self, seq: int) -> None:
        """Serve the rows that were served from the state at `seq` or from one before the first."""
        late, begin = self._late, self._served_count
        if late is None:
            return
        end = int(np.searchsorted(late.served_seqs, seq, "right"))
        if begin == end:
            return
        served = self._served_again(self._converted(late.rows[begin:end], self._columns))
        for row, at in enumerate(late.seqs[begin:end].tolist()):
            self._served[at] = served[row : row + 1]
        self._served_count = end

    def _served_again(self, rows: Batch) -> Batch:
        """Rows with late labels as the present state serves them."""
        learner: Any = self.learner
        columns = replace(rows, served=None, served_parts=None, replaced=None)
        if self._has_past:
            # Ages are as they were served.
            columns = columns if learner.history is None else learner.history.peek(columns)
            learner = learner.core
        parts: Floats | None
        classes, chances = None, None
        if self.spec["task"] == "multiclass":
            classes = learner.predict_classes(columns)
            scores, parts = self._class_scores(classes, rows)
        else:
            scores, parts = predict_waiting(learner, columns)
            chances = learner.probabilities(scores)
        of_features = self.parts.served(Scored(columns, scores, chances, classes))
        # An infinite score leaves a row late, and is not counted.
        scores = np.where(np.isfinite(scores), scores, np.inf)
        numbers = Kept(parts, of_features).numbers
        return replace(_with_inputs(columns, rows), served=scores, served_parts=numbers)

    def _class_scores(self, served: "ClassScores", rows: Batch) -> tuple[Floats, Floats]:
        """Scores of the best classes (n,), and losses of the labels (n, 3)."""
        scores, losses = np.zeros(len(rows)), np.empty((len(rows), 3))
        stored = stored_scores(served).astype(np.float64)
        as_served = late_label_scores.as_served(self.spec)
        for row, best in enumerate(served.best.tolist()):
            scores[row] = served.scores[row, best] if best >= 0 else 0.0
            label = rows.classes[int(rows.labels[row])]
            losses[row] = as_served.losses_of_classes(stored[row], served.classes, best, label)
        return scores, losses

    def _converted(self, batch: Batch, without: Ints = _NO_FEATURES) -> Batch:
        """Rows of the journal with the inputs of the new groups, and without some features."""
        width, after = self._after.width, self._after.row_width
        indices = batch.indices.astype(np.int64)
        is_input = indices >= width
        indices[is_input] = _indices(self._before, self._after)[indices[is_input] - width]
        stays = (indices >= 0) & ~np.isin(indices, without)
        indptr = np.concatenate(([0], np.cumsum(stays)))[batch.indptr]
        rows = Batch.from_csr(indptr, indices[stays], batch.values[stays], dim=after)
        return replace(
            batch, indptr=rows.indptr, indices=rows.indices, values=rows.values, dim=after
        )


def _indices(before: Inputs, after: Inputs) -> Ints:
    """Index of each input of `before` in rows with the inputs `after`; -1 if they have it not."""
    return np.array(
        [after.index_of_key(name) if name in after.keys else -1 for name in before.keys]
        + [after.index_of_time(name) if name in after.times else -1 for name in before.times]
        + [after.index_of_value(name) if name in after.values else -1 for name in before.values],
        np.int64,
    )


def _with_inputs(columns: Batch, rows: Batch) -> Batch:
    """`rows` with the features of `columns` in place of their own; the inputs stay."""
    is_input, n = rows.indices >= columns.dim, len(rows)
    of_columns = np.repeat(np.arange(n), np.diff(columns.indptr))
    of_inputs = np.repeat(np.arange(n), np.diff(rows.indptr))[is_input]
    row = np.concatenate((of_columns, of_inputs))
    order = np.argsort(row, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n))))
    indices = np.concatenate((columns.indices, rows.indices[is_input]))[order]
    values = np.concatenate((columns.values, rows.values[is_input]))[order]
    return replace(rows, indptr=indptr, indices=indices, values=values)
