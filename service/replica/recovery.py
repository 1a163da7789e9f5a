"""Load a replica from a snapshot, or from the beginning of the journal.

A snapshot that is damaged, or that holds entries which the journal has lost, is rejected. Then the
one before it is tried. The journal is kept for the older of two snapshots, so either one is enough.
"""

import contextlib
import logging
from collections.abc import Sequence

from dualstream.service.concurrency import run_long_in_thread
from dualstream.service.journal.protocol import (
    Base,
    Journal,
    LogPosition,
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

# Attempts. A journal that still contradicts itself is broken.
REPLAYS = 3
SHORT_BYTES = 1 << 18
"""A snapshot of this size is restored in about a millisecond."""


class NoBase(RecordError):
    """The journal is trimmed, and it continues from no good snapshot."""


async def recover(
    replica: Replica, journal: Journal, adopts: bool = False, base: Base | None = None
) -> None:
    """Bring an empty replica to the journal's end, as it is now or as in `base`.

    Starts from the newest good snapshot that the journal continues from, else from the beginning of
    the journal. If neither works and `adopts` is set, a snapshot of any numeric identity is
    accepted. With `base`, only what `base` lacks is read from the store.

    Raises NoBase, also if the journal contradicts itself or its head.
    """
    if base is not None and await _from_base(replica, base, journal):
        return
    head = None if base is None else base.record
    tried: Sequence[LogPosition] | None = None
    while True:
        refused: list[str] = []
        try:
            if await _from_a_snapshot(replica, journal, head, refused):
                return
            await _replay(replica, journal, head)
            return
        except Trimmed as trimmed:
            kept_from = trimmed.kept_from
            await run_making(replica.spec, replica.start_over)
        if adopts and await _from_a_snapshot(replica, journal, head, refused, any_identity=True):
            return
        # A newer snapshot may exist now, and the journal may have been trimmed to it. Try again
        # with it.
        places = await journal.snapshots(replica.id, replica.incarnation)
        if places == tried:
            why = "; ".join(refused) or "there is no snapshot"
            raise NoBase(
                f"model {replica.id!r}: the journal is kept from seq {kept_from} on, and no "
                f"snapshot leads there: {why}"
            )
        tried = places


async def rebuild(replica: Replica, record: ModelRecord, journal: Journal) -> Lost:
    """Discard the state and load it from the journal. Return what the journal had lost.

    The new state is that of the journal at `record` or later. The replica serves nothing until
    then.
    """
    replica.is_forked = True
    fresh = await run_making(replica.spec, replica.successor, record)
    await recover(fresh, journal, base=Base(record))
    return await replica.become(fresh)


async def _from_base(replica: Replica, base: Base, journal: Journal) -> bool:
    """Bring the replica at least to the end of the journal as it was in `base`.

    False if that fails; the replica is empty again, and the caller's next attempt reports the
    reason.
    """
    head, begins_at = base.record, 0
    if base.entries is None:
        return False
    try:
        if base.snapshot is None:
            replica.lineage.add(replica.seq, replica.chain)
        else:
            await restore_snapshot(replica, base.snapshot)
            begins_at = replica.seq
        if base.entries:
            await replica.apply(base.entries, journal)
        if replica.seq < head.seq:
            await replica.catch_up(journal)
    except (CorruptState, Forked, Trimmed):
        await run_making(replica.spec, replica.start_over)
        return False
    if not _leads_there(replica, begins_at, head):
        await run_making(replica.spec, replica.start_over)
        return False
    return True


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


def _leads_there(replica: Replica, begins_at: int, head: ModelRecord) -> bool:
    """Did a replica that began at `begins_at` reach the journal's head, or pass it?

    Applied entries prove by their chain that they follow from the snapshot. Without any, the
    replica's position must equal the head.
    """
    if replica.seq > max(head.seq, begins_at):
        return True
    return (replica.seq, replica.chain) == (head.seq, head.chain)


async def _from_a_snapshot(
    replica: Replica,
    journal: Journal,
    head: ModelRecord | None,
    refused: list[str],
    any_identity: bool = False,
) -> bool:
    """Restore the newest good snapshot and apply the entries after it. False if none is good.

    After False the replica is empty. Appends to `refused` why snapshots were rejected. Raises
    Trimmed.
    """
    for n in (0, 1):
        snapshot = await journal.snapshot_get(replica.id, replica.incarnation, n)
        if snapshot is None:
            return False
        try:
            await restore_snapshot(replica, snapshot, any_identity)
            await _go_on_from(replica, snapshot, journal, head)
        except (CorruptState, Forked) as error:
            why = f"the snapshot at seq {snapshot.seq} ({snapshot.where}) is rejected: {error}"
            log.error("model %r: %s", replica.id, why)
            refused.append(why)
            await run_making(replica.spec, replica.start_over)
        else:
            return True
    return False


async def _replay(replica: Replica, journal: Journal, head: ModelRecord | None) -> None:
    """Apply the whole journal. Start over if entries were lost between two reads.

    Raises NoBase, Trimmed, ModelChanged.
    """
    for _ in range(REPLAYS):
        with contextlib.suppress(Forked):
            return await _replay_once(replica, journal, head)
        await run_making(replica.spec, replica.start_over)
    try:
        await _replay_once(replica, journal, head)
    except Forked as error:
        raise NoBase(str(error)) from error


async def _replay_once(replica: Replica, journal: Journal, head: ModelRecord | None) -> None:
    """Apply the whole journal. Raises Forked, Trimmed, ModelChanged."""
    replica.lineage.add(replica.seq, replica.chain)
    await replica.catch_up(journal)
    if head is not None:
        await _come_to(head, replica, 0, journal)


async def _go_on_from(
    replica: Replica, snapshot: Snapshot, journal: Journal, head: ModelRecord | None
) -> None:
    """Apply the entries after a restored snapshot.

    Raises Trimmed, ModelChanged; Forked if the journal does not continue from the snapshot, or does
    not lead to its head. The first entry proves that the journal continues; without an entry, the
    head must be at the snapshot's position.
    """
    await replica.catch_up(journal)
    if head is not None or replica.seq == snapshot.seq:
        await _come_to(head, replica, snapshot.seq, journal)


async def _come_to(
    head: ModelRecord | None, replica: Replica, begins_at: int, journal: Journal
) -> None:
    """Check that the replica reached `head`, or else the present head.

    Raises Forked, Trimmed, ModelChanged.
    """
    if head is not None and _leads_there(replica, begins_at, head):
        return
    for _ in range(REPLAYS):
        record = await journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id)
        replica.check_head(record)
        if record.seq > replica.seq:  # grew since the read, or was lost before it
            await replica.catch_up(journal)
        if _leads_there(replica, begins_at, record):
            return
    raise Forked(f"model {replica.id!r}: the journal ends at seq {replica.seq}, before its head")
