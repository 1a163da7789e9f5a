"""LRU cache of models in memory, within a byte budget. Miss rates are in service/models/DESIGN.md.

A request pins its model's id, before the lookup and until the response is written. A model that
appends, applies or writes a snapshot is busy. Neither is evicted. An eviction loses nothing: the
next request loads the model from the journal.
"""

import asyncio
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import TracebackType

from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica

MAX_EVICTION_SNAPSHOTS = 4
"""Evictions that may write a snapshot at once. Further ones write none."""

FREED_AFTER_S, MAX_FREED_AFTER_S = 1.0, 60.0
"""Time after which a dropped model is usually no longer in use by a request, and the longest pause
between two collections of one that still is."""

YOUNG = 1
"""Oldest generation of the garbage collector that is collected for a dropped model."""


class Pin:
    """Context manager: a model with this id is not evicted while it is entered."""

    __slots__ = ("_cache", "_model_id")

    def __init__(self, cache: "ModelCache", model_id: str) -> None:
        self._cache, self._model_id = cache, model_id

    def __enter__(self) -> None:
        pins = self._cache.pins
        pins[self._model_id] = pins.get(self._model_id, 0) + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        cache = self._cache
        left = cache.pins[self._model_id] - 1
        if left:
            cache.pins[self._model_id] = left
        else:
            del cache.pins[self._model_id]
        if cache.is_over:
            cache.make_room()


class DroppedModels:
    """Collects garbage until every dropped model has left memory, with pauses that grow to a limit.

    Usually a model is freed when it is dropped. An error of a request that found the model gone may
    keep it in a reference cycle of tracebacks and tasks, and the collector runs rarely. A request
    or a snapshot may use the model for longer than the first pauses.

    Only young objects are collected, as those of an error are: a full collection walks through all
    models in memory, and blocks the event loop. Garbage that is older waits for one that
    the collector starts.
    """

    def __init__(self) -> None:
        self._replicas: list[weakref.ref[Replica]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def add(self, model: Model) -> None:
        """Look after the model in FREED_AFTER_S."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the process ends
            return
        self._replicas.append(weakref.ref(model.replica))
        if self._timer is not None:
            if self._due_s <= loop.time() + FREED_AFTER_S:
                return
            self._timer.cancel()
        self._collect_in(loop, FREED_AFTER_S)

    def _collect_in(self, loop: asyncio.AbstractEventLoop, pause_s: float) -> None:
        self._due_s = loop.time() + pause_s
        self._timer = loop.call_later(pause_s, self._collect, loop, pause_s)

    def _collect(self, loop: asyncio.AbstractEventLoop, pause_s: float) -> None:
        self._timer = None
        if self._drop_freed():
            gc.collect(YOUNG)
        # A request that holds a model for longer frees it when it ends.
        if self._drop_freed() and pause_s < MAX_FREED_AFTER_S:
            self._collect_in(loop, min(2 * pause_s, MAX_FREED_AFTER_S))

    def _drop_freed(self) -> bool:
        """Forget the models that have left memory. Is any left?"""
        self._replicas = [replica for replica in self._replicas if replica() is not None]
        return bool(self._replicas)


class ModelCache:
    """Models in memory, by id.

    budget_bytes  memory of all models together; a single model may take more
    on_eviction   called with each evicted model
    """

    def __init__(
        self, budget_bytes: int, on_eviction: Callable[[Model], None] = lambda model: None
    ) -> None:
        self.bytes = 0
        self.pins: dict[str, int] = {}
        self._budget_bytes, self._on_eviction = budget_bytes, on_eviction
        # In the order of the last use.
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._dropped = DroppedModels()
        self._evicting: dict[str, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        """Iterate over a copy, in the order of eviction."""
        return iter([*self._models.values()])

    def __len__(self) -> int:
        return len(self._models)

    def find(self, model_id: str) -> Model | None:
        """The model, without counting as a use."""
        return self._models.get(model_id)

    def use(self, model_id: str) -> Model | None:
        """The model, now the most recently used. A pending eviction is cancelled."""
        model = self._models.get(model_id)
        if model is None:
            return None
        self._models.move_to_end(model_id)
        if self._evicting:
            self._evicting.pop(model_id, None)
        return model

    def put(self, model: Model) -> None:
        """Add a model and evict others as far as the budget asks."""
        before = self.find(model.record.id)
        if before is not None:
            self.drop(before)
        self._models[model.record.id] = model
        self.bytes += model.bytes
        self.make_room()

    def drop(self, model: Model) -> bool:
        """Remove a model even if it is in use. False if it is not cached."""
        model_id = model.record.id
        if self._models.get(model_id) is not model:
            return False
        del self._models[model_id]
        self._evicting.pop(model_id, None)
        self.bytes -= model.bytes
        model.stop()
        self._dropped.add(model)
        return True

    def on_resize(self, model: Model, before: int) -> None:
        """A model took `before` bytes and now takes `model.bytes`."""
        if self.find(model.record.id) is model:
            self.bytes += model.bytes - before
            self.make_room()

    @property
    def is_over(self) -> bool:
        """Is the budget exceeded, without the models that are being evicted?"""
        return self._is_over(*self._remaining())

    def _remaining(self) -> tuple[int, int]:
        """Number and bytes of the models that are not being evicted."""
        count, size = len(self._models), self.bytes
        if self._evicting:
            count -= len(self._evicting)
            size -= sum(model.bytes for model in self._evicting.values())
        return count, size

    def _is_over(self, count: int, size: int) -> bool:
        return count > 1 and size > self._budget_bytes

    @property
    def has_room(self) -> bool:
        """Does another model of mean size fit?"""
        count = len(self)
        size = self.bytes + (self.bytes // count if count else 0)
        return not self._is_over(count + 1, size)

    def make_room(self) -> None:
        """Evict idle models in their order until the budget fits.

        If all are in use, the budget is exceeded until one is not. The model used last
        always stays.
        """
        count, size = self._remaining()
        if not self._is_over(count, size):
            return
        evicted = []
        last = next(reversed(self._models))
        for model_id, model in self._models.items():
            if not self._is_over(count, size):
                break
            if model_id == last or model_id in self._evicting or not self._may_go(model):
                continue
            evicted.append(model)
            count -= 1
            size -= model.bytes
        for model in evicted:
            self._begin_eviction(model)

    def _may_go(self, model: Model) -> bool:
        """Is the model neither pinned nor busy?"""
        return model.record.id not in self.pins and model.is_idle

    def _begin_eviction(self, model: Model) -> None:
        """Evict the model, after a snapshot if that is cheaper than a replay."""
        has_slot = len(self._evicting) < MAX_EVICTION_SNAPSHOTS
        if has_slot and model.snapshots.is_worth_writing(model.bytes):
            self._evicting[model.record.id] = model
            model.snapshots.start(lambda: self._end_eviction(model))
        else:
            self._evict(model)

    def _end_eviction(self, model: Model) -> None:
        """Evict the model after its snapshot, unless it is in use again."""
        if self._evicting.get(model.record.id) is model:
            del self._evicting[model.record.id]
            if self._may_go(model):
                self._evict(model)
        self.make_room()

    def _evict(self, model: Model) -> None:
        if self.drop(model):
            self._on_eviction(model)
