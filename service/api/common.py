"""Helpers of several routes: the model registry, specifications in bodies, repeated controls."""

import hashlib
from typing import Any, NamedTuple

import msgspec
from fastapi import Request, Response

from dualstream.service.api.asgi_helpers import read_head
from dualstream.service.api.request_body import read_body
from dualstream.service.codecs.json_exact import check_all_names
from dualstream.service.codecs.row_schema import BadRow
from dualstream.service.models.model import Model
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.controls import paused_at
from dualstream.service.replica.guard import PAUSED
from dualstream.service.replica.outcomes import KeptOutcome
from dualstream.wire.problems import Problem, key_reused


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
    try:
        check_all_names(body or b"{}")
    except BadRow as bad:
        raise Problem(422, "invalid-spec", f"{bad.reason}; send it once") from None
    return given


class Repeated(NamedTuple):
    """A control record in the journal that an earlier request made."""

    seq: int
    outcome: KeptOutcome | None
    """Its outcome; None if that is no longer kept."""

    def check_done(self, refusal: Problem) -> None:
        """Raise `refusal`, marked as a repeated answer, if the first answer was a refusal."""
        if self.outcome is not None and self.outcome.refusal is not None:
            refusal.detail = self.outcome.refusal
            refusal.is_replayed = True
            raise refusal

    def mark(self, response: Response) -> None:
        """Set the header `Idempotency-Replayed`."""
        response.headers["idempotency-replayed"] = "true"


async def repeated(model: Model, key: bytes | None, requested: bytes) -> Repeated | None:
    """The control record with this stored key; None if the key is new.

    Raises Problem 422 if the key was used with another request than `requested`.
    """
    if key is None:
        return None
    [known] = await model.known([key])
    if known is None:
        return None
    if known.fingerprint != hashlib.sha256(requested).digest()[:16]:
        raise key_reused()
    return await repeated_at(model, known.seq)


async def repeated_at(model: Model, seq: int) -> Repeated:
    """The control record at `seq`, after the replica has applied it."""
    await model.refresh(seq)
    return Repeated(seq, model.replica.control_outcomes.at(seq))
