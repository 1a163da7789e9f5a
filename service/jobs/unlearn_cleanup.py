"""What follows once a sample was unlearned: nothing older than that stays in the store.

The control takes the row out of the state; the journal, snapshots and copies still hold it. A clean
snapshot is written and read back, then all that is older goes. Every step may be done again, so
whoever comes after a crash begins anew: a clean-up is due as long as the cursor `unlearned` stands
before the last control that unlearned something.
"""

import asyncio
import contextlib
import logging

from dualstream.service.journal.author import SERVER
from dualstream.service.journal.protocol import (
    AppendRequest,
    Conflict,
    CursorMove,
    CursorMoved,
    Journal,
    JournalError,
    ModelChanged,
    NotHeld,
    Place,
    Snapshot,
    Trimmed,
    UnknownModel,
)
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.models.store_status import OtherIdentity
from dualstream.service.replica.replica import Replica
from dualstream.solvers import CorruptState, load

log = logging.getLogger("dualstream.clean_up")

CURSOR = "unlearned"
"""Up to which control the store was cleaned."""
LEFT_TO_OTHERS_S = 1.0
"""How long a replica that only reads of a control leaves the clean-up to whoever was asked."""
RETRY_S = 2.0


class UnlearnCleanup(Job):
    """The clean-ups of one model in this process: one at a time, until none is due."""

    def __init__(self, model: Model) -> None:
        self._replica = model.replica
        self._committer = model.committer
        self._journal = model.deps.journal
        self._identity = model.deps.identity
        self._outside = model.outside
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._is_asked = False

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """A control after `since` unlearned a sample."""
        return replica.retained.unlearned_seq > since

    def begin_due(self) -> None:
        """Start later: the process that was asked to unlearn may do it first, or may have died."""
        self.begin(LEFT_TO_OTHERS_S)

    def begin(self, delay_s: float = 0.0) -> None:
        """See to it that nothing is due, after a while; unless it is begun again without one."""
        self._is_asked = True
        if delay_s == 0.0:
            self._hurry.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(delay_s))

    @property
    def is_busy(self) -> bool:
        """Whether one is under way, or about to be."""
        return self._task is not None

    def stop(self) -> None:
        """Leave what is not done to whoever holds the model next."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """As `stop`, and wait for it."""
        if self._task is not None:
            self.stop()
            await asyncio.wait([self._task])

    async def is_done(self, seq: int) -> bool:
        """Whether the store holds nothing older than the control at `seq`.

        Raises ModelChanged.
        """
        cursor = await self._journal.cursor(*self._where, CURSOR)
        return int(cursor or 0) >= seq

    @property
    def _where(self) -> tuple[str, str]:
        return self._replica.id, self._replica.incarnation

    async def _run(self, delay_s: float) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay_s)
            while self._is_asked:
                self._is_asked = False
                if not await self._try():
                    self._is_asked = True
                    await asyncio.sleep(RETRY_S)
        finally:
            self._hurry.clear()
            self._task = None

    async def _try(self) -> bool:
        """Clean up if that is due; whether there is nothing left to do."""
        replica = self._replica
        try:
            while not await self.is_done(replica.retained.unlearned_seq):
                async with self._committer.between_groups():
                    captured = replica.capture()
                    seq = replica.retained.unlearned_seq
                snapshot = await captured.encoded()
                through = self._may_go(snapshot.seq)
                await self._identity.look()
                if not await clean_up(self._journal, *self._where, snapshot, seq, through):
                    return False
                await self._set_done(seq)
        except (ModelChanged, UnknownModel, OtherIdentity):
            return True
        except JournalError as error:
            log.warning("model %r: the clean-up is put off: %s", replica.id, error)
            if isinstance(error, NotHeld):
                await self._committer.see_what_is_lost(Place(captured.seq, captured.chain))
            return False
        except Exception:
            log.exception("model %r: the clean-up failed", replica.id)
            return False
        return True

    def _may_go(self, seq: int) -> int:
        """The last record that may go, once a snapshot at `seq` is the oldest.

        Of a model that pauses, rows in quarantine stay, all of which came after what it unlearned.
        """
        guarding = self._replica.guarding
        held = None if guarding is None else guarding.kept_after(seq)
        return seq if held is None else min(seq, held)

    async def _set_done(self, seq: int) -> None:
        before = await self._journal.cursor(*self._where, CURSOR)
        move = CursorMove(CURSOR, before, str(max(seq, int(before or 0))))
        with contextlib.suppress(CursorMoved):  # by another worker: it is looked at again
            nonce = self._outside.nonce()
            await self._journal.append(
                AppendRequest(*self._where, nonce, self._replica.seq, (), move)
            )


async def clean_up(
    journal: Journal,
    model: str,
    incarnation: str,
    snapshot: Snapshot,
    seq: int,
    through: int | None = None,
) -> bool:
    """Leave nothing in the store that is older than the control at `seq`; False if that failed.

    Of the journal goes what stands up to `through`, or else up to the snapshot.

    The snapshot is of a state after it. Nothing goes before it can be read back from the store, nor
    once the store has lost what it is a snapshot of.

    Raises ModelChanged, Conflict, JournalUnavailable, OutcomeUnknown.
    """
    where = (model, incarnation)
    if not await _keep(journal, where, snapshot):
        return False
    await journal.snapshots_drop(*where, snapshot.seq)
    # Before the versions go: of a place that the log has let go of none can be taken any more.
    await journal.trim(*where, snapshot.seq if through is None else through, behind=0)
    if not await _begins_behind(journal, where, seq):
        return False
    for version in await journal.versions(*where):
        if version.seq < seq:
            change = SERVER.change("version_delete", name=version.name, unlearned_seq=seq)
            await journal.version_delete(*where, version.name, change)
    return await _drop_copies(journal, where, seq) and await journal.scrub(*where)


async def _keep(journal: Journal, where: tuple[str, str], snapshot: Snapshot) -> bool:
    """Put the snapshot into the store; whether it is there and good. The store may have newer ones.

    It is read as it would be after a crash, as it will be all that there is. One of the same seq
    that is damaged gives way.
    """
    for replaces in (False, True):
        await journal.snapshot_put(*where, snapshot.seq, snapshot.chain, snapshot.data, replaces)
        for n in (0, 1):
            found = await journal.snapshot_get(*where, n)
            if found is not None and (found.seq, found.chain) == (snapshot.seq, snapshot.chain):
                try:
                    await asyncio.to_thread(load, found.data)
                    return True
                except CorruptState as error:
                    log.error("model %r: the snapshot at seq %d: %s", where[0], found.seq, error)
    return False


async def _begins_behind(journal: Journal, where: tuple[str, str], seq: int) -> bool:
    """Whether the journal is kept from after `seq` on.

    It is not where the store has lost what the snapshot is of: nothing was let go then.
    """
    try:
        await journal.read(*where, 0, 1)
    except Trimmed as error:
        return error.kept_from > seq
    return False


async def _drop_copies(journal: Journal, where: tuple[str, str], seq: int) -> bool:
    """Delete copies of states before `seq`; False where a record that is kept names one.

    Those too that are not whole: of which states they are nobody can tell, and their writers begin
    anew, if they are alive.
    """
    are_gone = True
    for copy in await journal.copies(*where, with_partial=True):
        data = await journal.copy_get(*where, copy.digest)
        if data is not None and _is_since(data, seq):
            continue
        try:
            await journal.copy_delete(*where, copy.digest)
        except Conflict:
            are_gone = False
    return are_gone


def _is_since(data: bytes, seq: int) -> bool:
    """Whether a copy is of a state that holds the control at `seq`."""
    try:
        return int(load(data)[1]["seq"]) >= seq
    except (CorruptState, KeyError, ValueError):
        return False
