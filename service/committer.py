"""Group commit: what waits for one model goes into one append, one apply, many answers.

Requests keep their order. A control is a group of its own, so that it is answered for itself.
No timer and no added delay: while an append is on its way the next group gathers behind it. Rows in
bulk behind rows in bulk are appended while those in front of them are learned.

A group goes its way by callbacks as long as all is plain: few rows that follow at once are
appended, learned and answered without a task. Of many models each group may be of one row, and a
task would take as long again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from service.baton import Baton
from service.controls import Verdict, copy_named_by
from service.entries import Content
from service.journal.chain import next_chain
from service.journal.protocol import (
    Appended,
    CursorMoved,
    Entry,
    Journal,
    JournalUnavailable,
    ModelChanged,
    NotReplicated,
    OutcomeUnknown,
    Part,
    Placed,
    Trimmed,
    UnknownCopy,
)
from service.journal.record import RecordError
from service.outliving import outliving
from service.outside import REAL, Outside
from service.receipts import Receipt, by_request, is_left, new_of, receipts_of
from service.recovery import Forked
from service.replica import Replica
from service.requests import AnyRequest, ControlRequest, Request
from service.trail import Lost
from service.watched import Applied

log = logging.getLogger("dualstream.committer")

TOLD = (OutcomeUnknown, JournalUnavailable, ModelChanged, UnknownCopy, CursorMoved)
"""Whoever submitted what fails so is told; there is nothing to look for in a log."""
# Requests join a group until it holds this much; a larger request is a group of its own.
GROUP_BYTES = 1024 * 1024
GROUP_ROWS = 4096
BULK_ROWS = 1000
"""So many rows take about as long to learn as to append."""
FOLLOWING_TURNS = 6
"""Of the event loop: so many take those who hear that rows are journalled to submit the next."""
SENDING_TURNS = 2
"""So many take those to be on their way to the store."""
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


class _Group(msgspec.Struct):
    """Requests that are committed together."""

    requests: list[AnyRequest]
    futures: "list[asyncio.Future[Receipt]]"
    parts: Sequence[Part]
    rows: int
    nonce: bytes
    began: float
    sent: "asyncio.Future[Appended] | None" = None
    """Its first append, where that is under way or answered."""
    appending: "asyncio.Task[Appended] | None" = None
    """Its append, where that was begun before the group in front of it was learned."""
    known: int = 0
    """Where the replica stands then."""


def _nobody(*told: object) -> None:
    """Who hears of what nobody is to be told."""


class Committer:
    """Appends one model's requests in their order of arrival."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica,
        append_timeout_s: float,
        on_group: Callable[[int, float], None] = _nobody,
        on_fork: Callable[[str], None] = _nobody,
        on_loss: Callable[[Lost], None] = _nobody,
        on_advance: Callable[[int, int], None] = _nobody,
        on_failure: Callable[[Exception], None] = _nobody,
        outside: Outside = REAL,
    ) -> None:
        self._journal = journal
        self._replica = replica
        self._append_timeout_s = append_timeout_s
        self._on_group = on_group
        self._on_fork = on_fork
        self._on_loss = on_loss
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._outside = outside
        self._waiting: deque[tuple[AnyRequest, asyncio.Future[Receipt]]] = deque()
        # From the first request that waits until there is none, and what tells of that.
        self._is_at_work = False
        self._rests: asyncio.Future[None] | None = None
        # The group that has its turn, and what works on it where that takes several steps.
        self._group: _Group | None = None
        self._working: asyncio.Task[None] | None = None
        # While rows in bulk are learned: the seq at their end, behind which others may be appended.
        self._learned_to: int | None = None
        self._ahead: _Group | None = None
        # Held by whoever moves the replica on: this committer's groups, or `refresh`.
        self._moving = Baton()
        self._wanting = 0  # how many others wait for it

    def submit(self, request: AnyRequest) -> "asyncio.Future[Receipt]":
        """Park the request; the future resolves when it is durable and applied."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
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

        Raises JournalUnavailable, ModelChanged, UnknownModel.
        """
        await outliving(self._refresh(seq))

    async def _refresh(self, seq: int | None) -> None:
        try:
            await self._catch_up(seq)
        except Exception as error:
            self._on_failure(error)
            raise

    async def _catch_up(self, seq: int | None) -> None:
        replica = self._replica
        async with self.between_groups():
            if seq is not None and replica.seq >= seq:
                return
            before = replica.seq
            try:
                if seq is not None:
                    # Entries show by themselves that they follow, and of which incarnation.
                    await replica.catch_up(self._journal, seq)
                if seq is None or replica.seq < seq:
                    await self._hold_against_head(read_already=seq is not None)
            except (Forked, Trimmed) as cause:
                await self._rebuild(cause)
            self._on_advance(before, replica.seq)

    async def _hold_against_head(self, read_already: bool) -> None:
        """Bring the replica to the journal's end, wherever that is. Raises Forked, Trimmed.

        Where it was `read_already` and has not grown since, it is not read again.
        """
        replica = self._replica
        while True:
            record = await self._journal.get(replica.id)
            if record.incarnation != replica.incarnation:
                raise ModelChanged(replica.id)
            replica.check_head(record)
            if not read_already or record.seq > replica.seq:
                await replica.catch_up(self._journal)
            if replica.seq >= record.seq:
                return
            # The head was lost before it was read: what of it was here the new head tells.

    def tell_nobody(self) -> None:
        """Let go of those who were to hear of groups, forks, losses and failures."""
        self._on_group = self._on_advance = _nobody
        self._on_fork = self._on_loss = self._on_failure = _nobody

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here, and nobody moves the replica."""
        return not self._is_at_work and not self._moving.is_held

    @contextlib.asynccontextmanager
    async def between_groups(self) -> AsyncIterator[None]:
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
        self._group = group = self._next_group()
        group.sent = self._send(group)
        group.sent.add_done_callback(self._answered)

    def _answered(self, sent: "asyncio.Future[Appended]") -> None:
        """Learn and answer the group that was appended, at once or by a task."""
        if sent.cancelled():
            return  # the event loop ends
        group, self._group = self._group, None
        assert group is not None
        if sent.exception() is None and self._settle(group, sent.result()):
            self._go_on()
        else:
            self._working = asyncio.get_running_loop().create_task(self._work_on(group))

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

    async def _work_on(self, group: _Group | None) -> None:
        while group is not None:
            await self._finish(group)
            group, self._ahead = self._ahead, None
        self._working = None
        self._go_on()

    async def _finish(self, group: _Group) -> None:
        before = self._replica.seq
        try:
            self._tell(group, await self._commit(group), before)
        except Exception as error:
            self._fail(group, error, before)

    def _tell(self, group: _Group, receipts: Sequence[Receipt], before: int) -> None:
        for future, receipt in zip(group.futures, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)
        self._on_advance(before, self._replica.seq)

    def _fail(self, group: _Group, error: Exception, before: int) -> None:
        try:
            self._on_failure(error)
            if isinstance(error, NotReplicated):
                self._on_advance(before, self._replica.seq)
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

    def _settle(self, group: _Group, appended: Appended) -> bool:
        """Learn and answer a group at once, if all is plain.

        A replica that shows to be forked is known as such from now on, not from when the task
        begins that rebuilds it.
        """
        replica = self._replica
        if not self._is_plain(group, appended):
            if self._has_parted(appended):
                replica.is_forked = True
            return False
        entries: list[Entry] = []
        content: Content | None = None
        if appended.entries:
            # One pass over rows of others and own ones takes less than two.
            entries = [*appended.entries, _own_entry(group, appended)]
            try:
                replica.check_order(entries)
                content = replica.rows_of(entries)
            except Forked:
                replica.is_forked = True
                return False
            except Exception:  # nothing has changed: the task meets it again, and tells
                return False
            if content is None:
                return False
        self._learn(group, appended, entries, content)
        return True

    def _is_plain(self, group: _Group, appended: Appended) -> bool:
        """Whether it is of few rows, behind what the replica holds, or told rows of others."""
        if appended.seq is None or group.rows >= BULK_ROWS:
            return False
        if isinstance(group.requests[0], ControlRequest):
            return False
        if not appended.entries:
            if not self._is_next(appended):
                return False
        elif appended.shortfall is not None or not _is_whole(appended, group.requests):
            return False
        return self._replica.learns_at_once(appended.seq - self._replica.seq)

    def _has_parted(self, appended: Appended) -> bool:
        """Whether an append shows at once that the replica is forked, as `_apply` will find."""
        replica = self._replica
        for entry in appended.entries:
            if entry.seq > replica.seq:
                return next_chain(replica.chain, entry.nonce) != entry.chain
        if appended.entries or appended.more:
            return False
        follows = appended.first_seq in (None, replica.seq + 1)
        return not follows or appended.previous != replica.chain

    def _learn(
        self,
        group: _Group,
        appended: Appended,
        entries: Sequence[Entry],
        content: Content | None,
    ) -> None:
        """Learn a plain group and answer; it is the last of `entries` where others were told."""
        replica, requests, before = self._replica, group.requests, self._replica.seq
        assert appended.seq is not None
        try:
            self._tell_journalled(group, appended)
            placed = by_request(requests, appended.placed)
            if content is not None:
                outcome = replica.learn_entries(entries, content)
            else:
                outcome = replica.learn_own(appended.seq, appended.chain, *new_of(requests, placed))
            self._tell(group, receipts_of(requests, placed, outcome, replica.answers), before)
        except Exception as error:
            self._fail(group, error, before)

    def _next_group(self) -> _Group:
        waiting = self._waiting
        first, future = waiting.popleft()
        requests, futures, parts, rows = [first], [future], first.parts, _rows(first)
        if waiting and not _is_alone(first):
            parts, size = list(parts), _size(first)
            while waiting:
                following, future = waiting[0]
                size += _size(following)
                rows += _rows(following)
                if size > GROUP_BYTES or rows > GROUP_ROWS or _is_alone(following):
                    rows -= _rows(following)
                    break
                waiting.popleft()
                requests.append(following)
                futures.append(future)
                parts += following.parts
        outside = self._outside
        return _Group(requests, futures, parts, rows, outside.nonce(), outside.clock())

    def _append_ahead(self) -> None:
        """Append the next group, if it is one in bulk, while the one before it is learned.

        Nobody else moves the replica on before it is learned, too; so it waits for who wants to.
        """
        if self._learned_to is None or self._ahead is not None or not self._waiting:
            return
        if self._wanting:
            return
        first = self._waiting[0][0]
        if not _is_alone(first) and _rows(first) >= BULK_ROWS:
            self._ahead = group = self._next_group()
            group.known = self._learned_to
            self._replica.watched[group.nonce] = None
            group.appending = asyncio.create_task(self._journal_group(group))

    async def _let_follow(self, group: _Group) -> None:
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

    async def _journal_group(self, group: _Group) -> Appended:
        appended = await self._append(group)
        self._tell_journalled(group, appended)
        return appended

    def _tell_journalled(self, group: _Group, appended: Appended) -> None:
        self._on_group(group.rows, self._outside.clock() - group.began)
        for request in group.requests:
            if isinstance(request, Request) and request.on_journalled is not None:
                if _is_all_there(appended):
                    request.on_journalled()

    async def _commit(self, group: _Group) -> list[Receipt]:
        requests, nonce = group.requests, group.nonce
        self._replica.watched.setdefault(nonce)
        try:
            appended = await (group.appending or self._journal_group(group))
            if group.appending is not None and self._replica.seq != group.known:
                # The one in front of it failed, or has met a fork: what is known is another.
                appended = await self._append(group)
            placed = by_request(requests, appended.placed)
            try:
                if group.rows >= BULK_ROWS and self._is_next(appended):
                    self._learned_to = appended.seq
                    self._append_ahead()
                    await self._let_follow(group)
                applied = await self._apply(group, appended, placed)
            except JournalUnavailable as error:  # it is in the journal, all the same
                raise OutcomeUnknown(str(error)) from error
            finally:
                self._learned_to = None
        finally:
            del self._replica.watched[nonce]
        if appended.shortfall is not None:
            raise NotReplicated(appended.shortfall)
        if isinstance(applied, Verdict):
            return [Receipt(appended.placed[0], verdict=applied)]
        return receipts_of(requests, placed, applied, self._replica.answers)

    async def _append(self, group: _Group) -> Appended:
        """Append until the outcome is known: the same nonce makes a repetition harmless.

        Raises JournalUnavailable when nothing was done, OutcomeUnknown at the deadline.
        """
        sent, group.sent = group.sent, None
        began = self._outside.clock() if sent is None else group.began
        deadline = began + self._append_timeout_s
        pause = FIRST_PAUSE_S
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return await (self._send(group) if sent is None else sent)
            except OutcomeUnknown as error:
                unknown = error
            except JournalUnavailable as error:
                if unknown is None:
                    raise
                unknown = OutcomeUnknown(str(error))
            sent = None
            if self._outside.clock() + pause > deadline:
                raise unknown
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send(self, group: _Group) -> "asyncio.Future[Appended]":
        """Append the group; what is raised, too, is told by the future."""
        try:
            replica, first = self._replica, group.requests[0]
            cursor, copy, change = None, None, None
            if isinstance(first, Request):
                cursor = first.cursor
            else:  # the store has to hold the copy then
                copy, change = copy_named_by(first.control), first.change
            seq = replica.seq if self._ahead is None else max(self._ahead.known, replica.seq)
            where = (replica.id, replica.incarnation, group.nonce, seq)
            return asyncio.ensure_future(
                self._journal.append(*where, group.parts, cursor, copy, change)
            )
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _is_next(self, appended: Appended) -> bool:
        """Whether it is durable as asked, and all that stands behind what the replica holds."""
        is_whole = not appended.entries and not appended.more and appended.shortfall is None
        follows = appended.previous == self._replica.chain
        return is_whole and follows and appended.first_seq == self._replica.seq + 1

    async def _apply(
        self,
        group: _Group,
        appended: Appended,
        placed: Sequence[Sequence[Placed]],
    ) -> Applied | None:
        """Bring the replica past the append; what became of what is new, None without any.

        Raises OutcomeUnknown when the journal has lost it again.
        """
        replica, requests, nonce = self._replica, group.requests, group.nonce
        try:
            if appended.entries:
                unseen = [e for e in appended.entries if e.seq > replica.seq]
                if _is_whole(appended, requests):
                    # One pass over rows of others and own ones takes less than two.
                    unseen.append(_own_entry(group, appended))
                await replica.apply(unseen, self._journal)
            if appended.more and not replica.seq:
                await replica.load(self._journal)  # there may be a snapshot to begin from
                if appended.seq is not None and replica.restored_seq >= appended.seq:
                    return None  # even one of what was appended since, whose rows it has learned
            elif appended.more:
                await replica.catch_up(self._journal)
            handed_over = replica.watched[nonce]
            if handed_over is not None:
                return handed_over
            if appended.seq is None and appended.more:
                self._check_kept(appended)
                return None
            # Nothing new: the answer tells the chain all the same. A replica that stands beyond
            # the append without having seen it is forked, too.
            follows = appended.first_seq in (None, replica.seq + 1)
            if not follows or appended.previous != replica.chain:
                raise Forked(
                    f"model {replica.id!r}: what was appended follows {appended.previous}, "
                    f"this replica stands at seq {replica.seq} with {replica.chain}"
                )
            if appended.seq is None:
                return None
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)
            self._check_kept(appended)
            return replica.watched[nonce]
        if isinstance(requests[0], ControlRequest):
            control = requests[0].control
            try:
                return await replica.apply_own_control(
                    appended.seq, appended.chain, control, self._journal
                )
            except (Forked, Trimmed) as cause:
                await self._rebuild(cause)
                self._check_kept(appended)
                return None
        new = new_of(requests, placed)
        return await replica.apply_own(appended.seq, appended.chain, *new)

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown when the journal, just read to its end, ends before what it said."""
        if any(placed.seq > self._replica.seq for placed in appended.placed):
            raise OutcomeUnknown("the store has lost what it had appended")

    async def _rebuild(self, cause: Forked | Trimmed) -> None:
        """Throw the replica's state away for the journal's. Raises ModelChanged.

        One that was overtaken by the trimming may have been forked as well: nobody is served of
        it, either.
        """
        replica = self._replica
        replica.is_forked = True
        if isinstance(cause, Forked):
            log.warning("%s; rebuilding it from the journal", cause)
            replica.trail.is_parted = True
            self._on_fork(replica.id)
        else:
            log.warning(
                "model %r: %s, this replica stands at seq %d; loading it anew",
                replica.id,
                cause,
                replica.seq,
            )
        record = await self._journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id) from None
        self._on_loss(await replica.rebuild(record, self._journal))


