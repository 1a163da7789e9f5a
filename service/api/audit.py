"""GET /audit: the audit log of changes to models."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from msgspec import structs
from pydantic import BaseModel, Field

from dualstream.service.api.access import key_of
from dualstream.service.api.common import registry_of
from dualstream.service.journal.audit import POSITION
from dualstream.service.journal.protocol import Audited, Journal, JournalError, UnknownModel
from dualstream.service.journal.record import RecordError
from dualstream.service.models.model import Model
from dualstream.service.models.registry import check_model_id
from dualstream.service.replica.controls import KINDS
from dualstream.wire.problems import Problem, unknown_model

router = APIRouter(prefix="/audit", tags=["audit"])

PAGE = 1000


class ChangeView(BaseModel):
    """One change to one model."""

    place: str = Field(description="Position in the log: the `after` of the next request.")
    time: datetime = Field(description="By the store's clock.")
    model: str
    incarnation: str = Field(description="Identifies one of several models that had this id.")
    seq: int = Field(
        description="Log position: of the control record, otherwise of the last record."
    )
    action: str = Field(
        description="`create`, `replace`, `delete`, `version`, `version_delete`, `refit_begin`,"
        " `refit_cancel`, `source_set`, `source_forget`, or a kind of control record: `rollback`,"
        " `refit`, `unlearn`..."
    )
    by: Literal["request", "server"] = Field(
        description="`server` for changes without a request, by a rule or a clean-up."
    )
    key: str | None = Field(description="Name of the API key; null on a server without keys.")
    key_id: str | None = Field(description="First 16 hexadecimal digits of the key's digest.")
    detail: dict[str, Any]
    outcome: Literal["done", "refused", "unknown"] = Field(
        description="`refused` if the change was not possible. `unknown` if the outcome of a"
        " control record is not kept, or the model is not in memory; a request with `model` loads"
        " it."
    )
    reason: str | None = Field(description="Reason of a refusal.")


class ChangePage(BaseModel):
    """Changes, the oldest first."""

    changes: list[ChangeView]
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


@router.get(
    "", response_model=ChangePage, responses={404: {"description": "No model ever had this id."}}
)
async def list_changes(
    request: Request,
    model: Annotated[str | None, Query(description="Return changes to this model only.")] = None,
    after: Annotated[
        str,
        Query(
            description="A `place`: return changes after this position.",
            pattern=f"^({POSITION.pattern})?$",
            max_length=160,
        ),
    ] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
) -> ChangePage:
    """Changes to models, also to deleted ones, oldest first."""
    registry = registry_of(request)
    journal = registry.journal
    if model is not None:
        check_model_id(model)
    found = await _visible(request, journal, model, after, limit + 1)
    if model is not None and not found and not after:
        await _check_known(journal, model)
    if model is not None and any(one.change.action in KINDS for one in found):
        with suppress(Problem, JournalError, RecordError):  # deleted since, or not readable
            await (await registry.get(model)).refresh()
    shown = [_view(one, registry.find(one.model)) for one in found[:limit]]
    return ChangePage(changes=shown, next=shown[-1].place if len(found) > limit else None)


async def _visible(
    request: Request, journal: Journal, model: str | None, after: str, count: int
) -> Sequence[Audited]:
    """The next `count` changes of models that the request's key matches."""
    key = key_of(request)
    if model is not None or key is None or key.sees_all:
        return await journal.audit(model, after or None, count)
    found: list[Audited] = []
    while len(found) < count and (page := await journal.audit(None, after or None, PAGE)):
        found += [one for one in page if key.may_see(one.model)]
        after = page[-1].place
    return found[:count]


async def _check_known(journal: Journal, model: str) -> None:
    """Raise Problem 404 unless the model exists: models older than the log have no entries."""
    try:
        await journal.get(model)
    except UnknownModel:
        raise unknown_model(model) from None


def _view(one: Audited, model: Model | None) -> ChangeView:
    outcome, reason = _outcome(one, model)
    change = structs.asdict(one.change)
    del change["refusal"]
    return ChangeView(
        outcome=outcome,
        reason=reason,
        place=one.place,
        time=datetime.fromtimestamp(one.time_ms / 1000, UTC),
        model=one.model,
        incarnation=one.incarnation,
        seq=one.seq,
        **change,
    )


def _outcome(
    one: Audited, model: Model | None
) -> tuple[Literal["done", "refused", "unknown"], str | None]:
    """Whether the change was made, and if not the reason. Only controls can be refused later."""
    if one.change.refusal is not None:
        return "refused", one.change.refusal
    if one.change.action not in KINDS:
        return "done", None
    if model is None or model.record.incarnation != one.incarnation:
        return "unknown", None
    kept = model.replica.control_outcomes.at(one.seq)
    if kept is None or kept.kind != one.change.action:
        return "unknown", None
    return ("done", None) if kept.refusal is None else ("refused", kept.refusal)
