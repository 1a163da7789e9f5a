"""How a replica obeys a control in its place: what it names is fetched, then it is applied."""

import asyncio
import logging
from typing import TYPE_CHECKING

from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import ControlOutcome, copy_needed_by, obey, takes_up
from dualstream.service.replica.quarantine import held_pieces, learn_held
from dualstream.service.replica.state import ModelState, UnreadableCopy, read_copy

if TYPE_CHECKING:
    from dualstream.service.replica.replica import Replica

log = logging.getLogger("dualstream.obeying")

# Kinds of controls after which the retained rows are others than the last that were learned.
_OTHER_ROWS = ("rollback", "unlearn", "pause")


async def apply_control(replica: "Replica", control: Control, journal: Journal) -> ControlOutcome:
    """Let a replica obey the control that comes next.

    In a thread, as it may take long: a new member learns the retained rows. Raises UnreadableCopy
    and Trimmed, before anything is changed.
    """
    digest = copy_needed_by(replica, control)
    if digest is not None:
        try:
            replica.fetched = await fetch_copy(replica, digest, journal)
        except UnreadableCopy:
            # Gone with the record itself, which was trimmed meanwhile? Raises Trimmed.
            await journal.read(replica.id, replica.incarnation, replica.seq, 1)
            raise
    if takes_up(replica, control):
        replica.taken_up = await _take_up(replica, journal)
    async with replica.still():
        verdict = await asyncio.to_thread(obey, replica, control)
        replica.seq += 1
        replica.certified_at = float("-inf")
        _note(replica, control, verdict)
    return verdict


def _note(replica: "Replica", control: Control, verdict: ControlOutcome) -> None:
    """Keep what is beside the state, and count a refusal."""
    replica.verdicts.keep(replica.seq, control, verdict)
    if verdict.refusal is not None:
        replica.refused_controls += 1
        log.warning(
            "model %r: %s at seq %d is refused: %s",
            replica.id,
            control.kind,
            replica.seq,
            verdict.refusal,
        )
    elif control.kind in _OTHER_ROWS:
        replica.losses.forget()


async def _take_up(replica: "Replica", journal: Journal) -> "tuple[Replica, int]":
    """A copy of the replica that has learned the rows in quarantine, and how many these were.

    It learns them piece by piece. The replica stays as it is meanwhile, and predicts: where the
    journal cannot be read to their end, nothing has changed.
    """
    async with replica.still():
        copy, learned = await asyncio.to_thread(replica.copied), 0
    async for some in held_pieces(replica, journal):
        learned += await asyncio.to_thread(learn_held, copy, some)
    return copy, learned


async def fetch_copy(replica: "Replica", digest: str, journal: Journal) -> ModelState:
    """The state in a copy of the replica's model. Raises UnreadableCopy."""
    data = await journal.copy_get(replica.id, replica.incarnation, digest)
    try:
        state, *_ = await asyncio.to_thread(
            read_copy, data, digest, replica.spec, replica.incarnation
        )
    except UnreadableCopy as error:
        raise UnreadableCopy(f"model {replica.id!r} at seq {replica.seq}: {error}") from error
    return state
