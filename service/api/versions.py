"""Versions of a model: take, list, delete them; and go back to one, or to a seq."""

from datetime import UTC, datetime
from typing import Annotated, Self

import msgspec
from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field, model_validator

from dualstream.service.api.access import author_of
from dualstream.service.api.http import stored_key_of
from dualstream.service.api.idempotency import Repeated, repeated, repeated_at
from dualstream.service.api.models import catalog_of
from dualstream.service.journal.protocol import Version
from dualstream.service.models.versions import (
    known_version,
    roll_back_to_seq,
    roll_back_to_version,
    take_version,
    unknown_version,
)
from dualstream.service.replica.point_in_time import kept_from
from dualstream.wire.problems import Problem, key_reused

router = APIRouter(prefix="/models/{model_id}", tags=["versions"])

IdempotencyKey = Annotated[
    list[str] | None, Header(description="Done once, however often it is sent.")
]


class NewVersion(BaseModel, extra="forbid"):
    """What a version shall be called."""

    name: str | None = Field(None, description="Left out: seq-SEQ.")
    note: str = Field("", max_length=1000)


class VersionView(BaseModel):
    """A full copy of a state, by its name."""

    model: str
    name: str
    seq: int = Field(description="Of the last record that the state holds.")
    digest: str = Field(description="SHA-256 of the copy.")
    bytes: int
    created: datetime
    note: str


class VersionList(BaseModel):
    """The versions of a model in the order of their seqs."""

    model: str
    seq: int = Field(description="Of the journal's last record.")
    kept_from: int = Field(description="The first seq that the journal still holds.")
    versions: list[VersionView]


class GoBack(BaseModel, extra="forbid"):
    """Where to go back to: a version, or a seq."""

    # A length makes it text that is UTF-8; as a seq, `true` would be 1.
    version: str | None = Field(None, max_length=128)
    seq: int | None = Field(None, ge=0, strict=True)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.version is None) == (self.seq is None):
            raise ValueError("name a version or a seq, one of them")
        return self


class RolledBack(BaseModel):
    """The state is again what it was; the journal goes on from here."""

    model: str
    seq: int = Field(description="Of the record that says so.")
    to_seq: int | None = Field(
        description="Of the state; null where the first answer is no longer kept."
    )
    version: str | None
    digest: str | None = Field(
        description="SHA-256 of the copy that it was restored from; null where that is not kept."
    )
    duplicate: bool = Field(description="It was done before, under the same Idempotency-Key.")


@router.post(
    "/versions",
    response_model=VersionView,
    status_code=201,
    responses={200: {"description": "It is there, of the same state.", "model": VersionView}},
)
async def create_version(
    model_id: str, request: Request, response: Response, asked: NewVersion | None = None
) -> VersionView:
    """Keep a full copy of the state as it is now."""
    catalog = catalog_of(request)
    model = await catalog.get(model_id)
    asked = asked or NewVersion(name=None, note="")
    version, is_new = await take_version(
        model, catalog.journal, asked.name, asked.note, author_of(request)
    )
    response.status_code = 201 if is_new else 200
    return _view(model_id, version)


@router.get("/versions", response_model=VersionList)
async def list_versions(model_id: str, request: Request) -> VersionList:
    """The versions, and how far back the journal reaches."""
    catalog = catalog_of(request)
    record = (await catalog.get(model_id)).record
    now = await catalog.journal.get(model_id)
    versions = await catalog.journal.versions(record.id, record.incarnation)
    return VersionList(
        model=model_id,
        seq=now.seq,
        kept_from=await kept_from(catalog.journal, now),
        versions=[_view(model_id, version) for version in versions],
    )


@router.get("/versions/{name}", response_model=VersionView)
async def read_version(model_id: str, name: str, request: Request) -> VersionView:
    """One version."""
    catalog = catalog_of(request)
    model = await catalog.get(model_id)
    return _view(model_id, await known_version(model, catalog.journal, name))


@router.delete("/versions/{name}", status_code=204)
async def delete_version(model_id: str, name: str, request: Request) -> None:
    """Take the name away, and its copy unless a kept rollback needs it."""
    catalog = catalog_of(request)
    record = (await catalog.get(model_id)).record
    change = author_of(request).change("version_delete", name=name)
    if not await catalog.journal.version_delete(record.id, record.incarnation, name, change):
        raise unknown_version(model_id, name)


@router.post(
    "/rollback",
    response_model=RolledBack,
    responses={410: {"description": "The journal no longer reaches back so far, or ends before."}},
)
async def roll_back(
    model_id: str,
    asked: GoBack,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RolledBack:
    """Make the state what it was. Samples learned since stay known by their ids and keys."""
    catalog = catalog_of(request)
    model = await catalog.get(model_id)
    key = stored_key_of(idempotency_key)
    mark = msgspec.json.encode(asked.model_dump(), order="sorted")
    await model.refresh()
    if (before := await repeated(model, key, mark)) is not None:
        return _again(model_id, asked, before, response)
    how = (key, mark, author_of(request))
    if asked.version is not None:
        done = await roll_back_to_version(model, catalog.journal, asked.version, *how)
    else:
        assert asked.seq is not None
        done = await roll_back_to_seq(model, catalog.journal, asked.seq, *how)
    order, receipt = done
    if receipt.placed.conflict:
        raise key_reused()
    if receipt.placed.duplicate:
        before = await repeated_at(model, receipt.placed.seq)
        return _again(model_id, asked, before, response)
    if receipt.verdict is not None and receipt.verdict.refusal is not None:
        raise _refused(receipt.verdict.refusal)
    return RolledBack(
        model=model_id,
        seq=receipt.placed.seq,
        to_seq=order.seq,
        version=order.version,
        digest=order.digest,
        duplicate=False,
    )


def _refused(reason: str) -> Problem:
    """The journal's order made it impossible."""
    return Problem(410, "not-kept", reason)


def _again(model_id: str, asked: GoBack, before: Repeated, response: Response) -> RolledBack:
    before.check_done(_refused(""))
    before.mark(response)
    fields = {} if before.told is None else before.told.fields
    return RolledBack(
        model=model_id,
        seq=before.seq,
        to_seq=fields.get("seq", asked.seq),
        version=asked.version,
        digest=fields.get("digest"),
        duplicate=True,
    )


def _view(model_id: str, version: Version) -> VersionView:
    return VersionView(
        model=model_id,
        name=version.name,
        seq=version.seq,
        digest=version.digest,
        bytes=version.bytes,
        created=datetime.fromtimestamp(version.created_ms / 1000, UTC),
        note=version.note,
    )
