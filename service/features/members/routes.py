"""Members of a portfolio: list, add, remove, promote, compare.

A change is checked against the state at the journal's head and refused at once if it is invalid.
Then it is journalled, and checked again when it is applied, because another change can precede it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import (
    ControlResult,
    IdempotencyKey,
    find_repeat,
    registry_of,
    result_at,
    spec_of,
)
from dualstream.service.api.views import answer, member_of, staleness
from dualstream.service.features.members.controls import (
    Demote,
    MemberAdd,
    MemberRemove,
    Promote,
    check_possible,
    find_member,
)
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.http.request_head import stored_key_of
from dualstream.service.journal.audit import Author, refused
from dualstream.service.models.creation import check_size
from dualstream.service.models.model import Model
from dualstream.service.models.problems import key_reused
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.sizeof import bytes_before_rows, ring_bytes
from dualstream.service.replica.controls import Order
from dualstream.service.replica.requests import ControlRequest, Receipt, requested_by
from dualstream.service.replica.spec import canonical
from dualstream.solvers import InvalidSpec, MemberError, UnknownMember
from dualstream.solvers.protocols import member_learner
from dualstream.solvers.spec import cost, make_learner
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import Comparison, Member, Members

router = APIRouter(prefix="/models/{model_id}", tags=["members"])

EXAMPLE_MEMBER = {"name": "sparse", "algorithm": "rda", "regularizer": "l1"}


@router.get("/members", responses={200: returns(Members)})
async def list_members(model_id: str, request: Request) -> Response:
    """All members with their shares in the prediction.

    A portfolio for classes has members for each class: these are the means over the classes.
    """
    return await _members(await registry_of(request).get(model_id))


@router.post(
    "/members",
    status_code=201,
    responses={200: returns(Member, "The member exists with the same spec."), 201: returns(Member)},
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {"schema": {"type": "object"}, "example": EXAMPLE_MEMBER}
            }
        }
    },
)
async def add_member(
    model_id: str, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    """Add a member. It first learns the rows that the model retains."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    key = stored_key_of(idempotency_key)
    given = await spec_of(request, registry.settings.max_body_bytes)
    order = await _member_to_add(model, given)
    await model.refresh()
    if (before := await find_repeat(model, key, requested_by(order))) is not None:
        return await _again(model, order, before)
    async with model.replica.serving():
        existing = None if order.name is None else _existing(model, order)
        refusal = None if existing is not None else _refusal(model, order)
    if refusal is not None:
        await _refuse(model, order, author_of(request), refusal)
    if existing is not None:
        return answer(existing)
    await _check_size(registry, model, order)
    receipt = await _submit(model, order, author_of(request), key)
    if receipt.position.duplicate:
        before = await result_at(model, receipt.position.seq)
        return await _again(model, order, before)
    outcome = receipt.control_outcome
    if outcome is not None and outcome.member is not None:
        return answer(member_of(outcome.member, model_id, receipt.position.seq), status=201)
    # Another change came first, or its outcome is not kept: answer with the current state.
    async with model.replica.serving():
        existing = _existing(model, order)
    if existing is None:
        raise _conflict(_why_not(receipt))
    is_new = outcome is not None and outcome.refusal is None
    return answer(existing, status=201 if is_new else 200)


@router.delete("/members/{name}", status_code=204)
async def remove_member(model_id: str, name: str, request: Request) -> None:
    """Remove a member with everything it has learned."""
    model = await registry_of(request).get(model_id)
    await model.refresh()
    order = MemberRemove(name)
    async with model.replica.serving():
        learner = model.members()
        known_member(learner, name)
        if len(learner.members()) == 1:
            raise MemberError(f"{name!r} is the last member; delete the model instead")
        refusal = _refusal(model, order)
    if refusal is not None:
        await _refuse(model, order, author_of(request), refusal)
    _check_done(await _submit(model, order, author_of(request)))


@router.post("/members/{name}/promote", responses={200: returns(Member)})
async def promote_member(model_id: str, name: str, request: Request) -> Response:
    """Serve this member alone. The others do not learn until the promotion ends."""
    model = await registry_of(request).get(model_id)
    await model.refresh()
    order = Promote(name)
    async with model.replica.serving():
        learner = model.members()
        existing = known_member(learner, name)
        if learner.promoted == name:
            return answer(member_of(existing, model_id, model.replica.seq))
        refusal = _refusal(model, order)
    if refusal is not None:
        await _refuse(model, order, author_of(request), refusal)
    receipt = await _submit(model, order, author_of(request))
    _check_done(receipt)
    if receipt.control_outcome is not None and receipt.control_outcome.member is not None:
        return answer(member_of(receipt.control_outcome.member, model_id, receipt.position.seq))
    async with model.replica.serving():
        now = find_member(model.members(), name)
        if now is None:
            raise MemberError(_why_not(receipt))
        return answer(member_of(now, model_id, model.replica.seq))


@router.delete("/promotion", responses={200: returns(Members)})
async def end_promotion(model_id: str, request: Request) -> Response:
    """End the promotion: serve all members again. Does nothing without a promotion."""
    model = await registry_of(request).get(model_id)
    await model.refresh()
    async with model.replica.serving():
        is_promoted = model.members().promoted is not None
    if is_promoted:  # a refusal means that another request has ended it
        await _submit(model, Demote(), author_of(request))
    return await _members(model)


