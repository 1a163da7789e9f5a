"""Control records: their kinds, and the effect of one on a state.

A control takes one seq and is applied exactly there. A control that cannot be done at its seq, such
as the second of two that add the same member, changes nothing. Every replica refuses it alike. A
kind or field of a later version stops the replica, because skipping it gives another state.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Control, UnknownRecord
from dualstream.service.replica.outcomes import ControlOutcome
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.state import PositionedState
from dualstream.solvers.errors import ChangeRefused, InvalidSpec
from dualstream.solvers.protocols.member_learner import MemberView


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
    """ChangeRefused, InvalidSpec, ControlRefused: refused, nothing changed."""
    check: Callable[[PositionedState, Any], None] = _nothing
    """Reads nothing but the model's spec. Its InvalidSpec stops the replica."""
    arrays: tuple[tuple[str, ...], ...] = ((),)
    """Sets of array names; the control must carry one of these sets."""
    take: Callable[[PositionedState, Any, Arrays], int | None] | None = None
    """As `do`, for a control with arrays; returns a number of rows."""
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
    except (ChangeRefused, InvalidSpec, ControlRefused) as error:
        return ControlOutcome(refusal=str(error))
