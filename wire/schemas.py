"""Response types of learn and predict, with their OpenAPI schemas, and the ids of models."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from dualstream.wire.responses import MaybeStale, about

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MODEL_ID_RULE = (
    "a model id has 1 to 128 characters of A-Z a-z 0-9 . _ - and begins with a letter or digit"
)


class Duplicate(Struct):
    """A row whose id was learned before: its index in the request, its seq in the journal."""

    index: int
    seq: Annotated[int | None, about("Null if its id is no longer kept.")]


class SourceNext(Struct):
    """Cursor of a source after a learn request with `Dualstream-Source`."""

    name: str
    next: Annotated[int | str, about("Offset at which its next batch must begin.")]


class Learned(Struct):
    """Result of a learn request. Loss, mistakes and scores are from before each update."""

    model: str
    seq: Annotated[int, about("Log position of the last row journalled.")]
    count: Annotated[int, about("Rows journalled.")]
    learned: Annotated[int | None, about("Rows journalled and learned.")]
    mistakes: Annotated[int | None, about("Learned rows scored on the wrong side.")]
    loss: Annotated[float | None, about("Mean loss over the learned rows.")]
    rejected: Annotated[int | None, about("Rows refused, when parsed or when applied.")]
    duplicate: Annotated[
        bool,
        about(
            "True if nothing is new. The Idempotency-Key was learned before, and this"
            " is the first response as far as it is kept. Or all ids were learned before. Or the"
            " source's cursor has passed this batch."
        ),
    ]
    duplicates: Annotated[
        list[Duplicate] | UnsetType,
        about("Rows that were skipped because their ids were learned before."),
    ] = UNSET
    scores: Annotated[
        list[float | None] | UnsetType | None,
        about(
            "One score per row sent; null for refused or skipped rows. Always present"
            " for one sample. All null if the scores of the first response are no longer kept."
        ),
    ] = UNSET
    errors: Annotated[list[dict[str, Any]] | UnsetType, about("The first 100 refused rows.")] = (
        UNSET
    )
    source: Annotated[SourceNext | UnsetType, about("With the header Dualstream-Source.")] = UNSET
    warnings: Annotated[
        list[str] | UnsetType, about("What may not be meant, such as weights far from 1.")
    ] = UNSET

    def left_out(self) -> int:
        """Number of rows skipped because their ids were known."""
        return 0 if self.duplicates is UNSET else len(self.duplicates)

    def sent(self) -> int:
        """Rows of the request; only the journalled rows if the first response is not kept."""
        if self.learned is None or self.rejected is None:
            return self.count + self.left_out()
        return self.learned + self.rejected + self.left_out()


class LearnedChunk(Learned, kw_only=True):
    """Progress line of a streamed upload: the result of one chunk."""

    chunk: Annotated[int, about("Number of the chunk, from 0.")]
    bytes: Annotated[int, about("Bytes of the decompressed body up to the end of the chunk.")]


class LearnedStream(Learned, kw_only=True):
    """Result of a streamed upload: sums over its chunks.

    Fields are null if the first response to a repeated chunk is no longer kept.
    """

    chunks: Annotated[int, about("Number of chunks. Each is an atomic append.")]
    duplicate_chunks: Annotated[int, about("Chunks learned before under the Idempotency-Key.")]
    duplicate_rows: Annotated[int, about("Rows skipped because their ids were known.")]

    def left_out(self) -> int:
        """See Learned. A sum does not list these rows."""
        return self.duplicate_rows


Remembered = Annotated[
    int | UnsetType,
    about(
        "With `remember=true`: number of rows that wait for their labels now. A row"
        " whose label is known does not wait again."
    ),
]


MAX_EXPLAINED = 20
"""Rows of a prediction with `explain=true`; learning waits while they are explained."""


class Contribution(Struct):
    """What one feature adds to a score."""

    index: Annotated[int, about("Counted from 1.")]
    contribution: Annotated[float, about("In units of the score.")]
    name: Annotated[str | UnsetType, about("Name of a hashed feature.")] = UNSET
    value: Annotated[
        float | UnsetType,
        about("The feature's value, of a model whose columns are computed from earlier rows."),
    ] = UNSET


class Explanation(Struct):
    """score = base + sum of contributions + rest."""

    base: Annotated[float, about("The part of the score that no feature contributes.")]
    contributions: Annotated[
        list[Contribution], about("The 100 of largest magnitude, largest first.")
    ]
    rest: Annotated[float, about("Sum of the contributions that are not listed.")]


Interval = list[float | None] | None
"""Its ends; null for an end at infinity. Null before 20 labelled rows."""
Labels = list[int | float | bool | str] | None
"""Classes of a set, the most probable one first. Null before 20 labelled rows."""


class TopClass(Struct):
    """A class of a row, with its score and probability."""

    label: int | float | bool | str
    score: float
    probability: float | None


TopClasses = Annotated[
    list[TopClass] | UnsetType | None,
    about("With `top=N`, of several classes: those of largest score, largest first."),
]


class Predicted(MaybeStale):
    """Score of one row. Score, label and probability are null if the score is not finite."""

    model: str
    seq: Annotated[int, about("State that scored: all rows up to this seq are learned.")]
    score: float | None
    label: int | float | bool | str | None
    probability: float | None
    alert: Annotated[
        bool | UnsetType | None,
        about("Models with `alert_rate`: whether the score is above the threshold."),
    ] = UNSET
    threshold: Annotated[
        float | UnsetType | None,
        about(
            "Models with `alert_rate`: scores above it alert. Null if no row alerts now, or every"
            " row does."
        ),
    ] = UNSET
    remembered: Remembered = UNSET
    explanation: Annotated[
        Explanation | UnsetType | None,
        about("With `explain=true`; null if a number is not finite."),
    ] = UNSET
    interval: Annotated[
        Interval | UnsetType, about("Models with `intervals`: low and high end; null if open.")
    ] = UNSET
    set: Annotated[
        Labels | UnsetType, about("Models with `intervals`: classes, the most probable first.")
    ] = UNSET
    intervals: Annotated[
        dict[str, Interval] | UnsetType | None, about("With a list of levels: of each level.")
    ] = UNSET
    sets: Annotated[
        dict[str, Labels] | UnsetType | None, about("With a list of levels: of each level.")
    ] = UNSET

    top: TopClasses = UNSET

    def as_many(self) -> "PredictedMany":
        """The same as the answer to a request of many rows with this one."""
        whole = PredictedMany(self.model, self.seq, [self.score], [self.label], [self.probability])
        for many, one in FIELDS_OF_FEATURES.items():
            for name in (one, many):
                if (value := getattr(self, name, UNSET)) is not UNSET:
                    setattr(whole, many, [value])
        return whole


FIELDS_OF_FEATURES = {
    "intervals": "interval",
    "sets": "set",
    "alerts": "alert",
    "thresholds": "threshold",
    "top": "top",
}
"""Fields that only some models have: names in answers of many rows, and of one.

