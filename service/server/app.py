"""create_app: the composition root. Wires settings, journal, models, jobs, metrics and routes."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream import __version__
from dualstream.service.api import (
    audit,
    certificate,
    columns,
    dashboard,
    export,
    health,
    infer_columns,
    late_labels as labels,
    members,
    models,
    open_inference,
    problem_pages,
    refits,
    resume as pauses,
    sources,
    specs,
    timeline,
    unlearn as samples,
    versions,
    weights,
)
from dualstream.service.api.learn_and_predict import HotPath
from dualstream.service.codecs import media_type
from dualstream.service.concurrency import LoopWatch, drop_traceback
from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature, jobs_of
from dualstream.service.http.access import AccessControl, feature_of, not_allowed, requirement_of
from dualstream.service.http.api_keys import KeyRing
from dualstream.service.http.body_memory import CONNECTION, BodyMemory, memory_limit
from dualstream.service.http.connection_limits import (
    MAX_BODY_STEP_S,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_HEAD_S,
    Connections,
    Limits,
)
from dualstream.service.http.exceptions_to_problems import as_problem
from dualstream.service.http.openapi import OF_QUERIES, describe_hot_routes
from dualstream.service.http.rate_limits import RateLimits, TokenStore
from dualstream.service.http.request_body import BodyRefused
from dualstream.service.http.request_head import (
    INVALID_PATH,
    REPLACEMENT,
    check_query,
    is_path,
    repeated_header,
)
from dualstream.service.http.request_log import AccessLog, RequestLog
from dualstream.service.http.send import send_problem, without_body
from dualstream.service.jobs.follower import Follower
from dualstream.service.jobs.label_timeouts import DefaultLabels
from dualstream.service.journal import Limits as JournalLimits, make_journal
from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.record import RecordError
from dualstream.service.metrics import Telemetry
from dualstream.service.metrics.multiprocess import MetricsDirectory
from dualstream.service.models.admission import (
    REFUSE_AFTER_S,
    AdmissionControl,
    kind_of,
    overloaded,
)
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.service.observability.tracing import Tracing, is_tracing_wanted
from dualstream.service.settings import Settings, check_binding
from dualstream.solvers import SolverError
from dualstream.wire.problems import MEDIA_TYPE, Problem, RowError

_CORS_REQUEST_HEADERS = (
    "authorization",
    "baggage",
    "content-type",
    "content-encoding",
    "dualstream-source",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "sentry-trace",
    "traceparent",
    "tracestate",
    "x-request-id",
)
_CORS_RESPONSE_HEADERS = (
    "etag",
    "retry-after",
    "idempotency-replayed",
    "dualstream-durability",
    "x-request-id",
)


class Admission:
    """ASGI middleware: refuses requests under overload before their body is read."""

    def __init__(self, app: ASGIApp, admission: AdmissionControl) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = kind_of(scope["path"]) if scope["type"] == "http" else None
        if kind is not None and not self._admission.admits(kind, scope.get(CONNECTION)):
            await asyncio.sleep(REFUSE_AFTER_S)
            await send_problem(send, overloaded(kind), scope["path"])
            return
        await self._app(scope, receive, send)


class Application:
    """The ASGI application: the layers and routes, for HEAD as for GET."""

    def __init__(
        self,
        layers: ASGIApp,
        hot: HotPath,
        registry: ModelRegistry,
        startup: Readiness,
        bodies: BodyMemory,
        connections: Connections,
        access_log: AccessLog,
    ) -> None:
        self._layers = layers
        self._requests = RequestLog(self._answer, access_log, requirement_of)
        self._registry, self._hot = registry, hot
        self.startup = startup
        self.admission = registry.admission
        self.bodies = bodies
        self.connections = connections
        self.stop_streams = hot.stop_streams

    def drain(self) -> None:
        """Not ready from now on, but serve; each response closes its connection."""
        self.startup.is_stopping = True
        self._requests.is_draining = True

    def start_tracing(self) -> Tracing:
        """Make a span for each sampled request from now on."""
        self._requests.tracing = tracing = Tracing()
        return tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._requests(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["method"] == "HEAD":
                scope, send = {**scope, "method": "GET"}, without_body(send)
            if REPLACEMENT in scope["path"] and not is_path(scope):
                await send_problem(send, INVALID_PATH, scope["path"])
                return
            if (repeated := repeated_header(scope)) is not None:
                await send_problem(send, repeated, scope["path"])
                return
        await self._layers(scope, receive, send)


@functools.cache
def _routes(features: tuple[Feature, ...]) -> list[BaseRoute]:
    """The routes. Applications share them, because FastAPI takes 45 ms to prepare them."""
    # Generated clients name their calls by it.
    router = APIRouter(generate_unique_id_function=lambda route: route.name)
    is_strict: dict[str, Any] = {"dependencies": [Depends(check_query)], "responses": OF_QUERIES}
    # Browsers, probes, Prometheus and clients of other protocols may add query parameters.
    lenient = (dashboard, health, open_inference, problem_pages)
    for module in (
        dashboard,
        audit,
        models,
        specs,
        timeline,
        columns,
        infer_columns,
        members,
        samples,
        labels,
        versions,
        sources,
        pauses,
        refits,
        weights,
        certificate,
        export,
        health,
        open_inference,
        problem_pages,
    ):
        router.include_router(module.router, **({} if module in lenient else is_strict))
    for feature in features:
        for own in feature.routers:
            router.include_router(own, **(is_strict if feature.refuses_unknown_parameters else {}))
    return router.routes


def create_app(
    settings: Settings | None = None,
    metrics_dir: MetricsDirectory | None = None,
    listens_when_ready: bool = False,
    features: tuple[Feature, ...] = FEATURES,
) -> Application:
    """The ASGI application; `metrics_dir` is set if the process is one of several workers.

    With `listens_when_ready` its start lasts until it is ready. Otherwise it answers probes before.

    Raises UnsafeBinding if the settings open the server to other hosts without keys, BadKeys
    if keys cannot be read, and ValueError if the store lacks what the settings ask for, or if
    traces are wanted without OpenTelemetry.
    """
    settings = settings or Settings()
    check_binding(settings)
    is_traced = is_tracing_wanted()
    keys = KeyRing(settings.keys, settings.keys_file) if settings.asks_for_keys else None
    limits = JournalLimits(
        key_ttl_s=settings.key_ttl_s,
        remember_s=settings.remember_s,
        audit_s=86_400 * settings.audit_days,
    )
    journal = make_journal(settings.store, settings.durability, limits)
    telemetry = Telemetry(settings.metrics_max_models, metrics_dir)
    registry = ModelRegistry(journal, settings, telemetry, jobs_of(features))
    telemetry.watch(registry)
    startup = Readiness(registry.store_identity, registry.store_status, registry.bring_up)
    connections = Connections(
        MAX_CONNECTIONS,
        Limits(MAX_HEAD_BYTES, MAX_HEAD_S, MAX_BODY_STEP_S, settings.keep_alive_s),
        telemetry.saw_closed,
        time.monotonic,
    )
    tasks = [
        Follower(registry, journal).run,
        DefaultLabels(registry, journal).run,
        telemetry.memory.run,
        telemetry.store.run,
        registry.admission.run,
    ]

    async def serve_models() -> None:
        await startup.run()
        await asyncio.gather(*(run() for run in tasks))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        serving = [asyncio.create_task(serve_models()), asyncio.create_task(connections.run())]
        serving.append(asyncio.create_task(LoopWatch(telemetry.saw_stall).run()))
        if keys is not None:
            serving.append(asyncio.create_task(keys.watch()))
        # Here, because the process may have forked after create_app.
        tracing = application.start_tracing() if is_traced else None
        if listens_when_ready:
            await startup.finished.wait()
        yield
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
        await registry.close()
        await journal.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.stop)

    app = FastAPI(
        title="Dualstream",
        description="Learns from a stream of labelled samples, durably and exactly once.",
        version=__version__,
        lifespan=lifespan,
        routes=_routes(features),
        docs_url=None,
        openapi_url=None,  # served by the dashboard's routes
        # Relative to the document: a proxy may serve it under a prefix.
        servers=[{"url": "."}],
        redoc_url=None,
    )
    app.router.redirect_slashes = False  # see _without_slash
    app.state.settings = settings
    app.state.registry = registry
    app.state.startup = startup
    app.state.telemetry = telemetry
    app.state.features = {feature.name for feature in features}
    app.state.exporting = asyncio.Lock()
    app.mount("/static", dashboard.DashboardFiles(), "static")
    for kind in (
        Problem,
        SolverError,
        JournalError,
        RecordError,
        HTTPException,
        RequestValidationError,
        Exception,
    ):
        app.add_exception_handler(kind, _answer_problem)
    describe_hot_routes(app, settings.asks_for_keys)
    bodies = BodyMemory(memory_limit(settings.max_body_bytes), time.monotonic)
    hot = HotPath(app, registry, startup, bodies, telemetry)
    layers: ASGIApp = hot
    if keys is not None:
        rates = RateLimits(
            TokenStore(journal),
            settings.key_requests_per_s,
            settings.key_rows_per_s,
            telemetry.saw_rate_exceeded,
        )
        layers = AccessControl(layers, keys, rates, telemetry)
    layers = Admission(layers, registry.admission)
    # Outermost, so that a page can read every refusal.
    if settings.cors_origins is not None:
        layers = _across_origins(layers, settings.cors_origins)
    application = Application(
        layers, hot, registry, startup, bodies, connections, settings.access_log
    )
    return application


def _across_origins(app: ASGIApp, origins: str) -> ASGIApp:
    """`app` with CORS for these origins. Preflight requests need no key.

    Credentials of the browser, such as cookies, are never used: only an API key identifies a
    client.
    """
    return CORSMiddleware(
        app,
        allow_origins=[origin.strip() for origin in origins.split(",") if origin.strip()],
        allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
        allow_headers=_CORS_REQUEST_HEADERS,
        expose_headers=_CORS_RESPONSE_HEADERS,
    )


def _without_slash(scope: Scope) -> Response | None:
    """Redirect of a path that ends with a slash to the one without it; None for another path.

    It is relative, so it stays under the prefix and the TLS of a proxy. Starlette's is not.
    """
    path = scope["raw_path"].decode("latin-1")
    if len(path) < 2 or not path.endswith("/"):
        return None
    query = scope["query_string"].decode("latin-1")
    to = f"../{path[:-1].rpartition('/')[2]}" + (f"?{query}" if query else "")
    return Response(status_code=307, headers={"location": to})


async def _answer_problem(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:
        redirect = _without_slash(request.scope)
        if redirect is not None:
            return redirect
    problem = as_problem(error) or _of_absent_feature(request, error)
    problem = problem or _of_framework(request, error)
    if problem is not None and problem.status == 405:
        problem = not_allowed(request.method, request.url.path)
    if problem is not None:
        drop_traceback(error)
    else:
        problem = Problem(500, "internal-error", "internal error; see the server's log")
    body = problem.body(request.url.path, REQUEST_ID.get())
    return Response(body, problem.status, problem.headers(), media_type=MEDIA_TYPE)


def _row_error(found: Any) -> RowError:
    """A validation error of the framework, in this API's words."""
    reason = found["msg"].removeprefix("Value error, ")
    if found["loc"] == ("body",) and found["type"] == "missing":
        reason = "a JSON body is required"
    return RowError(0, "/" + "/".join(map(str, found["loc"])), reason)


