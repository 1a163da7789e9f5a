"""Replica: one model in memory, kept up to date by applying its journal in order.

The state (learner, progressive metrics, counts) is a pure function of spec and journal. Entries
that this process appended and entries read from the store go through the same learning and the same
controls. The boundaries between entries leave no trace in the state.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dualstream.service.concurrency import (
    INLINE_S,
    MEASURED_ROWS,
    Pace,
    background_task,
    ensure_task,
    run_in_thread,
    run_long_in_thread,
)
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.page import end_of, size_of
from dualstream.service.journal.protocol import Entry, Journal, LogPosition, ModelRecord
from dualstream.service.journal.record import Control, CorruptRecord
from dualstream.service.replica.apply_control import apply_control
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.controls import check_control
from dualstream.service.replica.entries import Content, content_after, split_at
from dualstream.service.replica.features import Features
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS, KeyedRequests
from dualstream.service.replica.fork_detection import Forked, Lineage, Lost, follows
from dualstream.service.replica.outcomes import (
    Applied,
    ControlOutcome,
    clear_outcomes,
    record_outcomes,
)
from dualstream.service.replica.requests import NewRows
from dualstream.service.replica.row_ids import RowIds
from dualstream.service.replica.spec import DamagedSpec
from dualstream.service.replica.state import ModelState
from dualstream.service.replica.views import ViewedState
from dualstream.solvers import Batch, Certificate, InvalidSpec, Learner, Outcome, make_progressive
from dualstream.solvers.evaluation import late_label_scores
from dualstream.solvers.protocols.learner import has_long_row
from dualstream.solvers.protocols.served_form import classes_of
from dualstream.solvers.rows.served_parts import columns_of
from dualstream.solvers.spec import cost

T = TypeVar("T")
Run = Callable[..., Coroutine[Any, Any, Any]]


READ_BYTES = 1024 * 1024


class Ratios(NamedTuple):
    """Measured time / estimated time of a row; None before the first measurement."""

    learning: float | None = None
    predicting: float | None = None


UNMEASURED = Ratios()


class Replica(ViewedState):
    """State of a model that follows the journal and serves requests.

    features    the installed features
    ratios      measured / estimated time of learning and of predicting, of other models of the spec
    spec        used instead of the model's own spec
    learner     a learner of the spec without rows, which nothing else uses; None: build one
    """

    _applying: Sequence[Entry] = ()
    """Entries that are being applied while the next ones are read."""
    applied_ms: int | None = None
    """Append time of the last entry that was read from the journal, by the store's clock."""
    _forgotten_width = 0
    _paced: Learner | None = None
    """The learner whose cost is estimated; None if the estimate is out of date."""

    def __init__(
        self,
        record: ModelRecord,
        features: Features,
        kept_answers: int = MAX_KEPT_ANSWERS,
        clock: Clock = SYSTEM_CLOCK,
        ratios: Ratios = UNMEASURED,
        spec: bytes | None = None,
        learner: Learner | None = None,
    ) -> None:
        super().__init__(record, features.parts, kept_answers, spec, learner)
        self.features = features
        try:
            features.check_spec(self.spec)
        except InvalidSpec as error:
            raise DamagedSpec(f"this server cannot serve the spec: {error}") from error
        self._as_served: late_label_scores.AsServed | None = late_label_scores.as_served(self.spec)
        # Outcomes that a committer waits for, by the nonce of its append. Filled if the entry
        # reaches this replica in another way than from the committer.
        self.watched: dict[bytes, Applied | None] = {}
        self.member_certificates: dict[str, Certificate] = {}
        self._clock = clock
        self.learning = Pace(cost.learning_cost(self.learner), ratios.learning)
        self.predicting = Pace(cost.predicting_cost(self.learner), ratios.predicting)
        self._set_cost()

    # -- reading ---------------------------------------------------------------------------------

    @property
    def position(self) -> LogPosition:
        """The log position. Valid between two groups."""
        return LogPosition(self.seq, self.chain)

    def leads_on_from(self, position: LogPosition) -> bool:
        """Did the replica apply up to this position, with no sign that the journal lost it?"""
        return not self.is_forked and self.lineage.includes(position.seq, position.chain)

    async def predict(self, batch: Batch) -> tuple[np.ndarray, int, str]:
        """Return scores, and the seq and chain of the state that gave them.

        Raises JournalUnavailable while the replica is forked.
        """
        async with self.serving():
            scores = await self.scored(self.learner.predict, batch)
            return np.concatenate(scores), self.seq, self.chain

    async def scored(self, score: Callable[[Batch], T], batch: Batch) -> list[T]:
        """Call `score`, which reads a learner of this model, with the batch or with its slices.

        A batch that takes long is scored in a thread. The caller is inside `serving`, or reads a
        learner that does not change.
        """
        if self.learner is not self._paced:
            self._set_cost()
        pace, rows = self.predicting, len(batch)
        if pace.is_short(rows, batch.nnz):
            return [score(batch)]
        scores: list[T] = []
        done = 0
        while done < rows:
            rest = batch[done:]
            piece = rest[: pace.next_slice(len(rest), rest.nnz)]
            run = run_long_in_thread if pace.is_long(len(piece), piece.nnz) else run_in_thread
            scores.append(await run(self._score_slice, score, piece))
            done += len(piece)
        return scores

    def _score_slice(self, score: Callable[[Batch], T], batch: Batch) -> T:
        estimated = self.predicting.cost.seconds(len(batch), batch.nnz)
        began = self._clock.cpu_seconds()
        scores = score(batch)
        self.predicting.measured(estimated, self._clock.cpu_seconds() - began)
        return scores

    @property
    def ratios(self) -> Ratios:
        """Measured / estimated time of a row, for the next replica of the same specification."""
        return Ratios(self.learning.ratio, self.predicting.ratio)

    def _set_cost(self) -> None:
        """Estimate the rows' cost again: classes or members may have been added."""
        self._paced, self._classes = self.learner, len(classes_of(self.learner))
        self.learning.estimate(cost.learning_cost(self.learner))
        self.predicting.estimate(cost.predicting_cost(self.learner))

    # -- applying --------------------------------------------------------------------------------

    async def apply_own(self, seq: int, chain: str, new: NewRows) -> Outcome:
        """Learn rows that this process appended; the entry ends at `seq` with `chain`."""
        if new.names:
            self.keep_names([(self.seq + 1, new.names)])
        outcome = await self._learn(new.batch)
        first_seq = seq + 1 - len(new.batch)
        if new.requests:
            self.first_responses.keep(new.requests, first_seq, new.batch, outcome)
        for on_ids in self.parts.on_ids:
            on_ids(new.ids, new.batch, first_seq, outcome)
        self._set_position(seq, chain)
        return outcome

    async def apply_own_control(
        self, seq: int, chain: str, control: Control, journal: Journal
    ) -> ControlOutcome:
        """Apply a control that this process appended; its entry is at `seq`.

        Raises UnreadableCopy and Trimmed; nothing has changed then.
        """
        outcome = await apply_control(self, self.features.kinds, control, journal)
        self._paced = None
        self._set_position(seq, chain)
        return outcome

    async def apply(self, entries: Sequence[Entry], journal: Journal) -> None:
        """Apply entries read from the journal. Records already applied are skipped.

        Raises Forked, and CorruptRecord for an entry with a wrong seq, before anything is applied.
        Raises CorruptRecord, UnknownRecord (both name the entry), and UnreadableCopy and Trimmed
        for a rollback; the replica is then at the end of the entry before it.
        """
        self.check_order(entries)
        for some in split_at(entries, self.features.needs_own_run):
            await self.apply_run(some, journal)

    def check_order(self, entries: Sequence[Entry]) -> None:
        """Raise Forked, or CorruptRecord, unless each entry follows the one before it."""
        chain, seq = self.chain, self.lineage.end
        for entry in entries:
            chain = next_chain(chain, entry.nonce)
            if chain != entry.chain:
                raise Forked(
                    f"model {self.id!r}: the journal at seq {entry.seq} does not follow "
                    f"from seq {seq} of this replica"
                )
            if entry.first_seq != seq + 1:
                raise CorruptRecord(
                    f"the entry at seq {entry.seq} begins at seq {entry.first_seq}, but "
                    f"the one before it ends at seq {seq}"
                )
            seq = entry.seq

    def skip(self, entry: Entry) -> None:
        """Advance past an entry without applying it."""
        self._set_position(entry.seq, entry.chain)

    async def apply_part(self, entry: Entry, until: int) -> None:
        """Learn the rows of the next entry up to `until`, which lies inside the entry.

        The replica keeps the chain from before the entry. Raises Forked.
        """
        if not follows(entry, self.chain) or entry.first_seq > self.seq + 1:
            raise Forked(f"model {self.id!r}: the journal does not follow from seq {self.seq}")
        await self.learn_part(entry, until)

    async def learn_part(self, entry: Entry, until: int) -> None:
        """As `apply_part`, for an entry that is known to follow."""
        names, (record,), _, ids = self._content_after([entry], until)
        assert isinstance(record, Batch)  # a control is one record
        self.keep_names(names)
        first_seq, rows = self.seq + 1, record[: until - self.seq]
        outcome = await self._learn(rows)
        for on_ids in self.parts.on_ids:
            on_ids(ids, rows, first_seq, outcome)

    async def apply_run(self, entries: Sequence[Entry], journal: Journal) -> None:
        """Apply a run of entries that are known to follow; see `split_at`."""
        names, records, requests, ids = self._content_after(entries)
        self.keep_names(names)
        done: list[tuple[int, Applied]] = []
        for record in records:
            first_seq = self.seq + 1
            if isinstance(record, Control):
                kinds = self.features.kinds
                done.append((first_seq, await apply_control(self, kinds, record, journal)))
                self._paced = None
            else:
                outcome = await self._learn(record)
                done.append((first_seq, self._kept(record, outcome, requests, ids)))
        self._advance_past(entries, done)

    def _kept(self, rows: Batch, outcome: Outcome, requests: KeyedRequests, ids: RowIds) -> Outcome:
        """Keep first responses and ids of rows that were just learned. Return `outcome`."""
        first_seq = self.seq + 1 - len(rows)
        whole = requests.within(first_seq, self.seq, self._kept_answers)
        self.first_responses.keep(whole, first_seq, rows, outcome)
        for on_ids in self.parts.on_ids:
            on_ids(ids, rows, first_seq, outcome)
        return outcome

    def _advance_past(self, entries: Sequence[Entry], done: Sequence[tuple[int, Applied]]) -> None:
        """Advance past entries that were applied."""
        last = entries[-1]
        self.seq, self.chain, self.applied_ms = last.seq, last.chain, last.time_ms
        self.lineage.add_entries(entries)
        record_outcomes(self.watched, entries, done)

    def _content_after(self, entries: Sequence[Entry], until: int | None = None) -> Content:
        """Decode the part of entries after this replica. Raises CorruptRecord, UnknownRecord."""
        check = partial(check_control, self, self.features.kinds)
        with_ids = bool(self.parts.on_ids)
        return content_after(self.seq, entries, self.dim, check, with_ids, self.parts.absent, until)

    async def _learn(self, batch: Batch) -> Outcome:
        if self.learner is not self._paced:
            self._set_cost()
        if self._is_short(batch):
            if self._lock.locked():
                async with self._lock:
                    return self._learn_slice(batch)
            return self._learn_slice(batch)  # no await before the slice
        outcomes = []
        done, rows = 0, len(batch)
        while done < rows:
            async with self._lock:
                rest = batch[done:]
                new = self._new_classes(rest)
                piece = rest[: self.learning.next_slice(len(rest), rest.nnz, new)]
                outcomes.append(await self._thread_for(piece, new)(self._learn_slice, piece))
            done += len(piece)
        return Outcome.joined(outcomes)

    def _is_short(self, batch: Batch) -> bool:
        """Can the event loop learn this batch?"""
        pace, rows, entries = self.learning, len(batch), batch.nnz
        if not pace.is_short(rows, entries):
            return False
        if pace.cost.is_plain:
            return True
        # Each row may have a new class, or start long work.
        if pace.seconds(rows, entries, rows) > INLINE_S:
            if pace.seconds(rows, entries, self._new_classes(batch)) > INLINE_S:
                return False
        return not self._has_long_row(rows)

    def _has_long_row(self, rows: int) -> bool:
        return not self.learning.cost.is_even and has_long_row(self.learner, rows)

    def _new_classes(self, batch: Batch) -> int:
        """Classes of a batch that the learner does not know yet, at most one for each row."""
        if not batch.classes:
            return 0
        return min(len(batch), len(set(batch.classes).difference(classes_of(self.learner))))

    def _thread_for(self, batch: Batch, new_classes: int) -> Run:
        rows = len(batch)
        new_classes = min(new_classes, rows)
        is_long = self.learning.is_long(rows, batch.nnz, new_classes) or self._has_long_row(rows)
        return run_long_in_thread if is_long else run_in_thread

    def _learn_slice(self, batch: Batch) -> Outcome:
        # CPU time, not elapsed time: one wait for a core makes a model look slow. Its next batches
        # then run in a thread, and it leaves snapshots when evicted, and both keep the cores busy.
        pace = self.learning
        is_measured = len(batch) >= MEASURED_ROWS or pace.is_costly
        if is_measured:
            new = self._new_classes(batch)
            estimated = pace.cost.seconds(len(batch), batch.nnz, new)
            began = self._clock.cpu_seconds()
        gate = self.parts.gate
        if gate is None:
            outcome = self.learn_rows(batch, self.seq + 1)
        else:
            outcome = gate.learn(self.learner, self.learn_rows, batch, self.seq + 1)
            if outcome.set_aside is not None:
                last = self.seq + len(batch)
                self.parts.absent.add(last + 1 - int(outcome.set_aside.sum()), last)
            for on_reached in self.parts.on_reached:
                on_reached(self.seq + len(batch))
        self.seq += len(batch)
        if is_measured:
            pace.measured(estimated, self._clock.cpu_seconds() - began)
        if len(outcome.classes) != self._classes:
            self._set_cost()
        return outcome

    def learn_rows(self, batch: Batch, first_seq: int) -> Outcome:
        rows = batch
        if batch.served_parts is not None:
            rows, batch = self._for_learner_and_parts(batch)
        outcome = self.learner.learn(rows)
        if batch.served is not None and self._as_served is not None:
            outcome = self._as_served.put(rows, outcome)
        counted = late_label_scores.counted_once(batch, outcome)
        if (first := outcome.relearned) > 0:
            self.progress = make_progressive(self.spec)
            self.progress.count(batch[first:], counted[first:], first_seq + first)
        else:
            self.progress.count(batch, counted, first_seq)
        for on_learned in self.parts.on_learned:
            on_learned(batch, counted, first_seq)
        self.rejected += int(np.count_nonzero(outcome.rejected))
        if outcome.observed is not None:
            self.rejected -= int(np.count_nonzero(outcome.observed))
        return outcome

    def _for_learner_and_parts(self, batch: Batch) -> tuple[Batch, Batch]:
        """The rows with what their learner kept, and with what the parts of features kept."""
        was_forgotten = self._as_served is None
        width = self._forgotten_width if was_forgotten else self.parts.served_width
        rows = batch
        if width:
            rows = replace(batch, served_parts=columns_of(batch.served_parts, width))
        if was_forgotten:
            return rows, replace(batch, served_parts=None)
        return rows, replace(batch, served_parts=columns_of(batch.served_parts, 0, width))

    def _set_position(self, seq: int, chain: str) -> None:
        self.seq, self.chain = seq, chain
        self.lineage.add(seq, chain)

    # -- the journal -----------------------------------------------------------------------------

    async def catch_up(self, journal: Journal, until: int | None = None) -> None:
        """Apply everything in the journal after this replica. Raises Forked.

        With `until`, reading stops once the replica reaches that seq. If there is much to read, the
        next entries are read while these are applied.
        """
        entries = await self._read(journal, self.seq)
        while entries:
            ahead: asyncio.Task[Sequence[Entry]] | None = None
            end = end_of(entries)
            is_last = until is not None and end >= until
            try:
                if size_of(entries) > READ_BYTES // 2 and not is_last:
                    self._applying = entries
                    # A background task, because it must finish even if these entries cannot be
                    # applied.
                    ahead = background_task(self._read_ahead(journal, entries))
                    # The read starts in one event-loop iteration and is sent in the next. Then the
                    # store works while the entries are applied, which blocks the loop.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                await self.apply(entries, journal)
            finally:
                self._applying = ()
            if is_last:
                return
            entries = await (ahead or self._read(journal, self.seq))

    async def _read_ahead(self, journal: Journal, some: Sequence[Entry]) -> Sequence[Entry]:
        """Read the entries after `some` while those are applied.

        If the new entries do not follow, the replica stops serving at once.
        """
        entries, last = await self._read(journal, end_of(some)), some[-1]
        if entries and self._applying is some and not follows(entries[0], last.chain):
            self.is_forked = True
        return entries

    async def _read(self, journal: Journal, after: int) -> Sequence[Entry]:
        await ensure_task()
        return await journal.read(self.id, self.incarnation, after, READ_BYTES)

    def check_head(self, record: ModelRecord) -> None:
        """Raise Forked if the journal ends before this replica, or here with another chain."""
        if (record.seq, record.chain) == (self.seq, self.chain) or record.seq > self.seq:
            return
        raise Forked(
            f"model {self.id!r}: the journal ends at seq {record.seq} with chain {record.chain}, "
            f"this replica is at seq {self.seq}"
        )

    def successor(self, record: ModelRecord) -> "Replica":
        """An empty replica of the model, which remembers every entry that it applies."""
        fresh = Replica(record, self.features, self._kept_answers, self._clock, self.ratios)
        fresh.watched = self.watched
        fresh.lineage = Lineage(kept=None)
        return fresh

    async def become(self, fresh: "Replica") -> Lost:
        """Take over the state of a loaded successor. Return what the journal had lost."""
        async with self._lock:
            lost = self.lineage.replace_with(fresh.lineage)
            self._replace_state(fresh)
            self.certified_at = float("-inf")
        self.is_forked = False
        return lost

    def use_state(self, state: ModelState) -> None:
        super().use_state(state)
        self._paced = None

    def start_over(self) -> None:
        """Return to the state before the first record."""
        clear_outcomes(self.watched)
        if self.is_forked:
            self.is_forked = False
        self._begin()

    def forget_what_served(self, width: int) -> None:
        """Count every row with this spec's own scores, because another spec served the rows.

        Its parts of features kept `width` numbers of each row.
        """
        self._as_served, self._forgotten_width = None, width
