"""Copies of whole states, which rollbacks restore: reading one, and whether one may come back."""

from typing import Any

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal.protocol import Journal
from dualstream.service.replica.state import ModelState, PositionedState, UnreadableCopy, read_copy


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
