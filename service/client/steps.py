"""What takes several calls: a generator that yields each and is sent its answer, or its refusal.

Both clients drive them: one by calling, the other by awaiting.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from service.client import routes
from service.client.ahead import made_ahead
from service.client.answers import (
    Change,
    ChangePage,
    Learned,
    LearnedStream,
    Model,
    ModelPage,
    Predicted,
    PredictedMany,
)
from service.client.bodies import Body
from service.client.calls import JSON, NDJSON, Call
from service.client.errors import BadInput, ClientError, Refused
from service.client.files import Piece, RowFile
from service.client.values import plain, sample_line
from service.problems import MAX_ERRORS
from service.totals import Totals

R = TypeVar("R")
PRECONDITION_FAILED = 412
Steps = Generator[Call[Any], Any, R]


@dataclass(frozen=True)
class Ended(Generic[R]):
    """The steps are done."""

    result: R


def resume(work: Steps[R], answer: Any = None) -> Call[Any] | Ended[R]:
    """Send the last call's answer, or raise its ClientError there; the next call, or the end."""
    try:
        return work.throw(answer) if isinstance(answer, ClientError) else work.send(answer)
    except StopIteration as ended:
        return Ended(ended.value)


@dataclass(frozen=True)
class Progress:
    """How far a learn has come, after each request."""

    rows: int
    """Sent so far, good and bad."""
    told: Learned
    """Of this request alone; places of rows count over all."""
    piece: Piece | None = None
    """Of a file: what this request has sent of it."""


OnProgress = Callable[[Progress], None]


def both(*listeners: OnProgress | None) -> OnProgress:
    """One that calls all of them that are there."""

    def call(progress: Progress) -> None:
        for listener in listeners:
            if listener is not None:
                listener(progress)

    return call


def learn_single(model: str, sample: Mapping[str, Any], key: str | None) -> Steps[Learned]:
    """One sample; its score is in the answer."""
    body = sample_line(sample)
    told: Learned = yield routes.learn(model, JSON, body, key or routes.new_key())
    return told


def learn_bodies(
    model: str,
    bodies: Iterable[Body],
    key: str | None,
    scores: bool = False,
    on_progress: OnProgress | None = None,
) -> Steps[LearnedStream]:
    """Body after body, each under the key and its number; the sums of their answers.

    Raises Refused where no row of all was taken, BadInput where there was none.
    """
    key, totals, all_scores = key or routes.new_key(), Totals(), list[float | None]()
    first: Refused | None = None
    for number, body in enumerate(bodies):
        sent = totals.rows
        try:
            told = yield routes.learn(model, NDJSON, body.content, f"{key}:{number}", scores)
        except Refused as refused:
            if refused.kind != "invalid-rows":
                raise
            first = first or refused
            told = none_of(model, refused, totals.seq)
        totals.add_at(told, body.rows)
        all_scores += told.scores or [None] * body.rows
        if on_progress is not None:
            on_progress(Progress(sent + body.rows, told))
    if not totals.rows:
        raise BadInput("there is no row")
    if not totals.seq and first is not None:
        raise first
    summed = totals.told(model)
    summed.scores = all_scores if scores else UNSET
    return summed


def learn_file(
    model: str, file: RowFile, skip: int = 0, on_progress: OnProgress | None = None
) -> Steps[LearnedStream]:
    """Chunk after chunk but the first `skip`, each under its own key; the sums of their answers.

    Raises Refused, also where the first chunk has no good row: then the rest is not tried; and
    BadInput where there is no row, or fewer chunks than `skip`.
    """
    totals = Totals()
    found = 0
    with closing(made_ahead(file.pieces())) as pieces:
        for piece in pieces:
            found += 1
            if piece.number < skip:
                continue
            try:
                told = yield routes.learn(model, file.kind, piece.content, piece.key)
            except Refused as refused:
                if refused.kind == "idempotency-key-reused":
                    raise _changed(file, piece, refused) from None
                if refused.kind != "invalid-rows" or not totals.seq:
                    raise
                told = none_of(model, refused, totals.seq)
            totals.add_at(told, told.sent(), piece.line)
            if on_progress is not None:
                on_progress(Progress(totals.rows, told, piece))
    if not found:
        raise BadInput(f"{file.name}: there is no row")
    if found < skip:
        raise BadInput(f"{file.name}: {skip} chunks cannot be left out, it has {found}")
    return totals.told(model)


def _changed(file: RowFile, piece: Piece, refused: Refused) -> Refused:
    detail = (
        f"{file.name}: its chunk {piece.number} was learned with another content under the key"
        f" {piece.key!r}: the file has changed, or the key is another one's"
    )
    return Refused(refused.problem | {"detail": detail}, refused.status)


