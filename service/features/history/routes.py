"""POST /models/{id}/observe: rows without a label enter the history."""

import asyncio
from functools import partial

import numpy as np
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from dualstream.service.api import request_rows
from dualstream.service.api.common import IdempotencyKey, registry_of
from dualstream.service.api.responses import NO_ROWS, PAUSED, first_errors, refusal
from dualstream.service.api.views import answer
from dualstream.service.codecs import ParsedRows, as_batch, parse_body, without_rows
from dualstream.service.codecs.parsed_rows import with_scores
from dualstream.service.http.openapi import returns
from dualstream.service.http.rate_limits import admit_rows
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import Head, read_head, read_source, stored_key_of
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.models.model import Model
from dualstream.service.models.problems import key_reused
from dualstream.service.models.sources import learn_batch
from dualstream.service.replica.parts import Scored
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Receipt
from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from dualstream.wire.problem_json import Problem, RowError
from dualstream.wire.schemas import Duplicate, Learned, SourceNext
from dualstream.wire.sources import HEADER, Source

router = APIRouter(prefix="/models/{model_id}", tags=["history"])


@router.post(
    "/observe",
    responses={
        200: returns(Learned),
        409: {"description": "The model has no history, or the batch is not its source's next."},
        422: {"description": "No row was accepted."},
        429: {"description": "The model is too large, or its quarantine is full."},
    },
    openapi_extra={
        "parameters": [
            {
                "in": "header",
                "name": HEADER,
                "description": "The rows are a batch of a source, as those of `learn`.",
                "schema": {"type": "string"},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
    },
)
async def observe(
    model_id: str, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Enter rows that never get a label into the history of their keys, each once.

    Bodies and answer are those of `learn`, and nothing is learned; a label is ignored. Ids are a
    set of their own: a row that is observed and learned under one id enters twice. A source moves
    its cursor as for `learn`.
    """
    registry = registry_of(request)
    head = read_head(request.scope)
    source = read_source(head)
    body = await read_body(request.receive, head, registry.settings.max_body_bytes, request.scope)
    key = stored_key_of(idempotency_key)
    mark = request_rows.fingerprint_of(head, {}, body, "observe") if key else None
    is_admitted = False
    while True:
        model = await registry.get(model_id)
        _check_has_history(model)
        parsed = await _parse(model, head, body)
        if model.replica.parts.follows_observed and parsed.row_indices:
            await _score(model, head, body, parsed)
        request_rows.count_refused(registry.counters, model, parsed)
        if not is_admitted:
            await admit_rows(request.scope, parsed.count)
            is_admitted = True
        try:
            observed = await _submit(model, parsed, source, key, mark)
        except ModelChanged:  # deleted or replaced since it was loaded
            registry.forget(model)
            continue
        headers = {"dualstream-durability": request.app.state.startup.durability.decode()}
        return answer(observed, headers)


def _check_has_history(model: Model) -> None:
    """Raise Problem 409 for a model without history."""
    if not model.replica.spec.get("history"):
        detail = (
            f"model {model.record.id!r} has no history, so a row without a label would change "
            "nothing: create a model with `history`, or send rows with labels to learn"
        )
        raise Problem(409, "nothing-to-observe", detail)


async def _parse(model: Model, head: Head, body: bytes) -> ParsedRows:
    """Raises Problem 400, 413, 415, 422."""
    schema = model.row_schema.observing
    arguments = (schema, head.content_type, body)
    if not body and head.source is not None:
        return ParsedRows(without_rows(schema), [])
    if request_rows.is_parsed_inline(schema, body):
        return parse_body(*arguments, labelled=False)
    return await asyncio.to_thread(parse_body, *arguments, labelled=False)


async def _score(model: Model, head: Head, body: bytes, parsed: ParsedRows) -> None:
    """Let the rows bring their scores by the present state, as remembered ones do.

    Rows that cannot be predicted bring none.
    """
    whole = await request_rows.parse(model, head, body, labelled=False)
    row_of = {index: row for row, index in enumerate(whole.row_indices)}
    rows = [row_of.get(index, -1) for index in parsed.row_indices]
    replica = model.replica
    async with replica.serving():
        pieces = await replica.scored(partial(_served_by, replica), as_batch([whole.rows]))
    scores, kept = map(np.concatenate, zip(*pieces, strict=True))
    none = np.full((1, kept.shape[1]), np.nan)  # of row -1
    scores, kept = np.append(scores, np.nan)[rows], np.vstack([kept, none])[rows]
    parsed.rows = with_scores(parsed.rows, scores, kept)


def _served_by(replica: Replica, batch: Batch) -> tuple[Floats, Floats]:
    scores = replica.learner.predict(batch)
    probabilities = replica.learner.probabilities(scores)
    kept = replica.parts.served(Scored(batch, scores, probabilities, None))
    assert kept is not None
    return scores, kept


async def _submit(
    model: Model, parsed: ParsedRows, source: Source | None, key: bytes | None, mark: bytes | None
) -> Learned:
    """Journal the rows. Raises Problem 422 if none is accepted, unless a source moves over them."""
    good, bad = len(parsed.row_indices), len(parsed.errors)
    if source is not None:
        request = await request_rows.request_of(parsed, None, None) if good else None
        batch = await learn_batch(model, source, request, good, bad)
        observed = _answer(model, parsed, batch.receipt, batch.is_duplicate)
        observed.seq = batch.receipt.position.seq or model.replica.seq
        observed.source = SourceNext(source.name, batch.cursor.next)
        return observed
    if not parsed.count:
        raise Problem(422, "invalid-rows", NO_ROWS)
    if not good:
        raise refusal(parsed, parsed.errors)
    receipt = await model.submit(await request_rows.request_of(parsed, key, mark))
    if receipt.position.conflict:
        raise key_reused()
    if len(receipt.conflicts) == good:
        raise refusal(parsed, _errors(parsed, receipt))
    return _answer(model, parsed, receipt, receipt.position.duplicate)


def _answer(model: Model, parsed: ParsedRows, receipt: Receipt, is_duplicate: bool) -> Learned:
    """The answer about rows that were journalled now or before."""
    indices, position = parsed.row_indices, receipt.position
    duplicates = [Duplicate(indices[row], seq) for row, seq in receipt.duplicates]
    errors = _errors(parsed, receipt)
    is_old = bool(duplicates) and not position.count and not errors
    return Learned(
        model=model.record.id,
        seq=position.seq,
        count=position.count,
        learned=0,
        mistakes=None,
        loss=None,
        rejected=len(errors),
        duplicate=is_duplicate or is_old,
        duplicates=duplicates or UNSET,
        errors=first_errors(errors),
    )


def _errors(parsed: ParsedRows, receipt: Receipt) -> list[RowError]:
    """Errors of all rows that have not entered, in the order of the request."""
    indices, errors = parsed.row_indices, [*parsed.errors]
    for row in receipt.conflicts:
        pointer = parsed.id_pointer.format(indices[row])
        errors.append(RowError(indices[row], pointer, "another row was observed under this id"))
    rows = range(len(indices)) if receipt.rows is None else receipt.rows
    quarantined = rows[len(rows) - receipt.set_aside :]
    errors += [RowError(indices[row], "", PAUSED) for row in quarantined]
    errors.sort(key=lambda error: error.index)
    return errors
