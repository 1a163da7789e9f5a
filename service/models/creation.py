"""Creating, replacing and deleting models in the store."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from dualstream.service.concurrency import drop_traceback
from dualstream.service.journal.audit import SERVER, Author, describe_spec
from dualstream.service.journal.protocol import (
    Conflict,
    Journal,
    LogPosition,
    ModelChanged,
    ModelRecord,
    UnknownModel,
)
from dualstream.service.models.model import Model
from dualstream.service.models.problems import unknown_model
from dualstream.service.models.registry import ModelRegistry, check_model_id
from dualstream.service.models.sizeof import WIDE, bytes_before_rows, ring_bytes
from dualstream.service.replica.spec import canonical, read_spec
from dualstream.service.settings import Settings
from dualstream.solvers import resolve_spec
from dualstream.solvers.rows import intercept
from dualstream.solvers.spec import cost
from dualstream.wire.problem_json import Problem

MAX_REPLACE_ATTEMPTS = 50
"""Attempts to replace a model that learns between the check and the replacement."""
NO_INCARNATION = "-"
"""An incarnation that no model has."""

Condition = Callable[[ModelRecord], bool]
"""If-Match: may this model of the store be replaced or deleted?"""


class NewSpec(NamedTuple):
    """Specification of a request: resolved, its canonical JSON, and that of the request."""

    resolved: dict[str, Any]
    text: bytes
    request_text: bytes

    def is_of(self, record: ModelRecord) -> bool:
        """A PUT may repeat the specification as it was given or with all defaults."""
        if read_spec(record.spec) == self.resolved:
            return True
        return self.request_text in (bytes(record.given), bytes(record.spec))

    def description(self) -> dict[str, Any]:
        """What the audit log keeps of it."""
        return describe_spec(self.resolved, self.text)


async def create(
    registry: ModelRegistry,
    model_id: str,
    request: dict[str, Any],
    may_replace: Condition | None = None,
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
    resolved = resolve_spec(request)
    registry.deps.features.check_spec(resolved)
    spec = NewSpec(resolved, canonical(resolved), canonical(request))
    await _check_count(registry, model_id)
    if registry.specs.find(spec.text) is None:
        await _check_before_building(registry, model_id, spec, may_replace)
    try:
        compiled = await registry.specs.get(spec.text)
    except MemoryError:
        raise _out_of_memory() from None
    try:
        check_size(registry.settings, compiled.first_bytes + ring_bytes(resolved))
        record, created = await _stored(registry.journal, model_id, spec, may_replace, by)
        if created:
            registry.forget_load(model_id)
        cached = registry.find(model_id)
        if cached is not None and cached.record.incarnation != record.incarnation:
            registry.forget(cached)
        return await registry.get(model_id), created
    finally:
        compiled.take_learner()  # frees it if the model did not take it


async def _stored(
    journal: Journal, model_id: str, spec: NewSpec, may_replace: Condition | None, by: Author
) -> tuple[ModelRecord, bool]:
    """The record of the model in the store, and whether it was created now."""
    if may_replace is not None:
        return await _replaced(journal, model_id, spec, may_replace, by)
    change = by.change("create", **spec.description())
    record, created = await journal.create(model_id, spec.text, spec.request_text, change)
    if not created and not spec.is_of(record):
        raise _other_spec(model_id)
    return record, created


def check_size(settings: Settings, size: int, what: str = "a model of this spec") -> None:
    """Raise Problem 422 if a specification takes too much memory."""
    limit = settings.max_model_bytes
    if size > limit:
        detail = (
            f"{what} takes {size} bytes of memory before its next row, or with the rows of "
            f"`memory: large`, and the limit is {limit}; reduce its features, the keys of its "
            "history or its memory, or raise DUALSTREAM_MAX_MODEL_BYTES"
        )
        raise Problem(422, "model-too-large", detail)


async def _check_count(registry: ModelRegistry, model_id: str) -> None:
    """Raise Problem 429 if there are too many models. Concurrent requests may all pass."""
    journal, limit = registry.journal, registry.settings.max_models
    if limit is None or await journal.count() < limit:
        return
    try:
        await journal.get(model_id)
    except UnknownModel:
        detail = f"the store has {limit} models, which is the limit; delete one"
        raise Problem(429, "too-many-models", detail, retry_after_s=60) from None


async def _check_before_building(
    registry: ModelRegistry, model_id: str, spec: NewSpec, may_replace: Condition | None
) -> None:
    """Raise every error that needs no learner of the specification, which may be large.

    The id may get another model until this one is created, so all checks run again then.
    """
    with suppress(UnknownModel):
        record = await registry.journal.get(model_id)
        if spec.is_of(record):
            return
        if may_replace is None:
            raise _other_spec(model_id)
    cost.check_cost(spec.resolved)
    is_narrow = intercept.width_of(spec.resolved["features"]) < WIDE
    if is_narrow and not spec.resolved.get("history"):
        return  # it is built and measured next
    try:
        size = await asyncio.to_thread(bytes_before_rows, spec.resolved)
        size += ring_bytes(spec.resolved)
    except MemoryError:
        raise _out_of_memory() from None
    # An estimate: a size close to the limit is measured on the built learner.
    if size > 1.25 * registry.settings.max_model_bytes:
        check_size(registry.settings, size)


async def _replaced(
    journal: Journal, model_id: str, spec: NewSpec, may_replace: Condition, by: Author
) -> tuple[ModelRecord, bool]:
    for _ in range(MAX_REPLACE_ATTEMPTS):
        try:
            record = await journal.get(model_id)
            if spec.is_of(record):
                return record, False
            if not may_replace(record):
                break
            replacement = await journal.replace(
                model_id,
                record.incarnation,
                record.seq,
                record.chain,
                spec.text,
                spec.request_text,
                by.change("replace", **spec.description(), replaced_seq=record.seq),
            )
        except UnknownModel:
            detail = f"model {model_id!r} does not exist; remove If-Match to create it"
            raise Problem(412, "precondition-failed", detail) from None
        except Conflict:  # it has advanced: ask may_replace again
            continue
        return replacement, True
    raise _precondition_failed(model_id)


async def delete(
    registry: ModelRegistry, model_id: str, by: Author = SERVER, may_delete: Condition | None = None
) -> None:
    """Delete the model and everything that the store keeps of it.

    A later model with the same id stays, however late the store executes the deletion. With
    `may_delete`, a model that has advanced since `may_delete` accepted it stays, too.

    Raises Problem 404; 412 if it may not be deleted; ModelChanged.
    """
    check_model_id(model_id)
    journal = registry.journal
    try:
        incarnation, position = await _to_delete(journal, model_id, may_delete)
        await journal.delete(model_id, incarnation, by.change("delete"), position)
    except UnknownModel:
        raise unknown_model(model_id) from None
    except Conflict:
        raise _precondition_failed(model_id) from None
    except ModelChanged:
        if may_delete is None:
            raise
        raise _precondition_failed(model_id) from None
    registry.forget_gone(model_id)
    model = registry.find(model_id)
    if model is not None and model.record.incarnation == incarnation:
        registry.forget(model)
        await model.close()


async def _to_delete(
    journal: Journal, model_id: str, may_delete: Condition | None
) -> tuple[str, LogPosition | None]:
    """The incarnation to delete, and the position that it must have (None: any).

    If the store has no such model, the incarnation is one that no model has. Deleting
    it finishes a deletion that was interrupted.

    Raises Problem 412.
    """
    try:
        record = await journal.get(model_id)
    except UnknownModel as missing:
        drop_traceback(missing)
        return NO_INCARNATION, None
    if may_delete is None:
        return record.incarnation, None
    if not may_delete(record):
        raise _precondition_failed(model_id)
    return record.incarnation, LogPosition(record.seq, record.chain)


def _out_of_memory() -> Problem:
    return Problem(
        422, "model-too-large", "a model of this spec takes more memory than the machine has"
    )


def _precondition_failed(model_id: str) -> Problem:
    detail = f"model {model_id!r} has another ETag than If-Match names; read it again"
    return Problem(412, "precondition-failed", detail)


def _other_spec(model_id: str) -> Problem:
    detail = f"model {model_id!r} exists with another spec; use another id, or delete it first, "
    return Problem(409, "conflict", detail + "or replace it: PUT with the header `If-Match: *`")
