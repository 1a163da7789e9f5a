"""Control records: the fields and the effect of each kind, in one table.

A control takes one seq and is applied exactly there. A control that cannot be done at its seq, such
as the second of two that add the same member, changes nothing. Every replica refuses it alike. A
kind or field of a later version stops the replica, because skipping it gives another state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from dualstream.service.journal.record import Control, UnknownRecord
from dualstream.service.replica.guard import PAUSED
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.retained_rows import DIGEST_BYTES
from dualstream.service.replica.state import PositionedState
from dualstream.solvers import (
    DUALS,
    SOLUTION,
    WEIGHTS,
    InvalidSpec,
    MemberError,
    MemberLearner,
    MemberView,
    RefitError,
    UnlearningError,
    enter_refit,
    member_learner,
    why_not_refit,
)

Arrays = Mapping[str, np.ndarray]
"""Arrays of a control, by name."""


class PauseError(Exception):
    """The control refers to a pause that is not in force."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a control record."""


class MemberAdd(Order, frozen=True):
    """Add a member. `spec` is resolved. If `name` is None, the learner chooses one."""

    spec: dict[str, Any]
    name: str | None = None


class MemberRemove(Order, frozen=True):
    """Remove a member."""

    name: str


class Promote(Order, frozen=True):
    """Serve one member alone."""

    name: str


class Demote(Order, frozen=True):
    """Serve all members again."""


class Unlearn(Order, frozen=True):
    """Unlearn every retained row of one sample id."""

    sample: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]
    """Digest of the id, in hex."""


class Rollback(Order, frozen=True):
    """Replace the state by the copy with this digest, taken at `seq`. The journal continues."""

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    seq: int
    version: str | None = None
    """Name of the version that the client requested."""


class Pause(Order, frozen=True):
    """Rollback after a guard trip: restore the state at `seq`, before the data went wrong.

    Without a digest no such state exists, and learning pauses with the current state.
    """

    since: int
    """Seq at which learning paused."""
    seq: int | None = None
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Resume(Order, frozen=True):
    """End a pause. The quarantined rows are learned first, or dropped."""

    since: int
    """Seq at which learning paused."""
    rows: Literal["learn", "drop"]


class Refit(Order, frozen=True, omit_defaults=True):
    """Result of a refit of the window at `seq`: `DUALS`, a `SOLUTION` or `WEIGHTS`."""

    job: str
    seq: int
    method: str
    records: int | None = None
    """For weights: rows that the state at `seq` had learned or rejected."""


def control_of(order: Order, arrays: Arrays | None = None) -> Control:
    """Encode an order and its arrays as a control."""
    return Control(_KIND_OF[type(order)], msgspec.to_builtins(order), dict(arrays or {}))


def check_control(subject: PositionedState, control: Control) -> None:
    """Raise UnknownRecord for anything that this version does not know, before it is applied."""
    kind, order = _read(subject, control)
    try:
        kind.check(subject, order)
    except InvalidSpec as error:
        # The version that journalled the control accepted it. Refusing it here gives another state
        # than there.
        raise _unknown(subject, control, f"{error}, which") from error


def check_possible(subject: PositionedState, order: Order) -> None:
    """Raise what `apply_to` would refuse the order for now, before it takes a seq.

    MemberError, InvalidSpec. Another control can still come first: then it is refused at its seq.
    """
    KINDS[_KIND_OF[type(order)]].possible(subject, order)


def apply_to(subject: PositionedState, control: Control) -> ControlOutcome:
    """Apply a control that passed `check_control`, or that this version wrote."""
    kind, order = _read(subject, control)
    try:
        if kind.take is not None:
            return ControlOutcome(rows=kind.take(subject, order, control.arrays))
        return ControlOutcome(member=kind.do(subject, order))
    except (MemberError, InvalidSpec, UnlearningError, RefitError, PauseError) as error:
        return ControlOutcome(refusal=str(error))


