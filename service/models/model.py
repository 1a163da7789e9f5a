"""One model as this process serves it: its replica, its committer, its door, its snapshots."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Sized
from typing import Protocol

from dualstream.service.codecs import ListedRows, ParsedRows, RowSchema
from dualstream.service.concurrency import drop_traceback
from dualstream.service.journal.protocol import (
    Appended,
    JournalUnavailable,
    Known,
    ModelChanged,
    ModelRecord,
    NotHeld,
    OutcomeUnknown,
    Place,
    UnknownModel,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.models.deps import ModelDeps
from dualstream.service.models.job import AnyJob, Job
from dualstream.service.models.lag import Lag
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.models.spec_cache import KnownSpec
from dualstream.service.models.store_status import STALE_S, OtherIdentity
from dualstream.service.replica.apply import CommitListener
from dualstream.service.replica.committer import Committer
from dualstream.service.replica.lineage import Lineage, Lost
from dualstream.service.replica.receipts import OutcomeForgotten, Receipt, is_left
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import AnyRequest, ControlRequest, Request
from dualstream.service.replica.state import Captured
from dualstream.solvers import MemberLearner, member_learner
from dualstream.wire.problems import Problem

log = logging.getLogger("dualstream.model")

MAX_APPEND_S = 5.0
"""Time during which an append of unknown outcome is retried."""
MAX_QUARANTINE_RECORDS = 100_000
"""Records in the quarantine of a paused model. Then learning is refused."""
MAX_QUARANTINE_BYTES = 256 * 1024**2
"""Bytes of rows in quarantine, at 16 per non-zero feature and 32 per row."""
BESIDE_BYTES = 3_000
"""Committer, locks and whatever else a model takes beside its state and its door."""
MEASURED_ROWS = 1000
"""A model's memory is measured again after so many records at most, and sooner while it is new."""
MIN_ROWS = 16
"""After so many its metrics, which are a small model's half, are there for the first time."""
MEASURED_GROUPS = 4
"""In bulk, after so many groups."""
BULK_ROWS = 1000
"""Rows learned at once come from bodies of many, of which a million a second may come."""
SNAPSHOT_SHARE = 0.05
"""Of the time, that snapshots take while rows come in bulk."""
# What it costs to come back by the journal, beside learning: reading, decoding and applying; and to
# write a snapshot, and to read it and be restored by it. CPU time of all threads with SQLite, of
# models of 60 kB, 410 kB and 8 MB. A model that leaves memory writes one where that is less.
REPLAYED_ENTRY_S, REPLAYED_ROW_S = 3.5e-6, 2e-7
WRITTEN_S, WRITTEN_BYTE_S, RESTORED_BYTE_S = 0.0007, 4e-9, 2e-9


