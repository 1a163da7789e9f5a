"""Loads models from the journal into memory, and remembers why some cannot be loaded."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from dualstream.service.concurrency import run_long_in_thread
from dualstream.service.journal.protocol import (
    JournalError,
    ModelChanged,
    ModelRecord,
    UnknownModel,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.models.cache import ModelCache
from dualstream.service.models.compiled_specs import KnownSpecs
from dualstream.service.models.deps import ModelDeps
from dualstream.service.models.model import Model, ModelOwner
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS
from dualstream.service.replica.fork_detection import KEPT_OUTSIDE, Forked, Lineage
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import DamagedSpec, check_spec
from dualstream.wire.problems import Problem, unknown_model, unreadable

log = logging.getLogger("dualstream.loader")

UNREADABLE_S = 10.0
"""Time after which a request tries an unreadable model again."""
LOADS_AT_ONCE = 8
"""Concurrent loads. Each takes the event loop for a millisecond or more."""
SMALL_BYTES = 8 << 20
"""A larger learner is made in a thread."""
MAX_EVICTED_LINEAGES = 10_000
"""Kept lineages of evicted models, about half a kilobyte each."""
MAX_RECREATIONS = 3
"""Times that a model may be created again while it is loaded, before the load fails."""


class Loading:
    """A load under way. The first request loads the model, later ones wait."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Model | None]] = []

    def join(self) -> "asyncio.Future[Model | None]":
        """Wait for the model. None: the loading request was cancelled, ask again."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def end(self, model: Model | None) -> None:
        """Wake the waiting requests with the model, or with None if the load was cancelled."""
        for future in self._waiting:
            if not future.done():
                future.set_result(model)

    def fail(self, error: Exception) -> None:
        """Raise the error in the waiting requests."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)


class LoaderOwner(ModelOwner, Protocol):
    """The registry, as its loader sees it."""

    async def get(self, model_id: str) -> Model:
        """The model, from memory or loaded. Raises Problem."""

    def forget_gone(self, model_id: str) -> None:
        """Forget a model that is no longer in the store."""


