"""Response types of the routes that show a model, with their OpenAPI schemas.

Client and server share them. A field with a default is absent in the JSON while it has that value,
and a number that is not finite is null.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


def about(description: str, *values: str) -> Meta:
    """Description of a field, and the values of a text. Clients accept others of a later server."""
    schema: dict[str, object] | None = {"enum": list(values)} if values else None
    return Meta(description=description, extra_json_schema=schema)


MEMBER = about("Name of the member, if the request has one.")


class MaybeStale(Struct, kw_only=True, omit_defaults=True):
    """Fields of an answer from memory that can be stale; absent while the store is available."""

    stale: Annotated[
        bool | None,
        about(
            "True if the state was last known to be current more than 5 s ago, because"
            " the store is unavailable. Such an answer has no ETag."
        ),
    ] = None
    age_seconds: Annotated[
        float | None, about("Time since the state was last known to be current.")
    ] = None


# -- models ----------------------------------------------------------------------------------------


class Pause(Struct, kw_only=True):
    """A pause: rows are journalled but not learned, and predictions continue."""

    since: Annotated[int, about("Log position of the row that tripped the guard.")]
    quantity: Annotated[str, about("Quantity that left its history.", "loss", "norm")]
    value: Annotated[float, about("Value at the check that tripped the guard.")]
    limit: Annotated[float, about("Limit that the value exceeded.")]
    is_settled: Annotated[
        bool, about("Whether the state has been rolled back to the last good check.")
    ]
    held_from: Annotated[int, about("Log position of the state; rows after it are in quarantine.")]
    held_records: Annotated[int, about("Number of records in quarantine.")]
    held_bytes: Annotated[
        int, about("Size of the rows since the trip: 16 bytes a feature and 32 a row.")
    ]


class GuardTripped(Struct, tag_field="kind", tag="guard"):
    """A guard trip: a quantity left its own history."""

    quantity: Literal["loss", "norm"]
    rows: Annotated[int, about("Rows learned at the trip.")]
    seq: Annotated[int, about("Log position of the row that triggered it.")]
    value: float
    limit: Annotated[float, about("Limit that the value exceeded.")]
    paused: Annotated[bool, about("Whether the trip paused learning.")]


class Model(MaybeStale, kw_only=True):
    """A model. In a list, one that is not in memory has no counts; read it alone to get them."""

    id: str
    spec: Annotated[dict[str, Any], about("The specification with all defaults.")]
    seq: Annotated[int, about("Log position: last record of the model's journal.")]
    created: datetime
    samples: Annotated[int | None, about("Rows learned.")] = None
    rejected: Annotated[int | None, about("Rows that were journalled but not learned.")] = None
    paused: Annotated[
        Pause | UnsetType | None, about("Models with a guard: null unless learning is paused.")
    ] = UNSET
    state_digest: Annotated[
        str | None,
        about(
            "With `digest=true`: SHA-256 of the state (learner, metrics, names,"
            " counts). All workers, replays and copies with the same ETag have the same digest."
        ),
    ] = None
    unreadable: Annotated[
        str | None, about("In a list: why this server cannot read the model.")
    ] = None
    rows_held_at_most: Annotated[
        int | None,
        about("Boosted trees: rows in memory at most, with the columns of the stream so far."),
    ] = None
    warnings: Annotated[list[str], about("When it is created: known weaknesses of the spec.")] = []


class ModelPage(Struct):
    """Models, ordered by id."""

    models: list[Model]
    next: Annotated[str | None, about("The `after` of the next page; null on the last one.")]


class Reference(Struct, kw_only=True):
    """Optimum of the retained rows, and the distance of the served weights from it."""

    seq: Annotated[int, about("Log position of the window.")]
    lower_bound: Annotated[float | None, about("Lower bound: no weights have a smaller objective.")]
    objective: Annotated[float | None, about("Objective of the best weights found.")]
    served: Annotated[float | None, about("Objective of the served weights.")]
    gap: Annotated[float | None, about("served - lower_bound, never negative.")]
    rows: Annotated[int, about("Retained rows of the window.")]
    regret: Annotated[
        float | None,
        about(
            "Sum of the losses of the window's rows when they were served, minus the"
            " sum of their losses at the best weights found."
        ),
    ]
    regret_rows: Annotated[
        int, about("Number of last rows in the sum: those whose served loss is known.")
    ]
    epochs: int
    converged: Annotated[
        bool, about("Whether the relative gap of bound and objective is at most 1e-4.")
    ]


class Certificate(MaybeStale, kw_only=True):
    """Primal, dual and their gap. Certifies optimisation, not generalisation.

    A number beyond the range of a float is null, and `reason` says why.
    """

    model: str
    member: Annotated[str | None, MEMBER]
    seq: int
    primal: Annotated[float | None, about("Regularised loss of the served weights.")]
    dual: Annotated[float | None, about("Lower bound: no weights have a smaller loss.")]
    gap: Annotated[float | None, about("primal - dual, never negative.")]
    relative_gap: Annotated[float | None, about("gap over the larger of |primal| and |dual|.")]
    rows: Annotated[int, about("Retained rows in the computation of the gap.")]
    weight_share: Annotated[float | None, about("Their share of the window's total weight.")]
    estimate: Annotated[
        bool, about("False if the gap covers all rows of the window, as for sliding windows.")
    ]
    reason: Annotated[str | None, about("Why a number is null; absent if none is.")] = None
    reference: Annotated[Reference | None, about("With `reference=true`.")] = None


# -- weights and curves ----------------------------------------------------------------------------


class Weight(Struct, kw_only=True, omit_defaults=True):
    """Weight of a feature; of one class in a multiclass model."""

    index: Annotated[int, about("Counted from 1.")]
    weight: float
    name: Annotated[str | None, about("Name of a hashed feature.")] = None
    label: Annotated[Any, about("Multiclass: the class of the weight.")] = None


class NamedCoefficient(Struct):
    """Coefficient of one basis function of a semiparametric model."""

    name: str
    value: Annotated[float, about("0 if the function was dropped.")]
    dropped: Annotated[
        bool, about("On the window the function is zero or linearly dependent on earlier ones.")
    ]


class Weights(MaybeStale, kw_only=True):
    """The served weights of largest magnitude."""

    model: str
    member: Annotated[str | None, MEMBER] = None
    seq: int
    dim: int
    intercept: Annotated[float | list[float], about("Multiclass: one for each class.")]
    nonzeros: int
    weights: list[Weight]
    coefficients: Annotated[
        list[NamedCoefficient] | None,
        about(
            "Semiparametric models, after the first refit, in the order of the basis."
            " `weights` has those of linear functions, `intercept` that of the constant."
        ),
    ] = None
    coefficients_are_unique: Annotated[
        bool | None, about("Whether the rows of the window determine the coefficients.")
    ] = None
    support: Annotated[int | None, about("Number of rows in the kernel expansion.")] = None


class Curve(Struct, kw_only=True, omit_defaults=True):
    """A function of one feature: linear between its knots, constant beyond the outer ones."""

    index: Annotated[int, about("Counted from 1.")]
    name: Annotated[str | None, about("Name of a hashed feature.")] = None
    label: Annotated[Any, about("Multiclass: the class whose score the curve adds to.")] = None
    range: Annotated[float, about("The largest of `y` minus the least.")]
    x: Annotated[list[float], about("Knots: increasing values of the feature.")]
    y: Annotated[list[float], about("What the feature adds to the score at each knot.")]


class Curves(MaybeStale, kw_only=True):
    """Curves in order of their range, largest first."""

    model: str
    member: Annotated[str | None, MEMBER] = None
    seq: int
    curves: list[Curve]


class LocalPhases(Struct):
    """Local phases of an `rda_plus` model, and how far it is from the optimum."""

    delta: Annotated[
        float | None,
        about(
            "Root mean square, over all features and the intercept, of the least"
            " subgradient of the objective on the retained rows; 0 at the optimum. Null without"
            " rows."
        ),
    ]
    accepted: Annotated[
        int, about("Local phases whose weights were taken, since this process loaded the model.")
    ]
    refused: Annotated[
        int, about("Those whose weights predicted newer rows worse than the model did.")
    ]
    unsolved: Annotated[
        int, about("Those with more than `max_features` active features, or without a minimum.")
    ]
    max_features: int


class Support(MaybeStale, kw_only=True):
    """Features with non-zero weights, of a sparse model."""

    model: str
    seq: int
    features: list[Weight]
    unchanged_since: Annotated[int, about("Number of learned rows at the last change of a sign.")]
    changes_per_1000: Annotated[float, about("Weights that changed sign, per 1,000 rows.")]
    local_phases: Annotated[LocalPhases | None, about("Only of `rda_plus`.")] = None


# -- columns ---------------------------------------------------------------------------------------


class FrequentValue(Struct):
    """A frequent value of a column."""

    value: str
    count: Annotated[int, about("Rows that had it, at least.")]


class Bin(Struct):
    """Values of a column, and their shares of the rows of two windows."""

    value: Annotated[str | None, about("A value, or several; null of numbers.")]
    low: Annotated[float | None, about("Numbers from here on; null if open, or no numbers.")]
    high: Annotated[float | None, about("Numbers up to here; one number if equal to `low`.")]
    before: Annotated[float, about("Share of about the 10,000 rows before.")]
    recent: Annotated[float, about("Share of about the last 1,000 rows.")]


class Column(Struct, kw_only=True):
    """Profile of a column, over the profiled rows since the first one that had it."""

    name: Annotated[str, about("Numbered features count from 1.")]
    kind: Annotated[
        str,
        about(
            "Declared or seen first; unknown: no row with a value was learned.",
            "number",
            "boolean",
            "category",
            "text",
            "time",
            "unknown",
        ),
    ]
    count: Annotated[int, about("Rows with a value.")]
    missing: Annotated[
        int | None,
        about("Rows without a value; null if the model has no room for names of new values."),
    ]
    missing_includes_zero: Annotated[
        bool, about("Whether 0 and false count as missing, as rows do not store them.")
    ]
    others: Annotated[int, about("Rows with a text in a column of numbers.")]
    mean: Annotated[float | None, about("Of numbers; of texts, the words of a row.")]
    sd: Annotated[float | None, about("Standard deviation.")]
    minimum: float | None
    maximum: float | None
    top: Annotated[list[FrequentValue], about("The most frequent values, at most 10.")]
    last: Annotated[float | str | None, about("The last value; null of texts and times.")]
    refused: Annotated[
        int, about("Rows that this process refused for the column since it started.")
    ]
    psi: Annotated[
        float | None,
        about(
            "Population stability index of about the last 1,000 rows against the"
            " 10,000 before, less its mean by chance; null before 2,000 rows, and of times."
        ),
    ]
    drift: Annotated[
        str | None,
        about("`none`; `moderate`: psi of at least 0.1; `large`: at least 0.25. Null without psi."),
    ]
    bins: Annotated[
        list[Bin], about("Of columns that moved, both windows that psi compares; else empty.")
    ]


class Columns(MaybeStale, kw_only=True):
    """Columns of a model, at most 256 in order of their first row."""

    model: str
    seq: int
    rows: Annotated[
        int,
        about("Profiled rows: learned, with a weight above 0; after the first 8,192 one in four."),
    ]
    has_more: Annotated[bool, about("Whether the stream has more columns, which do not count.")]
    roles: Annotated[
        dict[str, str],
        about(
            "Names of columns that are no features, and their roles: label, weight or id."
            " Without `columns` in the specification those of CSV and Arrow."
        ),
    ]
    columns: list[Column]


# -- classes ---------------------------------------------------------------------------------------


class Calibrated(Struct, kw_only=True):
    """Predicted probabilities of the positive class against its rate."""

    error: Annotated[
        float,
        about(
            "Mean difference of probability and rate over 20 bins of equal width, weighted by their"
            " rows; 0 is perfect."
        ),
    ]
    mean_probability: float
    positive_rate: float


class Confusion(MaybeStale, kw_only=True):
    """Classes of the last 1,000 rows against those that were predicted before each was learned."""

    model: str
    seq: int
    rows: int
    classes: Annotated[
        list[Any], about("With most rows first; of two classes, the negative one first.")
    ]
    counts: Annotated[
        list[list[int]],
        about(
            "Rows by class, and in each by predicted class, in the order of `classes`. Several"
            " classes have one more of both: all other classes, and no prediction."
        ),
    ]
    calibration: Annotated[
        Calibrated | None, about("Of two classes, if the loss gives probabilities.")
    ] = None


# -- intervals -------------------------------------------------------------------------------------


class IntervalRows(MaybeStale, kw_only=True):
    """The last rows of a regression that had an interval, oldest first, before each was learned."""

    model: str
    seq: int
    seqs: Annotated[list[int], about("Log position of each row.")]
    labels: list[float]
    scores: Annotated[list[float], about("The predictions.")]
    intervals: Annotated[
        dict[str, list[list[float | None]]],
        about("By level: low and high end of each row; null if open."),
    ]


# -- members ---------------------------------------------------------------------------------------


class Counted(Struct):
    """Progressive metrics over some rows: each was scored before it was learned."""

    rows: int
    loss: Annotated[
        float | None,
        about(
            "Mean loss of the calibrated member: log-loss in nats; for regression the"
            " scaled squared error."
        ),
    ]
    error_rate: Annotated[float | None, about("Mistakes per row; null for regression.")]


class Member(Struct, kw_only=True, omit_defaults=True):
    """Member of a portfolio."""

    name: str
    weight: Annotated[float, about("Share in the prediction; shares of active members sum to 1.")]
    since_start: Counted
    rolling: Annotated[Counted, about("Over the last 1,000 rows.")]
    resets: Annotated[int, about("Resets because a value was not finite.")]
    spec: Annotated[dict[str, Any], about("The specification with all defaults.")]
    active: Annotated[bool, about("False while another member is promoted.")]
    calibration: Annotated[
        dict[str, float] | None, about("a and b: the probability of a margin m is sigma(a m + b).")
    ]
    has_certificate: bool
    rows_held_at_most: Annotated[
        int | None,
        about("Boosted trees: rows in memory at most, with the columns of the stream so far."),
    ] = None
    model: Annotated[str | None, about("In an answer of one member.")] = None
    seq: Annotated[int | None, about("In an answer of one member.")] = None


class Members(MaybeStale, kw_only=True):
    """All members of a model, in the order in which they were added.

    A model of several classes has means over the classes, of which each has members of its own.
    """

    model: str
    seq: int
    promoted: Annotated[str | None, about("Name of the promoted member, which is served alone.")]
    members: list[Member]


class Comparison(MaybeStale, kw_only=True):
    """Mean difference of the losses of two members, a - b. Below 0, a predicts better.

    `low` and `high` are a confidence sequence: with probability `level` the interval contains the
    true mean at all times, so it can be read repeatedly. A number too large for a float is null.
    """

    model: str
    seq: int
    a: str
    b: str
    rows: Annotated[int, about("Rows that both members have scored.")]
    mean: float | None
    low: float | None
    high: float | None
    level: float


# -- trends and segments ---------------------------------------------------------------------------


class Series(Struct):
    """One figure over time."""

    name: Annotated[
        str,
        about(
            "Figure of the last 1,000 rows, or the share of a member at the moment. Costs, and"
            " precision and recall of alerts, are of the last 1,000 labelled rows.",
            "auc",
            "average_precision",
            "coverage",
            "cost",
            "best_constant",
            "most_probable",
            "alert_rate",
            "alert_precision",
            "alert_recall",
            "share",
        ),
    ]
    of: Annotated[str | None, about("Level of a coverage, name of a member; null of others.")]
    values: Annotated[list[float | None], about("One for each point; null if it is unknown.")]


class Trends(MaybeStale, kw_only=True):
    """Figures at some moments since the answering process loaded the model."""

    model: str
    seq: int
    rows: Annotated[list[int], about("Rows learned at each point, increasing.")]
    times: list[datetime]
    series: list[Series]


class Segment(Struct, kw_only=True):
    """Progressive metrics of the rows with one value of a column; null without such a quantity."""

    value: Annotated[
        str,
        about(
            "`(missing)`: rows without a value; `(other)`: with a value that came after the first"
            " 100 of the column; `(all)`: all rows of the model."
        ),
    ]
    rows: Annotated[float, about("In the fading view the sum of their weights.")]
    harm: Annotated[
        float,
        about(
            "By how much the mean over all rows is higher than if this segment were like the"
            " average: its share of the rows times its mean less that of all rows. Below 0, the"
            " model does better here than elsewhere."
        ),
    ]
    error_rate: Annotated[float | None, about("Mistakes per row; null for regression.")]
    mae: Annotated[float | None, about("Mean absolute error of a regression.")]
    log_loss: Annotated[float | None, about("Null if the loss gives no probabilities.")]
    mean_prediction: Annotated[
        float | None,
        about(
            "Mean predicted probability of the positive class; of a regression the mean prediction."
        ),
    ]
    mean_label: Annotated[
        float | None, about("Rate of the positive class; of a regression the mean label.")
    ]
    coverage: Annotated[
        dict[str, float | None] | None,
        about("Share of the rows whose interval or set had the label, by level of `intervals`."),
    ]
    alert_rate: Annotated[float | None, about("Share of the rows that alerted.")]


class SegmentMetrics(MaybeStale, kw_only=True):
    """Metrics of the rows by the values of a column, in two views.

    Each view begins with all rows of the model, `(all)`. The segments follow, the most harmful one
    first. A view is empty before the first row.
    """

    model: str
    seq: int
    by: Annotated[str, about("The column.")]
    measure: Annotated[str, about("The quantity of `harm`.", "log_loss", "error_rate", "mae")]
    since_start: list[Segment]
    fading: Annotated[
        list[Segment], about("A row's weight falls by 1/10,000 with each later row of the model.")
    ]
