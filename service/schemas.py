"""Answers of the hot routes; their OpenAPI entries are generated from these types."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType


class Duplicate(Struct):
    """A row that is known by its id: its place in the request, and in the journal."""

    index: int
    seq: Annotated[int | None, Meta(description="Null where its id is no longer kept.")]


class Learned(Struct):
    """What became of a learn request. Loss, mistakes and scores are from before each update."""

    model: str
    seq: Annotated[int, Meta(description="Place in the journal of the last row journalled.")]
    count: Annotated[int, Meta(description="Rows journalled.")]
    learned: Annotated[int | None, Meta(description="Rows journalled and learned.")]
    mistakes: Annotated[int | None, Meta(description="Learned rows scored on the wrong side.")]
    loss: Annotated[float | None, Meta(description="Mean loss over the learned rows.")]
    rejected: Annotated[int | None, Meta(description="Rows refused, at the door or when applied.")]
    duplicate: Annotated[
        bool,
        Meta(
            description="Nothing is new: the Idempotency-Key was learned before, and what is told"
            " is the first answer as far as it is kept; or the id of each row was."
        ),
    ]
    duplicates: Annotated[
        list[Duplicate] | UnsetType,
        Meta(description="Rows left out as their ids were learned before."),
    ] = UNSET
    scores: Annotated[
        list[float | None] | UnsetType | None,
        Meta(
            description="One for each row sent; null where refused or left out. Always for one"
            " sample. Null in all where those of the first answer are no longer kept."
        ),
    ] = UNSET
    errors: Annotated[
        list[dict[str, Any]] | UnsetType, Meta(description="The first 100 refused rows.")
    ] = UNSET


Stale = Annotated[
    bool | UnsetType,
    Meta(
        description="True where the state was last known to be the newest more than 5 s ago, as"
        " while the store is away. There is no ETag then."
    ),
]
AgeSeconds = Annotated[
    float | UnsetType,
    Meta(description="Time since the state that scored was last known to be the newest."),
]


class Predicted(Struct):
    """The score of one row."""

    model: str
    seq: Annotated[int, Meta(description="The state that scored: all rows up to this seq.")]
    score: float
    label: int | float | bool | str | None
    probability: float | None
    stale: Stale = UNSET
    age_seconds: AgeSeconds = UNSET


class PredictedMany(Struct):
    """The scores of many rows, in their order; null where a row was refused."""

    model: str
    seq: int
    scores: list[float | None]
    labels: list[int | float | bool | str | None]
    probabilities: list[float | None] | None
    stale: Stale = UNSET
    age_seconds: AgeSeconds = UNSET
    rejected: int | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
