"""What one learner makes of the final journal of a model, which it sees in one go."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np

from dualstream.service.features import ALL
from dualstream.service.features.guard.quarantine import LearnedCopy
from dualstream.service.features.guard.state import Guarding
from dualstream.service.journal.record import Control, EarlierLabels, decode_merged
from dualstream.service.replica.controls import apply_to, copy_named_by, read_control
from dualstream.service.replica.entries import as_batch
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.row_ids import RowIds
from dualstream.service.replica.state import ModelState, read_copy
from dualstream.solvers import Batch, Learner, Outcome, make_learner, make_progressive
from dualstream.solvers.evaluation.late_label_scores import counted_once
from dualstream.solvers.refit.refit import problems_of
from tests.simulation import models
from tests.simulation.late import LateRow, late_rows
from tests.simulation.log import Log
from tests.simulation.refits import Problems


class Truth:
    """State of one learner over the final journal, and the expected response for each record."""

    def __init__(self, log: Log, kind: models.Kind) -> None:
        self.id = log.id
        self._log, self._kind = log, kind
        self.learned = self.refused_rows = 0
        self.learner: Learner = make_learner(kind.resolved)
        self.progress = make_progressive(kind.resolved)
        self.rejected = self.refused = self.rows = 0
        self.scores: list[float] = []
        """By seq - 1; NaN in the place of a control."""
        self.losses: list[float] = []
        self.control_outcomes: dict[int, ControlOutcome] = {}
        self.controls: dict[int, Control] = {}
        self.late: dict[int, LateRow] = {}
        """Every labelled row by its seq, where the model has rows with ids."""
        self.observed: dict[int, int] = {}
        """Seqs of observed rows, by their tags."""
        self.parts = ALL.parts(kind.resolved)
        for on_names in self.parts.on_names if kind.has_history else ():
            on_names(kind.history_names, 0, 0)
        self.copies = {version.digest: version.seq for version in log.versions.values()}
        """The seqs of copies, by their digests."""
        self.states: dict[int, dict[str, bytes]] = {}
        """At each of these seqs."""
        self.made_here: set[str] = set()
        """The digests of copies that were made of the journal, for what was to go back there."""
        self.windows: dict[int, Problems] = {}
        """What refits were computed of, by their seqs."""
        self.problems: list[str] = []
        self._seen: list[tuple[int, Batch]] = []
        self._earlier: dict[int, EarlierLabels] = {}
        """Labels before, by the seq of the row."""
        self._has: set[int] = set()
        self._had: dict[int, set[int]] = {}
        self.twice: set[int] = set()
        """The seqs of rows that a state has learned, and that came to it from its quarantine."""
        self.headers, self._blocks = decode_merged(b"".join(entry.body for entry in log.whole))
        self._ids = RowIds.within(self.headers, 1)
        self._see()

    @property
    def seq(self) -> int:
        """Of the last record that was seen."""
        return len(self.scores)

    def _see(self) -> None:
        named_by = [block.fields for block in self._blocks if isinstance(block, Control)]
        marks = {fields["seq"] for fields in named_by if fields.get("digest") is not None}
        marks |= set(self.copies.values())
        computed = [block for block in self._blocks if isinstance(block, Control)]
        self._computed_of = {one.fields["seq"] for one in computed if one.kind == "refit"}
        marks |= self._computed_of
        self._mark(marks)
        for block in self._blocks:
            if isinstance(block, Control):
                self._obey(block)
                self._mark(marks)
                continue
            if block.labels is None:
                tags = models.tags_of(block)
                self.observed.update((-tag, self.seq + 1 + n) for n, tag in enumerate(tags))
            elif self._kind.names_rows:
                self.late.update(late_rows(block, self.seq + 1, self._kind))
            batch, first = as_batch(block, self._kind.width), self.seq
            for row, earlier in enumerate(block.earlier or ()):
                self._earlier[first + 1 + row] = earlier
            inside = [at - first for at in sorted(marks) if first < at < first + len(batch)]
            for begin, end in pairwise([0, *inside, len(batch)]):
                self._learn(batch[begin:end])
                self._mark(marks)

    def _mark(self, marks: set[int]) -> None:
        if self.seq in marks:
            self.states[self.seq] = self.state()
            self._had[self.seq] = set(self._has)
        if self.seq in self._computed_of:
            self.windows[self.seq] = problems_of(self.learner)

    def _learn(self, batch: Batch) -> None:
        before, first_seq = self.learner.samples, self.seq + 1
        batch = self._replacing(batch, first_seq)
        if self.parts.gate is None:
            outcome = self.learn_rows(batch, first_seq)
        else:
            self._seen.append((first_seq, batch))
            outcome = self.parts.gate.learn(self.learner, self.learn_rows, batch, first_seq)
            if outcome.set_aside is not None:
                last = self.seq + len(batch)
                self.parts.absent.add(last + 1 - int(outcome.set_aside.sum()), last)
        self.learned += self.learner.samples - before
        self.refused_rows += int(np.count_nonzero(outcome.rejected))
        self._note_ids(batch, first_seq, outcome)
        self.rows += len(batch)
        self.scores += outcome.scores.tolist()
        self.losses += outcome.losses.tolist()

    def _replacing(self, batch: Batch, first_seq: int) -> Batch:
        """The rows with the labels that they replace: the newest that the state has learned."""
        seqs = range(first_seq, first_seq + len(batch))
        if self._earlier.keys().isdisjoint(seqs):
            return batch
        learned = self._has.union(seqs)
        replaced = np.full(len(batch), np.nan)
        for row, seq in enumerate(seqs):
            for at, y in reversed(self._earlier.get(seq, ())):
                if (at if at > 0 else seq + at) in learned:
                    replaced[row] = y
        return dataclasses.replace(batch, replaced=replaced)

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        """Learn and count rows that are not set aside."""
        outcome = self._kind.as_served.put(batch, self.learner.learn(batch))
        seqs = range(first_seq, first_seq + len(batch))
        self.twice |= self._has.intersection(seqs)
        self._has.update(seqs)
        counted = counted_once(batch, outcome)
        self.progress.count(batch, counted, first_seq)
        for on_learned in self.parts.on_learned:
            on_learned(batch, counted, first_seq)
        self.rejected += int(np.count_nonzero(outcome.rejected))
        if outcome.observed is not None:
            self.rejected -= int(np.count_nonzero(outcome.observed))
        return outcome

    def _note_ids(self, batch: Batch, first_seq: int, outcome: Outcome) -> None:
        for on_ids in self.parts.on_ids:
            on_ids(self._ids, batch, first_seq, outcome)

    @property
    def prepared(self) -> LearnedCopy:
        """All rows behind those that were good, learned in their order when a resume asks."""
        guarding = self.parts.find(Guarding)
        assert guarding is not None
        learned, after = 0, guarding.pauses.held_from
        self.parts.absent.learn_after(after)
        for first_seq, batch in self._seen:
            kept = batch[max(0, after + 1 - first_seq) :]
            at = first_seq + len(batch) - len(kept)
            kept = self._replacing(kept, at)
            outcome = self.learn_rows(kept, at)
            self._note_ids(kept, at, outcome)
            learned += len(kept) - int(np.count_nonzero(outcome.rejected))
        counts = self.rejected, self.refused
        state = self.learner, self.progress, FeatureNames(), self.parts
        return LearnedCopy(ModelState(*state, *counts), learned)

    def use_state(self, state: ModelState) -> None:
        self.learner, self.progress = state.learner, state.progress
        self.rejected, self.refused = state.rejected, state.refused_controls
        self.parts = state.parts

    def restore_copy(self, seq: int) -> None:
        """Replace the state by the copy that the control names."""
        digest = self._digest
        assert digest is not None
        if seq > self.seq:
            self.problems.append(f"{self.id}: seq {self.seq} went back to {seq}, still to come")
        data = self._log.ever_stored[digest]
        result, _, _ = read_copy(
            data, digest, self._kind.resolved, self._log.incarnation, ALL.parts
        )
        for part in result.parts:
            if (present := self.parts.find(type(part))) is not None:
                part.on_restored(present, seq, self.seq + 1)
        result.parts.absent.add(seq + 1, self.seq)
        self.use_state(result)
        self.copies[digest] = seq
        self._has = set(self._had.get(seq, ()))

    def _obey(self, control: Control) -> None:
        digest = self._digest = copy_named_by(control)
        outcome = apply_to(self, *read_control(self, ALL.kinds, control), control.arrays)
        if digest is not None and outcome.refusal is None and control.fields.get("version") is None:
            self.made_here.add(digest)
        self.refused += outcome.refusal is not None
        self.scores.append(float("nan"))
        self.losses.append(float("nan"))
        self.control_outcomes[len(self.scores)] = outcome
        self.controls[len(self.scores)] = control

    def state(self) -> dict[str, Any]:
        state = {f"learner.{name}": array for name, array in self.learner.state().items()}
        state |= {f"progress.{name}": array for name, array in self.progress.state().items()}
        state |= self.parts.arrays()
        state["rejected"] = np.array(self.rejected, np.int64)
        state["refused_controls"] = np.array(self.refused, np.int64)
        return {name: array.tobytes() for name, array in state.items()}
