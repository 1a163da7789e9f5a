"""ModelRegistry: the models of one process. It loads from the journal what is not in memory."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from dualstream.service.codecs.row_schema import DEFAULT_LIMITS
from dualstream.service.concurrency import background_task, run_long_in_thread
from dualstream.service.journal import protocol
from dualstream.service.journal.record import RecordError
from dualstream.service.models.cache import ModelCache, Pin
from dualstream.service.models.compiled_specs import CompiledSpec, CompiledSpecs
from dualstream.service.models.deps import Counters, ModelDeps
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.models.problems import unavailable, unknown_model, unreadable
from dualstream.service.models.store_status import StoreIdentity, StoreStatus
from dualstream.service.models.waiting_requests import WaitingRequests
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.features import Features
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS
from dualstream.service.replica.fork_detection import KEPT_OUTSIDE, Forked, Lineage
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import DamagedSpec, check_spec
from dualstream.service.settings import Settings
from dualstream.wire.problem_json import Problem, quoted
from dualstream.wire.schemas import MODEL_ID, MODEL_ID_RULE

log = logging.getLogger("dualstream.loader")

REACH_S = 2.0
"""How long a prediction waits for its `min_seq`."""
UNREADABLE_S = 10.0
"""Time after which a request tries an unreadable model again."""
LOADS_AT_ONCE = 8
"""Concurrent loads. Each takes the event loop for a millisecond or more."""
SMALL_BYTES = 8 << 20
"""A larger learner is made in a thread."""
MAX_LINEAGES = 10_000
"""Kept lineages of models that left memory, about half a kilobyte each."""
MAX_RECREATIONS = 3
"""Times that a model may be created again while it is loaded, before the load fails."""


class Unreadable(NamedTuple):
    """Why a model cannot be served, and when a request may try to load it again."""

    reason: str
    retry_at: float


class KeptLineage(NamedTuple):
    """Lineage of a model that left memory: its end, or all of it if it was forked."""

    incarnation: str
    lineage: Lineage
    is_forked: bool


def check_model_id(model_id: str) -> None:
    """Raise Problem 422 if no model can have this id."""
    if not MODEL_ID.fullmatch(model_id):
        raise Problem(422, "invalid-name", f"{MODEL_ID_RULE}; got {quoted(model_id)}")


class ModelRegistry:
    """Models by id. A model that is not in memory is loaded.

    unreadable  models that could not be loaded
    """

    def __init__(
        self,
        journal: protocol.Journal,
        settings: Settings,
        counters: Counters,
        features: Features,
        jobs: Sequence[type[Job]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.counters = counters
        self.store_status = StoreStatus(journal)
        self.store_identity = StoreIdentity(journal)
        self.waiting = WaitingRequests(settings.request_timeout_s, clock.now)
        self.deps = ModelDeps(
            journal,
            settings,
            counters,
            clock,
            self.store_identity,
            self.store_status,
            self.waiting,
            features,
            jobs,
        )
        self.cache = ModelCache(settings.models_bytes, self._on_eviction)
        self.specs = CompiledSpecs(DEFAULT_LIMITS, features)
        self.unreadable: dict[str, Unreadable] = {}
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        # Loads under way. A load whose task is not here any more is not used.
        self._loads: dict[str, asyncio.Task[Model]] = {}
        self._lineages: OrderedDict[str, KeptLineage] = OrderedDict()

    def __iter__(self) -> Iterator[Model]:
        return iter(self.cache)

    def __len__(self) -> int:
        return len(self.cache)

    # -- look-up ---------------------------------------------------------------------------------

    def pinned(self, model_id: str) -> Pin:
        """Context manager: the model with this id is not evicted."""
        return Pin(self.cache, model_id)

    def find(self, model_id: str) -> Model | None:
        """The model if it is in memory, in any state. It does not count as a use."""
        return self.cache.find(model_id)

    async def get(self, model_id: str) -> Model:
        """The model, loaded from the journal if needed. Raises Problem 404, 422, 503."""
        model = self.cache.use(model_id)
        if model is None:
            return await self._loaded(model_id)
        if model.replica.is_forked:
            raise unavailable(f"model {model_id!r} is being rebuilt from its journal")
        return model

    async def reach(self, model_id: str, seq: int) -> Model:
        """The model once its replica has reached `seq`.

        Raises Problem 503 if the journal ends before `seq`, or after REACH_S.
        """
        model = await self.get(model_id)
        pulling = background_task(model.refresh(seq))
        # Not cancelled after the timeout: that would interrupt an apply.
        done, _ = await asyncio.wait([pulling], timeout=REACH_S)
        if not done:
            detail = f"the replica of {model_id!r} is at seq {model.replica.seq}, not yet at {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        try:
            pulling.result()
        except (protocol.ModelChanged, protocol.UnknownModel):
            model = await self.get(model_id)
        if model.replica.seq < seq:
            detail = f"the journal of {model_id!r} ends at seq {model.replica.seq}, before {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        return model

    # -- loading ---------------------------------------------------------------------------------

    async def _loaded(self, model_id: str) -> Model:
        """Load a model that is not in memory, or wait for the load under way."""
        check_model_id(model_id)
        refused = self.unreadable.get(model_id)
        if refused is not None and time.monotonic() < refused.retry_at:
            raise unreadable(refused.reason)
        # No variable holds the task: its error would refer to itself by this frame.
        if model_id not in self._loads:
            self._loads[model_id] = background_task(self._load(model_id))
        return await asyncio.shield(self._loads[model_id])

    async def _load(self, model_id: str) -> Model:
        """Load a model into the cache. Runs in the task of its id in `_loads`."""
        try:
            record, replica, spec = await self._recovered_last(model_id)
        except protocol.UnknownModel:
            if self._is_loading_here(model_id):
                self.forget_gone(model_id)
            raise unknown_model(model_id) from None
        except protocol.JournalError:
            raise
        except Exception as error:
            raise self.set_aside(model_id, error) from error
        finally:
            is_current = self._is_loading_here(model_id)
            if is_current:
                del self._loads[model_id]
        if not is_current:
            # The model was replaced. Using this one would put two replicas of it into use.
            return await self.get(model_id)
        self.unreadable.pop(model_id, None)
        model = Model(self.deps, record, replica, spec, self._on_failure, self.cache.on_resize)
        kept = self._lineages.pop(model_id, None)
        if kept is not None and kept.incarnation == record.incarnation:
            model.count_lost_since(kept.lineage)
            if kept.is_forked:
                replica.lineage = replica.lineage.trimmed()
        self.cache.put(model)
        return model

    def _is_loading_here(self, model_id: str) -> bool:
        """Is this task the load of the model that has the id now?"""
        return self._loads.get(model_id) is asyncio.current_task()

    async def _recovered_last(
        self, model_id: str
    ) -> tuple[protocol.ModelRecord, Replica, CompiledSpec]:
        """As `_recovered`, of the last of the models that were created with this id."""
        for _ in range(MAX_RECREATIONS):
            with suppress(protocol.ModelChanged):
                return await self._recovered(model_id)
        return await self._recovered(model_id)

    async def _recovered(self, model_id: str) -> tuple[protocol.ModelRecord, Replica, CompiledSpec]:
        """The record of a model, a replica at the journal's end, and the specification."""
        deps = self.deps
        async with self._load_slots:
            began = deps.clock.now()
            base = await deps.journal.base(model_id)
            record = base.record
            check_spec(record)
            spec = await self.specs.get(record.spec)
            learner = spec.take_learner()
            new = record, deps.features, MAX_KEPT_ANSWERS, deps.clock, spec.ratios, None, learner
            is_quick = learner is not None or spec.first_bytes <= SMALL_BYTES
            replica = Replica(*new) if is_quick else await run_long_in_thread(Replica, *new)
            kept = self._lineages.get(model_id)
            if kept is not None and kept.is_forked and kept.incarnation == record.incarnation:
                replica.lineage = Lineage(kept=None)
            await recover(replica, deps.journal, deps.settings.adopt, base)
            spec.ratios = replica.ratios
            deps.counters.saw_load(deps.clock.now() - began)
        return record, replica, spec

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Refuse requests for an unreadable model for UNREADABLE_S. Returns their problem."""
        is_of_record = isinstance(error, RecordError)
        reason = str(error) if is_of_record else f"{type(error).__name__}: {error}"
        if isinstance(error, RecordError | Forked):
            is_of_spec = isinstance(error, DamagedSpec)
            name = self.journal.spec_name if is_of_spec else self.journal.log_name
            reason = f"{name(model_id)}: {reason}"
        before = self.unreadable.get(model_id)
        if before is None or before.reason != reason:
            trace = None if is_of_record else error
            log.error("model %r is not served: %s", model_id, reason, exc_info=trace)
        self.unreadable[model_id] = Unreadable(reason, time.monotonic() + UNREADABLE_S)
        return unreadable(reason)

    # -- leaving memory --------------------------------------------------------------------------

    def forget(self, model: Model) -> None:
        """Drop a model that is deleted, replaced or forked. The next request loads it."""
        if self.cache.drop(model) and model.replica.is_forked:
            # Whole: the next load counts the lost records.
            self._keep_lineage(model, model.replica.lineage, is_forked=True)

    def forget_load(self, model_id: str) -> None:
        """The id has a new model: a load under way is not used."""
        self.unreadable.pop(model_id, None)
        self._loads.pop(model_id, None)

    def forget_gone(self, model_id: str) -> None:
        """Forget a model that is no longer in the store."""
        self.forget_load(model_id)
        self._lineages.pop(model_id, None)
        self.counters.saw_delete(model_id)

    def _on_eviction(self, model: Model) -> None:
        self.counters.saw_eviction()
        self._keep_lineage(model, model.replica.lineage.trimmed(KEPT_OUTSIDE), is_forked=False)

    def _keep_lineage(self, model: Model, lineage: Lineage, is_forked: bool) -> None:
        """Keep the lineage of a model that leaves memory: the next load counts lost records."""
        record = model.record
        self._lineages[record.id] = KeptLineage(record.incarnation, lineage, is_forked)
        self._lineages.move_to_end(record.id)
        if len(self._lineages) > MAX_LINEAGES:
            self._lineages.popitem(last=False)

    def _on_failure(self, model: Model, error: Exception) -> None:
        """Drop a model that is deleted, unreadable or forked and not rebuilt.

        Two live replicas would both miscount losses, so this one stops accepting requests.
        """
        record = model.record
        if isinstance(error, protocol.JournalUnavailable | protocol.OutcomeUnknown):
            self.store_status.failed(error)
        if isinstance(error, RecordError):
            self.set_aside(record.id, error)
        is_gone = isinstance(error, protocol.ModelChanged | protocol.UnknownModel)
        is_invalid = model.replica.is_forked or isinstance(error, RecordError)
        if is_invalid or is_gone:
            self.forget(model)
        if is_invalid and not is_gone:
            why = f"model {record.id!r} is being loaded again from its journal"
            model.committer.refuse(why, partial(self._on_late_append, record))

    def _on_late_append(self, record: protocol.ModelRecord) -> None:
        """The successor of a forked replica may contradict its append: it must read the head."""
        successor = self.find(record.id)
        if successor is not None and successor.record.incarnation == record.incarnation:
            successor.committer.check_again()

    async def close(self) -> None:
        """Finish the requests and snapshots under way."""
        for load in self._loads.values():
            load.cancel()
        for model in self:
            await model.close()
        self.deps.refit_thread.close()
        self.deps.reference_thread.close()
