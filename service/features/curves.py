"""GET /models/{id}/curves: the functions of single features that `splines` learn."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.models import NOT_MODIFIED, IfNoneMatch
from dualstream.service.api.views import answer, staleness
from dualstream.service.features.feature import Feature
from dualstream.service.http.etag import not_modified, set_etag
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.solvers.protocols.curves import curves_of
from dualstream.solvers.protocols.served_form import classes_of
from dualstream.solvers.rows.class_names import class_label
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import Curve, Curves

router = APIRouter(prefix="/models", tags=["models"])


@router.get("/{model_id}/curves", responses={200: returns(Curves), **NOT_MODIFIED})
async def read_curves(
    model_id: str,
    request: Request,
    response: Response,
    top: Annotated[int, Query(ge=1, le=10_000)] = 128,
    member: Annotated[str | None, Query(description="Curves of this member.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The `top` curves of a `splines` model, or of a portfolio's first member of `splines`."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        set_etag(response, model)
    if (unchanged := not_modified(response, if_none_match)) is not None:
        return unchanged

    def read() -> dict[str, Any]:
        set_etag(response, model)
        return _curves_of(model, top, member)

    fields = await model.replica.view(read)
    view = Curves(model=model_id, member=member, **fields, **staleness(model))
    return answer(view, response)


def _curves_of(model: Model, top: int, member: str | None) -> dict[str, Any]:
    """Fields of Curves. Runs in a view. Raises Problem 404."""
    learner, names = model.replica.learner, model.replica.names
    if member is None:
        owner, scores = model.replica.spec["algorithm"], curves_of(learner)
    else:
        own = model.members().member_curves(member)
        owner, scores = f"member {member!r}", None if own is None else [own]
    if scores is None:
        raise Problem(404, "no-curves", f"{owner} has no curves; only splines have")
    classes = classes_of(learner)
    curves_found = [
        Curve(
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
    curves_found.sort(key=lambda one: -one.range)
    return {"seq": model.replica.seq, "curves": curves_found[:top]}


FEATURE = Feature(name="curves", routers=(router,))