def _of_absent_feature(request: Request, error: Exception) -> Problem | None:
    """Problem 404 for a route of a feature that this server lacks."""
    if not isinstance(error, HTTPException) or error.status_code not in (404, 405):
        return None
    name = feature_of(request.method, request.url.path)
    if name is None or name in request.app.state.features:
        return None
    return Problem(404, "not-found", f"this server lacks the feature {name!r}")


def _of_framework(request: Request, error: Exception) -> Problem | None:
    if isinstance(error, RequestValidationError):
        wrong: list[Any] = list(error.errors())
        if wrong[0]["loc"] == ("body",) and wrong[0]["type"] != "missing":
            try:
                kind, _ = media_type(request.headers.get("content-type"))
            except Problem as refused:
                return refused
            if kind != "application/json":
                detail = f"{kind} is not accepted; send application/json"
                return Problem(415, "unsupported-media-type", detail)
        if wrong[0]["type"] == "json_invalid":
            return Problem(
                400, "malformed-body", f"the body is not JSON: {wrong[0]['ctx']['error']}"
            )
        errors = [_row_error(found) for found in wrong]
        field = ".".join(map(str, wrong[0]["loc"][1:]))
        detail = f"{field}: {errors[0].reason}" if field else errors[0].reason
        return Problem(422, "invalid-request", detail, errors)
    if isinstance(error, BodyRefused):
        return error.problem
    if isinstance(error, HTTPException):
        slug = {400: "malformed-body", 404: "not-found"}.get(error.status_code, "refused")
        detail = "no such route; /docs lists all" if slug == "not-found" else str(error.detail)
        return Problem(error.status_code, slug, detail)
    return None
