"""Helpers of several routes: the registry of a request, specifications in bodies, paused models."""

from typing import Any

import msgspec
from fastapi import Request

from dualstream.service.api.http import read_head
from dualstream.service.api.request_body import read_body
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.controls import paused_at
from dualstream.service.replica.guard import PAUSED
from dualstream.wire.problems import Problem


def registry_of(request: Request) -> ModelRegistry:
    """The model registry. Raises Problem 503 until the process is ready."""
    startup: Readiness = request.app.state.startup
    startup.check_ready()
    registry: ModelRegistry = request.app.state.registry
    return registry


def check_not_paused(model: Model) -> None:
    """Raises Problem 409 while learning is paused: only a rollback may change the state then."""
    if since := paused_at(model.replica):
        raise Problem(409, "paused", PAUSED.format(since))


async def spec_of(request: Request, limit: int) -> dict[str, Any]:
    """Decode a spec from the body. Raises Problem 400, 413 and 422."""
    body = await read_body(request.receive, read_head(request.scope), limit, request.scope)
    try:
        given = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise Problem(400, "malformed-body", str(broken)) from None
    if not isinstance(given, dict):
        raise Problem(
            422, "invalid-spec", "the body must be a JSON object with the fields of a spec"
        )
    return given
