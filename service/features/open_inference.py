"""Open Inference Protocol, version 2, over REST (KServe, MLServer, Triton).

A model with indexed features has one input `x` of shape (n, dim). A model with hashed features has
one input for each feature, of shape (n,) or (n, 1): numbers, booleans or strings, as data frames
are sent. Outputs are those of POST /models/{id}/predict: `scores`, `labels`, `probabilities`,
`alerts` and `thresholds`, and `intervals` or `sets`, whose values are JSON texts.
Rows follow the rules of that route, except that one bad row refuses the request. Tensors are JSON
or binary, see codecs/tensors.py.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from dualstream import __version__
from dualstream.service.api.common import registry_of
from dualstream.service.api.health import readyz
from dualstream.service.api.request_rows import INLINE_BYTES, parse
from dualstream.service.api.responses import NO_ROWS, refusal, scored
from dualstream.service.api.views import staleness
from dualstream.service.codecs import as_batch
from dualstream.service.codecs.row_schema import pointer_step
from dualstream.service.codecs.tensors import (
    BINARY,
    HEADER,
    NUMERIC,
    Inference,
    Tensor,
    bad_tensor,
    encode_answer,
    read_inference,
)
from dualstream.service.features.feature import Feature
from dualstream.service.http.etag import etag_header
from dualstream.service.http.rate_limits import admit_rows
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import read_head
from dualstream.service.models.model import Model
from dualstream.solvers.protocols.served_form import classes_of, gives_probabilities
from dualstream.solvers.rows import intercept
from dualstream.solvers.rows.class_names import class_label
from dualstream.wire.problem_json import Problem, RowError, quoted
from dualstream.wire.schemas import PredictedMany

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

MAX_LISTED = 1000
"""Maximum number of feature names in a model's metadata; inputs can have other names."""
_DATATYPES = {
    "number": "FP64",
    "boolean": "BOOL",
    "category": "BYTES",
    "text": "BYTES",
    "time": "BYTES",
    "ignore": "BYTES",
}
"""Datatype of a column by its type, for models with `columns`."""
_EXAMPLE = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 0, 0.5]}]}
_LARGEST = sys.float_info.max
_BODY = {"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}}


@router.get("")
async def read_server() -> dict[str, Any]:
    """Name and version of the server."""
    return {"name": "dualstream", "version": __version__, "extensions": [BINARY]}


@router.get("/health/live")
async def read_live() -> dict[str, bool]:
    """Liveness: the process runs."""
    return {"live": True}


@router.get(
    "/health/ready", responses={503: {"description": "Not ready.", "model": dict[str, Any]}}
)
async def read_ready(request: Request, response: Response) -> dict[str, Any]:
    """Readiness, as /readyz: 503 while the process does not serve the store's models."""
    return {"ready": (await readyz(request, response))["ready"]}


@router.get("/models/{model_id}")
async def read_model_metadata(model_id: str, request: Request) -> dict[str, Any]:
    """Inputs and outputs of a model; -1 is any number of rows."""
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        names = model.replica.names.first(MAX_LISTED)
        is_probable = gives_probabilities(model.replica.learner)
        labels = _kind_of_labels(model)
    outputs = [_column("scores", "FP64")]
    if labels is not None:
        outputs.append(_column("labels", labels))
    if is_probable:
        outputs.append(_column("probabilities", "FP64"))
    if model.replica.spec.get("intervals"):
        is_number = model.row_schema.task == "regression"
        outputs.append(_column("intervals" if is_number else "sets", "BYTES"))
    if model.replica.spec.get("alert_rate"):
        outputs += [_column("alerts", "BOOL"), _column("thresholds", "FP64")]
    features = model.replica.spec["features"]
    inputs: list[dict[str, Any]] = [_column(name, "FP64") for name in names]
    if (reader := model.row_schema.columns) is not None:
        # Keys of a history are read even if they are no features.
        columns = dict.fromkeys((*reader.declared, *model.row_schema.inputs.keys))
        inputs = [_column(name, _DATATYPES[reader.kind_of(name)]) for name in columns]
    elif features["kind"] == "indexed":
        inputs = [{"name": "x", "datatype": "FP64", "shape": [-1, intercept.width_of(features)]}]
    return {"name": model_id, "platform": "dualstream", "inputs": inputs, "outputs": outputs}


@router.get("/models/{model_id}/ready")
async def read_model_ready(model_id: str, request: Request) -> dict[str, Any]:
    """Whether the model is served; 404 if it does not exist."""
    await registry_of(request).get(model_id)
    return {"name": model_id, "ready": True}


@router.post("/models/{model_id}/infer", openapi_extra=_BODY)
async def infer(model_id: str, request: Request) -> Response:
    """Score rows without learning. The parameter `seq` is the log position of the state."""
    registry = registry_of(request)
    head = read_head(request.scope)
    body = await read_body(request.receive, head, registry.settings.max_body_bytes, request.scope)
    with registry.pinned(model_id):
        model = await registry.get(model_id)
        arguments = (model, body, request.headers.get(HEADER))
        if len(body) <= INLINE_BYTES:
            requested, rows = _read_rows(*arguments)
        else:
            requested, rows = await asyncio.to_thread(_read_rows, *arguments)
        head.content_type = "application/json"
        parsed = await parse(model, head, rows, labelled=False)
        if parsed.errors:
            raise refusal(parsed, _of_inputs(parsed.errors, requested.inputs))
        await admit_rows(request.scope, parsed.count)
        response = Response(media_type="application/json")
        async with model.replica.serving():
            response.headers.update(etag_header(model))
            batch = as_batch([parsed.rows])
            predicted = await scored(model, model.replica, parsed, batch)
            labels = _kind_of_labels(model)
    assert isinstance(predicted, PredictedMany)
    answer: dict[str, Any] = {"model_name": model_id}
    if requested.id is not None:
        answer["id"] = requested.id
    answer["parameters"] = {"seq": predicted.seq, **staleness(model)}
    content, length = encode_answer(answer, _outputs(predicted, labels), requested)
    response.body = content
    response.headers["content-length"] = str(len(content))
    if length is not None:
        response.headers["content-type"] = "application/octet-stream"
        response.headers[HEADER] = str(length)
    return response


def _kind_of_labels(model: Model) -> str | None:
    """Datatype of labels: INT64, otherwise BYTES; None for a model without labels."""
    if model.row_schema.task == "regression":
        return None
    if model.row_schema.task == "binary":
        return "BYTES" if model.row_schema.class_names else "INT64"
    classes = [class_label(text) for text in classes_of(model.replica.learner)]
    if not classes:
        return None
    is_int = all(type(label) is int and abs(label) < 2**63 for label in classes)
    return "INT64" if is_int else "BYTES"


def _column(name: str, datatype: str) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1]}


