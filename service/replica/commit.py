"""Group commit: waiting requests of one model share one append and one apply.

Requests keep their order. A control forms its own group, because it gets its own outcome. There is
no timer: while an append is in flight, the next group collects behind it. A bulk group of rows is
appended while the bulk group before it is learned.

A group is committed by one coroutine, which `start` runs in the event-loop iteration in which the
append is answered. It becomes a task only if it has to wait: with many models a group often holds
one row, and a task costs as much time again.

When the journal does not continue what the replica applied (a fork), the replica is rebuilt from
the journal.
"""

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from dualstream.service.concurrency import FifoLock, run_to_completion, start
from dualstream.service.journal.protocol import (
    Appended,
    CursorMoved,
    Journal,
    JournalError,
    JournalUnavailable,
    LogPosition,
    MissingPosition,
    ModelChanged,
    NonceForgotten,
    NotReplicated,
    OutcomeUnknown,
    PartPosition,
    TooManyPendingRows,
    Trimmed,
    UnknownCopy,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.fork_detection import Forked, Lost, contradicts, may_contradict
from dualstream.service.replica.groups import (
    GROUP_ROWS,
    Group,
    RequestQueue,
    append_request,
    is_bulk,
    is_bulk_request,
    is_complete,
    is_repeatable,
    is_whole,
    next_group,
    own_entry,
    stores_rows,
)
from dualstream.service.replica.outcomes import Applied, ControlOutcome, clear_outcomes
from dualstream.service.replica.recovery import reach_head, rebuild
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import (
    AnyRequest,
    ControlRequest,
    Receipt,
    Request,
    by_request,
    new_of,
    receipt_of_control,
    receipts_of,
)
from dualstream.solvers import Outcome

log = logging.getLogger("dualstream.committer")

EXPECTED_ERRORS = (
    OutcomeUnknown,
    JournalUnavailable,
    ModelChanged,
    UnknownCopy,
    CursorMoved,
    MissingPosition,
    NotReplicated,
    TooManyPendingRows,
)
"""The caller receives these errors. They need no log entry."""
NEXT_REQUEST_ITERATIONS = 6
"""Event-loop iterations that a client needs to submit its next rows after `on_journalled`."""
SEND_ITERATIONS = 2
"""Event-loop iterations until an append is sent to the store."""
FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 0.5


class CommitListener:
    """Observer of a committer. Each method does nothing unless a subclass overrides it."""

    def on_group(self, rows: int, seconds: float) -> None:
        """A group was journalled after `seconds`."""

    def on_fork(self, model_id: str) -> None:
        """The journal does not continue what the replica applied; a rebuild begins."""

    def on_loss(self, lost: Lost) -> None:
        """The replica was rebuilt. `lost` may be empty."""

    def on_advance(self, before: int, after: int) -> None:
        """The replica moved from seq `before` to seq `after`. Called between two groups."""

    def on_failure(self, error: Exception) -> None:
        """A group or a refresh failed."""


SILENT = CommitListener()


class Committer:
    """Appends one model's requests in their order of arrival, and applies them to its replica."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica,
        append_timeout_s: float,
        listener: CommitListener = SILENT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._journal, self._replica = journal, replica
        self._append_timeout_s = append_timeout_s
        self._listener_ref = weakref.ref(listener)
        self._clock = clock
        self._waiting: RequestQueue = deque()
        # Busy from the first waiting request until none waits. `_idle` resolves then.
        self._is_busy = False
        self._idle: asyncio.Future[None] | None = None
        self._refusal: str | None = None
        self._on_late: Callable[[], None] | None = None
        # The group whose append is in flight.
        self._group: Group | None = None
        self._checking: asyncio.Task[None] | None = None
        # The end of the bulk rows that are being learned. The next group may be appended after it.
        self._learning_until: LogPosition | None = None
        self._ahead: Group | None = None
        self._suspicions = 0
        # Held while the replica advances, by a group or by `refresh`, and while its state must
        # belong to its log position.
        self._lock = FifoLock()

    @property
    def _listener(self) -> CommitListener:
        """The listener while it exists. It is not kept in memory: a model listens to itself."""
        return self._listener_ref() or SILENT

    def submit(self, request: AnyRequest) -> "asyncio.Future[Receipt]":
        """Queue the request. The future resolves when the request is durable and applied."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._refusal is not None:
            future.set_exception(JournalUnavailable(self._refusal))
            return future
        self._waiting.append((request, future))
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._gather, 0)
        elif self._learning_until is not None:
            self._append_ahead()
        return future

    async def refresh(self, seq: int | None = None) -> None:
        """Bring the replica to the journal's end, after the current group.

        A refresh continues when its caller is cancelled: a half-applied entry would be applied
        again later. With `seq`, it stops at the read that reaches `seq`, and asks the store nothing
        if the replica is already there.

        Raises JournalUnavailable (also after `refuse`), ModelChanged, UnknownModel.
        """
        await run_to_completion(self._refresh(seq))

    async def _refresh(self, seq: int | None) -> None:
        replica = self._replica
        try:
            async with self._lock:
                if self._refusal is not None:
                    raise JournalUnavailable(self._refusal)
                if seq is None or replica.seq < seq or replica.is_forked:
                    await self._catch_up(seq)
        except Exception as error:
            self._mark_forked_after(error)
            self._report_failure(error)
            raise

    async def check_position(self, position: LogPosition) -> None:
        """The store does not hold `position`: if the replica applied it, read the head."""
        if self._has_lost(position):
            await self._check_against_journal()

    async def _check_against_journal(self) -> None:
        """Refresh. After a failure the listener evicts the replica, so the error is dropped."""
        with contextlib.suppress(JournalError, RecordError):
            await self.refresh()

    def check_again(self) -> None:
        """Read the head again: an append of the replica that this one replaces was answered."""
        self.suspect()
        self._checking = asyncio.create_task(self._check_against_journal())

    def suspect(self) -> None:
        """Stop serving until the next `refresh` has read the journal's head.

        A head that was requested earlier may predate the loss and does not clear the suspicion.
        """
        self._suspicions += 1
        self._replica.is_forked = True

    def refuse(self, reason: str, on_late: Callable[[], None] | None = None) -> None:
        """Accept no more requests, and fail those that wait: nothing of them was journalled.

        Called when another replica of the model replaces this one. The current group finishes. The
        outcome of a group appended ahead of it is unknown; `on_late` is called when its append is
        answered.
        """
        self._refusal, self._on_late = reason, on_late
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(JournalUnavailable(reason))

    @property
    def is_idle(self) -> bool:
        """Does no request wait, and does nothing advance the replica?"""
        return not self._is_busy and not self._lock.is_held

    @contextlib.asynccontextmanager
    async def between_groups(self) -> AsyncIterator[None]:
        """While entered, nothing advances the replica: its state belongs to its log position.

        Raises JournalUnavailable while the replica is forked: a group may have failed in the middle
        of a row.
        """
        async with self._lock:
            if self._replica.is_forked:
                reason = f"model {self._replica.id!r} is being rebuilt from its journal"
                raise JournalUnavailable(reason)
            yield

    async def drain(self) -> None:
        """Wait until every request is answered and nothing advances the replica."""
        self._waiting = deque(one for one in self._waiting if not one[1].done())
        while self._is_busy:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])
        async with self._lock:
            pass

    # -- the order of groups ---------------------------------------------------------------------

    def _gather(self, counted: int) -> None:
        """Start the next group once an event-loop iteration added no requests to those `counted`.

        Requests that arrive together are handled one after the other. Without this check the first
        of them forms a group of its own. There is no wait for requests that have not arrived.
        """
        count = len(self._waiting)
        if counted < count < GROUP_ROWS:
            asyncio.get_running_loop().call_soon(self._gather, count)
        elif self._lock.try_acquire():
            self._begin()
        else:
            self._lock.enqueue().add_done_callback(self._begin)

    def _begin(self, _: object = None) -> None:
        """Append the next group. The caller holds the lock."""
        if not self._waiting:  # `drain` removed the cancelled requests
            self._start_next()
            return
        self._group = group = next_group(self._waiting, self._clock)
        group.sent = self._send(group)
        group.sent.add_done_callback(self._on_appended)

    def _on_appended(self, sent: "asyncio.Future[Appended]") -> None:
        if sent.cancelled():
            return  # the event loop is closing
        group, self._group = self._group, None
        start(self._run(group))

    async def _run(self, group: Group | None) -> None:
        """Commit a group and those that were appended ahead, and resolve their futures."""
        while group is not None:
            before = self._replica.seq
            try:
                receipts = await self._commit(group)
                for future, receipt in zip(group.futures, receipts, strict=True):
                    if not future.done():
                        future.set_result(receipt)
                self._listener.on_advance(before, self._replica.seq)
            except Exception as error:
                self._fail(group, error, before)
            group, self._ahead = self._ahead, None
        self._start_next()

    def _start_next(self) -> None:
        """Release the lock after the current group, and start the next one if requests wait."""
        self._lock.release()
        if self._waiting:
            self._gather(0)
            return
        self._is_busy = False
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _fail(self, group: Group, error: Exception, before: int) -> None:
        self._mark_forked_after(error)
        try:
            self._report_failure(error)
            if isinstance(error, NotReplicated):
                self._listener.on_advance(before, self._replica.seq)
        except Exception:  # an error in the listener must not block the next group
            log.exception("model %r: the listener failed after a failed group", self._replica.id)
        if isinstance(error, RecordError):  # the error happened after the append
            error.is_journalled = True
        if not isinstance(error, EXPECTED_ERRORS):
            failed = len(group.requests)
            log.error(
                "model %r: %d grouped requests failed", self._replica.id, failed, exc_info=error
            )
        futures: Sequence[asyncio.Future[Receipt]] = group.futures
        if isinstance(error, TooManyPendingRows) and self._refusal is None:
            futures = self._requeue_others(group)
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _requeue_others(self, group: Group) -> "list[asyncio.Future[Receipt]]":
        """Append the requests of a failed group again that store no pending rows.

        Nothing of the group was journalled. Returns the futures of the other requests.
        """
        pairs = list(zip(group.requests, group.futures, strict=True))
        self._waiting.extendleft(
            pair for pair in reversed(pairs) if not stores_rows(pair[0]) and not pair[1].done()
        )
        return [future for request, future in pairs if stores_rows(request)]

    def _report_failure(self, error: Exception) -> None:
        if self._refusal is None:  # otherwise another replica has replaced this one
            self._listener.on_failure(error)

    def _mark_forked_after(self, error: Exception) -> None:
        """Mark the replica as forked after an unexpected error: half of a row may be learned."""
        if not isinstance(error, (JournalError, RecordError)):
            self._replica.is_forked = True

    # -- one group -------------------------------------------------------------------------------

    async def _commit(self, group: Group) -> list[Receipt]:
        """Append the group, unless its append is in flight already, and apply it."""
        replica, requests = self._replica, group.requests
        front, group.front = group.front, None
        replica.watched.setdefault(group.nonce)
        try:
            try:
                appended = await (group.appending or self._append(group))
            except MissingPosition:
                await self._check_named_position(group)
                raise
            if front is not None and (self._refusal or replica.position != front):
                # The group is journalled, but the group in front of it could not be learned. The
                # replica that replaces this one applies both.
                raise OutcomeUnknown(self._refusal or "the rows in front of it were not learned")
            positions = by_request(requests, appended.positions)
            try:
                if is_bulk(group.rows) and self._is_next(appended):
                    assert appended.seq is not None
                    self._learning_until = LogPosition(appended.seq, appended.chain)
                    self._append_ahead()
                    await self._await_next_request(group)
                applied = await self._apply(group, appended, positions)
            except JournalUnavailable as error:  # the group is in the journal nevertheless
                raise OutcomeUnknown(str(error)) from error
            finally:
                self._learning_until = None
        finally:
            del replica.watched[group.nonce]
        if appended.shortfall is not None:
            raise NotReplicated(appended.shortfall)
        if isinstance(requests[0], ControlRequest):
            assert not isinstance(applied, Outcome)
            outcomes = replica.control_outcomes
            return [receipt_of_control(requests[0], appended.positions[0], applied, outcomes)]
        assert not isinstance(applied, ControlOutcome)
        return receipts_of(requests, positions, applied, replica.first_responses)

    def _send(self, group: Group) -> "asyncio.Future[Appended]":
        """Append the group once. The future also carries errors."""
        try:
            replica, known = self._replica, self._replica.position
            if group.front is not None and group.front.seq > known.seq:
                known = group.front
            request = append_request(group, replica.id, replica.incarnation, known)
            group.first_known = request.repeats or known
            return asyncio.ensure_future(self._journal.append(request))
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def _append(self, group: Group) -> Appended:
        """Append the group, or await its append in flight, until the outcome is known.

        Repeats an append of unknown outcome with the same nonce. Raises JournalUnavailable when
        nothing was done. Raises OutcomeUnknown at the deadline, or when the store no longer
        remembers the nonce.
        """
        sent, group.sent = group.sent, None
        began = self._clock.now() if sent is None else group.began
        pause = FIRST_PAUSE_S
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                appended = await (sent or self._send(group))
                break
            except NonceForgotten:
                if not is_repeatable(group):
                    raise
                # The keys prevent duplicates, so append as if for the first time.
                sent = group.first_known = None
                continue
            except OutcomeUnknown as error:
                unknown = error
            except JournalUnavailable as error:
                if unknown is None:
                    raise
                unknown = OutcomeUnknown(str(error))
            sent = None
            if self._clock.now() + pause > began + self._append_timeout_s:
                raise unknown
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)
        self._listener.on_group(group.rows, self._clock.now() - group.began)
        for request in group.requests:
            if isinstance(request, Request) and request.on_journalled is not None:
                if is_complete(appended):
                    request.on_journalled()
        return appended

    async def _apply(
        self, group: Group, appended: Appended, positions: Sequence[Sequence[PartPosition]]
    ) -> Applied | None:
        """Bring the replica past the append. Return the outcome of what is new.

        None when nothing is new, and when the replica passed the append by loading a snapshot: then
        the first responses and control outcomes in that snapshot answer the requests.

        The caller has put the group's nonce into `watched`. Requests may be served as soon as this
        waits, so an answer that contradicts the replica is noticed before. Raises OutcomeUnknown
        when the journal has lost the append again.
        """
        replica = self._replica
        try:
            if appended.entries:
                unseen = [entry for entry in appended.entries if entry.seq > replica.seq]
                if is_whole(group, appended):
                    # One pass over other writers' rows and own rows is faster than two.
                    unseen.append(own_entry(group, appended))
                await replica.apply(unseen, self._journal)
            if appended.more:
                await replica.catch_up(self._journal)
            outcome = replica.watched[group.nonce]
            if outcome is not None:
                return outcome
            if appended.seq is None and appended.more:
                self._check_kept(appended)
                return None
            # Even without a new entry the answer returns the chain. A replica that is past the
            # append without having seen it is forked, too.
            follows = appended.first_seq in (None, replica.seq + 1)
            if not follows or appended.previous != replica.chain:
                raise Forked(
                    f"model {replica.id!r}: the append follows chain {appended.previous}, but "
                    f"this replica is at seq {replica.seq} with chain {replica.chain}"
                )
            if appended.seq is None:
                return None
            if isinstance(first := group.requests[0], ControlRequest):
                return await replica.apply_own_control(
                    appended.seq, appended.chain, first.control, self._journal
                )
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)
            self._check_kept(appended)
            return replica.watched[group.nonce]
        new = new_of(group.requests, positions, replica.parts.absent)
        return await replica.apply_own(appended.seq, appended.chain, new)

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown if the journal, read to its end, lost an acknowledged append."""
        replica, seq = self._replica, appended.seq
        is_lost = any(position.seq > replica.seq for position in appended.positions)
        if seq is not None and seq >= replica.lineage.start:
            is_lost = is_lost or not replica.lineage.holds(seq, appended.chain)
        if is_lost:
            raise OutcomeUnknown("the store has lost this append after it acknowledged it")

    # -- a group that is appended ahead ----------------------------------------------------------

    def _is_next(self, appended: Appended) -> bool:
        """Does only the append's own entry follow the replica, as durable as requested?"""
        is_alone = not appended.entries and not appended.more and appended.shortfall is None
        follows = appended.previous == self._replica.chain
        return is_alone and follows and appended.first_seq == self._replica.seq + 1

    def _append_ahead(self) -> None:
        """Append the next bulk group while the one before it is learned.

        Nothing may advance the replica between the two groups. So no group is appended ahead while
        a caller waits for the lock.
        """
        if self._learning_until is None or self._ahead is not None or not self._waiting:
            return
        if self._lock.has_waiters:
            return
        if is_bulk_request(self._waiting[0][0]):
            self._ahead = group = next_group(self._waiting, self._clock)
            group.front = self._learning_until
            self._replica.watched[group.nonce] = None
            group.appending = asyncio.create_task(self._journal_ahead(group, self._learning_until))

    async def _journal_ahead(self, group: Group, front: LogPosition) -> Appended:
        appended = await self._append(group)
        self._look_ahead(appended, front, is_learning=self._learning_until is front)
        if self._on_late is not None:
            self._on_late()
        return appended

    def _look_ahead(self, appended: Appended, front: LogPosition, is_learning: bool) -> None:
        """Check the answer to an append made after `front`, long before the group is applied.

        The replica must stop serving when evidence of a fork arrives, not when the group is
        applied. While the replica `is_learning` the rows up to `front`, it is inside an entry. The
        append of that entry returned where it ends, so the answer is compared with `front`.
        """
        replica = self._replica
        if (is_learning and replica.seq <= front.seq) or replica.position == front:
            replica.is_forked = replica.is_forked or contradicts(appended, front)
        elif replica.seq == replica.lineage.end:
            if may_contradict(appended, replica.position, replica.lineage):
                replica.is_forked = True

    async def _await_next_request(self, group: Group) -> None:
        """Give clients a few event-loop iterations to send their next rows to the store.

        A client that sends rows one chunk after the other learns only now that its rows are
        journalled. Learning blocks the event loop; without this pause the store has nothing to do
        during learning.
        """
        is_followed = any(isinstance(one, Request) and one.is_followed for one in group.requests)
        iterations = NEXT_REQUEST_ITERATIONS if is_followed else 1
        while self._ahead is None and iterations:
            await asyncio.sleep(0)
            iterations -= 1
        for _ in range(SEND_ITERATIONS if self._ahead else 0):
            await asyncio.sleep(0)

    # -- the journal's end -----------------------------------------------------------------------

    async def _catch_up(self, seq: int | None) -> None:
        """Bring the replica to the journal's end, or, with `seq`, to the read that reaches `seq`.

        The caller holds the lock. Raises JournalUnavailable, ModelChanged, UnknownModel.
        """
        replica, before = self._replica, self._replica.seq
        try:
            if seq is not None:
                # Entries prove by their chain that they follow and that the incarnation is the
                # same.
                await replica.catch_up(self._journal, seq)
            has_read = seq is not None
            # Repeat if the replica was suspected after the head was requested.
            while seq is None or replica.seq < seq or replica.is_forked:
                seq, suspicions = replica.seq, self._suspicions
                await reach_head(replica, self._journal, has_read)
                if suspicions == self._suspicions:
                    replica.is_forked = False
                has_read = False
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)
        self._listener.on_advance(before, replica.seq)

    def _has_lost(self, position: LogPosition) -> bool:
        """The store does not hold `position`: return whether this replica may be forked.

        If the replica applied an entry that ends there, it stops serving until the head is read:
        the store may have lost that entry, or only have trimmed it.
        """
        if self._replica.lineage.holds(position.seq, position.chain):
            self.suspect()
        return self._replica.is_forked

    async def _check_named_position(self, group: Group) -> None:
        """The store does not hold the position that a control names: catch up if it may be lost."""
        (request,) = group.requests
        assert isinstance(request, ControlRequest)
        position = request.held
        if position is not None and self._has_lost(position):
            with contextlib.suppress(JournalError):  # the listener evicts the replica
                await self._catch_up(None)

    async def _rebuild(self, cause: Forked | Trimmed) -> None:
        """Discard the replica's state and rebuild it from the journal. Raises ModelChanged.

        A replica that needs trimmed entries may be forked as well. So it, too, stops serving until
        it is rebuilt.
        """
        replica = self._replica
        replica.is_forked = True
        if isinstance(cause, Forked):
            log.warning("%s; rebuilding it from the journal", cause)
            replica.lineage.has_diverged = True
            clear_outcomes(replica.watched)
            self._listener.on_fork(replica.id)
        else:
            log.warning(
                "model %r: %s, this replica is at seq %d; reloading it from the journal",
                replica.id,
                cause,
                replica.seq,
            )
        suspicions = self._suspicions
        lost = await rebuild(replica, self._journal)
        # Whatever suspected the replica during the rebuild also requests a read of the head.
        replica.is_forked = suspicions != self._suspicions
        self._listener.on_loss(lost)
