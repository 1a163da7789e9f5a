"""LRU cache of models in memory, in two segments, within a byte budget.

Models used once are on probation and are evicted first; models used again are protected. Thus
models that are used now and then do not evict the few that are used all the time. The share of the
protected segment adapts, as in ARC: a model that is requested again soon after its eviction
enlarges its segment. service/models/DESIGN.md has the measured miss rates.

A request pins its model's id, before the lookup and until the response is written. A model that
appends, applies or writes a snapshot is busy. Neither is evicted. An eviction loses nothing: the
next request loads the model from the journal.
"""

import asyncio
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from types import TracebackType

from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica

PROTECTED_SHARE, MIN_PROTECTED, MAX_PROTECTED = 0.9, 0.1, 0.99
"""Share of the models that may be protected: initial, smallest and largest."""
GROW_PROTECTED, SHRINK_PROTECTED = 2, 1
"""Models by which the protected segment grows or shrinks when a recent eviction is requested."""
GHOST_SHARE = 0.05
"""Length of each ghost list, as a share of the models in memory."""
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


class GhostList:
    """Ids of the models evicted last, as in ARC."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, model_id: str, most: int) -> None:
        """Add an id and forget the oldest ones beyond `most`."""
        self._ids[model_id] = None
        while len(self._ids) > most:
            self._ids.popitem(last=False)

    def pop(self, model_id: str) -> bool:
        """Remove the id. Was it in the list?"""
        return self._ids.pop(model_id, self) is None


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
        # Each segment in the order of the last use. No model is in both.
        self._probation: OrderedDict[str, Model] = OrderedDict()
        self._protected: OrderedDict[str, Model] = OrderedDict()
        self._protected_share = PROTECTED_SHARE
        # Ids on probation that were protected before, and ids evicted from each segment.
        self._demoted: set[str] = set()
        self._probation_ghosts, self._protected_ghosts = GhostList(), GhostList()
        self._last = ""
        self._dropped = DroppedModels()
        self._evicting: dict[str, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        """Iterate over a copy, in the order of eviction."""
        return iter([*self._probation.values(), *self._protected.values()])

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def find(self, model_id: str) -> Model | None:
        """The model, without counting as a use."""
        return self._protected.get(model_id) or self._probation.get(model_id)

    def use(self, model_id: str) -> Model | None:
        """The model, now the most recently used. A pending eviction is cancelled."""
        model = self._protected.get(model_id)
        if model is not None:
            self._protected.move_to_end(model_id)
        else:
            model = self._probation.pop(model_id, None)
            if model is None:
                return None
            self._protected[model_id] = model
            self._demoted.discard(model_id)
            self._demote_excess()
        self._last = model_id
        if self._evicting:
            self._evicting.pop(model_id, None)
        return model

    def put(self, model: Model) -> None:
        """Add a model and evict others as far as the budget asks."""
        before = self.find(model.record.id)
        if before is not None:
            self.drop(before)
        self._probation[model.record.id] = model
        self._last = model.record.id
        self.bytes += model.bytes
        self._adapt(model.record.id)
        self.make_room()

    def _adapt(self, model_id: str) -> None:
        """A recently evicted model is back: enlarge the segment that it was evicted from."""
        if self._protected_ghosts.pop(model_id):
            share = self._protected_share + GROW_PROTECTED / len(self)
        elif self._probation_ghosts.pop(model_id):
            share = self._protected_share - SHRINK_PROTECTED / len(self)
        else:
            return
        self._protected_share = min(max(MIN_PROTECTED, share), MAX_PROTECTED)
        self._demote_excess()

    def _demote_excess(self) -> None:
        """Move the least recently used protected models, but not the last, to probation, beyond
        their share."""
        while len(self._protected) > max(1.0, self._protected_share * len(self)):
            model_id, model = self._protected.popitem(last=False)
            self._probation[model_id] = model
            self._demoted.add(model_id)

    def drop(self, model: Model) -> bool:
        """Remove a model even if it is in use. False if it is not cached."""
        model_id = model.record.id
        kind = self._probation if model_id in self._probation else self._protected
        if kind.get(model_id) is not model:
            return False
        del kind[model_id]
        self._demoted.discard(model_id)
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
        count, size = len(self._probation) + len(self._protected), self.bytes
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
        for model_id, model in chain(self._probation.items(), self._protected.items()):
            if not self._is_over(count, size):
                break
            if model_id == self._last or model_id in self._evicting or not self._may_go(model):
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
        model_id = model.record.id
        was_probation = model_id in self._probation and model_id not in self._demoted
        if self.drop(model):
            ghosts = self._probation_ghosts if was_probation else self._protected_ghosts
            ghosts.add(model_id, int(GHOST_SHARE * len(self)))
            self._on_eviction(model)
