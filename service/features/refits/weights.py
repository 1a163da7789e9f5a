"""PUT /models/{id}/weights: weights that were computed elsewhere enter a model as a refit does."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response

from dualstream.service.api.common import IdempotencyKey, check_not_paused, registry_of, run_once
from dualstream.service.codecs.json_exact import check_all_names
from dualstream.service.codecs.row_schema import LARGEST, BadRow, RowSchema, pointer_step
from dualstream.service.features.refits.controls import Refit as Order, records_of
from dualstream.service.features.refits.job import MAX_BYTES, Refits
from dualstream.service.features.refits.routes import refit_view
from dualstream.service.features.refits.table import RefitJob, now_ms
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import read_head, stored_key_of
from dualstream.service.models.model import Model
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.requests import ControlRequest, OutcomeForgotten, Receipt
from dualstream.solvers import BadColumn, ColumnReader, RefitError
from dualstream.solvers.profile.kernels import IS_MISSING, IS_NUMBER, IS_TIME
from dualstream.solvers.profile.names import ColumnNames
from dualstream.solvers.protocols.certificate import relative_gap
from dualstream.solvers.refit.given_weights import given_weights, why_not_set_weights
from dualstream.wire.changes import Refit
from dualstream.wire.problem_json import Problem, RowError, quoted

router = APIRouter(prefix="/models/{model_id}", tags=["refits"])

METHOD = "given"
"""Method of such a refit in the list of refits and in the audit log."""
_Bound = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)]


class NewWeights(msgspec.Struct, forbid_unknown_fields=True):
    """Weights, and what is known of them."""

    weights: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description="Weight of each feature, by its name in `GET weights`, such as `age` or"
            " `site=news`, or with numbered features by its index from 1. All others are 0.",
            extra_json_schema={
                "additionalProperties": {"type": "number"},
                "examples": [{"1": 0.5, "3": -2}],
            },
        ),
    ]
    rows: Annotated[
        int,
        msgspec.Meta(ge=1, le=10**15, description="Number of rows that they were computed from."),
    ]
    intercept: Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)] = 0.0
    objective: Annotated[
        _Bound | None,
        msgspec.Meta(description="Objective of the model's problem at these weights."),
    ] = None
    gap: Annotated[
        _Bound | None,
        msgspec.Meta(description="Objective minus a lower bound of it; given with `objective`."),
    ] = None

    def __post_init__(self) -> None:
        if (self.objective is None) != (self.gap is None):
            raise ValueError("send both objective and gap, or neither")

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Objective and gap."""
        if self.objective is None or self.gap is None:
            return None
        return self.objective, self.gap


_SCHEMA = msgspec.json.schema_components((NewWeights,))[1]["NewWeights"]