def copy_named_by(control: Control) -> str | None:
    """Digest of the copy that a control restores."""
    if control.kind not in ("rollback", "pause"):
        return None
    digest = control.fields.get("digest")  # a later version may write none
    return None if digest is None else str(digest)


def needs_own_run(control: Control) -> bool:
    """Must all earlier records be applied before this control is prepared?

    A rollback must be alone: feature names belong to the state before or after it, and a copy that
    cannot be fetched stops the replica right before it. A resume must be alone: reading the
    quarantine compares the replica's chain, which is current only between two entries.
    """
    return control.kind == "resume" or copy_named_by(control) is not None


def learns_quarantine(subject: PositionedState, control: Control) -> bool:
    """Must the quarantined rows be learned before this control is applied here?"""
    if control.kind != "resume" or control.fields["rows"] != "learn":
        return False
    return why_not_resumed(subject, control.fields["since"]) is None


def why_not_resumed(subject: PositionedState, since: int) -> str | None:
    """Reason why the pause that began at `since` cannot be ended, or None."""
    pauses = None if subject.guarding is None else subject.guarding.pauses
    if pauses is None or pauses.since != since:
        return f"learning is not paused since seq {since}"
    if pauses.needs_rollback:
        return "the state was not rolled back to a good one yet"
    return None


def paused_at(subject: PositionedState) -> int:
    """Seq at which learning paused; 0 if it is not paused."""
    return 0 if subject.guarding is None else subject.guarding.pauses.since


def copy_needed_by(subject: PositionedState, control: Control) -> str | None:
    """Digest of the copy to fetch before this control is applied here."""
    digest = copy_named_by(control)
    if digest is None or why_no_way_back(subject, control.fields["seq"]) is not None:
        return None
    return digest


def why_no_way_back(subject: PositionedState, seq: int) -> str | None:
    """Reason why the state at `seq` cannot be restored, or None.

    If `seq` is beyond the journal's end, the journal has lost the records of that state. Other
    records will get their seqs.
    """
    if seq > subject.seq:
        return f"cannot go back to seq {seq}: the model is only at seq {subject.seq}"
    return why_forgotten(subject, seq)


def why_forgotten(subject: PositionedState, seq: int) -> str | None:
    """Reason why the state at `seq` must stay forgotten: a sample was unlearned after it."""
    since = subject.retained.unlearned_seq
    if seq >= since:
        return None
    return f"cannot go back to seq {seq}: a sample was unlearned at seq {since}"


def find_member(learner: MemberLearner, name: str) -> MemberView | None:
    """Return the member of this name."""
    return next((view for view in learner.members() if view.name == name), None)


def _read(subject: PositionedState, control: Control) -> tuple["Kind", Any]:
    kind = KINDS.get(control.kind)
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


def _can_add(subject: PositionedState, order: MemberAdd) -> None:
    _members_of(subject).check_add(_full_spec(order))


def _can_remove(subject: PositionedState, order: MemberRemove) -> None:
    _members_of(subject).check_remove(order.name)


def _can_promote(subject: PositionedState, order: Promote) -> None:
    _members_of(subject).check_promote(order.name)


def _member_add(subject: PositionedState, order: MemberAdd) -> MemberView | None:
    learner = _members_of(subject)
    name = learner.add_member(_full_spec(order))
    _reset_norm_history(subject)
    return find_member(learner, name)


def _member_remove(subject: PositionedState, order: MemberRemove) -> None:
    _members_of(subject).remove_member(order.name)
    _reset_norm_history(subject)


def _reset_norm_history(subject: PositionedState) -> None:
    """Restart the guard's history of weight norms: a control changed the weights."""
    if subject.guarding is not None:
        subject.guarding.guard.begin_anew(subject.seq + 1, "norm")


def _promote(subject: PositionedState, order: Promote) -> MemberView | None:
    learner = _members_of(subject)
    learner.promote(order.name)
    return find_member(learner, order.name)


