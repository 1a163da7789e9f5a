"""MemberLearner: the protocol of learners that combine members (the portfolio)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.curves import Curve
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.served_weights import ServedWeights

MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Allowed member names: they appear in URLs and in metric labels."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """Current figures of one member."""

    name: str
    spec: Mapping[str, Any]
    """As `resolve_member` returns it: every default written out, without the name."""
    weight: float
    """Its share in the combination; shares of the active members sum to 1."""
    active: bool
    """False while another member is promoted."""
    rows: int
    """Rows counted for this member."""
    loss: float | None
    """Mean calibrated loss: log-loss in nats; regression: scaled squared error."""
    error_rate: float | None
    """Mistakes per row; None for regression."""
    rolling_rows: int
    """Number of rows, at most the last 1,000, in the next two figures."""
    rolling_loss: float | None
    rolling_error_rate: float | None
    resets: int
    """How often the member became non-finite and was reset."""
    calibration: tuple[float, float] | None
    """a and b of sigma(a m + b), where m is the member's margin."""
    has_certificate: bool
    max_rows: int | None
    """Rows that boosted trees can grow on, with as many columns as now; None for others."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Confidence sequence for the mean difference of two members' losses, a - b."""

    a: str
    b: str
    rows: int
    """Rows that both members have scored."""
    mean: float
    low: float
    """low .. high contains the mean at all times simultaneously with probability `level`."""
    high: float
    level: float


class MemberLearner(Learner, Protocol):
    """A combination of learners of one stream. A refused change leaves no trace.

    Changes are part of the input of the state: the same rows and changes in the same order give the
    same bits.
    """

    def members(self) -> list[MemberView]:
        """All members, in the order in which they were added."""

    def shares(self) -> dict[str, float]:
        """The share of each member in the combination; a few microseconds."""

    @property
    def promoted(self) -> str | None:
        """The member that is served alone; None if all are served."""

    def resolve_member(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The resolved specification of a member of `spec` (without name); it resolves to itself.

        Reads only this learner's own specification, so a thread may call it. Raises InvalidSpec.
        """

    def check_add(self, spec: Mapping[str, Any]) -> object:
        """Raise what `add_member` raises now, and change nothing."""

    def add_member(self, spec: Mapping[str, Any]) -> str:
        """Add a member and train it on the retained rows; `spec` may contain its `name`. Returns
        the name.

        Raises InvalidSpec like `resolve_member`, and MemberError if the name is taken, there are
        too many members or one is promoted.
        """

    def check_remove(self, name: str) -> None:
        """Raise what `remove_member` raises now, and change nothing."""

    def remove_member(self, name: str) -> None:
        """Drop a member. Raises UnknownMember, and MemberError for the last one or while one is
        promoted."""

    def check_promote(self, name: str) -> object:
        """Raise what `promote` raises now, and change nothing."""

    def promote(self, name: str) -> None:
        """Serve this member alone. Raises UnknownMember, and MemberError for a stack."""

    def demote(self) -> None:
        """Serve all members again, with their earlier shares. Raises MemberError if none is
        promoted."""

    def compare(self, a: str, b: str, level: float = 0.95) -> Comparison:
        """Compare two members on the rows that both have scored. Raises UnknownMember."""

    def member_certificate(self, name: str) -> Certificate | None:
        """See Learner, for one member. Raises UnknownMember."""

    def member_weights(self, name: str) -> tuple[Floats, float]:
        """The served weights of one member, (dim,), and its intercept. Raises UnknownMember."""

    def member_served_weights(self, name: str) -> ServedWeights:
        """The served weights of one member that are not 0. Raises UnknownMember."""

    def member_curves(self, name: str) -> list[Curve] | None:
        """The curves of one member, see protocols/curves.py; None if it has none. Raises
        UnknownMember."""

    def member_form(self, name: str) -> Form:
        """The score of one member as numbers, see served_form. Raises UnknownMember,
        NotExpressible."""


def member_learner(learner: Learner) -> MemberLearner | None:
    """The learner as a MemberLearner; None if it has no members."""
    return cast(MemberLearner, learner) if hasattr(learner, "members") else None


def members_over_classes(learner: Learner) -> list[MemberView] | None:
    """The members of a portfolio for classes, with means over the classes; None for others.

    Each class against the rest has a portfolio of its own. While those of many classes drop
    members, some still have them: the others have a share of 0 there.
    """
    of_classes = _members_of_classes(learner)
    if of_classes is None:
        return None
    by_name: dict[str, list[MemberView]] = {}
    for one in of_classes:
        for view in one.members():
            by_name.setdefault(view.name, []).append(view)
    return [_mean_of(same, len(of_classes)) for same in by_name.values()]


def shares_of(learner: Learner) -> dict[str, float] | None:
    """Shares of the members by name, means over several classes; None for other learners."""
    of_classes = _members_of_classes(learner)
    if of_classes is None:
        members = member_learner(learner)
        return None if members is None else members.shares()
    totals: dict[str, float] = {}
    for one in of_classes:
        for name, share in one.shares().items():
            totals[name] = totals.get(name, 0.0) + share
    return {name: total / len(of_classes) for name, total in totals.items()}


def _members_of_classes(learner: Learner) -> Sequence[MemberLearner] | None:
    ask: Any = getattr(learner, "members_of_classes", None)
    return None if ask is None else ask()


def _mean_of(views: Sequence[MemberView], n_classes: int) -> MemberView:
    return replace(
        views[0],
        weight=sum(one.weight for one in views) / n_classes,
        loss=_mean([one.loss for one in views]),
        error_rate=_mean([one.error_rate for one in views]),
        rolling_loss=_mean([one.rolling_loss for one in views]),
        rolling_error_rate=_mean([one.rolling_error_rate for one in views]),
        resets=sum(one.resets for one in views),
        calibration=None,
    )


def _mean(numbers: Sequence[float | None]) -> float | None:
    known = [one for one in numbers if one is not None]
    return sum(known) / len(known) if known else None


def certificates_of_members(learner: Learner) -> dict[str, Certificate]:
    """Certificates of all members that have one, by name; {} for a learner without members."""
    members = member_learner(learner)
    if members is None:
        return {}
    names = [view.name for view in members.members() if view.has_certificate]
    certificates = {name: members.member_certificate(name) for name in names}
    return {name: one for name, one in certificates.items() if one is not None}
