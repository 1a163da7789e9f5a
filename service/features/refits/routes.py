"""Refits of a model: start, list, read, cancel."""

from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from msgspec import structs
from pydantic import BaseModel, Field

from dualstream.service.api.common import check_not_paused, registry_of
from dualstream.service.api.views import answer
from dualstream.service.features.refits.job import MAX_EPOCHS, Refits as Jobs
from dualstream.service.features.refits.table import RefitJob, UnderWay
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.solvers import InvalidSpec
from dualstream.solvers.offline import refit_methods
from dualstream.solvers.offline.options import read_refit_options
from dualstream.wire.changes import Refit, Refits
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["refits"])


class NewRefit(BaseModel, extra="forbid"):
    """Options of a refit."""

    method: Literal[refit_methods.ALL_METHODS] | None = Field(  # type: ignore[valid-type]
        None,
        description="`ipm`, `pdsg`, `mpd` for semiparametric models, the others for linear ones."
        " Default: that of the spec's `refit`, otherwise of the model. docs/guides/refit.md has"
        " the methods of each model.",
    )
    tol: float = Field(
        1e-3, ge=1e-12, le=1.0, description="Relative gap at which the solver stops."
    )
    max_epochs: int = Field(
        MAX_EPOCHS,
        ge=1,
        le=1_000_000,
        description="Linear models: maximum number of visits to each row.",
    )
    options: dict[str, Any] | None = Field(
        None,
        description="Options of the method, such as `parts`, `lazy` and `rest` of `mcpa`;"
        " docs/guides/offline.md has all. Default: those of the spec's `refit` if it names the same"
        " method.",
    )
    rows: int | None = Field(
        None,
        ge=1,
        le=refit_methods.MAX_WINDOW_ROWS,
        description="Models that retain no rows: number of last journal records to use."
        " Default: that of the spec's `refit`, otherwise 10,000.",
    )


@router.post(
    "/refit",
    status_code=202,
    responses={
        202: returns(Refit),
        409: {"description": "The model cannot be refitted, or another refit is running."},
        422: {"description": "The options do not fit the model."},
    },
)
async def begin_refit(
    model_id: str, request: Request, requested: NewRefit | None = None
) -> Response:
    """Start a refit in the background: solve the retained rows and enter the result."""
    model = await registry_of(request).get(model_id)
    if model.job(Jobs).why_not is not None:
        detail = f"model {model_id!r} cannot be refitted: {model.job(Jobs).why_not}"
        raise Problem(409, "cannot-refit", detail)
    await model.refresh()
    check_not_paused(model)
    requested = requested or NewRefit()
    spec, refits = model.replica.spec, model.job(Jobs)
    own = spec.get("refit")
    method = requested.method or (own["method"] if own else refits.methods[0])
    if (why_not := refit_methods.why_not_method(spec, method)) is not None:
        detail = (
            f"model {model_id!r} cannot use {method}: {why_not}; use {', '.join(refits.methods)}"
        )
        raise Problem(422, "invalid-refit", detail)
    options = requested.options
    if options is None:
        options = own.get("options", {}) if own and own["method"] == method else {}
    try:
        options = read_refit_options(spec, method, options)
    except InvalidSpec as error:
        detail = f"model {model_id!r} cannot use {method} like this: {error}"
        raise Problem(422, "invalid-refit", detail) from None
    if requested.rows is not None and not refits.is_of_journal:
        detail = f"model {model_id!r} is refitted on its retained rows; leave out `rows`"
        raise Problem(422, "invalid-refit", detail)
    if not model.replica.learner.samples:
        raise Problem(409, "cannot-refit", f"model {model_id!r} has no rows yet; learn some first")
    try:
        by = author_of(request)
        job = await refits.begin(
            method, requested.tol, requested.max_epochs, rows=requested.rows, by=by, options=options
        )
    except UnderWay as error:
        raise Problem(409, "refit-under-way", str(error), job=error.job) from None
    response = answer(refit_view(model_id, job), status=202)
    response.headers["location"] = f"/models/{model_id}/refits/{job.job}"
    return response


@router.get("/refits", responses={200: returns(Refits)})
async def list_refits(model_id: str, request: Request) -> Response:
    """The last refits, by all workers."""
    model = await registry_of(request).get(model_id)
    jobs = await model.job(Jobs).all()
    return answer(Refits(model_id, [refit_view(model_id, job) for job in jobs]))


@router.get("/refits/{job}", responses={200: returns(Refit)})
async def read_refit(model_id: str, job: str, request: Request) -> Response:
    """Progress and outcome of a refit."""
    model = await registry_of(request).get(model_id)
    return answer(refit_view(model_id, await _known(model, job)))


@router.delete(
    "/refits/{job}",
    responses={
        200: returns(Refit),
        202: returns(Refit, "Cancellation was requested; the refit still runs."),
    },
)
async def cancel_refit(model_id: str, job: str, request: Request) -> Response:
    """Cancel a running refit. A finished refit is returned unchanged."""
    model = await registry_of(request).get(model_id)
    if (await _known(model, job)).is_under_way:
        await model.job(Jobs).end(job, author_of(request))
    refit = await _known(model, job)
    return answer(refit_view(model_id, refit), status=202 if refit.is_under_way else 200)


async def _known(model: Model, name: str) -> RefitJob:
    """The job of this name. Raises Problem 404."""
    job = await model.job(Jobs).find(name)
    if job is None:
        raise Problem(404, "unknown-refit", f"model {model.record.id!r} has no refit {name!r}")
    return job


def refit_view(model_id: str, job: RefitJob) -> Refit:
    """The answer for a refit."""
    return Refit(
        model=model_id,
        created=datetime.fromtimestamp(job.created_ms / 1000, UTC),
        updated=datetime.fromtimestamp(job.updated_ms / 1000, UTC),
        **{
            name: value
            for name, value in structs.asdict(job).items()
            if name in Refit.__struct_fields__
        },
    )
