"""GET /models/{id}/timeline: history of the metrics, drift events and guard trips."""

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NOT_MODIFIED, IfNoneMatch, answer_by_state, staleness
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.wire.responses import GuardTripped, MaybeStale, about

router = APIRouter(prefix="/models/{model_id}", tags=["models"])


class DriftSeen(Struct, tag_field="kind", tag="drift"):
    """A drift event: a detector found that the losses changed."""

    detector: Literal["adwin", "page_hinkley"]
    rows: Annotated[int, about("Rows learned at the event.")]
    seq: Annotated[int, about("Log position of the row that triggered it.")]
    rising: Annotated[bool, about("Whether losses rose; they fall while a model improves.")]


class Moment(Struct):
    """Rows learned at a moment."""

    rows: int
    time: datetime


class TimelineView(MaybeStale, kw_only=True):
    """At most 256 evenly spaced points, and the current counts.

    Each point has `rows` (learned so far), `since_start` (means of all these rows) and `rolling`
    (means since the previous point), both as in the model's metrics, but without `auc` and
    `average_precision`.
    """

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: Annotated[
        list[DriftSeen | GuardTripped], about("The last 64 of each kind, in journal order.")
    ]
    times: Annotated[
        list[Moment],
        about(
            "When the rows were learned, as far as this process knows: since it loaded the model,"
            " at most 256 moments. The last one is that of the last record."
        ),
    ]


@router.get("/timeline", responses={200: returns(TimelineView), **NOT_MODIFIED})
async def read_timeline(
    model_id: str, request: Request, if_none_match: IfNoneMatch = None
) -> Response:
    """Progressive metrics at evenly spaced rows, with drift events and guard trips."""
    model = await registry_of(request).get(model_id)
    return await answer_by_state(model, if_none_match, partial(_timeline_of, model))


def _timeline_of(model: Model) -> TimelineView:
    return TimelineView(
        model=model.record.id,
        seq=model.replica.seq,
        samples=model.replica.learner.samples,
        points=model.replica.progress.timeline(),
        events=_events(model),
        times=_times(model),
        **staleness(model),
    )


def _times(model: Model) -> list[Moment]:
    pairs = zip(model.activity.rows, model.activity.times, strict=True)
    return [Moment(rows, datetime.fromtimestamp(at, UTC)) for rows, at in pairs]


def _events(model: Model) -> list[DriftSeen | GuardTripped]:
    replica = model.replica
    events: list[DriftSeen | GuardTripped] = [
        DriftSeen(**asdict(event)) for event in replica.progress.drift.events()
    ]
    for part in replica.parts:
        events += part.events()
    return sorted(events, key=lambda event: event.seq)
