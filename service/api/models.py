"""Models: create, list, read, delete; progressive metrics, weights, support."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from dualstream.service.api.common import registry_of, spec_of
from dualstream.service.api.specs import SPEC, SPEC_EXAMPLES
from dualstream.service.api.views import (
    NOT_MODIFIED,
    IfNoneMatch,
    answer,
    answer_by_state,
    member_of,
    staleness,
)
from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.http import etag
from dualstream.service.http.access import author_of, key_of
from dualstream.service.http.openapi import returns, returns_one_of
from dualstream.service.journal.protocol import ModelRecord
from dualstream.service.models import creation
from dualstream.service.models.model import Model as Served
from dualstream.service.models.readiness import PAGE
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.spec import read_spec
from dualstream.solvers.export.source import json_list_of
from dualstream.solvers.nonlinear.spec import longest_window
from dualstream.solvers.protocols import served_weights, sparse_support
from dualstream.solvers.protocols.member_learner import member_learner
from dualstream.solvers.rows.class_names import class_label
from dualstream.solvers.rows.intercept import weights_dim
from dualstream.solvers.semiparametric.coefficients import Coefficients, coefficients_of
from dualstream.wire.problem_json import Problem, quoted
from dualstream.wire.responses import (
    Member,
    Model,
    ModelPage,
    NamedCoefficient,
    SegmentMetrics,
    Support,
    Weight,
    Weights,
)

router = APIRouter(prefix="/models", tags=["models"])


IfMatch = Annotated[
    list[str] | None, Header(description="ETag of the model to replace if its spec differs.")
]


@router.put(
    "/{model_id}",
    status_code=201,
    responses={
        200: returns(Model, "The model exists with the same spec."),
        201: returns(Model),
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
async def create_model(model_id: str, request: Request, if_match: IfMatch = None) -> Response:
    """Create a model from its spec. With If-Match it replaces the existing model."""
    registry = registry_of(request)
    requested = await spec_of(request, registry.settings.max_body_bytes)
    may = None if if_match is None else partial(_matches, if_match)
    model, created = await creation.create(registry, model_id, requested, may, author_of(request))
    view, header = await _view(model)
    view.warnings = _warnings_of(view.spec)
    return answer(view, header, 201 if created else 200)


def _warnings_of(spec: dict[str, Any]) -> list[str]:
    """What a new model of this resolved specification does badly."""
    return [*_warnings_of_intercept(spec), *_warnings_of_windows(spec)]


def _warnings_of_windows(spec: dict[str, Any]) -> list[str]:
    """Boosted trees whose ring may be too short for their window."""
    members = spec.get("members", [spec])
    return [
        f"{'' if one is spec else one['name'] + ': '}the window is {one['window']} rows, but with "
        f"128 features or more the last {room} rows are in memory; `rows_held_at_most` has the "
        "number for the features of the stream so far"
        for one in members
        if isinstance(one, dict) and one.get("algorithm") == "boosted"
        if one["window"] > (room := longest_window(spec["features"], one.get("memory", "standard")))
    ]


def _warnings_of_intercept(spec: dict[str, Any]) -> list[str]:
    if spec.get("loss") != "logistic" or spec["intercept"] is not True:
        return []
    # The probabilities of `asset` are not too high.
    if spec["algorithm"] == "asset":
        return []
    return [
        "the intercept is penalised, so probabilities of a rare class are several times too high; "
        'use "intercept": "prior" (dual_ascent with l2, sgd, spg, rda), or a portfolio, without '
        "`algorithm`"
    ]


@router.get("", responses={200: returns(ModelPage)})
async def list_models(
    request: Request, after: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    """List the models that the key matches, in pages. Loads no model."""
    registry = registry_of(request)
    records = await _visible(request, registry, after, limit + 1)
    shown = [await _listed(registry, record) for record in records[:limit]]
    return answer(ModelPage(shown, shown[-1].id if len(records) > limit else None))


@router.get("/{model_id}", responses={200: returns(Model), **NOT_MODIFIED})
async def read_model(
    model_id: str,
    request: Request,
    digest: Annotated[bool, Query(description="Add `state_digest`.")] = False,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Spec, log position and counts of a model."""
    model = await registry_of(request).get(model_id)
    view, header = await _view(model, digest)
    return etag.not_modified(header, if_none_match) or answer(view, header)


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
    is_any = if_match is None or etag.matches_any(if_match)
    may = None if is_any else partial(_matches, if_match)
    await creation.delete(registry_of(request), model_id, author_of(request), may)


