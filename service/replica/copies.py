"""Copies of whole states: reading one, whether one may come back, and the control `rollback`."""

from typing import Annotated, Any, ClassVar

import msgspec

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal.protocol import Journal
from dualstream.service.replica.controls import ControlRefused, Kind, Order
from dualstream.service.replica.state import ModelState, PositionedState, UnreadableCopy, read_copy


class Rollback(Order, frozen=True):
    """Replace the state by the copy with this digest, taken at `seq`. The journal continues."""

    kind: ClassVar[str] = "rollback"

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    seq: int
    version: str | None = None
    """Name of the version that the client requested."""


async def fetch_named_copy(
    subject: PositionedState, order: Any, journal: Journal
) -> ModelState | None:
    """The copy that a control restores; None if it is refused. Raises UnreadableCopy, Trimmed."""
    if order.digest is None or why_no_way_back(subject, order.seq) is not None:
        return None
    try:
        return await fetch_copy(subject, order.digest, journal)
    except UnreadableCopy:
        # If the control record itself was trimmed, the copy went with it: this raises Trimmed.
        await journal.read(subject.id, subject.incarnation, subject.seq, 1)
        raise


async def fetch_copy(subject: PositionedState, digest: str, journal: Journal) -> ModelState:
    """Read the state copy with this digest. Raises UnreadableCopy."""
    data = await journal.copy_get(subject.id, subject.incarnation, digest)
    try:
        state, *_ = await run_copy_in_thread(
            read_copy, data, digest, subject.spec, subject.incarnation, subject.make_parts
        )
    except UnreadableCopy as error:
        raise UnreadableCopy(f"model {subject.id!r} at seq {subject.seq}: {error}") from error
    return state


def why_no_way_back(subject: PositionedState, seq: int) -> str | None:
    """Reason why the state at `seq` cannot be restored, or None.

    If `seq` is beyond the journal's end, the journal has lost the records of that state. Other
    records will get their seqs.
    """
    if seq > subject.seq:
        return f"cannot go back to seq {seq}: the model is only at seq {subject.seq}"
    return why_forgotten(subject, seq)


def why_forgotten(subject: PositionedState, seq: int) -> str | None:
    """Reason why the state at `seq` must stay forgotten: a sample was unlearned after it."""
    since = subject.parts.forgotten_seq
    if seq >= since:
        return None
    return f"cannot go back to seq {seq}: a sample was unlearned at seq {since}"


def _rollback(subject: PositionedState, order: Rollback) -> None:
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise ControlRefused(why_not)
    subject.restore_copy(order.seq)


ROLLBACK = Kind(
    Rollback, _rollback, prepare=fetch_named_copy, is_of_its_spec=True, keeps_fields=True
)