A value by level has the first name in both.
"""


class PredictedMany(MaybeStale):
    """Scores of many rows, in their order; null for refused rows, and where not finite."""

    model: str
    seq: int
    scores: list[float | None]
    labels: list[int | float | bool | str | None]
    probabilities: list[float | None] | None
    alerts: Annotated[
        list[bool | None] | UnsetType, about("Models with `alert_rate`: as `alert` of one row.")
    ] = UNSET
    thresholds: Annotated[
        list[float | None] | UnsetType,
        about("Models with `alert_rate`: as `threshold` of one row."),
    ] = UNSET
    remembered: Remembered = UNSET
    rejected: int | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
    explanations: Annotated[
        list[Explanation | None] | UnsetType,
        about("With `explain=true`: one per row; null for refused rows."),
    ] = UNSET
    intervals: Annotated[
        list[Interval | dict[str, Interval]] | UnsetType,
        about("Models with `intervals`: as `interval`, or `intervals`, of each row."),
    ] = UNSET
    sets: Annotated[
        list[Labels | dict[str, Labels]] | UnsetType,
        about("Models with `intervals`: as `set`, or `sets`, of each row."),
    ] = UNSET

    top: Annotated[
        list[list[TopClass] | None] | UnsetType, about("With `top=N`: as `top` of each row.")
    ] = UNSET

    def fields_of_features(self) -> dict[str, list[Any]]:
        """Fields that only some models have, by their names in an answer of one row."""
        fields = dict[str, list[Any]]()
        for many, one in FIELDS_OF_FEATURES.items():
            values = getattr(self, many)
            if values is not UNSET:
                has_levels = any(isinstance(value, dict) for value in values)
                fields[many if has_levels else one] = values
        return fields


def join_fields(answers: Sequence[PredictedMany]) -> None:
    """Give the first answer the fields that only some models have, of the rows of all answers.

    An answer without valid rows has none, so its rows have nulls.
    """
    for many in FIELDS_OF_FEATURES:
        columns = [getattr(answer, many) for answer in answers]
        if any(column is not UNSET for column in columns):
            pairs = zip(answers, columns, strict=True)
            values = [column or [None] * len(answer.scores) for answer, column in pairs]
            setattr(answers[0], many, list(chain.from_iterable(values)))
