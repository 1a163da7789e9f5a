"""The members of a model that has several: list, add, remove, promote, compare.

A change is first held against the state that the journal's end gives, and refused at once where it
cannot be made; then it is journalled, and where another one came between it is refused there.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from dualstream.service.api.access import author_of
from dualstream.service.api.http import stored_key_of
from dualstream.service.api.idempotency import Repeated, repeated, repeated_at
from dualstream.service.api.models import catalog_of, spec_of
from dualstream.service.api.views import MaybeStale, Members, OneMember, finite, staleness
from dualstream.service.journal.audit import Author
from dualstream.service.models.model import Model
from dualstream.service.models.registry import canonical
from dualstream.service.replica.controls import (
    Demote,
    MemberAdd,
    MemberRemove,
    Order,
    Promote,
    find_member,
)
from dualstream.service.replica.receipts import Receipt
from dualstream.service.replica.requests import ControlRequest, asked_by
from dualstream.solvers import (
    MEMBER_NAME,
    InvalidSpec,
    MemberError,
    MemberLearner,
    MemberView,
    UnknownMember,
    warm,
)
from dualstream.wire.problems import Problem, key_reused

router = APIRouter(prefix="/models/{model_id}", tags=["members"])

EXAMPLE_MEMBER = {"name": "sparse", "algorithm": "rda", "regularizer": "l1"}

IdempotencyKey = Annotated[
    list[str] | None, Header(description="Added once, however often it is sent.")
]


class ComparisonView(MaybeStale):
    """The mean difference of the losses of two members, a - b: below 0, a does better.

    `low` .. `high` holds the true mean at every moment at once with probability `level`, so that it
    may be looked at as often as one likes. A number is null where it is too large for a float.
    """

    model: str
    seq: int
    a: str
    b: str
    rows: int = Field(description="Rows that both have scored.")
    mean: float | None
    low: float | None
    high: float | None
    level: float


@router.get("/members", response_model=Members, response_model_exclude_unset=True)
async def list_members(model_id: str, request: Request) -> Members:
    """The members and their shares in what is served."""
    return await _members(await catalog_of(request).get(model_id))


@router.post(
    "/members",
    response_model=OneMember,
    status_code=201,
    responses={200: {"description": "It is there with the same spec.", "model": OneMember}},
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {"schema": {"type": "object"}, "example": EXAMPLE_MEMBER}
            }
        }
    },
)
async def add_member(
    model_id: str, request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> OneMember:
    """Add a member of this spec; it begins on the rows that the model retains."""
    catalog = catalog_of(request)
    model = await catalog.get(model_id)
    key = stored_key_of(idempotency_key)
    given = await spec_of(request, catalog.settings.max_body_bytes)
    order = await _member_to_add(model, given)
    await model.refresh()
    if (before := await repeated(model, key, asked_by(order))) is not None:
        return await _again(model, order, before, response)
    if order.name is not None and (there := await _standing(model, order)) is not None:
        response.status_code = 200
        return there
    receipt = await _submit(model, order, author_of(request), key)
    if receipt.placed.duplicate:
        before = await repeated_at(model, receipt.placed.seq)
        return await _again(model, order, before, response)
    verdict = receipt.verdict
    if verdict is not None and verdict.member is not None:
        return OneMember.at(model_id, receipt.placed.seq, verdict.member)
    # Another one came first, or the model came past it: what is there now is the answer.
    there = await _standing(model, order)
    if there is None:
        raise Problem(409, "conflict", _why_not(receipt))
    if verdict is None or verdict.refusal is not None:
        response.status_code = 200
    return there


@router.delete("/members/{name}", status_code=204)
async def remove_member(model_id: str, name: str, request: Request) -> None:
    """Drop a member and what it has learned."""
    model = await catalog_of(request).get(model_id)
    await model.refresh()
    async with model.replica.serving():
        learner = model.members()
        known_member(learner, name)
        if len(learner.members()) == 1:
            raise MemberError(f"{name!r} is the last member; delete the model instead")
    _check_done(await _submit(model, MemberRemove(name), author_of(request)))


@router.post("/members/{name}/promote", response_model=OneMember)
async def promote_member(model_id: str, name: str, request: Request) -> OneMember:
    """Serve this member alone; the others stand still meanwhile."""
    model = await catalog_of(request).get(model_id)
    await model.refresh()
    async with model.replica.serving():
        learner = model.members()
        there = known_member(learner, name)
        if learner.promoted == name:
            return OneMember.at(model_id, model.replica.seq, there)
    receipt = await _submit(model, Promote(name), author_of(request))
    _check_done(receipt)
    if receipt.verdict is not None and receipt.verdict.member is not None:
        return OneMember.at(model_id, receipt.placed.seq, receipt.verdict.member)
    async with model.replica.serving():
        now = find_member(model.members(), name)
        if now is None:
            raise MemberError(_why_not(receipt))
        return OneMember.at(model_id, model.replica.seq, now)


@router.delete("/promotion", response_model=Members, response_model_exclude_unset=True)
async def end_promotion(model_id: str, request: Request) -> Members:
    """Serve all members again, as they stood; where none is promoted, that is so already."""
    model = await catalog_of(request).get(model_id)
    await model.refresh()
    async with model.replica.serving():
        is_promoted = model.members().promoted is not None
    if is_promoted:  # it is refused only where another one has done it first
        await _submit(model, Demote(), author_of(request))
    return await _members(model)


@router.get("/compare", response_model=ComparisonView, response_model_exclude_unset=True)
async def compare_members(
    model_id: str,
    request: Request,
    a: str,
    b: str,
    level: Annotated[float, Query(gt=0, lt=1)] = 0.95,
) -> ComparisonView:
    """Which of two members does better, and how sure that is."""
    if a == b:
        raise Problem(422, "invalid-query", f"a and b are both {a!r}: name two members")
    model = await catalog_of(request).get(model_id)
    async with model.replica.serving():
        learner = model.members()
        for name in (a, b):
            known_member(learner, name)
        found = learner.compare(a, b, level)
        seq = model.replica.seq
    return ComparisonView(
        model=model_id,
        seq=seq,
        a=found.a,
        b=found.b,
        rows=found.rows,
        mean=finite(found.mean),
        low=finite(found.low),
        high=finite(found.high),
        level=found.level,
        **staleness(model),
    )


def known_member(learner: MemberLearner, name: str) -> MemberView:
    """The member of this name. Raises UnknownMember."""
    view = find_member(learner, name)
    if view is None:
        raise UnknownMember(f"no member {name!r}")
    return view


async def _members(model: Model) -> Members:
    async with model.replica.serving():
        found = Members.at(model.record.id, model.replica.seq, model.members())
        return found.model_copy(update=staleness(model))


async def _member_to_add(model: Model, given: Mapping[str, Any]) -> MemberAdd:
    """The order for this body; its kernels are compiled, so that no apply has to. InvalidSpec."""
    name = given.get("name")
    if name is not None and not (isinstance(name, str) and MEMBER_NAME.fullmatch(name)):
        allowed = "1 to 64 characters of A-Z a-z 0-9 . _ - that begin with a letter or digit"
        raise InvalidSpec("/name", name, allowed)
    asked = {field: value for field, value in given.items() if field != "name"}
    spec = await asyncio.to_thread(model.members().resolve_member, asked)
    if "algorithm" in spec:
        await asyncio.to_thread(warm, spec["algorithm"])
    return MemberAdd(spec, name)


async def _standing(model: Model, order: MemberAdd) -> OneMember | None:
    """The member that the order asks for, where it is there already; None where none is.

    Raises MemberError where the name is another one's.
    """
    wanted = canonical(order.spec)
    async with model.replica.serving():
        for view in reversed(model.members().members()):
            is_same = canonical(dict(view.spec)) == wanted
            if view.name == order.name and not is_same:
                raise MemberError(f"member {order.name!r} exists with another spec")
            if is_same and order.name in (None, view.name):
                return OneMember.at(model.record.id, model.replica.seq, view)
    return None


async def _again(model: Model, order: MemberAdd, before: Repeated, response: Response) -> OneMember:
    """The member that was added before under the same key, as it is now.

    Or another one's that came first, which was the answer then. Raises Problem 409.
    """
    there = None
    with suppress(MemberError):  # the name may be another one's by now
        there = await _standing(model, order)
    if there is None:
        before.check_done(Problem(409, "conflict", ""))
        gone = f"this was done before, at seq {before.seq}, and is no longer there"
        raise Problem(409, "conflict", gone)
    before.mark(response)
    response.status_code = 200
    return there


async def _submit(model: Model, order: Order, by: Author, key: bytes | None = None) -> Receipt:
    receipt = await model.submit(ControlRequest.of(order, key, by=by))
    if receipt.placed.conflict:
        raise key_reused()
    return receipt


def _check_done(receipt: Receipt) -> None:
    """Raise MemberError with the sentence where the journal's order made the change impossible."""
    if receipt.verdict is None or receipt.verdict.refusal is not None:
        raise MemberError(_why_not(receipt))


def _why_not(receipt: Receipt) -> str:
    if receipt.verdict is not None and receipt.verdict.refusal is not None:
        return receipt.verdict.refusal
    return f"this was done at seq {receipt.placed.seq}, and is no longer there"
