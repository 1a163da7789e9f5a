"""A learner of several members: what it says of them, and how they change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from dualstream.solvers.core.certificate import Certificate
from dualstream.solvers.core.learner import Learner
from dualstream.solvers.core.served_form import Form
from dualstream.solvers.jit import Floats

MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a member may be called: it stands in URLs and in the labels of metrics."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member as it stands."""

    name: str
    spec: Mapping[str, Any]
    """As `resolve_member` gives it: every default written out, without the name."""
    weight: float
    """Its share in the combination; those of the active members sum to 1."""
    active: bool
    """False while another member is promoted."""
    rows: int
    """Rows counted for it."""
    loss: float | None
    """Mean calibrated loss: log-loss in nats; regression: scaled squared error."""
    error_rate: float | None
    """Mistakes per row; None for regression."""
    rolling_rows: int
    """The last rows, at most 1,000, that the next two are of."""
    rolling_loss: float | None
    rolling_error_rate: float | None
    resets: int
    """How often it went non-finite and began anew."""
    calibration: tuple[float, float] | None
    """a and b of sigma(a m + b), m being its margin."""
    has_certificate: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether `a` or `b` does better: the mean difference of their losses, a - b."""

    a: str
    b: str
    rows: int
    """The rows that both have scored."""
    mean: float
    low: float
    """low .. high holds the mean at every moment at once with probability `level`."""
    high: float
    level: float


class MemberLearner(Learner, Protocol):
    """Learners of one stream, combined. A change that is refused leaves no trace.

    Changes are part of what the state is a function of: the same rows and changes in the same
    order give the same bits.
    """

    def members(self) -> list[MemberView]:
        """All members, in the order in which they came."""

    @property
    def promoted(self) -> str | None:
        """The member that is served alone."""

    def resolve_member(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The specification that a member of `spec` (without name) has; it resolves to itself.

        Looks at nothing but this learner's own specification, and may be called in a thread.

        Raises InvalidSpec.
        """

    def add_member(self, spec: Mapping[str, Any]) -> str:
        """Begin a member, on the retained rows; `spec` may hold its `name`. Returns the name.

        Raises InvalidSpec where `resolve_member` would; MemberError for what depends on the
        other members: the name is taken, there are too many.
        """

    def remove_member(self, name: str) -> None:
        """Drop a member. Raises UnknownMember, and MemberError for the last one."""

    def promote(self, name: str) -> None:
        """Serve this member alone. Raises UnknownMember."""

    def demote(self) -> None:
        """Serve all again, as they stood. Raises MemberError where none is promoted."""

    def compare(self, a: str, b: str, level: float = 0.95) -> Comparison:
        """The two on the rows that both have scored. Raises UnknownMember."""

    def member_certificate(self, name: str) -> Certificate | None:
        """See Learner, for one member. Raises UnknownMember."""

    def member_weights(self, name: str) -> tuple[Floats, float]:
        """The served weights of one member, (dim,), and its intercept. Raises UnknownMember."""

    def member_form(self, name: str) -> Form:
        """What one member's own score is, see served_form. Raises UnknownMember, NotExpressible."""


def member_learner(learner: Learner) -> MemberLearner | None:
    """The same learner if it has members."""
    return cast(MemberLearner, learner) if hasattr(learner, "members") else None


def certificates_of_members(learner: Learner) -> dict[str, Certificate]:
    """The certificates of all members that have one, by name; none of a learner without members."""
    members = member_learner(learner)
    if members is None:
        return {}
    names = [view.name for view in members.members() if view.has_certificate]
    found = {name: members.member_certificate(name) for name in names}
    return {name: one for name, one in found.items() if one is not None}
