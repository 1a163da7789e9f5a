"""Apply one control record to a replica: fetch what the control names, then execute it."""

import asyncio
import logging

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import apply_to, copy_needed_by, learns_quarantine
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.quarantine import learn_quarantined, read_quarantine
from dualstream.service.replica.retained_rows import ServedLosses
from dualstream.service.replica.state import ModelState, PositionedState, UnreadableCopy, read_copy

log = logging.getLogger("dualstream.apply_control")

# Kinds of controls that change which rows are retained.
_OTHER_ROWS = ("rollback", "unlearn", "pause")


async def apply_control(
    replica: PositionedState, control: Control, journal: Journal
) -> ControlOutcome:
    """Apply the control that comes next in the journal.

    It runs in a thread because it may take long: a new member learns all retained rows. Raises
    UnreadableCopy and Trimmed; nothing has changed then.
    """
    digest = copy_needed_by(replica, control)
    if digest is not None:
        try:
            replica.fetched = await fetch_copy(replica, digest, journal)
        except UnreadableCopy:
            # If the control record itself was trimmed, the copy went with it: this raises Trimmed.
            await journal.read(replica.id, replica.incarnation, replica.seq, 1)
            raise
    if learns_quarantine(replica, control):
        replica.learned_copy = await _learn_in_copy(replica, journal)
    async with replica.still():
        outcome = await asyncio.to_thread(apply_to, replica, control)
        replica.seq += 1
        replica.certified_at = float("-inf")
        _record(replica, control, outcome)
    return outcome


def _record(replica: PositionedState, control: Control, outcome: ControlOutcome) -> None:
    """Keep the outcome, which is not part of the state, and count a refusal."""
    replica.control_outcomes.keep(replica.seq, control, outcome)
    if outcome.refusal is not None:
        replica.refused_controls += 1
        log.warning(
            "model %r: control %s at seq %d was refused: %s",
            replica.id,
            control.kind,
            replica.seq,
            outcome.refusal,
        )
    elif control.kind in _OTHER_ROWS:
        replica.losses.forget()


async def _learn_in_copy(
    replica: PositionedState, journal: Journal
) -> tuple[ModelState, ServedLosses, int]:
    """Learn the quarantined rows in a copy of the state. Return the copy and the number of rows.

    The replica keeps its state and serves predictions. If the journal cannot be read to the end of
    the quarantine, nothing has changed.
    """
    async with replica.still():
        copy, learned = await run_copy_in_thread(replica.copied), 0
    async for some in read_quarantine(replica, journal):
        learned += await asyncio.to_thread(learn_quarantined, copy, some)
    return copy.state, copy.losses, learned


async def fetch_copy(replica: PositionedState, digest: str, journal: Journal) -> ModelState:
    """Read the state copy with this digest. Raises UnreadableCopy."""
    data = await journal.copy_get(replica.id, replica.incarnation, digest)
    try:
        state, *_ = await run_copy_in_thread(
            read_copy, data, digest, replica.spec, replica.incarnation
        )
    except UnreadableCopy as error:
        raise UnreadableCopy(f"model {replica.id!r} at seq {replica.seq}: {error}") from error
    return state
