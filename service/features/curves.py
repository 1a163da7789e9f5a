"""GET /models/{id}/curves: the functions of single features that `splines` learn."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NOT_MODIFIED, IfNoneMatch, answer_by_state, staleness
from dualstream.service.features.feature import Feature
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
    top: Annotated[int, Query(ge=1, le=10_000)] = 128,
    member: Annotated[str | None, Query(description="Curves of this member.")] = None,
    label: Annotated[
        str | None, Query(description='Curves of this class, as JSON: label="a" or label=1.')
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The `top` curves of a `splines` model, or of a portfolio's first member of `splines`."""
    model = await registry_of(request).get(model_id)

    def read() -> Curves:
        return _curves_of(model, top, member, label)

    return await answer_by_state(model, if_none_match, read)


def _curves_of(model: Model, top: int, member: str | None, label: str | None) -> Curves:
    """Raises Problem 404."""
    learner, names = model.replica.learner, model.replica.names
    if member is None:
        owner, scores = model.replica.spec["algorithm"], curves_of(learner)
    else:
        own = model.members().member_curves(member)
        owner, scores = f"member {member!r}", None if own is None else [own]
    if scores is None:
        raise Problem(404, "no-curves", f"{owner} has no curves; only splines have")
    classes = classes_of(learner)
    curves = [
        Curve(
            index=curve.feature + 1,
            name=names.get(curve.feature),
            label=class_label(classes[score]) if classes else None,
            range=curve.reach,
            x=curve.knots.tolist(),
            y=curve.heights.tolist(),
        )
        for score, of_score in enumerate(scores)
        if label is None or (classes and classes[score] == label)
        for curve in of_score
    ]
    curves.sort(key=lambda one: -one.range)
    seq, shown = model.replica.seq, curves[:top]
    return Curves(model=model.record.id, member=member, seq=seq, curves=shown, **staleness(model))


FEATURE = Feature(name="curves", routers=(router,))
