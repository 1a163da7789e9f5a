"""Health for those who restart and route, and the exposition for those who watch."""

import os
import re
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from dualstream.service.api.access import key_of, may_see
from dualstream.service.api.api_keys import Key
from dualstream.service.metrics import Telemetry
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.solvers import numeric_identity

router = APIRouter(tags=["health"])

_MODEL_LABEL = re.compile(rb'[{,]model="([^"]*)"')
# Models that are behind, named in one answer.
MAX_BEHIND = 100


@router.get("/livez")
async def livez() -> dict[str, bool]:
    """The process runs."""
    return {"alive": True}


@router.get(
    "/readyz", responses={503: {"description": "Not yet, and why.", "model": dict[str, Any]}}
)
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    """The process serves the store's models; `?verbose` names store, durability and lag.

    Once it is ready it stays so: where the store is away `degraded` names it, predictions go on.
    Only a store that was taken over by a process which computes otherwise is served no more.
    Of several on one port whichever takes the connection answers: `process` says which. A model
    that cannot be read keeps no other from being served: `?verbose` names it, too.
    """
    startup: Readiness = request.app.state.startup
    told: dict[str, Any] = {"ready": startup.is_ready}
    if not startup.is_ready:
        response.status_code = 503
        response.headers["retry-after"] = "1"
        told["reason"] = startup.reason
    elif (trouble := request.app.state.registry.store_status.trouble) is not None:
        told |= {"degraded": ["store"], "reason": trouble}
    if "verbose" in request.query_params:
        catalog: ModelRegistry = request.app.state.registry
        told |= {
            "store": without_password(catalog.settings.store),
            "durability": startup.durability.decode(),
            "identity": numeric_identity(),
            "process": os.getpid(),
            "models": len(catalog),
            "models_bytes": catalog.cached_bytes,
            "unreadable": {
                model_id: reason
                for model_id, reason in catalog.loader.unreadable().items()
                if may_see(request, model_id)
            },
            "lag": _lag(catalog, request),
        }
    return told


def _lag(catalog: ModelRegistry, request: Request) -> dict[str, Any]:
    """The longest lag of any model, and of each that is behind, the furthest ones first."""
    found = [(model.lag.at(model.replica.seq), model.record.id) for model in catalog]
    behind = sorted((pair for pair in found if pair[0].records), reverse=True)
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
    """Prometheus exposition: of the replicated state of the models that the key may see, and summed
    over the processes of the port what these count. Any of them tells the same."""
    telemetry: Telemetry = request.app.state.telemetry
    startup: Readiness = request.app.state.startup
    text = await telemetry.exposition(request.app.state.registry, may_load=startup.is_ready)
    key = key_of(request)
    if key is not None and not key.sees_all:
        text = b"".join(line for line in text.splitlines(True) if _is_shown(line, key))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _is_shown(line: bytes, key: Key) -> bool:
    # A quote within another label's value is escaped, and so no end of it.
    model = None if line.startswith(b"#") else _MODEL_LABEL.search(line)
    return model is None or key.may_see(model[1].decode())


def without_password(url: str) -> str:
    """The store's URL as it may be shown."""
    hidden = re.sub(r"(://[^/?@]*:)[^/?@]*@", r"\1***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", hidden)
