"""The named models of one process: found, made and let go of."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dualstream.service.clock import REAL, Outside
from dualstream.service.codecs import MAX_NONZEROS, RowLimits
from dualstream.service.concurrency import background_task, drop_traceback
from dualstream.service.journal.author import SERVER, Author, told_of_spec
from dualstream.service.journal.protocol import (
    Conflict,
    Journal,
    ModelChanged,
    ModelRecord,
    Place,
    UnknownModel,
)
from dualstream.service.models.admission import MAX_WAIT_S, AdmissionControl, IdleShare
from dualstream.service.models.cache import ModelCache, Pin
from dualstream.service.models.deps import Counters, ModelDeps
from dualstream.service.models.job import Job
from dualstream.service.models.loader import ModelLoader
from dualstream.service.models.model import Model
from dualstream.service.models.sizeof import bytes_before_rows
from dualstream.service.models.spec_cache import KnownSpecs
from dualstream.service.models.store_status import StoreIdentity, StoreStatus
from dualstream.service.replica.spec import DamagedSpec, check_spec, read_spec
from dualstream.service.settings import Settings
from dualstream.solvers import resolve_spec
from dualstream.wire.problems import Problem, unavailable, unknown_model

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PAGE = 1000
REACH_S = 2.0
"""How long a prediction waits for its `min_seq`."""
LOADED_AT_START = 100
"""So many models at most are in memory before the process serves; others come when asked for."""
REPLACED_IN = 50
"""Looks at a model that is to be replaced wherever it stands, and learns between each two steps."""
NOBODYS = "-"
"""An incarnation that no model has."""


class ModelRegistry:
    """Finds, makes and drops models; those that are not in memory are loaded."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        telemetry: Counters,
        jobs: Sequence[type[Job]],
        outside: Outside = REAL,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.telemetry = telemetry
        self.contact = StoreStatus(journal)
        self.identity = StoreIdentity(journal)
        self.outside = outside
        self.pressure = AdmissionControl(
            settings.max_in_flight,
            MAX_WAIT_S,
            settings.request_timeout_s,
            telemetry.saw_shed,
            outside.clock,
            IdleShare().share,
        )
        self.deps = ModelDeps(
            journal,
            settings,
            telemetry,
            outside,
            self.identity,
            self.contact,
            self.pressure,
            jobs,
        )
        self._held = ModelCache(settings.models_bytes, settings.models_held, self._saw_eviction)
        self._specs = KnownSpecs(RowLimits(settings.max_rows, MAX_NONZEROS))
        self.loads = ModelLoader(self.deps, self, self._held, self._specs)

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
        if not MODEL_ID.fullmatch(model_id):
            raise unknown_model(model_id)
        return await self.loads.get(model_id)

    def _saw_eviction(self, model: Model) -> None:
        self.telemetry.saw_eviction()
        self.loads.remember_trail(model)

    async def reach(self, model_id: str, seq: int) -> Model:
        """The model at `seq` or beyond, as soon as its replica is there.

        Raises Problem 503 when the journal does not go so far, or when it takes too long.
        """
        model = await self.get(model_id)
        pulling = background_task(model.refresh(seq))
        # Whoever stops waiting leaves it to its end: to cancel would cut an apply in two.
        done, _ = await asyncio.wait([pulling], timeout=REACH_S)
        if not done:
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
            if await self._has_kernels(record, broken) and len(first) < LOADED_AT_START:
                first.append(record.id)
        for model_id in first:
            if not self._held.has_room:
                return
            with suppress(Problem, ModelChanged):  # set aside, or gone meanwhile
                await self.get(model_id)

    async def _has_kernels(self, record: ModelRecord, broken: dict[bytes, Exception]) -> bool:
        """Load the kernels of its spec; False for a model that is set aside.

        `broken` are the specs that cannot be read: each is tried once.
        """
        try:
            check_spec(record)
            if record.spec not in broken:
                await self._specs.get(record.spec)
                return True
        except DamagedSpec as error:
            self.loads.set_aside(record.id, error)
            return False
        except Exception as error:
            broken[record.spec] = error
        self.loads.set_aside(record.id, broken[record.spec])
        return False

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
        if self._specs.find(canonical(spec)) is None:
            await self._check_before_building(model_id, spec, given, may_replace)
        try:
            known = await self._specs.get(canonical(spec))
        except MemoryError:
            raise _beyond_memory() from None
        self._check_size(known.first_bytes)
        if may_replace is not None:
            record, created = await self._replace(model_id, spec, given, may_replace, by)
        else:
            made = (canonical(spec), canonical(given))
            change = by.change("create", **told_of_spec(spec))
            record, created = await self.journal.create(model_id, *made, change)
            if not created and not _is_same(record, spec, given):
                raise _other_spec(model_id)
        if created:
            self.loads.forget(model_id)
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
            drop_traceback(missing)
            return NOBODYS, None
        if may_delete is None:
            return record.incarnation, None
        if not may_delete(record):
            raise _stands_elsewhere(model_id)
        return record.incarnation, Place(record.seq, record.chain)

    def forget(self, model: Model) -> None:
        """Stop holding a model that is not the store's any more; the next request loads anew."""
        if self._held.drop(model) and model.replica.is_forked:
            self.loads.remember_fork(model)

    def forget_gone(self, model_id: str) -> None:
        """Keep nothing of a model that is no longer in the store, not even a load under way."""
        self.loads.forget_gone(model_id)
        self.telemetry.saw_delete(model_id)

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Refuse requests for a model that cannot be read, for a while."""
        return self.loads.set_aside(model_id, error)

    def weigh(self, model: Model, before: int) -> None:
        """A model took `before` bytes of memory and takes other ones now."""
        self._held.weigh(model, before)

    async def close(self) -> None:
        """Answer what is under way and finish the snapshots being written."""
        for model in self:
            await model.close()
        self.deps.refit_thread.close()
        self.deps.reference_thread.close()


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
    if read_spec(record.spec) == spec:
        return True
    return canonical(given) in (bytes(record.given), bytes(record.spec))
