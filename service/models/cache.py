"""The models that a process holds in memory, within a budget.

What was used but once goes first, then what was used longest ago. Of many models some are used all
the time and most now and then: these come and go in a small part of the room, and push none of
those out. How small, what is missed soon after it went tells. With 500 of 10,000 held by a Zipf law
it is a fortieth, and 22 % of requests find their model missing, 29 % where only the time of the
last use counts; to know which are used most would leave 21 %. Where the models that are used change
all the time, it is more than half, and no more are missing than by the last use alone.

A model that somebody uses is pinned, by its id, from before it is looked for until the answer is
out; one that appends, applies or writes a snapshot is busy. Neither goes. A model that goes leaves
nothing behind that the journal has not got: whoever asks next loads it again.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from types import TracebackType

from dualstream.service.models.model import Model

log = logging.getLogger("dualstream.held")

PROVEN_SHARE, MIN_PROVEN, MAX_PROVEN = 0.9, 0.1, 0.99
"""Of the models held, that may be those used again: at first, and at least and at most."""
MORE_PROVEN, LESS_PROVEN = 2, 1
"""So many models' room moves with each that is missed soon after it went."""
GONE_SHARE = 0.05
"""Of the models held; so many of those that went last are remembered, of either kind."""
MAX_LEAVING = 4
"""So many models at once may write a snapshot before they go; others go without."""


class Pin:
    """While it is entered, a model of this id does not leave memory."""

    __slots__ = ("_held", "_model_id")

    def __init__(self, held: "ModelCache", model_id: str) -> None:
        self._held, self._model_id = held, model_id

    def __enter__(self) -> None:
        pins = self._held.pins
        pins[self._model_id] = pins.get(self._model_id, 0) + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = self._held
        left = held.pins[self._model_id] - 1
        if left:
            held.pins[self._model_id] = left
        else:
            del held.pins[self._model_id]
        if held.is_over:
            held.make_room()