def none_of(model: str, refused: Refused, seq: int) -> Learned:
    """The answer to a request of which no row was taken, as if it had been one among others."""
    rejected = int(refused.problem.get("rejected") or 0)
    errors = [dict(error) for error in refused.errors]
    return Learned(model, seq, 0, 0, 0, None, rejected, False, errors=errors)


def predict_single(model: str, x: Any, query: Mapping[str, Any]) -> Steps[Predicted]:
    """One row."""
    told: Predicted = yield routes.predict_single(model, sample_line({"x": x}), **query)
    return told


def predict_bodies(
    model: str, bodies: Iterable[Body], query: Mapping[str, Any]
) -> Steps[PredictedMany]:
    """The answers of all bodies as one; `seq` is that of the oldest state that scored."""
    answers: list[PredictedMany] = []
    for body in bodies:
        answers.append((yield from predict_body(model, NDJSON, body, query)))
    if not answers:
        raise BadInput("there is no row")
    return _joined(answers)


def predict_body(
    model: str, kind: str, body: Body, query: Mapping[str, Any]
) -> Steps[PredictedMany]:
    """The scores of a body; of one without a good row, as many nulls."""
    told: PredictedMany
    try:
        told = yield routes.predict(model, kind, body.content, **query)
    except Refused as refused:
        if refused.kind != "invalid-rows" or not refused.problem.get("rejected"):
            raise
        told = nothing_scored(model, refused)
    return told


def predict_piece(
    model: str, file: RowFile, piece: Piece, query: Mapping[str, Any]
) -> Steps[PredictedMany]:
    """The scores of a chunk of a file; of JSON with a single row, too."""
    body = Body(piece.content, 0)
    if file.kind != JSON:
        return (yield from predict_body(model, file.kind, body, query))
    told = yield routes.predict_json(model, piece.content, **query)
    if "scores" in told:
        return msgspec.convert(told, PredictedMany)
    one = msgspec.convert(told, Predicted)
    return PredictedMany(model, one.seq, [one.score], [one.label], [one.probability])


def nothing_scored(model: str, refused: Refused) -> PredictedMany:
    """As many nulls as rows were refused."""
    count = refused.problem["rejected"]
    errors = [dict(error) for error in refused.errors]
    nothing: list[Any] = [None] * count
    return PredictedMany(model, 0, nothing, [*nothing], [*nothing], rejected=count, errors=errors)


def predict_waiting(
    model: str, samples: Iterable[Mapping[str, Any]], query: Mapping[str, Any]
) -> Steps[PredictedMany]:
    """Rows that wait for their labels: one body, remembered whole."""
    try:
        label = plain(query["default_label"])
        # A label, and no flag that is not set.
        query = {**query, "default_label": "false" if label is False else label}
    except TypeError as wrong:
        raise BadInput(f"the default label: {wrong}") from None
    lines = b",".join(sample_line(sample, row) for row, sample in enumerate(samples))
    body = b'{"samples":[' + lines + b"]}"
    told: PredictedMany = yield routes.predict(model, JSON, body, remember=True, **query)
    return told


def create(model: str, spec: routes.Spec | None, replace: bool) -> Steps[Model]:
    """In place of one that is there, or anew."""
    created: Model
    if replace:
        try:
            created = yield routes.create(model, spec, replace=True)
            return created
        except Refused as refused:
            if refused.status != PRECONDITION_FAILED:
                raise
    created = yield routes.create(model, spec, replace=False)
    return created


def all_models() -> Steps[list[Model]]:
    """Page after page."""
    found: list[Model] = []
    after: str | None = ""
    while after is not None:
        page: ModelPage = yield routes.page(after)
        found += page.models
        after = page.next
    return found


def all_changes(model: str | None, after: str | None) -> Steps[list[Change]]:
    """Page after page."""
    found: list[Change] = []
    place: str | None = after or ""
    while place is not None:
        page: ChangePage = yield routes.audit(model, place)
        found += page.changes
        place = page.next
    return found


def _joined(answers: list[PredictedMany]) -> PredictedMany:
    whole = answers[0]
    for more in answers[1:]:
        for error in more.errors or ():
            error["index"] += len(whole.scores)
        whole.seq = min(whole.seq, more.seq)
        whole.scores += more.scores
        whole.labels += more.labels
        if whole.probabilities is not None and more.probabilities is not None:
            whole.probabilities += more.probabilities
        whole.rejected = (whole.rejected or 0) + (more.rejected or 0) or UNSET
        whole.errors = [*(whole.errors or ()), *(more.errors or ())][:MAX_ERRORS] or UNSET
        whole.stale = whole.stale or more.stale
        whole.age_seconds = max(whole.age_seconds or 0.0, more.age_seconds or 0.0) or UNSET
    return whole
