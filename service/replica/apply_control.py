"""Apply one control record to a replica: fetch what the control names, then execute it."""

import asyncio
import logging

from dualstream.service.concurrency import ensure_task
from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import Kind, Kinds, apply_to, read_control
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.state import PositionedState

log = logging.getLogger("dualstream.apply_control")


async def apply_control(
    replica: PositionedState, kinds: Kinds, control: Control, journal: Journal
) -> ControlOutcome:
    """Apply the control that comes next in the journal.

    It runs in a thread because it may take long: a new member learns all retained rows. Raises
    UnreadableCopy and Trimmed; nothing has changed then.
    """
    await ensure_task()
    kind, order = read_control(replica, kinds, control)
    if kind.prepare is not None:
        replica.prepared = await kind.prepare(replica, order, journal)
    async with replica.still():
        outcome = await asyncio.to_thread(apply_to, replica, kind, order, control.arrays)
        replica.prepared = None
        replica.seq += 1
        replica.certified_at = float("-inf")
        _record(replica, kind, control, outcome)
    return outcome


def _record(
    replica: PositionedState, kind: Kind, control: Control, outcome: ControlOutcome
) -> None:
    """Keep the outcome, which is not part of the state, and count a refusal."""
    replica.control_outcomes.keep(replica.seq, control, outcome, kind.keeps_fields)
    if outcome.refusal is not None:
        replica.refused_controls += 1
        log.warning(
            "model %r: control %s at seq %d was refused: %s",
            replica.id,
            control.kind,
            replica.seq,
            outcome.refusal,
        )