def _demote(subject: PositionedState, order: Demote) -> None:
    _members_of(subject).demote()


def _unlearn(subject: PositionedState, order: Unlearn) -> None:
    if since := paused_at(subject):
        raise UnlearningError(PAUSED.format(since))
    digest = bytes.fromhex(order.sample)
    subject.retained.unlearn(subject.learner, digest, subject.seq + 1)
    subject.profile.forget_rows()  # it may hold values of the sample
    if subject.guarding is not None:
        subject.guarding.guard.not_before(subject.seq + 1)


def _rollback(subject: PositionedState, order: Rollback) -> None:
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise UnlearningError(why_not)
    subject.restore_copy(order.digest, order.seq)


def _pause(subject: PositionedState, order: Pause) -> None:
    guarding = subject.guarding
    if guarding is None or guarding.pauses.since != order.since or guarding.pauses.is_settled:
        raise PauseError(f"no pause since seq {order.since} awaits a rollback")
    if order.digest is None or order.seq is None:
        guarding.pauses.settle(order.since)
        return
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise UnlearningError(why_not)
    subject.restore_copy(order.digest, order.seq)


def _resume(subject: PositionedState, order: Resume, arrays: Arrays) -> int:
    if (why_not := why_not_resumed(subject, order.since)) is not None:
        raise PauseError(why_not)
    assert subject.guarding is not None
    learned = subject.adopt_copy() if order.rows == "learn" else 0
    subject.guarding.resume(subject.seq + 1, order.rows == "learn")
    return learned


def records_of(subject: PositionedState) -> int:
    """Number of rows that the state has learned or rejected."""
    return subject.learner.samples + subject.rejected


def _refit(subject: PositionedState, order: Refit, arrays: Arrays) -> int | None:
    if (why_not := why_not_refit(subject.learner.spec)) is not None:
        raise RefitError(why_not)
    if paused := paused_at(subject):
        raise RefitError(PAUSED.format(paused))
    since = subject.retained.unlearned_seq
    if order.seq < since:
        raise RefitError(
            f"a sample was unlearned at seq {since}; the refit is of seq {order.seq}, "
            "where the model still had that sample"
        )
    if order.records is not None:
        _check_follows(subject, order.seq, order.records, int(arrays["rows"][0]))
    retained = enter_refit(subject.learner, arrays)
    if order.records is not None:
        # Otherwise the guard compares the solution's norm with the old history and trips.
        _reset_norm_history(subject)
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


def _nothing(subject: PositionedState, order: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of control."""

    fields: type[Order]
    do: Callable[[PositionedState, Any], MemberView | None] = _nothing
    """MemberError, InvalidSpec, UnlearningError, PauseError: refused, nothing changed."""
    check: Callable[[PositionedState, Any], None] = _nothing
    """Reads nothing but the model's spec. Its InvalidSpec stops the replica."""
    arrays: tuple[tuple[str, ...], ...] = ((),)
    """Sets of array names; the control must carry one of these sets."""
    take: Callable[[PositionedState, Any, Arrays], int | None] | None = None
    """As `do`, for a control with arrays; returns a number of rows. RefitError also refuses."""
    possible: Callable[[PositionedState, Any], None] = _nothing
    """Raises what `do` refuses, and changes nothing."""


KINDS = {
    "member_add": Kind(MemberAdd, _member_add, _check_member_add, possible=_can_add),
    "member_remove": Kind(MemberRemove, _member_remove, possible=_can_remove),
    "promote": Kind(Promote, _promote, possible=_can_promote),
    "demote": Kind(Demote, _demote),
    "rollback": Kind(Rollback, _rollback),
    "pause": Kind(Pause, _pause),
    "resume": Kind(Resume, take=_resume),
    "unlearn": Kind(Unlearn, _unlearn),
    "refit": Kind(Refit, arrays=(DUALS, SOLUTION, WEIGHTS), take=_refit),
}
_KIND_OF = {kind.fields: name for name, kind in KINDS.items()}
