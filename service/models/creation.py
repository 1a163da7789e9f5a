"""Creating, replacing and deleting models in the store."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

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
from dualstream.service.models.registry import ModelRegistry, check_model_id
from dualstream.service.models.sizeof import bytes_before_rows
from dualstream.service.replica.spec import canonical, read_spec
from dualstream.service.settings import Settings
from dualstream.solvers import check_cost, resolve_spec
from dualstream.wire.problem_json import Problem, unknown_model

MAX_REPLACE_ATTEMPTS = 50
"""Attempts to replace a model that learns between the check and the replacement."""
NO_INCARNATION = "-"
"""An incarnation that no model has."""

Condition = Callable[[ModelRecord], bool]
"""If-Match: may this model of the store be replaced or deleted?"""


async def create(
    registry: ModelRegistry,
    model_id: str,
    given: dict[str, Any],
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
    spec = resolve_spec(given)
    await _check_count(registry, model_id)
    if registry.specs.find(canonical(spec)) is None:
        await _check_before_building(registry, model_id, spec, given, may_replace)
    try:
        known = await registry.specs.get(canonical(spec))
    except MemoryError:
        raise _out_of_memory() from None
    check_size(registry.settings, known.first_bytes)
    if may_replace is not None:
        record, created = await _replace(registry.journal, model_id, spec, given, may_replace, by)
    else:
        made = (canonical(spec), canonical(given))
        change = by.change("create", **describe_spec(spec))
        record, created = await registry.journal.create(model_id, *made, change)
        if not created and not _is_same(record, spec, given):
            raise _other_spec(model_id)
    if created:
        registry.forget_load(model_id)
    cached = registry.find(model_id)
    if cached is not None and cached.record.incarnation != record.incarnation:
        registry.forget(cached)
    return await registry.get(model_id), created


def check_size(settings: Settings, size: int, what: str = "a model of this spec") -> None:
    """Raise Problem 422 if a specification takes too much memory."""
    limit = settings.max_model_bytes
    if size > limit:
        detail = (
            f"{what} takes {size} bytes of memory before its next row, and the "
            f"limit is {limit}; reduce its features or raise DUALSTREAM_MAX_MODEL_BYTES"
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
    registry: ModelRegistry,
    model_id: str,
    spec: dict[str, Any],
    given: dict[str, Any],
    may_replace: Condition | None,
) -> None:
    """Raise every error that needs no learner of the specification, which may be large.

    The id may get another model until this one is created, so all checks run again then.
    """
    with suppress(UnknownModel):
        record = await registry.journal.get(model_id)
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
    if size > 1.25 * registry.settings.max_model_bytes:
        check_size(registry.settings, size)


async def _replace(
    journal: Journal,
    model_id: str,
    spec: dict[str, Any],
    given: dict[str, Any],
    may_replace: Condition,
    by: Author,
) -> tuple[ModelRecord, bool]:
    for _ in range(MAX_REPLACE_ATTEMPTS):
        try:
            record = await journal.get(model_id)
            if _is_same(record, spec, given):
                return record, False
            if not may_replace(record):
                break
            made = await journal.replace(
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
    detail = f"model {model_id!r} exists with another spec; delete it first, "
    return Problem(409, "conflict", detail + "or send its ETag in If-Match")


def _is_same(record: ModelRecord, spec: dict[str, Any], given: dict[str, Any]) -> bool:
    """A PUT may repeat the specification as it was given or with all defaults."""
    if read_spec(record.spec) == spec:
        return True
    return canonical(given) in (bytes(record.given), bytes(record.spec))
