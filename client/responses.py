"""Response types. Absent fields are None. /docs of a server documents every field.

The types of learn and predict are those of the server: wire/schemas.py.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct


class MaybeStale(Struct, kw_only=True):
    """A response from memory; `stale` while the store is unavailable."""

    stale: bool | None = None
    age_seconds: float | None = None


class Model(MaybeStale, kw_only=True):
    """A model. In a list `samples` and `rejected` are None for a model that is not in memory."""

    id: str
    spec: dict[str, Any]
    seq: int
    created: datetime
    samples: int | None = None
    rejected: int | None = None
    state_digest: str | None = None
    unreadable: str | None = None


class Change(Struct):
    """Entry of the audit log: one change of a model."""

    place: str
    time: datetime
    model: str
    incarnation: str
    seq: int
    action: str
    by: str
    key: str | None
    key_id: str | None
    detail: dict[str, Any]
    outcome: str = "done"
    reason: str | None = None


class ChangePage(Struct):
    """A page of changes, oldest first; `next` is the `after` of the next page."""

    changes: list[Change]
    next: str | None


class ModelPage(Struct):
    """A page of models, by id; `next` is the `after` of the next page."""

    models: list[Model]
    next: str | None


class Certificate(MaybeStale, kw_only=True):
    """Primal, dual and duality gap. Certifies optimisation, not generalisation."""

    model: str
    member: str | None = None
    seq: int
    primal: float | None
    dual: float | None
    gap: float | None
    relative_gap: float | None
    rows: int
    weight_share: float
    estimate: bool


class Weight(Struct, kw_only=True):
    """Weight of a feature; of one class in a multiclass model."""

    index: int
    weight: float
    name: str | None = None
    label: Any = None


class Weights(MaybeStale, kw_only=True):
    """The served weights of largest magnitude."""

    model: str
    member: str | None = None
    seq: int
    dim: int
    intercept: float | list[float]
    nonzeros: int
    weights: list[Weight]


class Curve(Struct, kw_only=True):
    """Function of one feature: linear between the knots `x`, constant beyond the outer ones."""

    index: int
    x: list[float]
    y: list[float]
    range: float
    name: str | None = None
    label: Any = None


class Curves(MaybeStale, kw_only=True):
    """What each feature adds to the score of `splines`, largest range first."""

    model: str
    member: str | None = None
    seq: int
    curves: list[Curve]


class FrequentValue(Struct):
    """A value of a column, and the rows that had it, at least."""

    value: str
    count: int


class Column(Struct, kw_only=True):
    """What a column of the stream holds, and how far it has moved from its past."""

    name: str
    kind: str
    count: int
    missing: int | None
    missing_includes_zero: bool
    others: int
    mean: float | None
    sd: float | None
    minimum: float | None
    maximum: float | None
    top: list[FrequentValue]
    last: float | str | None
    refused: int
    psi: float | None
    drift: str | None


class Columns(MaybeStale, kw_only=True):
    """Columns of a model's learned rows."""

    model: str
    seq: int
    rows: int
    has_more: bool
    columns: list[Column]


class LocalPhases(Struct):
    """Local phases of an `rda_plus` model since a process loaded it; delta is 0 at the optimum."""

    delta: float | None
    accepted: int
    refused: int
    unsolved: int
    max_features: int


class Support(MaybeStale, kw_only=True):
    """Features that a sparse model uses, and how stable they are."""

    model: str
    seq: int
    features: list[Weight]
    unchanged_since: int
    changes_per_1000: float
    local_phases: LocalPhases | None = None


class Counted(Struct):
    """Metrics of some rows."""

    rows: int
    loss: float | None
    error_rate: float | None


class Member(Struct, kw_only=True):
    """Member of a portfolio; `model` and `seq` in a response for one member only."""

    name: str
    weight: float
    since_start: Counted
    rolling: Counted
    resets: int
    spec: dict[str, Any]
    active: bool
    calibration: dict[str, float] | None
    has_certificate: bool
    model: str | None = None
    seq: int | None = None


class Members(MaybeStale, kw_only=True):
    """All members of a model, in the order of their creation."""

    model: str
    seq: int
    promoted: str | None
    members: list[Member]


class Comparison(MaybeStale, kw_only=True):
    """The mean difference of the losses of two members, a - b: below 0, a does better."""

    model: str
    seq: int
    a: str
    b: str
    rows: int
    mean: float | None
    low: float | None
    high: float | None
    level: float


class Version(Struct, kw_only=True):
    """Named full copy of a state."""

    model: str
    name: str
    seq: int
    digest: str
    bytes: int
    created: datetime
    note: str


class Versions(Struct, kw_only=True):
    """Versions of a model, and the first seq in its journal."""

    model: str
    seq: int
    kept_from: int
    versions: list[Version]


class RolledBack(Struct, kw_only=True):
    """Result of a rollback to the state at `to_seq`."""

    model: str
    seq: int
    to_seq: int | None
    version: str | None
    digest: str | None
    duplicate: bool


class Resumed(Struct, kw_only=True):
    """Result of a resume; `learned` rows of the quarantine were learned."""

    model: str
    seq: int
    since: int | None
    rows: str
    learned: int | None
    duplicate: bool


class Refit(Struct, kw_only=True):
    """A refit: its options, progress and outcome."""

    model: str
    job: str
    status: str
    method: str
    tol: float
    max_epochs: int
    options: dict[str, Any] = {}
    seq: int | None
    rows: int | None
    epochs: int
    relative_gap_before: float | None
    relative_gap: float | None
    converged: bool | None
    entered_seq: int | None
    reason: str | None
    created: datetime
    updated: datetime

    @property
    def is_under_way(self) -> bool:
        """Does it still run?"""
        return self.status in ("waiting", "running", "entering")


class Refits(Struct):
    """The last refits of a model, newest first."""

    model: str
    refits: list[Refit]


class Unlearned(Struct, kw_only=True):
    """Result of an unlearn; `cleaning` while the store still has older data."""

    model: str
    sample: str
    seq: int
    status: str


class SourceCursor(Struct, kw_only=True):
    """Cursor of a source: the offset at which its next batch begins, and what was learned."""

    name: str
    next: int | str
    rows: int
    refused: int
    updated_at: datetime
    lag: int | None = None


class SourceList(Struct):
    """The sources of a model, by name."""

    sources: list[SourceCursor]


class Timeline(MaybeStale, kw_only=True):
    """Metrics over learned rows, with drifts of the loss and pauses by the guard."""

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: list[dict[str, Any]]
    times: list[dict[str, Any]]


class Event(Struct, kw_only=True):
    """Server-sent event of a model; `deleted` is the last one."""

    kind: str
    id: str
    data: dict[str, Any]
