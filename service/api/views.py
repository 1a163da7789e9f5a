"""How an answer says that it may be out of date, because the store is away."""

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica
from dualstream.solvers import MemberLearner, MemberView


class MaybeStale(BaseModel):
    """Answered from memory. Both are left out while the store answers."""

    stale: bool | None = Field(
        None,
        description="True where this state was last known to be the journal's newest more than 5 s"
        " ago, as while the store is away. There is no ETag then.",
    )
    age_seconds: float | None = Field(
        None, description="Time since this state was last known to be the journal's newest."
    )


def staleness(model: Model) -> dict[str, Any]:
    """The fields that mark an answer of this model; none while the store answers."""
    age_s = model.stale_s
    return {} if age_s is None else {"stale": True, "age_seconds": round(age_s, 3)}


class PauseView(BaseModel):
    """Learning pauses: rows are journalled and not learned, and predictions go on."""

    since: int = Field(description="Place of the row at which the guard tripped.")
    quantity: Literal["loss", "norm"] = Field(description="What had left its history.")
    value: float = Field(description="Of the look that tripped it.")
    limit: float = Field(description="What it may have been.")
    is_settled: bool = Field(
        description="Whether the state has gone back to where nothing was wrong."
    )
    held_from: int = Field(
        description="Rows behind this record are in quarantine; the state is of those up to it."
    )
    held_records: int = Field(description="Records behind it, which the journal keeps.")
    held_bytes: int = Field(
        description="Of the rows that came since the guard tripped: 16 a feature, 32 a row."
    )

    @classmethod
    def of(cls, replica: Replica) -> "PauseView | None":
        """Of a replica as it stands; None while learning goes on."""
        pauses = None if replica.guarding is None else replica.guarding.pauses
        if pauses is None or not pauses.is_paused:
            return None
        trip = next(one for one in pauses.trips if one.paused and one.seq == pauses.since)
        return cls(
            since=pauses.since,
            quantity=trip.quantity,
            value=trip.value,
            limit=trip.limit,
            is_settled=pauses.is_settled,
            held_from=pauses.held_from,
            held_records=replica.seq - pauses.held_from,
            held_bytes=pauses.held_bytes,
        )


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
