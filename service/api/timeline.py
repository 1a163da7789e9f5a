"""How a model came to be as good as it is: points of its metrics, and what happened on the way."""

from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from service.api.freshness import MaybeStale, staleness
from service.api.models import NOT_MODIFIED, IfNoneMatch, catalog_of, tag_answer, unless_known
from solvers import DriftEvent

router = APIRouter(prefix="/models/{model_id}", tags=["models"])


class DriftSeen(BaseModel):
    """A detector said that the losses have changed."""

    kind: Literal["drift"] = "drift"
    detector: Literal["adwin", "page_hinkley"]
    rows: int = Field(description="Rows learned when it did.")
    seq: int = Field(description="Place of the row that made it say so.")
    rising: bool = Field(description="Whether losses rose; a model that gets better drifts, too.")

    @classmethod
    def of(cls, event: DriftEvent) -> "DriftSeen":
        return cls(
            detector=event.detector,
            rows=event.rows,
            seq=event.seq,
            rising=event.rising,
        )


class TimelineView(MaybeStale):
    """At most 256 points of the way, evenly spaced, and where the model stands now.

    Each point has `rows` (learned until then), `since_start` (the means of all these rows) and
    `rolling` (the means of those since the point before); both as in the model's metrics.
    """

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: list[DriftSeen] = Field(description="The last 64, the oldest first.")


@router.get("/timeline", response_model=TimelineView, responses=NOT_MODIFIED)
async def read_timeline(
    model_id: str, request: Request, response: Response, if_none_match: IfNoneMatch = None
) -> Any:
    """Progressive metrics at evenly spaced rows, and where drift was seen."""
    model = await catalog_of(request).get(model_id)
    async with model.replica.serving():
        tag_answer(response, model)
        if (unchanged := unless_known(response, if_none_match)) is not None:
            return unchanged
        progress = model.replica.progress
        return TimelineView(
            model=model_id,
            seq=model.replica.seq,
            samples=model.replica.learner.samples,
            points=progress.timeline(),
            events=[DriftSeen.of(event) for event in progress.drift.events()],
            **staleness(model),
        )
