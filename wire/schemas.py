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

    def left_out(self) -> int:
        """Rows left out as their ids were known."""
        return 0 if self.duplicates is UNSET else len(self.duplicates)

    def sent(self) -> int:
        """Rows of the request, as far as is told: of a first answer not kept those journalled."""
        if self.learned is None or self.rejected is None:
            return self.count + self.left_out()
        return self.learned + self.rejected + self.left_out()


class LearnedChunk(Learned, kw_only=True):
    """A line of progress: what became of one chunk of a body that is learned as it arrives."""

    chunk: Annotated[int, Meta(description="Its number, from 0.")]
    bytes: Annotated[int, Meta(description="Bytes of the body, inflated, up to its end.")]


class LearnedStream(Learned, kw_only=True):
    """What became of a body that was learned as it arrived: sums over its chunks.

    Null where a repeated chunk's first answer is no longer kept.
    """

    chunks: Annotated[int, Meta(description="Of the body, each an atomic append of its own.")]
    duplicate_chunks: Annotated[
        int, Meta(description="Chunks that were learned before under the Idempotency-Key.")
    ]
    duplicate_rows: Annotated[int, Meta(description="Rows left out as their ids were known.")]

    def left_out(self) -> int:
        """See Learned; which rows these are no sum tells."""
        return self.duplicate_rows


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


Remembered = Annotated[
    int | UnsetType,
    Meta(
        description="With `remember=true`: rows that wait for their labels now. One whose label is"
        " known does not wait again."
    ),
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
    remembered: Remembered = UNSET


class PredictedMany(Struct):
    """The scores of many rows, in their order; null where a row was refused."""

    model: str
    seq: int
    scores: list[float | None]
    labels: list[int | float | bool | str | None]
    probabilities: list[float | None] | None
    stale: Stale = UNSET
    age_seconds: AgeSeconds = UNSET
    remembered: Remembered = UNSET
    rejected: int | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
