"""Refits of a model: begin one, see how far it is, leave it."""

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from dualstream.service.api.access import author_of
from dualstream.service.api.models import catalog_of, check_not_paused
from dualstream.service.api.views import finite
from dualstream.service.jobs.refit import MAX_EPOCHS, Refits
from dualstream.service.jobs.refit_status import RefitJob, UnderWay
from dualstream.service.models.model import Model
from dualstream.solvers import ALL_METHODS, MAX_WINDOW_ROWS, why_not_method
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["refits"])


class NewRefit(BaseModel, extra="forbid"):
    """How the window shall be solved."""

    method: Literal[ALL_METHODS] | None = Field(  # type: ignore[valid-type]
        None,
        description="`ipm`, `pdsg`, `mpd`: for semiparametric models; the others: for linear ones,"
        " where they solve the model's problem. Left out: as the model's `refit` has it, else the"
        " default of the model. docs/guides/refit.md says which fits what.",
    )
    tol: float = Field(1e-3, ge=1e-12, le=1.0, description="Relative gap to come down to.")
    max_epochs: int = Field(
        MAX_EPOCHS,
        ge=1,
        le=1_000_000,
        description="Of linear models: so many visits to each row at most.",
    )
    rows: int | None = Field(
        None,
        ge=1,
        le=MAX_WINDOW_ROWS,
        description="Of a model that retains no rows: of how many of the last records of its"
        " journal. Left out: as the model's `refit` has it, else 10,000.",
    )


class RefitView(BaseModel):
    """A refit: what it is of, how far it is, and what became of it."""

    model: str
    job: str
    status: Literal[
        "waiting", "running", "entering",
        "done", "refused", "superseded", "cancelled", "failed", "lost",
    ] = Field(
        description="`entering`: it is being journalled. `refused`: it no longer fits the window;"
        " `superseded`: another result for the same came first; `lost`: with its process, or"
        " with records that it was computed of."
    )  # fmt: skip
    method: str
    tol: float
    max_epochs: int
    due: int | None = Field(
        description="Samples that it fell due at by the spec; null where it was asked for."
    )
    seq: int | None = Field(description="Of the last record before the window that it is of.")
    rows: int | None = Field(description="Of that window.")
    epochs: int = Field(
        description="So many visits to each row so far; of a semiparametric model the working sets"
        " solved for, at the end."
    )
    relative_gap_before: float | None = Field(
        description="Of the window, at its dual variables as they were, not averaged; of a model"
        " that retains no rows at the weights served, known at the end."
    )
    relative_gap: float | None = Field(description="Of the window, as far as it has come.")
    dual_before: float | None
    dual: float | None
    converged: bool | None = Field(description="Whether the gap has come down to `tol`.")
    entered_seq: int | None = Field(description="Of the control record that entered it.")
    retained: int | None = Field(
        description="How many of its rows were in the window there; null where none are retained."
    )
    dropped: list[str] | None = Field(
        description="Of a semiparametric model: functions of its basis that at the rows of the"
        " window are zero or depend on those before. Their coefficients are 0."
    )
    coefficients_are_unique: bool | None = Field(
        description="Whether the window pins the other coefficients down; else others are as good."
    )
    reason: str | None = Field(description="Why it did not enter the model.")
    created: datetime
    updated: datetime


class RefitList(BaseModel):
    """The last refits of a model, the newest first."""

    model: str
    refits: list[RefitView]


@router.post(
    "/refit",
    response_model=RefitView,
    status_code=202,
    responses={
        409: {"description": "The model cannot be refitted, or is being; and why."},
        422: {"description": "What is asked for does not fit the model; and why."},
    },
)
async def begin_refit(
    model_id: str, request: Request, response: Response, asked: NewRefit | None = None
) -> RefitView:
    """Solve the model's own problem on its retained rows, and enter the result, in its own time."""
    model = await catalog_of(request).get(model_id)
    if model.job(Refits).why_not is not None:
        detail = f"model {model_id!r} cannot be refitted: {model.job(Refits).why_not}"
        raise Problem(409, "cannot-refit", detail)
    await model.refresh()
    check_not_paused(model)
    asked = asked or NewRefit()
    spec, refits = model.replica.spec, model.job(Refits)
    own = spec.get("refit")
    method = asked.method or (own["method"] if own else refits.methods[0])
    if (why_not := why_not_method(spec, method)) is not None:
        detail = f"model {model_id!r} is refitted by {', '.join(refits.methods)}: {why_not}"
        raise Problem(422, "invalid-refit", detail)
    if asked.rows is not None and not refits.is_of_journal:
        detail = f"model {model_id!r} is refitted on the rows that it retains: leave out `rows`"
        raise Problem(422, "invalid-refit", detail)
    if not model.replica.learner.samples:
        raise Problem(409, "cannot-refit", f"model {model_id!r} has no rows yet")
    try:
        by = author_of(request)
        job = await refits.begin(method, asked.tol, asked.max_epochs, rows=asked.rows, by=by)
    except UnderWay as error:
        raise Problem(409, "refit-under-way", str(error), job=error.job) from None
    response.headers["location"] = f"/models/{model_id}/refits/{job.job}"
    return _view(model_id, job)


@router.get("/refits", response_model=RefitList)
async def list_refits(model_id: str, request: Request) -> RefitList:
    """The last refits, by whichever worker."""
    model = await catalog_of(request).get(model_id)
    jobs = await model.job(Refits).all()
    return RefitList(model=model_id, refits=[_view(model_id, job) for job in jobs])


@router.get("/refits/{job}", response_model=RefitView)
async def read_refit(model_id: str, job: str, request: Request) -> RefitView:
    """How far a refit is, and what became of it."""
    return _view(model_id, await _known(await catalog_of(request).get(model_id), job))


@router.delete(
    "/refits/{job}",
    response_model=RefitView,
    responses={202: {"description": "Asked to end; it has not yet.", "model": RefitView}},
)
async def cancel_refit(model_id: str, job: str, request: Request, response: Response) -> RefitView:
    """End a refit that is under way; one that has ended is told as it did."""
    model = await catalog_of(request).get(model_id)
    if (await _known(model, job)).is_under_way:
        await model.job(Refits).end(job, author_of(request))
    found = await _known(model, job)
    response.status_code = 202 if found.is_under_way else 200
    return _view(model_id, found)


async def _known(model: Model, name: str) -> RefitJob:
    """The job of this name. Raises Problem 404."""
    job = await model.job(Refits).find(name)
    if job is None:
        raise Problem(404, "unknown-refit", f"model {model.record.id!r} has no refit {name!r}")
    return job


def _view(model_id: str, job: RefitJob) -> RefitView:
    def number(value: float | None) -> float | None:
        return None if value is None else finite(value)

    return RefitView(
        model=model_id,
        job=job.job,
        status=job.status,
        method=job.method,
        tol=job.tol,
        max_epochs=job.max_epochs,
        due=job.due,
        seq=job.seq,
        rows=job.rows,
        epochs=job.epochs,
        relative_gap_before=number(job.relative_gap_before),
        relative_gap=number(job.relative_gap),
        dual_before=number(job.dual_before),
        dual=number(job.dual),
        converged=job.converged,
        entered_seq=job.entered_seq,
        retained=job.retained,
        dropped=job.dropped,
        coefficients_are_unique=job.coefficients_are_unique,
        reason=job.reason,
        created=_time(job.created_ms),
        updated=_time(job.updated_ms),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
