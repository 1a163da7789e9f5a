"""POST /models/{id}/resume: end the pause of a model."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import IdempotencyKey, registry_of, run_once
from dualstream.service.features.guard.controls import Resume
from dualstream.service.features.guard.rollback import GuardRollback
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.http.request_head import stored_key_of
from dualstream.service.replica.requests import ControlRequest, Receipt
from dualstream.wire.changes import Resumed
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["pauses"])

Rows = Literal["learn", "drop"]


@router.post(
    "/resume", responses={200: returns(Resumed), 409: {"description": "The model is not paused."}}
)
async def resume_model(
    model_id: str,
    request: Request,
    rows: Annotated[Rows, Query(description="`learn` the quarantined rows, or `drop` them.")],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Resume learning; the quarantined rows are learned first, or dropped."""
    model = await registry_of(request).get(model_id)
    key = stored_key_of(idempotency_key)
    requested = f"resume {rows}".encode()

    async def submit() -> tuple[Resume, Receipt]:
        await model.job(GuardRollback).settled()
        position = await model.position()
        since = model.replica.parts.paused_since
        if not since:
            raise _refused(f"model {model_id!r} is not paused, so there is nothing to resume")
        order, by = Resume(since, rows), author_of(request)
        control = ControlRequest.of(order, key, requested, by=by, held=position)
        return order, await model.submit(control)

    done = await run_once(model, key, requested, submit)
    done.check(_refused)
    return done.answer(
        Resumed(
            model=model_id,
            seq=done.seq,
            since=done.fields.get("since"),
            rows=rows,
            learned=done.rows,
            duplicate=done.is_repeated,
        )
    )


def _refused(reason: str) -> Problem:
    return Problem(409, "not-paused", reason)
