"""POST /models/{id}/resume: end the pause of a model."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.access import author_of
from dualstream.service.api.asgi_helpers import stored_key_of
from dualstream.service.api.common import Repeated, registry_of, repeated, repeated_at
from dualstream.service.api.versions import IdempotencyKey
from dualstream.service.api.views import answer, returns
from dualstream.service.jobs.guard_rollback import GuardRollback
from dualstream.service.models.model import Model
from dualstream.service.replica.controls import Resume, paused_at
from dualstream.service.replica.requests import ControlRequest
from dualstream.wire.changes import Resumed
from dualstream.wire.problems import Problem, key_reused

router = APIRouter(prefix="/models/{model_id}", tags=["pauses"])

Rows = Literal["learn", "drop"]


@router.post(
    "/resume", responses={200: returns(Resumed), 409: {"description": "The model is not paused."}}
)
async def resume_model(
    model_id: str,
    request: Request,
    response: Response,
    rows: Annotated[Rows, Query(description="`learn` the quarantined rows, or `drop` them.")],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Resume learning; the quarantined rows are learned first, or dropped."""
    model = await registry_of(request).get(model_id)
    key = stored_key_of(idempotency_key)
    requested = f"resume {rows}".encode()
    await model.refresh()
    if (before := await repeated(model, key, requested)) is not None:
        return answer(_again(model, rows, before, response), response)
    await model.job(GuardRollback).settled()
    held = await model.place()
    since = paused_at(model.replica)
    if not since:
        raise _refused(f"model {model_id!r} is not paused, so there is nothing to resume")
    order, by = Resume(since, rows), author_of(request)
    receipt = await model.submit(ControlRequest.of(order, key, requested, by=by, held=held))
    if receipt.placed.conflict:
        raise key_reused()
    if receipt.placed.duplicate:
        before = await repeated_at(model, receipt.placed.seq)
        return answer(_again(model, rows, before, response), response)
    outcome = receipt.control_outcome
    if outcome is not None and outcome.refusal is not None:
        raise _refused(outcome.refusal)
    done = Resumed(
        model=model_id,
        seq=receipt.placed.seq,
        since=since,
        rows=rows,
        learned=None if outcome is None else outcome.rows,
        duplicate=False,
    )
    return answer(done)


def _refused(reason: str) -> Problem:
    return Problem(409, "not-paused", reason)


def _again(model: Model, rows: Rows, before: Repeated, response: Response) -> Resumed:
    before.check_done(_refused(""))
    before.mark(response)
    outcome = before.outcome
    return Resumed(
        model=model.record.id,
        seq=before.seq,
        since=None if outcome is None else outcome.fields.get("since"),
        rows=rows,
        learned=None if outcome is None else outcome.rows,
        duplicate=True,
    )
