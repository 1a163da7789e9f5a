"""Keeps the models of this process up with what other processes append, delete and make anew.

One subscription to the store's announcements for all models, and each second a look at the heads
of those held, for what was not announced. Where the store tells that nobody has committed anything
since a model was found at its head, it still stands there. With it goes a look at the store's
numeric identity.
"""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from dualstream.service.journal.protocol import (
    Head,
    Journal,
    JournalError,
    JournalUnavailable,
    ModelChanged,
    Revision,
    UnknownModel,
)
from dualstream.service.journal.record import RecordError

if TYPE_CHECKING:
    from dualstream.service.models.model import Model
    from dualstream.service.models.registry import ModelRegistry

log = logging.getLogger("dualstream.follower")

SWEEP_S = 1.0
RETRY_S = 0.5
# An own append is announced about when it is answered: in so long it is applied. What others have
# appended meanwhile is read and learned at once, by one kernel call.
PAUSE_S = 0.02
LOOKED_AT = 50
"""So many heads are asked for at once: requests wait for so many to be looked at."""
# Of the time, no more than this share goes into looking at heads.
LOOKING_SHARE = 0.1


class Follower:
    """Pulls what is behind, and lets go of models that are another one's now."""

    def __init__(self, catalog: "ModelRegistry", journal: Journal) -> None:
        self._catalog = catalog
        self._journal = journal
        self._pulls: dict[Model, asyncio.Task[None]] = {}
        self._trouble: str | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await asyncio.gather(self._listen(), self._sweep())
        finally:
            if self._pulls:
                await asyncio.wait(self._pulls.values())

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._journal.announcements()) as told:
                    async for announced in told:
                        if announced.model is not None:
                            self._hear(announced.model, announced.seq)
                            continue
                        began = time.monotonic()
                        await self._look()
                        await asyncio.sleep((time.monotonic() - began) / LOOKING_SHARE)
            except Exception as error:
                self._say(error)
            await asyncio.sleep(RETRY_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            began = time.monotonic()
            try:
                await self._look()
                await self._catalog.identity.look()
                await self._journal.ping()
                self._catalog.contact.reached(began)
                self._trouble = None
            except Exception as error:
                self._catalog.contact.failed(error)
                self._say(error)

    def _say(self, error: Exception) -> None:
        """Once, as long as it goes on: learning says for itself that the store is away."""
        if str(error) != self._trouble:
            trace = None if isinstance(error, JournalError) else error
            log.warning("cannot follow the store: %s", error, exc_info=trace)
        self._trouble = str(error)

    def _hear(self, model_id: str, seq: int) -> None:
        model = self._catalog.find(model_id)
        if model is not None and seq > model.replica.seq:
            model.lag.hear(seq)
            self._pull(model, seq)

    async def _look(self) -> None:
        """Hold each model against its head, some at a time. Raises JournalUnavailable."""
        asked_at = time.monotonic()
        revision = await self._journal.revision()
        models: list[Model] = []
        for model in self._catalog:
            stands = revision is not None and model.lag.stood == (revision, model.replica.seq)
            if stands and not model.replica.is_forked:
                model.lag.fresh_at = max(model.lag.fresh_at, asked_at)
            else:
                models.append(model)
        trouble: JournalUnavailable | None = None
        for at in range(0, len(models), LOOKED_AT):
            trouble = await self._look_at(models[at : at + LOOKED_AT], revision) or trouble
        if trouble is not None:
            raise trouble

    async def _look_at(
        self, some: "list[Model]", revision: Revision | None
    ) -> JournalUnavailable | None:
        """What kept some of their heads from being told. Raises JournalUnavailable."""
        models = [(model, model.replica.seq) for model in some if self._is_held(model)]
        asked_at = time.monotonic()
        heads = await self._journal.heads([model.record.id for model, _ in models])
        trouble: JournalUnavailable | None = None
        for (model, seq_before), head in zip(models, heads, strict=True):
            if isinstance(head, JournalUnavailable):
                trouble = head
                continue
            if head is None or head.incarnation != model.replica.incarnation:
                log.info("model %r was deleted or made again elsewhere", model.record.id)
                self._catalog.forget(model)
                if head is None:
                    self._catalog.forget_gone(model.record.id)
                continue
            model.lag.correct(head.seq, asked_at)
            if head.seq > model.replica.seq:
                self._hear(model.record.id, head.seq)
            elif model.replica.is_forked or _may_be_forked(model, seq_before, head):
                model.committer.suspect()
                self._pull(model, None)
            else:
                model.lag.fresh_at = max(model.lag.fresh_at, asked_at)
                if revision is not None and head.chain == model.replica.chain:
                    model.lag.stood = revision, head.seq
        return trouble

    def _is_held(self, model: "Model") -> bool:
        return self._catalog.find(model.record.id) is model

    def _pull(self, model: "Model", seq: int | None) -> None:
        """Bring the model to `seq`, or without one hold it against the journal, in a task."""
        if model not in self._pulls:
            task = self._pulls[model] = asyncio.create_task(self._bring(model, seq))
            task.add_done_callback(lambda _: self._pulls.pop(model, None))

    async def _bring(self, model: "Model", seq: int | None) -> None:
        try:
            await asyncio.sleep(PAUSE_S)
            if seq is not None:
                seq = max(seq, model.lag.head())
            await model.refresh(seq)
            while (
                self._is_held(model)
                and model.lag.at(model.replica.seq).records
                and model.lag.head() != seq
            ):
                await asyncio.sleep(PAUSE_S)
                seq = model.lag.head()
                await model.refresh(seq)
        except (ModelChanged, UnknownModel, JournalUnavailable):
            pass  # it is let go of; or the next look tries again, and says so
        except RecordError:
            pass  # it is set aside, which has said so
        except Exception:
            log.exception("model %r cannot be brought up with its journal", model.record.id)


def _may_be_forked(model: "Model", seq_before: int, head: Head) -> bool:
    """Whether the head says less or else than the replica did before the head was read."""
    if head.seq < seq_before:
        return True
    return head.seq == seq_before == model.replica.seq and head.chain != model.replica.chain
