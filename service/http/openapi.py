"""OpenAPI document: entries of the ASGI routes, and what all routes have in common.

Learn, predict and events are described from their types. All routes get statuses with media types,
required key scopes, the pattern of model ids, and links from answers to follow-up requests.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI

from dualstream.service.codecs.json_exact import Sample, SampleColumns, Samples
from dualstream.service.http.access import requirement_of
from dualstream.service.http.api_keys import KeyScope
from dualstream.wire.problem_json import MEDIA_TYPE
from dualstream.wire.schemas import (
    MODEL_ID,
    Learned,
    LearnedChunk,
    LearnedStream,
    Predicted,
    PredictedMany,
)
from dualstream.wire.sources import HEADER

# A test posts every example to a model of dimension 3.
LEARN_EXAMPLES: dict[str, dict[str, Any]] = {
    "application/json": {
        "one sample": {"x": {"1": 1, "3": 0.5}, "y": 1},
        "one dense sample": {"x": [1, 0, 0.5], "y": 0, "weight": 2},
        "samples": {"samples": [{"x": {"1": 1}, "y": 1}, {"x": {"2": 1}, "y": -1}]},
        "samples with ids": {
            "samples": [{"x": {"1": 1}, "y": 1, "id": "event-1"}, {"x": {"2": 1}, "y": -1, "id": 7}]
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
    SampleColumns,
    Learned,
    Predicted,
    PredictedMany,
    LearnedChunk,
    LearnedStream,
)

SCHEMAS: dict[str, Any] = {}
"""Schemas of answers by name, for the OpenAPI document."""


def returns(kind: Any, description: str = "Successful Response") -> dict[str, Any]:
    """OpenAPI description of a response whose body has this type."""
    [schema], types = msgspec.json.schema_components(
        [kind], ref_template="#/components/schemas/{name}"
    )
    SCHEMAS.update(types)
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def returns_one_of(*kinds: Any) -> dict[str, Any]:
    """As `returns`, for a body that has one of these types."""
    answers = [returns(kind) for kind in kinds]
    schemas = [one["content"]["application/json"]["schema"] for one in answers]
    content = {"application/json": {"schema": {"anyOf": schemas}}}
    return answers[0] | {"content": content}


def describe_fast_routes(app: FastAPI, asks_for_keys: bool) -> None:
    """Add the ASGI routes and the common parts of all routes to `app.openapi()`."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas, components = msgspec.json.schema_components(
                _TYPES, ref_template="#/components/schemas/{name}"
            )
            sample, samples, columns, learned, predicted, many, chunk, stream = schemas
            document["components"]["schemas"] |= SCHEMAS | components
            rows = {"anyOf": [sample, samples, columns]}
            scored = {"anyOf": [predicted, many]}
            document["paths"] |= _paths(rows, learned, predicted, scored)
            document["paths"]["/models/{model_id}/events"] = {"get": _EVENTS}
            _add_lines(document, {"anyOf": [chunk, stream, learned]})
            _describe_all(document, asks_for_keys)
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
    explain = _parameter(
        "query", "explain", "Also return what each feature contributes.", kind="boolean"
    )
    top = _parameter(
        "query",
        "top",
        "Several classes: also return this many, with scores and probabilities.",
        kind="integer",
    )
    shared = [min_seq, version, explain, top]
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
        _parameter(
            "query",
            "revise",
            "With default_label: labels with `revise` may replace it.",
            kind="boolean",
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
        _parameter(
            "header",
            HEADER,
            "The rows are a batch of a source, learned once by its offsets: NAME; from=FIRST;"
            ' to=LAST, or NAME; from="OFFSET"; next="NEXT OFFSET". The first batch of a source also'
            " has the parameter first. Not with Idempotency-Key or atomic. The body may be empty,"
            " and is not learned in chunks.",
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
                {
                    "409": "The model was replaced, the source is unknown, or `cursor` has the"
                    " offset at which it continues.",
                    "429": "The model is too large, or its quarantine is full.",
                },
            )
        },
        "/models/{model_id}/predict": {
            "get": _operation(
                "predict_row",
                "Score one row.",
                [model, x, *shared],
                predicted,
                refusals={"409": "The model has no explanations; `detail` has the reason."},
            ),
            "post": _operation(
                "predict",
                "Score rows without learning.",
                [model, *shared, *waiting],
                scored,
                _body(rows, PREDICT_EXAMPLES),
                {
                    "409": "Late labels or explanations are not supported for this model; `detail`"
                    " has the reason.",
                    "429": "Too many rows wait for labels.",
                },
            ),
        },
        "/predict": {
            "get": _operation(
                "predict_by_query",
                "Score one row.",
                [named, x, *shared],
                predicted,
                refusals={
                    "404": "Unknown model or version.",
                    "409": "The model has no explanations; `detail` has the reason.",
                },
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
    location: str, name: str, text: str, required: bool = False, kind: str = "string"
) -> dict[str, Any]:
    return {
        "in": location,
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
    """`refusals` are responses in addition to those of `_describe_all`."""
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
        }
    },
}

