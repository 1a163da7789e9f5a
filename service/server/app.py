"""create_app: the composition root. Wires settings, journal, models, jobs, metrics and routes."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream import __version__
from dualstream.service.api import (
    audit,
    dashboard,
    health,
    late_labels as labels,
    models,
    problem_pages,
    sources,
    specs,
    timeline,
)
from dualstream.service.api.learn_and_predict import FastRoutes
from dualstream.service.api.short_requests import ShortRequests
from dualstream.service.concurrency import LoopWatch
from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature, jobs_of
from dualstream.service.http.access import AccessControl, requirement_of
from dualstream.service.http.api_keys import KeyRing
from dualstream.service.http.body_memory import BodyMemory, memory_limit
from dualstream.service.http.connection_limits import (
    MAX_BODY_STEP_S,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_HEAD_S,
    Connections,
    Limits,
)
from dualstream.service.http.cors import across_origins
from dualstream.service.http.framework_errors import handle_errors
from dualstream.service.http.head_checks import HeadChecks
from dualstream.service.http.openapi import OF_QUERIES, describe_fast_routes
from dualstream.service.http.overload import MAX_WAIT_S, MAX_WAITING, AdmissionControl, IdleShare
from dualstream.service.http.rate_limits import RateLimits, TokenStore
from dualstream.service.http.request_head import check_query
from dualstream.service.http.request_log import RequestLog
from dualstream.service.jobs.follower import Follower
from dualstream.service.jobs.label_timeouts import DefaultLabels
from dualstream.service.journal import Limits as JournalLimits, make_journal
from dualstream.service.metrics import Telemetry
from dualstream.service.metrics.multiprocess import MetricsDirectory
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.observability.tracing import Tracing, is_tracing_wanted
from dualstream.service.replica.features import Features
from dualstream.service.settings import Settings, check_binding


class Application:
    """The ASGI application, and the parts of it that the server and tests control."""

    def __init__(
        self,
        requests: RequestLog,
        fastapi: FastAPI,
        fast_routes: FastRoutes,
        registry: ModelRegistry,
        startup: Readiness,
        admission: AdmissionControl,
        bodies: BodyMemory,
        connections: Connections,
        short_requests: ShortRequests,
    ) -> None:
        self._requests, self._fastapi = requests, fastapi
        self._registry, self._fast_routes = registry, fast_routes
        self.startup, self.admission = startup, admission
        self.bodies, self.connections = bodies, connections
        self.short_requests = short_requests
        self.stop_streams = fast_routes.stop_streams

    def drain(self) -> None:
        """Not ready from now on, but serve; each response closes its connection."""
        self.startup.is_stopping = True
        self._requests.is_draining = True

    def start_tracing(self) -> Tracing:
        """Make a span for each sampled request from now on."""
        self._requests.tracing = tracing = Tracing()
        return tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests pass all layers. Start and stop of the process are FastAPI's alone."""
        await (self._requests if scope["type"] == "http" else self._fastapi)(scope, receive, send)


@functools.cache
def _routes(features: tuple[Feature, ...]) -> list[BaseRoute]:
    """The routes. Applications share them, because FastAPI takes 45 ms to prepare them."""
    # Generated clients name their calls by it.
    router = APIRouter(generate_unique_id_function=lambda route: route.name)
    is_strict: dict[str, Any] = {"dependencies": [Depends(check_query)], "responses": OF_QUERIES}
    # Browsers, probes and Prometheus may add query parameters.
    lenient = (dashboard, health, problem_pages)
    for module in (
        dashboard,
        audit,
        models,
        specs,
        timeline,
        labels,
        sources,
        health,
        problem_pages,
    ):
        router.include_router(module.router, **({} if module in lenient else is_strict))
    for feature in features:
        for part in feature.routers:
            router.include_router(part, **(is_strict if feature.refuses_unknown_parameters else {}))
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
    families = [
        feature.series
        for feature in features
        if feature.series is not None
        and (feature.series_setting is None or getattr(settings, feature.series_setting))
    ]
    reports = [feature.reports for feature in features if feature.reports is not None]
    telemetry = Telemetry(settings.metrics_max_models, metrics_dir, families, reports)
    registry = ModelRegistry(journal, settings, telemetry, Features(features), jobs_of(features))
    telemetry.watch(registry)
    admission = AdmissionControl(
        registry.waiting,
        telemetry.saw_shed,
        time.monotonic,
        MAX_WAITING,
        MAX_WAIT_S,
        IdleShare().share,
    )
    startup = Readiness(registry)
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
        admission.run,
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
    app.router.redirect_slashes = False  # see framework_errors.py
    app.state.settings = settings
    app.state.registry = registry
    app.state.startup = startup
    app.state.telemetry = telemetry
    app.state.features = {feature.name for feature in features}
    app.state.exporting = asyncio.Lock()
    app.mount("/static", dashboard.DashboardFiles(), "static")
    handle_errors(app)
    describe_fast_routes(app, settings.asks_for_keys)
    bodies = BodyMemory(memory_limit(settings.max_body_bytes), time.monotonic)
    fast_routes = FastRoutes(app, registry, startup, admission, bodies, telemetry)
    layers: ASGIApp = fast_routes
    access = None
    if keys is not None:
        rates = RateLimits(
            TokenStore(journal),
            settings.key_requests_per_s,
            settings.key_rows_per_s,
            telemetry.saw_rate_exceeded,
        )
        layers = access = AccessControl(layers, keys, rates, telemetry)
    layers = HeadChecks(layers, admission)
    if settings.cors_origins is not None:
        # Outside the layers that refuse requests, so that a page can read every refusal.
        layers = across_origins(layers, settings.cors_origins)
    requests = RequestLog(layers, settings.access_log, requirement_of)
    short_requests = ShortRequests(
        fast_routes, registry, startup, admission, telemetry, requests, access
    )
    application = Application(
        requests,
        app,
        fast_routes,
        registry,
        startup,
        admission,
        bodies,
        connections,
        short_requests,
    )
    return application
