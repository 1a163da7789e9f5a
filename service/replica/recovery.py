"""How a replica comes to its journal's end: from a snapshot, or from the journal's beginning.

A snapshot that is damaged, or of entries that the journal has lost, is refused, and the one before
it is taken. The journal is kept for the older of two, so that either of them is enough.
"""

import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from dualstream.service.journal.protocol import (
    Base,
    Entry,
    Journal,
    ModelChanged,
    ModelRecord,
    Place,
    Snapshot,
    Trimmed,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.lineage import Lineage
from dualstream.solvers import CorruptState

log = logging.getLogger("dualstream.recovery")

# A journal that does not follow from itself so often is broken.
REPLAYS = 3


class Forked(Exception):
    """The journal does not go on from where a replica stands: entries were lost or replaced."""


class NoBase(RecordError):
    """The journal is no longer whole, and no snapshot is good that it goes on from."""


class Recovering(Protocol):
    """The part of a replica that recovery needs."""

    id: str
    incarnation: str
    seq: int
    chain: str
    trail: Lineage

    def restore(self, snapshot: Snapshot, any_identity: bool = False) -> None:
        """Take the state of a snapshot. Raises CorruptState."""

    def start_over(self) -> None:
        """Return to the state before the first record."""

    def check_head(self, record: ModelRecord) -> None:
        """Raise Forked when the journal's head contradicts the replica."""

    async def apply(self, entries: Sequence[Entry], journal: Journal) -> None:
        """Apply entries. Raises Forked."""

    async def catch_up(self, journal: Journal, until: int | None = None) -> None:
        """Apply everything after the replica's position. Raises Forked, Trimmed."""


async def recover(
    replica: Recovering, journal: Journal, adopts: bool = False, base: Base | None = None
) -> None:
    """Bring a replica that holds nothing yet to the journal's end, as it is now or in `base`.

    From the newest good snapshot that the journal goes on from, else from the journal's beginning.
    Where neither is there, and `adopts`, a snapshot is good of whatever machine it is. With `base`
    the store is asked for no more than that has not got.

    Raises NoBase, also where the journal does not follow from itself, or from its head.
    """
    if base is not None and await _from_base(replica, base, journal):
        return
    head = None if base is None else base.record
    tried: Sequence[Place] | None = None
    while True:
        refused: list[str] = []
        try:
            if await _from_a_snapshot(replica, journal, head, refused):
                return
            await _replay(replica, journal, head)
            return
        except Trimmed as trimmed:
            kept_from = trimmed.kept_from
            replica.start_over()
        if adopts and await _from_a_snapshot(replica, journal, head, refused, any_identity=True):
            return
        # A newer snapshot may have come, and the journal have been trimmed to it, meanwhile.
        places = await journal.snapshots(replica.id, replica.incarnation)
        if places == tried:
            why = "; ".join(refused) or "there is no snapshot"
            raise NoBase(
                f"model {replica.id!r}: its journal is kept from seq {kept_from} on, and no "
                f"snapshot leads there: {why}"
            )
        tried = places


async def _from_base(replica: Recovering, base: Base, journal: Journal) -> bool:
    """To where the journal ended when `base` was read, or beyond.

    False, and at the beginning, if it does not lead there: why, whoever looks again will say.
    """
    head, begins_at = base.record, 0
    if base.entries is None:
        return False
    try:
        if base.snapshot is None:
            replica.trail.add(replica.seq, replica.chain)
        else:
            replica.restore(base.snapshot)
            begins_at = replica.seq
        if base.entries:
            await replica.apply(base.entries, journal)
        if replica.seq < head.seq:
            await replica.catch_up(journal)
    except (CorruptState, Forked, Trimmed):
        replica.start_over()
        return False
    if not _leads_there(replica, begins_at, head):
        replica.start_over()
        return False
    return True


def _leads_there(replica: Recovering, begins_at: int, head: ModelRecord) -> bool:
    """Whether a replica that began at some seq has come to the journal's head, or beyond it.

    Entries show that they follow from a snapshot; without any, it has to stand at the head.
    """
    if replica.seq > max(head.seq, begins_at):
        return True
    return (replica.seq, replica.chain) == (head.seq, head.chain)


async def _from_a_snapshot(
    replica: Recovering,
    journal: Journal,
    head: ModelRecord | None,
    refused: list[str],
    any_identity: bool = False,
) -> bool:
    """Take the newest good snapshot and go on from it; False, and at the beginning, without one.

    Why others were not taken is added to `refused`. Raises Trimmed.
    """
    for n in (0, 1):
        snapshot = await journal.snapshot_get(replica.id, replica.incarnation, n)
        if snapshot is None:
            return False
        try:
            replica.restore(snapshot, any_identity)
            await _go_on_from(replica, snapshot, journal, head)
        except (CorruptState, Forked) as error:
            why = f"the snapshot at seq {snapshot.seq} ({snapshot.where}) is refused: {error}"
            log.error("model %r: %s", replica.id, why)
            refused.append(why)
            replica.start_over()
        else:
            return True
    return False


async def _replay(replica: Recovering, journal: Journal, head: ModelRecord | None) -> None:
    """From the beginning; anew where entries were lost between two reads.

    Raises NoBase, Trimmed, ModelChanged.
    """
    for _ in range(REPLAYS):
        with contextlib.suppress(Forked):
            return await _replay_once(replica, journal, head)
        replica.start_over()
    try:
        await _replay_once(replica, journal, head)
    except Forked as error:
        raise NoBase(str(error)) from error


async def _replay_once(replica: Recovering, journal: Journal, head: ModelRecord | None) -> None:
    """Raises Forked, Trimmed, ModelChanged."""
    replica.trail.add(replica.seq, replica.chain)
    await replica.catch_up(journal)
    if head is not None:
        await _come_to(head, replica, 0, journal)


async def _go_on_from(
    replica: Recovering, snapshot: Snapshot, journal: Journal, head: ModelRecord | None
) -> None:
    """To the journal's end from a restored snapshot.

    Raises Trimmed, ModelChanged; Forked where the journal does not lead on from it, or not to its
    head. The entries that follow show that it does; where none follows, it is the head that has to
    stand there.
    """
    await replica.catch_up(journal)
    if head is not None or replica.seq == snapshot.seq:
        await _come_to(head, replica, snapshot.seq, journal)


async def _come_to(
    head: ModelRecord | None, replica: Recovering, begins_at: int, journal: Journal
) -> None:
    """See that what was read leads to `head`, or else to what is the head now.

    Raises Forked, Trimmed, ModelChanged.
    """
    if head is not None and _leads_there(replica, begins_at, head):
        return
    for _ in range(REPLAYS):
        record = await journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id)
        replica.check_head(record)
        if record.seq > replica.seq:  # it has grown since, or was lost before it could be read
            await replica.catch_up(journal)
        if _leads_there(replica, begins_at, record):
            return
    raise Forked(f"model {replica.id!r}: the journal ends at seq {replica.seq}, before its head")
