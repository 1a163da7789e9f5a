"""Exceptions of the solvers.

SolverError
├── InvalidSpec         a specification has an unknown field or a value out of range
├── ShapeMismatch       rows of another width, or arrays that do not fit together
├── InvalidRow          a row that cannot be learned or scored: which one, and why
├── NotConverged        an offline solver stopped before its tolerance
├── ChangeRefused       a change of a learner that is impossible, and why
│   ├── MemberError     a change of a portfolio's members
│   │   └── UnknownMember   there is no member of that name
│   ├── UnlearningError a retained row that cannot be unlearned
│   └── RefitError      a refit's result that no longer fits the window
├── NotExpressible      a model that the requested export format cannot express, and why
└── CorruptState        bytes or arrays that are not a state of this learner

Kernels never raise. They return a number, which the Python layer turns into one of these.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class SolverError(Exception):
    """Base class of all exceptions here."""


class InvalidSpec(SolverError):
    """`field` (a JSON pointer into the specification) has `value`, which is not `allowed`."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{_dotted(field)} must be {allowed}, got {_shown(value)}")
        self.field = field
        self.value = value
        self.allowed = allowed
        self.violations: tuple[InvalidSpec, ...] = (self,)
        """All errors of the specification, of which this is the first."""

    @classmethod
    def unknown_field(cls, field: str, value: object, fields: Sequence[str]) -> "InvalidSpec":
        """Error for a `field` that is not one of `fields`."""
        error = cls(field, value, f"one of the fields {', '.join(fields)}")
        owner, _, name = field.rpartition("/")
        owner_text = f"{_dotted(owner)} takes" if owner else "it takes"
        sentence = f"{_shown(name)} is not a known field: {owner_text} {', '.join(fields)}"
        error.args = (sentence + _nearest(name, fields),)
        return error

    @classmethod
    def not_one_of(cls, field: str, value: object, names: Iterable[str]) -> "InvalidSpec":
        """Error for a value that is not one of `names`; it suggests the nearest."""
        names = tuple(names)
        error = cls(field, value, f"one of {', '.join(names)}")
        error.args = (f"{error}{_nearest(value, names)}",)
        return error

    def under(self, owner: str) -> "InvalidSpec":
        """The same error for a specification nested at `owner` within another one."""
        error = InvalidSpec(owner + self.field, self.value, self.allowed)
        error.args = (f"{_dotted(owner)}: {self}",)
        error.violations = (error, *(one.under(owner) for one in self.violations[1:]))
        return error


class ShapeMismatch(SolverError):
    """An argument has the wrong width or length."""


class InvalidRow(SolverError):
    """Row `row` (0-based) cannot be learned or scored; no row of the batch was processed."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.reason)

    @classmethod
    def of_label(cls, row: int, label: float, is_binary: bool) -> "InvalidRow":
        """Error for a label that is not valid for the task."""
        allowed = "-1, 0 or 1" if is_binary else "a finite number"
        return cls(row, f"the label must be {allowed}, got {label!r}")


class NotConverged(SolverError):
    """The tolerance was not met within the step limit."""


class ChangeRefused(SolverError):
    """A change of a learner that is impossible; nothing was changed."""


class MemberError(ChangeRefused):
    """A change of members that is impossible."""


class UnknownMember(MemberError):
    """There is no member of that name."""


class UnlearningError(ChangeRefused):
    """A row that cannot be unlearned."""


class RefitError(ChangeRefused):
    """A refit's result no longer fits the window."""


class NotExpressible(SolverError):
    """The requested form cannot express exactly what the model serves."""


class CorruptState(SolverError):
    """The bytes or arrays are not a state of this learner."""


def _dotted(field: str) -> str:
    """`/window/beta` in dotted form: `window.beta`."""
    return field.removeprefix("/").replace("/", ".") or "the spec"


def _nearest(value: object, names: Sequence[str]) -> str:
    near = get_close_matches(value, names, 1) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
