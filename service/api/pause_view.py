"""How an answer says that a model's learning pauses."""

from typing import Literal

from pydantic import BaseModel, Field

from service.replica import Replica


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
