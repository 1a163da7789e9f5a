"""Versions of a model: create, list, delete; rollback to a version or a log position."""

from datetime import UTC, datetime
from typing import Self

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, model_validator

from dualstream.service.api.common import IdempotencyKey, registry_of, run_once
from dualstream.service.api.views import answer
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.http.request_head import stored_key_of
from dualstream.service.journal.protocol import Version as Stored
from dualstream.service.models.versions import (
    known_version,
    roll_back_to_seq,
    roll_back_to_version,
    take_version,
    unknown_version,
    unreadable_version,
)
from dualstream.service.replica.copies import Rollback, fetch_copy
from dualstream.service.replica.point_in_time import kept_from
from dualstream.service.replica.requests import Receipt
from dualstream.service.replica.state import UnreadableCopy
from dualstream.wire.changes import RolledBack, Version, Versions
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["versions"])


class NewVersion(BaseModel, extra="forbid"):
    """Name and note of a new version."""

    name: str | None = Field(None, description="Default: seq-SEQ.")
    note: str = Field("", max_length=1000)


class GoBack(BaseModel, extra="forbid"):
    """Target of a rollback: a version or a seq."""

    # max_length makes pydantic require valid UTF-8; strict refuses `true`, which is 1 otherwise.
    version: str | None = Field(None, max_length=128)
    seq: int | None = Field(None, ge=0, strict=True)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.version is None) == (self.seq is None):
            raise ValueError("send either version or seq")
        return self


@router.post(
    "/versions",
    status_code=201,
    responses={
        200: returns(Version, "The version exists with the same state."),
        201: returns(Version),
    },
)
async def create_version(
    model_id: str, request: Request, requested: NewVersion | None = None
) -> Response:
    """Save the current state under a name."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    requested = requested or NewVersion(name=None, note="")
    version, is_new = await take_version(
        model, registry.journal, requested.name, requested.note, author_of(request)
    )
    return answer(_view(model_id, version), status=201 if is_new else 200)


@router.get("/versions", responses={200: returns(Versions)})
async def list_versions(model_id: str, request: Request) -> Response:
    """List versions, with the range of the journal."""
    registry = registry_of(request)
    record = (await registry.get(model_id)).record
    now = await registry.journal.get(model_id)
    versions = await registry.journal.versions(record.id, record.incarnation)
    view = Versions(
        model=model_id,
        seq=now.seq,
        kept_from=await kept_from(registry.journal, now),
        versions=[_view(model_id, version) for version in versions],
    )
    return answer(view)


@router.get("/versions/{name}", responses={200: returns(Version)})
async def read_version(model_id: str, name: str, request: Request) -> Response:
    """Read one version."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    return answer(_view(model_id, await known_version(model, registry.journal, name)))


@router.get("/versions/{name}/metrics")
async def read_version_metrics(model_id: str, name: str, request: Request) -> Response:
    """Progressive metrics as they were when the version was saved, with the timeline up to it."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    version = await known_version(model, registry.journal, name)
    try:
        state = await fetch_copy(model.replica, version.digest, registry.journal)
    except UnreadableCopy as error:
        raise unreadable_version(name, error) from error
    view = {"model": model_id, "version": name, "seq": version.seq, **state.progress.summary()}
    return answer(view | state.parts.metrics() | {"points": state.progress.timeline()})


@router.delete("/versions/{name}", status_code=204)
async def delete_version(model_id: str, name: str, request: Request) -> None:
    """Delete a version. Its copy is kept while a journalled rollback needs it."""
    registry = registry_of(request)
    record = (await registry.get(model_id)).record
    change = author_of(request).change("version_delete", name=name)
    if not await registry.journal.version_delete(record.id, record.incarnation, name, change):
        raise unknown_version(model_id, name)


@router.post(
    "/rollback",
    responses={
        200: returns(RolledBack),
        410: {"description": "`seq` is outside the range of the journal."},
    },
)
async def roll_back(
    model_id: str, requested: GoBack, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Restore an earlier state. Ids and keys of samples learned since stay known."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    key = stored_key_of(idempotency_key)
    mark = msgspec.json.encode(requested.model_dump(), order="sorted")
    how = (key, mark, author_of(request))

    async def submit() -> tuple[Rollback, Receipt]:
        if requested.version is not None:
            return await roll_back_to_version(model, registry.journal, requested.version, *how)
        assert requested.seq is not None
        return await roll_back_to_seq(model, registry.journal, requested.seq, *how)

    done = await run_once(model, key, mark, submit)
    done.check(_refused)
    return done.answer(
        RolledBack(
            model=model_id,
            seq=done.seq,
            to_seq=done.fields.get("seq", requested.seq),
            version=requested.version,
            digest=done.fields.get("digest"),
            duplicate=done.is_repeated,
        )
    )


def _refused(reason: str) -> Problem:
    """The refusal of a rollback that came after another change in the journal."""
    return Problem(410, "not-kept", reason)


def _view(model_id: str, version: Stored) -> Version:
    return Version(
        model=model_id,
        name=version.name,
        seq=version.seq,
        digest=version.digest,
        bytes=version.bytes,
        created=datetime.fromtimestamp(version.created_ms / 1000, UTC),
        note=version.note,
    )
