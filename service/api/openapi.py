"""OpenAPI entries of the ASGI routes (learn, predict, events), generated from their types."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI

from dualstream.service.api.openapi_common import describe_all
from dualstream.service.codecs.json_exact import Columns, Sample, Samples
from dualstream.wire.schemas import Learned, LearnedChunk, LearnedStream, Predicted, PredictedMany

# A test posts every example to a model of dimension 3.
LEARN_EXAMPLES: dict[str, dict[str, Any]] = {
    "application/json": {
        "one sample": {"x": {"1": 1, "3": 0.5}, "y": 1},
        "one dense sample": {"x": [1, 0, 0.5], "y": 0, "weight": 2},
        "samples": {"samples": [{"x": {"1": 1}, "y": 1}, {"x": {"2": 1}, "y": -1}]},
        "samples with ids": {
            "samples": [
                {"x": {"1": 1}, "y": 1, "id": "event-1"},
                {"x": {"2": 1}, "y": -1, "id": 7},
            ]
        },
        "columns": {"x": [[1, 0, 0], [0, 1, 0]], "y": [1, 0]},
        "columns with ids": {"x": [[1, 0, 0], [0, 1, 0]], "y": [1, 0], "ids": ["event-2", None]},
    },
    "application/x-ndjson": {
        "a sample a line": '{"x": {"1": 1, "3": 0.5}, "y": 1}\n{"x": {"2": 1}, "y": -1}\n'
    },
    "text/csv": {"records below a header": "1,2,3,y\n1,,0.5,1\n0,1,0,-1\n"},
    "text/x-vw": {"lines of Vowpal Wabbit": "1 | 1:1 3:0.5\n-1 2.0 'tag| 2\n"},
    "text/x-libsvm": {"LIBSVM lines": "+1 1:1 3:0.5\n-1 2:1\n"},
}
PREDICT_EXAMPLES: dict[str, dict[str, Any]] = {
    "application/json": {
        "one row": {"x": {"1": 1, "3": 0.5}},
        "rows": {"samples": [{"x": {"1": 1}}, {"x": [0, 1, 0]}]},
        "columns": {"x": [[1, 0, 0], [0, 1, 0]]},
    },
    "application/x-ndjson": {"a row a line": '{"x": {"1": 1}}\n{"x": [0, 1, 0]}\n'},
    "text/csv": {"records below a header": "1,3\n1,0.5\n,1\n"},
    "text/x-vw": {"lines of Vowpal Wabbit": "| 1:1 3:0.5\n| 2\n"},
    "text/x-libsvm": {"LIBSVM lines": "1:1 3:0.5\n2:1\n"},
}

# Binary media types, without examples.
BINARY = ("application/vnd.apache.arrow.stream",)

_TYPES = (
    Sample,
    Samples,
    Columns,
    Learned,
    Predicted,
    PredictedMany,
    LearnedChunk,
    LearnedStream,
)


def describe_hot_routes(app: FastAPI, asks_for_keys: bool) -> None:
    """Add the ASGI routes and the common parts of all routes to `app.openapi()`."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas, components = msgspec.json.schema_components(
                _TYPES, ref_template="#/components/schemas/{name}"
            )
            sample, samples, columns, learned, predicted, many, chunk, stream = schemas
            document["components"]["schemas"] |= components
            rows = {"anyOf": [sample, samples, columns]}
            scored = {"anyOf": [predicted, many]}
            document["paths"] |= _paths(rows, learned, predicted, scored)
            document["paths"]["/models/{model_id}/events"] = {"get": _EVENTS}
            _add_lines(document, {"anyOf": [chunk, stream, learned]})
            describe_all(document, asks_for_keys)
        return app.openapi_schema or document

    app.openapi = openapi  # type: ignore[method-assign]


