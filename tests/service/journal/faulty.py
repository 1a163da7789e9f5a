"""Journal with injected faults: lost answers, late answers and refusals."""

import asyncio
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    Journal,
    JournalUnavailable,
    OutcomeUnknown,
)


class Fault(Enum):
    """Fault of one append."""

    NONE = "none"
    REFUSED = "refused"
    """Nothing is done: JournalUnavailable."""
    LOST = "lost"
    """Nothing is done; OutcomeUnknown."""
    UNANSWERED = "unanswered"
    """The append is done; OutcomeUnknown."""
    LATE = "late"
    """The append is done at once and answered late."""
    DELAYED = "delayed"
    """The append is done late."""


class FaultyJournal:
    """Wraps a journal; each append has the next fault, then none."""

    def __init__(self, journal: Journal, faults: Iterable[Fault] = (), delay_s: float = 0.01):
        self.journal = journal
        self.faults = iter(faults)
        self.delay_s = delay_s
        self.may_go_on: asyncio.Event | None = None
        """What a late or delayed append waits for, in place of `delay_s`."""

    async def append(self, request: AppendRequest) -> Appended:
        fault = next(self.faults, Fault.NONE)
        if fault is Fault.REFUSED:
            raise JournalUnavailable("planted: refused")
        if fault is Fault.LOST:
            raise OutcomeUnknown("planted: lost on the way there")
        if fault is Fault.DELAYED:
            await self._delay()
        appended = await self.journal.append(request)
        if fault is Fault.UNANSWERED:
            raise OutcomeUnknown("planted: lost on the way back")
        if fault is Fault.LATE:
            await self._delay()
        return appended

    async def _delay(self) -> None:
        if self.may_go_on is None:
            await asyncio.sleep(self.delay_s)
        else:
            await self.may_go_on.wait()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.journal, name)
