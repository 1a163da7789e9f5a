"""Controls of pauses: `pause` is the rollback after a trip, `resume` ends the pause."""

from typing import Annotated, ClassVar, Literal

import msgspec

from dualstream.service.features.guard.quarantine import LearnedCopy, learn_in_copy
from dualstream.service.features.guard.state import Guarding
from dualstream.service.journal.protocol import Journal
from dualstream.service.replica.controls import ControlRefused, Kind, Order
from dualstream.service.replica.copies import fetch_named_copy, why_no_way_back
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.state import PositionedState


class Pause(Order, frozen=True):
    """Rollback after a guard trip: restore the state at `seq`, before the data went wrong.

    Without a digest no such state exists, and learning pauses with the current state.
    """

    kind: ClassVar[str] = "pause"

    since: int
    """Seq at which learning paused."""
    seq: int | None = None
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Resume(Order, frozen=True):
    """End a pause. The quarantined rows are learned first, or dropped."""

    kind: ClassVar[str] = "resume"

    since: int
    """Seq at which learning paused."""
    rows: Literal["learn", "drop"]


def why_not_resumed(guarding: Guarding | None, since: int) -> str | None:
    """Reason why the pause that began at `since` cannot be ended, or None."""
    if guarding is None or guarding.pauses.since != since:
        return f"learning is not paused since seq {since}"
    if guarding.pauses.needs_rollback:
        return "the state was not rolled back to a good one yet"
    return None


def _pause(subject: PositionedState, order: Pause) -> None:
    guarding = subject.parts.find(Guarding)
    if guarding is None or guarding.pauses.since != order.since or guarding.pauses.is_settled:
        raise ControlRefused(f"no pause since seq {order.since} awaits a rollback")
    if order.digest is None or order.seq is None:
        guarding.pauses.settle(order.since)
        return
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise ControlRefused(why_not)
    subject.restore_copy(order.seq)


async def _learn_quarantine(
    subject: PositionedState, order: Resume, journal: Journal
) -> LearnedCopy | None:
    if order.rows == "drop" or why_not_resumed(subject.parts.find(Guarding), order.since):
        return None
    return await learn_in_copy(subject, journal)


def _resume(subject: PositionedState, order: Resume, arrays: Arrays) -> int:
    guarding = subject.parts.find(Guarding)
    if (why_not := why_not_resumed(guarding, order.since)) is not None:
        raise ControlRefused(why_not)
    learned = 0
    if order.rows == "learn":
        copy = subject.prepared
        assert isinstance(copy, LearnedCopy)
        subject.use_state(copy.state)
        learned, guarding = copy.rows, subject.parts.find(Guarding)
    assert guarding is not None
    guarding.resume(subject.seq + 1, order.rows == "learn")
    return learned


PAUSE = Kind(Pause, _pause, prepare=fetch_named_copy, is_of_its_spec=True)
RESUME = Kind(
    Resume,
    take=_resume,
    prepare=_learn_quarantine,
    is_alone=True,
    is_of_its_spec=True,
    keeps_fields=True,
)
