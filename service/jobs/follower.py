"""Follower: applies what other processes append, and drops models that they delete or replace.

One subscription to the store's announcements serves all models. Every second the follower also
compares the heads of all models in memory with the store's. It skips models that were at their
head when the store's revision was the same. The same poll verifies the store's numeric identity.
"""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from dualstream.service.journal import protocol
from dualstream.service.journal.record import RecordError

if TYPE_CHECKING:
    from dualstream.service.models.model import Model
    from dualstream.service.models.registry import ModelRegistry

log = logging.getLogger("dualstream.follower")

SWEEP_S = 1.0
WRITING_SWEEPS = 10
RETRY_S = 0.5
# Delay of a pull. Own appends are applied within it, and several appends of other processes are
# applied by one kernel call.
PAUSE_S = 0.02
HEADS_PER_QUERY = 50
"""Heads per query to the store. Requests wait while a query is checked."""
# Largest share of the time that polling takes.
POLL_SHARE = 0.1


class Follower:
    """Keeps the models in memory up to date with the store."""

    def __init__(self, registry: "ModelRegistry", journal: protocol.Journal) -> None:
        self._registry = registry
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
                async with aclosing(self._journal.announcements()) as announcements:
                    async for announced in announcements:
                        if announced.model is not None:
                            self._on_announcement(announced.model, announced.seq)
                            continue
                        began = time.monotonic()
                        await self._check_heads()
                        await asyncio.sleep((time.monotonic() - began) / POLL_SHARE)
            except Exception as error:
                self._log_once(error)
            await asyncio.sleep(RETRY_S)

    async def _sweep(self) -> None:
        sweeps = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            began = time.monotonic()
            try:
                await self._check_heads()
                await self._registry.store_identity.verify()
                # A write wakes all followers, so a healthy store is written to now and then.
                sweeps += 1
                is_away = self._registry.store_status.trouble is not None
                await self._journal.ping(writes=is_away or sweeps % WRITING_SWEEPS == 0)
                self._registry.store_status.reached(began)
                self._trouble = None
            except Exception as error:
                self._registry.store_status.failed(error)
                self._log_once(error)

    def _log_once(self, error: Exception) -> None:
        """Log an error once until it changes."""
        if str(error) != self._trouble:
            trace = None if isinstance(error, protocol.JournalError) else error
            log.warning("cannot follow the store: %s", error, exc_info=trace)
        self._trouble = str(error)

    def _on_announcement(self, model_id: str, seq: int) -> None:
        model = self._registry.find(model_id)
        if model is not None and seq > model.replica.seq:
            model.lag.observe(seq)
            self._pull(model, seq)

    async def _check_heads(self) -> None:
        """Compare each model with its head in the store. Raises JournalUnavailable."""
        requested_at = time.monotonic()
        revision = await self._journal.revision()
        models: list[Model] = []
        for model in self._registry:
            state = revision, model.replica.seq
            if model.lag.confirmed == state and not model.replica.is_forked:
                model.lag.fresh_at = max(model.lag.fresh_at, requested_at)
            else:
                models.append(model)
        trouble: protocol.JournalUnavailable | None = None
        for at in range(0, len(models), HEADS_PER_QUERY):
            trouble = (
                await self._check_batch(models[at : at + HEADS_PER_QUERY], revision) or trouble
            )
        if trouble is not None:
            raise trouble

    async def _check_batch(
        self, some: "list[Model]", revision: protocol.Revision | None
    ) -> protocol.JournalUnavailable | None:
        """Compare some models with their heads. Returns why some heads could not be read.

        Raises JournalUnavailable.
        """
        models = [(model, model.replica.seq) for model in some if self._is_current(model)]
        requested_at = time.monotonic()
        heads = await self._journal.heads([model.record.id for model, _ in models])
        trouble: protocol.JournalUnavailable | None = None
        for (model, seq_before), head in zip(models, heads, strict=True):
            if not self._is_current(model):
                continue  # it left memory, or was made again here, while the heads were read
            if isinstance(head, protocol.JournalUnavailable):
                trouble = head
                continue
            if head is None or head.incarnation != model.replica.incarnation:
                log.info("model %r was deleted or replaced by another process", model.record.id)
                self._registry.forget(model)
                if head is None:
                    self._registry.forget_gone(model.record.id)
                continue
            model.lag.correct(head.seq, requested_at)
            if head.seq > model.replica.seq:
                self._on_announcement(model.record.id, head.seq)
            elif model.replica.is_forked or _may_be_forked(model, seq_before, head):
                model.committer.suspect()
                self._pull(model, None)
            else:
                model.lag.fresh_at = max(model.lag.fresh_at, requested_at)
                if revision is not None and head.chain == model.replica.chain:
                    model.lag.confirmed = revision, head.seq
        return trouble

    def _is_current(self, model: "Model") -> bool:
        return self._registry.find(model.record.id) is model

    def _pull(self, model: "Model", seq: int | None) -> None:
        """Start a task that applies records up to `seq`. None: check for a fork."""
        if model not in self._pulls:
            task = self._pulls[model] = asyncio.create_task(self._catch_up(model, seq))
            task.add_done_callback(lambda _: self._pulls.pop(model, None))

    async def _catch_up(self, model: "Model", seq: int | None) -> None:
        try:
            await asyncio.sleep(PAUSE_S)
            if seq is not None:
                seq = max(seq, model.lag.head())
            await model.refresh(seq)
            while (
                self._is_current(model)
                and model.lag.at(model.replica.seq).records
                and model.lag.head() != seq
            ):
                await asyncio.sleep(PAUSE_S)
                seq = model.lag.head()
                await model.refresh(seq)
        except (protocol.ModelChanged, protocol.UnknownModel, protocol.JournalUnavailable):
            pass  # the model is dropped, or the next poll tries again and logs the error
        except RecordError:
            pass  # the model is set aside, which is logged
        except Exception:
            log.exception("model %r: cannot apply new records of its journal", model.record.id)


def _may_be_forked(model: "Model", seq_before: int, head: protocol.Head) -> bool:
    """Is the head behind the replica, or different at the same seq?

    `seq_before` is the seq of the replica before the head was read.
    """
    replica = model.replica
    if head.seq < seq_before:
        return True
    # A thread that has learned the last row of an entry leaves the chain to the event loop.
    is_inside_entry = replica.seq != replica.lineage.end
    is_same_seq = head.seq == seq_before == replica.seq
    return is_same_seq and head.chain != replica.chain and not is_inside_entry
