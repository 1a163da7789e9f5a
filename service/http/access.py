"""Authentication and authorisation of every request by API keys: an ASGI middleware.

REQUIRED_SCOPES has the scope that each route requires; the OpenAPI document uses it too. A route
that is missing from the table requires `admin`, so a forgotten route is closed.

A key that is limited to some models gets the same 404 for every other model, whether it exists or
not. The middleware answers before the registry or the store is asked.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream.service.http.api_keys import Key, KeyRing, KeyScope
from dualstream.service.http.rate_limits import RateLimits, limits_of
from dualstream.service.http.send import send_problem
from dualstream.service.journal.audit import ANONYMOUS, Author
from dualstream.service.metrics import Telemetry
from dualstream.service.models.problems import unknown_model
from dualstream.wire.problem_json import Problem

NOTHING, PREDICT, LEARN, ADMIN = KeyScope
Methods = Mapping[str, KeyScope]

# By the path templates of the OpenAPI document.
_CORE: dict[str, Methods] = {
    "/": {"GET": NOTHING},
    "/docs": {"GET": NOTHING},
    "/openapi.json": {"GET": NOTHING},
    "/static/{file}": {"GET": NOTHING},
    "/problems": {"GET": NOTHING},
    "/problems/{slug}": {"GET": NOTHING},
    "/livez": {"GET": NOTHING},
    "/healthz": {"GET": NOTHING},
    # `?verbose` requires a key of any scope, as /metrics does.
    "/readyz": {"GET": NOTHING},
    "/metrics": {"GET": PREDICT},
    "/audit": {"GET": ADMIN},
    "/predict": {"GET": PREDICT},
    "/specs/resolve": {"POST": PREDICT},
    "/models": {"GET": PREDICT},
    "/models/{model_id}": {"GET": PREDICT, "PUT": ADMIN, "DELETE": ADMIN},
    # LEARN with `remember` or a default label in the query: these rows can be learned later.
    "/models/{model_id}/predict": {"GET": PREDICT, "POST": PREDICT},
    "/models/{model_id}/learn": {"POST": LEARN},
    "/models/{model_id}/labels": {"POST": LEARN},
    "/models/{model_id}/events": {"GET": PREDICT},
    "/models/{model_id}/metrics": {"GET": PREDICT},
    "/models/{model_id}/timeline": {"GET": PREDICT},
    "/models/{model_id}/weights": {"GET": PREDICT},
    "/models/{model_id}/support": {"GET": PREDICT},
    "/models/{model_id}/sources": {"GET": PREDICT},
    "/models/{model_id}/sources/{name}": {"PUT": ADMIN, "DELETE": ADMIN},
}
FEATURE_SCOPES: dict[str, dict[str, Methods]] = {
    "certificate": {"/models/{model_id}/certificate": {"GET": PREDICT}},
    "columns": {"/models/{model_id}/columns": {"GET": PREDICT}},
    "confusion": {"/models/{model_id}/confusion": {"GET": PREDICT}},
    "curves": {"/models/{model_id}/curves": {"GET": PREDICT}},
    "export": {"/models/{model_id}/export": {"GET": PREDICT}},
    "guard": {"/models/{model_id}/resume": {"POST": ADMIN}},
    "history": {"/models/{model_id}/observe": {"POST": LEARN}},
    "infer": {"/columns/infer": {"POST": ADMIN}},
    "intervals": {"/models/{model_id}/intervals": {"GET": PREDICT}},
    "members": {
        "/models/{model_id}/members": {"GET": PREDICT, "POST": ADMIN},
        "/models/{model_id}/members/compare": {"GET": PREDICT},
        "/models/{model_id}/members/{name}": {"DELETE": ADMIN},
        "/models/{model_id}/members/{name}/promote": {"POST": ADMIN},
        "/models/{model_id}/promotion": {"DELETE": ADMIN},
    },
    "open_inference": {
        "/v2": {"GET": NOTHING},
        "/v2/health/live": {"GET": NOTHING},
        "/v2/health/ready": {"GET": NOTHING},
        "/v2/models/{model_id}": {"GET": PREDICT},
        "/v2/models/{model_id}/ready": {"GET": PREDICT},
        "/v2/models/{model_id}/infer": {"POST": PREDICT},
    },
    "refits": {
        "/models/{model_id}/refit": {"POST": ADMIN},
        "/models/{model_id}/refits": {"GET": PREDICT},
        "/models/{model_id}/refits/{job}": {"GET": PREDICT, "DELETE": ADMIN},
        "/models/{model_id}/weights": {"PUT": ADMIN},
    },
    "trends": {"/models/{model_id}/trends": {"GET": PREDICT}},
    "unlearning": {"/models/{model_id}/samples/{sample_id}": {"DELETE": ADMIN}},
    "versions": {
        "/models/{model_id}/versions": {"GET": PREDICT, "POST": ADMIN},
        "/models/{model_id}/versions/{name}": {"GET": PREDICT, "DELETE": ADMIN},
        "/models/{model_id}/versions/{name}/metrics": {"GET": PREDICT},
        "/models/{model_id}/rollback": {"POST": ADMIN},
    },
}
"""Routes of each optional feature, also of those that a server lacks."""
REQUIRED_SCOPES: dict[str, Methods] = {}
for routes in (_CORE, *FEATURE_SCOPES.values()):
    for template, methods in routes.items():
        REQUIRED_SCOPES[template] = {**REQUIRED_SCOPES.get(template, {}), **methods}
_FEATURES = {
    (method, template): name
    for name, routes in FEATURE_SCOPES.items()
    for template, methods in routes.items()
    for method in methods
}

REMEMBER_PARAMETERS = ("remember", "default_label", "default_after_s", "revise")
"""Query parameters of remembered predictions, which require LEARN."""
ID_DIGITS = 16
"""Hexadecimal digits of a key's digest that identify it in the audit log."""
_OF_MODELS = "/models/{model_id}"
_PUBLIC_FOLDERS = ("/static/", "/problems/")


