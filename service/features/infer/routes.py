"""POST /columns/infer: proposes a specification with `columns` for a sample of rows."""

import asyncio

from fastapi import APIRouter, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import answer
from dualstream.service.features.feature import Feature
from dualstream.service.features.infer.responses import Inferred
from dualstream.service.http.openapi import returns
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import read_head
from dualstream.wire.problem_json import Problem, quoted, shortened

router = APIRouter(prefix="/columns", tags=["models"])

MAX_BYTES = 1 << 20
MAX_ROWS = 10_000
MAX_COLUMNS = 1000
_CSV = "at,zip,y\n2024-05-01T09:00,02134,1\n2024-05-01T21:30,10115,0\n"


@router.post(
    "/infer",
    responses={200: returns(Inferred)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "text/csv": {"schema": {"type": "string"}, "example": _CSV},
                "application/x-ndjson": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            },
        }
    },
)
async def infer_columns(
    request: Request, label: str | None = None, task: str | None = None, history: bool = False
) -> Response:
    """Propose `columns` for a sample of rows, as `dualstream infer` does. Creates no model.

    The sample has at most 1 MiB, of which the first 10,000 rows are read, and 1,000 columns.
    `label` is the column of the label, `task` its task; by default both follow from the sample.
    Groups of `history` are proposed, too; with `history=true` the specification has them.
    """
    registry_of(request)  # 503 until the process is ready
    head = read_head(request.scope)
    body = await read_body(request.receive, head, MAX_BYTES, request.scope)
    return answer(await asyncio.to_thread(_inferred, body, head.content_type, label, task, history))


def _inferred(
    body: bytes, content_type: str | None, label: str | None, task: str | None, history: bool
) -> Inferred:
    # Imports the client and its HTTP library, which a server does not need otherwise.
    from dualstream.client import BadInput
    from dualstream.service.features.infer.labels import TASKS
    from dualstream.service.features.infer.propose import propose
    from dualstream.service.features.infer.sample import sample_of

    if task is not None and task not in TASKS:
        detail = f"task must be one of {', '.join(TASKS)}, got {quoted(task)}"
        raise Problem(422, "invalid-query", detail)
    try:
        sample = sample_of(body, content_type, MAX_ROWS, MAX_COLUMNS)
        proposal = propose(sample, label, task, history)
    except BadInput as bad:
        raise Problem(422, "invalid-body", shortened(str(bad))) from None
    return proposal.response(len(sample.rows))


FEATURE = Feature(name="infer", routers=(router,))
