"""Group commit: what waits for one model goes into one append, one apply, many answers.

Requests keep their order. A control is a group of its own, so that it is answered for itself.
No timer and no added delay: while an append is on its way the next group gathers behind it. Rows in
bulk behind rows in bulk are appended while those in front of them are learned.

A group goes its way by callbacks as long as all is plain: few rows that follow at once are
appended, learned and answered without a task. Of many models each group may be of one row, and a
task would take as long again.

Here is whose turn it is, and who hears what came of it. What a group is, how it comes into the
journal and how the replica learns it are rooms of their own: groups.py, appending.py, applying.py.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from dualstream.service.clock import SYSTEM_CLOCK, Clock
from dualstream.service.concurrency import run_to_completion
from dualstream.service.journal.protocol import (
    Appended,
    CursorMoved,
    Journal,
    JournalError,
    JournalUnavailable,
    ModelChanged,
    NotHeld,
    NotReplicated,
    OutcomeUnknown,
    Place,
    UnknownCopy,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.apply import SILENT, Applying, CommitListener, Others
from dualstream.service.replica.controls import ControlOutcome
from dualstream.service.replica.fifo_lock import FifoLock
from dualstream.service.replica.groups import (
    BULK_ROWS,
    GROUP_ROWS,
    Appending,
    Group,
    Line,
    is_all_there,
    is_bulk,
    next_group,
)
from dualstream.service.replica.receipts import (
    Receipt,
    by_request,
    receipt_of_control,
    receipts_of,
)
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import AnyRequest, ControlRequest, Request
from dualstream.solvers import Outcome

log = logging.getLogger("dualstream.committer")

TOLD = (OutcomeUnknown, JournalUnavailable, ModelChanged, UnknownCopy, CursorMoved, NotHeld)
"""Whoever submitted what fails so is told; there is nothing to look for in a log."""
FOLLOWING_TURNS = 6
"""Of the event loop: so many take those who hear that rows are journalled to submit the next."""
SENDING_TURNS = 2
"""So many take those to be on their way to the store."""


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
        self._listener = listener
        self._on_late: Callable[[Appended], None] | None = None
        self._clock = clock
        self._waiting: Line = deque()
        # From the first request that waits until there is none, and what tells of that.
        self._is_at_work = False
        self._rests: asyncio.Future[None] | None = None
        self._refusal: str | None = None
        # The group that has its turn, and what works on it where that takes several steps.
        self._group: Group | None = None
        self._working: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        # While rows in bulk are learned: their end, behind which others may be appended.
        self._learned_to: Place | None = None
        self._ahead: Group | None = None
        # Held by whoever moves the replica on: this committer's groups, or `refresh`.
        self._moving = FifoLock()
        self._wanting = 0  # how many others wait for it

    def submit(self, request: AnyRequest) -> "asyncio.Future[Receipt]":
        """Park the request; the future resolves when it is durable and applied."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._refusal is not None:
            future.set_exception(JournalUnavailable(self._refusal))
            return future
        self._waiting.append((request, future))
        if not self._is_at_work:
            self._is_at_work = True
            loop.call_soon(self._gather, 0)
        elif self._learned_to is not None:
            self._append_ahead()
        return future

    async def refresh(self, seq: int | None = None) -> None:
        """Bring the replica to the journal's end, after the group that is under way.

        It goes on when its caller leaves: an entry half applied would be applied again. With `seq`,
        no further than the read that reaches it, and nothing is asked of the store where the
        replica has reached it by then.

        Raises JournalUnavailable, also once it refuses; ModelChanged, UnknownModel.
        """
        await run_to_completion(self._refresh(seq))

    async def _refresh(self, seq: int | None) -> None:
        try:
            await self._catch_up(seq)
        except Exception as error:
            self._doubt_after(error)
            self._tell_failed(error)
            raise

    async def _catch_up(self, seq: int | None) -> None:
        replica = self._replica
        async with self._moving_on():
            if self._refusal is not None:
                raise JournalUnavailable(self._refusal)
            if seq is not None and replica.seq >= seq and not replica.is_forked:
                return
            before = replica.seq
            await self._applying.catch_up(seq)
            self._listener.on_advance(before, replica.seq)

    async def see_what_is_lost(self, place: Place) -> None:
        """The store does not hold `place`: nobody is served of what it has lost with that."""
        if self._applying.has_lost(place):
            await self._look()

    async def _look(self) -> None:
        """Hold the replica against the journal; where that fails, it is let go of."""
        with contextlib.suppress(JournalError, RecordError):
            await self.refresh()

    def hear(self, appended: Appended) -> None:
        """What was answered to a replica in whose place this one was loaded."""
        if self._applying.may_contradict(appended):
            self.suspect()
            self._looking = asyncio.create_task(self._look())

    def suspect(self) -> None:
        """Serve nobody before the next `refresh`, which looks where the journal ends."""
        self._applying.suspect()

    def tell_nobody(self) -> None:
        """Let go of those who were to hear of groups, forks, losses and failures."""
        self._listener = self._applying.listener = SILENT

    def refuse(self, why: str, on_late: Callable[[Appended], None] | None = None) -> None:
        """Take nothing on any more: whoever waits, or comes yet, is told that nothing was done.

        For a replica in whose place another one is loaded. The group that has its turn is brought
        to its end; of one appended behind it nobody hears what came of it, and `on_late` what its
        append was answered.
        """
        self._refusal, self._on_late = why, on_late
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(JournalUnavailable(why))

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here, and nobody moves the replica."""
        return not self._is_at_work and not self._moving.is_held

    @contextlib.asynccontextmanager
    async def between_groups(self) -> AsyncIterator[None]:
        """While held, nobody moves the replica on: its state is that of where it stands.

        Raises JournalUnavailable while it is forked: a group may have failed in the midst of a row.
        """
        async with self._moving_on():
            if self._replica.is_forked:
                why = f"model {self._replica.id!r} is being rebuilt from its journal"
                raise JournalUnavailable(why)
            yield

    @contextlib.asynccontextmanager
    async def _moving_on(self) -> AsyncIterator[None]:
        """While held, nobody else moves the replica on: it stands between two groups."""
        self._wanting += 1
        try:
            await self._moving.taken()
        finally:
            self._wanting -= 1
        try:
            yield
        finally:
            self._moving.hand_on()

    async def drain(self) -> None:
        """Wait until all that somebody waits for is answered, and nobody moves the replica."""
        self._waiting = deque(one for one in self._waiting if not one[1].done())
        while self._is_at_work:
            self._rests = self._rests or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._rests])
        await self._moving.taken()
        self._moving.hand_on()

    # -- a group's way --------------------------------------------------------------------------

    def _gather(self, known: int) -> None:
        """Begin the next group once a turn of the event loop has brought no more than `known`.

        Requests that arrived together are handled one after the other, and without this the first
        one would be a group of its own. Nobody waits for a request that is not there yet.
        """
        count = len(self._waiting)
        if known < count < GROUP_ROWS:
            asyncio.get_running_loop().call_soon(self._gather, count)
        elif self._moving.take():
            self._begin()
        else:
            self._moving.wait().add_done_callback(self._begin)

    def _begin(self, _: object = None) -> None:
        """Append the next group, whose turn it is."""
        if not self._waiting:  # whoever drains takes those off the line who have left
            self._go_on()
            return
        self._group = group = next_group(self._waiting, self._clock)
        group.sent = self._appending.send(group)
        group.sent.add_done_callback(self._answered)

    def _answered(self, sent: "asyncio.Future[Appended]") -> None:
        """Learn and answer the group that was appended, at once or by a task."""
        if sent.cancelled():
            return  # the event loop ends
        group, self._group = self._group, None
        assert group is not None
        if sent.exception() is None:
            appended = sent.result()
            others = self._applying.at_once(group, appended)
            if others is not None:
                self._learn(group, appended, others)
                self._go_on()
                return
        elif isinstance(sent.exception(), NotHeld):
            self._has_lost(*group.requests)
        self._working = asyncio.get_running_loop().create_task(self._work_on(group))

    def _learn(self, group: Group, appended: Appended, others: Others) -> None:
        """Learn a plain group and answer."""
        replica, requests, before = self._replica, group.requests, self._replica.seq
        try:
            self._tell_journalled(group, appended)
            placed = by_request(requests, appended.placed)
            outcome = self._applying.learn(group, appended, placed, others)
            self._tell(group, receipts_of(requests, placed, outcome, replica.answers), before)
        except Exception as error:
            self._fail(group, error, before)

    def _go_on(self) -> None:
        """The group that had its turn is done, if there was one."""
        self._moving.hand_on()
        if self._waiting:
            self._gather(0)
            return
        self._is_at_work = False
        if self._rests is not None:
            self._rests.set_result(None)
            self._rests = None

    # -- step by step ----------------------------------------------------------------------------

    async def _work_on(self, group: Group | None) -> None:
        while group is not None:
            await self._finish(group)
            group, self._ahead = self._ahead, None
        self._working = None
        self._go_on()

    async def _finish(self, group: Group) -> None:
        before = self._replica.seq
        try:
            self._tell(group, await self._commit(group), before)
        except Exception as error:
            self._fail(group, error, before)

    async def _commit(self, group: Group) -> list[Receipt]:
        """Append the group, unless that is under way, and apply it."""
        requests, nonce = group.requests, group.nonce
        front, group.front = group.front, None
        self._replica.watched.setdefault(nonce)
        try:
            try:
                appended = await (group.appending or self._journal_group(group))
            except NotHeld:
                await self._see_what_is_lost(*group.requests)
                raise
            if group.appending is not None and self._refusal is not None:
                raise OutcomeUnknown(self._refusal)  # it is journalled, and another replica's now
            apply = self._applying.apply
            try:
                if group.appending is not None and self._applying.place != front:
                    # The one in front of it failed, or has met a fork: what is known is another.
                    self._applying.doubt(appended)
                    appended = await self._appending.until_known(group)
                    apply = self._applying.apply_again
                placed = by_request(requests, appended.placed)
                if group.rows >= BULK_ROWS and self._applying.is_next(appended):
                    assert appended.seq is not None
                    self._learned_to = Place(appended.seq, appended.chain)
                    self._append_ahead()
                    await self._let_follow(group)
                applied = await apply(group, appended, placed)
            except JournalUnavailable as error:  # it is in the journal, all the same
                raise OutcomeUnknown(str(error)) from error
            finally:
                self._learned_to = None
        finally:
            del self._replica.watched[nonce]
        if appended.shortfall is not None:
            raise NotReplicated(appended.shortfall)
        if isinstance(requests[0], ControlRequest):
            assert not isinstance(applied, Outcome)
            told = (appended.placed[0], applied, self._replica.verdicts)
            return [receipt_of_control(requests[0], *told)]
        assert not isinstance(applied, ControlOutcome)
        return receipts_of(requests, placed, applied, self._replica.answers)

    async def _journal_group(self, group: Group) -> Appended:
        appended = await self._appending.until_known(group)
        self._tell_journalled(group, appended)
        return appended

    async def _see_what_is_lost(self, request: AnyRequest) -> None:
        """What it was made of is at a place that the store does not hold."""
        if self._has_lost(request):
            before = self._replica.seq
            with contextlib.suppress(JournalError):  # it is let go of, then
                await self._applying.catch_up(None)
                self._listener.on_advance(before, self._replica.seq)

    def _has_lost(self, request: AnyRequest) -> bool:
        assert isinstance(request, ControlRequest)
        return request.held is not None and self._applying.has_lost(request.held)

    async def _journal_ahead(self, group: Group, front: Place) -> Appended:
        appended = await self._journal_group(group)
        self._applying.look_ahead(appended, front, is_learning=self._learned_to is front)
        if self._on_late is not None:
            self._on_late(appended)
        return appended

    def _append_ahead(self) -> None:
        """Append the next group, if it is one in bulk, while the one before it is learned.

        Nobody else moves the replica on before it is learned, too; so it waits for who wants to.
        """
        if self._learned_to is None or self._ahead is not None or not self._waiting:
            return
        if self._wanting:
            return
        if is_bulk(self._waiting[0][0]):
            self._ahead = group = next_group(self._waiting, self._clock)
            group.front = self._learned_to
            self._replica.watched[group.nonce] = None
            group.appending = asyncio.create_task(self._journal_ahead(group, self._learned_to))

    async def _let_follow(self, group: Group) -> None:
        """Let the next rows be sent to the store, which works on them while these are learned.

        Who submits them one by one hears only now that these are journalled; learning would keep
        the event loop from him, and the store would have nothing to do meanwhile.
        """
        if not any(isinstance(one, Request) and one.is_followed for one in group.requests):
            return
        turns = FOLLOWING_TURNS
        while self._ahead is None and turns:
            await asyncio.sleep(0)
            turns -= 1
        for _ in range(SENDING_TURNS if self._ahead else 0):
            await asyncio.sleep(0)

    def _doubt_after(self, error: Exception) -> None:
        """What nobody has foreseen may have come in the midst of a row: half of it is learned."""
        if not isinstance(error, (JournalError, RecordError)):
            self._replica.is_forked = True

    # -- who hears of it -------------------------------------------------------------------------

    def _tell_journalled(self, group: Group, appended: Appended) -> None:
        self._listener.on_group(group.rows, self._clock.now() - group.began)
        for request in group.requests:
            if isinstance(request, Request) and request.on_journalled is not None:
                if is_all_there(appended):
                    request.on_journalled()

    def _tell(self, group: Group, receipts: Sequence[Receipt], before: int) -> None:
        for future, receipt in zip(group.futures, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)
        self._listener.on_advance(before, self._replica.seq)

    def _tell_failed(self, error: Exception) -> None:
        if self._refusal is None:  # else another replica has taken the place of this one
            self._listener.on_failure(error)

    def _fail(self, group: Group, error: Exception, before: int) -> None:
        self._doubt_after(error)
        try:
            self._tell_failed(error)
            if isinstance(error, NotReplicated):
                self._listener.on_advance(before, self._replica.seq)
        except Exception:  # whoever hears of it keeps nobody from his turn
            log.exception("model %r: what follows a group that failed", self._replica.id)
        if isinstance(error, RecordError):  # met behind the append
            error.is_journalled = True
        if not isinstance(error, (*TOLD, NotReplicated)):
            failed = len(group.requests)
            log.error("model %r: a group of %d failed", self._replica.id, failed, exc_info=error)
        for future in group.futures:
            if not future.done():
                future.set_exception(error)