def _templates_by_suffix(of_models: str) -> dict[str, str]:
    """Path after the model id -> template. A parameter in the path is a *."""
    return {
        "/".join(
            "*" if step.startswith("{") else step
            for step in template.removeprefix(of_models).lstrip("/").split("/")
        ): template
        for template in REQUIRED_SCOPES
        if template.startswith(of_models)
    }


# By the path before the model id.
_TEMPLATES = {
    "/models/": _templates_by_suffix(_OF_MODELS),
    "/v2/models/": _templates_by_suffix(f"/v2{_OF_MODELS}"),
}
# Route names in the metrics, for routes that are answered before FastAPI.
_FAST = {f"{_OF_MODELS}/{action}": action for action in ("learn", "predict", "events")}
_FAST["/predict"] = "predict"


class Requirement(NamedTuple):
    """What a request needs: route, scope and models."""

    route: str | None
    """The path template; None if no route matches."""
    scope: KeyScope
    models: tuple[str, ...]
    """Ids of the models that the request names."""


def requirement_of(method: str, path: str, query: bytes = b"") -> Requirement:
    """The route, scope and models of a request, from its request line alone.

    The path is split at every slash after %-decoding, as the router splits it.
    """
    models: tuple[str, ...] = ()
    folder = next((one for one in _TEMPLATES if path.startswith(one)), None)
    if folder is not None:
        model_id, _, suffix = path.removeprefix(folder).partition("/")
        models = (model_id,)
        templates = _TEMPLATES[folder]
        route = templates.get(suffix) or templates.get(_shape(suffix))
    elif path.startswith(_PUBLIC_FOLDERS):
        route = "/static/{file}" if path.startswith("/static/") else "/problems/{slug}"
    else:
        route = path if path in REQUIRED_SCOPES else None
    needed = ADMIN
    if route is not None:
        methods = REQUIRED_SCOPES[route]
        # A public route answers 405 without a key.
        needed = NOTHING if set(methods.values()) == {NOTHING} else ADMIN
        needed = methods.get("GET" if method == "HEAD" else method, needed)
    if query and route in _OF_QUERIES:
        requested = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        names = {name for name, _ in requested}
        if route in _NAMING_MODELS:
            models = tuple(value for name, value in requested if name == "model")
        elif route == "/readyz":
            needed = max(needed, PREDICT if "verbose" in names else NOTHING)
        elif not names.isdisjoint(REMEMBER_PARAMETERS):
            needed = max(needed, LEARN)
    return Requirement(route, needed, models)


