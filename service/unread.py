"""A model that learns before anything of it is read.

Of a model that left memory the record is kept, as it was then: the model may be gone by now, or
another one, so that rows are refused by no record. Where its journal is all that it is made of, and
short, who sends rows to it need not wait for it to be read: the rows are checked by its spec and
appended, and the answer to an append holds whatever the replica has not seen, which is everything.
One turn of the store's takes the place of two, and the rows are learned with those before them.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

from service.codecs import Door
from service.journal.protocol import ModelChanged, ModelRecord

if TYPE_CHECKING:
    from service.catalog import Catalog
    from service.model import Model

MOST = 10_000
"""Records that are kept; each takes about a kilobyte."""
MOST_BYTES = 32 << 20
"""Of their specs: those of large portfolios have tens of kilobytes."""


class Unread:
    """What is known of such a model: enough to check rows by."""

    __slots__ = ("_catalog", "door", "record")

    def __init__(self, catalog: "Catalog", record: ModelRecord, door: Door) -> None:
        self._catalog = catalog
        self.record, self.door = record, door

    async def opened(self) -> "Model":
        """The model to submit to; rows have to be submitted in the same turn of the event loop.

        Raises ModelChanged where it was made anew; and what loading it raises, where somebody has
        begun that meanwhile.
        """
        model = await self._catalog.open(self)
        if model.record.incarnation != self.record.incarnation:
            raise ModelChanged(self.record.id)
        return model


class Left:
    """The records of models that left memory, by their ids; the last ones that did."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, ModelRecord] = OrderedDict()
        self._bytes = 0

    def keep(self, record: ModelRecord) -> None:
        self.pop(record.id)
        self._records[record.id] = record
        self._bytes += _size(record)
        while len(self._records) > MOST or self._bytes > MOST_BYTES:
            self.pop(next(iter(self._records)))

    def get(self, model_id: str) -> ModelRecord | None:
        return self._records.get(model_id)

    def pop(self, model_id: str) -> None:
        """Keep none of this id."""
        record = self._records.pop(model_id, None)
        if record is not None:
            self._bytes -= _size(record)


def _size(record: ModelRecord) -> int:
    return len(record.spec) + len(record.given)
