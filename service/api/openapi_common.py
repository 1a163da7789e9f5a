"""Common parts of all routes in the OpenAPI document.

Adds statuses with media types, required key scopes, the pattern of model ids, and links from
answers to follow-up requests.
"""

import re
from collections.abc import Iterator
from typing import Any

from dualstream.service.api.access import requirement_of
from dualstream.service.api.api_keys import KeyScope
from dualstream.service.models.registry import MODEL_ID
from dualstream.wire.problems import MEDIA_TYPE

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


def describe_all(document: Document, asks_for_keys: bool) -> None:
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
    if any(parameter["in"] == "query" for parameter in operation.get("parameters", ())):
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
    known = {operation["operationId"]: operation for _, _, operation in _operations(document)}

    def link(source: str, statuses: str, target: str, **how: Any) -> None:
        for status in statuses.split():
            links = known[source]["responses"][status].setdefault("links", {})
            links[target] = {"operationId": target, **how}

    for _, path, operation in _operations(document):
        if re.search(rf"/models/{re.escape(_MODEL)}(/|$)", path) and path.count("{") == 1:
            link("create_model", "200 201", operation["operationId"], parameters=_ID)
    link("create_model", "200 201", "predict_by_query", parameters={"model": _ID["model_id"]})
    link("learn", "200", "predict", parameters=_SAME | {"min_seq": "$response.body#/seq"})
    link("learn", "200", "unlearn_sample", parameters=_SAME | {"sample_id": "$request.body#/id"})
    link("learn", "200", "roll_back", parameters=_SAME, requestBody={"seq": "$response.body#/seq"})
    for target in ("read_version", "delete_version"):
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
    for target in ("read_refit", "cancel_refit"):
        link("begin_refit", "202", target, parameters=_JOB)
    for target in ("remove_member", "promote_member"):
        link("add_member", "200 201", target, parameters=_MEMBER)
