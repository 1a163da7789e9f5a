"""The named models of one process: found, made, loaded from the journal and let go of."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from service.auditing import SERVER, Author, told_of_spec
from service.codecs import Door, RowLimits
from service.contact import Contact
from service.errors import Problem, let_go, unavailable, unknown_model, unreadable
from service.held import Held, Pin
from service.idleness import Idleness
from service.journal.protocol import (
    Conflict,
    Journal,
    JournalError,
    ModelChanged,
    ModelRecord,
    Place,
    UnknownModel,
)
from service.journal.record import RecordError
from service.memory import bytes_before_rows, bytes_of
from service.model import Model
from service.outside import REAL, Outside
from service.pressure import Pressure
from service.recovery import Forked
from service.refits import Desk
from service.replica import Replica, fixed_spec
from service.settings import Settings
from service.telemetry import Telemetry
from service.trail import Trail
from service.unread import Left, Unread
from solvers import make_learner, resolve_spec

log = logging.getLogger("dualstream.catalog")

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PAGE = 1000
UNREADABLE_S = 10.0
"""How long a model that could not be read is left alone before a request tries it again."""
REACH_S = 2.0
"""How long a prediction waits for its `min_seq`."""
LOADED_AT_START = 100
"""So many models at most are in memory before the process serves; others come when asked for."""
LOADS_AT_ONCE = 8
"""Each takes the event loop a millisecond or more at a time: others are answered in between."""
SHORT_SEQ = 4096
"""A model that stands there at most may learn before it is read; of others it is known once they
were in memory."""
MOST_SPECS = 1000
"""Specs of which is remembered that their kernels are loaded."""
REPLACED_IN = 50
"""Looks at a model that is to be replaced wherever it stands, and learns between each two steps."""
NOBODYS = "-"
"""An incarnation that no model has."""
S_PER_ROW = 1e-6
"""What a row is taken to cost until some were learned."""


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


class Catalog:
    """Finds, makes and drops models; loads from the journal those it does not hold yet."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        telemetry: Telemetry,
        outside: Outside = REAL,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.telemetry = telemetry
        self.contact = Contact(journal)
        self.outside = outside
        self.pressure = Pressure(
            settings.max_in_flight,
            settings.shed_after_s,
            settings.request_timeout_s,
            telemetry.saw_shed,
            outside.clock,
            Idleness().share,
        )
        self.row_limits = RowLimits(
            settings.max_rows, settings.max_nonzeros, settings.max_name_length
        )
        self.desk = Desk()
        self.reference_desk = Desk()
        self._held = Held(settings.models_bytes, settings.models_held, self._saw_eviction)
        self._left = Left()
        # Those whose first append, which reads them, is under way.
        self._opening: dict[str, Model] = {}
        # By the specs whose kernels are loaded: what a row took to learn, where that is known.
        self._warm: dict[bytes, float] = {}
        # By the same specs, what a learner takes before its first row.
        self._first_bytes: dict[bytes, int] = {}
        self._may_load = asyncio.Semaphore(LOADS_AT_ONCE)
        self._loading: dict[str, Loading] = {}
        # Where forks came by that could not be rebuilt, with their incarnations.
        self._forked: dict[str, tuple[str, Trail]] = {}
        # Reasons, and when to try again.
        self._unreadable: dict[str, tuple[str, float]] = {}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_room(self) -> bool:
        """Whether another model would make none leave memory."""
        return self._held.has_room

    @property
    def held_bytes(self) -> int:
        """What the models held take of memory, as they were measured last."""
        return self._held.bytes

    def pinned(self, model_id: str) -> Pin:
        """To be entered while the model of this id is used: it does not leave memory then."""
        return Pin(self._held, model_id)

    def find(self, model_id: str) -> Model | None:
        """The model if this process holds it, whatever its state; it does not count as used."""
        return self._held.find(model_id)

    def held(self, model_id: str) -> Model | None:
        """The model if this process holds it, without asking the store."""
        model = self._held.use(model_id)
        if model is not None and model.replica.is_forked:
            raise unavailable(f"model {model_id!r} is being rebuilt from its journal")
        return model

    async def get(self, model_id: str) -> Model:
        """The model, loaded from the journal when needed. Raises Problem 404."""
        model = self.held(model_id)
        if model is not None:
            return model
        opening = self._opening.get(model_id)
        if opening is not None:
            await asyncio.wait([opening.is_read])
            return await self.get(model_id)
        if not MODEL_ID.fullmatch(model_id):
            raise unknown_model(model_id)
        reason, retry_at = self._unreadable.get(model_id, ("", 0.0))
        if time.monotonic() < retry_at:
            raise unreadable(reason)
        loading = self._loading.get(model_id)
        if loading is None:
            return await self._load_for_all(model_id)
        return await loading.join() or await self.get(model_id)

    async def to_learn(self, model_id: str) -> Model | Unread:
        """What rows are checked by, and submitted to; as `get`, where that is in memory."""
        return self.held(model_id) or self._unread(model_id) or await self.get(model_id)

    def _unread(self, model_id: str) -> Unread | None:
        """The model if it is not in memory, and may learn before it is."""
        opening = self._opening.get(model_id)
        if opening is not None:
            return Unread(self, opening.record, opening.door)
        record = self._left.get(model_id)
        if record is None or record.spec not in self._warm or model_id in self._unreadable:
            return None
        spec = fixed_spec(record.spec)
        if "guard" in spec or self.settings.adopt:
            return None  # while it pauses it may take no rows; nor may all that is there be good
        if spec.get("refit") is not None:
            return None  # by how many it had learned before these rows it is known what falls due
        return Unread(self, record, Door(spec, self.row_limits))

    async def open(self, unread: Unread) -> Model:
        """The model that is held or on its way; else one that has read nothing of its journal, to
        which rows are submitted in this turn of the event loop."""
        record = unread.record
        model = self.held(record.id) or self._opening.get(record.id)
        if model is not None:
            return model
        if record.id in self._loading or self._left.get(record.id) is not record:
            return await self.get(record.id)
        self._left.pop(record.id)
        s_per_row = self._warm.get(record.spec, S_PER_ROW)
        replica = Replica(record, self.settings.kept_answers, self.outside, s_per_row)
        model = self._opening[record.id] = Model(self, record, replica, unread.door, is_read=False)
        return model

    def opened(self, model: Model, took_s: float) -> None:
        """Hold a model whose first append has brought what it is made of."""
        if self._end_opening(model):
            self._warm[model.record.spec] = model.replica.s_per_row
            self.telemetry.saw_load(took_s)
            self._held.put(model)

    def not_opened(self, model: Model) -> None:
        """Whoever asks next loads it."""
        self._end_opening(model)

    def _end_opening(self, model: Model) -> bool:
        """False where it was deleted or made anew meanwhile."""
        if self._opening.get(model.record.id) is not model:
            return False
        del self._opening[model.record.id]
        return True

    def _saw_eviction(self, model: Model) -> None:
        self.telemetry.saw_eviction()
        if model.comes_by_its_journal and model.record.id not in self._forked:
            self._left.keep(model.record)

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
        if isinstance(error, RecordError | Forked):
            reason = f"{self.journal.log_name(model_id)}: {reason}"
        if self._unreadable.get(model_id, ("", 0.0))[0] != reason:
            trace = None if isinstance(error, RecordError) else error
            log.error("model %r is not served: %s", model_id, reason, exc_info=trace)
        self._unreadable[model_id] = reason, time.monotonic() + UNREADABLE_S
        return unreadable(reason)

    async def reach(self, model_id: str, seq: int) -> Model:
        """The model at `seq` or beyond, as soon as its replica is there.

        Raises Problem 503 when the journal does not go so far, or when it takes too long.
        """
        model = await self.get(model_id)
        pulling = asyncio.create_task(model.refresh(seq))
        # Whoever stops waiting leaves it to its end: to cancel would cut an apply in two.
        done, _ = await asyncio.wait([pulling], timeout=REACH_S)
        if not done:
            pulling.add_done_callback(lambda task: task.cancelled() or task.exception())
            detail = f"the replica of {model_id!r} stands at seq {model.replica.seq}, not at {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        try:
            pulling.result()
        except (ModelChanged, UnknownModel):
            model = await self.get(model_id)
        if model.replica.seq < seq:
            detail = f"the journal of {model_id!r} ends at seq {model.replica.seq}, before {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        return model

    async def prepare(self) -> None:
        """Load the kernels of every model of the store, and its first models, as far as there is
        room.

        Those that cannot be read are set aside, as far as their spec or their loading shows it.
        """
        broken: dict[bytes, Exception] = {}
        first: list[str] = []
        async for record in self.records():
            if record.spec not in self._warm and record.spec not in broken:
                try:
                    await self._warm_up(record.spec)
                except Exception as error:
                    broken[record.spec] = error
            if record.spec in broken:
                self.set_aside(record.id, broken[record.spec])
                continue
            if len(first) < LOADED_AT_START:
                first.append(record.id)
            if record.seq <= SHORT_SEQ and self._held.find(record.id) is None:
                self._left.keep(record)
        for model_id in first:
            if not self._held.has_room:
                return
            with suppress(Problem, ModelChanged):  # set aside, or gone meanwhile
                await self.get(model_id)

    async def _warm_up(self, spec: bytes) -> None:
        """Load and warm the family of a resolved spec, so that no request ever compiles."""
        if spec in self._warm:
            return
        learner = await asyncio.to_thread(make_learner, fixed_spec(spec))
        if len(self._warm) >= MOST_SPECS:
            self._warm.clear()
            self._first_bytes.clear()
        self._first_bytes[spec] = bytes_of(learner)
        self._warm[spec] = S_PER_ROW

    async def records(self) -> Any:
        """All models of the store, in the order of their ids."""
        after = ""
        while page := await self.journal.list(after, PAGE):
            for record in page:
                yield record
            after = page[-1].id

    async def create(
        self,
        model_id: str,
        given: dict[str, Any],
        may_replace: Callable[[ModelRecord], bool] | None = None,
        by: Author = SERVER,
    ) -> tuple[Model, bool]:
        """Make the model, or find it made from the same spec; the bool says which.

        One of another spec is deleted and made anew, in one step, where `may_replace` says of it
        as it stands in the store that it may be.

        Raises InvalidSpec, and Problem 409 when another spec has the id, 412 when it may not be
        replaced, 422 when it would take too much memory, 429 when there are too many models.
        """
        if not MODEL_ID.fullmatch(model_id):
            raise Problem(
                404,
                "unknown-model",
                f"{model_id!r} cannot be a model id: it takes 1 to 128 characters of "
                "A-Z a-z 0-9 . _ - and begins with a letter or digit",
            )
        spec = resolve_spec(given)
        await self._check_number(model_id)
        if canonical(spec) not in self._warm:
            await self._check_before_building(model_id, spec, given, may_replace)
        try:
            await self._warm_up(canonical(spec))
        except MemoryError:
            raise _beyond_memory() from None
        self._check_size(self._first_bytes.get(canonical(spec), 0))
        if may_replace is not None:
            record, created = await self._replace(model_id, spec, given, may_replace, by)
        else:
            made = (canonical(spec), canonical(given))
            change = by.change("create", **told_of_spec(spec))
            record, created = await self.journal.create(model_id, *made, change)
            if not created and not _is_same(record, spec, given):
                raise _other_spec(model_id)
        if created:
            self._unreadable.pop(model_id, None)
            self._loading.pop(model_id, None)
            self._forget_unread(model_id)
        held = self._held.find(model_id)
        if held is not None and held.record.incarnation != record.incarnation:
            self.forget(held)
        return await self.get(model_id), created

    async def _check_before_building(
        self,
        model_id: str,
        spec: dict[str, Any],
        given: dict[str, Any],
        may_replace: Callable[[ModelRecord], bool] | None,
    ) -> None:
        """Raise what can be told without a learner of the spec, which may be a large one.

        The id may be another's by the time that the model is made: all is asked again then.
        """
        with suppress(UnknownModel):
            record = await self.journal.get(model_id)
            if _is_same(record, spec, given):
                return
            if may_replace is None:
                raise _other_spec(model_id)
        try:
            size = await asyncio.to_thread(bytes_before_rows, spec)
        except MemoryError:
            raise _beyond_memory() from None
        # Beyond doubt: what is close is built, and measured.
        if size > 1.25 * self.settings.max_model_bytes:
            self._check_size(size)

    def _check_size(self, size: int) -> None:
        """Raise Problem 422 for a spec that takes too much memory."""
        most = self.settings.max_model_bytes
        if size > most:
            detail = (
                f"a model of this spec takes {size} bytes of memory before its first row, at most "
                f"{most} are taken"
            )
            raise Problem(422, "model-too-large", detail)

    async def _check_number(self, model_id: str) -> None:
        """Raise Problem 429 for one model too many; those made at the same time may all pass."""
        settings = self.settings
        if settings.max_models is None or await self.journal.count() < settings.max_models:
            return
        try:
            await self.journal.get(model_id)
        except UnknownModel:
            detail = f"the store holds {settings.max_models} models, as many as it may; delete one"
            raise Problem(429, "too-many-models", detail, retry_after_s=60) from None

    async def _replace(
        self,
        model_id: str,
        spec: dict[str, Any],
        given: dict[str, Any],
        may_replace: Callable[[ModelRecord], bool],
        by: Author,
    ) -> tuple[ModelRecord, bool]:
        for _ in range(REPLACED_IN):
            try:
                record = await self.journal.get(model_id)
                if _is_same(record, spec, given):
                    return record, False
                if not may_replace(record):
                    break
                made = await self.journal.replace(
                    model_id,
                    record.incarnation,
                    record.seq,
                    record.chain,
                    canonical(spec),
                    canonical(given),
                    by.change("replace", **told_of_spec(spec), replaced_seq=record.seq),
                )
            except UnknownModel:
                detail = f"there is no model {model_id!r} for If-Match to name"
                raise Problem(412, "precondition-failed", detail) from None
            except Conflict:  # it has moved on: whether it may be replaced there is asked anew
                continue
            return made, True
        raise _stands_elsewhere(model_id)

    async def delete(
        self,
        model_id: str,
        by: Author = SERVER,
        may_delete: Callable[[ModelRecord], bool] | None = None,
    ) -> None:
        """Delete the model and all that the store keeps of it.

        However late the store hears of it, a model that was made since under the same id stays;
        with `may_delete` one that has moved on, too, from where it was allowed.

        Raises Problem 404; 412 where it may not; ModelChanged.
        """
        if not MODEL_ID.fullmatch(model_id):
            raise unknown_model(model_id)
        try:
            incarnation, place = await self._to_delete(model_id, may_delete)
            await self.journal.delete(model_id, incarnation, by.change("delete"), place)
        except UnknownModel:
            raise unknown_model(model_id) from None
        except Conflict:
            raise _stands_elsewhere(model_id) from None
        except ModelChanged:
            if may_delete is None:
                raise
            raise _stands_elsewhere(model_id) from None
        self.forget_gone(model_id)
        model = self._held.find(model_id)
        if model is not None and model.record.incarnation == incarnation:
            self._held.drop(model)
            await model.close()

    async def _to_delete(
        self, model_id: str, may_delete: Callable[[ModelRecord], bool] | None
    ) -> tuple[str, Place | None]:
        """The incarnation of the model as the store has it now, and where it has to stand.

        Where it has none, one that no model has: to delete that one takes the last step of a
        deletion that died before it.

        Raises Problem 412.
        """
        try:
            record = await self.journal.get(model_id)
        except UnknownModel as missing:
            let_go(missing)
            return NOBODYS, None
        if may_delete is None:
            return record.incarnation, None
        if not may_delete(record):
            raise _stands_elsewhere(model_id)
        return record.incarnation, Place(record.seq, record.chain)

    def forget(self, model: Model) -> None:
        """Stop holding a model that is not the store's any more; the next request loads anew."""
        if self._held.drop(model) and model.replica.is_forked:
            self._forked[model.record.id] = model.record.incarnation, model.replica.trail

    def forget_gone(self, model_id: str) -> None:
        """Keep nothing of a model that is no longer in the store, not even a load under way."""
        self._loading.pop(model_id, None)
        self._unreadable.pop(model_id, None)
        self._forked.pop(model_id, None)
        self._forget_unread(model_id)
        self.telemetry.saw_delete(model_id)

    def _forget_unread(self, model_id: str) -> None:
        """Those who append to it all the same hear that it has changed."""
        self._left.pop(model_id)
        self._opening.pop(model_id, None)

    def weigh(self, model: Model, before: int) -> None:
        """A model took `before` bytes of memory and takes other ones now."""
        self._held.weigh(model, before)

    async def close(self) -> None:
        """Answer what is under way and finish the snapshots being written."""
        for model in [*self, *self._opening.values()]:
            await model.close()
        self.desk.close()
        self.reference_desk.close()

    async def _load_for_all(self, model_id: str) -> Model:
        """Load the model, also for those who ask for it meanwhile."""
        self._loading[model_id] = loading = Loading()
        model = None
        try:
            model = await self._load(model_id, loading)
        except Exception as error:
            loading.fail(error)
            raise
        finally:
            self._end_loading(model_id, loading)
            loading.end(model)
        return model

    def _end_loading(self, model_id: str, loading: Loading) -> None:
        """Nobody joins it any more."""
        if self._loading.get(model_id) is loading:
            del self._loading[model_id]

    async def _load(self, model_id: str, loading: Loading) -> Model:
        try:
            async with self._may_load:
                began = self.outside.clock()
                base = await self.journal.base(model_id)
                record = base.record
                await self._warm_up(record.spec)
                s_per_row = self._warm.get(record.spec, S_PER_ROW)
                replica = Replica(record, self.settings.kept_answers, self.outside, s_per_row)
                if self._forked_trail(record) is not None:
                    replica.trail = Trail(kept=None)
                await replica.load(self.journal, self.settings.adopt, base)
                self._warm[record.spec] = replica.s_per_row
                self.telemetry.saw_load(self.outside.clock() - began)
        except UnknownModel:
            if self._loading.get(model_id) is loading:
                self.forget_gone(model_id)
            raise unknown_model(model_id) from None
        except JournalError:
            raise
        except Exception as error:
            raise self.set_aside(model_id, error) from error
        if self._loading.get(model_id) is not loading:
            # It was overtaken, and may not be used: of what is there now two would be in use.
            return await self.get(model_id)
        self._unreadable.pop(model_id, None)
        model = Model(self, record, replica)
        forked = self._forked_trail(record)
        self._forked.pop(model_id, None)
        if forked is not None:
            model.count_lost(forked.give_way_to(replica.trail))
            replica.trail = replica.trail.trimmed()
        # Who joined now would be given it even where it has left memory again.
        self._end_loading(model_id, loading)
        self._left.pop(model_id)
        self._held.put(model)
        return model

    def _forked_trail(self, record: ModelRecord) -> Trail | None:
        """Where a replica of this model came by that was forked when it was forgotten here."""
        incarnation, trail = self._forked.get(record.id, ("", None))
        return trail if incarnation == record.incarnation else None


def _beyond_memory() -> Problem:
    return Problem(422, "model-too-large", "a model of this spec takes more memory than there is")


def _stands_elsewhere(model_id: str) -> Problem:
    detail = f"model {model_id!r} does not stand where If-Match says"
    return Problem(412, "precondition-failed", detail)


def _other_spec(model_id: str) -> Problem:
    detail = f"model {model_id!r} exists with another spec; delete it first, "
    return Problem(409, "conflict", detail + "or name its ETag in If-Match")


def canonical(spec: dict[str, Any]) -> bytes:
    """The spec as JSON that is equal for equal specs."""
    return msgspec.json.encode(spec, order="sorted")


def _is_same(record: ModelRecord, spec: dict[str, Any], given: dict[str, Any]) -> bool:
    """A PUT may repeat the spec as it was given, or with every default written out."""
    if json.loads(record.spec) == spec:
        return True
    return canonical(given) in (bytes(record.given), bytes(record.spec))
