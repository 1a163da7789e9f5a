"""What moves a replica on: past an append, or to its journal's end.

Few rows that follow what it holds are learned in the turn of the event loop in which their append
is answered; all else is applied step by step. Where the journal is another than the replica has
learned, the replica is thrown away for it.
"""

import logging
from collections.abc import Sequence

from dualstream.service.journal.protocol import (
    Appended,
    Entry,
    Journal,
    ModelChanged,
    OutcomeUnknown,
    Place,
    Placed,
    Trimmed,
)
from dualstream.service.replica.entries import Content
from dualstream.service.replica.groups import BULK_ROWS, Group, is_whole, own_entry
from dualstream.service.replica.lineage import Lost, contradicts, may_contradict
from dualstream.service.replica.pending_outcomes import Applied, clear_outcomes
from dualstream.service.replica.receipts import new_of
from dualstream.service.replica.recovery import REPLAYS, Forked
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.solvers import Outcome

log = logging.getLogger("dualstream.committer")

Others = tuple[Sequence[Entry], Content] | tuple[()]
"""Entries of others that an append has told, its own behind them, and what they hold; or none."""


class CommitListener:
    """Observer of a committer. Each method does nothing unless a subclass overrides it."""

    def on_group(self, rows: int, seconds: float) -> None:
        """A group was journalled, which took so long."""

    def on_fork(self, model_id: str) -> None:
        """The journal does not continue what the replica applied: the replica is rebuilt."""

    def on_loss(self, lost: Lost) -> None:
        """The replica was rebuilt, whether anything was lost or not."""

    def on_advance(self, before: int, after: int) -> None:
        """Between two groups: the replica was moved from seq `before` to seq `after`."""

    def on_failure(self, error: Exception) -> None:
        """A group or a refresh failed."""


SILENT = CommitListener()