@router.put(
    "/weights",
    responses={
        200: returns(Refit),
        409: {"description": "The model cannot take weights, or was changed in between."},
        422: {"description": "A weight is invalid, or the model cannot serve it."},
    },
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}
    },
)
async def set_weights(
    model_id: str, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Replace the weights of a linear model, such as by the optimum of an offline solver."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    key = stored_key_of(idempotency_key)
    head, limit = read_head(request.scope), registry.settings.max_body_bytes
    body = await read_body(request.receive, head, limit, request.scope)
    requested = await asyncio.to_thread(_read, body)

    async def submit() -> tuple[Order, Receipt]:
        if (why_not := why_not_set_weights(model.replica.spec)) is not None:
            detail = f"the weights of model {model_id!r} cannot be set: {why_not}"
            raise Problem(409, "cannot-refit", detail)
        check_not_paused(model)
        arrays = await asyncio.to_thread(_arrays_of, model, requested)
        async with model.committer.between_groups():
            seq, records = model.replica.seq, records_of(model.replica)
        order = Order(sha256(model.clock.new_nonce()).hexdigest()[:12], seq, METHOD, records)
        control = ControlRequest.of(order, key, body, arrays, author_of(request))
        return order, await model.submit(control)

    done = await run_once(model, key, body, submit)
    if not done.is_kept:
        raise OutcomeForgotten("refit", done.seq)
    done.check(_refused)
    name, jobs = done.fields["job"], model.job(Refits)
    job = await jobs.find(name) if done.is_repeated else None
    if job is None:
        job = _job(requested, name, done.fields["seq"], done.seq)
    if not done.is_repeated:
        await jobs.add(job)
    return done.answer(refit_view(model_id, job))


def _refused(reason: str) -> Problem:
    """The refusal of weights that came after another change in the journal."""
    return Problem(409, "conflict", reason)


def _job(requested: NewWeights, name: str, seq: int, entered: int) -> RefitJob:
    """The weights as a refit in the list of refits."""
    now = now_ms()
    job = RefitJob(
        job=name,
        status="done",
        method=METHOD,
        tol=1.0,
        max_epochs=0,
        seq=seq,
        rows=requested.rows,
        entered_seq=entered,
        created_ms=now,
        updated_ms=now,
    )
    if requested.bounds is not None:
        objective, gap = requested.bounds
        job.dual = objective - gap
        job.relative_gap = relative_gap(gap, objective, job.dual)
    return job


def _read(body: bytes) -> NewWeights:
    """Decode the body. Raises Problem 400, 422."""
    try:
        requested = msgspec.json.decode(body, type=NewWeights)
        check_all_names(body)
    except msgspec.ValidationError as wrong:
        raise Problem(422, "invalid-weights", str(wrong)) from None
    except BadRow as bad:
        raise Problem(422, "invalid-weights", f"{bad.reason}; send it once") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise Problem(400, "malformed-body", f"the body is not JSON: {broken}") from None
    return requested


def _arrays_of(model: Model, requested: NewWeights) -> Arrays:
    """Arrays of the control record. Raises Problem 422."""
    try:
        indices, values = _places_of(model.row_schema, model.replica.spec, requested.weights)
    except BadRow as bad:
        pointer = bad.pointer.replace("/x", "/weights", 1)
        errors = [RowError(0, pointer, bad.reason)]
        raise Problem(422, "invalid-weights", f"{pointer}: {bad.reason}", errors) from None
    entries = indices, values, requested.intercept, requested.rows, requested.bounds
    try:
        arrays = given_weights(model.replica.spec, *entries)
    except RefitError as error:
        raise Problem(422, "invalid-weights", str(error)) from None
    if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
        raise Problem(422, "invalid-weights", f"the weights have more than {MAX_BYTES} bytes")
    return arrays


def _places_of(
    schema: RowSchema, spec: Mapping[str, Any], weights: dict[str, Any]
) -> tuple[list[int], list[float]]:
    """Indices from 0 and their weights. Raises BadRow."""
    columns = ColumnNames(spec)
    # A reader of its own: it remembers the columns that it has seen.
    reader = ColumnReader(spec["columns"], spec["crosses"]) if schema.columns else None
    named: dict[int, str] = {}
    for name, weight in weights.items():
        reason, index = None, -1
        if type(weight) in (int, float):
            (index,), _, _ = schema.features({name: weight or 1.0})
        if index < 0:
            reason = f"must have a number, got {quoted(weight)}"
        elif index in named:
            other = f"{quoted(named[index])}, {index + 1}"
            reason = f"has the index of {other}; use more `bits`, or number the features"
        elif reader is not None:
            composed, missing = schema.composed(name), spec["columns"]["missing"]
            reason = _why_no_feature(composed, columns, reader, missing)
        if reason is not None:
            raise BadRow(f"/x/{pointer_step(name)}", f"{quoted(name)} {reason}")
        named[index] = name
    return list(named), list(weights.values())


def _why_no_feature(
    name: str, columns: ColumnNames, reader: ColumnReader, missing: list[Any]
) -> str | None:
    """Why no flat row has a feature of this name; None if some may have it."""
    if (index := columns.column_of(name)) is None:  # a cross
        return None
    column, _, role = index
    value = name[len(column) + 1 :]
    rows: list[dict[str, Any]] = [{column: value}]
    if role == IS_NUMBER:
        rows = [{column: 0.5}, {column: True}]
    elif role == IS_TIME:
        rows = [{column: f"2024-01-0{day}"} for day in range(1, 8)]
    elif role == IS_MISSING:
        rows = [{}, *({column: one} for one in missing)]
    if any(name in _features_of(row, reader) for row in rows):
        return None
    if column in columns.declared:
        of = f"column {quoted(column)} of type {reader.kind_of(column)}"
        return f"is not the name of a feature of {of}; see GET weights for such names"
    return "is not the name of a feature: the model's `columns` leave it out or read it otherwise"


def _features_of(row: dict[str, Any], reader: ColumnReader) -> set[str]:
    """Names of the features of a flat row; none if the row is refused."""
    try:
        features = reader.read(row).features
    except BadColumn:
        return set()
    return {f"{name}={one}" if isinstance(one, str) else name for name, one in features.items()}
