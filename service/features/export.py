"""GET /models/{id}/export: the model as a file for other programs."""

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NOT_MODIFIED, IfNoneMatch
from dualstream.service.features.feature import Feature
from dualstream.service.http.body_memory import body_of
from dualstream.service.http.etag import etag_header, etag_of, not_modified
from dualstream.service.models.model import Model
from dualstream.solvers import NotExpressible
from dualstream.solvers.export import FORMATS, MissingExtra, Source, source_of
from dualstream.solvers.export.formats import MAX_NUMBERS
from dualstream.solvers.protocols import served_form
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/models", tags=["models"])

FormatName = Literal["json", "onnx", "sklearn-coef", "vw", "xgboost"]

WRITER_BYTES = 24
"""Memory that a writer takes for each number of the model, at its peak."""
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_JSON = {"schema": {"type": "object"}}


@router.get(
    "/{model_id}/export",
    response_class=Response,
    responses={
        200: {
            "description": "The model as a file, named by Content-Disposition.",
            "content": {
                one.media_type: _JSON if one.media_type == "application/json" else _BYTES
                for one in FORMATS.values()
            },
        },
        **NOT_MODIFIED,
        409: {"description": "The format cannot express the model; `detail` has the reason."},
        501: {"description": "The server lacks a library that the format needs."},
    },
)
async def export_model(
    model_id: str,
    request: Request,
    format: Annotated[
        FormatName, Query(description="docs/guides/export.md describes each format.")
    ],
    member: Annotated[str | None, Query(description="Export this member only.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """Export the model as a file. Its scores are those that the server computes now."""
    model = await registry_of(request).get(model_id)
    written = FORMATS[format]
    try:
        async with model.replica.serving():
            header = etag_header(model)
        if (unchanged := not_modified(header, if_none_match)) is not None:
            return unchanged
        # One at a time: a writer needs several times the memory of the file, and takes turns with
        # the event loop at each small array.
        async with request.app.state.exporting:
            source, header = await model.replica.view(
                lambda: (_source_of(model, member), etag_header(model))
            )
            numbers = min(served_form.numbers_in(source.form), MAX_NUMBERS)
            body_of(request.scope).reserve(WRITER_BYTES * numbers)
            body = await asyncio.to_thread(written.write, source)
    except NotExpressible as reason:
        owner = f"model {model_id!r}" if member is None else f"member {member!r}"
        raise Problem(
            409, "not-exportable", f"{owner} cannot be exported as {format}: {reason}"
        ) from None
    except MissingExtra as missing:
        raise Problem(501, "not-installed", f"{missing} on the server") from None
    name = model_id if member is None else f"{model_id}.{member}"
    headers = header | {"content-disposition": f'attachment; filename="{name}.{written.suffix}"'}
    return Response(body, 200, headers, written.media_type)


def _source_of(model: Model, member: str | None) -> Source:
    replica = model.replica
    identity = (model.record.id, replica.seq, etag_of(replica.seq, replica.chain))
    names = replica.names.copy()
    # With as many names as a model keeps, further features have none.
    named = None if names.are_full else np.array([at for at, _ in names.pairs()], np.int64)
    learner = replica.learner if member is None else model.members()
    return source_of(*identity, learner, member, names.get, named)


FEATURE = Feature(name="export", routers=(router,))
