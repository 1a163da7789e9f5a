"""ModelRegistry: finds, creates, replaces and deletes the models of one process."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dualstream.service.codecs.row_schema import DEFAULT_LIMITS
from dualstream.service.concurrency import background_task, drop_traceback
from dualstream.service.journal.audit import SERVER, Author, describe_spec
from dualstream.service.journal.protocol import (
    Conflict,
    Journal,
    LogPosition,
    ModelChanged,
    ModelRecord,
    UnknownModel,
)
from dualstream.service.models.cache import ModelCache, Pin
from dualstream.service.models.compiled_specs import KnownSpecs
from dualstream.service.models.deps import Counters, ModelDeps
from dualstream.service.models.job import Job
from dualstream.service.models.loader import ModelLoader
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import OtherIdentity, StoreIdentity, StoreStatus
from dualstream.service.models.sizeof import bytes_before_rows
from dualstream.service.models.waiting_requests import WaitingRequests
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.spec import DamagedSpec, check_spec, read_spec
from dualstream.service.settings import Settings
from dualstream.solvers import check_cost, resolve_spec
from dualstream.wire.problems import Problem, quoted, unavailable, unknown_model
from dualstream.wire.schemas import MODEL_ID, MODEL_ID_RULE

PAGE = 1000
REACH_S = 2.0
"""How long a prediction waits for its `min_seq`."""
LOADED_AT_START = 100
"""Models that are loaded before the process is ready. Others are loaded on request."""
START_S = 10.0
"""Time of these loads. One that takes longer goes on while other models are served."""
MAX_REPLACE_ATTEMPTS = 50
"""Attempts to replace a model that learns between the check and the replacement."""
NO_INCARNATION = "-"
"""An incarnation that no model has."""


def check_model_id(model_id: str) -> None:
    """Raise Problem 422 if no model can have this id."""
    if not MODEL_ID.fullmatch(model_id):
        raise Problem(422, "invalid-name", f"{MODEL_ID_RULE}; got {quoted(model_id)}")


class ModelRegistry:
    """Models by id. A model that is not in memory is loaded."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        counters: Counters,
        jobs: Sequence[type[Job]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.counters = counters
        self.store_status = StoreStatus(journal)
        self.store_identity = StoreIdentity(journal)
        self.clock = clock
        self.waiting = WaitingRequests(settings.request_timeout_s, clock.now)
        self.deps = ModelDeps(
            journal,
            settings,
            counters,
            clock,
            self.store_identity,
            self.store_status,
            self.waiting,
            jobs,
        )
        self.cache = ModelCache(settings.models_bytes, self._on_eviction)
        self._specs = KnownSpecs(DEFAULT_LIMITS)
        self.loader = ModelLoader(self.deps, self, self.cache, self._specs)

    def __iter__(self) -> Iterator[Model]:
        return iter(self.cache)

    def __len__(self) -> int:
        return len(self.cache)

    def pinned(self, model_id: str) -> Pin:
        """Context manager: the model with this id is not evicted."""
        return Pin(self.cache, model_id)

    def find(self, model_id: str) -> Model | None:
        """The model if it is in memory, in any state. It does not count as a use."""
        return self.cache.find(model_id)

    def cached(self, model_id: str) -> Model | None:
        """The model if it is in memory. Raises Problem 503 while it is rebuilt."""
        model = self.cache.use(model_id)
        if model is not None and model.replica.is_forked:
            raise unavailable(f"model {model_id!r} is being rebuilt from its journal")
        return model

    async def get(self, model_id: str) -> Model:
        """The model, loaded from the journal if needed. Raises Problem 404, 422, 503."""
        model = self.cached(model_id)
        if model is not None:
            return model
        check_model_id(model_id)
        return await self.loader.get(model_id)

    def _on_eviction(self, model: Model) -> None:
        self.counters.saw_eviction()
        self.loader.remember_lineage(model)

    async def reach(self, model_id: str, seq: int) -> Model:
        """The model once its replica has reached `seq`.

        Raises Problem 503 if the journal ends before `seq`, or after REACH_S.
        """
        model = await self.get(model_id)
        pulling = background_task(model.refresh(seq))
        # Not cancelled after the timeout: that would interrupt an apply.
        done, _ = await asyncio.wait([pulling], timeout=REACH_S)
        if not done:
            detail = f"the replica of {model_id!r} is at seq {model.replica.seq}, not yet at {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        try:
            pulling.result()
        except (ModelChanged, UnknownModel):
            model = await self.get(model_id)
        if model.replica.seq < seq:
            detail = f"the journal of {model_id!r} ends at seq {model.replica.seq}, before {seq}"
            raise Problem(503, "min-seq-not-reached", detail, retry_after_s=1)
        return model

    async def bring_up(self) -> None:
        """Open the store, claim its identity, load kernels and the first models."""
        await self.journal.open()
        if not await self.store_identity.claim():
            if not self.settings.adopt:
                raise OtherIdentity(self.store_identity.difference())
            await self._adopt()
        await self.prepare()

    async def _adopt(self) -> None:
        """Adopt a store whose states were computed with another numeric identity.

        Each model is replayed from the beginning of its journal, one at a time, and may be evicted
        after that. Where the journal is trimmed, the replay begins from the old snapshot. The
        stored identity changes last, so an interrupted adoption can be repeated.
        """
        async for record in self.records():
            with self.pinned(record.id), suppress(Problem):  # unreadable, and logged
                model = await self.get(record.id)
                await model.snapshots.write(replaces=True)
        await self.store_identity.adopt()

    async def prepare(self) -> None:
        """Load the kernels of all models of the store, and the first models as far as they fit.

        After START_S the rest is loaded when asked for.

        Models with an unreadable specification or journal are set aside.
        """
        broken: dict[bytes, Exception] = {}
        first: list[str] = []
        async for record in self.records():
            if await self._has_kernels(record, broken) and len(first) < LOADED_AT_START:
                first.append(record.id)
        ends = time.monotonic() + START_S
        for model_id in first:
            if not self.cache.has_room:
                return
            loading = background_task(self.get(model_id))
            done, _ = await asyncio.wait([loading], timeout=max(0.0, ends - time.monotonic()))
            if not done:
                return
            with suppress(Problem, ModelChanged):  # unreadable, or deleted
                loading.result()

    async def _has_kernels(self, record: ModelRecord, broken: dict[bytes, Exception]) -> bool:
        """Load the kernels of the model's specification. False: the model is set aside.

        `broken` holds the errors of unreadable specifications: each is tried once.
        """
        try:
            check_spec(record)
            if record.spec not in broken:
                await self._specs.get(record.spec)
                return True
        except DamagedSpec as error:
            self.loader.set_aside(record.id, error)
            return False
        except Exception as error:
            broken[record.spec] = error
        self.loader.set_aside(record.id, broken[record.spec])
        return False

    async def records(self) -> Any:
        """All models of the store, ordered by id."""
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
        """Create the model, or find one with the same specification. The bool says which.

        With `may_replace`, a model with another specification is deleted and created again in one
        step, if `may_replace` accepts its record in the store.

        Raises InvalidSpec, and Problem 409 if the id has another specification, 412 if it may not
        be replaced, 422 if the id is invalid or the model takes too much memory, 429 if there are
        too many models.
        """
        check_model_id(model_id)
        spec = resolve_spec(given)
        await self._check_count(model_id)
        if self._specs.find(canonical(spec)) is None:
            await self._check_before_building(model_id, spec, given, may_replace)
        try:
            known = await self._specs.get(canonical(spec))
        except MemoryError:
            raise _out_of_memory() from None
        self.check_size(known.first_bytes)
        if may_replace is not None:
            record, created = await self._replace(model_id, spec, given, may_replace, by)
        else:
            made = (canonical(spec), canonical(given))
            change = by.change("create", **describe_spec(spec))
            record, created = await self.journal.create(model_id, *made, change)
            if not created and not _is_same(record, spec, given):
                raise _other_spec(model_id)
        if created:
            self.loader.forget(model_id)
        cached = self.cache.find(model_id)
        if cached is not None and cached.record.incarnation != record.incarnation:
            self.forget(cached)
        return await self.get(model_id), created

    async def _check_before_building(
        self,
        model_id: str,
        spec: dict[str, Any],
        given: dict[str, Any],
        may_replace: Callable[[ModelRecord], bool] | None,
    ) -> None:
        """Raise every error that needs no learner of the specification, which may be large.

        The id may get another model until this one is created, so all checks run again then.
        """
        with suppress(UnknownModel):
            record = await self.journal.get(model_id)
            if _is_same(record, spec, given):
                return
            if may_replace is None:
                raise _other_spec(model_id)
        check_cost(spec)
        try:
            size = await asyncio.to_thread(bytes_before_rows, spec)
        except MemoryError:
            raise _out_of_memory() from None
        # An estimate: a size close to the limit is measured on the built learner.
        if size > 1.25 * self.settings.max_model_bytes:
            self.check_size(size)

    def check_size(self, size: int, what: str = "a model of this spec") -> None:
        """Raise Problem 422 if a specification takes too much memory."""
        most = self.settings.max_model_bytes
        if size > most:
            detail = (
                f"{what} takes {size} bytes of memory before its next row, and the "
                f"limit is {most}; reduce its features or raise DUALSTREAM_MAX_MODEL_BYTES"
            )
            raise Problem(422, "model-too-large", detail)

    async def _check_count(self, model_id: str) -> None:
        """Raise Problem 429 if there are too many models. Concurrent requests may all pass."""
        settings = self.settings
        if settings.max_models is None or await self.journal.count() < settings.max_models:
            return
        try:
            await self.journal.get(model_id)
        except UnknownModel:
            detail = f"the store has {settings.max_models} models, which is the limit; delete one"
            raise Problem(429, "too-many-models", detail, retry_after_s=60) from None

    async def _replace(
        self,
        model_id: str,
        spec: dict[str, Any],
        given: dict[str, Any],
        may_replace: Callable[[ModelRecord], bool],
        by: Author,
    ) -> tuple[ModelRecord, bool]:
        for _ in range(MAX_REPLACE_ATTEMPTS):
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
                    by.change("replace", **describe_spec(spec), replaced_seq=record.seq),
                )
            except UnknownModel:
                detail = f"model {model_id!r} does not exist; remove If-Match to create it"
                raise Problem(412, "precondition-failed", detail) from None
            except Conflict:  # it has advanced: ask may_replace again
                continue
            return made, True
        raise _precondition_failed(model_id)

    async def delete(
        self,
        model_id: str,
        by: Author = SERVER,
        may_delete: Callable[[ModelRecord], bool] | None = None,
    ) -> None:
        """Delete the model and everything that the store keeps of it.

        A later model with the same id stays, however late the store executes the deletion. With
        `may_delete`, a model that has advanced since `may_delete` accepted it stays, too.

        Raises Problem 404; 412 if it may not be deleted; ModelChanged.
        """
        check_model_id(model_id)
        try:
            incarnation, place = await self._to_delete(model_id, may_delete)
            await self.journal.delete(model_id, incarnation, by.change("delete"), place)
        except UnknownModel:
            raise unknown_model(model_id) from None
        except Conflict:
            raise _precondition_failed(model_id) from None
        except ModelChanged:
            if may_delete is None:
                raise
            raise _precondition_failed(model_id) from None
        self.forget_gone(model_id)
        model = self.cache.find(model_id)
        if model is not None and model.record.incarnation == incarnation:
            self.cache.drop(model)
            await model.close()

    async def _to_delete(
        self, model_id: str, may_delete: Callable[[ModelRecord], bool] | None
    ) -> tuple[str, LogPosition | None]:
        """The incarnation to delete, and the position that it must have (None: any).

        If the store has no such model, the incarnation is one that no model has. Deleting
        it finishes a deletion that was interrupted.

        Raises Problem 412.
        """
        try:
            record = await self.journal.get(model_id)
        except UnknownModel as missing:
            drop_traceback(missing)
            return NO_INCARNATION, None
        if may_delete is None:
            return record.incarnation, None
        if not may_delete(record):
            raise _precondition_failed(model_id)
        return record.incarnation, LogPosition(record.seq, record.chain)

    def forget(self, model: Model) -> None:
        """Drop a model that is deleted, replaced or forked. The next request loads it."""
        if self.cache.drop(model) and model.replica.is_forked:
            self.loader.remember_fork(model)

    def forget_gone(self, model_id: str) -> None:
        """Forget a model that is no longer in the store, and cancel its load."""
        self.loader.forget_gone(model_id)
        self.counters.saw_delete(model_id)

    def set_aside(self, model_id: str, error: Exception) -> Problem:
        """Refuse requests for an unreadable model for some seconds."""
        return self.loader.set_aside(model_id, error)

    def on_resize(self, model: Model, before: int) -> None:
        """A model took `before` bytes and now takes `model.bytes`."""
        self.cache.on_resize(model, before)

    async def close(self) -> None:
        """Finish the requests and snapshots under way."""
        for model in self:
            await model.close()
        self.deps.refit_thread.close()
        self.deps.reference_thread.close()


def _out_of_memory() -> Problem:
    return Problem(
        422, "model-too-large", "a model of this spec takes more memory than the machine has"
    )


def _precondition_failed(model_id: str) -> Problem:
    detail = f"model {model_id!r} has another ETag than If-Match names; read it again"
    return Problem(412, "precondition-failed", detail)


def _other_spec(model_id: str) -> Problem:
    detail = f"model {model_id!r} exists with another spec; delete it first, "
    return Problem(409, "conflict", detail + "or send its ETag in If-Match")


def canonical(spec: dict[str, Any]) -> bytes:
    """JSON of a specification. Equal specifications give equal bytes."""
    return msgspec.json.encode(spec, order="sorted")


def _is_same(record: ModelRecord, spec: dict[str, Any], given: dict[str, Any]) -> bool:
    """A PUT may repeat the specification as it was given or with all defaults."""
    if read_spec(record.spec) == spec:
        return True
    return canonical(given) in (bytes(record.given), bytes(record.spec))
