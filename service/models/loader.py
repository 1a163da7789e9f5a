"""How models come into memory from the journal, and why some do not."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from dualstream.service.journal.protocol import (
    JournalError,
    ModelChanged,
    ModelRecord,
    UnknownModel,
)
from dualstream.service.journal.record import RecordError
from dualstream.service.models.cache import ModelCache
from dualstream.service.models.deps import ModelDeps
from dualstream.service.models.model import Model, ModelOwner
from dualstream.service.models.spec_cache import KnownSpecs
from dualstream.service.replica.first_responses import MAX_KEPT_ANSWERS
from dualstream.service.replica.lineage import KEPT_OUTSIDE, Lineage
from dualstream.service.replica.recovery import Forked
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import DamagedSpec, check_spec
from dualstream.wire.problems import Problem, unknown_model, unreadable

log = logging.getLogger("dualstream.catalog")

UNREADABLE_S = 10.0
"""How long a model that could not be read is left alone before a request tries it again."""
LOADS_AT_ONCE = 8
"""Each takes the event loop a millisecond or more at a time: others are answered in between."""
MAX_TRAILS = 10_000
"""Trails kept of models that left memory, about half a kilobyte each."""
REMADE_MEANWHILE = 3
"""So often a model may be made anew while it is read; whoever asked for it asked for any."""


class Loading:
    """One model on its way into memory: who asked first loads it, and the others wait."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Model | None]] = []

    def join(self) -> "asyncio.Future[Model | None]":
        """The model; None where whoever loads it left, so that it is to be asked for again."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def end(self, model: Model | None) -> None:
        """Whoever loads it has it, or left."""
        for future in self._waiting:
            if not future.done():
                future.set_result(model)

    def fail(self, error: Exception) -> None:
        """It cannot be loaded."""
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
    """Those of one catalog; what is known of models that could not be read, and of forked ones."""

    def __init__(
        self, deps: ModelDeps, owner: LoaderOwner, held: ModelCache, specs: KnownSpecs
    ) -> None:
        self._deps, self._owner = deps, owner
        self._held, self._specs = held, specs
        self._at_once = asyncio.Semaphore(LOADS_AT_ONCE)
        self._under_way: dict[str, Loading] = {}
        # Where forks came by that could not be rebuilt, with their incarnations; and the ends of
        # the trails of models that left memory.
        self._forked: dict[str, tuple[str, Lineage]] = {}
        self._left: OrderedDict[str, tuple[str, Lineage]] = OrderedDict()
        # Reasons, and when to try again.
        self._unreadable: dict[str, tuple[str, float]] = {}

    async def get(self, model_id: str) -> Model:
        """A model that is not in memory, loaded here or by who is at it. Raises Problem."""
        reason, retry_at = self._unreadable.get(model_id, ("", 0.0))
        if time.monotonic() < retry_at:
            raise unreadable(reason)
        loading = self._under_way.get(model_id)
        if loading is None:
            return await self._load_for_all(model_id)
        return await loading.join() or await self._owner.get(model_id)

    def forget(self, model_id: str) -> None:
        """It is another one now: what is under way is not used."""
        self._unreadable.pop(model_id, None)
        self._under_way.pop(model_id, None)

    def forget_gone(self, model_id: str) -> None:
        """It is no longer in the store."""
        self.forget(model_id)
        self._forked.pop(model_id, None)

    # -- those that cannot be read ---------------------------------------------------------------

    def unreadable(self) -> dict[str, str]:
        """The models that cannot be served, each with the reason."""
        return {model_id: reason for model_id, (reason, _) in sorted(self._unreadable.items())}

    def why_unreadable(self, model_id: str) -> str | None:
        """Why a model could not be read, as far as that is known."""
        found = self._unreadable.get(model_id)
        return None if found is None else found[0]

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Leave a model alone for a while that cannot be read; what its requests are told."""
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

    # -- what replicas had applied before --------------------------------------------------------

    def remember_fork(self, model: Model) -> None:
        """Where it came by, for whoever loads it next."""
        self._forked[model.record.id] = model.record.incarnation, model.replica.trail

    def remember_trail(self, model: Model) -> None:
        """Keep the end of an evicted model's trail: the next load counts what was lost since."""
        trail = model.replica.trail.trimmed(KEPT_OUTSIDE)
        self._left[model.record.id] = model.record.incarnation, trail
        self._left.move_to_end(model.record.id)
        if len(self._left) > MAX_TRAILS:
            self._left.popitem(last=False)

    # -- loading ---------------------------------------------------------------------------------

    async def _load_for_all(self, model_id: str) -> Model:
        """Load the model, also for those who ask for it meanwhile."""
        self._under_way[model_id] = loading = Loading()
        model = None
        try:
            model = await self._load_what_is_there(model_id, loading)
        except Exception as error:
            loading.fail(error)
            raise
        finally:
            self._end(model_id, loading)
            loading.end(model)
        return model

    def _end(self, model_id: str, loading: Loading) -> None:
        """Nobody joins it any more."""
        if self._under_way.get(model_id) is loading:
            del self._under_way[model_id]

    async def _load_what_is_there(self, model_id: str, loading: Loading) -> Model:
        for _ in range(REMADE_MEANWHILE):
            with suppress(ModelChanged):
                return await self._load(model_id, loading)
        return await self._load(model_id, loading)

    async def _load(self, model_id: str, loading: Loading) -> Model:
        deps = self._deps
        try:
            async with self._at_once:
                began = deps.outside.clock()
                base = await deps.journal.base(model_id)
                record = base.record
                check_spec(record)
                spec = await self._specs.get(record.spec)
                replica = Replica(record, MAX_KEPT_ANSWERS, deps.outside, spec.s_per_row)
                if _of_same(record, self._forked) is not None:
                    replica.trail = Lineage(kept=None)
                await replica.load(deps.journal, deps.settings.adopt, base)
                spec.s_per_row = replica.s_per_row
                deps.counters.saw_load(deps.outside.clock() - began)
        except UnknownModel:
            if self._under_way.get(model_id) is loading:
                self._owner.forget_gone(model_id)
            raise unknown_model(model_id) from None
        except JournalError:
            raise
        except Exception as error:
            raise self.set_aside(model_id, error) from error
        if self._under_way.get(model_id) is not loading:
            # It was overtaken, and may not be used: of what is there now two would be in use.
            return await self._owner.get(model_id)
        self._unreadable.pop(model_id, None)
        model = Model(deps, self._owner, record, replica, spec, spec.door())
        forked, left = _of_same(record, self._forked), _of_same(record, self._left)
        self._forked.pop(model_id, None)
        self._left.pop(model_id, None)
        model.count_lost_since(forked or left)
        if forked is not None:
            replica.trail = replica.trail.trimmed()
        # Who joined now would be given it even where it has left memory again.
        self._end(model_id, loading)
        self._held.put(model)
        return model


def _of_same(record: ModelRecord, trails: Mapping[str, tuple[str, Lineage]]) -> Lineage | None:
    """The trail kept of this incarnation of a model."""
    incarnation, trail = trails.get(record.id, ("", None))
    return trail if incarnation == record.incarnation else None