def feature_of(method: str, path: str) -> str | None:
    """Name of the optional feature that a request needs; None if it needs none."""
    route = requirement_of(method, path).route or ""
    return _FEATURES.get(("GET" if method == "HEAD" else method, route))


# Routes whose query names the model, and routes whose query decides the scope.
_NAMING_MODELS = ("/predict", "/audit")
_OF_QUERIES = (*_NAMING_MODELS, "/readyz", f"{_OF_MODELS}/predict")


def _shape(suffix: str) -> str:
    first, *others = suffix.split("/")
    if first in ("samples", "sources"):  # their names can contain slashes
        return f"{first}/*"
    return "/".join([first, "*", *others[1:]])


def not_allowed(method: str, path: str) -> Problem:
    """Problem 405; its `Allow` header lists the methods of the route."""
    route = requirement_of("GET", path).route
    methods = set(REQUIRED_SCOPES.get(route or "", ()))
    allow = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    detail = f"{method} is not allowed here; use {allow}"
    return Problem(405, "method-not-allowed", detail, allow=allow)


class AccessControl:
    """ASGI middleware: passes authorised requests on and answers 401, 403, 404 or 429 itself."""

    def __init__(
        self, app: ASGIApp, keys: KeyRing, rates: RateLimits, telemetry: Telemetry
    ) -> None:
        self._app = app
        self._keys = keys
        self._rates = rates
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requested, refusal = self.check(scope)
        limits = limits_of(scope)
        if limits is not None and refusal is None:
            refusal = await limits.admit()
        if refusal is not None:
            began = time.perf_counter()
            await send_problem(send, refusal, scope["path"])
            route = _FAST.get(requested.route or "", requested.route or "unknown")
            seconds = time.perf_counter() - began
            self._telemetry.saw_request(scope["method"], route, refusal.status, seconds)
            return
        await self._app(scope, receive, send)

    def check(self, scope: Scope) -> tuple[Requirement, Problem | None]:
        """What the request needs, and why its key is refused, if it is.

        Of an accepted request the scope has the key and its rate limits from now on.
        """
        requested = requirement_of(scope["method"], scope["path"], scope["query_string"])
        if requested.scope is NOTHING:
            return requested, None
        key = self._key_in(scope)
        refusal = _refusal(key, requested)
        if key is not None and refusal is None:
            scope["auth"] = key
            limits = self._rates.of(key)
            if limits is not None:
                scope["key_limits"] = limits
        return requested, refusal

    def _key_in(self, scope: Scope) -> Key | None:
        """The key of `Authorization: Bearer KEY`; None if it is missing or invalid."""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                return self._keys.find(value[7:].strip())
        return None


def _refusal(key: Key | None, requested: Requirement) -> Problem | None:
    """The reason of a refusal, or None. It does not depend on the content of the store."""
    if key is None:
        return Problem(
            401, "unauthorized", "a valid API key is required: send Authorization: Bearer KEY"
        )
    if key.scope < requested.scope:
        return Problem(
            403, "forbidden", f"this request requires a key of scope {requested.scope.word}"
        )
    unseen = [model_id for model_id in requested.models if not key.may_see(model_id)]
    if not unseen:
        return None
    if requested.route == _OF_MODELS and requested.scope is ADMIN:
        return Problem(
            403,
            "forbidden",
            f"this key is not valid for model {unseen[0]!r}: its patterns do not match",
        )
    return unknown_model(unseen[0])


def key_of(request: Request) -> Key | None:
    """The API key of the request; None on a server without keys."""
    key: Key | None = request.scope.get("auth")
    return key


def author_of(request: Request) -> Author:
    """The author of a change, for the audit log."""
    key = key_of(request)
    return ANONYMOUS if key is None else Author("request", key.name, key.digest.hex()[:ID_DIGITS])


def may_see(request: Request, model_id: str) -> bool:
    """Whether the request's key matches this model."""
    key = key_of(request)
    return key is None or key.may_see(model_id)
