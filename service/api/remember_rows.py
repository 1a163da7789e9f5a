"""Predictions with `remember=true`: parse the query and store the rows for late labels."""

import asyncio
import math

import msgspec

from dualstream.service.api.http import Head, read_flag
from dualstream.service.api.learn_rows import INLINE_BYTES
from dualstream.service.codecs import ListedRows, ParsedRows, check_rows, media_type, parse_json
from dualstream.service.codecs.row_schema import BadRow
from dualstream.service.journal.protocol import Journal
from dualstream.service.models.late_labels import Wait, check_may_wait, packed_label, remember
from dualstream.service.models.model import Model
from dualstream.wire.problems import Problem, quoted
from dualstream.wire.schemas import Predicted, PredictedMany

REMEMBER_PARAMETERS = ("remember", "default_label", "default_after_s")
"""Query parameters of remembered predictions."""

_any = msgspec.json.Decoder()


async def parse_rows_to_remember(model: Model, head: Head, body: bytes) -> ParsedRows:
    """Parse the rows of a remembered prediction; each must have its own id.

    Raises Problem 415 unless the body is JSON, and 400, 413, 422 as for other bodies.
    """
    kind, _ = media_type(head.content_type)
    if kind != "application/json":
        detail = f"{kind} is not supported with remember=true; send application/json"
        raise Problem(415, "unsupported-media-type", detail)
    if len(body) <= INLINE_BYTES:
        parsed = parse_json(model.row_schema, body, False, True)
    else:
        parsed = await asyncio.to_thread(parse_json, model.row_schema, body, False, True)
    check_rows(parsed.count, model.row_schema.limits.rows)
    return parsed


async def remember_rows(
    journal: Journal,
    model: Model,
    parsed: ParsedRows,
    answered: Predicted | PredictedMany,
    wait: Wait,
) -> None:
    """Store the scored rows for their labels, before the answer is sent.

    Raises ModelChanged, TooManyPendingRows, JournalError.
    """
    assert isinstance(parsed.rows, ListedRows)
    of_all = [answered.score] if isinstance(answered, Predicted) else answered.scores
    scores = [of_all[place] for place in parsed.row_indices]
    served = [math.nan if score is None else score for score in scores]
    answered.remembered = await remember(journal, model, parsed.rows, served, answered.seq, wait)


def read_wait(query: dict[str, str], model: Model, longest_s: float) -> Wait | None:
    """The options of a remembered prediction; None for a plain one.

    Raises Problem 422, or 409 if the model does not support late labels.
    """
    if not read_flag(query, "remember"):
        if "default_label" in query or "default_after_s" in query:
            raise Problem(
                422, "invalid-query", "default_label and default_after_s require remember=true"
            )
        return None
    check_may_wait(model)
    if "default_label" not in query:
        if "default_after_s" in query:
            raise Problem(422, "invalid-query", "default_after_s requires default_label")
        return Wait()
    try:
        label = model.row_schema.label(_value(query["default_label"]))
        assert isinstance(label, float)
    except BadRow as bad:
        raise Problem(422, "invalid-query", f"default_label: {bad.reason}") from None
    return Wait(packed_label(label), _wait_s(query.get("default_after_s"), longest_s))


def _value(text: str) -> float | bool | str:
    """A JSON number, true or false as such; any other text as a string."""
    try:
        value = _any.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, float | int | bool) else text


def _wait_s(text: str | None, longest_s: float) -> float:
    try:
        wait_s = longest_s if text is None else float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 < wait_s <= longest_s:
        detail = f"default_after_s must be a number in (0, {longest_s:g}], got {quoted(text)}"
        raise Problem(422, "invalid-query", detail)
    return wait_s
