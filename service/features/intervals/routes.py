"""GET /models/{id}/intervals: the last rows of a regression with their intervals and labels."""

from fastapi import APIRouter, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import answer, staleness
from dualstream.service.features.intervals.state import Intervals
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import IntervalRows

router = APIRouter(prefix="/models/{model_id}", tags=["models"])


@router.get("/intervals", responses={200: returns(IntervalRows)})
async def read_intervals(model_id: str, request: Request) -> Response:
    """Predictions, intervals and labels of the last 200 rows, from before each was learned.

    The rows are those since this process loaded the model, or rolled it back.
    """
    model = await registry_of(request).get(model_id)
    if model.replica.spec["task"] != "regression" or model.replica.parts.find(Intervals) is None:
        detail = f"model {model_id!r} has no intervals; only regressions with `intervals` have"
        raise Problem(404, "no-intervals", detail)
    return answer(await model.replica.view(lambda: _rows_of(model)))


def _rows_of(model: Model) -> IntervalRows:
    part = model.replica.parts.find(Intervals)
    assert part is not None
    rows = part.last_rows()
    return IntervalRows(model=model.record.id, seq=model.replica.seq, **rows, **staleness(model))
