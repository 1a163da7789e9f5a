"""Models that learn before anything of them is read.

Of a model that left memory the record is kept, as it was then, and what it took: the model may be
gone by now, or another one, so that rows are refused by no record. Who sends rows to it need not
wait for it to be read: the rows are checked by its spec and appended, and the answer to an append
holds whatever the replica has not seen. That is everything, where its journal is all that it is
made of, and short: one turn of the store's takes the place of two, and the rows are learned with
those before them. Where its bare learner was kept it is next to nothing; see bare.py.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from service.answers import MAX_KEPT_ANSWERS
from service.bare import MOST_GROUPS, Bare
from service.codecs import Door
from service.held import Held
from service.journal.protocol import (
    CursorMoved,
    JournalUnavailable,
    ModelChanged,
    ModelRecord,
    OutcomeUnknown,
    UnknownModel,
)
from service.known_specs import KnownSpec
from service.memory import bytes_of
from service.model import Measured, Model
from service.replica import Replica
from service.trail import KEPT_OUTSIDE, Trail

if TYPE_CHECKING:
    from service.catalog import Catalog

MOST = 10_000
"""Records that are kept; each takes about a kilobyte and a half."""
MOST_BYTES = 32 << 20
"""Of their specs: those of large portfolios have tens of kilobytes."""
MAX_BARE_SHARE = 1 / 8
"""Share of the memory for models that goes to bare learners."""
BARE_BYTES = 1000
"""What stands around one, half of it where it has come by."""
STANDS = (JournalUnavailable, OutcomeUnknown, CursorMoved)
"""What an append may fail by of which a replica has learned nothing."""
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
    """Of a model that left memory: its record, what is known of its spec, and what it took.

    trail     where it came by last; None of one that was not in memory yet
    is_short  whether its journal alone, and a short one, is what it comes back by
    bare      what it goes on learning by, where that was kept, ...
    door      ... the names that it has told, ...
    bytes     ... and what both take of memory
    names     so many names had been told when that was measured
    """

    record: ModelRecord
    spec: KnownSpec
    measured: Measured | None = None
    is_short: bool = True
    trail: Trail | None = None
    bare: Bare | None = None
    door: Door | None = None
    bytes: int = 0
    names: int = 0


class Left:
    """What is kept of models that left memory, by their ids; of the last ones that did.

    bare_bytes  what bare learners may take in all, and a sixteenth of it a single one
    """

    def __init__(self, bare_bytes: int = 0) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        self._most_bare_bytes = bare_bytes
        # Ids of those that have one, in the same order.
        self._bare: OrderedDict[str, None] = OrderedDict()
        self.bare_bytes = 0
        # How many of them have what is known of a spec in common.
        self._having: dict[KnownSpec, int] = {}

    @property
    def bare_count(self) -> int:
        """Of how many the bare learner is kept."""
        return len(self._bare)

    def takes(self, size: int) -> bool:
        """Whether a bare learner of so many bytes is kept."""
        return 16 * size <= self._most_bare_bytes

    def keep(self, kept: Kept) -> None:
        self.pop(kept.record.id)
        if kept.bare is not None:
            if not self.takes(kept.bytes):
                kept = without_bare(kept)
            else:
                self._bare[kept.record.id] = None
                self.bare_bytes += kept.bytes
        self._kept[kept.record.id] = kept
        having = self._having.get(kept.spec, 0)
        self._having[kept.spec] = having + 1
        self._bytes += _size(kept.record, is_alone=not having)
        while len(self._kept) > MOST or self._bytes > MOST_BYTES:
            self.pop(next(iter(self._kept)))
        while self.bare_bytes > self._most_bare_bytes:
            oldest, _ = self._bare.popitem(last=False)
            kept = self._kept[oldest]
            self.bare_bytes -= kept.bytes
            self._kept[oldest] = without_bare(kept)

    def get(self, model_id: str) -> Kept | None:
        return self._kept.get(model_id)

    def pop(self, model_id: str) -> None:
        """Keep nothing of this id."""
        kept = self._kept.pop(model_id, None)
        if kept is None:
            return
        if kept.bare is not None:
            del self._bare[model_id]
            self.bare_bytes -= kept.bytes
        others = self._having.pop(kept.spec) - 1
        if others:
            self._having[kept.spec] = others
        self._bytes -= _size(kept.record, is_alone=not others)


def with_bare(kept: Kept, bare: Bare, door: Door) -> Kept:
    """The same with what it goes on learning by now."""
    spec, size, names = kept.spec, kept.bytes, door.names_told
    if not spec.bare_bytes:
        spec.bare_bytes = BARE_BYTES + bytes_of(bare.learner)
    if not size or names != kept.names:
        size = spec.bare_bytes + bytes_of(*door.held())
    return msgspec.structs.replace(
        kept, trail=bare.trail, bare=bare, door=door, bytes=size, names=names
    )


def without_bare(kept: Kept) -> Kept:
    """The same without what it would go on learning by."""
    return msgspec.structs.replace(kept, bare=None, door=None, bytes=0, names=0)


def _size(record: ModelRecord, is_alone: bool) -> int:
    times = KNOWN_TIMES + 1 if is_alone else 1
    return times * len(record.spec) + len(record.given)


class _Opening(msgspec.Struct):
    """A model whose first append is under way, what was kept of it, and groups learned bare."""

    model: Model
    kept: Kept
    groups: int


class Openings:
    """Those of one catalog that may learn so, and those whose first append is under way."""

    def __init__(self, catalog: "Catalog", held: Held) -> None:
        self._catalog, self._held = catalog, held
        self._left = Left(int(catalog.settings.models_bytes * MAX_BARE_SHARE))
        self._under_way: dict[str, _Opening] = {}
        self._listened_to: dict[str, int] = {}

    def __iter__(self) -> Iterator[Model]:
        """Those whose first append is under way; they may change meanwhile."""
        return iter([opening.model for opening in self._under_way.values()])

    @property
    def bare_bytes(self) -> int:
        """What bare learners take of memory."""
        return self._left.bare_bytes

    @property
    def bare_count(self) -> int:
        """How many are kept."""
        return self._left.bare_count

    def under_way(self, model_id: str) -> Model | None:
        """The model whose first append is under way."""
        opening = self._under_way.get(model_id)
        return None if opening is None else opening.model

    @contextmanager
    def listened_to(self, model_id: str) -> Iterator[None]:
        """While it is entered, a model of this id comes into memory to learn: all of it is told."""
        self._listened_to[model_id] = self._listened_to.get(model_id, 0) + 1
        try:
            yield
        finally:
            left = self._listened_to.pop(model_id) - 1
            if left:
                self._listened_to[model_id] = left

    def find(self, model_id: str) -> Unread | None:
        """A model that is not in memory, and may learn before it is."""
        model = self.under_way(model_id)
        if model is not None:
            return Unread(self, model.record, model.door)
        kept = self._left.get(model_id)
        if kept is None or not kept.spec.learns_first or self._catalog.settings.adopt:
            return None  # and where snapshots are adopted, not all that is there may be good
        if self._catalog.loads.why_unreadable(model_id) is not None:
            return None
        if not kept.is_short and not self._goes_on_bare(kept):
            return None
        return Unread(self, kept.record, kept.door or kept.spec.door())

    def _goes_on_bare(self, kept: Kept) -> bool:
        """Whether it learns without coming into memory: not where there is room, once it has
        learned often so, or while somebody listens to it."""
        bare = kept.bare
        if bare is None or bare.groups >= MOST_GROUPS or self._held.has_room:
            return False
        return kept.record.id not in self._listened_to

    async def open(self, unread: Unread) -> Model:
        """The model that is held or on its way; else one that has read nothing of its journal, to
        which rows are submitted in this turn of the event loop."""
        catalog, record = self._catalog, unread.record
        model = catalog.held(record.id) or self.under_way(record.id)
        if model is not None:
            return model
        kept = self._left.get(record.id)
        if kept is None or kept.record is not record or record.id in catalog.loads:
            return await catalog.get(record.id)
        bare = kept.bare if self._goes_on_bare(kept) else None
        if bare is None and not kept.is_short:
            return await catalog.get(record.id)
        self._pop(record.id)
        spec = kept.spec
        replica = Replica(record, MAX_KEPT_ANSWERS, catalog.outside, spec.s_per_row, bare)
        model = Model(catalog, record, replica, spec, unread.door, False, kept.measured)
        if bare is not None:
            every = catalog.settings.snapshot_every
            replica.bare_until = every * (bare.seq // every + 1)
        self._under_way[record.id] = _Opening(model, kept, 0 if bare is None else bare.groups)
        return model

    def learned_bare(self, model: Model) -> None:
        """A group was learned bare: the model leaves again, unless others wait for it to learn."""
        self._catalog.telemetry.saw_bare_group()
        opening = self._under_way.get(model.record.id)
        if opening is None or opening.model is not model:
            self._end(model)
            return
        opening.groups += 1
        if not model.committer.has_waiting:
            self._leave(opening)
        elif opening.groups >= MOST_GROUPS:
            model.replica.bare_until = 0  # the next group takes the whole model

    def _leave(self, opening: _Opening) -> None:
        """Go on from here with the next rows that come, by what is bare."""
        model = opening.model
        self._end(model)
        model.release()
        bare = model.replica.bare(opening.groups)
        assert bare is not None
        self._keep(with_bare(opening.kept, bare, model.door))

    def succeeded(self, model: Model, took_s: float) -> None:
        """Hold a model whose first append has brought what it is made of."""
        opening = self._under_way.get(model.record.id)
        if self._end(model):
            assert opening is not None
            model.count_lost_since(opening.kept.trail)
            model.spec.s_per_row = model.replica.s_per_row
            self._catalog.telemetry.saw_load(took_s)
            self._held.put(model)

    def failed(self, model: Model, error: Exception) -> bool:
        """Whether whoever asks next loads it, as this one is of no more use.

        One that stands where it stood, whatever became of its append, goes on with those who wait,
        or waits for others: the next append tells. Else nobody would find what a store has lost
        that failed meanwhile.
        """
        opening, replica = self._under_way.get(model.record.id), model.replica
        if opening is not None and opening.model is model:
            if replica.is_forked and replica.is_bare:
                self._catalog.loads.remember_fork(model)
            elif not replica.is_forked and isinstance(error, STANDS):
                # One that has read a part of its journal tells of that what is lost.
                if model.committer.has_waiting and (replica.is_bare or not replica.seq):
                    return False
                if replica.is_bare:
                    self._leave(opening)
                    return False
        if self._end(model) and not isinstance(error, ModelChanged | UnknownModel):
            assert opening is not None
            # Whoever loads it tells what was lost since it left memory.
            self._keep(msgspec.structs.replace(without_bare(opening.kept), is_short=False))
        return True

    def _end(self, model: Model) -> bool:
        """Who waits for it asks for it again; False where it was deleted or made anew meanwhile."""
        model.hold_nobody()
        if self.under_way(model.record.id) is not model:
            return False
        del self._under_way[model.record.id]
        return True

    def know(self, record: ModelRecord, spec: KnownSpec) -> None:
        """It was not in memory yet, and has a short journal: it may learn as it stands there."""
        self._keep(Kept(record, spec))

    def keep(self, model: Model) -> None:
        """It is in memory no longer: it may learn as it stands there."""
        comes_by_its_journal, bare = model.comes_by_its_journal, None
        # What is large would be copied for nothing.
        if model.may_learn_bare and self._left.takes(model.spec.bare_bytes):
            bare = model.replica.bare()
        trail = model.replica.trail.trimmed(KEPT_OUTSIDE) if bare is None else None
        kept = Kept(model.record, model.spec, model.measured, comes_by_its_journal, trail)
        self._keep(kept if bare is None else with_bare(kept, bare, model.door))

    def left_at(self, record: ModelRecord) -> Trail | None:
        """Where this model had come by when it left memory, as far as that is known."""
        kept = self._left.get(record.id)
        is_of_it = kept is not None and kept.record.incarnation == record.incarnation
        return kept.trail if kept is not None and is_of_it else None

    def came(self, model_id: str) -> None:
        """It came into memory another way."""
        self._pop(model_id)

    def forget(self, model_id: str, made: str | None = None, gone: str | None = None) -> None:
        """It is another one now. Who appends to the one before all the same hears it so.

        Not of the incarnation `made`, nor of another one than `gone`: this may be told so late that
        the next one has learned, and is out of memory again.
        """

        def is_kept(record: ModelRecord) -> bool:
            return record.incarnation == made or gone not in (None, record.incarnation)

        kept, opening = self._left.get(model_id), self._under_way.get(model_id)
        if kept is not None and not is_kept(kept.record):
            self._pop(model_id)
        if opening is not None and not is_kept(opening.model.record):
            del self._under_way[model_id]

    def _keep(self, kept: Kept) -> None:
        self._left.keep(kept)
        self._held.bytes_beside = self._left.bare_bytes

    def _pop(self, model_id: str) -> None:
        self._left.pop(model_id)
        self._held.bytes_beside = self._left.bare_bytes
