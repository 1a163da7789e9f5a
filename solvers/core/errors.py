"""Everything that this package raises on purpose.

SolverError
├── InvalidSpec         a model specification names something unknown or out of range
│   └── NotAvailable    known, and not in this version
├── ShapeMismatch       rows of another width, or arrays that do not fit together
├── InvalidRow          a row that no learner may see: which one, and why
├── NotConverged        an offline solver stopped before its tolerance
├── MemberError         a change of a portfolio's members that cannot be made, and why
│   └── UnknownMember   no member of that name
├── UnlearningError     a retained row that cannot be unlearned, and why
├── RefitError          what was computed of a window is of no use for it any more, and why
├── NotExpressible      a model that cannot be said in the form asked for, and why
└── CorruptState        bytes or arrays that are not a state of this learner

Kernels never raise: they return a number, and the Python layer turns it into one of these.
"""

from collections.abc import Sequence


class SolverError(Exception):
    """The root of the tree."""


class InvalidSpec(SolverError):
    """`field` (a JSON pointer into the specification) holds `value`, which is not `allowed`."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(self._sentence(field, value, allowed))
        self.field = field
        self.value = value
        self.allowed = allowed

    @staticmethod
    def _sentence(field: str, value: object, allowed: str) -> str:
        return f"{_dotted(field)} must be {allowed}, got {_shown(value)}"

    @classmethod
    def unknown_field(cls, field: str, value: object, known: Sequence[str]) -> "InvalidSpec":
        """`field` is not one of `known`, the names that may stand in its place."""
        error = cls(field, value, f"one of the fields {', '.join(known)}")
        owner, _, name = field.rpartition("/")
        place = f"{_dotted(owner)} takes" if owner else "it takes"
        error.args = (f"{_shown(name)} is not a known field: {place} {', '.join(known)}",)
        return error

    def under(self, owner: str) -> "InvalidSpec":
        """The same of a specification that stands at `owner` within another one."""
        error = InvalidSpec(owner + self.field, self.value, self.allowed)
        error.args = (f"{_dotted(owner)}: {self}",)
        return error


class NotAvailable(InvalidSpec):
    """The specification is a good one, of a later version."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__(field, value, "available")

    @staticmethod
    def _sentence(field: str, value: object, allowed: str) -> str:
        return f"{_dotted(field)} {_shown(value)} is not available in this version"


class ShapeMismatch(SolverError):
    """What was given has another width or length than what it must fit."""


class InvalidRow(SolverError):
    """Row `row` (0-based) cannot be learned or scored; nothing was done with any row."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason

    @classmethod
    def of_label(cls, row: int, label: float, is_binary: bool) -> "InvalidRow":
        """Its label is none that the task knows."""
        known = "-1, 0 or 1" if is_binary else "a finite number"
        return cls(row, f"the label must be {known}, got {label!r}")


class NotConverged(SolverError):
    """The tolerance was not met within the steps allowed."""


class MemberError(SolverError):
    """A change of members that cannot be made; nothing was changed."""


class UnknownMember(MemberError):
    """No member of that name."""


class UnlearningError(SolverError):
    """A row that cannot be unlearned; nothing was changed."""


class RefitError(SolverError):
    """What was computed of a window does not fit it any more; nothing was changed."""


class NotExpressible(SolverError):
    """What the model serves cannot be said exactly in the form asked for."""


class CorruptState(SolverError):
    """These bytes or arrays are not a state that was written here."""


def _dotted(field: str) -> str:
    """`/window/beta` as people write it: `window.beta`."""
    return field.removeprefix("/").replace("/", ".") or "the spec"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