def _is_all_there(appended: Appended) -> bool:
    """Whether all of it is durable as asked, and stands under its own keys."""
    return appended.shortfall is None and not any(placed.conflict for placed in appended.placed)


def _is_whole(appended: Appended, requests: Sequence[AnyRequest]) -> bool:
    """Whether the append made an entry of these rows that follows the entries that it tells."""
    is_of_rows = not isinstance(requests[0], ControlRequest)
    is_told = appended.seq is not None and not appended.more
    return is_of_rows and is_told and not any(map(is_left, appended.placed))


def _own_entry(group: _Group, appended: Appended) -> Entry:
    """As the journal has it, but for the time, which is the store's."""
    assert appended.first_seq is not None
    assert appended.seq is not None
    body = b"".join([part.body for part in group.parts])
    return Entry(appended.first_seq, appended.seq, group.nonce, appended.chain, 0, body)


def _is_alone(request: AnyRequest) -> bool:
    """Whether the request is a group of its own."""
    return isinstance(request, ControlRequest) or request.cursor is not None


def _rows(request: AnyRequest) -> int:
    """How many rows it brings; a control brings none."""
    return len(request.rows) if isinstance(request, Request) else 0


def _size(request: AnyRequest) -> int:
    """Bytes of a request."""
    return sum([len(part.body) for part in request.parts])
