"""Refits of a model: start, list, read, cancel."""

from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from msgspec import structs
from pydantic import BaseModel, Field

from dualstream.service.api.access import author_of
from dualstream.service.api.common import check_not_paused, registry_of
from dualstream.service.api.views import Finite
from dualstream.service.jobs.refit import MAX_EPOCHS, Refits
from dualstream.service.jobs.refit_status import RefitJob, UnderWay
from dualstream.service.models.model import Model
from dualstream.solvers import (
    ALL_METHODS,
    MAX_WINDOW_ROWS,
    InvalidSpec,
    read_refit_options,
    why_not_method,
)
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["refits"])


class NewRefit(BaseModel, extra="forbid"):
    """Options of a refit."""

    method: Literal[ALL_METHODS] | None = Field(  # type: ignore[valid-type]
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
        le=MAX_WINDOW_ROWS,
        description="Models that retain no rows: number of last journal records to use."
        " Default: that of the spec's `refit`, otherwise 10,000.",
    )


class RefitView(BaseModel):
    """A refit: its options, progress and outcome."""

    model: str
    job: str
    status: Literal[
        "waiting", "running", "entering",
        "done", "refused", "superseded", "cancelled", "failed", "lost",
    ] = Field(
        description="`entering`: being journalled. `refused`: no longer fits the window."
        " `superseded`: another result for the same window came first. `lost`: its process, or"
        " records that it used, were lost."
    )  # fmt: skip
    method: str = Field(description="`given`: the weights were set by `PUT weights`.")
    tol: float
    max_epochs: int
    options: dict[str, Any]
    due: int | None = Field(
        description="Periodic refits: number of samples at which it was due; null otherwise."
    )
    seq: int | None = Field(description="Log position of the state that it was computed from.")
    rows: int | None = Field(description="Rows of its window.")
    epochs: int = Field(
        description="Visits to each row so far. Semiparametric models: number of working sets, at"
        " the end."
    )
    relative_gap_before: Finite = Field(
        description="Relative gap of the window before the refit, at its dual variables without"
        " averaging. Models that retain no rows: at the served weights, at the end."
    )
    relative_gap: Finite = Field(description="Relative gap reached so far.")
    dual_before: Finite
    dual: Finite
    converged: bool | None = Field(description="Whether the gap is at most `tol`.")
    entered_seq: int | None = Field(
        description="Log position of the control record with the result."
    )
    retained: int | None = Field(
        description="Rows of it in the window at that position; null if none are retained."
    )
    dropped: list[str] | None = Field(
        description="Semiparametric models: basis functions that are zero on the window, or"
        " linearly dependent on earlier ones. Their coefficients are 0."
    )
    coefficients_are_unique: bool | None = Field(
        description="Whether the rows of the window determine the other coefficients."
    )
    reason: str | None = Field(description="Why the model did not get the result.")
    created: datetime
    updated: datetime


class RefitList(BaseModel):
    """The last refits of a model, newest first."""

    model: str
    refits: list[RefitView]


@router.post(
    "/refit",
    response_model=RefitView,
    status_code=202,
    responses={
        409: {"description": "The model cannot be refitted, or another refit is running."},
        422: {"description": "The options do not fit the model."},
    },
)
async def begin_refit(
    model_id: str, request: Request, response: Response, requested: NewRefit | None = None
) -> RefitView:
    """Start a refit in the background: solve the retained rows and enter the result."""
    model = await registry_of(request).get(model_id)
    if model.job(Refits).why_not is not None:
        detail = f"model {model_id!r} cannot be refitted: {model.job(Refits).why_not}"
        raise Problem(409, "cannot-refit", detail)
    await model.refresh()
    check_not_paused(model)
    requested = requested or NewRefit()
    spec, refits = model.replica.spec, model.job(Refits)
    own = spec.get("refit")
    method = requested.method or (own["method"] if own else refits.methods[0])
    if (why_not := why_not_method(spec, method)) is not None:
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
    response.headers["location"] = f"/models/{model_id}/refits/{job.job}"
    return refit_view(model_id, job)


@router.get("/refits", response_model=RefitList)
async def list_refits(model_id: str, request: Request) -> RefitList:
    """The last refits, by all workers."""
    model = await registry_of(request).get(model_id)
    jobs = await model.job(Refits).all()
    return RefitList(model=model_id, refits=[refit_view(model_id, job) for job in jobs])


@router.get("/refits/{job}", response_model=RefitView)
async def read_refit(model_id: str, job: str, request: Request) -> RefitView:
    """Progress and outcome of a refit."""
    return refit_view(model_id, await _known(await registry_of(request).get(model_id), job))


@router.delete(
    "/refits/{job}",
    response_model=RefitView,
    responses={
        202: {
            "description": "Cancellation was requested; the refit still runs.",
            "model": RefitView,
        }
    },
)
async def cancel_refit(model_id: str, job: str, request: Request, response: Response) -> RefitView:
    """Cancel a running refit. A finished refit is returned unchanged."""
    model = await registry_of(request).get(model_id)
    if (await _known(model, job)).is_under_way:
        await model.job(Refits).end(job, author_of(request))
    found = await _known(model, job)
    response.status_code = 202 if found.is_under_way else 200
    return refit_view(model_id, found)


async def _known(model: Model, name: str) -> RefitJob:
    """The job of this name. Raises Problem 404."""
    job = await model.job(Refits).find(name)
    if job is None:
        raise Problem(404, "unknown-refit", f"model {model.record.id!r} has no refit {name!r}")
    return job


def refit_view(model_id: str, job: RefitJob) -> RefitView:
    """The response for a refit."""
    fields = structs.asdict(job)
    return RefitView(
        model=model_id,
        created=datetime.fromtimestamp(job.created_ms / 1000, UTC),
        updated=datetime.fromtimestamp(job.updated_ms / 1000, UTC),
        **{name: value for name, value in fields.items() if name in RefitView.model_fields},
    )
