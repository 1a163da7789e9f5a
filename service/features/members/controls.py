"""Controls of members: add, remove, promote, demote."""

from typing import Any, ClassVar

from dualstream.service.replica.controls import Kind, Order
from dualstream.service.replica.state import PositionedState
from dualstream.solvers import MemberError
from dualstream.solvers.protocols.member_learner import MemberLearner, MemberView, member_learner


class MemberAdd(Order, frozen=True):
    """Add a member. `spec` is resolved. If `name` is None, the learner chooses one."""

    kind: ClassVar[str] = "member_add"

    spec: dict[str, Any]
    name: str | None = None


class MemberRemove(Order, frozen=True):
    """Remove a member."""

    kind: ClassVar[str] = "member_remove"

    name: str


class Promote(Order, frozen=True):
    """Serve one member alone."""

    kind: ClassVar[str] = "promote"

    name: str


class Demote(Order, frozen=True):
    """Serve all members again."""

    kind: ClassVar[str] = "demote"


def find_member(learner: MemberLearner, name: str) -> MemberView | None:
    """Return the member of this name."""
    return next((view for view in learner.members() if view.name == name), None)


def _members_of(subject: PositionedState) -> MemberLearner:
    learner = member_learner(subject.learner)
    if learner is None:
        raise MemberError(f"model {subject.id!r} has no members")
    return learner


def _check_member_add(subject: PositionedState, order: MemberAdd) -> None:
    learner = member_learner(subject.learner)
    if learner is not None:
        learner.resolve_member(order.spec)


def _full_spec(order: MemberAdd) -> dict[str, Any]:
    return order.spec if order.name is None else order.spec | {"name": order.name}


def _member_add(subject: PositionedState, order: MemberAdd) -> MemberView | None:
    learner = _members_of(subject)
    name = learner.add_member(_full_spec(order))
    subject.parts.on_weights_set(subject.seq + 1)
    return find_member(learner, name)


def _member_remove(subject: PositionedState, order: MemberRemove) -> None:
    _members_of(subject).remove_member(order.name)
    subject.parts.on_weights_set(subject.seq + 1)


def _promote(subject: PositionedState, order: Promote) -> MemberView | None:
    learner = _members_of(subject)
    learner.promote(order.name)
    return find_member(learner, order.name)


def _demote(subject: PositionedState, order: Demote) -> None:
    _members_of(subject).demote()


def check_possible(subject: PositionedState, order: Order) -> None:
    """Raise what would refuse the change of members now, before it takes a seq.

    MemberError, InvalidSpec. Another control can still come first: then it is refused at its seq.
    """
    if isinstance(order, Demote):
        return
    learner = _members_of(subject)
    if isinstance(order, MemberAdd):
        learner.check_add(_full_spec(order))
    elif isinstance(order, MemberRemove):
        learner.check_remove(order.name)
    elif isinstance(order, Promote):
        learner.check_promote(order.name)


MEMBER_KINDS = (
    Kind(MemberAdd, _member_add, check=_check_member_add),
    Kind(MemberRemove, _member_remove),
    Kind(Promote, _promote),
    Kind(Demote, _demote),
)
