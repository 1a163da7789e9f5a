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

from service.codecs import Door
from service.held import Held
from service.journal.protocol import ModelChanged, ModelRecord
from service.known_specs import KnownSpecs
from service.model import Measured, Model
from service.replica import Replica

if TYPE_CHECKING:
    from service.catalog import Catalog

MOST = 10_000
"""Records that are kept; each takes about a kilobyte."""
MOST_BYTES = 32 << 20
"""Of their specs: those of large portfolios have tens of kilobytes."""


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


class Left:
    """The records of models that left memory, by their ids; the last ones that did."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, ModelRecord] = OrderedDict()
        # Of some of them.
        self._measured: dict[str, Measured] = {}
        self._bytes = 0

    def keep(self, record: ModelRecord, measured: Measured | None = None) -> None:
        self.pop(record.id)
        self._records[record.id] = record
        if measured is not None:
            self._measured[record.id] = measured
        self._bytes += _size(record)
        while len(self._records) > MOST or self._bytes > MOST_BYTES:
            self.pop(next(iter(self._records)))

    def get(self, model_id: str) -> ModelRecord | None:
        return self._records.get(model_id)

    def pop(self, model_id: str) -> Measured | None:
        """Keep none of this id; what it took, where that is known."""
        record = self._records.pop(model_id, None)
        if record is not None:
            self._bytes -= _size(record)
        return self._measured.pop(model_id, None)


def _size(record: ModelRecord) -> int:
    return len(record.spec) + len(record.given)


class Openings:
    """Those of one catalog that may learn so, and those whose first append is under way."""

    def __init__(self, catalog: "Catalog", held: Held, specs: KnownSpecs) -> None:
        self._catalog = catalog
        self._held, self._specs = held, specs
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
        record = self._left.get(model_id)
        if record is None or self._catalog.settings.adopt:
            return None  # of what is there not all may be good
        spec = self._specs.find(record.spec)
        if spec is None or not spec.learns_first:
            return None
        if self._catalog.loads.why_unreadable(model_id) is not None:
            return None
        return Unread(self, record, spec.door())

    async def open(self, unread: Unread) -> Model:
        """The model that is held or on its way; else one that has read nothing of its journal, to
        which rows are submitted in this turn of the event loop."""
        catalog, record = self._catalog, unread.record
        model = catalog.held(record.id) or self._under_way.get(record.id)
        if model is not None:
            return model
        spec = self._specs.find(record.spec)
        is_as_it_left = self._left.get(record.id) is record
        if spec is None or not is_as_it_left or record.id in catalog.loads:
            return await catalog.get(record.id)
        measured = self._left.pop(record.id)
        kept_answers = catalog.settings.kept_answers
        replica = Replica(record, kept_answers, catalog.outside, spec.s_per_row)
        model = Model(catalog, record, replica, unread.door, is_read=False, measured=measured)
        self._under_way[record.id] = model
        return model

    def succeeded(self, model: Model, took_s: float) -> None:
        """Hold a model whose first append has brought what it is made of."""
        if self._end(model):
            spec = self._specs.find(model.record.spec)
            if spec is not None:
                spec.s_per_row = model.replica.s_per_row
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

    def keep(self, record: ModelRecord, measured: Measured | None = None) -> None:
        """It is in memory no longer, or was not yet: it may learn as it stands there."""
        self._left.keep(record, measured)

    def came(self, model_id: str) -> None:
        """It came into memory another way."""
        self._left.pop(model_id)

    def forget(self, model_id: str) -> None:
        """It is another one now. Who appends to the one before all the same hears it so."""
        self._left.pop(model_id)
        self._under_way.pop(model_id, None)
