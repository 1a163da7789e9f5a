"""Control records: their kinds, and the effect of one on a state.

A control takes one seq and is applied exactly there. A control that cannot be done at its seq, such
as the second of two that add the same member, changes nothing. Every replica refuses it alike. A
kind or field of a later version stops the replica, because skipping it gives another state.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control, UnknownRecord
from dualstream.service.replica.copies import fetch_named_copy, why_no_way_back
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.state import PositionedState
from dualstream.solvers import InvalidSpec, MemberError, RefitError, UnlearningError
from dualstream.solvers.offline import refit_methods
from dualstream.solvers.protocols.member_learner import MemberLearner, MemberView, member_learner
from dualstream.solvers.protocols.refit_weights import WEIGHTS
from dualstream.solvers.refit import refit


class ControlRefused(Exception):
    """The control cannot be done at its seq. Nothing has changed."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a control record. A field `digest` names the state copy that it restores."""

    kind: ClassVar[str]


def _nothing(subject: PositionedState, order: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of control."""

    fields: type[Order]
    do: Callable[[PositionedState, Any], MemberView | None] = _nothing
    """MemberError, InvalidSpec, UnlearningError, ControlRefused: refused, nothing changed."""
    check: Callable[[PositionedState, Any], None] = _nothing
    """Reads nothing but the model's spec. Its InvalidSpec stops the replica."""
    arrays: tuple[tuple[str, ...], ...] = ((),)
    """Sets of array names; the control must carry one of these sets."""
    take: Callable[[PositionedState, Any, Arrays], int | None] | None = None
    """As `do`, for a control with arrays; returns a number of rows. RefitError also refuses."""
    prepare: Callable[[PositionedState, Any, Journal], Awaitable[object]] | None = None
    """Reads from the journal what the control needs; it is `subject.prepared` during `do`.

    Raises UnreadableCopy, Trimmed, Forked.
    """
    is_alone: bool = False
    """Must all earlier records be applied, and the chain be current, before it is prepared?"""
    is_of_its_spec: bool = False
    """Is it skipped when the journal is replayed under another spec?"""
    keeps_fields: bool = False
    """Are its fields part of answers, or do they identify it? They are kept with its outcome."""


Kinds = Mapping[str, Kind]
"""Kinds of controls by name."""


def control_of(order: Order, arrays: Arrays | None = None) -> Control:
    """Encode an order and its arrays as a control."""
    return Control(order.kind, msgspec.to_builtins(order), dict(arrays or {}))


def copy_named_by(control: Control) -> str | None:
    """Digest of the copy that a control restores."""
    digest = control.fields.get("digest")
    return None if digest is None else str(digest)


def check_control(subject: PositionedState, kinds: Kinds, control: Control) -> None:
    """Raise UnknownRecord for anything that this version does not know, before it is applied."""
    kind, order = read_control(subject, kinds, control)
    try:
        kind.check(subject, order)
    except InvalidSpec as error:
        # The version that journalled the control accepted it. Refusing it here gives another state
        # than there.
        raise _unknown(subject, control, f"{error}, which") from error


def read_control(subject: PositionedState, kinds: Kinds, control: Control) -> tuple[Kind, Any]:
    """The kind and the order of a control. Raises UnknownRecord."""
    kind = kinds.get(control.kind)
    if kind is None or set(control.arrays) not in map(set, kind.arrays):
        raise _unknown(subject, control, "which")
    try:
        return kind, msgspec.convert(control.fields, kind.fields)
    except msgspec.ValidationError as error:
        raise _unknown(subject, control, f"{error}, which") from error


def _unknown(subject: PositionedState, control: Control, what: str) -> UnknownRecord:
    return UnknownRecord(
        f"model {subject.id!r}: the journal holds the control record {control.kind!r}, "
        f"{what} this version does not know"
    )


def apply_to(subject: PositionedState, kind: Kind, order: Order, arrays: Arrays) -> ControlOutcome:
    """Apply a control that passed `check_control`, or that this version wrote."""
    try:
        if kind.take is not None:
            return ControlOutcome(rows=kind.take(subject, order, arrays))
        return ControlOutcome(member=kind.do(subject, order))
    except (MemberError, InvalidSpec, UnlearningError, RefitError, ControlRefused) as error:
        return ControlOutcome(refusal=str(error))


# -- members, rollbacks and refits ---------------------------------------------------------------


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


class Rollback(Order, frozen=True):
    """Replace the state by the copy with this digest, taken at `seq`. The journal continues."""

    kind: ClassVar[str] = "rollback"

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    seq: int
    version: str | None = None
    """Name of the version that the client requested."""


class Refit(Order, frozen=True, omit_defaults=True):
    """Result of a refit of the window at `seq`: `DUALS`, a `SOLUTION` or `WEIGHTS`."""

    kind: ClassVar[str] = "refit"

    job: str
    seq: int
    method: str
    records: int | None = None
    """For weights: rows that the state at `seq` had learned or rejected."""


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


def _rollback(subject: PositionedState, order: Rollback) -> None:
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise UnlearningError(why_not)
    subject.restore_copy(order.seq)


def records_of(subject: PositionedState) -> int:
    """Number of rows that the state has learned or rejected."""
    return subject.learner.samples + subject.rejected


def _refit(subject: PositionedState, order: Refit, arrays: Arrays) -> int | None:
    if (why_not := refit_methods.why_not_refit(subject.learner.spec)) is not None:
        raise RefitError(why_not)
    if (paused := subject.parts.why_paused) is not None:
        raise RefitError(paused)
    since = subject.parts.forgotten_seq
    if order.seq < since:
        raise RefitError(
            f"a sample was unlearned at seq {since}; the refit is of seq {order.seq}, "
            "where the model still had that sample"
        )
    if order.records is not None:
        _check_follows(subject, order.seq, order.records, int(arrays["rows"][0]))
    retained = refit.enter_refit(subject.learner, arrays)
    if order.records is not None:
        subject.parts.on_weights_set(subject.seq + 1)
    return retained


def _check_follows(subject: PositionedState, seq: int, records: int, rows: int) -> None:
    """Raise RefitError unless only rows came after `seq`, fewer than `rows`.

    `rows` is the number of rows that the weights were computed from. Weights do not show which
    state they came from; these counts do. A rollback removes rows and takes a seq of its own. Any
    other control takes a seq without a row.
    """
    since = subject.seq - seq
    if since < 0:
        raise RefitError(f"the journal has lost records up to seq {seq}, which the refit used")
    if records_of(subject) - records != since:
        raise RefitError(
            f"the model was changed by hand after seq {seq}, where the weights were computed"
        )
    if since >= rows:
        raise RefitError(
            f"{since} rows came since, at least as many as the weights were computed from"
        )


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
ROLLBACK = Kind(
    Rollback, _rollback, prepare=fetch_named_copy, is_of_its_spec=True, keeps_fields=True
)
REFIT = Kind(
    Refit,
    arrays=(refit.DUALS, refit.SOLUTION, WEIGHTS),
    take=_refit,
    is_of_its_spec=True,
    keeps_fields=True,
)
