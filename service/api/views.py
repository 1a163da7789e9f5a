"""Answers of several routes: their schemas and bodies, staleness, members."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Header, Response

from dualstream.service.http.etag import etag_header, not_modified
from dualstream.service.models.model import Model
from dualstream.solvers.protocols.member_learner import MemberView
from dualstream.wire.responses import Counted, Member

IfNoneMatch = Annotated[
    list[str] | None, Header(description="Cached ETag: 304 if the model is still in this state.")
]
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The model is still in the state of If-None-Match."}
}
NULL_REASON = (
    "a number is beyond the range of a float, because a row that counts has an extreme value, label"
    " or weight"
)
"""Why a certificate has a null."""
# Numbers of NumPy become those of Python.
_encode = msgspec.json.Encoder(enc_hook=lambda number: number.item()).encode


def answer(view: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """The answer of a route."""
    return Response(_encode(view) + b"\n", status, headers, media_type="application/json")


async def answer_by_state(
    model: Model, if_none_match: Sequence[str] | None, read: Callable[[], Any]
) -> Response:
    """The answer that `read` makes in a view, with the ETag of its state; or 304."""
    async with model.replica.serving():
        header = etag_header(model)
    if (unchanged := not_modified(header, if_none_match)) is not None:
        return unchanged
    return answer(*await model.replica.view(lambda: (read(), etag_header(model))))


def has_null(numbers: Mapping[str, Any]) -> bool:
    """Whether an answer has null for one of these numbers."""
    return any(
        number is None or (isinstance(number, float) and not math.isfinite(number))
        for number in numbers.values()
    )


def staleness(model: Model) -> dict[str, Any]:
    """The fields of MaybeStale for this model; empty while the store is available."""
    age_s = model.stale_s
    return {} if age_s is None else {"stale": True, "age_seconds": round(age_s, 3)}


def member_of(view: MemberView, model: str | None = None, seq: int | None = None) -> Member:
    """The answer for a member; `model` and `seq` are those of an answer for it alone."""
    return Member(
        name=view.name,
        weight=view.weight,
        since_start=Counted(view.rows, view.loss, view.error_rate),
        rolling=Counted(view.rolling_rows, view.rolling_loss, view.rolling_error_rate),
        resets=view.resets,
        spec=dict(view.spec),
        active=view.active,
        calibration=None
        if view.calibration is None
        else dict(zip(("a", "b"), view.calibration, strict=True)),
        has_certificate=view.has_certificate,
        rows_held_at_most=view.max_rows,
        model=model,
        seq=seq,
    )
