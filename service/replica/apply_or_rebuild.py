"""Apply an append to a replica, or catch up with the end of the journal.

A small group whose rows directly follow the replica's position is learned in the event-loop
iteration in which its append is answered. Everything else is applied step by step in a task. When
the journal does not continue what the replica applied (a fork), the replica is rebuilt from the
journal.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Sequence

from dualstream.service.journal.page import size_of
from dualstream.service.journal.protocol import (
    Appended,
    Entry,
    Journal,
    LogPosition,
    ModelChanged,
    OutcomeUnknown,
    Placed,
    Trimmed,
)
from dualstream.service.replica.entries import Content
from dualstream.service.replica.fork_detection import Forked, Lost, contradicts, may_contradict
from dualstream.service.replica.group_commit import BULK_ROWS, Group, is_whole, own_entry
from dualstream.service.replica.outcomes import Applied, clear_outcomes
from dualstream.service.replica.recovery import REPLAYS, rebuild
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest, new_of
from dualstream.solvers import Outcome

log = logging.getLogger("dualstream.committer")

Others = tuple[Sequence[Entry], Content] | tuple[()]
"""Entries of other writers that an append returned, followed by the own entry, with their content.

Empty when there are none.
"""


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


class FifoLock:
    """Mutual exclusion in order of arrival.

    `release` hands the lock to the next waiter directly, so no later caller can overtake it.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Is the lock taken?"""
        return self._is_taken

    @property
    def has_waiters(self) -> bool:
        """Does a caller wait for the lock?"""
        return not all(future.done() for future in self._waiting)

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether it was."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def enqueue(self) -> "asyncio.Future[None]":
        """Wait for a lock that is taken: the future is done when the caller has it.

        Cancel the future to leave the queue.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def release(self) -> None:
        """Hand the lock to the next waiter that was not cancelled, or free it."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._is_taken = False

    async def __aenter__(self) -> None:
        """Take the lock, waiting if needed."""
        if self.try_acquire():
            return
        future = self.enqueue()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # cancelled after the lock was handed over
                self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Applying:
    """Moves one replica forward. The caller holds the lock while it does so."""

    __slots__ = ("_journal", "_listener", "_replica", "_suspicions", "lock")

    def __init__(self, journal: Journal, replica: Replica, listener: CommitListener) -> None:
        self._journal = journal
        self._replica = replica
        self._suspicions = 0
        self.lock = FifoLock()
        self._listener = weakref.ref(listener)

    @property
    def listener(self) -> CommitListener:
        """The listener while it exists. It is not kept in memory: a model listens to itself."""
        return self._listener() or SILENT

    def is_next(self, appended: Appended) -> bool:
        """Does only the append's own entry follow the replica, as durable as requested?"""
        is_alone = not appended.entries and not appended.more and appended.shortfall is None
        follows = appended.previous == self._replica.chain
        return is_alone and follows and appended.first_seq == self._replica.seq + 1

    # -- in the event-loop iteration of an append ------------------------------------------------

    def at_once(self, group: Group, appended: Appended) -> Others | None:
        """Return the argument `others` for `learn` if the group can be learned now, else None.

        A group can be learned now if it is small, holds rows, and follows the replica's position.
        After None the caller uses `apply` in a task. Requests may be served before the task runs,
        so an answer that contradicts the replica marks it as forked here.
        """
        replica, seq = self._replica, appended.seq
        is_of_rows = not isinstance(group.requests[0], ControlRequest)
        if is_of_rows and seq is not None and group.rows < BULK_ROWS:
            if not appended.entries:
                follows = self.is_next(appended)
            else:
                follows = appended.shortfall is None and is_whole(group, appended)
            size = group.size + (size_of(appended.entries) if appended.entries else 0)
            if follows and replica.learns_at_once(seq - replica.seq, size):
                return self._with_others(group, appended) if appended.entries else ()
        if contradicts(appended, replica.place):
            replica.is_forked = True
        return None

    def look_ahead(self, appended: Appended, front: LogPosition, is_learning: bool) -> None:
        """Check the answer to an append made after `front`, long before the group is applied.

        The replica must stop serving when evidence of a fork arrives, not when the group is
        applied. While the replica `is_learning` the rows up to `front`, it is inside an entry. The
        append of that entry returned where it ends, so the answer is compared with `front`.
        """
        replica = self._replica
        if (is_learning and replica.seq <= front.seq) or replica.place == front:
            replica.is_forked = replica.is_forked or contradicts(appended, front)
        elif replica.seq == replica.lineage.end:
            if may_contradict(appended, replica.place, replica.lineage):
                replica.is_forked = True

    def has_lost(self, place: LogPosition) -> bool:
        """The store does not hold `place`: return whether this replica may be forked.

        If the replica applied an entry that ends at `place`, it stops serving until the head is
        read: the store may have lost that entry, or only have trimmed it.
        """
        if self._replica.lineage.holds(place.seq, place.chain):
            self.suspect()
        return self._replica.is_forked

    def suspect(self) -> None:
        """Stop serving until the head is read again.

        A head that was requested earlier may predate the loss and does not clear the suspicion.
        """
        self._suspicions += 1
        self._replica.is_forked = True

    def _with_others(self, group: Group, appended: Appended) -> Others | None:
        """Return the entries of other writers with the own entry, if all hold rows and follow.

        One pass over all rows is faster than one pass over other writers' rows and one over the own
        rows.
        """
        entries = [*appended.entries, own_entry(group, appended)]
        try:
            self._replica.check_order(entries)
            content = self._replica.rows_of(entries)
        except Forked:
            self._replica.is_forked = True
            return None
        except Exception:  # nothing has changed: `apply` raises the same error
            return None
        return None if content is None else (entries, content)

    def learn(
        self, group: Group, appended: Appended, placed: Sequence[Sequence[Placed]], others: Others
    ) -> Outcome:
        """Learn a group's rows, after the rows of `others` that `at_once` returned."""
        if others:
            return self._replica.learn_entries(*others)
        assert appended.seq is not None
        new = new_of(group.requests, placed)
        return self._replica.learn_own(appended.seq, appended.chain, new)

    # -- step by step ----------------------------------------------------------------------------

    async def apply(
        self, group: Group, appended: Appended, placed: Sequence[Sequence[Placed]]
    ) -> Applied | None:
        """Bring the replica past the append. Return the outcome of what is new.

        None when nothing is new, and when the replica passed the append by loading a snapshot: then
        the first responses and control outcomes in that snapshot answer the requests.

        The caller has put the group's nonce into `watched`. Raises OutcomeUnknown when the journal
        has lost the append again.
        """
        replica, requests, nonce = self._replica, group.requests, group.nonce
        try:
            if appended.entries:
                unseen = [e for e in appended.entries if e.seq > replica.seq]
                if is_whole(group, appended):
                    # One pass over other writers' rows and own rows is faster than two.
                    unseen.append(own_entry(group, appended))
                await replica.apply(unseen, self._journal)
            if appended.more:
                await replica.catch_up(self._journal)
            outcome = replica.watched[nonce]
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
            if isinstance(requests[0], ControlRequest):
                return await replica.apply_own_control(
                    appended.seq, appended.chain, requests[0].control, self._journal
                )
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)
            self._check_kept(appended)
            return replica.watched[nonce]
        new = new_of(requests, placed)
        return await replica.apply_own(appended.seq, appended.chain, new)

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown if the journal, read to its end, lost an acknowledged append."""
        replica, seq = self._replica, appended.seq
        is_lost = any(placed.seq > replica.seq for placed in appended.placed)
        if seq is not None and seq >= replica.lineage.start:
            is_lost = is_lost or not replica.lineage.holds(seq, appended.chain)
        if is_lost:
            raise OutcomeUnknown("the store has lost this append after it acknowledged it")

    async def catch_up(self, seq: int | None) -> None:
        """Bring the replica to the journal's end, or, with `seq`, to the read that reaches `seq`.

        Raises JournalUnavailable, ModelChanged, UnknownModel.
        """
        replica = self._replica
        try:
            if seq is not None:
                # Entries prove by their chain that they follow and that the incarnation is the
                # same.
                await replica.catch_up(self._journal, seq)
            read_already = seq is not None
            # Repeat if the replica was suspected after the head was requested.
            while seq is None or replica.seq < seq or replica.is_forked:
                seq, suspicions = replica.seq, self._suspicions
                await self._check_head(read_already)
                if suspicions == self._suspicions:
                    replica.is_forked = False
                read_already = False
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)

    async def _check_head(self, read_already: bool) -> None:
        """Bring the replica to the journal's head. Raises Forked, Trimmed.

        If the journal was `read_already` and has not grown since, it is not read again.
        """
        replica = self._replica
        for _ in range(REPLAYS):
            record = await self._journal.get(replica.id)
            if record.incarnation != replica.incarnation:
                raise ModelChanged(replica.id)
            replica.check_head(record)
            if not read_already or record.seq > replica.seq:
                await replica.catch_up(self._journal)
            if replica.seq >= record.seq:
                return
            # The store lost this head before the read. Compare with the head it has now.
        problem = f"the journal ends at seq {replica.seq}, before its head"
        raise Forked(f"model {replica.id!r}: {problem}")

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
            self.listener.on_fork(replica.id)
        else:
            log.warning(
                "model %r: %s, this replica is at seq %d; reloading it from the journal",
                replica.id,
                cause,
                replica.seq,
            )
        suspicions = self._suspicions
        record = await self._journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id) from None
        lost = await rebuild(replica, record, self._journal)
        # Whatever suspected the replica during the rebuild also requests a read of the head.
        replica.is_forked = suspicions != self._suspicions
        self.listener.on_loss(lost)