@router.get(
    "/{model_id}/metrics",
    responses={200: returns_one_of(dict[str, Any], SegmentMetrics), **NOT_MODIFIED},
)
async def read_metrics(
    model_id: str,
    request: Request,
    by: Annotated[
        str | None, Query(description="Metrics by the values of this column of `segments`.")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Progressive metrics of the model and its baselines: each row is scored before learning."""
    model = await registry_of(request).get(model_id)
    read = partial(_metrics_of, model) if by is None else partial(_metrics_by, model, by)
    return await answer_by_state(model, if_none_match, read)


def _metrics_by(model: Served, column: str) -> SegmentMetrics:
    replica = model.replica
    fields = replica.parts.metrics_by(column)
    if fields is None:
        columns = ", ".join(replica.spec.get("segments", ()))
        hint = f"it has {columns}" if columns else "it was created without `segments`"
        detail = f"model {model.record.id!r} has no segments {quoted(column)}; {hint}"
        raise Problem(404, "unknown-segments", detail)
    fields = {"model": model.record.id, "seq": replica.seq, "by": column, **fields}
    return SegmentMetrics(**fields, **staleness(model))


def _metrics_of(model: Served) -> dict[str, Any]:
    learner = member_learner(model.replica.learner)
    members = [] if learner is None else list(map(member_of, learner.members()))
    return {
        "model": model.record.id,
        "seq": model.replica.seq,
        "samples": model.replica.learner.samples,
        "rejected": model.replica.rejected,
        "refused_controls": model.replica.refused_controls,
        **model.replica.progress.summary(),
        **model.replica.parts.metrics(),
        **({} if learner is None else {"members": list(map(_metrics_of_member, members))}),
        **staleness(model),
    }


def _metrics_of_member(member: Member) -> dict[str, Any]:
    names = ("name", "weight", "since_start", "rolling", "resets")
    return {name: getattr(member, name) for name in names}


@router.get("/{model_id}/weights", responses={200: returns(Weights), **NOT_MODIFIED})
async def read_weights(
    model_id: str,
    request: Request,
    top: Annotated[int, Query(ge=1, le=10_000)] = 20,
    member: Annotated[str | None, Query(description="Weights of this member.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The `top` served weights of largest magnitude."""
    model = await registry_of(request).get(model_id)
    return await answer_by_state(model, if_none_match, lambda: _weights_of(model, top, member))


def _weights_of(model: Served, top: int, member: str | None) -> Weights:
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
    survey = served_weights.survey_weights(scores, top)
    return Weights(
        model=model.record.id,
        member=member,
        seq=model.replica.seq,
        dim=weights_dim(learner.spec) if survey.dim is None else survey.dim,
        intercept=intercept,
        nonzeros=survey.nonzeros,
        weights=[
            Weight(
                index=heavy.place + 1,
                name=names.get(heavy.place),
                label=classes[heavy.score] if classes else None,
                weight=heavy.weight,
            )
            for heavy in survey.heaviest
        ],
        **({} if coefficients is None else _named(coefficients)),
        **staleness(model),
    )


def _named(coefficients: Coefficients) -> dict[str, Any]:
    terms = [NamedCoefficient(one.name, one.value, one.dropped) for one in coefficients.terms]
    return {
        "coefficients": terms,
        "coefficients_are_unique": coefficients.are_unique,
        "support": coefficients.support,
    }


@router.get("/{model_id}/support", responses={200: returns(Support)})
async def read_support(model_id: str, request: Request) -> Response:
    """Features that a sparse model uses, and how stable the selection is."""
    model = await registry_of(request).get(model_id)
    view = await model.replica.view(partial(_support_view_of, model))
    # There may be millions of features, so no object is built of each.
    return answer({"model": model_id, **view, **staleness(model)})


def _support_view_of(model: Served) -> dict[str, Any]:
    """Fields of Support. Runs in a view. Raises Problem 404."""
    names = model.replica.names
    support = sparse_support.support_of(model.replica.learner)
    if support is None:
        reason = f"{model.replica.spec['algorithm']} does not track its support; see weights"
        raise Problem(404, "no-support", reason)
    phases = sparse_support.local_phases_of(model.replica.learner)
    return {
        "seq": model.replica.seq,
        "features": json_list_of(
            {"index": index, "weight": weight}
            | ({} if (name := names.get(index - 1)) is None else {"name": name})
            for index, weight in zip(
                support.features.tolist(), support.weights.tolist(), strict=True
            )
        ),
        "unchanged_since": support.unchanged_since,
        "changes_per_1000": support.changes_per_1000,
        **({} if phases is None else {"local_phases": phases}),
    }


def _matches(if_match: Sequence[str] | None, record: ModelRecord) -> bool:
    return etag.matches_etag(if_match, etag.etag_of(record.seq, record.chain))


async def _visible(
    request: Request, registry: ModelRegistry, after: str, count: int
) -> list[ModelRecord]:
    """The next `count` models that the request's key matches."""
    key = key_of(request)
    if key is None or key.sees_all:
        return await registry.journal.list(after, count)
    records: list[ModelRecord] = []
    while len(records) < count and (page := await registry.journal.list(after, PAGE)):
        records += [record for record in page if key.may_see(record.id)]
        after = page[-1].id
    return records[:count]


async def _listed(registry: ModelRegistry, record: ModelRecord) -> Model:
    """View of a model: from memory if it is loaded, otherwise from the store."""
    model = registry.find(record.id)
    if model is not None and model.record.incarnation == record.incarnation:
        return (await _view(model))[0]
    unreadable = registry.unreadable.get(record.id)
    return Model(
        id=record.id,
        spec=read_spec(record.spec),
        seq=record.seq,
        created=_created(record),
        unreadable=None if unreadable is None else unreadable.reason,
    )


def _created(record: ModelRecord) -> datetime:
    return datetime.fromtimestamp(record.created_ms / 1000, UTC)


async def _view(model: Served, with_digest: bool = False) -> tuple[Model, dict[str, str]]:
    """View of a loaded model, and its ETag."""
    if not with_digest:
        async with model.replica.serving():
            return _view_of(model), etag.etag_header(model)
    view, header, captured = await model.replica.view(
        lambda: (_view_of(model), etag.etag_header(model), model.replica.capture())
    )
    view.state_digest = await run_copy_in_thread(captured.state_digest)
    return view, header


def _view_of(model: Served) -> Model:
    record, replica = model.record, model.replica
    return Model(
        id=record.id,
        spec=replica.spec,
        seq=replica.seq,
        samples=replica.learner.samples,
        rejected=replica.rejected,
        rows_held_at_most=getattr(replica.learner, "max_rows", None),
        created=_created(record),
        **replica.parts.fields(replica.seq),
        **staleness(model),
    )
