"""Load a replica from a snapshot, or from the beginning of the journal.

A snapshot that is damaged, or that holds entries which the journal has lost, is rejected. Then the
one before it is tried. The journal is kept for the older of two snapshots, so either one is enough.
"""

import logging

from dualstream.service.concurrency import ensure_task, run_long_in_thread
from dualstream.service.journal.protocol import (
    Base,
    Journal,
    ModelChanged,
    ModelRecord,
    Snapshot,
    Trimmed,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.fork_detection import Forked, Lost
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import run_making
from dualstream.solvers import CorruptState

log = logging.getLogger("dualstream.recovery")

ATTEMPTS = 3
"""A journal that still contradicts itself after these is broken."""
SHORT_BYTES = 1 << 18
"""A snapshot of this size is restored in about a millisecond."""


class NoBase(RecordError):
    """The journal is trimmed, and it continues from no good snapshot."""


async def recover(
    replica: Replica, journal: Journal, adopts: bool = False, base: Base | None = None
) -> None:
    """Bring an empty replica at least to the journal's end as it is in `base`, or now.

    Starts from the newest good snapshot that the journal continues from, else from the beginning of
    the journal. If neither works because the journal is trimmed, and `adopts` is set, a snapshot of
    any numeric identity is accepted. All of this is tried again, because entries may be lost or
    trimmed between two reads.

    Raises NoBase, also if the journal contradicts itself or its head; ModelChanged.
    """
    for _ in range(ATTEMPTS):
        base = base or await _read_base(replica, journal)
        failure = await _failure_of_starts(replica, journal, base, adopts)
        if failure is None:
            return
        base = None
    raise NoBase(failure)


async def rebuild(replica: Replica, journal: Journal) -> Lost:
    """Discard the state and load it from the journal. Return what the journal had lost.

    The replica serves nothing until then. Raises NoBase, ModelChanged.
    """
    replica.is_forked = True
    base = await _read_base(replica, journal)
    fresh = await run_making(replica.spec, replica.successor, base.record)
    await recover(fresh, journal, base=base)
    return await replica.become(fresh)


async def reach_head(replica: Replica, journal: Journal, has_read: bool) -> None:
    """Bring the replica to the journal's head. Raises Forked, Trimmed, ModelChanged.

    If the caller `has_read` the journal's end and the journal has not grown since, it is not read
    again.
    """
    await ensure_task()
    for _ in range(ATTEMPTS):
        record = await journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id)
        replica.check_head(record)
        if not has_read or record.seq > replica.seq:
            await replica.catch_up(journal)
        if replica.seq >= record.seq:
            return
        # The store lost this head before the read. Compare with the head it has now.
    raise Forked(f"model {replica.id!r}: the journal ends at seq {replica.seq}, before its head")


async def restore_snapshot(
    replica: Replica, snapshot: Snapshot, any_identity: bool = False
) -> None:
    """Restore from a snapshot, in a thread if it is large. Raises CorruptState.

    Nothing else uses the replica yet, so no lock is needed.
    """
    if len(snapshot.data) <= SHORT_BYTES:
        replica.restore(snapshot, any_identity)
    else:
        await run_long_in_thread(replica.restore, snapshot, any_identity)


async def _read_base(replica: Replica, journal: Journal) -> Base:
    await ensure_task()
    base = await journal.base(replica.id)
    if base.record.incarnation != replica.incarnation:
        raise ModelChanged(replica.id)
    return base


async def _failure_of_starts(
    replica: Replica, journal: Journal, base: Base, adopts: bool
) -> str | None:
    """Try each snapshot and the beginning of the journal. None if one works, else the reason.

    After a failure the replica is empty.
    """
    kept_from, reason, rejected = 0, "", []
    starts: list[tuple[int | None, bool]] = [(0, False), (1, False), (None, False)]
    for n, any_identity in [*starts, (0, True), (1, True)] if adopts else starts:
        if any_identity and not kept_from:
            break  # the journal is whole: the next attempt replays it
        snapshot = base.snapshot
        if n != 0:
            where = (replica.id, replica.incarnation)
            snapshot = None if n is None else await journal.snapshot_get(*where, n)
        if snapshot is None and n is not None:
            continue
        try:
            await _start_from(snapshot, replica, journal, base, any_identity)
            return None
        except Trimmed as error:
            kept_from = error.kept_from
        except (CorruptState, Forked) as error:
            reason = str(error)
            if snapshot is not None:
                why = f"the snapshot at seq {snapshot.seq} ({snapshot.where}) is rejected: {error}"
                log.error("model %r: %s", replica.id, why)
                rejected.append(why)
        await run_making(replica.spec, replica.start_over)
    if not kept_from:
        return reason
    return (
        f"model {replica.id!r}: the journal is kept from seq {kept_from} on, and no snapshot "
        f"leads there: {'; '.join(rejected) or 'there is no snapshot'}"
    )


async def _start_from(
    snapshot: Snapshot | None, replica: Replica, journal: Journal, base: Base, any_identity: bool
) -> None:
    """Restore the snapshot, or begin without one, and apply the entries after it.

    Raises CorruptState, Trimmed, ModelChanged; Forked if the journal does not continue from the
    snapshot, or does not lead to its head.
    """
    if snapshot is None:
        replica.lineage.add(replica.seq, replica.chain)
    else:
        await restore_snapshot(replica, snapshot, any_identity)
    begins_at = replica.seq
    if base.entries and snapshot is base.snapshot:
        await replica.apply(base.entries, journal)
    if replica.seq < base.record.seq:
        await replica.catch_up(journal)
    if not _leads_there(replica, begins_at, base.record):
        await reach_head(replica, journal, has_read=True)


def _leads_there(replica: Replica, begins_at: int, head: ModelRecord) -> bool:
    """Did a replica that began at `begins_at` reach the journal's head, or pass it?

    Applied entries prove by their chain that they follow from the snapshot. Without any, the
    replica's position must equal the head.
    """
    if replica.seq > max(head.seq, begins_at):
        return True
    return (replica.seq, replica.chain) == (head.seq, head.chain)
