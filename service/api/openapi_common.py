"""What the entries of all routes in the API's description have in common.

Every status that a route answers stands there, with its media type; which keys it asks for; what a
model's id may be; and links, by which one answer says what can be asked next.
"""

import re
from collections.abc import Iterator
from typing import Any

from dualstream.service.api.access import asked_of
from dualstream.service.api.api_keys import KeyScope
from dualstream.service.models.registry import MODEL_ID
from dualstream.wire.problems import MEDIA_TYPE

Document = dict[str, Any]

_MODEL = "{model_id}"
_PROBLEM = {
    "type": "object",
    "description": "Why a request was refused (RFC 9457); docs/reference/errors.md has the types.",
    "required": ["type", "title", "status", "detail", "instance", "errors", "error"],
    "properties": {
        "type": {"type": "string", "pattern": "^/problems/[a-z-]+$"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What to do about this one."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "errors": {
            "type": "array",
            "description": "The first 100 rows or fields that were refused.",
            "items": {
                "type": "object",
                "required": ["index", "pointer", "reason"],
                "properties": {
                    "index": {"type": "integer", "minimum": 0},
                    "pointer": {
                        "type": "string",
                        "description": "A JSON pointer, cut where it is long.",
                    },
                    "reason": {"type": "string"},
                    "line": {"type": "integer", "minimum": 1},
                },
            },
        },
        "error": {"type": "string", "description": "As `detail`."},
    },
}
_OF_KEYS = {
    401: "No valid key came with the request.",
    403: "The key is not for this.",
    429: "The key has sent more than it may a second; Retry-After says when it may again.",
}
_OF_MODELS = {404: "There is no such model, or nothing of that name in it."}
_OF_BODIES = {
    400: "The body is damaged: no JSON, no UTF-8, cut short.",
    413: "The body is too long, or has too many rows.",
    415: "A Content-Type or Content-Encoding that is not taken.",
    422: "A field, a parameter or all rows are wrong; `errors` says where.",
}
_OF_CHANGES = {409: "What the model is, or was made meanwhile, stands against it; and what does."}
OF_QUERIES: dict[int | str, Document] = {422: {"description": _OF_BODIES[422]}}
"""Of routes that refuse parameters which they do not have."""
_OF_THE_STORE = {503: "Not now: try again after so many seconds as Retry-After says."}
# Whoever has this, and no other worker, can be asked for it: 503 tells that, and in its own shape.
_OF_THEIR_OWN = ("/readyz", "/v2/health/ready")


def describe_all(document: Document, asks_for_keys: bool) -> None:
    """Add to every operation what its path and its parts say; to be done last."""
    document["components"]["schemas"]["Problem"] = _PROBLEM
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, where the server has some; else nothing is asked for.",
        }
    }
    for method, path, operation in _operations(document):
        needed = asked_of(method.upper(), path).scope
        # Where no keys are configured none is needed, which a client may read here, too.
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
        del answers["422"]  # FastAPI's, of a shape that nobody sends
    for status, why in refusals.items():
        answers.setdefault(str(status), {"description": why})
    for status, told in answers.items():
        if int(status) >= 400 and path not in _OF_THEIR_OWN:
            told["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation["responses"] = dict(sorted(answers.items()))


# What is asked of what: operation -> name -> where its answer, or its request, has it.
_ID = {"model_id": "$response.body#/id"}
_SAME = {"model_id": "$request.path.model_id"}
_VERSION = _SAME | {"name": "$response.body#/name"}
_JOB = _SAME | {"job": "$response.body#/job"}
_MEMBER = _SAME | {"name": "$response.body#/name"}


def _link(document: Document) -> None:
    """Say by links which answers name what other operations ask for."""
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