class ModelOwner(Protocol):
    """The registry, as its models see it."""

    def find(self, model_id: str) -> "Model | None":
        """The model of this id that is in memory now."""

    def forget(self, model: "Model") -> None:
        """Drop a model that the store no longer has in this form."""

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Refuse requests for a model that cannot be read, for a while."""

    def weigh(self, model: "Model", before: int) -> None:
        """The model took `before` bytes of memory and now takes `model.bytes`."""


class Model(CommitListener):
    """One model as this process serves it."""

    def __init__(
        self,
        deps: ModelDeps,
        owner: ModelOwner,
        record: ModelRecord,
        replica: Replica,
        spec: KnownSpec,
        door: RowSchema,
    ) -> None:
        self.deps, self._owner = deps, owner
        self.record = record
        self.replica = replica
        self.spec, self.door = spec, door
        self.committer = Committer(
            deps.journal, replica, MAX_APPEND_S, listener=self, outside=deps.outside
        )
        self.outside = deps.outside
        self._jobs: dict[type[Job], Job] = {}
        self._names_since = replica.names_since
        if self._names_since:
            door.tell_names_again(self._names_since)
        self.lag = Lag()
        self._snapshot: asyncio.Task[None] | None = None
        self._snapshot_seq = replica.restored_seq
        self._snapshot_not_before = float("-inf")
        self.bytes = 0
        """Of memory, as it was measured last."""
        self._measured_again_at = 0
        self._measure()
        self._begin_due(0)

    # -- jobs ------------------------------------------------------------------------------------

    def job(self, kind: type[AnyJob]) -> AnyJob:
        """The model's job of this kind, made when it is first asked for."""
        job = self._jobs.get(kind)
        if job is None:
            job = self._jobs[kind] = kind(self)
        assert isinstance(job, kind)
        return job

    def find_job(self, kind: type[AnyJob]) -> AnyJob | None:
        """The model's job of this kind if there is one."""
        return self.job(kind) if kind in self._jobs else None

    def _begin_due(self, since: int) -> None:
        """Start the jobs that records after `since` make due."""
        for kind in self.deps.jobs:
            if kind.is_due(self.replica, since):
                self.job(kind).begin_due()

    # -- requests --------------------------------------------------------------------------------

    async def submit(self, request: AnyRequest) -> Receipt:
        """Make the request durable and apply it.

        Raises Problem 429 for rows where the model takes more memory than it may, or has as many in
        quarantine; OtherIdentity; OutcomeUnknown where they wait too long; VerdictForgotten of a
        control of which nobody knows any more what became of it; and what the append raises.
        """
        self.deps.identity.check()
        if isinstance(request, Request):
            self._check_room()
        future = self.committer.submit(request)
        if isinstance(request, ControlRequest):
            receipt = await future
            self._weigh()  # a new member takes more than a row does
            if receipt.verdict is None and not is_left(receipt.placed):
                raise OutcomeForgotten(request.control.kind, receipt.placed.seq)
            return receipt
        number = self.deps.admission.enter(future)
        try:
            return await future
        finally:
            self.deps.admission.leave(number)

    def _check_room(self) -> None:
        if self.bytes > self.deps.settings.max_model_bytes:
            detail = (
                f"model {self.record.id!r} takes {self.bytes} bytes of memory, and the limit is "
                f"{self.deps.settings.max_model_bytes}: it still predicts, but learns no more"
            )
            raise Problem(429, "model-too-large", detail, retry_after_s=60)
        guarding = self.replica.guarding
        if guarding is None or not guarding.pauses.is_paused:
            return
        pauses = guarding.pauses
        is_full = self.replica.seq - pauses.held_from >= MAX_QUARANTINE_RECORDS
        if is_full or pauses.held_bytes >= MAX_QUARANTINE_BYTES:
            full = (
                f"{MAX_QUARANTINE_RECORDS} records" if is_full else f"{MAX_QUARANTINE_BYTES} bytes"
            )
            detail = (
                f"model {self.record.id!r} is paused since seq {pauses.since}, and its quarantine "
                f"is full: {full}; resume it, its rows learned or dropped"
            )
            raise Problem(429, "quarantine-full", detail, retry_after_s=60)

    def remember_told(self, intake: ParsedRows, receipt: Receipt) -> None:
        """Which names the journal has: a row left out as another's did not bring its own."""
        if not receipt.conflicts:
            self.door.told(intake.names, receipt.placed.seq)
        elif isinstance(intake.rows, ListedRows):
            for row in receipt.rows or ():
                self.door.told(intake.rows.names_of(row, row + 1), receipt.placed.seq)

    async def known(self, keys: Sequence[bytes]) -> list[Known | None]:
        """What the journal keeps under these keys."""
        record = self.record
        return await self.deps.journal.known(record.id, record.incarnation, keys)

    async def refresh(self, seq: int | None = None) -> None:
        """Apply what other processes have appended, unless the replica has reached `seq`.

        Raises what the journal's read raises.
        """
        await self.committer.refresh(seq)

    async def place(self) -> Place:
        """Where the replica stands between two groups; it is still there when the caller goes on.

        What is made of the state there is submitted with it: the journal does not take it where it
        has lost that state.
        """
        async with self.committer.between_groups():
            return self.replica.place

    async def place_beyond(self, place: Place) -> Place | None:
        """The journal's end, where it still leads there from a place at the end of an entry.

        None where it has lost that. Raises what the journal's read raises.
        """
        await self.refresh()
        end = await self.place()
        return end if self.replica.trail.came_by(place.seq, place.chain) else None

    @property
    def stale_s(self) -> float | None:
        """How old the state may be, where that is too old to be told as fresh; else None."""
        age_s = time.monotonic() - self.lag.fresh_at
        return age_s if age_s > STALE_S else None

    def on_failure(self, error: Exception) -> None:
        """A model that is gone, or forked and not rebuilt, is loaded by the next request.

        Two live replicas would both miscount losses, so this one stops accepting requests.
        """
        is_gone = isinstance(error, ModelChanged | UnknownModel)
        is_let_go = self.replica.is_forked or isinstance(error, RecordError)
        if isinstance(error, JournalUnavailable | OutcomeUnknown):
            self.deps.status.failed(error)
        if isinstance(error, RecordError):
            self._owner.set_aside(self.record.id, error)
        if is_let_go or is_gone:
            self._owner.forget(self)
        if is_let_go and not is_gone:
            why = f"model {self.record.id!r} is being read from its journal anew"
            self.committer.refuse(why, self._pass_on)

    def _pass_on(self, appended: Appended) -> None:
        """What was appended before it was let go of may show that its successor is forked."""
        successor = self._owner.find(self.record.id)
        if successor is not None and successor.replica.incarnation == self.replica.incarnation:
            successor.committer.hear(appended)

    def members(self) -> MemberLearner:
        """The learner and its members. Raises Problem 404 when it has none."""
        learner = member_learner(self.replica.learner)
        if learner is None:
            raise Problem(404, "no-members", f"model {self.record.id!r} has no members")
        return learner

    @property
    def is_idle(self) -> bool:
        """Whether nothing is appended, applied, written, cleaned up or refitted just now."""
        if self._snapshot is not None or not self.committer.is_idle:
            return False
        return not any(job.is_busy for job in self._jobs.values())

    def stop(self) -> None:
        """Leave what is not done to whoever holds the model next."""
        for job in self._jobs.values():
            job.stop()

    async def close(self) -> None:
        """Answer what is under way, and finish the snapshot that is being written."""
        await self._close_jobs()
        await self.committer.drain()
        await self._close_jobs()  # those that the last group has begun
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])

    async def _close_jobs(self) -> None:
        for job in list(self._jobs.values()):
            await job.close()

    def release(self) -> None:
        """Refer to itself no more: its memory is free once nobody refers to it, and not later.

        For one that is idle; whoever comes to it all the same is served, and nobody is told.
        """
        self.committer.tell_nobody()

    def on_group(self, rows: int, seconds: float) -> None:
        self.deps.counters.saw_group(rows, seconds)

    def on_fork(self, model_id: str) -> None:
        """The lost entries may have held the names that this process has told, and snapshots."""
        self.deps.counters.saw_fork(model_id)
        self.door.tell_names_again()
        self._snapshot_seq = 0

    def saw_refit(self, has_entered: bool) -> None:
        """Count a refit that was computed here."""
        self.deps.counters.saw_refit(self.record.id, has_entered)

    def count_lost(self, lost: Lost) -> None:
        """Say and count what the journal had lost of what was applied here."""
        if lost.records:
            log.error(
                "model %r: the store has lost %s%d records that were applied here, after seq %d",
                self.record.id,
                "" if lost.is_all else "at least ",
                lost.records,
                lost.kept,
            )
            self.deps.counters.saw_loss(self.record.id, lost.records)

    def count_lost_since(self, trail: Lineage | None) -> None:
        """As `count_lost`, of what it had applied when it left memory."""
        if trail is not None:
            self.count_lost(trail.lost_in(self.replica.trail))

    def on_loss(self, lost: Lost) -> None:
        """Called once it was rebuilt, whether anything was lost or not."""
        self.count_lost(lost)
        self._begin_due(0)

    def on_advance(self, before: int, after: int) -> None:
        """Called between two groups: a snapshot falls due when `after` passed a multiple."""
        every = self.deps.settings.snapshot_every
        is_bulk = after - before >= BULK_ROWS
        if after // every > before // every and self._snapshot is None:
            if not is_bulk or self.deps.outside.clock() >= self._snapshot_not_before:
                self.start_snapshot()
        if after >= self._measured_again_at:
            self._weigh()
            if is_bulk:
                self._measured_again_at = after + MEASURED_GROUPS * (after - before)
        self._begin_due(before)
        for job in self._jobs.values():
            job.on_advance()
        if self.replica.names_since != self._names_since:
            self._names_since = self.replica.names_since
            self.door.tell_names_again(self._names_since)

    # -- memory ----------------------------------------------------------------------------------

    def _measure(self) -> None:
        of, seq = self.replica, self.replica.seq
        # Mostly empty, which takes next to nothing.
        lists: Sequence[Sized] = (of.names, of.retained, of.answers, of.losses, of.verdicts)
        held_by = (of.learner, of.progress, of.trail, *filter(len, lists), *self.door.held())
        self.bytes = BESIDE_BYTES + 8 * len(self.record.spec) + bytes_of(*held_by)
        self._measured_again_at = seq + min(MEASURED_ROWS, max(MIN_ROWS, seq // 4))

    def _weigh(self) -> None:
        before = self.bytes
        self._measure()
        self._owner.weigh(self, before)

    # -- snapshots -------------------------------------------------------------------------------

    @property
    def is_worth_a_snapshot(self) -> bool:
        """Whether to write and read one costs less than to apply what came since the last one."""
        rows = self.replica.seq - self._snapshot_seq
        entries = self.replica.trail.entries_after(self._snapshot_seq)
        replay_s = rows * (REPLAYED_ROW_S + self.replica.s_per_row) + entries * REPLAYED_ENTRY_S
        return replay_s > WRITTEN_S + self.bytes * (WRITTEN_BYTE_S + RESTORED_BYTE_S)

    def start_snapshot(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Write a snapshot of the state as it is now; to be called between two groups."""
        self._snapshot = asyncio.create_task(self._write(self.replica.capture(), on_end))

    async def write_snapshot(
        self, captured: Captured | None = None, replaces: bool = False
    ) -> None:
        """Put a snapshot of the state, as it was captured or is now, into the store.

        One of the same seq stays unless the new one `replaces` it. Of the journal goes what
        neither of the two newest snapshots needs, nor `keep_records`.
        """
        captured = self.replica.capture() if captured is None else captured
        snapshot = await captured.encoded()
        await self.deps.identity.look()
        record, journal = self.record, self.deps.journal
        where = (record.id, record.incarnation)
        place = (snapshot.seq, snapshot.chain)
        was_put = await journal.snapshot_put(*where, *place, snapshot.data, replaces)
        self._snapshot_seq = snapshot.seq
        through = snapshot.seq - self.deps.settings.keep_records
        if was_put and through > 0:
            await journal.trim(*where, await self._may_go(through), behind=1)

    async def _may_go(self, through: int) -> int:
        """The last record up to `through` that may go: rows in quarantine may be learned yet.

        Or once more, by whoever begins from a snapshot of before they were.
        """
        guarding = self.replica.guarding
        if guarding is None:
            return through
        oldest = self.replica.seq
        if guarding.pauses.has_taken_up:
            places = await self.deps.journal.snapshots(self.record.id, self.record.incarnation)
            oldest = min((place.seq for place in places), default=0)
        # A quarantine takes no more than that.
        held = guarding.kept_after(oldest, self.replica.seq - MAX_QUARANTINE_RECORDS)
        return through if held is None else min(through, held)

    async def _write(self, captured: Captured, on_end: Callable[[], None]) -> None:
        """Learning goes on without the snapshot when the store refuses it; the next one is due."""
        clock = self.deps.outside.clock
        began = clock()
        try:
            await self.write_snapshot(captured)
        except OtherIdentity as error:
            drop_traceback(error)  # it was said
        except Exception as error:
            log.exception("model %r: snapshot at seq %d failed", self.record.id, captured.seq)
            if isinstance(error, NotHeld):
                await self.committer.see_what_is_lost(Place(captured.seq, captured.chain))
        finally:
            self._snapshot = None
            self._snapshot_not_before = clock() + (clock() - began) / SNAPSHOT_SHARE
        on_end()
