"""Members as answers tell of them."""

import math
from typing import Any, Self

from pydantic import BaseModel, Field

from service.api.freshness import MaybeStale
from solvers import MemberLearner, MemberView


class Counted(BaseModel):
    """What some rows have shown; each was scored before it was learned."""

    rows: int
    loss: float | None = Field(
        description="Mean loss of the calibrated member: log-loss in nats; for regression the "
        "scaled squared error."
    )
    error_rate: float | None = Field(description="Mistakes per row; null for regression.")


class MemberMetrics(BaseModel):
    """How well one member does."""

    name: str
    weight: float = Field(description="Its share in what is served; the active ones sum to 1.")
    since_start: Counted
    rolling: Counted = Field(description="Over the last rows, 1,000 at most.")
    resets: int = Field(description="How often it went non-finite and began anew.")

    @classmethod
    def of(cls, view: MemberView) -> Self:
        """The answer for this member."""
        return cls(**_metrics(view))


class Calibration(BaseModel):
    """The probability of a margin m is sigma(a m + b)."""

    a: float
    b: float


class Member(MemberMetrics):
    """One member as it stands."""

    spec: dict[str, Any] = Field(description="With every default written out.")
    active: bool = Field(description="False while another member is promoted.")
    calibration: Calibration | None
    has_certificate: bool

    @classmethod
    def of(cls, view: MemberView) -> Self:
        """The answer for this member."""
        return cls(**_whole(view))


class OneMember(Member):
    """One member and where its model stands."""

    model: str
    seq: int

    @classmethod
    def at(cls, model: str, seq: int, view: MemberView) -> Self:
        """The answer for this member of `model`."""
        return cls(model=model, seq=seq, **_whole(view))


class Members(MaybeStale):
    """All members of a model, in the order in which they came."""

    model: str
    seq: int
    promoted: str | None = Field(description="The member that is served alone.")
    members: list[Member]

    @classmethod
    def at(cls, model: str, seq: int, learner: MemberLearner) -> Self:
        """The answer for `model`, whose learner this is."""
        shown = [Member.of(view) for view in learner.members()]
        return cls(model=model, seq=seq, promoted=learner.promoted, members=shown)


def finite(number: float | None) -> float | None:
    """The number as JSON can hold it: null where it is none, or too large for a float."""
    return number if number is not None and math.isfinite(number) else None


def _metrics(view: MemberView) -> dict[str, Any]:
    return {
        "name": view.name,
        "weight": view.weight,
        "since_start": {
            "rows": view.rows,
            "loss": finite(view.loss),
            "error_rate": finite(view.error_rate),
        },
        "rolling": {
            "rows": view.rolling_rows,
            "loss": finite(view.rolling_loss),
            "error_rate": finite(view.rolling_error_rate),
        },
        "resets": view.resets,
    }


def _whole(view: MemberView) -> dict[str, Any]:
    calibration = None
    if view.calibration is not None:
        a, b = view.calibration
        calibration = {"a": a, "b": b}
    return _metrics(view) | {
        "spec": dict(view.spec),
        "active": view.active,
        "calibration": calibration,
        "has_certificate": view.has_certificate,
    }