class Applying:
    """Moves one replica on, for whoever sees to it that nobody else does meanwhile."""

    __slots__ = ("_journal", "_replica", "_suspicions", "listener")

    def __init__(self, journal: Journal, replica: Replica, listener: CommitListener) -> None:
        self._journal = journal
        self._replica = replica
        self._suspicions = 0
        self.listener = listener

    def is_next(self, appended: Appended) -> bool:
        """Whether it is durable as asked, and all that stands behind what the replica holds."""
        is_alone = not appended.entries and not appended.more and appended.shortfall is None
        follows = appended.previous == self._replica.chain
        return is_alone and follows and appended.first_seq == self._replica.seq + 1

    # -- in the turn of an append ----------------------------------------------------------------

    def at_once(self, group: Group, appended: Appended) -> Others | None:
        """What `learn` takes, if the group is of few rows that follow; else it is for `apply`."""
        replica, seq = self._replica, appended.seq
        is_of_rows = not isinstance(group.requests[0], ControlRequest)
        if is_of_rows and seq is not None and group.rows < BULK_ROWS:
            if not appended.entries:
                follows = self.is_next(appended)
            else:
                follows = appended.shortfall is None and is_whole(group, appended)
            if follows and replica.learns_at_once(seq - replica.seq):
                return self._with_others(group, appended) if appended.entries else ()
        if contradicts(appended, self.place):
            replica.is_forked = True
        return None

    def look_ahead(self, appended: Appended, front: Place, is_learning: bool) -> None:
        """An append behind `front` is answered, and it may be some turns until it is applied.

        The rows in front of it may be those that the replica `is_learning`: it stands between two
        places then, and their own append has told where they end.
        """
        replica = self._replica
        if (is_learning and replica.seq <= front.seq) or self.place == front:
            replica.is_forked = replica.is_forked or contradicts(appended, front)
        elif replica.seq == replica.trail.end:
            self.doubt(appended)

    def doubt(self, appended: Appended) -> None:
        """Nobody is served, until the head tells, where an append asked elsewhere speaks of it."""
        if may_contradict(appended, self.place, self._replica.trail):
            self._replica.is_forked = True

    def may_contradict(self, appended: Appended) -> bool:
        """Whether what was answered to somebody else is of another path, as far as can be seen now.

        It cannot half way through a group, nor where it is not told what lies between.
        """
        replica = self._replica
        is_told = appended.entries or (appended.first_seq or 0) <= replica.seq + 1
        if not is_told or replica.seq != replica.trail.end:
            return True
        return may_contradict(appended, self.place, replica.trail)

    def has_lost(self, place: Place) -> bool:
        """The store does not hold `place`: whether the replica stands on it, as far as it knows.

        Nobody is served then, until the head tells: the store may only have let go of it.
        """
        if self._replica.trail.holds(place.seq, place.chain):
            self.suspect()
        return self._replica.is_forked

    def suspect(self) -> None:
        """Nobody is served until the head tells; a head that was asked for before does not."""
        self._suspicions += 1
        self._replica.is_forked = True

    @property
    def place(self) -> Place:
        """Where the replica stands, between two groups."""
        return self._replica.place

    def _with_others(self, group: Group, appended: Appended) -> Others | None:
        """What was told and the group's own entry, if all are of rows that follow.

        One pass over rows of others and own ones takes less than two.
        """
        entries = [*appended.entries, own_entry(group, appended)]
        try:
            self._replica.check_order(entries)
            content = self._replica.rows_of(entries)
        except Forked:
            self._replica.is_forked = True
            return None
        except Exception:  # nothing has changed: `apply` meets it again, and tells
            return None
        return None if content is None else (entries, content)

    def learn(
        self, group: Group, appended: Appended, placed: Sequence[Sequence[Placed]], others: Others
    ) -> Outcome:
        """Learn a group's rows, behind those of others that `at_once` has found."""
        if others:
            return self._replica.learn_entries(*others)
        assert appended.seq is not None
        new = new_of(group.requests, placed)
        return self._replica.learn_own(appended.seq, appended.chain, *new)

    # -- step by step ----------------------------------------------------------------------------

    async def apply(
        self, group: Group, appended: Appended, placed: Sequence[Sequence[Placed]]
    ) -> Applied | None:
        """Bring the replica past the append; what became of what is new.

        None without any, and where the replica has come past it by a snapshot: what that carries
        along of answers and verdicts tells, then.
        The group's nonce is watched. Raises OutcomeUnknown when the journal has lost it again.
        """
        replica, requests, nonce = self._replica, group.requests, group.nonce
        try:
            if appended.entries:
                unseen = [e for e in appended.entries if e.seq > replica.seq]
                if is_whole(group, appended):
                    # One pass over rows of others and own ones takes less than two.
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

    async def apply_again(
        self, group: Group, appended: Appended, placed: Sequence[Sequence[Placed]]
    ) -> Applied | None:
        """As `apply`, of a group that was asked for again: it may have been learned meanwhile.

        Where the append tells nothing that leads there from the replica, the head does.
        """
        replica = self._replica
        leads_on = appended.entries or appended.more or self.is_next(appended)
        if leads_on and not replica.is_forked:
            return await self.apply(group, appended, placed)
        self.doubt(appended)
        await self.catch_up(None)
        self._check_kept(appended)
        return replica.watched[group.nonce]

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown when the journal, just read to its end, has lost what it said."""
        replica, seq = self._replica, appended.seq
        is_lost = any(placed.seq > replica.seq for placed in appended.placed)
        if seq is not None and seq >= replica.trail.start:
            is_lost = is_lost or not replica.trail.holds(seq, appended.chain)
        if is_lost:
            raise OutcomeUnknown("the store has lost what it had appended")

    async def catch_up(self, seq: int | None) -> None:
        """Bring the replica to the journal's end; with `seq`, to the read that reaches it.

        Raises JournalUnavailable, ModelChanged, UnknownModel.
        """
        replica = self._replica
        try:
            if seq is not None:
                # Entries show by themselves that they follow, and of which incarnation.
                await replica.catch_up(self._journal, seq)
            read_already = seq is not None
            # Once more where it was suspected since the head was asked for.
            while seq is None or replica.seq < seq or replica.is_forked:
                seq, suspicions = replica.seq, self._suspicions
                await self._check_head(read_already)
                if suspicions == self._suspicions:
                    replica.is_forked = False
                read_already = False
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)

    async def _check_head(self, read_already: bool) -> None:
        """Bring the replica to the journal's end, wherever that is. Raises Forked, Trimmed.

        Where it was `read_already` and has not grown since, it is not read again.
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
            # The head was lost before it was read: what of it was here the new head tells.
        told = f"the journal ends at seq {replica.seq}, before its head"
        raise Forked(f"model {replica.id!r}: {told}")

    async def _rebuild(self, cause: Forked | Trimmed) -> None:
        """Throw the replica's state away for the journal's. Raises ModelChanged.

        One that was overtaken by the trimming may have been forked as well: nobody is served of
        it, either.
        """
        replica = self._replica
        replica.is_forked = True
        if isinstance(cause, Forked):
            log.warning("%s; rebuilding it from the journal", cause)
            replica.trail.has_diverged = True
            clear_outcomes(replica.watched)
            self.listener.on_fork(replica.id)
        else:
            log.warning(
                "model %r: %s, this replica stands at seq %d; loading it anew",
                replica.id,
                cause,
                replica.seq,
            )
        suspicions = self._suspicions
        record = await self._journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id) from None
        lost = await replica.rebuild(record, self._journal)
        replica.is_forked = suspicions != self._suspicions  # who suspects it looks again
        self.listener.on_loss(lost)
