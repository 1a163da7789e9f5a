"""View models that several routes share: staleness, pauses, members."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field

from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica
from dualstream.solvers import MemberView


def _finite(number: Any) -> Any:
    return number if not isinstance(number, float) or math.isfinite(number) else None


NULL_REASON = (
    "a number is beyond the range of a float, because a row that counts has an extreme value, label"
    " or weight"
)
"""Why a certificate has a null."""


def has_null(numbers: Mapping[str, Any]) -> bool:
    """Whether a view answers null for one of these numbers."""
    return any(number is None or _finite(number) is None for number in numbers.values())


Finite = Annotated[float | None, BeforeValidator(_finite)]
"""A number, or None (null in JSON) if it is not finite."""


class MaybeStale(BaseModel):
    """Fields of an answer from memory that can be stale; absent while the store is available."""

    stale: bool | None = Field(
        None,
        description="True if the state was last known to be current more than 5 s ago, because the"
        " store is unavailable. Such an answer has no ETag.",
    )
    age_seconds: float | None = Field(
        None, description="Time since the state was last known to be current."
    )


def staleness(model: Model) -> dict[str, Any]:
    """The fields of MaybeStale for this model; empty while the store is available."""
    age_s = model.stale_s
    return {} if age_s is None else {"stale": True, "age_seconds": round(age_s, 3)}


class PauseView(BaseModel):
    """A pause: rows are journalled but not learned, and predictions continue."""

    since: int = Field(description="Log position of the row that tripped the guard.")
    quantity: Literal["loss", "norm"] = Field(description="Quantity that left its history.")
    value: float = Field(description="Value at the check that tripped the guard.")
    limit: float = Field(description="Limit that the value exceeded.")
    is_settled: bool = Field(
        description="Whether the state has been rolled back to the last good check."
    )
    held_from: int = Field(
        description="Log position of the state; rows after it are in quarantine."
    )
    held_records: int = Field(description="Number of records in quarantine.")
    held_bytes: int = Field(
        description="Size of the rows since the trip: 16 bytes a feature and 32 a row."
    )

    @classmethod
    def of(cls, replica: Replica) -> "PauseView | None":
        """The current pause of a replica; None if it is not paused."""
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
    """Progressive metrics over some rows: each was scored before it was learned."""

    rows: int
    loss: Finite = Field(
        description="Mean loss of the calibrated member: log-loss in nats; for regression the"
        " scaled squared error."
    )
    error_rate: Finite = Field(description="Mistakes per row; null for regression.")


class MemberMetrics(BaseModel):
    """Metrics of one member."""

    name: str
    weight: float = Field(description="Share in the prediction; shares of active members sum to 1.")
    since_start: Counted
    rolling: Counted = Field(description="Over the last 1,000 rows.")
    resets: int = Field(description="Resets because a value was not finite.")

    @classmethod
    def of(cls, view: MemberView, **place: Any) -> Self:
        """The answer for this member; `place` has the fields of OneMember."""
        calibration = None
        if view.calibration is not None:
            a, b = view.calibration
            calibration = {"a": a, "b": b}
        given = {
            "name": view.name,
            "weight": view.weight,
            "since_start": {"rows": view.rows, "loss": view.loss, "error_rate": view.error_rate},
            "rolling": {
                "rows": view.rolling_rows,
                "loss": view.rolling_loss,
                "error_rate": view.rolling_error_rate,
            },
            "resets": view.resets,
            "spec": dict(view.spec),
            "active": view.active,
            "calibration": calibration,
            "has_certificate": view.has_certificate,
            **place,
        }
        return cls(**{name: given[name] for name in cls.model_fields})


class Calibration(BaseModel):
    """The probability of a margin m is sigma(a m + b)."""

    a: float
    b: float


class Member(MemberMetrics):
    """One member with its spec and current metrics."""

    spec: dict[str, Any] = Field(description="The specification with all defaults.")
    active: bool = Field(description="False while another member is promoted.")
    calibration: Calibration | None
    has_certificate: bool


class OneMember(Member):
    """One member with the log position of its model."""

    model: str
    seq: int


class Members(MaybeStale):
    """All members of a model, in the order in which they were added."""

    model: str
    seq: int
    promoted: str | None = Field(description="Name of the promoted member, which is served alone.")
    members: list[Member]
