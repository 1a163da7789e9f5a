"""Views of a replica's state: reads for answers, scrapes and copies, in a thread if they take long.

A view of a model of many classes or features takes up to seconds. In the event loop it delays every
other request of the process.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from dualstream.service.concurrency import run_to_completion, run_view_in_thread
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.state import Captured, PositionedState
from dualstream.solvers import Certificate
from dualstream.solvers.protocols import member_learner
from dualstream.solvers.protocols.served_form import classes_of

T = TypeVar("T")

LARGE_BYTES = 2 << 20
"""Views of a smaller state take a millisecond or two, in the event loop."""
MANY_CLASSES = 32
"""Classes of a large state, whatever its bytes: a view takes about 0.1 ms for each class."""


class ViewedState(PositionedState):
    """A state that answers requests while it learns. Subclasses set `_clock`."""

    is_forked = False
    """The journal may not continue from here. Nothing is served until that is checked."""
    certificate: Certificate | None = None
    is_large = False
    """Has the state more than LARGE_BYTES or MANY_CLASSES, as last measured?"""
    member_certificates: dict[str, Certificate]
    _clock: Clock
    _nonzeros = 0
    _nonzeros_of: tuple[int, str] | None = None
    """Log position at which the served weights were last counted."""
    _nonzeros_at = float("-inf")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """As `still`, for responses to clients.

        Raises JournalUnavailable while the replica is forked. The check belongs here because a
        request may find the model before the fork is known.
        """
        async with self.still():
            if self.is_forked:
                raise JournalUnavailable(f"model {self.id!r} is being rebuilt from its journal")
            yield

    def measured(self, size: int) -> None:
        """Note the bytes of the state."""
        self.is_large = size > LARGE_BYTES or len(classes_of(self.learner)) > MANY_CLASSES

    async def view(self, read: Callable[[], T]) -> T:
        """Return what `read` returns on the served state, which belongs to one `seq`.

        Runs in a thread if the state is large. It ends before the next rows are learned, even if
        the caller is cancelled. Raises JournalUnavailable while the replica is forked.
        """
        if not self.is_large:
            async with self.serving():
                if not self.is_large:  # rows that were learned before the lock was free may have
                    return read()
        return await run_to_completion(self._view_in_thread(read))

    async def _view_in_thread(self, read: Callable[[], T]) -> T:
        # Not the thread of rows: rows of other models would wait there.
        async with self.serving():
            return await run_view_in_thread(read)

    async def captured(self) -> Captured:
        """As `capture`. Call it between two groups."""
        return await self.view(self.capture)

    async def certify(self, max_age_s: float = 0.0) -> Certificate | None:
        """Return the certificate of the served weights, at most `max_age_s` old.

        None without a dual. Computes the certificates of the members, too. Raises
        JournalUnavailable while the replica is forked.
        """
        async with self.serving():
            if self._clock.now() - self.certified_at <= max_age_s:
                return self.certificate
        return await self.view(self.certified)

    def certified(self) -> Certificate | None:
        """As `certify` with the current state. Call it in a view."""
        self.certificate = self.learner.certificate()
        self.member_certificates = member_learner.certificates_of_members(self.learner)
        self.certified_at = self._clock.now()
        return self.certificate

    def nonzeros(self, max_age_s: float = 0.0) -> int:
        """Return the number of served weights. Call it in a view.

        For a large state, a count that is at most `max_age_s` old is not repeated.
        """
        position, now = (self.seq, self.chain), self._clock.now()
        may_be_old = self.is_large and now - self._nonzeros_at <= max_age_s
        if self._nonzeros_of is None or not (may_be_old or self._nonzeros_of == position):
            self._nonzeros = self.learner.nonzeros
            self._nonzeros_of, self._nonzeros_at = position, now
        return self._nonzeros
