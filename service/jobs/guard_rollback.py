"""What follows a trip of a model's guard: the state goes back to when nothing was wrong yet.

Learning pauses by itself, everywhere at the same record. The rollback is a control that any worker
may append, under a key that lets in one: so whoever holds the model tries, and whoever loads it
when all who did have died.
"""

import asyncio
import logging
import weakref

from dualstream.service.journal.protocol import (
    Journal,
    JournalError,
    ModelChanged,
    ModelRecord,
    Place,
    Trimmed,
    UnknownCopy,
    UnknownModel,
)
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.models.versions import put_away
from dualstream.service.replica.controls import Pause
from dualstream.service.replica.guard import Pauses
from dualstream.service.replica.point_in_time import NotKept, state_at
from dualstream.service.replica.recovery import Forked
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.wire.problems import Problem

log = logging.getLogger("dualstream.pausing")

RETRY_S = 1.0
SETTLED_S = 5.0
"""How long whoever resumes a model waits for its rollback."""


class GuardRollback(Job):
    """The rollbacks that the guard of one model asks for, in this process."""

    def __init__(self, model: Model) -> None:
        self._whose = weakref.ref(model)
        self._replica = model.replica
        self._journal = model.deps.journal
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """A model with a guard looks at once whether it has tripped."""
        return since == 0 and replica.guarding is not None

    @property
    def pauses(self) -> Pauses | None:
        """Of the model as it stands; None without a guard."""
        guarding = self._replica.guarding
        return None if guarding is None else guarding.pauses

    @property
    def is_busy(self) -> bool:
        """Whether a rollback is under way."""
        return self._task is not None

    def on_advance(self) -> None:
        """Called between two groups: begin what is due."""
        pauses = self.pauses
        if pauses is not None and pauses.needs_rollback and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def settled(self) -> None:
        """Wait until no rollback is due. Raises Problem 503 where that takes too long."""
        self.on_advance()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=SETTLED_S)
        pauses = self.pauses
        if pauses is not None and pauses.needs_rollback:
            detail = "the state is still going back to a good one: ask again"
            raise Problem(503, "still-going-back", detail, retry_after_s=1)

    def stop(self) -> None:
        """Leave what is not done to whoever holds the model next."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """As `stop`, and wait for it."""
        if self._task is not None:
            self.stop()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._due() is not None:
                if not await self._try():
                    return
                if self._due() is not None:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    def _due(self) -> Pauses | None:
        """The pauses of the model as it stands, if a rollback is due."""
        pauses = self.pauses
        return pauses if pauses is not None and pauses.needs_rollback else None

    async def _try(self) -> bool:
        """Let the state go back; False where there is nobody to do it for any more."""
        model = self._whose()
        if model is None:
            return False
        try:
            await self._go_back(model)
        except (ModelChanged, UnknownModel):
            return False
        except (JournalError, Problem, UnknownCopy, Forked, Trimmed) as error:
            log.warning("model %r: its rollback is put off: %s", model.record.id, error)
        except Exception:
            log.exception("model %r: its rollback failed", model.record.id)
        return True

    async def _go_back(self, model: Model) -> None:
        """Append the rollback, unless none is due by now.

        It is made of the journal up to where the model stands: where that is lost meanwhile, and
        with it perhaps the pause, it does not enter, and does not use up the key of the next one.
        """
        await model.refresh()
        held = await model.place()
        pauses = self._due()
        if pauses is None:
            return
        since, calm_seq = pauses.since, pauses.held_from
        record = await self._journal.get(model.record.id)
        if record.incarnation != model.record.incarnation:
            raise ModelChanged(record.id)
        good = await _last_good(self._journal, record, calm_seq, since)
        if good is None:
            await self._submit(model, Pause(since), held)
            return
        copy = await asyncio.to_thread(good.capture().as_copy)
        async with put_away(model, self._journal, copy) as away:
            away.is_named = await self._submit(model, Pause(since, copy.seq, away.digest), held)

    async def _submit(self, model: Model, order: Pause, held: Place) -> bool:
        """Append this rollback; False where there is one already."""
        if self._due() is None:
            return False
        # The first one wins, whatever it names.
        key = make_key(KeyKind.PAUSE, str(order.since))
        receipt = await model.submit(ControlRequest.of(order, key, b"pause", held=held))
        is_new = not receipt.placed.duplicate
        if is_new:
            where_to = "where it stands" if order.seq is None else f"at seq {order.seq}"
            log.warning(
                "model %r: learning is paused since seq %d, the state is the one %s",
                model.record.id,
                order.since,
                where_to,
            )
        return is_new


async def _last_good(
    journal: Journal, record: ModelRecord, calm_seq: int, since: int
) -> Replica | None:
    """The state at the last record where nothing was wrong, or the first kept after it.

    None where none before the pause is kept. Raises Forked, Trimmed.
    """
    try:
        return await state_at(journal, record, calm_seq)
    except NotKept as error:
        first = error.first
    if not calm_seq < first < since:
        return None
    try:
        return await state_at(journal, record, first)
    except NotKept:
        return None
