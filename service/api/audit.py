"""GET /audit: the audit log of changes to models."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from msgspec import structs

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import answer
from dualstream.service.http.access import key_of
from dualstream.service.http.openapi import returns
from dualstream.service.journal.audit import POSITION
from dualstream.service.journal.protocol import Audited, Journal, JournalError, UnknownModel
from dualstream.service.journal.record import RecordError
from dualstream.service.models.model import Model
from dualstream.service.models.problems import unknown_model
from dualstream.service.models.registry import check_model_id
from dualstream.service.replica.controls import Kinds
from dualstream.wire.changes import Change, ChangePage
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/audit", tags=["audit"])

PAGE = 1000


@router.get(
    "", responses={200: returns(ChangePage), 404: {"description": "No model ever had this id."}}
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
) -> Response:
    """Changes to models, also to deleted ones, oldest first."""
    registry = registry_of(request)
    journal, kinds = registry.journal, registry.deps.features.kinds
    if model is not None:
        check_model_id(model)
    changes = await _visible(request, journal, model, after, limit + 1)
    if model is not None and not changes and not after:
        await _check_known(journal, model)
    if model is not None and any(one.change.action in kinds for one in changes):
        with suppress(Problem, JournalError, RecordError):  # deleted since, or not readable
            await (await registry.get(model)).refresh()
    shown = [_view(one, registry.find(one.model), kinds) for one in changes[:limit]]
    return answer(ChangePage(shown, shown[-1].place if len(changes) > limit else None))


async def _visible(
    request: Request, journal: Journal, model: str | None, after: str, count: int
) -> Sequence[Audited]:
    """The next `count` changes of models that the request's key matches."""
    key = key_of(request)
    if model is not None or key is None or key.sees_all:
        return await journal.audit(model, after or None, count)
    visible: list[Audited] = []
    while len(visible) < count and (page := await journal.audit(None, after or None, PAGE)):
        visible += [one for one in page if key.may_see(one.model)]
        after = page[-1].place
    return visible[:count]


async def _check_known(journal: Journal, model: str) -> None:
    """Raise Problem 404 unless the model exists: models older than the log have no entries."""
    try:
        await journal.get(model)
    except UnknownModel:
        raise unknown_model(model) from None


def _view(one: Audited, model: Model | None, kinds: Kinds) -> Change:
    outcome, reason = _outcome(one, model, kinds)
    change = structs.asdict(one.change)
    del change["refusal"]
    return Change(
        outcome=outcome,
        reason=reason,
        place=one.place,
        time=datetime.fromtimestamp(one.time_ms / 1000, UTC),
        model=one.model,
        incarnation=one.incarnation,
        seq=one.seq,
        **change,
    )


def _outcome(one: Audited, model: Model | None, kinds: Kinds) -> tuple[str, str | None]:
    """Whether the change was made, and if not the reason. Only controls can be refused later."""
    if one.change.refusal is not None:
        return "refused", one.change.refusal
    if one.change.action not in kinds:
        return "done", None
    if model is None or model.record.incarnation != one.incarnation:
        return "unknown", None
    kept = model.replica.control_outcomes.at(one.seq)
    if kept is None or kept.kind != one.change.action:
        return "unknown", None
    return ("done", None) if kept.refusal is None else ("refused", kept.refusal)