@router.get("/members/compare", responses={200: returns(Comparison)})
async def compare_members(
    model_id: str,
    request: Request,
    a: str,
    b: str,
    level: Annotated[float, Query(gt=0, lt=1)] = 0.95,
) -> Response:
    """Compare two members: which one predicts better, with a confidence interval."""
    if a == b:
        raise Problem(422, "invalid-query", f"a and b are both {a!r}; name two different members")
    model = await registry_of(request).get(model_id)
    async with model.replica.serving():
        learner = model.members()
        for name in (a, b):
            known_member(learner, name)
        found = learner.compare(a, b, level)
        seq = model.replica.seq
    return answer(Comparison(model=model_id, seq=seq, **asdict(found), **staleness(model)))


def known_member(learner: member_learner.MemberLearner, name: str) -> member_learner.MemberView:
    """The member of this name. Raises UnknownMember."""
    view = find_member(learner, name)
    if view is None:
        raise UnknownMember(f"the model has no member {name!r}")
    return view


async def _members(model: Model) -> Response:
    # Of many classes it takes long.
    return answer(await model.replica.view(lambda: _members_of(model)))


def _members_of(model: Model) -> Members:
    views, promoted = member_learner.members_over_classes(model.replica.learner), None
    if views is None:
        learner = model.members()
        views, promoted = learner.members(), learner.promoted
    return Members(
        model=model.record.id,
        seq=model.replica.seq,
        promoted=promoted,
        members=list(map(member_of, views)),
        **staleness(model),
    )


async def _member_to_add(model: Model, given: Mapping[str, Any]) -> MemberAdd:
    """The control of this body. Compiles its kernels before any replica applies it. InvalidSpec."""
    name = given.get("name")
    if name is not None and not (
        isinstance(name, str) and member_learner.MEMBER_NAME.fullmatch(name)
    ):
        allowed = "1 to 64 characters of A-Z a-z 0-9 . _ - that begin with a letter or digit"
        raise InvalidSpec("/name", name, allowed)
    requested = {field: value for field, value in given.items() if field != "name"}
    spec = await asyncio.to_thread(model.members().resolve_member, requested)
    if "algorithm" in spec:
        cost.check_cost(_alone(model, spec))
        await asyncio.to_thread(make_learner.warm, spec["algorithm"])
    return MemberAdd(spec, name)


def _alone(model: Model, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of a model with this learner only."""
    whole = model.replica.spec
    return {**spec, "features": whole["features"], "task": whole["task"]}


async def _check_size(registry: ModelRegistry, model: Model, order: MemberAdd) -> None:
    """Raise Problem 422 if the model with this member takes too much memory."""
    if "algorithm" in order.spec:  # a kind follows the features that rows touch
        alone = _alone(model, order.spec)
        size = ring_bytes(alone) + await asyncio.to_thread(bytes_before_rows, alone)
        check_size(registry.settings, model.bytes + size, "the model with this member")


def _existing(model: Model, order: MemberAdd) -> Member | None:
    """The existing member with the requested name and spec; None if it does not exist.

    The caller is inside `serving`. Raises MemberError if the name belongs to a member with another
    spec.
    """
    wanted = canonical(order.spec)
    for view in reversed(model.members().members()):
        is_same = canonical(dict(view.spec)) == wanted
        if view.name == order.name and not is_same:
            raise MemberError(
                f"member {order.name!r} exists with another spec; choose another name"
            )
        if is_same and order.name in (None, view.name):
            return member_of(view, model.record.id, model.replica.seq)
    return None


def _refusal(model: Model, order: Order) -> MemberError | None:
    """Why the change is not possible now. The caller is inside `serving`. Raises InvalidSpec."""
    try:
        check_possible(model.replica, order)
    except MemberError as refusal:
        return refusal
    return None


async def _refuse(model: Model, order: Order, by: Author, refusal: MemberError) -> NoReturn:
    """Raise the refusal, after it is in the audit log: a refused change has no record."""
    change = ControlRequest.of(order, by=by).change
    assert change is not None
    about = (model.record.id, model.record.incarnation, model.replica.seq)
    await model.deps.journal.put_changes([refused(*about, change, str(refusal))])
    raise refusal


async def _again(model: Model, order: MemberAdd, before: ControlResult) -> Response:
    """The current state of the member that the first request with this key added.

    Or of the equal member that existed then. Raises Problem 409.
    """
    existing = None
    async with model.replica.serving():
        with suppress(MemberError):  # the name can belong to another member now
            existing = _existing(model, order)
    if existing is None:
        before.check(_conflict)
        raise _conflict(f"the member was added at seq {before.seq} and no longer exists")
    return before.answer(existing)


def _conflict(reason: str) -> Problem:
    return Problem(409, "conflict", reason)


async def _submit(model: Model, order: Order, by: Author, key: bytes | None = None) -> Receipt:
    receipt = await model.submit(ControlRequest.of(order, key, by=by))
    if receipt.position.conflict:
        raise key_reused()
    return receipt


def _check_done(receipt: Receipt) -> None:
    """Raise MemberError if a change that came first in the journal made this one impossible."""
    if receipt.control_outcome is None or receipt.control_outcome.refusal is not None:
        raise MemberError(_why_not(receipt))


def _why_not(receipt: Receipt) -> str:
    if receipt.control_outcome is not None and receipt.control_outcome.refusal is not None:
        return receipt.control_outcome.refusal
    return f"the change was made at seq {receipt.position.seq}, and a later one has undone it"
