"""Models that learn before anything of them is read.

Of a model that left memory the record is kept, as it was then, and what it took: the model may be
gone by now, or another one, so that rows are refused by no record. Where its journal is all that it
is made of, and short, who sends rows to it need not wait for it to be read: the rows are checked by
its spec and appended, and the answer to an append holds whatever the replica has not seen, which is
everything. One turn of the store's takes the place of two, and the rows are learned with those
before them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from service.codecs import Door
from service.held import Held
from service.journal.protocol import ModelChanged, ModelRecord
from service.known_specs import KnownSpec
from service.model import Measured, Model
from service.replica import Replica

if TYPE_CHECKING:
    from service.catalog import Catalog

MOST = 10_000
"""Records that are kept; each takes about a kilobyte."""
MOST_BYTES = 32 << 20
"""Of their specs: those of large portfolios have tens of kilobytes."""
KNOWN_TIMES = 16
"""What is known of a spec takes so many times its text; most models share it."""


class Unread:
    """What is known of such a model: enough to check rows by."""

    __slots__ = ("_openings", "door", "record")

    def __init__(self, openings: "Openings", record: ModelRecord, door: Door) -> None:
        self._openings = openings
        self.record, self.door = record, door

    async def opened(self) -> Model:
        """The model to submit to; rows have to be submitted in the same turn of the event loop.

        Raises ModelChanged where it was made anew; and what loading it raises, where somebody has
        begun that meanwhile.
        """
        model = await self._openings.open(self)
        if model.record.incarnation != self.record.incarnation:
            raise ModelChanged(self.record.id)
        return model


class Kept(msgspec.Struct, frozen=True, gc=False):
    """Of a model that left memory: its record, what is known of its spec, and what it took."""

    record: ModelRecord
    spec: KnownSpec
    measured: Measured | None = None


class Left:
    """What is kept of models that left memory, by their ids; of the last ones that did."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        # How many of them have what is known of a spec in common.
        self._having: dict[KnownSpec, int] = {}

    def keep(self, kept: Kept) -> None:
        self.pop(kept.record.id)
        self._kept[kept.record.id] = kept
        having = self._having.get(kept.spec, 0)
        self._having[kept.spec] = having + 1
        self._bytes += _size(kept.record, is_alone=not having)
        while len(self._kept) > MOST or self._bytes > MOST_BYTES:
            self.pop(next(iter(self._kept)))

    def get(self, model_id: str) -> Kept | None:
        return self._kept.get(model_id)

    def pop(self, model_id: str) -> None:
        """Keep nothing of this id."""
        kept = self._kept.pop(model_id, None)
        if kept is None:
            return
        others = self._having.pop(kept.spec) - 1
        if others:
            self._having[kept.spec] = others
        self._bytes -= _size(kept.record, is_alone=not others)


def _size(record: ModelRecord, is_alone: bool) -> int:
    times = KNOWN_TIMES + 1 if is_alone else 1
    return times * len(record.spec) + len(record.given)


class Openings:
    """Those of one catalog that may learn so, and those whose first append is under way."""

    def __init__(self, catalog: "Catalog", held: Held) -> None:
        self._catalog, self._held = catalog, held
        self._left = Left()
        self._under_way: dict[str, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        """Those that are read by their first append; they may change meanwhile."""
        return iter(list(self._under_way.values()))

    def under_way(self, model_id: str) -> Model | None:
        """The model that is read by its first append."""
        return self._under_way.get(model_id)

    def find(self, model_id: str) -> Unread | None:
        """A model that is not in memory, and may learn before it is."""
        opening = self._under_way.get(model_id)
        if opening is not None:
            return Unread(self, opening.record, opening.door)
        kept = self._left.get(model_id)
        if kept is None or not kept.spec.learns_first or self._catalog.settings.adopt:
            return None  # and where snapshots are adopted, not all that is there may be good
        if self._catalog.loads.why_unreadable(model_id) is not None:
            return None
        return Unread(self, kept.record, kept.spec.door())

    async def open(self, unread: Unread) -> Model:
        """The model that is held or on its way; else one that has read nothing of its journal, to
        which rows are submitted in this turn of the event loop."""
        catalog, record = self._catalog, unread.record
        model = catalog.held(record.id) or self._under_way.get(record.id)
        if model is not None:
            return model
        kept = self._left.get(record.id)
        if kept is None or kept.record is not record or record.id in catalog.loads:
            return await catalog.get(record.id)
        self._left.pop(record.id)
        spec, kept_answers = kept.spec, catalog.settings.kept_answers
        replica = Replica(record, kept_answers, catalog.outside, spec.s_per_row)
        model = Model(catalog, record, replica, spec, unread.door, False, kept.measured)
        self._under_way[record.id] = model
        return model

    def succeeded(self, model: Model, took_s: float) -> None:
        """Hold a model whose first append has brought what it is made of."""
        if self._end(model):
            model.spec.s_per_row = model.replica.s_per_row
            self._catalog.telemetry.saw_load(took_s)
            self._held.put(model)

    def failed(self, model: Model) -> None:
        """Whoever asks next loads it."""
        self._end(model)

    def _end(self, model: Model) -> bool:
        """False where it was deleted or made anew meanwhile."""
        if self._under_way.get(model.record.id) is not model:
            return False
        del self._under_way[model.record.id]
        return True

    def keep(self, record: ModelRecord, spec: KnownSpec, measured: Measured | None = None) -> None:
        """It is in memory no longer, or was not yet: it may learn as it stands there."""
        self._left.keep(Kept(record, spec, measured))

    def came(self, model_id: str) -> None:
        """It came into memory another way."""
        self._left.pop(model_id)

    def forget(self, model_id: str) -> None:
        """It is another one now. Who appends to the one before all the same hears it so."""
        self._left.pop(model_id)
        self._under_way.pop(model_id, None)
