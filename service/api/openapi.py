"""The hot routes' entries in /docs, generated from the types that serve them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI

from dualstream.service.api.openapi_common import describe_all
from dualstream.service.codecs.json_exact import Columns, Sample, Samples
from dualstream.wire.schemas import Learned, LearnedChunk, LearnedStream, Predicted, PredictedMany

# Every example is posted as it stands by a test, to a model of dimension 3.
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

# Streams of bytes, which have no example.
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
    """Make `app.openapi()` tell of learn and predict as well, and of what all routes share."""
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
    model = _parameter("path", "model_id", "The model.", required=True)
    x = _parameter("query", "x", "One row: INDEX:VALUE,INDEX:VALUE; indices from 1.", True)
    named = _parameter("query", "model", "The model.", required=True)
    min_seq = _parameter(
        "query", "min_seq", "Wait until the state holds this seq, up to 2 s.", kind="integer"
    )
    version = _parameter("query", "version", "Score by the version of this name.")
    waiting = [
        _parameter(
            "query",
            "remember",
            "Keep the rows, each with an id, for labels that come later; JSON only.",
            kind="boolean",
        ),
        _parameter("query", "default_label", "With remember: the label of rows that get none."),
        _parameter(
            "query",
            "default_after_s",
            "When they have it; without it, after as long as rows are remembered.",
            kind="number",
        ),
    ]
    flags = [
        _parameter("query", "scores", "Answer each row's score.", kind="boolean"),
        _parameter("query", "atomic", "Learn all rows or none.", kind="boolean"),
        _parameter(
            "header",
            "Idempotency-Key",
            "Learned once, however often it is sent; then the first answer comes again, with the"
            " header Idempotency-Replayed.",
        ),
    ]
    return {
        "/models/{model_id}/learn": {
            "post": _operation(
                "learn",
                "Learn samples, in their order, each once and durably.",
                [model, *flags],
                learned,
                _body(rows, LEARN_EXAMPLES),
                {"429": "The model has grown too large, or its quarantine is full."},
            )
        },
        "/models/{model_id}/predict": {
            "get": _operation(
                "predict_row", "Score one row.", [model, x, min_seq, version], predicted
            ),
            "post": _operation(
                "predict",
                "Score rows; nothing is changed.",
                [model, min_seq, version, *waiting],
                scored,
                _body(rows, PREDICT_EXAMPLES),
                {
                    "409": "Rows of this model cannot wait for their labels, and why.",
                    "429": "Too many rows wait for their labels.",
                },
            ),
        },
        "/predict": {
            "get": _operation(
                "predict_by_query",
                "Score one row.",
                [named, x, min_seq, version],
                predicted,
                refusals={"404": "There is no such model, or no such version of it."},
            )
        },
    }


def _add_lines(document: dict[str, Any], line: Any) -> None:
    """Tell of the answer to learn as lines of JSON."""
    learn = document["paths"]["/models/{model_id}/learn"]["post"]
    learn["description"] = (
        "A body of more than 1 MiB, but of JSON, is learned in chunks as it arrives: each of them"
        " is atomic, and has a key of its own. With `Accept: application/x-ndjson` a line comes for"
        " each when it is acknowledged (LearnedChunk), and last one for all (LearnedStream) or the"
        " problem that ended it."
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
    """`refusals` are those beside what describe_all adds."""
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
    "summary": "Progress as server-sent events, told as it changes.",
    "description": (
        "`progress` events have seq, samples, rejected, rows_per_second and the rolling metrics;"
        " of a model that has left memory seq alone, every 15 s. `deleted` is the last one."
        " With `Last-Event-ID` a state that was told is not told again."
    ),
    "parameters": [
        _parameter("path", "model_id", "The model.", required=True),
        _parameter(
            "query",
            "every_ms",
            "Least time between two events; 500, or 100 to 60000.",
            False,
            "integer",
        ),
        _parameter("header", "Last-Event-ID", "The id of the event that was heard last."),
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
