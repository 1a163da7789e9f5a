"""State of a model at an earlier seq, computed from the kept journal. Writes nothing."""

import logging

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Journal, LogPosition, ModelRecord, Snapshot, Trimmed
from dualstream.service.replica.features import Features
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.recovery import restore_snapshot
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import run_making, spec_of
from dualstream.solvers import CorruptState

log = logging.getLogger("dualstream.point_in_time")


class NotKept(Exception):
    """The state at `seq` cannot be computed; states from `first` to `last` can."""

    def __init__(self, model: str, seq: int, first: int, last: int) -> None:
        super().__init__(
            f"model {model!r} has no state at seq {seq}: its journal ends at seq {last}"
            if seq > last
            else f"the state of {model!r} at seq {seq} can no longer be computed: its journal and "
            f"copies reach from seq {first} to {last}"
        )
        self.first, self.last = first, last


async def kept_from(journal: Journal, record: ModelRecord) -> int:
    """First seq that the journal keeps; the next seq if it keeps none."""
    try:
        entries = await journal.read(record.id, record.incarnation, 0, 1)
    except Trimmed as trimmed:
        return trimmed.kept_from
    return entries[0].first_seq if entries else record.seq + 1


async def state_at(features: Features, journal: Journal, record: ModelRecord, seq: int) -> Replica:
    """Return a replica at `seq`, built from the nearest good snapshot or version before it.

    Raises NotKept; also Forked and Trimmed if the journal changes during the computation.
    """
    first = await kept_from(journal, record)
    bases = sorted(await _bases(journal, record, first), key=lambda base: base[0].seq)
    earliest = 0 if first == 1 else min((position.seq for position, _ in bases), default=record.seq)
    if not earliest <= seq <= record.seq:
        raise NotKept(record.id, seq, earliest, record.seq)
    for position, digest in reversed(bases):
        if position.seq > seq:
            continue
        replica = await run_making(spec_of(record), Replica, record, features, 0)
        try:
            snapshot = await _read_base(journal, record, position, digest)
            await restore_snapshot(replica, snapshot, any_identity=digest is not None)
            await _check_held(journal, record, position)
            await advance(replica, journal, seq)
            return replica
        except (CorruptState, Forked, Trimmed) as error:
            log.warning("model %r: cannot start at seq %d: %s", record.id, position.seq, error)
    if first == 1:
        replica = await run_making(spec_of(record), Replica, record, features, 0)
        await advance(replica, journal, seq)
        return replica
    raise NotKept(record.id, seq, earliest, record.seq)


async def _bases(
    journal: Journal, record: ModelRecord, first: int
) -> list[tuple[LogPosition, str | None]]:
    """Snapshots and versions (with digest) that the kept journal continues from."""
    where = (record.id, record.incarnation)
    found: list[tuple[LogPosition, str | None]] = [
        (position, None) for position in await journal.snapshots(*where)
    ]
    found += [
        (LogPosition(version.seq, version.chain), version.digest)
        for version in await journal.versions(*where)
    ]
    return [
        (position, digest) for position, digest in found if first - 1 <= position.seq <= record.seq
    ]


async def _read_base(
    journal: Journal, record: ModelRecord, position: LogPosition, digest: str | None
) -> Snapshot:
    """Read a snapshot or copy. Raises CorruptState if it was deleted."""
    where = (record.id, record.incarnation)
    if digest is not None:
        data = await journal.copy_get(*where, digest)
        if data is not None:
            return Snapshot(position.seq, position.chain, data)
    else:
        for n in (0, 1):
            snapshot = await journal.snapshot_get(*where, n)
            if snapshot is not None and snapshot.seq == position.seq:
                return snapshot
    raise CorruptState("the store no longer has it")


async def _check_held(journal: Journal, record: ModelRecord, position: LogPosition) -> None:
    """Raise Forked if the journal does not continue from `position`."""
    following = await journal.read(record.id, record.incarnation, position.seq, 1)
    if following:
        first = following[0]
        is_held = first.first_seq == position.seq + 1
        is_held = is_held and next_chain(position.chain, first.nonce) == first.chain
    else:
        is_held = (position.seq, position.chain) == (record.seq, record.chain)
    if not is_held:
        raise Forked(f"model {record.id!r}: the journal does not continue from seq {position.seq}")


async def advance(replica: Replica, journal: Journal, until: int) -> None:
    """Apply the journal up to `until`, which may be in the middle of an entry.

    Raises Trimmed; Forked if the journal does not continue from the replica or ends before `until`.
    """
    while replica.seq < until:
        entries = await journal.read(replica.id, replica.incarnation, replica.seq)
        if not entries:
            raise Forked(f"model {replica.id!r}: the journal ends at seq {replica.seq} already")
        whole = [entry for entry in entries if entry.seq <= until]
        if whole:
            await replica.apply(whole, journal)
        if replica.seq < until and len(whole) < len(entries):
            await replica.apply_part(entries[len(whole)], until)
