"""Models: create, list, read, delete; progressive metrics, weights, support."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from dualstream.service.api.access import author_of, key_of
from dualstream.service.api.common import registry_of, spec_of
from dualstream.service.api.etag import etag_of, matches_any, matches_etag, not_modified, set_etag
from dualstream.service.api.specs import SPEC, SPEC_EXAMPLES
from dualstream.service.api.views import MaybeStale, MemberMetrics, PauseView, staleness
from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.journal.protocol import ModelRecord
from dualstream.service.models.model import Model
from dualstream.service.models.registry import PAGE, ModelRegistry
from dualstream.service.replica.spec import read_spec
from dualstream.solvers import (
    Coefficients,
    class_label,
    coefficients_of,
    local_phases_of,
    member_learner,
    support_of,
    survey_weights,
    weights_dim,
)
from dualstream.solvers.export.source import json_list_of
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models", tags=["models"])


class ModelView(MaybeStale):
    """A model in its current state."""

    id: str
    spec: dict[str, Any] = Field(description="The specification with all defaults.")
    seq: int = Field(description="Log position: last record of the model's journal.")
    samples: int = Field(description="Rows learned.")
    rejected: int = Field(description="Rows that were journalled but not learned.")
    created: datetime
    paused: PauseView | None = Field(
        None, description="Models with a guard: null unless learning is paused."
    )
    state_digest: str | None = Field(
        None,
        description="With `digest=true`: SHA-256 of the state (learner, metrics, names, counts). "
        "All workers, replays and copies with the same ETag have the same digest.",
    )


class StoredView(BaseModel):
    """A model that is not in memory. Read it alone to get its counts."""

    id: str
    spec: dict[str, Any]
    seq: int
    created: datetime


class UnreadableView(StoredView):
    """A model that this server cannot read."""

    unreadable: str = Field(description="The reason.")


class ModelPage(BaseModel):
    """Models, ordered by id."""

    models: list[ModelView | UnreadableView | StoredView]
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


class Weight(BaseModel):
    index: int = Field(description="Counted from 1.")
    name: str | None = Field(None, description="Name of a hashed feature.")
    label: Any = Field(None, description="Multiclass: the class of the weight.")
    weight: float


class NamedCoefficient(BaseModel):
    """Coefficient of one basis function of a semiparametric model."""

    name: str
    value: float = Field(description="0 if the function was dropped.")
    dropped: bool = Field(
        description="On the window the function is zero or linearly dependent on earlier ones."
    )


class WeightsView(MaybeStale):
    """The served weights of largest magnitude."""

    model: str
    member: str | None = Field(None, description="Name of the member, if the request has one.")
    seq: int
    dim: int
    intercept: float | list[float] = Field(description="Multiclass: one for each class.")
    nonzeros: int
    weights: list[Weight]
    coefficients: list[NamedCoefficient] | None = Field(
        None,
        description="Semiparametric models, after the first refit, in the order of the basis."
        " `weights` has those of linear functions, `intercept` that of the constant.",
    )
    coefficients_are_unique: bool | None = Field(
        None, description="Whether the rows of the window determine the coefficients."
    )
    support: int | None = Field(None, description="Number of rows in the kernel expansion.")


IfNoneMatch = Annotated[
    list[str] | None, Header(description="Cached ETag: 304 if the model is still in this state.")
]
IfMatch = Annotated[
    list[str] | None, Header(description="ETag of the model to replace if its spec differs.")
]
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The model is still in the state of If-None-Match."}
}


class LocalPhases(BaseModel):
    """Local phases of an `rda_plus` model, and how far it is from the optimum."""

    delta: float | None = Field(
        description="Root mean square, over all features and the intercept, of the least"
        " subgradient of the objective on the retained rows; 0 at the optimum. Null without rows."
    )
    accepted: int = Field(
        description="Local phases whose weights were taken, since this process loaded the model."
    )
    refused: int = Field(
        description="Those whose weights predicted newer rows worse than the model did."
    )
    unsolved: int = Field(
        description="Those with more than `max_features` active features, or without a minimum."
    )
    max_features: int


class SupportView(MaybeStale):
    """Features with non-zero weights, of a sparse model."""

    model: str
    seq: int
    features: list[Weight]
    unchanged_since: int = Field(description="Number of learned rows at the last change of a sign.")
    changes_per_1000: float = Field(description="Weights that changed sign, per 1,000 rows.")
    local_phases: LocalPhases | None = Field(None, description="Only of `rda_plus`.")


@router.put(
    "/{model_id}",
    response_model=ModelView,
    response_model_exclude_unset=True,
    status_code=201,
    responses={
        200: {"description": "The model exists with the same spec.", "model": ModelView},
        409: {"description": "The model exists with another spec."},
        412: {"description": "The model is not in the state of If-Match."},
        429: {"description": "The store has the maximum number of models."},
    },
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": SPEC,
                    "examples": {name: {"value": one} for name, one in SPEC_EXAMPLES.items()},
                }
            }
        }
    },
)
async def create_model(
    model_id: str, request: Request, response: Response, if_match: IfMatch = None
) -> ModelView:
    """Create a model from its spec. With If-Match it replaces the existing model."""
    registry = registry_of(request)
    given = await spec_of(request, registry.settings.max_body_bytes)
    may = None if if_match is None else partial(_matches, if_match)
    model, created = await registry.create(model_id, given, may, author_of(request))
    response.status_code = 201 if created else 200
    return await _view(model, response)


@router.get("", response_model=ModelPage, response_model_exclude_unset=True)
async def list_models(
    request: Request, after: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> ModelPage:
    """List the models that the key matches, in pages. Loads no model."""
    registry = registry_of(request)
    records = await _visible(request, registry, after, limit + 1)
    shown = [await _listed(registry, record) for record in records[:limit]]
    return ModelPage(models=shown, next=shown[-1].id if len(records) > limit else None)


@router.get(
    "/{model_id}",
    response_model=ModelView,
    response_model_exclude_unset=True,
    responses=NOT_MODIFIED,
)
async def read_model(
    model_id: str,
    request: Request,
    response: Response,
    digest: Annotated[bool, Query(description="Add `state_digest`.")] = False,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """Spec, log position and counts of a model."""
    model = await registry_of(request).get(model_id)
    view = await _view(model, response, digest)
    return not_modified(response, if_none_match) or view


@router.delete(
    "/{model_id}",
    status_code=204,
    responses={412: {"description": "The model is not in the state of If-Match."}},
)
async def delete_model(
    model_id: str,
    request: Request,
    if_match: Annotated[
        list[str] | None, Header(description="ETag: the model is deleted only in this state.")
    ] = None,
) -> None:
    """Delete a model with its journal and snapshots."""
    # "*" deletes the model in any state, even if it learns concurrently.
    is_any = if_match is None or matches_any(if_match)
    may = None if is_any else partial(_matches, if_match)
    await registry_of(request).delete(model_id, author_of(request), may)


@router.get("/{model_id}/metrics", response_model=dict[str, Any], responses=NOT_MODIFIED)
async def read_metrics(
    model_id: str, request: Request, response: Response, if_none_match: IfNoneMatch = None
) -> Any:
    """Progressive metrics of the model and its baselines: each row is scored before learning."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        set_etag(response, model)
        if (unchanged := not_modified(response, if_none_match)) is not None:
            return unchanged
        learner = member_learner(model.replica.learner)
        views = [] if learner is None else learner.members()
        members = [MemberMetrics.of(view).model_dump() for view in views]
        return {
            "model": model_id,
            "seq": model.replica.seq,
            "samples": model.replica.learner.samples,
            "rejected": model.replica.rejected,
            "refused_controls": model.replica.refused_controls,
            **model.replica.progress.summary(),
            **({} if learner is None else {"members": members}),
            **staleness(model),
        }


