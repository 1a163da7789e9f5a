"""Unlearn clean-up: deletes everything older than an unlearned sample from the store.

The control removes the row from the state, but the journal, snapshots and copies still have it.
The clean-up writes a clean snapshot, reads it back, and deletes everything older. Each step can be
repeated, so a process that finds an interrupted clean-up starts again. A clean-up is due while the
cursor `unlearned` is before the last control that unlearned a sample.
"""

import asyncio
import contextlib
import logging

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal import protocol
from dualstream.service.journal.audit import SERVER
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.models.store_status import OtherIdentity
from dualstream.service.replica.replica import Replica
from dualstream.solvers import CorruptState, load

log = logging.getLogger("dualstream.unlearn_cleanup")

CURSOR = "unlearned"
"""Up to which control the store was cleaned."""
LEFT_TO_OTHERS_S = 1.0
"""Delay of the clean-up in a process that was not asked to unlearn."""
RETRY_S = 2.0


class UnlearnCleanup(Job):
    """Clean-ups of one model: one at a time, until none is due."""

    def __init__(self, model: Model) -> None:
        self._replica = model.replica
        self._committer = model.committer
        self._record = model.record
        self._journal = model.deps.journal
        self._identity = model.deps.store_identity
        self._clock = model.clock
        self._skip_delay = asyncio.Event()
        self._is_requested = False

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """Did a control after `since` unlearn a sample?"""
        return replica.parts.forgotten_seq > since

    def begin_due(self) -> None:
        """Start after a delay: the process that was asked to unlearn goes first."""
        self.begin(LEFT_TO_OTHERS_S)

    def begin(self, delay_s: float = 0.0) -> None:
        """Start a clean-up after a delay. A second call without delay starts it at once."""
        self._is_requested = True
        if delay_s == 0.0:
            self._skip_delay.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(delay_s))

    async def is_done(self, seq: int) -> bool:
        """Is everything older than the control at `seq` deleted?

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
                await asyncio.wait_for(self._skip_delay.wait(), delay_s)
            while self._is_requested:
                self._is_requested = False
                if not await self._try():
                    self._is_requested = True
                    await asyncio.sleep(RETRY_S)
        finally:
            self._skip_delay.clear()
            self._task = None

    async def _try(self) -> bool:
        """Clean up if that is due. Is nothing left to do?"""
        replica = self._replica
        try:
            while not await self.is_done(replica.parts.forgotten_seq):
                async with self._committer.between_groups():
                    captured = await replica.captured()
                    seq = replica.parts.forgotten_seq
                snapshot = await captured.encoded(self._record)
                through = self._may_go(snapshot.seq)
                await self._identity.verify()
                if not await clean_up(self._journal, *self._where, snapshot, seq, through):
                    return False
                await self._set_done(seq)
        except (protocol.ModelChanged, protocol.UnknownModel, OtherIdentity):
            return True
        except protocol.JournalError as error:
            log.warning("model %r: the clean-up after unlearning is retried: %s", replica.id, error)
            if isinstance(error, protocol.MissingPosition):
                await self._committer.check_position(
                    protocol.LogPosition(captured.seq, captured.chain)
                )
            return False
        except Exception:
            log.exception("model %r: the clean-up after unlearning failed", replica.id)
            return False
        return True

    def _may_go(self, seq: int) -> int:
        """The last record that may be trimmed if a snapshot at `seq` is the oldest.

        A paused model keeps the rows in quarantine, which all came after its unlearned sample.
        """
        needed = self._replica.parts.kept_after(seq, self._replica.seq)
        return seq if needed is None else min(seq, needed)

    async def _set_done(self, seq: int) -> None:
        before = await self._journal.cursor(*self._where, CURSOR)
        move = protocol.CursorMove(CURSOR, before, str(max(seq, int(before or 0))))
        with contextlib.suppress(protocol.CursorMoved):  # `_try` reads it again
            nonce = self._clock.new_nonce()
            await self._journal.append(
                protocol.AppendRequest(*self._where, nonce, self._replica.seq, (), move)
            )


async def clean_up(
    journal: protocol.Journal,
    model: str,
    incarnation: str,
    snapshot: protocol.Snapshot,
    seq: int,
    through: int | None = None,
) -> bool:
    """Delete everything older than the control at `seq` from the store. False if that failed.

    The journal is trimmed through `through`, or by default through the snapshot. The snapshot
    is of a state after the control. Nothing is deleted before the snapshot can be read back,
    nor once the store has lost its records.

    Raises ModelChanged, Conflict, JournalUnavailable, OutcomeUnknown.
    """
    where = (model, incarnation)
    if not await _put_verified(journal, where, snapshot):
        return False
    await journal.snapshots_drop(*where, snapshot.seq)
    # Before the versions are deleted: a trimmed position cannot get a new version.
    await journal.trim(*where, snapshot.seq if through is None else through, behind=0)
    if not await _is_trimmed_past(journal, where, seq):
        return False
    for version in await journal.versions(*where):
        if version.seq < seq:
            change = SERVER.change("version_delete", name=version.name, unlearned_seq=seq)
            await journal.version_delete(*where, version.name, change)
    return await _drop_copies(journal, where, seq) and await journal.scrub(*where)


async def _put_verified(
    journal: protocol.Journal, where: tuple[str, str], snapshot: protocol.Snapshot
) -> bool:
    """Store the snapshot and read it back as after a crash. Is it there and intact?

    The store may have newer snapshots. A damaged snapshot of the same seq is replaced.
    """
    for replaces in (False, True):
        await journal.snapshot_put(*where, snapshot.seq, snapshot.chain, snapshot.data, replaces)
        for n in (0, 1):
            stored = await journal.snapshot_get(*where, n)
            if stored is not None and (stored.seq, stored.chain) == (snapshot.seq, snapshot.chain):
                try:
                    await run_copy_in_thread(load, stored.data)
                    return True
                except CorruptState as error:
                    log.error("model %r: damaged snapshot at %d: %s", where[0], stored.seq, error)
    return False


async def _is_trimmed_past(journal: protocol.Journal, where: tuple[str, str], seq: int) -> bool:
    """Does the kept journal begin after `seq`?

    Not if the store has lost the records of the snapshot: then nothing was trimmed.
    """
    try:
        await journal.read(*where, 0, 1)
    except protocol.Trimmed as error:
        return error.kept_from > seq
    return False


async def _drop_copies(journal: protocol.Journal, where: tuple[str, str], seq: int) -> bool:
    """Delete copies of states before `seq`. False if a kept record names one.

    Partial copies are deleted, too: their state is unknown. A writer that is alive stores its
    copy again.
    """
    are_gone = True
    for copy in await journal.copies(*where, with_partial=True):
        data = await journal.copy_get(*where, copy.digest)
        if data is not None and await run_copy_in_thread(_is_since, data, seq):
            continue
        try:
            await journal.copy_delete(*where, copy.digest)
        except protocol.Conflict:
            are_gone = False
    return are_gone


def _is_since(data: bytes, seq: int) -> bool:
    """Is the copy of a state that includes the control at `seq`?"""
    try:
        return int(load(data)[1]["seq"]) >= seq
    except (CorruptState, KeyError, ValueError):
        return False
