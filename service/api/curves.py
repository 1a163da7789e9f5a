"""GET /models/{id}/curves: the functions of single features that `splines` learn."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from dualstream.service.api.common import registry_of
from dualstream.service.api.etag import not_modified, set_etag
from dualstream.service.api.models import NOT_MODIFIED, IfNoneMatch
from dualstream.service.api.views import MaybeStale, staleness
from dualstream.service.models.model import Model
from dualstream.solvers import class_label, classes_of, curves_of
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models", tags=["models"])


class CurveView(BaseModel):
    """A function of one feature: linear between its knots, constant beyond the outer ones."""

    index: int = Field(description="Counted from 1.")
    name: str | None = Field(None, description="Name of a hashed feature.")
    label: Any = Field(None, description="Multiclass: the class whose score the curve adds to.")
    range: float = Field(description="The largest of `y` minus the least.")
    x: list[float] = Field(description="Knots: increasing values of the feature.")
    y: list[float] = Field(description="What the feature adds to the score at each knot.")


class CurvesView(MaybeStale):
    """Curves in order of their range, largest first."""

    model: str
    member: str | None = Field(None, description="Name of the member, if the request has one.")
    seq: int
    curves: list[CurveView]


@router.get(
    "/{model_id}/curves",
    response_model=CurvesView,
    response_model_exclude_none=True,
    responses=NOT_MODIFIED,
)
async def read_curves(
    model_id: str,
    request: Request,
    response: Response,
    top: Annotated[int, Query(ge=1, le=10_000)] = 128,
    member: Annotated[str | None, Query(description="Curves of this member.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """The `top` curves of a `splines` model, or of a portfolio's first member of `splines`."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        set_etag(response, model)
    if (unchanged := not_modified(response, if_none_match)) is not None:
        return unchanged

    def read() -> dict[str, Any]:
        set_etag(response, model)
        return _curves_of(model, top, member)

    found = await model.replica.view(read)
    return CurvesView(model=model_id, member=member, **found, **staleness(model))


def _curves_of(model: Model, top: int, member: str | None) -> dict[str, Any]:
    """Fields of CurvesView. Runs in a view. Raises Problem 404."""
    learner, names = model.replica.learner, model.replica.names
    if member is None:
        owner, scores = model.replica.spec["algorithm"], curves_of(learner)
    else:
        own = model.members().member_curves(member)
        owner, scores = f"member {member!r}", None if own is None else [own]
    if scores is None:
        raise Problem(404, "no-curves", f"{owner} has no curves; only splines have")
    classes = classes_of(learner)
    found = [
        CurveView(
            index=curve.feature + 1,
            name=names.get(curve.feature),
            label=class_label(classes[score]) if classes else None,
            range=curve.reach,
            x=curve.knots.tolist(),
            y=curve.heights.tolist(),
        )
        for score, curves in enumerate(scores)
        for curve in curves
    ]
    found.sort(key=lambda one: -one.range)
    return {"seq": model.replica.seq, "curves": found[:top]}
