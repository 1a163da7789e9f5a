"""Answers of several routes: their schemas and bodies, staleness, members."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Response

from dualstream.service.models.model import Model
from dualstream.solvers.protocols.member_learner import MemberView
from dualstream.wire.responses import Counted, Member

NULL_REASON = (
    "a number is beyond the range of a float, because a row that counts has an extreme value, label"
    " or weight"
)
"""Why a certificate has a null."""
# Numbers of NumPy become those of Python.
_encode = msgspec.json.Encoder(enc_hook=lambda number: number.item()).encode


def answer(view: Any, base: Response | None = None, status: int = 200) -> Response:
    """The answer of a route, with the headers that are set in `given`."""
    response = Response(_encode(view), status, media_type="application/json")
    if base is not None:
        response.headers.update(base.headers)
    return response


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
        model=model,
        seq=seq,
    )