class Gone:
    """The ids of the last models that left."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def keep(self, model_id: str, most: int) -> None:
        self._ids[model_id] = None
        while len(self._ids) > most:
            self._ids.popitem(last=False)

    def pop(self, model_id: str) -> bool:
        """Whether it is among them; it is no longer."""
        return self._ids.pop(model_id, self) is None


class ModelCache:
    """Models by their ids.

    budget_bytes  what they may take in all; a single one may take more
    most          how many there may be; None: as many as the budget has room for
    on_eviction   called with each one that goes
    """

    def __init__(
        self,
        budget_bytes: int,
        most: int | None = None,
        on_eviction: Callable[[Model], None] = lambda model: None,
    ) -> None:
        self.bytes = 0
        self.pins: dict[str, int] = {}
        self._budget_bytes, self._most = budget_bytes, most
        self._on_eviction = on_eviction
        # Those used once since they came, or not for long; and those used again. Each in the order
        # in which they were used last. No model is in both.
        self._new: OrderedDict[str, Model] = OrderedDict()
        self._proven: OrderedDict[str, Model] = OrderedDict()
        self._proven_share = PROVEN_SHARE
        # Ids: of new ones those that were proven; and those that went last, of both kinds.
        self._were_proven: set[str] = set()
        self._gone_new, self._gone_proven = Gone(), Gone()
        self._last = ""
        self._leaving: dict[str, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        """In the order in which they would go; they may change meanwhile."""
        return iter([*self._new.values(), *self._proven.values()])

    def __len__(self) -> int:
        return len(self._new) + len(self._proven)

    def find(self, model_id: str) -> Model | None:
        """Without using it."""
        return self._proven.get(model_id) or self._new.get(model_id)

    def use(self, model_id: str) -> Model | None:
        """The model, which is now the one used last; it stays if it was about to leave."""
        model = self._proven.get(model_id)
        if model is not None:
            self._proven.move_to_end(model_id)
        else:
            model = self._new.pop(model_id, None)
            if model is None:
                return None
            self._proven[model_id] = model
            self._were_proven.discard(model_id)
            self._keep_room_for_new()
        self._last = model_id
        if self._leaving:
            self._leaving.pop(model_id, None)
        return model

    def put(self, model: Model) -> None:
        """Hold a model; others may have to go for it."""
        before = self.find(model.record.id)
        if before is not None:
            self.drop(before)
        self._new[model.record.id] = model
        self._last = model.record.id
        self.bytes += model.bytes
        self._saw_missing(model.record.id)
        self.make_room()

    def _saw_missing(self, model_id: str) -> None:
        """Had there been more room for its kind, it would still be here."""
        if self._gone_proven.pop(model_id):
            share = self._proven_share + MORE_PROVEN / len(self)
        elif self._gone_new.pop(model_id):
            share = self._proven_share - LESS_PROVEN / len(self)
        else:
            return
        self._proven_share = min(max(MIN_PROVEN, share), MAX_PROVEN)
        self._keep_room_for_new()

    def _keep_room_for_new(self) -> None:
        """Of the proven ones those used longest ago are new ones again."""
        while len(self._proven) > self._proven_share * len(self):
            model_id, model = self._proven.popitem(last=False)
            self._new[model_id] = model
            self._were_proven.add(model_id)

    def drop(self, model: Model) -> bool:
        """Hold it no longer, whatever it does; False where it was not held."""
        model_id = model.record.id
        kind = self._new if model_id in self._new else self._proven
        if kind.get(model_id) is not model:
            return False
        del kind[model_id]
        self._were_proven.discard(model_id)
        self._leaving.pop(model_id, None)
        self.bytes -= model.bytes
        model.stop()
        return True

    def weigh(self, model: Model, before: int) -> None:
        """A model took `before` bytes and takes other ones now."""
        if self.find(model.record.id) is model:
            self.bytes += model.bytes - before
            self.make_room()

    @property
    def is_over(self) -> bool:
        """Whether more is held than should be, those on their way out not counted."""
        return self._is_over(*self._staying())

    def _staying(self) -> tuple[int, int]:
        """How many are held and what they take, those on their way out not counted."""
        count, size = len(self._new) + len(self._proven), self.bytes
        if self._leaving:
            count -= len(self._leaving)
            size -= sum(model.bytes for model in self._leaving.values())
        return count, size

    def _is_over(self, count: int, size: int) -> bool:
        if count <= 1:
            return False
        return size > self._budget_bytes or (self._most is not None and count > self._most)

    @property
    def has_room(self) -> bool:
        """Whether another model as large as the mean of them would have room."""
        count = len(self)
        size = self.bytes + (self.bytes // count if count else 0)
        return not self._is_over(count + 1, size)

    def make_room(self) -> None:
        """Let go of those that nobody uses now, in their order, as far as the budget asks.

        Where all are in use, more is held until one is not. The one used last always stays.
        """
        count, size = self._staying()
        if not self._is_over(count, size):
            return
        going = []
        for model_id, model in chain(self._new.items(), self._proven.items()):
            if not self._is_over(count, size):
                break
            if model_id == self._last or model_id in self._leaving or not self._may_go(model):
                continue
            going.append(model)
            count -= 1
            size -= model.bytes
        for model in going:
            self._let_go(model)

    def _may_go(self, model: Model) -> bool:
        return model.record.id not in self.pins and model.is_idle

    def _let_go(self, model: Model) -> None:
        if len(self._leaving) < MAX_LEAVING and model.is_worth_a_snapshot:
            self._leaving[model.record.id] = model
            model.start_snapshot(lambda: self._finish(model))
        else:
            self._evict(model)

    def _finish(self, model: Model) -> None:
        """Its snapshot is written, or could not be: it goes, unless it is wanted again."""
        if self._leaving.get(model.record.id) is model:
            del self._leaving[model.record.id]
            if self._may_go(model):
                self._evict(model)
        self.make_room()

    def _evict(self, model: Model) -> None:
        model_id = model.record.id
        was_new = model_id in self._new and model_id not in self._were_proven
        if self.drop(model):
            gone = self._gone_new if was_new else self._gone_proven
            gone.keep(model_id, int(GONE_SHARE * len(self)))
            model.release()
            self._on_eviction(model)
