"""Control records: what each kind holds and does, all in one table.

A control takes one seq and is applied exactly in its place. One that cannot be done where it stands
(two workers added the same member) changes nothing and is refused, by every replica alike. A kind
or a field of a later version stops the replica: what this version does not know it must not skip.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np

from dualstream.service.journal.record import Control, UnknownRecord
from dualstream.service.replica.guard import PAUSED, Guarding
from dualstream.service.replica.retained_ids import DIGEST_BYTES, RetainedIds
from dualstream.solvers import (
    DUALS,
    SOLUTION,
    WEIGHTS,
    InvalidSpec,
    Learner,
    MemberError,
    MemberLearner,
    MemberView,
    RefitError,
    UnlearningError,
    enter_refit,
    member_learner,
    why_not_refit,
)


@dataclass(frozen=True, slots=True)
class ControlOutcome:
    """What became of a control: it was done, or refused with a sentence and nothing has changed."""

    refusal: str | None = None
    member: MemberView | None = None
    """The member that was added or promoted, as it stood right after."""
    rows: int | None = None
    """How many rows of a refit were still retained, or of a quarantine were learned."""


Arrays = Mapping[str, np.ndarray]
"""The numbers that come with an order, by name."""


class Subject(Protocol):
    """What a control is applied to: a replica."""

    id: str
    learner: Learner
    retained: RetainedIds
    rejected: int
    guarding: Guarding | None
    seq: int
    """Of the record before the control."""

    def restore_copy(self, digest: str, seq: int) -> None:
        """Take on the state of this copy, of some `seq`, which was fetched before."""

    def adopt_copy(self) -> int:
        """Take on the state that learned the rows in quarantine, as many as it says."""


class PauseError(Exception):
    """A control of a pause that is not, or of another one."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a control."""


class MemberAdd(Order, frozen=True):
    """A new member; `spec` is resolved, `name` None where the learner shall choose one."""

    spec: dict[str, Any]
    name: str | None = None


class MemberRemove(Order, frozen=True):
    """A member goes."""

    name: str


class Promote(Order, frozen=True):
    """One member is served alone."""

    name: str


class Demote(Order, frozen=True):
    """All members are served again."""


class Unlearn(Order, frozen=True):
    """The sample of an id is unlearned: each retained row that has it."""

    sample: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]
    """The digest of the id, in hex."""


class Rollback(Order, frozen=True):
    """The state becomes what it was at `seq`: the copy of this digest. The journal goes on."""

    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    seq: int
    version: str | None = None
    """The name by which it was asked for."""


class Pause(Order, frozen=True):
    """The rollback of a pause: the state becomes what it was at `seq`, when nothing was wrong yet.

    Without a digest there is no such state any more, and learning pauses where it stands.
    """

    since: int
    """The record at which learning paused."""
    seq: int | None = None
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Resume(Order, frozen=True):
    """Learning goes on; the rows in quarantine are learned first, or forgotten."""

    since: int
    """The record at which it paused."""
    rows: Literal["learn", "drop"]


class Refit(Order, frozen=True, omit_defaults=True):
    """What was computed of the window at `seq`: `DUALS`, a `SOLUTION`, or `WEIGHTS`."""

    job: str
    seq: int
    method: str
    records: int | None = None
    """Of weights: how many rows had been learned or rejected by the state at `seq`."""


def control_of(order: Order, arrays: Arrays | None = None) -> Control:
    """The control that holds this order, and the numbers that come with it."""
    return Control(_KIND_OF[type(order)], msgspec.to_builtins(order), dict(arrays or {}))


def check_control(subject: Subject, control: Control) -> None:
    """Raise UnknownRecord for what this version does not know; nothing has been applied then."""
    kind, order = _read(subject, control)
    try:
        kind.check(subject, order)
    except InvalidSpec as error:
        # It was good where it was journalled: to refuse it here would be another state than there.
        raise _unknown(subject, control, f"{error}, which") from error


def apply_to(subject: Subject, control: Control) -> ControlOutcome:
    """Apply a control that `check_control` let pass, or that this version wrote."""
    kind, order = _read(subject, control)
    try:
        if kind.take is not None:
            return ControlOutcome(rows=kind.take(subject, order, control.arrays))
        return ControlOutcome(member=kind.do(subject, order))
    except (MemberError, InvalidSpec, UnlearningError, RefitError, PauseError) as error:
        return ControlOutcome(refusal=str(error))


