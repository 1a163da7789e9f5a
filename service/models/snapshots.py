"""Snapshots of one model: when they are due, writing them, and trimming the journal afterwards."""

import asyncio
import logging
from collections.abc import Callable

from dualstream.service.concurrency import drop_traceback
from dualstream.service.journal import protocol
from dualstream.service.models.deps import ModelDeps
from dualstream.service.models.store_status import OtherIdentity
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.state import Captured

log = logging.getLogger("dualstream.snapshots")

BULK_ROWS = 1000
"""Rows of a bulk group. A million such rows may come in a second."""
SNAPSHOT_SHARE = 0.05
"""Largest share of the time that snapshots take while rows come in bulk."""
# Cost of a load, in CPU seconds of all threads: replay of the journal (read, decode, apply, without
# learning), or a snapshot (write, restore as a check, read, restore). SQLite; models of 60 kB,
# 410 kB and 8 MB.
REPLAYED_ENTRY_S, REPLAYED_ROW_S = 3.5e-6, 2e-7
WRITTEN_S, WRITTEN_BYTE_S, RESTORED_BYTE_S = 0.0007, 4e-9, 2e-9


class Snapshots:
    """Writes the snapshots of one model, one at a time."""

    def __init__(
        self, deps: ModelDeps, record: protocol.ModelRecord, replica: Replica, committer: Committer
    ) -> None:
        self._deps = deps
        self._record = record
        self._replica = replica
        self._committer = committer
        self._task: asyncio.Task[None] | None = None
        self.last_seq = replica.restored_seq
        """Seq of the newest snapshot that this process restored or wrote; 0 if unknown."""
        self._not_before = float("-inf")

    @property
    def is_writing(self) -> bool:
        return self._task is not None

    def on_due(self, is_bulk: bool) -> None:
        """Called between two groups, at every multiple of `snapshot_every`. Starts a snapshot."""
        if self._task is None and (not is_bulk or self._deps.clock.now() >= self._not_before):
            self.start()

    def is_worth_writing(self, model_bytes: int) -> bool:
        """Is a snapshot cheaper than a replay of the records since the last one?"""
        replica = self._replica
        rows = replica.seq - self.last_seq
        entries = replica.lineage.entries_after(self.last_seq)
        replay_s = rows * (REPLAYED_ROW_S + replica.learning.row_s) + entries * REPLAYED_ENTRY_S
        return replay_s > WRITTEN_S + model_bytes * (WRITTEN_BYTE_S + 2 * RESTORED_BYTE_S)

    def start(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Write a snapshot in a task. Call it between two groups.

        The snapshot has the present state, or if that is large the state after the next groups.
        """
        captured = None if self._replica.is_large else self._replica.capture()
        self._task = asyncio.create_task(self._run(captured, on_end))

    async def close(self) -> None:
        """Finish the snapshot that is being written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def forget_last(self) -> None:
        """The store may have lost the newest snapshot."""
        self.last_seq = 0

    async def write(self, captured: Captured | None = None, replaces: bool = False) -> None:
        """Store a snapshot of the captured or present state, and trim the journal.

        A snapshot of the same seq is kept unless `replaces`. The trim removes the records
        that neither of the two newest snapshots nor `keep_records` needs. Raises CorruptState for
        a state that could not be restored; then nothing is stored or trimmed.
        """
        captured = await self._captured() if captured is None else captured
        through = captured.seq - self._deps.settings.keep_records
        snapshot = await captured.encoded(self._record if through > 0 else None)
        await self._deps.store_identity.verify()
        record, journal = self._record, self._deps.journal
        where = (record.id, record.incarnation)
        position = (snapshot.seq, snapshot.chain)
        was_put = await journal.snapshot_put(*where, *position, snapshot.data, replaces)
        self.last_seq = snapshot.seq
        if was_put and through > 0:
            await journal.trim(*where, await self._may_trim(through), behind=1)

    async def _captured(self) -> Captured:
        async with self._committer.between_groups():
            return await self._replica.captured()

    async def _may_trim(self, through: int) -> int:
        """The last record up to `through` that may be trimmed.

        Features may need records from before it, also for a replica that starts from an older
        snapshot.
        """
        oldest = self._replica.seq
        if self._replica.parts.replays_past:
            where = (self._record.id, self._record.incarnation)
            positions = await self._deps.journal.snapshots(*where)
            oldest = min((position.seq for position in positions), default=0)
        needed = self._replica.parts.kept_after(oldest, self._replica.seq)
        return through if needed is None else min(through, needed)

    async def _run(self, captured: Captured | None, on_end: Callable[[], None]) -> None:
        """Write a snapshot. If the store refuses it, learning continues until the next one."""
        now = self._deps.clock.now
        began = now()
        try:
            captured = await self._captured() if captured is None else captured
            await self.write(captured)
        except OtherIdentity as error:
            drop_traceback(error)  # `verify` has logged it
        except (protocol.UnknownModel, protocol.ModelChanged) as error:
            drop_traceback(error)  # the model was deleted or replaced
        except Exception as error:
            seq = self._replica.seq if captured is None else captured.seq
            # A traceback shows nothing about a store that is away.
            trace = None if isinstance(error, protocol.JournalError) else error
            log.error(
                "model %r: snapshot at seq %d failed: %s",
                self._record.id,
                seq,
                str(error) or type(error).__name__,
                exc_info=trace,
            )
            if isinstance(error, protocol.MissingPosition):
                assert captured is not None
                await self._committer.check_position(
                    protocol.LogPosition(captured.seq, captured.chain)
                )
        finally:
            self._task = None
            self._not_before = now() + (now() - began) / SNAPSHOT_SHARE
        on_end()
