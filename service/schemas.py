"""Answers of the hot routes; their OpenAPI entries are generated from these types."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType


class Learned(Struct):
    """What became of a learn request. Loss, mistakes and scores are from before each update."""

    model: str
    seq: Annotated[int, Meta(description="Place in the journal of the last row journalled.")]
    count: Annotated[int, Meta(description="Rows journalled.")]
    learned: Annotated[int | None, Meta(description="Rows journalled and learned.")]
    mistakes: Annotated[int | None, Meta(description="Learned rows scored on the wrong side.")]
    loss: Annotated[float | None, Meta(description="Mean loss over the learned rows.")]
    rejected: Annotated[int | None, Meta(description="Rows refused, at the door or when applied.")]
    duplicate: Annotated[bool, Meta(description="The Idempotency-Key was learned before.")]
    scores: Annotated[
        list[float | None] | UnsetType,
        Meta(description="One for each row sent; null where refused. Always for one sample."),
    ] = UNSET
    errors: Annotated[
        list[dict[str, Any]] | UnsetType, Meta(description="The first 100 refused rows.")
    ] = UNSET


class Predicted(Struct):
    """The score of one row."""

    model: str
    seq: Annotated[int, Meta(description="The state that scored: all rows up to this seq.")]
    score: float
    label: int | float | bool | str | None
    probability: float | None


class PredictedMany(Struct):
    """The scores of many rows, in their order; null where a row was refused."""

    model: str
    seq: int
    scores: list[float | None]
    labels: list[int | float | bool | str | None]
    probabilities: list[float | None] | None
    rejected: int | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