Document = dict[str, Any]

_MODEL = "{model_id}"
_PROBLEM = {
    "type": "object",
    "description": "Reason of a refusal (RFC 9457); docs/reference/errors.md lists the types.",
    "required": ["type", "title", "status", "detail", "instance", "errors", "error"],
    "properties": {
        "type": {"type": "string", "pattern": "^/problems/[a-z-]+$"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What is wrong and what to do."},
        "instance": {"type": "string", "description": "Path of the request."},
        "errors": {
            "type": "array",
            "description": "The first 100 refused rows or fields.",
            "items": {
                "type": "object",
                "required": ["index", "pointer", "reason"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0},
                    "pointer": {
                        "type": "string",
                        "description": "JSON pointer, shortened if it is long.",
                    },
                    "reason": {"type": "string"},
                    "line": {"type": "integer", "minimum": 1},
                },
            },
        },
        "error": {"type": "string", "description": "The same as `detail`."},
        "request_id": {"type": "string", "description": "As in the header X-Request-ID."},
    },
}
_OF_KEYS = {
    401: "The request has no valid API key.",
    403: "The key's scope or model patterns do not allow this.",
    429: "The key's rate limit is exceeded; Retry-After has the seconds to wait.",
}
_OF_MODELS = {404: "Unknown model, or unknown resource of the model."}
_OF_BODIES = {
    400: "The body is malformed: not JSON, not UTF-8, or truncated.",
    413: "The body is too long, or has too many rows.",
    415: "Unsupported Content-Type or Content-Encoding.",
    422: "A field, a parameter or all rows are invalid; `errors` has the details.",
}
_OF_CHANGES = {
    409: "The request conflicts with the model or with a concurrent change; see `detail`."
}
OF_QUERIES: dict[int | str, Document] = {422: {"description": _OF_BODIES[422]}}
"""Response of routes that refuse unknown query parameters."""
_OF_THE_STORE = {503: "Temporarily unavailable; Retry-After has the seconds to wait."}
# Routes whose 503 is their normal answer and has its own schema.
_OWN_SCHEMA = ("/readyz", "/v2/health/ready")


def _describe_all(document: Document, asks_for_keys: bool) -> None:
    """Add the common parts to every operation. Call it after all routes are in the document."""
    document["components"]["schemas"]["Problem"] = _PROBLEM
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key; a server without keys requires none.",
        }
    }
    for method, path, operation in _operations(document):
        needed = requirement_of(method.upper(), path).scope
        # On a server without keys they are optional: {} permits requests without one.
        keys = [] if needed is KeyScope.NOTHING else [{"key": [needed.word]}]
        operation["security"] = keys if asks_for_keys or not keys else [{}, *keys]
        _describe_answers(path, operation, needed)
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in ("model_id", "model"):
                parameter["schema"] |= {"type": "string", "pattern": f"^{MODEL_ID.pattern}$"}
            elif parameter["name"].lower() == "idempotency-key":
                parameter["schema"] = {"type": "string", "minLength": 1, "maxLength": 255}
            elif parameter["name"].lower() in ("if-match", "if-none-match"):
                parameter["schema"] = {"type": "string"}
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    _link(document)