@router.get(
    "/{model_id}/weights",
    response_model=WeightsView,
    response_model_exclude_none=True,
    responses=NOT_MODIFIED,
)
async def read_weights(
    model_id: str,
    request: Request,
    response: Response,
    top: Annotated[int, Query(ge=1, le=10_000)] = 20,
    member: Annotated[str | None, Query(description="Weights of this member.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """The `top` served weights of largest magnitude."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        set_etag(response, model)
    if (unchanged := not_modified(response, if_none_match)) is not None:
        return unchanged

    def read() -> dict[str, Any]:
        set_etag(response, model)
        return _weights_of(model, top, member)

    found = await model.replica.view(read)
    return WeightsView(model=model_id, member=member, **found, **staleness(model))


def _weights_of(model: Model, top: int, member: str | None) -> dict[str, Any]:
    """Fields of WeightsView. Runs in a view."""
    learner, names = model.replica.learner, model.replica.names
    classes = [class_label(text) for text in getattr(learner, "classes", ())]
    coefficients = coefficients_of(learner)
    if member is None:
        scores = learner.served_weights()
        intercepts = getattr(learner, "intercepts", None)
        intercept = learner.intercept if intercepts is None else intercepts.tolist()
    else:
        one = model.members().member_served_weights(member)
        scores, intercept = [one], one.intercept
    survey = survey_weights(scores, top)
    return {
        "seq": model.replica.seq,
        "dim": weights_dim(learner.spec) if survey.dim is None else survey.dim,
        "intercept": intercept,
        "nonzeros": survey.nonzeros,
        "weights": [
            Weight(
                index=heavy.place + 1,
                name=names.get(heavy.place),
                label=classes[heavy.score] if classes else None,
                weight=heavy.weight,
            )
            for heavy in survey.heaviest
        ],
        **({} if coefficients is None else _named(coefficients)),
    }


def _named(found: Coefficients) -> dict[str, Any]:
    terms = [
        NamedCoefficient(name=one.name, value=one.value, dropped=one.dropped) for one in found.terms
    ]
    return {
        "coefficients": terms,
        "coefficients_are_unique": found.are_unique,
        "support": found.support,
    }


@router.get("/{model_id}/support", response_model=SupportView)
async def read_support(model_id: str, request: Request) -> Response:
    """Features that a sparse model uses, and how stable the selection is."""
    model = await registry_of(request).get(model_id)
    found = await model.replica.view(partial(_support_view_of, model))
    # There may be millions of features, so no object of a whole answer is built and checked.
    body = msgspec.json.encode({"model": model_id, **found, **staleness(model)})
    return Response(body, media_type="application/json")


def _support_view_of(model: Model) -> dict[str, Any]:
    """Fields of SupportView. Runs in a view. Raises Problem 404."""
    names = model.replica.names
    found = support_of(model.replica.learner)
    if found is None:
        reason = f"{model.replica.spec['algorithm']} does not track its support; see weights"
        raise Problem(404, "no-support", reason)
    phases = local_phases_of(model.replica.learner)
    return {
        "seq": model.replica.seq,
        "features": json_list_of(
            {"index": index, "weight": weight}
            | ({} if (name := names.get(index - 1)) is None else {"name": name})
            for index, weight in zip(found.features.tolist(), found.weights.tolist(), strict=True)
        ),
        "unchanged_since": found.unchanged_since,
        "changes_per_1000": found.changes_per_1000,
        **({} if phases is None else {"local_phases": phases}),
    }


def _matches(if_match: Sequence[str] | None, record: ModelRecord) -> bool:
    return matches_etag(if_match, etag_of(record.seq, record.chain))


async def _visible(
    request: Request, registry: ModelRegistry, after: str, count: int
) -> list[ModelRecord]:
    """The next `count` models that the request's key matches."""
    key = key_of(request)
    if key is None or key.sees_all:
        return await registry.journal.list(after, count)
    found: list[ModelRecord] = []
    while len(found) < count and (page := await registry.journal.list(after, PAGE)):
        found += [record for record in page if key.may_see(record.id)]
        after = page[-1].id
    return found[:count]


async def _listed(
    registry: ModelRegistry, record: ModelRecord
) -> ModelView | UnreadableView | StoredView:
    """View of a model: from memory if it is loaded, otherwise from the store."""
    model = registry.find(record.id)
    if model is not None and model.record.incarnation == record.incarnation:
        return await _view(model)
    known = {
        "id": record.id,
        "spec": read_spec(record.spec),
        "seq": record.seq,
        "created": _created(record),
    }
    reason = registry.loader.why_unreadable(record.id)
    return StoredView(**known) if reason is None else UnreadableView(**known, unreadable=reason)


def _created(record: ModelRecord) -> datetime:
    return datetime.fromtimestamp(record.created_ms / 1000, UTC)


async def _view(
    model: Model, response: Response | None = None, with_digest: bool = False
) -> ModelView:
    record, replica = model.record, model.replica

    def read() -> ModelView:
        if response is not None:
            set_etag(response, model)
        return ModelView(
            id=record.id,
            spec=replica.spec,
            seq=replica.seq,
            samples=replica.learner.samples,
            rejected=replica.rejected,
            created=_created(record),
            **({} if replica.guarding is None else {"paused": PauseView.of(replica)}),
            **staleness(model),
        )

    if not with_digest:
        async with replica.serving():
            return read()
    view, captured = await replica.view(lambda: (read(), replica.capture()))
    view.state_digest = await run_copy_in_thread(captured.state_digest)
    return view
