"""Who may ask for what: one layer in front of every route, the hot ones, the page and all others.

NEEDS names the scope that each route needs; what it does not name needs `admin`, so that a route
which somebody forgets to add is closed. The API's description is made from the same table.

A key that is limited to some models hears of any other, be it there or not, what it would hear of
one that is not there; the answer is given here, before anything is looked up.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream.service.api.api_keys import Key, KeyRing, KeyScope
from dualstream.service.api.http import answer_problem
from dualstream.service.api.rate_limits import Limited, Rates
from dualstream.service.api.remember_rows import OF_WAITING
from dualstream.service.journal.audit import ANONYMOUS, Author
from dualstream.service.metrics import Telemetry
from dualstream.wire.problems import Problem, unknown_model

NOTHING, PREDICT, LEARN, ADMIN = KeyScope
Methods = Mapping[str, KeyScope]

# By the templates of the API's description.
NEEDS: dict[str, Methods] = {
    "/": {"GET": NOTHING},
    "/docs": {"GET": NOTHING},
    "/openapi.json": {"GET": NOTHING},
    "/static/{file}": {"GET": NOTHING},
    "/livez": {"GET": NOTHING},
    # With `verbose` any key, as metrics.
    "/readyz": {"GET": NOTHING},
    "/metrics": {"GET": PREDICT},
    "/audit": {"GET": ADMIN},
    "/predict": {"GET": PREDICT},
    "/specs/resolve": {"POST": PREDICT},
    "/models": {"GET": PREDICT},
    "/models/{model_id}": {"GET": PREDICT, "PUT": ADMIN, "DELETE": ADMIN},
    # To remember a row gives it a label in the end, perhaps: with these in the query, LEARN.
    "/models/{model_id}/predict": {"GET": PREDICT, "POST": PREDICT},
    "/models/{model_id}/learn": {"POST": LEARN},
    "/models/{model_id}/labels": {"POST": LEARN},
    "/models/{model_id}/events": {"GET": PREDICT},
    "/models/{model_id}/metrics": {"GET": PREDICT},
    "/models/{model_id}/timeline": {"GET": PREDICT},
    "/models/{model_id}/weights": {"GET": PREDICT},
    "/models/{model_id}/support": {"GET": PREDICT},
    "/models/{model_id}/certificate": {"GET": PREDICT},
    "/models/{model_id}/export": {"GET": PREDICT},
    "/models/{model_id}/compare": {"GET": PREDICT},
    "/models/{model_id}/members": {"GET": PREDICT, "POST": ADMIN},
    "/models/{model_id}/members/{name}": {"DELETE": ADMIN},
    "/models/{model_id}/members/{name}/promote": {"POST": ADMIN},
    "/models/{model_id}/promotion": {"DELETE": ADMIN},
    "/models/{model_id}/versions": {"GET": PREDICT, "POST": ADMIN},
    "/models/{model_id}/versions/{name}": {"GET": PREDICT, "DELETE": ADMIN},
    "/models/{model_id}/rollback": {"POST": ADMIN},
    "/models/{model_id}/resume": {"POST": ADMIN},
    "/models/{model_id}/refit": {"POST": ADMIN},
    "/models/{model_id}/refits": {"GET": PREDICT},
    "/models/{model_id}/refits/{job}": {"GET": PREDICT, "DELETE": ADMIN},
    "/models/{model_id}/samples/{sample_id}": {"DELETE": ADMIN},
    # The Open Inference Protocol.
    "/v2": {"GET": NOTHING},
    "/v2/health/live": {"GET": NOTHING},
    "/v2/health/ready": {"GET": NOTHING},
    "/v2/models/{model_id}": {"GET": PREDICT},
    "/v2/models/{model_id}/ready": {"GET": PREDICT},
    "/v2/models/{model_id}/infer": {"POST": PREDICT},
}

ID_DIGITS = 16
"""Hexadecimal digits of a key's digest that identify it in the audit log."""
_OF_MODELS = "/models/{model_id}"


def _rests(of_models: str) -> dict[str, str]:
    """What stands behind a model's id -> the template; a name there is a *."""
    return {
        "/".join(
            "*" if step.startswith("{") else step
            for step in template.removeprefix(of_models).lstrip("/").split("/")
        ): template
        for template in NEEDS
        if template.startswith(of_models)
    }


# By what stands before a model's id.
_FOLDERS = {"/models/": _rests(_OF_MODELS), "/v2/models/": _rests(f"/v2{_OF_MODELS}")}
# As the metrics name the routes that are answered before FastAPI.
_HOT = {f"{_OF_MODELS}/{action}": action for action in ("learn", "predict", "events")}
_HOT["/predict"] = "predict"


class Asked(NamedTuple):
    """What a request asks for."""

    route: str | None
    """The template; None for what is no route."""
    scope: KeyScope
    models: tuple[str, ...]
    """The ids that it names."""


