"""Late labels: predictions with `remember=true`, and POST /models/{id}/labels."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from msgspec import UNSET, Raw, Struct

from dualstream.service.api.common import IdempotencyKey, registry_of
from dualstream.service.api.request_rows import fingerprint_of, is_parsed_inline
from dualstream.service.api.responses import first_errors, learned_before, rejection_reasons
from dualstream.service.codecs import ListedRows, ParsedRows, check_rows, media_type, parse_json
from dualstream.service.codecs.json_exact import check_names
from dualstream.service.codecs.row_schema import BadRow
from dualstream.service.codecs.text_fields import label_of
from dualstream.service.concurrency import run_short_here
from dualstream.service.http.rate_limits import admit_rows
from dualstream.service.http.request_body import read_body
from dualstream.service.http.request_head import (
    Head,
    invalid_source,
    read_flag,
    read_head,
    stored_key_of,
)
from dualstream.service.http.send import json_line
from dualstream.service.journal.protocol import Journal
from dualstream.service.models.late_labels import (
    Label,
    Labelled,
    ServedRows,
    Wait,
    check_may_wait,
    learn_labels,
    packed_label,
    remember,
)
from dualstream.service.models.model import Model
from dualstream.service.replica.first_responses import Answer
from dualstream.service.replica.requests import Receipt
from dualstream.service.replica.row_sums import (
    Column,
    are_wrong,
    count,
    indices_where,
    mean,
    where_not,
)
from dualstream.solvers import Batch
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import Problem, RowError, quoted
from dualstream.wire.schemas import Duplicate, Learned, Predicted, PredictedMany

if TYPE_CHECKING:
    from dualstream.service.models.late_labels import Kept

router = APIRouter(prefix="/models/{model_id}", tags=["late labels"])

_CONFLICT = "sample {!r} was learned with another label"
_UNREVISED = (
    _CONFLICT + ", which cannot be revised: it was sent without revise=true or REMEMBER_S ago; or "
    "another request has revised it just now, then send the label again"
)
INLINE_LABEL_BYTES = 8 * 1024
"""A longer body of labels is read, and answered, in a thread."""
LABEL_EXAMPLES: dict[str, Any] = {
    "one label": {"id": "event-1", "y": 1},
    "labels": {"labels": [{"id": "event-1", "y": 1}, {"id": 7, "y": 0}]},
}


class OneLabel(Struct, forbid_unknown_fields=True):
    """The label of a remembered row, by the row's id."""

    id: str | int
    y: float | int | bool | str | None


class ManyLabels(Struct, forbid_unknown_fields=True):
    """Labels in learning order."""

    labels: list[Raw]


_one, _many = msgspec.json.Decoder(OneLabel), msgspec.json.Decoder(ManyLabels)
# Overlong numbers become infinity, so that such a label is refused alone, as in rows.
_any = msgspec.json.Decoder(float_hook=float)


@router.post(
    "/labels",
    response_model=None,
    responses={
        200: {"description": "As for `learn`; loss and mistakes use the served scores."},
        404: {"description": "No row waits for any of these labels."},
        410: {"description": "All rows of these labels have expired."},
        429: {"description": "The model is too large, or its quarantine is full."},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"type": "object"},
                    "examples": {name: {"value": one} for name, one in LABEL_EXAMPLES.items()},
                }
            },
        }
    },
)
async def learn_late_labels(
    model_id: str,
    request: Request,
    idempotency_key: IdempotencyKey = None,
    revise: Annotated[
        bool, Query(description="Keep the rows, and let labels replace earlier ones.")
    ] = False,
) -> Response:
    """Learn labels of rows that were predicted with `remember=true`, each once.

    Loss and mistakes use the scores as they were served. A label that was learned before is a
    duplicate. A label of a row that is unknown, expired or labelled differently is an error of that
    label only. With `revise=true` the rows stay in the store, and a later label with `revise=true`
    replaces the one before.
    """
    registry = registry_of(request)
    head = read_head(request.scope)
    model = await registry.get(model_id)
    body = await read_body(request.receive, head, registry.settings.max_body_bytes, request.scope)
    if head.source is not None:
        raise invalid_source("only learn accepts it; leave it out")
    key = stored_key_of(idempotency_key)
    is_short = len(body) <= INLINE_LABEL_BYTES
    requested = await run_short_here(is_short, _LabelRequest, model, body, revise)
    await admit_rows(request.scope, requested.count)
    mark = fingerprint_of(head, {"revise": "true"} if revise else {}, body) if key else None
    labelled = await learn_labels(registry.journal, model, requested.labels, key, mark, revise)
    for number, delay_s in enumerate(labelled.delays_s, 1):
        registry.counters.saw_label(model.record.id, delay_s)
        if number % 1000 == 0:
            await asyncio.sleep(0)  # let the event loop serve other requests
    registry.counters.saw_revised(labelled.revised)
    headers = {"dualstream-durability": request.app.state.startup.durability.decode()}
    if labelled.answer is not None:
        headers["idempotency-replayed"] = "true"
    answer = json_line(await run_short_here(is_short, requested.answer, labelled))
    return Response(answer, media_type="application/json", headers=headers)


