"""Helpers of several routes: the model registry, specifications in bodies, controls."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Header, Request, Response
from msgspec import Struct, structs

from dualstream.service.api.views import answer
from dualstream.service.codecs.json_exact import check_all_names
from dualstream.service.codecs.row_schema import BadRow
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import read_head
from dualstream.service.models.model import Model
from dualstream.service.models.problems import key_reused
from dualstream.service.models.readiness import Readiness
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.controls import Order
from dualstream.service.replica.requests import Receipt
from dualstream.wire.problem_json import Problem

IdempotencyKey = Annotated[
    str | None, Header(description="The request is done once; a repeat gets the first answer.")
]


def registry_of(request: Request) -> ModelRegistry:
    """The model registry. Raises Problem 503 until the process is ready."""
    startup: Readiness = request.app.state.startup
    startup.check_ready()
    registry: ModelRegistry = request.app.state.registry
    return registry


def check_not_paused(model: Model) -> None:
    """Raises Problem 409 while learning is paused: only a rollback may change the state then."""
    if (why_not := model.replica.parts.why_paused) is not None:
        raise Problem(409, "paused", why_not)


async def spec_of(request: Request, limit: int) -> dict[str, Any]:
    """Decode a spec from the body. Raises Problem 400, 413 and 422."""
    body = await read_body(request.receive, read_head(request.scope), limit, request.scope)
    try:
        spec = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise Problem(400, "malformed-body", str(broken)) from None
    if not isinstance(spec, dict):
        raise Problem(
            422, "invalid-spec", "the body must be a JSON object with the fields of a spec"
        )
    try:
        check_all_names(body or b"{}")
    except BadRow as bad:
        raise Problem(422, "invalid-spec", f"{bad.reason}; send it once") from None
    return spec


class ControlResult(NamedTuple):
    """A control record that a request has made, this one or an earlier one with its key."""

    seq: int
    is_repeated: bool
    is_kept: bool
    """Is its outcome known? That of an earlier request may be kept no more."""
    refusal: str | None = None
    rows: int | None = None
    fields: Mapping[str, Any] = MappingProxyType({})
    """Of the control record."""

    def check(self, refused: Callable[[str], Problem]) -> None:
        """Raise the problem that `refused` makes of the reason, if the control was refused."""
        if self.refusal is not None:
            problem = refused(self.refusal)
            problem.is_replayed = self.is_repeated
            raise problem

    def answer(self, view: Struct) -> Response:
        """The answer, which says whether it is a repeated one."""
        response = answer(view)
        if self.is_repeated:
            response.headers["idempotency-replayed"] = "true"
        return response


async def run_once(
    model: Model,
    key: bytes | None,
    requested: bytes,
    submit: Callable[[], Awaitable[tuple[Order, Receipt]]],
) -> ControlResult:
    """Submit a control, unless a request with this stored key has done it before.

    Raises Problem 422 if the key was used with another request than `requested`.
    """
    await model.refresh()
    if (before := await find_repeat(model, key, requested)) is not None:
        return before
    order, receipt = await submit()
    seq, outcome = receipt.position.seq, receipt.control_outcome
    if receipt.position.conflict:
        raise key_reused()
    if receipt.position.duplicate:
        return await result_at(model, seq)
    fields = structs.asdict(order)
    if outcome is None:
        return ControlResult(seq, False, False, fields=fields)
    return ControlResult(seq, False, True, outcome.refusal, outcome.rows, fields)


async def find_repeat(model: Model, key: bytes | None, requested: bytes) -> ControlResult | None:
    """The control record with this stored key; None if the key is new. Raises as `run_once`."""
    if key is None:
        return None
    [entry] = await model.known([key])
    if entry is None:
        return None
    if entry.fingerprint != hashlib.sha256(requested).digest()[:16]:
        raise key_reused()
    return await result_at(model, entry.seq)


async def result_at(model: Model, seq: int) -> ControlResult:
    """The control record at `seq`, after the replica has applied it."""
    await model.refresh(seq)
    kept = model.replica.control_outcomes.at(seq)
    if kept is None:
        return ControlResult(seq, True, False)
    return ControlResult(seq, True, True, kept.refusal, kept.rows, kept.fields)