def copy_named_by(control: Control) -> str | None:
    """The digest of the copy that a control restores."""
    if control.kind not in ("rollback", "pause"):
        return None
    digest = control.fields.get("digest")  # none in one that a later version wrote
    return None if digest is None else str(digest)


def needs_own_run(control: Control) -> bool:
    """Whether what is learned before it must have come to an end where it is obeyed.

    Names come into the state in its place, and what cannot be fetched stops the replica before it.
    """
    return control.kind == "resume" or copy_named_by(control) is not None


def learns_quarantine(subject: Subject, control: Control) -> bool:
    """Whether the rows in quarantine have to be read before the control is obeyed here."""
    if control.kind != "resume" or control.fields["rows"] != "learn":
        return False
    return why_not_resumed(subject, control.fields["since"]) is None


def why_not_resumed(subject: Subject, since: int) -> str | None:
    """Why the pause that began at `since` cannot be ended; None where it can."""
    pauses = None if subject.guarding is None else subject.guarding.pauses
    if pauses is None or pauses.since != since:
        return f"learning is not paused since seq {since}"
    if pauses.needs_rollback:
        return "the state has not gone back to a good one yet"
    return None


def paused_at(subject: Subject) -> int:
    """The record at which learning paused; 0 while it goes on."""
    return 0 if subject.guarding is None else subject.guarding.pauses.since


def copy_needed_by(subject: Subject, control: Control) -> str | None:
    """The digest of the copy that has to be fetched before the control is obeyed here."""
    digest = copy_named_by(control)
    if digest is None or why_no_way_back(subject, control.fields["seq"]) is not None:
        return None
    return digest


def why_no_way_back(subject: Subject, seq: int) -> str | None:
    """Why there is no way back to the state at `seq`; None where there is.

    Where the journal has not come so far it has lost the records of that state, and others are
    going to stand in their places.
    """
    if seq > subject.seq:
        return f"there is no way back to seq {seq} from seq {subject.seq}, before it"
    return why_forgotten(subject, seq)


def why_forgotten(subject: Subject, seq: int) -> str | None:
    """Why nobody goes back to the state at `seq`: it knew a sample that was unlearned since."""
    since = subject.retained.unlearned_seq
    if seq >= since:
        return None
    return f"a sample was unlearned at seq {since}: there is no way back to seq {seq}, before it"


def find_member(learner: MemberLearner, name: str) -> MemberView | None:
    """The member of this name."""
    return next((view for view in learner.members() if view.name == name), None)


def _read(subject: Subject, control: Control) -> tuple["Kind", Any]:
    kind = KINDS.get(control.kind)
    if kind is None or set(control.arrays) not in map(set, kind.arrays):
        raise _unknown(subject, control, "which")
    try:
        return kind, msgspec.convert(control.fields, kind.fields)
    except msgspec.ValidationError as error:
        raise _unknown(subject, control, f"{error}, which") from error


def _unknown(subject: Subject, control: Control, what: str) -> UnknownRecord:
    return UnknownRecord(
        f"model {subject.id!r}: the journal holds the control record {control.kind!r}, "
        f"{what} this version does not know"
    )


def _members_of(subject: Subject) -> MemberLearner:
    learner = member_learner(subject.learner)
    if learner is None:
        raise MemberError(f"model {subject.id!r} has no members")
    return learner


def _check_member_add(subject: Subject, order: MemberAdd) -> None:
    learner = member_learner(subject.learner)
    if learner is not None:
        learner.resolve_member(order.spec)


def _member_add(subject: Subject, order: MemberAdd) -> MemberView | None:
    learner = _members_of(subject)
    named = {} if order.name is None else {"name": order.name}
    name = learner.add_member(order.spec | named)
    _reset_norm_history(subject)
    return find_member(learner, name)


def _member_remove(subject: Subject, order: MemberRemove) -> None:
    _members_of(subject).remove_member(order.name)
    _reset_norm_history(subject)


def _reset_norm_history(subject: Subject) -> None:
    """Weights have come, gone or been solved for: what their norm was says nothing about it."""
    if subject.guarding is not None:
        subject.guarding.guard.begin_anew(subject.seq + 1, "norm")


def _promote(subject: Subject, order: Promote) -> MemberView | None:
    learner = _members_of(subject)
    learner.promote(order.name)
    return find_member(learner, order.name)