class _LabelRequest:
    """The labels of one request, valid and invalid, and the answer to it."""

    def __init__(self, model: Model, body: bytes, revises: bool) -> None:
        """Raises Problem 400 for invalid JSON, 413 for too many labels, 422 for none."""
        self._model, self._revises = model, revises
        self.labels: list[Label] = []
        self._bad: list[RowError] = []
        labels, self._is_single = _parsed(body)
        self.count = len(labels)
        check_rows(len(labels), model.row_schema.limits.rows)
        for index, raw in enumerate(labels):
            try:
                self.labels.append(_label(model, index, raw))
            except BadRow as bad:
                self._bad.append(RowError(index, self._pointer(index) + bad.pointer, bad.reason))
        self._ids = {label.index: label.id for label in self.labels}
        if not labels:
            raise Problem(422, "invalid-rows", "the request has no labels; send at least one")

    def answer(self, labelled: Labelled) -> Learned:
        """The answer, as for `learn`. Raises Problem if no label was learned, now or before."""
        if labelled.repeats is not None:
            return self._again(labelled, labelled.repeats)
        receipt, labels = labelled.receipt, labelled.found
        duplicates, conflicts = list(labelled.duplicates), list(labelled.conflicts)
        if receipt is not None:
            duplicates += [(labels[row].index, seq) for row, seq in receipt.duplicates]
            conflicts += [(labels[row].index, 0) for row in receipt.conflicts]
        rejected = [] if receipt is None else _rejected(self._model, receipt, labels)
        errors = self._errors(labelled, conflicts, rejected)
        taken = 0 if receipt is None else receipt.position.count
        if (
            receipt is not None and taken and receipt.scores is None
        ):  # journalled, and rebuilt since
            model, seq = self._model.record.id, receipt.position.seq
            return Learned(model, seq, taken, None, None, None, None, False)
        if not taken and not duplicates:
            self._refuse(labelled, errors)
        # Without new rows, seq is the largest one of the duplicates.
        seq = max([0 if receipt is None else receipt.position.seq, *(seq for _, seq in duplicates)])
        losses: Column = [] if receipt is None else _learned(receipt, receipt.losses)
        return Learned(
            model=self._model.record.id,
            seq=seq,
            count=taken,
            learned=len(losses),
            mistakes=self._mistakes(labelled),
            loss=mean(losses),
            rejected=len(errors),
            duplicate=not taken and not errors,
            duplicates=_listed(duplicates),
            errors=first_errors(errors),
        )

    def _again(self, labelled: Labelled, repeats: tuple[int, int]) -> Learned:
        """The first answer to a repeated request, or as much of it as is kept."""
        (seq, count), answer = repeats, labelled.answer
        if answer is None:
            return Learned(self._model.record.id, seq, count, None, None, None, None, True)
        rejected = _rejected_first(self._model, answer, labelled.journalled)
        errors = self._errors(labelled, labelled.conflicts, rejected)
        refused = len(errors) + (0 if answer.rows is not None else answer.count - answer.learned)
        answered = learned_before(self._model, answer, refused, True)
        answered.duplicates = _listed(labelled.duplicates)
        answered.errors = first_errors(errors)
        return answered

    def _errors(
        self,
        labelled: Labelled,
        conflicts: Sequence[tuple[int, int]],
        rejected: Sequence[tuple[int, str]],
    ) -> list[RowError]:
        """Errors of all labels that are neither learned nor duplicates, in request order."""
        errors = list(self._bad)
        errors += [RowError(index, self._pointer(index), reason) for index, reason in rejected]
        for indices, reason in (
            ([index for index, _ in conflicts], _UNREVISED if self._revises else _CONFLICT),
            (labelled.unknown, "unknown-sample: no row waits for the label of {!r}"),
            (labelled.expired, "expired-sample: {!r} waited for its label too long"),
        ):
            errors += [
                RowError(index, self._pointer(index) + "/id", reason.format(self._ids[index]))
                for index in indices
            ]
        errors.sort(key=lambda error: error.index)
        return errors

    def _refuse(self, labelled: Labelled, errors: Sequence[RowError]) -> None:
        """Raise the Problem of a request without an accepted label."""
        status, slug = 422, "invalid-rows"
        if len(labelled.unknown) == len(errors):
            status, slug = 404, "unknown-sample"
        elif len(labelled.expired) == len(errors):
            status, slug = 410, "expired-sample"
        detail = f"{plural(len(errors), 'label')} refused; the first: {errors[0].reason}"
        raise Problem(status, slug, detail, errors, rejected=len(errors))

    def _mistakes(self, labelled: Labelled) -> int | None:
        if self._model.row_schema.task == "regression":
            return None
        if labelled.receipt is None:
            return 0
        receipt = labelled.receipt
        rows = range(len(labelled.found)) if receipt.rows is None else receipt.rows
        labels = [labelled.found[row].y for row in rows]
        if receipt.predicted is not None:
            wrong: Column = [p != y for p, y in zip(receipt.predicted, labels, strict=True)]
        else:
            wrong = are_wrong([] if receipt.scores is None else receipt.scores, labels)
        return count(_learned(receipt, wrong))

    def _pointer(self, index: int) -> str:
        return "" if self._is_single else f"/labels/{index}"