def _operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def _describe_answers(path: str, operation: Document, needed: KeyScope) -> None:
    refusals: dict[int, str] = {}
    if needed is not KeyScope.NOTHING:
        refusals |= _OF_KEYS
        if path != "/metrics":
            refusals |= _OF_THE_STORE
    if _MODEL in path:
        refusals |= _OF_MODELS
        if needed > KeyScope.PREDICT:
            refusals |= _OF_CHANGES
    takes_query = any(one["in"] == "query" for one in operation.get("parameters", ()))
    if takes_query or _MODEL in path:  # also for an invalid model id
        refusals[422] = _OF_BODIES[422]
    if "requestBody" in operation:
        refusals |= _OF_BODIES
    answers = operation["responses"]
    if answers.get("422", {}).get("description") == "Validation Error":
        del answers["422"]  # FastAPI's own schema, which the server never sends
    for status, why in refusals.items():
        answers.setdefault(str(status), {"description": why})
    for status, response in answers.items():
        if int(status) >= 400 and path not in _OWN_SCHEMA:
            response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation["responses"] = dict(sorted(answers.items()))


# Link parameters: name -> runtime expression in the answer or the request.
_ID = {"model_id": "$response.body#/id"}
_SAME = {"model_id": "$request.path.model_id"}
_VERSION = _SAME | {"name": "$response.body#/name"}
_JOB = _SAME | {"job": "$response.body#/job"}
_MEMBER = _SAME | {"name": "$response.body#/name"}


def _link(document: Document) -> None:
    """Add links from answers to the operations that use their fields."""
    by_id = {operation["operationId"]: operation for _, _, operation in _operations(document)}

    def link(source: str, statuses: str, target: str, **how: Any) -> None:
        if source not in by_id or target not in by_id:  # of a feature that is absent
            return
        for status in statuses.split():
            links = by_id[source]["responses"][status].setdefault("links", {})
            links[target] = {"operationId": target, **how}

    for _, path, operation in _operations(document):
        if re.search(rf"/models/{re.escape(_MODEL)}(/|$)", path) and path.count("{") == 1:
            link("create_model", "200 201", operation["operationId"], parameters=_ID)
    link("create_model", "200 201", "predict_by_query", parameters={"model": _ID["model_id"]})
    link("learn", "200", "predict", parameters=_SAME | {"min_seq": "$response.body#/seq"})
    link("learn", "200", "unlearn_sample", parameters=_SAME | {"sample_id": "$request.body#/id"})
    link("learn", "200", "roll_back", parameters=_SAME, requestBody={"seq": "$response.body#/seq"})
    for target in ("read_version", "read_version_metrics", "delete_version"):
        link("create_version", "200 201", target, parameters=_VERSION)
    link(
        "create_version",
        "200 201",
        "roll_back",
        parameters=_SAME,
        requestBody={"version": "$response.body#/name"},
    )
    for target in ("predict", "predict_row"):
        named = _SAME | {"version": "$response.body#/name"}
        link("create_version", "200 201", target, parameters=named)
    first = _SAME | {"name": "$response.body#/sources/0/name"}
    link("list_sources", "200", "put_source", parameters=first)
    link("put_source", "200", "delete_source", parameters=_SAME | {"name": "$response.body#/name"})
    for target in ("read_refit", "cancel_refit"):
        link("begin_refit", "202", target, parameters=_JOB)
    for target in ("remove_member", "promote_member"):
        link("add_member", "200 201", target, parameters=_MEMBER)