def asked_of(method: str, path: str, query: bytes = b"") -> Asked:
    """What a request needs, by its line alone.

    The path is taken apart as those do who serve it: at every slash, after %-escapes are undone.
    """
    models: tuple[str, ...] = ()
    folder = next((one for one in _FOLDERS if path.startswith(one)), None)
    if folder is not None:
        model_id, _, rest = path.removeprefix(folder).partition("/")
        models = (model_id,)
        rests = _FOLDERS[folder]
        route = rests.get(rest) or rests.get(_shape(rest))
    elif path.startswith("/static/"):
        route = "/static/{file}"
    else:
        route = path if path in NEEDS else None
    needed = ADMIN
    if route is not None:
        methods = NEEDS[route]
        # Of a route that nobody needs a key for everybody may hear which methods it has.
        needed = NOTHING if set(methods.values()) == {NOTHING} else ADMIN
        needed = methods.get("GET" if method == "HEAD" else method, needed)
    if query and route in _OF_QUERIES:
        asked = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        names = {name for name, _ in asked}
        if route in _NAMING_MODELS:
            models = tuple(value for name, value in asked if name == "model")
        elif route == "/readyz":
            needed = max(needed, PREDICT if "verbose" in names else NOTHING)
        elif not names.isdisjoint(OF_WAITING):
            needed = max(needed, LEARN)
    return Asked(route, needed, models)


# Of which the query says which model, and of which it says anything about the scope.
_NAMING_MODELS = ("/predict", "/audit")
_OF_QUERIES = (*_NAMING_MODELS, "/readyz", f"{_OF_MODELS}/predict")


def _shape(rest: str) -> str:
    first, *others = rest.split("/")
    if first == "samples":  # an id may hold slashes
        return "samples/*"
    return "/".join([first, "*", *others[1:]])


def not_allowed(method: str, path: str) -> Problem:
    """For a method that the route of this path does not have; `Allow` has those that it has."""
    route = asked_of("GET", path).route
    allow = ", ".join(sorted(NEEDS.get(route or "", ())))
    detail = f"{method} is not allowed here, use {allow}"
    return Problem(405, "method-not-allowed", detail, allow=allow)


def check_method(scope: Scope, *allowed: str) -> None:
    """Raises Problem 405 for another method."""
    if scope["method"] not in allowed:
        raise not_allowed(scope["method"], scope["path"])


class Access:
    """Hands on what the key that is shown may ask for, and refuses all else."""

    def __init__(
        self, app: ASGIApp, keys: KeyRing | None, rates: Rates, telemetry: Telemetry
    ) -> None:
        """Without `keys` everybody may do all, as often as they like."""
        self._app = app
        self._keys = keys
        self._rates = rates
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = asked_of(scope["method"], scope["path"], scope["query_string"])
        if asked.scope is not NOTHING:
            key = self._shown(scope)
            refusal = _refusal(key, asked)
            if key is not None and refusal is None:
                limited = self._rates.of(key)
                if limited is not None:
                    scope["limited"] = limited
                    refusal = await limited.let_in()
            if refusal is not None:
                began = time.perf_counter()
                await answer_problem(send, refusal, scope["path"])
                route = _HOT.get(asked.route or "", asked.route or "unknown")
                seconds = time.perf_counter() - began
                self._telemetry.saw_request(route, refusal.status, seconds)
                return
            scope["auth"] = key
        await self._app(scope, receive, send)

    def _shown(self, scope: Scope) -> Key | None:
        """The key of `Authorization: Bearer KEY`; None for none, a wrong one, or more than one."""
        assert self._keys is not None
        shown = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if shown is not None:
                    return None
                shown = value
        if shown is None or shown[:7].lower() != b"bearer ":
            return None
        return self._keys.find(shown[7:].strip())


def _refusal(key: Key | None, asked: Asked) -> Problem | None:
    """Why not, if not. Nothing in it depends on what the store holds."""
    if key is None:
        return Problem(401, "unauthorized", "a valid key is needed: Authorization: Bearer KEY")
    if key.scope < asked.scope:
        return Problem(403, "forbidden", f"this needs a key with the scope {asked.scope.word}")
    unseen = [model_id for model_id in asked.models if not key.may_see(model_id)]
    if not unseen:
        return None
    if asked.route == _OF_MODELS and asked.scope is ADMIN:
        return Problem(403, "forbidden", f"this key is not for a model of the id {unseen[0]!r}")
    return unknown_model(unseen[0])


def key_of(request: Request) -> Key | None:
    """The key that the request has shown; None where none is asked for."""
    key: Key | None = request.scope.get("auth")
    return key


def limited_of(scope: Scope) -> Limited | None:
    """What the key that was shown may send a second; None where it may send anything."""
    limited: Limited | None = scope.get("limited")
    return limited


def author_of(request: Request) -> Author:
    """Who asks, for the log of changes."""
    key = key_of(request)
    return ANONYMOUS if key is None else Author("request", key.name, key.digest.hex()[:ID_DIGITS])


def may_see(request: Request, model_id: str) -> bool:
    """Whether the one who asks may hear of this model."""
    key = key_of(request)
    return key is None or key.may_see(model_id)
