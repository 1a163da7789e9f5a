"""Response types of the routes that change a model or list its changes; see responses.py."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from dualstream.wire.responses import about


class Change(Struct, kw_only=True):
    """One change to one model."""

    place: Annotated[str, about("Position in the log: the `after` of the next request.")]
    time: Annotated[datetime, about("By the store's clock.")]
    model: str
    incarnation: Annotated[str, about("Identifies one of several models that had this id.")]
    seq: Annotated[int, about("Log position: of the control record, otherwise of the last record.")]
    action: Annotated[
        str,
        about(
            "`create`, `replace`, `delete`, `version`, `version_delete`, `refit_begin`,"
            " `refit_cancel`, `source_set`, `source_forget`, or a kind of control record:"
            " `rollback`, `refit`, `unlearn`..."
        ),
    ]
    by: Annotated[
        str,
        about(
            "`server` for changes without a request, by a rule or a clean-up.", "request", "server"
        ),
    ]
    key: Annotated[str | None, about("Name of the API key; null on a server without keys.")]
    key_id: Annotated[str | None, about("First 16 hexadecimal digits of the key's digest.")]
    detail: dict[str, Any]
    outcome: Annotated[
        str,
        about(
            "`refused` if the change was not possible. `unknown` if the outcome of a"
            " control record is not kept, or the model is not in memory; a request with `model`"
            " loads it.",
            "done",
            "refused",
            "unknown",
        ),
    ]
    reason: Annotated[str | None, about("Reason of a refusal.")]


class ChangePage(Struct):
    """Changes, the oldest first."""

    changes: list[Change]
    next: Annotated[str | None, about("The `after` of the next page; null on the last one.")]


class Version(Struct, kw_only=True):
    """A version: a named full copy of a state."""

    model: str
    name: str
    seq: Annotated[int, about("Log position of the state.")]
    digest: Annotated[str, about("SHA-256 of the copy.")]
    bytes: int
    created: datetime
    note: str


class Versions(Struct, kw_only=True):
    """The versions of a model, ordered by seq."""

    model: str
    seq: Annotated[int, about("Log position: last record of the journal.")]
    kept_from: Annotated[int, about("The first seq that the journal still has.")]
    versions: list[Version]


class RolledBack(Struct, kw_only=True):
    """A completed rollback; the journal continues after it."""

    model: str
    seq: Annotated[int, about("Log position of the rollback record.")]
    to_seq: Annotated[
        int | None, about("Log position of the restored state; null if it is no longer known.")
    ]
    version: str | None
    digest: Annotated[
        str | None, about("SHA-256 of the restored copy; null if it is no longer known.")
    ]
    duplicate: Annotated[bool, about("The same Idempotency-Key was applied before.")]


class Resumed(Struct, kw_only=True):
    """Learning is resumed."""

    model: str
    seq: Annotated[int, about("Log position of the control record.")]
    since: Annotated[
        int | None, about("Log position of the pause; null if the first answer is no longer kept.")
    ]
    rows: Annotated[str, about("What became of the quarantine.", "learn", "drop")]
    learned: Annotated[
        int | None, about("Quarantined rows that were learned; null if that is no longer kept.")
    ]
    duplicate: Annotated[bool, about("The same Idempotency-Key was applied before.")]


class Refit(Struct, kw_only=True):
    """A refit: its options, progress and outcome."""

    model: str
    job: str
    status: Annotated[
        str,
        about(
            "`entering`: being journalled. `refused`: no longer fits the window."
            " `superseded`: another result for the same window came first. `lost`: its process, or"
            " records that it used, were lost.",
            "waiting",
            "running",
            "entering",
            "done",
            "refused",
            "superseded",
            "cancelled",
            "failed",
            "lost",
        ),
    ]
    method: Annotated[str, about("`given`: the weights were set by `PUT weights`.")]
    tol: float
    max_epochs: int
    options: dict[str, Any]
    due: Annotated[
        int | None, about("Periodic refits: number of samples at which it was due; null otherwise.")
    ]
    seq: Annotated[int | None, about("Log position of the state that it was computed from.")]
    rows: Annotated[int | None, about("Rows of its window.")]
    epochs: Annotated[
        int,
        about(
            "Visits to each row so far. Semiparametric models: number of working sets, at the end."
        ),
    ]
    relative_gap_before: Annotated[
        float | None,
        about(
            "Relative gap of the window before the refit, at its dual variables without"
            " averaging. Models that retain no rows: at the served weights, at the end."
        ),
    ]
    relative_gap: Annotated[float | None, about("Relative gap reached so far.")]
    dual_before: float | None
    dual: float | None
    converged: Annotated[bool | None, about("Whether the gap is at most `tol`.")]
    entered_seq: Annotated[int | None, about("Log position of the control record with the result.")]
    retained: Annotated[
        int | None, about("Rows of it in the window at that position; null if none are retained.")
    ]
    dropped: Annotated[
        list[str] | None,
        about(
            "Semiparametric models: basis functions that are zero on the window, or"
            " linearly dependent on earlier ones. Their coefficients are 0."
        ),
    ]
    coefficients_are_unique: Annotated[
        bool | None, about("Whether the rows of the window determine the other coefficients.")
    ]
    reason: Annotated[str | None, about("Why the model did not get the result.")]
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
    """An unlearned sample, and whether the store has been cleaned."""

    model: str
    sample: Annotated[str, about("Id of the sample.")]
    seq: Annotated[
        int, about("Log position of the control record; later states are without the sample.")
    ]
    status: Annotated[
        str,
        about(
            "`cleaning` until older journal records, snapshots and versions are deleted.",
            "cleaning",
            "done",
        ),
    ]


class SourceCursor(Struct, kw_only=True):
    """A source and its cursor."""

    name: str
    next: Annotated[int | str, about("Offset at which its next batch must begin.")]
    rows: Annotated[int, about("Rows of its batches that were accepted.")]
    refused: Annotated[int, about("Rows of its batches that were refused as malformed.")]
    updated_at: Annotated[datetime, about("When the cursor moved, by the worker's clock.")]
    lag: Annotated[
        int | None, about("Rows that the source had after the last batch, as its reader reported.")
    ]


class SourceList(Struct):
    """All sources of a model, by name."""

    sources: list[SourceCursor]