def _demote(subject: Subject, order: Demote) -> None:
    _members_of(subject).demote()


def _unlearn(subject: Subject, order: Unlearn) -> None:
    if since := paused_at(subject):
        raise UnlearningError(PAUSED.format(since))
    digest = bytes.fromhex(order.sample)
    subject.retained.unlearn(subject.learner, digest, subject.seq + 1)
    if subject.guarding is not None:
        subject.guarding.guard.not_before(subject.seq + 1)


def _rollback(subject: Subject, order: Rollback) -> None:
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise UnlearningError(why_not)
    subject.restore_copy(order.digest, order.seq)


def _pause(subject: Subject, order: Pause) -> None:
    guarding = subject.guarding
    if guarding is None or guarding.pauses.since != order.since or guarding.pauses.is_settled:
        raise PauseError(f"no rollback is due of a pause since seq {order.since}")
    if order.digest is None or order.seq is None:
        guarding.pauses.settle(order.since)
        return
    if (why_not := why_no_way_back(subject, order.seq)) is not None:
        raise UnlearningError(why_not)
    subject.restore_copy(order.digest, order.seq)


def _resume(subject: Subject, order: Resume, arrays: Arrays) -> int:
    if (why_not := why_not_resumed(subject, order.since)) is not None:
        raise PauseError(why_not)
    assert subject.guarding is not None
    learned = subject.adopt_copy() if order.rows == "learn" else 0
    subject.guarding.resume(subject.seq + 1, order.rows == "learn")
    return learned


def records_of(subject: "Subject") -> int:
    """How many rows the state has learned or rejected."""
    return subject.learner.samples + subject.rejected


def _refit(subject: Subject, order: Refit, arrays: Arrays) -> int | None:
    if (why_not := why_not_refit(subject.learner.spec)) is not None:
        raise RefitError(why_not)
    if paused := paused_at(subject):
        raise RefitError(PAUSED.format(paused))
    since = subject.retained.unlearned_seq
    if order.seq < since:
        raise RefitError(
            f"a sample was unlearned at seq {since}, and it was computed of seq {order.seq}, "
            "when that was still there"
        )
    if order.records is not None:
        _check_follows(subject, order.seq, order.records, int(arrays["rows"][0]))
    retained = enter_refit(subject.learner, arrays)
    if order.records is not None:
        # Or a guard would take the solution for something wrong, and go back to before it.
        _reset_norm_history(subject)
    return retained


def _check_follows(subject: Subject, seq: int, records: int, rows: int) -> None:
    """Raise RefitError unless only rows came since `seq`, and fewer than the weights are of.

    Weights say nothing of the state that they were computed of: these counts do. A rollback takes
    rows away and a seq of its own, and any other control takes a seq without a row.
    """
    since = subject.seq - seq
    if since < 0:
        raise RefitError(f"the journal has lost records up to seq {seq}, of which it was computed")
    if records_of(subject) - records != since:
        raise RefitError(
            f"the model was changed by hand since seq {seq}, of which the weights were computed"
        )
    if since >= rows:
        raise RefitError(f"{since} rows came since, as many as the weights were computed of")


def _nothing(subject: Subject, order: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of control."""

    fields: type[Order]
    do: Callable[[Subject, Any], MemberView | None] = _nothing
    """MemberError, InvalidSpec, UnlearningError, PauseError: refused, and nothing has changed."""
    check: Callable[[Subject, Any], None] = _nothing
    """Looks at nothing but the model's spec; its InvalidSpec stops the replica."""
    arrays: tuple[tuple[str, ...], ...] = ((),)
    """The numbers that have to come with it: those of one of these names."""
    take: Callable[[Subject, Any, Arrays], int | None] | None = None
    """As `do`, and tells of how many rows, where it is known. RefitError, too: it is refused."""


KINDS = {
    "member_add": Kind(MemberAdd, _member_add, _check_member_add),
    "member_remove": Kind(MemberRemove, _member_remove),
    "promote": Kind(Promote, _promote),
    "demote": Kind(Demote, _demote),
    "rollback": Kind(Rollback, _rollback),
    "pause": Kind(Pause, _pause),
    "resume": Kind(Resume, take=_resume),
    "unlearn": Kind(Unlearn, _unlearn),
    "refit": Kind(Refit, arrays=(DUALS, SOLUTION, WEIGHTS), take=_refit),
}
_KIND_OF = {kind.fields: name for name, kind in KINDS.items()}
