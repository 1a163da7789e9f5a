"""One model in this process: its replica, committer, row schema, jobs and snapshots."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Sized

from dualstream.service.codecs import ListedRows, ParsedRows
from dualstream.service.journal.protocol import KeyEntry, LogPosition, ModelRecord
from dualstream.service.models.activity import Activity
from dualstream.service.models.compiled_specs import CompiledSpec
from dualstream.service.models.deps import ModelDeps
from dualstream.service.models.job import AnyJob, Job
from dualstream.service.models.lag import Lag
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.models.snapshots import BULK_ROWS, Snapshots
from dualstream.service.models.store_status import STALE_S
from dualstream.service.models.waiting_requests import Ticket
from dualstream.service.observability.tracing import SPAN, LearnSpans
from dualstream.service.replica.commit import CommitListener, Committer
from dualstream.service.replica.fork_detection import Lineage, Lost
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import (
    AnyRequest,
    ControlRequest,
    OutcomeForgotten,
    Receipt,
    Request,
    is_left,
)
from dualstream.solvers.protocols.member_learner import MemberLearner, member_learner
from dualstream.wire.problem_json import Problem

log = logging.getLogger("dualstream.model")

MAX_APPEND_S = 5.0
"""Time during which an append of unknown outcome is retried."""
OVERHEAD_BYTES = 6_000
"""Committer, locks and other memory of a model besides its state and row schema."""
MEASURE_RECORDS = 1000
"""Records after which the memory of a model is measured again, at most."""
MIN_MEASURE_RECORDS = 16
"""Records before the second measurement. By then the metrics exist: half of a small model."""
MEASURE_GROUPS = 4
"""Bulk groups between two measurements."""


MAX_KEYED_ROWS = 100_000
"""Rows with ids, or labels, in one request. One append looks up and stores all of their keys. It
takes the store about 15 microseconds for each, in which it serves no other model."""


class Model(CommitListener):
    """One model as this process serves it.

    Nothing that the model owns refers to it strongly, so its memory is free as soon as neither the
    cache nor a request holds it: after an eviction, a deletion, a replacement or a fork. The
    garbage collector, which would have to find a reference cycle, runs rarely.
    """

    def __init__(
        self,
        deps: ModelDeps,
        record: ModelRecord,
        replica: Replica,
        spec: CompiledSpec,
        on_failure: "Callable[[Model, Exception], None]",
        on_resize: "Callable[[Model, int], None]",
    ) -> None:
        self.deps = deps
        self.record = record
        self.replica = replica
        self.spec, self.row_schema = spec, spec.row_schema()
        self._on_failure, self._on_resize = on_failure, on_resize
        self.committer = Committer(deps.journal, replica, MAX_APPEND_S, self, deps.clock)
        self.clock = deps.clock
        self._jobs: dict[type[Job], Job] = {}
        self._is_stopped = False
        self._names_since = replica.names_since
        if self._names_since:
            self.row_schema.resend_names(self._names_since)
        self.lag = Lag()
        self.activity = Activity()
        if replica.applied_ms is not None:
            self.activity.saw(replica.learner.samples, replica.applied_ms / 1000)
        self.snapshots = Snapshots(deps, record, replica, self.committer)
        self.bytes = 0
        """Memory in bytes, as last measured."""
        self._measure_at = 0
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

    async def submit(self, request: AnyRequest, ticket: Ticket | None = None) -> Receipt:
        """Make the request durable and apply it.

        `ticket` is of clients' requests that wait already; their caller ends it.

        Raises Problem 413 for too many ids, 429 if the model takes more memory than allowed or a
        feature takes no more rows; OtherIdentity; OutcomeUnknown after the timeout;
        OutcomeForgotten if the outcome of a control is no longer known; and what the append raises.
        """
        self.deps.store_identity.check()
        spans = None
        if isinstance(request, Request):
            check_keys(request)
            self._check_limits()
            span = SPAN.get()
            if span is not None:
                spans = LearnSpans(span, request.on_journalled)
                request.on_journalled = spans.on_journalled
        future = self.committer.submit(request)
        if isinstance(request, ControlRequest):
            receipt = await future
            self._remeasure()  # a new member is large
            if receipt.control_outcome is None and not is_left(receipt.position):
                raise OutcomeForgotten(request.control.kind, receipt.position.seq)
            return receipt
        waiting = ticket or self.deps.waiting.enter()
        waiting.future = future
        try:
            return await future
        finally:
            if ticket is None:
                self.deps.waiting.leave(waiting)
            if spans is not None:
                spans.end()

    async def submit_each(
        self, requests: Sequence[Request], ticket: Ticket
    ) -> list[Receipt | BaseException]:
        """As `submit`, for requests of one row that wait together: each has a receipt or an error.

        Raises what `submit` raises before the append, and OutcomeUnknown after the timeout.
        """
        self.deps.store_identity.check()
        self._check_limits()
        futures = map(self.committer.submit, requests)
        ticket.future = asyncio.gather(*futures, return_exceptions=True)
        return await ticket.future

    def _check_limits(self) -> None:
        if self.bytes > self.deps.settings.max_model_bytes:
            detail = (
                f"model {self.record.id!r} takes {self.bytes} bytes of memory, and the limit is "
                f"{self.deps.settings.max_model_bytes}; it still predicts, but learns no more"
            )
            raise Problem(429, "model-too-large", detail, retry_after_s=60)
        for check in self.replica.parts.check_learning:
            check(self.record.id, self.replica.seq)

    def mark_names_journalled(self, parsed: ParsedRows, receipt: Receipt) -> None:
        """Note which feature names the journal has now. Conflicting rows did not bring theirs."""
        if not receipt.conflicts:
            self.row_schema.mark_journalled(parsed.names, receipt.position.seq)
        elif isinstance(parsed.rows, ListedRows):
            for row in receipt.rows or ():
                self.row_schema.mark_journalled(
                    parsed.rows.names_of(row, row + 1), receipt.position.seq
                )

    async def known(self, keys: Sequence[bytes]) -> list[KeyEntry | None]:
        """What the journal keeps under these keys."""
        record = self.record
        return await self.deps.journal.known(record.id, record.incarnation, keys)

    async def refresh(self, seq: int | None = None) -> None:
        """Apply other processes' records, unless the replica has reached `seq`.

        Raises what the journal's read raises.
        """
        await self.committer.refresh(seq)

    async def position(self) -> LogPosition:
        """The position of the replica between two groups. It is unchanged when the caller resumes.

        A control computed from the state at this position is submitted with it. The journal refuses
        the control if it has lost that state.
        """
        async with self.committer.between_groups():
            return self.replica.position

    async def position_beyond(self, position: LogPosition) -> LogPosition | None:
        """The journal's end, if the records at `place` still lead to it. None if they are lost.

        `place` is the end of an entry. Raises what the journal's read raises.
        """
        await self.refresh()
        end = await self.position()
        return end if self.replica.lineage.includes(position.seq, position.chain) else None

    @property
    def stale_s(self) -> float | None:
        """Age of the state in seconds if it must be reported as stale, else None."""
        age_s = time.monotonic() - self.lag.fresh_at
        return age_s if age_s > STALE_S else None

    def on_failure(self, error: Exception) -> None:
        self._on_failure(self, error)

    def members(self) -> MemberLearner:
        """The learner and its members. Raises Problem 404 if it has none."""
        learner = member_learner(self.replica.learner)
        if learner is None:
            raise Problem(404, "no-members", f"model {self.record.id!r} has no members")
        return learner

    @property
    def is_idle(self) -> bool:
        """Is no append, apply, snapshot or job under way?"""
        if self.snapshots.is_writing or not self.committer.is_idle:
            return False
        return not any(job.is_busy for job in self._jobs.values())

    def stop(self) -> None:
        """Leave the cache, and unfinished jobs to the process that loads the model next."""
        self._is_stopped = True
        for job in self._jobs.values():
            job.stop()

    async def close(self) -> None:
        """Finish the requests and the snapshot under way."""
        await self._close_jobs()
        await self.committer.drain()
        await self._close_jobs()  # the last group may have started jobs
        await self.snapshots.close()

    async def _close_jobs(self) -> None:
        for job in list(self._jobs.values()):
            await job.close()

    def on_group(self, rows: int, seconds: float) -> None:
        self.deps.counters.saw_group(rows, seconds)

    def on_fork(self, model_id: str) -> None:
        """The lost records may have held feature names, and snapshots may hold lost records."""
        self.deps.counters.saw_fork(model_id)
        self.row_schema.resend_names()
        self.snapshots.forget_last()

    def count_lost(self, lost: Lost) -> None:
        """Log and count records that were applied here and that the store has lost."""
        if lost.records:
            log.error(
                "model %r: the store has lost %s%d records that were applied here, after seq %d",
                self.record.id,
                "" if lost.is_all else "at least ",
                lost.records,
                lost.kept,
            )
            self.deps.counters.saw_loss(self.record.id, lost.records)

    def count_lost_since(self, lineage: Lineage | None) -> None:
        """Count the records lost since the model was evicted."""
        if lineage is not None:
            self.count_lost(lineage.lost_in(self.replica.lineage))

    def on_loss(self, lost: Lost) -> None:
        """Called after a rebuild, even if nothing was lost.

        A model that has left the cache, and that a request still holds, does not count: the next
        load counts by the lineage that the registry has kept.
        """
        if not self._is_stopped:
            self.count_lost(lost)
        self._begin_due(0)

    def on_advance(self, before: int, after: int) -> None:
        """Called between two groups. Starts a snapshot, a measurement and jobs that are due."""
        self.activity.saw(self.replica.learner.samples, time.time())
        is_bulk = after - before >= BULK_ROWS
        if after >= self._measure_at:
            self._remeasure()
            if is_bulk:
                self._measure_at = after + MEASURE_GROUPS * (after - before)
        every = self.deps.settings.snapshot_every
        if after // every > before // every:
            self.snapshots.on_due(is_bulk)
        # Between groups only a forgotten row makes a job due that the model does not have yet.
        if self.replica.parts.forgotten_seq > before:
            self._begin_due(before)
        for job in self._jobs.values():
            job.on_advance()
        if self.replica.names_since != self._names_since:
            self._names_since = self.replica.names_since
            self.row_schema.resend_names(self._names_since)

    # -- memory ----------------------------------------------------------------------------------

    def _measure(self) -> None:
        replica = self.replica
        # Mostly empty.
        lists: Sequence[Sized] = (replica.names, replica.first_responses, replica.control_outcomes)
        roots = (
            replica.learner,
            replica.progress,
            replica.lineage,
            self.activity.rows,
            self.activity.times,
            *filter(len, lists),
            *(root for part in replica.parts for root in part.roots()),
            *(root for job in self._jobs.values() for root in job.roots()),
            *self.row_schema.owned_objects(),
        )
        self.bytes = OVERHEAD_BYTES + 8 * len(self.record.spec) + bytes_of(*roots)
        replica.measured(self.bytes)
        self._measure_at = replica.seq + min(
            MEASURE_RECORDS, max(MIN_MEASURE_RECORDS, replica.seq // 4)
        )

    def _remeasure(self) -> None:
        before = self.bytes
        self._measure()
        self._on_resize(self, before)


def check_keys(request: Request) -> None:
    """Raise Problem 413 if a request has too many rows with ids for one append."""
    if len(request.parts) <= MAX_KEYED_ROWS:
        return
    count = sum(part.key not in (None, request.key) for part in request.parts)
    if count > MAX_KEYED_ROWS:
        detail = (
            f"the request has {count} rows with ids, more than {MAX_KEYED_ROWS}, and nothing of it "
            "was learned; split it, or send NDJSON or CSV, which the server learns in chunks"
        )
        raise Problem(413, "too-many-rows", detail)