class ModelLoader:
    """Loads the models of one registry. Keeps the lineages of evicted and forked replicas."""

    def __init__(
        self, deps: ModelDeps, owner: LoaderOwner, cache: ModelCache, specs: KnownSpecs
    ) -> None:
        self._deps, self._owner = deps, owner
        self._cache, self._specs = cache, specs
        self._at_once = asyncio.Semaphore(LOADS_AT_ONCE)
        self._under_way: dict[str, Loading] = {}
        # Lineages, with incarnations: of forked replicas that could not be rebuilt, whole, and of
        # evicted models, their ends.
        self._forked_lineages: dict[str, tuple[str, Lineage]] = {}
        self._evicted_lineages: OrderedDict[str, tuple[str, Lineage]] = OrderedDict()
        # Reason, and when to try again.
        self._unreadable: dict[str, tuple[str, float]] = {}

    async def get(self, model_id: str) -> Model:
        """Load a model that is not in memory, or wait for the load under way. Raises Problem."""
        reason, retry_at = self._unreadable.get(model_id, ("", 0.0))
        if time.monotonic() < retry_at:
            raise unreadable(reason)
        loading = self._under_way.get(model_id)
        if loading is None:
            return await self._load_for_all(model_id)
        return await loading.join() or await self._owner.get(model_id)

    def forget(self, model_id: str) -> None:
        """The id has a new model: a load under way is not used."""
        self._unreadable.pop(model_id, None)
        self._under_way.pop(model_id, None)

    def forget_gone(self, model_id: str) -> None:
        """The model is no longer in the store."""
        self.forget(model_id)
        self._forked_lineages.pop(model_id, None)

    # -- unreadable models ------------------------------------------------------------------------

    def unreadable(self) -> dict[str, str]:
        """The models that cannot be served, each with the reason."""
        return {model_id: reason for model_id, (reason, _) in sorted(self._unreadable.items())}

    def why_unreadable(self, model_id: str) -> str | None:
        """Why a model could not be read. None if unknown."""
        found = self._unreadable.get(model_id)
        return None if found is None else found[0]

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Refuse requests for an unreadable model for UNREADABLE_S. Returns their problem."""
        reason = (
            str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
        )
        journal = self._deps.journal
        if isinstance(error, RecordError | Forked):
            name = journal.spec_name if isinstance(error, DamagedSpec) else journal.log_name
            reason = f"{name(model_id)}: {reason}"
        if self._unreadable.get(model_id, ("", 0.0))[0] != reason:
            trace = None if isinstance(error, RecordError) else error
            log.error("model %r is not served: %s", model_id, reason, exc_info=trace)
        self._unreadable[model_id] = reason, time.monotonic() + UNREADABLE_S
        return unreadable(reason)

    # -- lineages ---------------------------------------------------------------------------------

    def remember_fork(self, model: Model) -> None:
        """Keep the lineage of a forked replica: the next load counts the lost records."""
        self._forked_lineages[model.record.id] = model.record.incarnation, model.replica.lineage

    def remember_lineage(self, model: Model) -> None:
        """Keep the end of an evicted replica's lineage: the next load counts lost records."""
        lineage = model.replica.lineage.trimmed(KEPT_OUTSIDE)
        self._evicted_lineages[model.record.id] = model.record.incarnation, lineage
        self._evicted_lineages.move_to_end(model.record.id)
        if len(self._evicted_lineages) > MAX_EVICTED_LINEAGES:
            self._evicted_lineages.popitem(last=False)

    # -- loading ---------------------------------------------------------------------------------

    async def _load_for_all(self, model_id: str) -> Model:
        """Load the model for this request and for those that join."""
        self._under_way[model_id] = loading = Loading()
        model = None
        try:
            model = await self._load_what_is_there(model_id, loading)
        except Exception as error:
            loading.fail(error)
            raise
        finally:
            self._end_loading(model_id, loading)
            loading.end(model)
        return model

    def _end_loading(self, model_id: str, loading: Loading) -> None:
        """Let no further request join this load."""
        if self._under_way.get(model_id) is loading:
            del self._under_way[model_id]

    async def _load_what_is_there(self, model_id: str, loading: Loading) -> Model:
        for _ in range(MAX_RECREATIONS):
            with suppress(ModelChanged):
                return await self._load(model_id, loading)
        return await self._load(model_id, loading)

    async def _load(self, model_id: str, loading: Loading) -> Model:
        deps = self._deps
        try:
            async with self._at_once:
                began = deps.clock.now()
                base = await deps.journal.base(model_id)
                record = base.record
                check_spec(record)
                spec = await self._specs.get(record.spec)
                made = record, MAX_KEPT_ANSWERS, deps.clock, spec.ratios
                is_small = spec.first_bytes <= SMALL_BYTES
                replica = Replica(*made) if is_small else await run_long_in_thread(Replica, *made)
                if _lineage_of(record, self._forked_lineages) is not None:
                    replica.lineage = Lineage(kept=None)
                await recover(replica, deps.journal, deps.settings.adopt, base)
                spec.ratios = replica.ratios
                deps.counters.saw_load(deps.clock.now() - began)
        except UnknownModel:
            if self._under_way.get(model_id) is loading:
                self._owner.forget_gone(model_id)
            raise unknown_model(model_id) from None
        except JournalError:
            raise
        except Exception as error:
            raise self.set_aside(model_id, error) from error
        if self._under_way.get(model_id) is not loading:
            # The model was replaced. Using this one would put two replicas of it into use.
            return await self._owner.get(model_id)
        self._unreadable.pop(model_id, None)
        model = Model(deps, self._owner, record, replica, spec, spec.row_schema())
        forked, left = (
            _lineage_of(record, self._forked_lineages),
            _lineage_of(record, self._evicted_lineages),
        )
        self._forked_lineages.pop(model_id, None)
        self._evicted_lineages.pop(model_id, None)
        model.count_lost_since(forked or left)
        if forked is not None:
            replica.lineage = replica.lineage.trimmed()
        # A request that joined later might get a model that is evicted already.
        self._end_loading(model_id, loading)
        self._cache.put(model)
        return model


def _lineage_of(record: ModelRecord, lineages: Mapping[str, tuple[str, Lineage]]) -> Lineage | None:
    """The lineage kept for this incarnation of the model."""
    incarnation, lineage = lineages.get(record.id, ("", None))
    return lineage if incarnation == record.incarnation else None
