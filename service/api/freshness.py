"""How an answer says that it may be out of date, because the store is away."""

from typing import Any

from pydantic import BaseModel, Field

from service.model import Model


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
