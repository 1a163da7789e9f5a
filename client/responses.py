"""Answers as the API gives them; fields that it leaves out are None, or UNSET on the hot routes.

The types of learn and predict are the server's own; docs of each field: /docs of a server.
"""

from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct

from dualstream.wire.schemas import Duplicate, Learned, LearnedStream, Predicted, PredictedMany

__all__ = [
    "UNSET",
    "Certificate",
    "Change",
    "ChangePage",
    "Comparison",
    "Counted",
    "Duplicate",
    "Event",
    "Learned",
    "LearnedStream",
    "Member",
    "Members",
    "Model",
    "ModelPage",
    "Predicted",
    "PredictedMany",
    "Resumed",
    "RolledBack",
    "Support",
    "Timeline",
    "Unlearned",
    "Version",
    "Versions",
    "Weight",
    "Weights",
]


class MaybeStale(Struct, kw_only=True):
    """Answered from memory; `stale` while the store is away."""

    stale: bool | None = None
    age_seconds: float | None = None


class Model(MaybeStale, kw_only=True):
    """A model; in a list `samples` and `rejected` are None where it is not in memory."""

    id: str
    spec: dict[str, Any]
    seq: int
    created: datetime
    samples: int | None = None
    rejected: int | None = None
    state_digest: str | None = None
    unreadable: str | None = None


class Change(Struct):
    """Somebody changed a model: an entry of the audit log."""

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


class ChangePage(Struct):
    """Changes, the oldest first; `next` asks for the next page."""

    changes: list[Change]
    next: str | None


class ModelPage(Struct):
    """Models in the order of their ids; `next` asks for the next page."""

    models: list[Model]
    next: str | None


class Certificate(MaybeStale, kw_only=True):
    """Primal, dual and their gap; it certifies optimisation, not generalisation."""

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
    """The weight of a feature, of one class where there are several."""

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


class Support(MaybeStale, kw_only=True):
    """The features that a sparse model uses, and how settled they are."""

    model: str
    seq: int
    features: list[Weight]
    unchanged_since: int
    changes_per_1000: float


class Counted(Struct):
    """What some rows have shown."""

    rows: int
    loss: float | None
    error_rate: float | None


class Member(Struct, kw_only=True):
    """A member of a portfolio as it stands; `model` and `seq` where it was asked for alone."""

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
    """All members of a model, in the order in which they came."""

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
    """A full copy of a state, by its name."""

    model: str
    name: str
    seq: int
    digest: str
    bytes: int
    created: datetime
    note: str


class Versions(Struct, kw_only=True):
    """The versions of a model, and the first seq that its journal still holds."""

    model: str
    seq: int
    kept_from: int
    versions: list[Version]


class RolledBack(Struct, kw_only=True):
    """The state is again what it was at `to_seq`."""

    model: str
    seq: int
    to_seq: int | None
    version: str | None
    digest: str | None
    duplicate: bool


class Resumed(Struct, kw_only=True):
    """Learning goes on; `learned` rows of the quarantine were learned first."""

    model: str
    seq: int
    since: int | None
    rows: str
    learned: int | None
    duplicate: bool


class Unlearned(Struct, kw_only=True):
    """A sample that was unlearned; `cleaning` until the store holds nothing older."""

    model: str
    sample: str
    seq: int
    status: str


class Timeline(MaybeStale, kw_only=True):
    """Metrics at some counts of learned rows, where the loss has drifted and the guard tripped."""

    model: str
    seq: int
    samples: int
    points: list[dict[str, Any]]
    events: list[dict[str, Any]]


class Event(Struct, kw_only=True):
    """What is told of a model while it learns; `deleted` is the last one."""

    kind: str
    id: str
    told: dict[str, Any]