def _paths(rows: Any, learned: Any, predicted: Any, scored: Any) -> dict[str, Any]:
    model = _parameter("path", "model_id", "Model id.", required=True)
    x = _parameter("query", "x", "One row as INDEX:VALUE,INDEX:VALUE; indices from 1.", True)
    named = _parameter("query", "model", "Model id.", required=True)
    min_seq = _parameter(
        "query",
        "min_seq",
        "Wait up to 2 s until the state includes this log position.",
        kind="integer",
    )
    version = _parameter("query", "version", "Name of a version to predict with.")
    waiting = [
        _parameter(
            "query",
            "remember",
            "Store the rows, each with an id, for late labels; JSON only.",
            kind="boolean",
        ),
        _parameter("query", "default_label", "With remember: label of rows that receive none."),
        _parameter(
            "query",
            "default_after_s",
            "Seconds after which the default label is learned; default: REMEMBER_S.",
            kind="number",
        ),
    ]
    flags = [
        _parameter("query", "scores", "Return the score of each row.", kind="boolean"),
        _parameter("query", "atomic", "Learn all rows or none.", kind="boolean"),
        _parameter(
            "header",
            "Idempotency-Key",
            "The request is learned once. A repeat gets the first answer, with the header"
            " Idempotency-Replayed.",
        ),
    ]
    return {
        "/models/{model_id}/learn": {
            "post": _operation(
                "learn",
                "Learn samples in order, durably and exactly once.",
                [model, *flags],
                learned,
                _body(rows, LEARN_EXAMPLES),
                {"429": "The model is too large, or its quarantine is full."},
            )
        },
        "/models/{model_id}/predict": {
            "get": _operation(
                "predict_row", "Score one row.", [model, x, min_seq, version], predicted
            ),
            "post": _operation(
                "predict",
                "Score rows without learning.",
                [model, min_seq, version, *waiting],
                scored,
                _body(rows, PREDICT_EXAMPLES),
                {
                    "409": "Late labels are not supported for this model; `detail` has the reason.",
                    "429": "Too many rows wait for labels.",
                },
            ),
        },
        "/predict": {
            "get": _operation(
                "predict_by_query",
                "Score one row.",
                [named, x, min_seq, version],
                predicted,
                refusals={"404": "Unknown model or version."},
            )
        },
    }


def _add_lines(document: dict[str, Any], line: Any) -> None:
    """Describe the answer to learn as NDJSON."""
    learn = document["paths"]["/models/{model_id}/learn"]["post"]
    learn["description"] = (
        "A body above 1 MiB, except JSON, is learned in chunks while it arrives. Each chunk is"
        " atomic and has its own key. With `Accept: application/x-ndjson` the answer has a line for"
        " each acknowledged chunk (LearnedChunk), then the totals (LearnedStream) or the problem"
        " that ended the upload."
    )
    learn["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": line}


def _parameter(
    place: str, name: str, text: str, required: bool = False, kind: str = "string"
) -> dict[str, Any]:
    return {
        "in": place,
        "name": name,
        "description": text,
        "required": required,
        "schema": {"type": kind},
    }


def _body(rows: Any, examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    content = {
        media: {
            "schema": rows if media == "application/json" else {"type": "string"},
            "examples": {name: {"value": value} for name, value in named.items()},
        }
        for media, named in examples.items()
    }
    content |= {media: {"schema": {"type": "string", "format": "binary"}} for media in BINARY}
    return {"required": True, "content": content}


def _operation(
    name: str,
    text: str,
    parameters: list[Any],
    answer: Any,
    body: Any = None,
    refusals: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`refusals` are responses in addition to those of `describe_all`."""
    done = {"description": "Done.", "content": {"application/json": {"schema": answer}}}
    operation: dict[str, Any] = {
        "tags": ["hot path"],
        "operationId": name,
        "summary": text,
        "parameters": parameters,
        "responses": {"200": done}
        | {status: {"description": why} for status, why in (refusals or {}).items()},
    }
    return operation if body is None else operation | {"requestBody": body}


_EVENTS = {
    "tags": ["models"],
    "operationId": "read_events",
    "summary": "Progress of a model as server-sent events.",
    "description": (
        "`progress` events have seq, samples, rejected, rows_per_second and rolling metrics. While"
        " the model is not in memory they have its seq only, every 15 s. `deleted` is the last"
        " event. With `Last-Event-ID` a state that the client has is not sent again."
    ),
    "parameters": [
        _parameter("path", "model_id", "Model id.", required=True),
        _parameter(
            "query",
            "every_ms",
            "Minimum interval of events in ms, 100 to 60000; default 500.",
            False,
            "integer",
        ),
        _parameter("header", "Last-Event-ID", "Id of the last event that the client has."),
    ],
    "responses": {
        "200": {
            "description": "Events, until the model is deleted.",
            "content": {
                "text/event-stream": {
                    "schema": {
                        "type": "object",
                        "description": "One event.",
                        "required": ["event", "data"],
                        "properties": {
                            "event": {"enum": ["progress", "deleted"]},
                            "id": {"type": "string"},
                            "data": {"type": "string", "contentMediaType": "application/json"},
                        },
                    }
                }
            },
        },
    },
}