def _parsed(body: bytes) -> tuple[list[bytes], bool]:
    """The JSON of each label, and whether the body is a single label."""
    try:
        content = _any.decode(body)
        if isinstance(content, dict) and "labels" in content:
            labels = [bytes(raw) for raw in _many.decode(body).labels]
            if body.count(b":") != 1 + sum(raw.count(b":") for raw in labels):
                check_names(body)
            return labels, False
    except BadRow as bad:
        raise Problem(422, "invalid-body", bad.reason) from None
    except msgspec.ValidationError as wrong:
        raise Problem(422, "invalid-body", str(wrong)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise Problem(400, "malformed-body", str(broken)) from None
    if not isinstance(content, dict):
        detail = 'send {"id": ..., "y": ...} or {"labels": [{"id": ..., "y": ...}, ...]}'
        raise Problem(422, "invalid-body", detail)
    return [body], True


def _label(model: Model, index: int, raw: bytes) -> Label:
    """Raises BadRow."""
    try:
        label = _one.decode(raw)
    except msgspec.ValidationError as wrong:
        raise BadRow("", str(wrong)) from None
    if raw.count(b":") > 2:
        check_names(raw)
    return Label(index, model.row_schema.id(label.id), model.row_schema.label(label.y))


def _learned(receipt: Receipt, column: Column | None) -> Column:
    """The column without rejected rows."""
    return [] if column is None else where_not(receipt.rejected, column)


def _rejected(model: Model, receipt: Receipt, labels: Sequence[Label]) -> list[tuple[int, str]]:
    """Index in the request and reason of labels that were journalled and not learned."""
    rows = range(len(labels)) if receipt.rows is None else receipt.rows
    indices = indices_where(receipt.rejected)
    refused = [labels[rows[at]] for at in indices]
    texts = [label.y for label in refused]
    why = rejection_reasons(model, len(rows), indices, texts, receipt.set_aside)
    return [(label.index, reason) for label, reason in zip(refused, why, strict=True)]


def _rejected_first(
    model: Model, answer: Answer, journalled: Mapping[int, Label]
) -> list[tuple[int, str]]:
    """`_rejected` of a repeated request."""
    if answer.rows is None:
        return []
    numbers = [number for number in answer.rows.rejected if number in journalled]
    refused = [journalled[number] for number in numbers]
    texts = [label.y for label in refused]
    why = rejection_reasons(model, answer.count, numbers, texts, answer.rows.set_aside)
    return [(label.index, reason) for label, reason in zip(refused, why, strict=True)]


def _listed(duplicates: Sequence[tuple[int, int]]) -> Any:
    return [Duplicate(index, seq) for index, seq in sorted(duplicates)] or UNSET


async def parse_rows_to_remember(model: Model, head: Head, body: bytes) -> ParsedRows:
    """Parse the rows of a remembered prediction; each must have its own id.

    Raises Problem 415 unless the body is JSON, and 400, 413, 422 as for other bodies.
    """
    kind, _ = media_type(head.content_type)
    if kind != "application/json":
        detail = f"{kind} is not supported with remember=true; send application/json"
        raise Problem(415, "unsupported-media-type", detail)
    is_short = is_parsed_inline(model.row_schema, body)
    parsed = await run_short_here(is_short, parse_json, model.row_schema, body, False, True)
    check_rows(parsed.count, model.row_schema.limits.rows)
    return parsed


async def remember_rows(
    journal: Journal,
    model: Model,
    parsed: ParsedRows,
    answered: Predicted | PredictedMany,
    columns: Batch | None,
    kept: "Sequence[Kept]",
    wait: Wait,
) -> None:
    """Store the scored rows for their labels, before the answer is sent.

    columns   the rows as the learner saw them, of a model whose columns depend on earlier rows
    kept      what consecutive rows keep besides their scores

    Raises Problem 409 if there are too many classes, ModelChanged, TooManyPendingRows,
    JournalError.
    """
    assert isinstance(parsed.rows, ListedRows)
    of_all = [answered.score] if isinstance(answered, Predicted) else answered.scores
    scores = [of_all[index] for index in parsed.row_indices]
    # Rows without a served score have NaN, so that of a diverged model is infinite.
    served = [math.inf if score is None else score for score in scores]
    waiting = ServedRows(parsed.rows, served, answered.seq, columns, kept)
    answered.remembered = await remember(journal, model, waiting, wait)


def read_wait(query: dict[str, str], model: Model, longest_s: float) -> Wait | None:
    """The options of a remembered prediction; None for a plain one.

    Raises Problem 422, or 409 if the model does not support late labels.
    """
    if not read_flag(query, "remember"):
        if not {"default_label", "default_after_s", "revise"}.isdisjoint(query):
            detail = "default_label, default_after_s and revise require remember=true"
            raise Problem(422, "invalid-query", detail)
        return None
    check_may_wait(model)
    if "default_label" not in query:
        if not {"default_after_s", "revise"}.isdisjoint(query):
            detail = "default_after_s and revise require default_label"
            raise Problem(422, "invalid-query", detail)
        return Wait()
    try:
        is_named = model.row_schema.class_names is not None
        is_class = model.row_schema.task == "multiclass"
        label = model.row_schema.label(label_of(query["default_label"], is_named or is_class))
    except BadRow as bad:
        raise Problem(422, "invalid-query", f"default_label: {bad.reason}") from None
    wait_s = _wait_s(query.get("default_after_s"), longest_s)
    return Wait(packed_label(label), wait_s, read_flag(query, "revise"))


def _wait_s(text: str | None, longest_s: float) -> float:
    try:
        wait_s = longest_s if text is None else float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 < wait_s <= longest_s:
        detail = f"default_after_s must be a number in (0, {longest_s:g}], got {quoted(text)}"
        raise Problem(422, "invalid-query", detail)
    return wait_s
