"""Sources of a model: learn their batches exactly once, list, set and forget their cursors."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from msgspec import UNSET
from pydantic import BaseModel, Field, StrictInt, StrictStr

from dualstream.service.api.common import registry_of
from dualstream.service.api.request_rows import count_refused, parse, request_of
from dualstream.service.api.responses import answer_new, first_errors
from dualstream.service.api.views import answer
from dualstream.service.codecs import ParsedRows, without_rows
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.http.rate_limits import KeyLimits
from dualstream.service.http.request_head import Head, invalid_source
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.models import sources
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.wire.changes import SourceCursor, SourceList
from dualstream.wire.schemas import Learned, SourceNext
from dualstream.wire.sources import MAX_OFFSET, MAX_TEXT, Source, check_name, check_offset

router = APIRouter(prefix="/models/{model_id}/sources", tags=["sources"])

_Offset = (
    Annotated[StrictInt, Field(ge=0, le=MAX_OFFSET)]
    | Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT)]
)


class NewCursor(BaseModel, extra="forbid"):
    """Where a source continues."""

    next: _Offset = Field(description="Offset at which its next batch must begin.")


@router.get("", responses={200: returns(SourceList)})
async def list_sources(model_id: str, request: Request) -> Response:
    """List the sources of a model, with their cursors."""
    model = await registry_of(request).get(model_id)
    cursors = await sources.read_sources(model)
    return answer(SourceList([_view(*one) for one in cursors.items()]))


@router.put("/{name:path}", responses={200: returns(SourceCursor)})
async def put_source(model_id: str, name: str, request: Request, requested: NewCursor) -> Response:
    """Set the offset at which the next batch of a source must begin."""
    _check(name, requested.next)
    model = await registry_of(request).get(model_id)
    cursor = await sources.set_source(model, name, requested.next, author_of(request))
    return answer(_view(name, cursor))


@router.delete("/{name:path}", status_code=204)
async def delete_source(model_id: str, name: str, request: Request) -> None:
    """Forget a source. A batch that says it is the first one begins it again, at any offset."""
    _check(name)
    model = await registry_of(request).get(model_id)
    await sources.forget_source(model, name, author_of(request))


def _check(name: str, offset: int | str | None = None) -> None:
    """Raise Problem 422 for an invalid name or offset."""
    try:
        check_name(name)
        if offset is not None:
            check_offset("next", offset)
    except ValueError as wrong:
        raise invalid_source(str(wrong)) from None


def _view(name: str, cursor: sources.SourceCursor) -> SourceCursor:
    return SourceCursor(
        name=name,
        next=cursor.next,
        rows=cursor.rows,
        refused=cursor.refused,
        updated_at=datetime.fromtimestamp(cursor.updated_ms / 1000, UTC),
        lag=cursor.lag,
    )


async def learn_from_source(
    registry: ModelRegistry,
    model: Model,
    source: Source,
    head: Head,
    body: bytes,
    wants_scores: bool,
    limits: KeyLimits | None,
) -> Learned:
    """Learn a batch of a source as one append, which moves the source's cursor.

    Raises Problem as learn does, and 409 if the batch is not the next one of its source, or the
    source is unknown and the batch does not begin it.
    """
    while True:
        if body:
            parsed = await parse(model, head, body, labelled=True)
        else:
            parsed = ParsedRows(without_rows(model.row_schema), [])
        count_refused(registry.counters, model, parsed)
        if limits is not None:
            await limits.admit_rows(parsed.count)
            limits = None
        good, bad = len(parsed.row_indices), len(parsed.errors)
        request = await request_of(parsed, None, None) if good else None
        try:
            batch = await sources.learn_batch(model, source, request, good, bad)
        except ModelChanged:  # deleted or replaced since it was loaded
            registry.forget(model)
            model = await registry.get(model.record.id)
            continue
        return _answer(model, parsed, source.name, batch, wants_scores or parsed.single)


def _answer(
    model: Model, parsed: ParsedRows, source: str, batch: sources.LearnedBatch, with_scores: bool
) -> Learned:
    """The answer to a batch, of which any number of rows may be accepted."""
    receipt = batch.receipt
    if batch.is_duplicate or receipt.scores is None:
        count = receipt.position.count
        learned = None if count else 0
        answered = Learned(
            model.record.id, 0, count, learned, None, None, len(parsed.errors), batch.is_duplicate
        )
        answered.scores = None if with_scores else UNSET
        answered.errors = first_errors(parsed.errors)
    else:
        model.mark_names_journalled(parsed, receipt)
        answered = answer_new(model, parsed, receipt, with_scores, may_be_empty=True)
    # The append has brought the replica to the end of the journal.
    answered.seq = receipt.position.seq or model.replica.seq
    answered.source = SourceNext(source, batch.cursor.next)
    return answered
