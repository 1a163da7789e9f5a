"""GET /models/{id}/timeline: history of the metrics, drift events and guard trips."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from dualstream.service.api.common import registry_of
from dualstream.service.api.etag import not_modified, set_etag
from dualstream.service.api.models import NOT_MODIFIED, IfNoneMatch
from dualstream.service.api.views import MaybeStale, staleness
from dualstream.service.models.model import Model

router = APIRouter(prefix="/models/{model_id}", tags=["models"])


class DriftSeen(BaseModel):
    """A drift event: a detector found that the losses changed."""

    kind: Literal["drift"] = "drift"
    detector: Literal["adwin", "page_hinkley"]
    rows: int = Field(description="Rows learned at the event.")
    seq: int = Field(description="Log position of the row that triggered it.")
    rising: bool = Field(description="Whether losses rose; they fall while a model improves.")


class GuardTripped(BaseModel):
    """A guard trip: a quantity left its own history."""

    kind: Literal["guard"] = "guard"
    quantity: Literal["loss", "norm"]
    rows: int = Field(description="Rows learned at the trip.")
    seq: int = Field(description="Log position of the row that triggered it.")
    value: float
    limit: float = Field(description="Limit that the value exceeded.")
    paused: bool = Field(description="Whether the trip paused learning.")


class Moment(BaseModel):
    """Rows learned at a moment."""

    rows: int
    time: datetime


class TimelineView(MaybeStale):
    """At most 256 evenly spaced points, and the current counts.

    Each point has `rows` (learned so far), `since_start` (means of all these rows) and `rolling`
    (means since the previous point), both as in the model's metrics, but without `auc` and
    `average_precision`.
    """

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: list[DriftSeen | GuardTripped] = Field(
        description="The last 64 of each kind, in journal order."
    )
    times: list[Moment] = Field(
        description="When the rows were learned, as far as this process knows: since it loaded the"
        " model, at most 256 moments. The last one is that of the last record."
    )


@router.get(
    "/timeline",
    response_model=TimelineView,
    response_model_exclude_unset=True,
    responses=NOT_MODIFIED,
)
async def read_timeline(
    model_id: str, request: Request, response: Response, if_none_match: IfNoneMatch = None
) -> Any:
    """Progressive metrics at evenly spaced rows, with drift events and guard trips."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        set_etag(response, model)
        if (unchanged := not_modified(response, if_none_match)) is not None:
            return unchanged
        progress = model.replica.progress
        return TimelineView(
            model=model_id,
            seq=model.replica.seq,
            samples=model.replica.learner.samples,
            points=progress.timeline(),
            events=_events(model),
            times=_times(model),
            **staleness(model),
        )


def _times(model: Model) -> list[Moment]:
    pairs = zip(model.activity.rows, model.activity.times, strict=True)
    return [Moment(rows=rows, time=datetime.fromtimestamp(at, UTC)) for rows, at in pairs]


def _events(model: Model) -> list[DriftSeen | GuardTripped]:
    replica = model.replica
    found: list[DriftSeen | GuardTripped] = [
        DriftSeen(kind="drift", **asdict(event)) for event in replica.progress.drift.events()
    ]
    if replica.guarding is not None:
        found += [
            GuardTripped(kind="guard", **asdict(trip)) for trip in replica.guarding.pauses.trips
        ]
    return sorted(found, key=lambda event: event.seq)
