"""Health checks /livez and /readyz, and Prometheus metrics /metrics."""

import asyncio
import os
import re
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from dualstream.service.http.access import key_of, may_see
from dualstream.service.http.api_keys import Key
from dualstream.service.metrics import Telemetry
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.settings import without_password
from dualstream.solvers import jit, numeric_identity


class _JsonLine(JSONResponse):
    """JSON with a newline at its end, as of all routes."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


router = APIRouter(tags=["health"], default_response_class=_JsonLine)

_MODEL_LABEL = re.compile(rb'[{,]model="([^"]*)"')
# Maximum number of lagging models in one answer.
MAX_BEHIND = 100


@router.get("/healthz", name="healthz")
@router.get("/livez")
async def livez() -> dict[str, bool]:
    """Liveness: the process runs."""
    return {"alive": True}


@router.get(
    "/readyz",
    responses={503: {"description": "Not ready; `reason` says why.", "model": dict[str, Any]}},
)
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    """Readiness: the process serves the store's models.

    A ready process stays ready. While the store is unavailable, `degraded` names it and predictions
    continue. Exception: a store that a process of another numeric identity has adopted.
    `?verbose` adds store, durability, identity, lag and unreadable models. `compiling` says that
    not all kernels are compiled: the first model of an algorithm may wait for its kernels. With
    several workers on one port any of them answers; `process` is its process id.
    """
    startup: Readiness = request.app.state.startup
    report: dict[str, Any] = {"ready": startup.is_ready and not startup.is_stopping}
    if not report["ready"]:
        response.status_code = 503
        response.headers["retry-after"] = "1"
        report["reason"] = startup.reason or "the server is stopping"
    elif (trouble := request.app.state.registry.store_status.trouble) is not None:
        report |= {"degraded": ["store"], "reason": trouble}
    if "verbose" in request.query_params:
        registry: ModelRegistry = request.app.state.registry
        report |= {
            "store": without_password(registry.settings.store),
            "durability": startup.durability.decode(),
            "identity": numeric_identity(),
            "process": os.getpid(),
            "compiling": not await asyncio.to_thread(jit.is_complete),
            "models": len(registry),
            "models_bytes": registry.cache.bytes,
            "unreadable": {
                model_id: unreadable.reason
                for model_id, unreadable in sorted(registry.unreadable.items())
                if may_see(request, model_id)
            },
            "lag": _lag(registry, request),
        }
    return report


def _lag(registry: ModelRegistry, request: Request) -> dict[str, Any]:
    """The maximum lag over all models, and the lagging models, longest lag first."""
    lags = [(model.lag.at(model.replica.seq), model.record.id) for model in registry]
    behind = sorted((pair for pair in lags if pair[0].records), reverse=True)
    return {
        "seconds": behind[0][0].seconds if behind else 0.0,
        "records": max((lag.records for lag, _ in behind), default=0),
        "behind": {
            model_id: lag._asdict()
            for lag, model_id in behind[:MAX_BEHIND]
            if may_see(request, model_id)
        },
    }


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics of the models that the key matches.

    Process counters are summed over all workers of the port, so each worker returns the same.
    """
    telemetry: Telemetry = request.app.state.telemetry
    startup: Readiness = request.app.state.startup
    text = await telemetry.exposition(request.app.state.registry, may_load=startup.is_ready)
    key = key_of(request)
    if key is not None and not key.sees_all:
        text = b"".join(line for line in text.splitlines(True) if _is_shown(line, key))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _is_shown(line: bytes, key: Key) -> bool:
    # Quotes within label values are escaped, so the expression finds the label itself.
    model = None if line.startswith(b"#") else _MODEL_LABEL.search(line)
    return model is None or key.may_see(model[1].decode())
