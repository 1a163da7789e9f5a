"""Guard rollback: after a guard pauses a model, its state goes back to the last good one.

The pause itself is part of the state: every replica pauses at the same record. The rollback is a
control that any worker may append, under a key that is accepted once. So each worker that has the
model in memory tries, and so does each worker that loads it later, in case the others have died.
"""

import asyncio
import logging
import weakref

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.features.guard.controls import Pause
from dualstream.service.features.guard.state import Guarding, Pauses
from dualstream.service.journal.protocol import (
    Journal,
    JournalError,
    LogPosition,
    ModelChanged,
    ModelRecord,
    Trimmed,
    UnknownCopy,
    UnknownModel,
)
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.models.versions import staged_copy
from dualstream.service.replica.features import Features
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.point_in_time import NotKept, state_at
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from dualstream.wire.problem_json import Problem

log = logging.getLogger("dualstream.guard_rollback")

RETRY_S = 1.0
SETTLED_S = 5.0
"""How long a resume waits for the rollback."""


class GuardRollback(Job):
    """Rollbacks of one model after its guard has paused learning."""

    def __init__(self, model: Model) -> None:
        self._model_ref = weakref.ref(model)
        self._replica = model.replica
        self._journal = model.deps.journal

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """A loaded model with a guard checks at once whether it is paused."""
        return since == 0 and replica.parts.find(Guarding) is not None

    @property
    def pauses(self) -> Pauses | None:
        """The pauses in the present state. None without a guard."""
        guarding = self._replica.parts.find(Guarding)
        return None if guarding is None else guarding.pauses

    def _due(self) -> Pauses | None:
        """The pauses if a rollback is due, else None."""
        pauses = self.pauses
        return pauses if pauses is not None and pauses.needs_rollback else None

    def on_advance(self) -> None:
        """Called between two groups: start a rollback if one is due."""
        if self._due() is not None and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def settled(self) -> None:
        """Wait until no rollback is due. Raises Problem 503 after SETTLED_S."""
        self.on_advance()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=SETTLED_S)
        if self._due() is not None:
            detail = "the rollback to a good state is not done yet; retry"
            raise Problem(503, "still-going-back", detail, retry_after_s=1)

    async def _run(self) -> None:
        try:
            while self._due() is not None:
                if not await self._try():
                    return
                if self._due() is not None:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _try(self) -> bool:
        """Try to append a rollback. False if the model is gone."""
        model = self._model_ref()
        if model is None:
            return False
        try:
            await self._go_back(model)
        except (ModelChanged, UnknownModel):
            return False
        except (JournalError, Problem, UnknownCopy, Forked, Trimmed) as error:
            log.warning("model %r: the rollback is retried: %s", model.record.id, error)
        except Exception:
            log.exception("model %r: the guard's rollback failed", model.record.id)
        return True

    async def _go_back(self, model: Model) -> None:
        """Append the rollback if it is still due.

        It is computed from the journal up to the present position. If the journal loses
        that position, and perhaps the pause, the append is refused and does not use up the
        key of the next rollback.
        """
        await model.refresh()
        position = await model.position()
        pauses = self._due()
        if pauses is None:
            return
        since, calm_seq = pauses.since, pauses.held_from
        record = await self._journal.get(model.record.id)
        if record.incarnation != model.record.incarnation:
            raise ModelChanged(record.id)
        good = await _last_good(self._replica.features, self._journal, record, calm_seq, since)
        if good is None:
            await self._submit(model, Pause(since), position)
            return
        copy = await run_copy_in_thread(lambda: good.capture().as_copy())
        async with staged_copy(model, self._journal, copy) as staged:
            staged.is_named = await self._submit(
                model, Pause(since, copy.seq, staged.digest), position
            )

    async def _submit(self, model: Model, order: Pause, position: LogPosition) -> bool:
        """Append this rollback. False if there is one already."""
        if self._due() is None:
            return False
        # The first control with this key wins.
        key = make_key(KeyKind.PAUSE, str(order.since))
        receipt = await model.submit(ControlRequest.of(order, key, b"pause", held=position))
        is_new = not receipt.position.duplicate
        if is_new:
            where_to = "unchanged" if order.seq is None else f"the one at seq {order.seq}"
            log.warning(
                "model %r: learning is paused since seq %d, the state is %s",
                model.record.id,
                order.since,
                where_to,
            )
        return is_new


async def _last_good(
    features: Features, journal: Journal, record: ModelRecord, calm_seq: int, since: int
) -> Replica | None:
    """The state at the last good record, or at the first kept record after it.

    None if no state before the pause is kept. Raises Forked, Trimmed.
    """
    try:
        return await state_at(features, journal, record, calm_seq)
    except NotKept as error:
        first = error.first
    if not calm_seq < first < since:
        return None
    try:
        return await state_at(features, journal, record, first)
    except NotKept:
        return None
