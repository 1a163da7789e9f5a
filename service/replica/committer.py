"""Group commit: waiting requests of one model share one append and one apply.

Requests keep their order. A control forms its own group, because it gets its own outcome. There is
no timer: while an append is in flight, the next group collects behind it. A bulk group of rows is
appended while the bulk group before it is learned.

Small groups run as callbacks without a task. With many models a group often holds one row, and a
task costs as much time again.

This module decides the order of groups and resolves their futures. `group_commit.py` forms groups
and appends them; `apply_or_rebuild.py` applies them to the replica.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from dualstream.service.concurrency import run_to_completion
from dualstream.service.journal.protocol import (
    Appended,
    CursorMoved,
    Journal,
    JournalError,
    JournalUnavailable,
    LogPosition,
    ModelChanged,
    NotHeld,
    NotReplicated,
    OutcomeUnknown,
    UnknownCopy,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.apply_or_rebuild import SILENT, Applying, CommitListener, Others
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.group_commit import (
    BULK_ROWS,
    GROUP_ROWS,
    Appending,
    Group,
    RequestQueue,
    is_bulk,
    is_complete,
    next_group,
)
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import (
    AnyRequest,
    ControlRequest,
    Receipt,
    Request,
    by_request,
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
    NotHeld,
)
"""The caller receives these errors. They need no log entry."""
NEXT_REQUEST_ITERATIONS = 6
"""Event-loop iterations that a client needs to submit its next rows after `on_journalled`."""
SEND_ITERATIONS = 2
"""Event-loop iterations until an append is sent to the store."""


class Committer:
    """Appends one model's requests in their order of arrival."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica,
        append_timeout_s: float,
        listener: CommitListener = SILENT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._replica = replica
        self._appending = Appending(journal, replica, append_timeout_s, clock)
        self._applying = Applying(journal, replica, listener)
        self._on_late: Callable[[], None] | None = None
        self._clock = clock
        self._waiting: RequestQueue = deque()
        # Busy from the first waiting request until none waits. `_idle` resolves then.
        self._is_busy = False
        self._idle: asyncio.Future[None] | None = None
        self._refusal: str | None = None
        # The current group, and the task that works on it if the group needs several steps.
        self._group: Group | None = None
        self._running: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        # The end of the bulk rows that are being learned. The next group may be appended after it.
        self._learning_until: LogPosition | None = None
        self._ahead: Group | None = None
        # Held while the replica advances, by this committer's groups or by `refresh`, and while its
        # state must belong to its log position.
        self._lock = self._applying.lock

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
        try:
            await self._catch_up(seq)
        except Exception as error:
            self._mark_forked_after(error)
            self._report_failure(error)
            raise

    async def _catch_up(self, seq: int | None) -> None:
        replica = self._replica
        async with self._lock:
            if self._refusal is not None:
                raise JournalUnavailable(self._refusal)
            if seq is not None and replica.seq >= seq and not replica.is_forked:
                return
            before = replica.seq
            await self._applying.catch_up(seq)
            self._applying.listener.on_advance(before, replica.seq)

    async def check_place(self, place: LogPosition) -> None:
        """The store does not hold `place`: if the replica applied it, read the head and rebuild."""
        if self._applying.has_lost(place):
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
        """Stop serving until the next `refresh` has read the journal's head."""
        self._applying.suspect()

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

    # -- one group, from append to responses ----------------------------------------------------

    def _gather(self, known: int) -> None:
        """Start the next group once an event-loop iteration added no requests to the `known` ones.

        Requests that arrive together are handled one after the other. Without this check the first
        of them forms a group of its own. There is no wait for requests that have not arrived.
        """
        count = len(self._waiting)
        if known < count < GROUP_ROWS:
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
        group.sent = self._appending.send(group)
        group.sent.add_done_callback(self._on_appended)

    def _on_appended(self, sent: "asyncio.Future[Appended]") -> None:
        """Learn and answer the appended group: now if possible, else in a task."""
        if sent.cancelled():
            return  # the event loop is closing
        group, self._group = self._group, None
        assert group is not None
        if sent.exception() is None:
            appended = sent.result()
            others = self._applying.at_once(group, appended)
            if others is not None:
                self._learn(group, appended, others)
                self._start_next()
                return
        elif isinstance(sent.exception(), NotHeld):
            self._has_lost(*group.requests)
        self._running = asyncio.get_running_loop().create_task(self._run(group))

    def _learn(self, group: Group, appended: Appended, others: Others) -> None:
        """Learn a small group and resolve its futures."""
        replica, requests, before = self._replica, group.requests, self._replica.seq
        try:
            self._notify_journalled(group, appended)
            placed = by_request(requests, appended.placed)
            outcome = self._applying.learn(group, appended, placed, others)
            self._resolve(
                group, receipts_of(requests, placed, outcome, replica.first_responses), before
            )
        except Exception as error:
            self._fail(group, error, before)

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

    # -- step by step ----------------------------------------------------------------------------

    async def _run(self, group: Group | None) -> None:
        while group is not None:
            await self._finish(group)
            group, self._ahead = self._ahead, None
        self._running = None
        self._start_next()

    async def _finish(self, group: Group) -> None:
        before = self._replica.seq
        try:
            self._resolve(group, await self._commit(group), before)
        except Exception as error:
            self._fail(group, error, before)

    async def _commit(self, group: Group) -> list[Receipt]:
        """Append the group, unless its append is in flight already, and apply it."""
        requests, nonce = group.requests, group.nonce
        front, group.front = group.front, None
        self._replica.watched.setdefault(nonce)
        try:
            try:
                appended = await (group.appending or self._journal_group(group))
            except NotHeld:
                await self._check_held_place(*group.requests)
                raise
            if group.appending is not None and (self._refusal or self._replica.place != front):
                # The group is journalled, but the group in front of it could not be learned. The
                # replica that replaces this one applies both.
                raise OutcomeUnknown(self._refusal or "the rows in front of it were not learned")
            try:
                placed = by_request(requests, appended.placed)
                if group.rows >= BULK_ROWS and self._applying.is_next(appended):
                    assert appended.seq is not None
                    self._learning_until = LogPosition(appended.seq, appended.chain)
                    self._append_ahead()
                    await self._await_next_request(group)
                applied = await self._applying.apply(group, appended, placed)
            except JournalUnavailable as error:  # the group is in the journal nevertheless
                raise OutcomeUnknown(str(error)) from error
            finally:
                self._learning_until = None
        finally:
            del self._replica.watched[nonce]
        if appended.shortfall is not None:
            raise NotReplicated(appended.shortfall)
        if isinstance(requests[0], ControlRequest):
            assert not isinstance(applied, Outcome)
            found = (appended.placed[0], applied, self._replica.control_outcomes)
            return [receipt_of_control(requests[0], *found)]
        assert not isinstance(applied, ControlOutcome)
        return receipts_of(requests, placed, applied, self._replica.first_responses)

    async def _journal_group(self, group: Group) -> Appended:
        appended = await self._appending.until_known(group)
        self._notify_journalled(group, appended)
        return appended

    async def _check_held_place(self, request: AnyRequest) -> None:
        """The store does not hold the request's log position: catch up if that may be a fork."""
        if self._has_lost(request):
            before = self._replica.seq
            with contextlib.suppress(JournalError):  # the listener evicts the replica
                await self._applying.catch_up(None)
                self._applying.listener.on_advance(before, self._replica.seq)

    def _has_lost(self, request: AnyRequest) -> bool:
        assert isinstance(request, ControlRequest)
        return request.held is not None and self._applying.has_lost(request.held)

    async def _journal_ahead(self, group: Group, front: LogPosition) -> Appended:
        appended = await self._journal_group(group)
        self._applying.look_ahead(appended, front, is_learning=self._learning_until is front)
        if self._on_late is not None:
            self._on_late()
        return appended

    def _append_ahead(self) -> None:
        """Append the next bulk group while the one before it is learned.

        Nothing may advance the replica between the two groups. So no group is appended ahead while
        a caller waits for the lock.
        """
        if self._learning_until is None or self._ahead is not None or not self._waiting:
            return
        if self._lock.has_waiters:
            return
        if is_bulk(self._waiting[0][0]):
            self._ahead = group = next_group(self._waiting, self._clock)
            group.front = self._learning_until
            self._replica.watched[group.nonce] = None
            group.appending = asyncio.create_task(self._journal_ahead(group, self._learning_until))

    async def _await_next_request(self, group: Group) -> None:
        """Give clients a few event-loop iterations to send their next rows to the store.

        A client that sends rows one chunk after the other learns only now that its rows are
        journalled. Learning blocks the event loop; without this pause the store has nothing to do
        during learning.
        """
        if not any(isinstance(one, Request) and one.is_followed for one in group.requests):
            return
        iterations = NEXT_REQUEST_ITERATIONS
        while self._ahead is None and iterations:
            await asyncio.sleep(0)
            iterations -= 1
        for _ in range(SEND_ITERATIONS if self._ahead else 0):
            await asyncio.sleep(0)

    def _mark_forked_after(self, error: Exception) -> None:
        """Mark the replica as forked after an unexpected error: half of a row may be learned."""
        if not isinstance(error, (JournalError, RecordError)):
            self._replica.is_forked = True

    # -- responses and the listener -------------------------------------------------------------

    def _notify_journalled(self, group: Group, appended: Appended) -> None:
        self._applying.listener.on_group(group.rows, self._clock.now() - group.began)
        for request in group.requests:
            if isinstance(request, Request) and request.on_journalled is not None:
                if is_complete(appended):
                    request.on_journalled()

    def _resolve(self, group: Group, receipts: Sequence[Receipt], before: int) -> None:
        for future, receipt in zip(group.futures, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)
        self._applying.listener.on_advance(before, self._replica.seq)

    def _report_failure(self, error: Exception) -> None:
        if self._refusal is None:  # otherwise another replica has replaced this one
            self._applying.listener.on_failure(error)

    def _fail(self, group: Group, error: Exception, before: int) -> None:
        self._mark_forked_after(error)
        try:
            self._report_failure(error)
            if isinstance(error, NotReplicated):
                self._applying.listener.on_advance(before, self._replica.seq)
        except Exception:  # an error in the listener must not block the next group
            log.exception("model %r: the listener failed after a failed group", self._replica.id)
        if isinstance(error, RecordError):  # the error happened after the append
            error.is_journalled = True
        if not isinstance(error, (*EXPECTED_ERRORS, NotReplicated)):
            failed = len(group.requests)
            log.error(
                "model %r: %d grouped requests failed", self._replica.id, failed, exc_info=error
            )
        for future in group.futures:
            if not future.done():
                future.set_exception(error)