def _read_rows(model: Model, body: bytes, header: str | None) -> tuple[Inference, bytes]:
    """A request and its rows as a body of POST predict. Raises Problem 400, 422."""
    requested = read_inference(body, header)
    return requested, msgspec.json.encode(_rows_of(model, requested.inputs))


def _of_inputs(errors: Sequence[RowError], inputs: Sequence[Tensor]) -> list[RowError]:
    """The errors of rows with pointers to the inputs, which are columns; `index` is the row."""
    numbers = {pointer_step(one.name): number for number, one in enumerate(inputs)}
    row_errors = []
    for error in errors:
        step = error.pointer.rpartition("/x/")[2]
        number_of = 0 if len(inputs) == 1 else numbers.get(step)
        row_errors.append(
            replace(error, pointer="/inputs" if number_of is None else f"/inputs/{number_of}")
        )
    return row_errors


def _rows_of(model: Model, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """Convert inputs to the body of POST predict. Raises Problem 422."""
    if not all(prod(one.shape) for one in inputs):
        raise Problem(422, "invalid-rows", NO_ROWS)
    columns: dict[str, list[Any]] = {}
    for one in inputs:
        if one.name in columns:
            raise bad_tensor(f"input {quoted(one.name)} is repeated; send it once")
        assert isinstance(one.data, list)
        columns[one.name] = one.data
    if model.replica.spec["features"]["kind"] == "indexed":
        return {"x": _indexed_rows(inputs, intercept.width_of(model.replica.spec["features"]))}
    rows = inputs[0].shape[0] if inputs[0].shape else 0
    for one in inputs:
        if one.shape not in ([rows], [rows, 1]):
            raise bad_tensor(f"input {quoted(one.name)} has shape {one.shape}, expected [{rows}]")
    lines = zip(*columns.values(), strict=True)
    return {"samples": [{"x": dict(zip(columns, line, strict=True))} for line in lines]}


def _indexed_rows(inputs: Sequence[Tensor], dim: int) -> list[list[Any]]:
    """Rows of the single input; a boolean is the number 0 or 1."""
    if len(inputs) != 1 or len(inputs[0].shape) != 2 or inputs[0].shape[1] != dim:
        raise bad_tensor(f"send one input of shape [rows, {dim}]")
    one = inputs[0]
    assert isinstance(one.data, list)
    if one.datatype not in NUMERIC:
        kind = quoted(one.datatype)
        raise bad_tensor(f"input {quoted(one.name)} must have a numeric datatype, got {kind}")
    flat = list(map(int, one.data)) if one.datatype == "BOOL" else one.data
    return [flat[first : first + dim] for first in range(0, len(flat), dim)]


def _outputs(predicted: PredictedMany, kind: str | None) -> dict[str, tuple[str, list[Any]]]:
    """Datatype and values of each output."""
    if None in predicted.scores:
        row = predicted.scores.index(None)
        raise bad_tensor(f"the score of row {row} is not a finite number")
    tensors: dict[str, tuple[str, list[Any]]] = {"scores": ("FP64", list(predicted.scores))}
    if kind is not None:
        labels = predicted.labels
        labels = labels if kind == "INT64" else [_text(label) for label in labels]
        tensors["labels"] = kind, labels
    if predicted.probabilities is not None:
        tensors["probabilities"] = "FP64", list(predicted.probabilities)
    if predicted.alerts is not UNSET:
        tensors["alerts"] = "BOOL", list(predicted.alerts)
    if predicted.thresholds is not UNSET:
        tensors["thresholds"] = "FP64", _thresholds(predicted)
    for name in ("intervals", "sets"):
        values = getattr(predicted, name)
        if values is not UNSET:
            tensors[name] = "BYTES", [msgspec.json.encode(value).decode() for value in values]
    return tensors


def _thresholds(predicted: PredictedMany) -> list[float]:
    """Thresholds of alerts as numbers; instead of null one below, or above, all scores."""
    assert predicted.alerts is not UNSET
    assert predicted.thresholds is not UNSET
    pairs = zip(predicted.alerts, predicted.thresholds, strict=True)
    return [(-_LARGEST if alert else _LARGEST) if one is None else one for alert, one in pairs]


def _text(label: Any) -> str:
    """The class itself if it is a string, otherwise its JSON."""
    return label if isinstance(label, str) else msgspec.json.encode(label).decode()


FEATURE = Feature(name="open_inference", routers=(router,), refuses_unknown_parameters=False)
