"""Answers of learn and predict: new and repeated requests, row errors."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import UNSET, UnsetType

from dualstream.service.codecs import ParsedRows, as_batch
from dualstream.service.http.etag import etag_of
from dualstream.service.journal.protocol import KeyEntry, PartPosition
from dualstream.service.models.late_labels import Kept
from dualstream.service.models.model import Model
from dualstream.service.models.problems import key_reused
from dualstream.service.observability.tracing import start_child
from dualstream.service.replica.first_responses import Answer, answer_without_rows
from dualstream.service.replica.parts import AnswerField, Scored
from dualstream.service.replica.requests import Receipt, Request
from dualstream.service.replica.row_sums import (
    Column,
    are_wrong,
    count,
    indices_where,
    mean,
    where_not,
)
from dualstream.solvers import Batch
from dualstream.solvers.protocols.learner import predict_waiting
from dualstream.solvers.protocols.served_form import classes_of
from dualstream.solvers.rows.class_names import MAX_CLASSES, class_label
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import MAX_ERRORS, Problem, RowError, quoted
from dualstream.wire.schemas import Duplicate, Learned, Predicted, PredictedMany, TopClass

if TYPE_CHECKING:
    from dualstream.service.models.versions import LoadedVersion
    from dualstream.service.replica.replica import Replica
    from dualstream.solvers.jit import Floats
    from dualstream.solvers.online.class_choice import ClassScores
    from dualstream.solvers.online.class_model import ClassModel

NOT_FINITE = "the update would not be finite"
NO_ROWS = "the request has no rows; send at least one"
PAUSED = "paused: the row waits in the journal until the model is resumed"
_ID_REUSED = "the id was used for another sample"


async def learned_of(
    model: Model, parsed: ParsedRows, request: Request, receipt: Receipt, wants_scores: bool
) -> tuple[Learned, bool]:
    """The answer to a learn, and whether it repeats the first answer to the same key.

    Raises Problem 422 if the key was used with another request, RowsRefused if no row was accepted.
    """
    if receipt.position.conflict:
        raise key_reused()
    if receipt.scores is not None:
        model.mark_names_journalled(parsed, receipt)
        return answer_new(model, parsed, receipt, wants_scores), False
    answer = first_answer(model, receipt)
    skipped = SkippedRows(request, answer)
    if skipped.keys:
        skipped.explain(await model.known(skipped.keys))
    return answer_repeat(model, parsed, receipt, wants_scores, skipped), answer is not None


def answer_new(
    model: Model,
    parsed: ParsedRows,
    receipt: Receipt,
    with_scores: bool,
    may_be_empty: bool = False,
) -> Learned:
    """The answer to a new request. Raises Problem 422 if no row was accepted, unless
    `may_be_empty`."""
    assert receipt.scores is not None and receipt.losses is not None
    if (
        receipt.position.count == 1 == parsed.count
        and receipt.rejected is not None
        and not receipt.rejected[0]
    ):
        (label,) = parsed.labels
        predicted = receipt.predicted[0] if receipt.predicted else None
        score, loss = float(receipt.scores[0]), float(receipt.losses[0])
        answered = learned_row(model, receipt.position.seq, label, score, loss, predicted)
        answered.scores = answered.scores if with_scores else UNSET
        return answered
    rejected = indices_where(receipt.rejected)
    losses = where_not(receipt.rejected if rejected else None, receipt.losses)
    position, mistakes = receipt.position, _mistakes(model, parsed, receipt, rejected)
    answer = Answer(position.seq, position.count, len(losses), mistakes, mean(losses), None)
    rows = range(len(parsed.row_indices)) if receipt.rows is None else receipt.rows
    errors = [*parsed.errors, *_conflicts(parsed, receipt.conflicts)]
    if not rows and not receipt.duplicates and not may_be_empty:
        raise refusal(parsed, errors)
    errors += _not_learned(model, parsed, rows, rejected, receipt.set_aside)
    is_duplicate = bool(receipt.duplicates) and not rows and not receipt.conflicts
    answered = learned_before(model, answer, len(errors), is_duplicate)
    _add_rows(answered, parsed, rows, receipt.scores if with_scores else UNSET, receipt.duplicates)
    answered.errors = first_errors(errors)
    answered.warnings = parsed.warnings or UNSET
    return answered


def learned_row(
    model: Model, seq: int, label: float | str, score: float, loss: float, predicted: str | None
) -> Learned:
    """The answer to a request of one row that was learned.

    predicted   multiclass: the class predicted before, None if no class was known
    """
    mistakes = None
    task = model.row_schema.task
    if task == "multiclass":
        mistakes = int(predicted != label)
    elif task != "regression":
        mistakes = int((score >= 0) != (label == 1.0))
    scores = [score if math.isfinite(score) else None]
    return Learned(model.record.id, seq, 1, 1, mistakes, 0.0 + loss, 0, False, scores=scores)


def learned_rows(model: Model, parsed: ParsedRows, receipt: Receipt) -> Iterator[Learned]:
    """The answer to each row of several requests of one row, without keys and ids.

    parsed, receipt     of all of them, journalled as one request
    """
    first_seq = receipt.position.first_seq
    if receipt.scores is None:  # a snapshot that another process wrote has the outcome
        for index in range(receipt.position.count):
            yield _learned_elsewhere(model, PartPosition(first_seq + index, first_seq + index, 1))
        return
    assert receipt.losses is not None and receipt.rejected is not None
    scores, losses, rejected = (
        column.tolist() if isinstance(column, np.ndarray) else column
        for column in (receipt.scores, receipt.losses, receipt.rejected)
    )
    predicted = receipt.predicted or [None] * len(scores)
    labels: Sequence[float | str] = parsed.labels
    for index, label in enumerate(labels):
        seq = first_seq + index
        score, loss, of = scores[index], losses[index], predicted[index]
        if not rejected[index]:
            yield learned_row(model, seq, label, score, loss, of)
            continue
        row = as_batch([parsed.rows])[index : index + 1]
        is_set_aside = index >= len(scores) - receipt.set_aside
        one = Receipt(
            PartPosition(seq, seq, 1), [score], [loss], [of], [True], set_aside=int(is_set_aside)
        )
        yield answer_new(model, ParsedRows(row, [0], single=True), one, with_scores=True)


def _learned_elsewhere(model: Model, position: PartPosition) -> Learned:
    """The answer to rows whose outcome is not kept."""
    return Learned(model.record.id, position.seq, position.count, None, None, None, None, True)


def answer_repeat(
    model: Model, parsed: ParsedRows, receipt: Receipt, with_scores: bool, skipped: "SkippedRows"
) -> Learned:
    """The first answer to a repeated request, or as much of it as is kept."""
    position = receipt.position
    answer = first_answer(model, receipt)
    if answer is None:
        return _learned_elsewhere(model, position)
    errors = [*parsed.errors, *_conflicts(parsed, skipped.conflicts)]
    if answer.rows is None:
        answered = learned_before(model, answer, len(errors) + answer.count - answer.learned, True)
        answered.scores = None if with_scores else UNSET
    else:
        rows = answer.rows
        errors += _not_learned(model, parsed, skipped.rows, rows.rejected, rows.set_aside)
        answered = learned_before(model, answer, len(errors), True)
        scores = answer.rows.scores if with_scores else UNSET
        _add_rows(answered, parsed, skipped.rows, scores, skipped.duplicates)
    answered.errors = first_errors(errors)
    return answered


def first_answer(model: Model, receipt: Receipt) -> Answer | None:
    """The first answer as it is kept; None if not. Without new rows it is computed, not kept."""
    if receipt.answer is not None or receipt.position.count or not receipt.position.duplicate:
        return receipt.answer
    return answer_without_rows(receipt.position.seq, model.row_schema.task)


class SkippedRows:
    """The rows of a repeated request that were journalled the first time, and the skipped ones."""

    def __init__(self, request: Request, answer: Answer | None) -> None:
        self.rows: list[int] = []
        self.keys: list[bytes] = []
        """The stored keys of the skipped rows."""
        self.duplicates: list[tuple[int, int | None]] = []
        self.conflicts: list[int] = []
        self._left: list[tuple[int, bytes | None]] = []
        if answer is None or answer.rows is None:
            return
        journalled = set(answer.rows.ids)
        first = 0
        for part in request.parts:
            if part.key is None or part.key == request.key or part.key in journalled:
                self.rows += range(first, first + part.count)
                journalled.discard(part.key or b"")
            else:
                self.keys.append(part.key)
                self._left.append((first, part.fingerprint))
            first += part.count

    def explain(self, entries: Sequence[KeyEntry | None]) -> None:
        """Divide the skipped rows into duplicates and id conflicts."""
        for (row, fingerprint), entry in zip(self._left, entries, strict=True):
            if entry is not None and entry.fingerprint != fingerprint:
                self.conflicts.append(row)
            else:
                self.duplicates.append((row, None if entry is None else entry.seq))


class RowsRefused(Problem):
    """Problem 422: no row of the request was accepted."""

    def __init__(self, count: int, rejected: int, errors: Sequence[RowError]) -> None:
        detail = NO_ROWS
        if errors:
            first = errors[0]
            line = f" (line {first.line})" if first.line is not None else ""
            detail = (
                f"{rejected} of {plural(count, 'row')} refused; the first{line}: {first.reason}"
            )
        super().__init__(422, "invalid-rows", detail, errors, rejected=rejected)
        self.rejected = rejected


def refusal(parsed: ParsedRows, errors: Sequence[RowError]) -> RowsRefused:
    """The problem of a body without an accepted row."""
    return RowsRefused(parsed.count, len(errors), errors)


def _values_by_row(parsed: ParsedRows, of_good_rows: Sequence[Any]) -> list[Any]:
    """One value for each row of the request; null for refused rows."""
    values: list[Any] = [None] * parsed.count
    for index, value in zip(parsed.row_indices, of_good_rows, strict=True):
        values[index] = value
    return values


def first_errors(errors: Sequence[RowError]) -> list[dict[str, Any]] | UnsetType:
    return [error.as_dict() for error in errors[:MAX_ERRORS]] if errors else UNSET


def learned_before(model: Model, answer: Answer, rejected: int, is_duplicate: bool) -> Learned:
    """The answer without scores and errors."""
    return Learned(
        model=model.record.id,
        seq=answer.seq,
        count=answer.count,
        learned=answer.learned,
        mistakes=answer.mistakes,
        loss=answer.loss,
        rejected=rejected,
        duplicate=is_duplicate,
    )


def _add_rows(
    answered: Learned,
    parsed: ParsedRows,
    rows: Sequence[int],
    scores: Column | UnsetType,
    duplicates: Sequence[tuple[int, int | None]] | Sequence[tuple[int, int]],
) -> None:
    """Add scores and duplicates; `rows` are the journalled good rows, which `scores` belong to."""
    if scores is not UNSET:
        answered.scores = [None] * parsed.count
        for row, score in zip(rows, _finite(scores), strict=True):
            answered.scores[parsed.row_indices[row]] = score
    if duplicates:
        answered.duplicates = [Duplicate(parsed.row_indices[row], seq) for row, seq in duplicates]


def _finite(scores: Column) -> list[float | None]:
    listed = scores.tolist() if isinstance(scores, np.ndarray) else scores
    return [score if math.isfinite(score) else None for score in listed]


def _finite_with(scores: Sequence[float | None], probabilities: Column) -> list[float | None]:
    """The probabilities that are finite and belong to a score."""
    return [None if s is None else p for s, p in zip(scores, _finite(probabilities), strict=True)]


def rejection_reasons(
    model: Model, rows: int, rejected: Sequence[int], labels: Sequence[Any], set_aside: int
) -> list[str]:
    """Why rows were not learned: of `rows`, the last `set_aside` went into quarantine.

    labels  of the rejected rows
    """
    reasons = [NOT_FINITE if index < rows - set_aside else PAUSED for index in rejected]
    if model.row_schema.task != "multiclass":
        return reasons
    return _with_class_limit(model, labels, reasons)


def _not_learned(
    model: Model, parsed: ParsedRows, rows: Sequence[int], rejected: Sequence[int], set_aside: int
) -> list[RowError]:
    if not rejected:
        return []
    labels = [parsed.labels[rows[index]] for index in rejected]
    reasons = rejection_reasons(model, len(rows), rejected, labels, set_aside)
    return [
        RowError(parsed.row_indices[rows[index]], "", reason)
        for index, reason in zip(rejected, reasons, strict=True)
    ]


def _with_class_limit(model: Model, texts: Sequence[Any], reasons: Sequence[str]) -> list[str]:
    """The reasons of rows whose classes have these names, where a full model refused a class."""
    classes = set(classes_of(model.replica.learner))
    if len(classes) < MAX_CLASSES:
        return list(reasons)
    full = f"the model has {MAX_CLASSES:,} classes, the most it may have"
    return [
        f"{full}; {_shown(text)} is not one of them"
        if reason == NOT_FINITE and text not in classes
        else reason
        for text, reason in zip(texts, reasons, strict=True)
    ]


def _shown(text: str) -> str:
    """The label of a class, as an error message shows it."""
    label = class_label(text)
    return quoted(label) if isinstance(label, str) else text


def _conflicts(parsed: ParsedRows, rows: Sequence[int]) -> list[RowError]:
    if not rows:
        return []
    indices = [parsed.row_indices[row] for row in rows]
    return [RowError(index, parsed.id_pointer.format(index), _ID_REUSED) for index in indices]


def _mistakes(
    model: Model, parsed: ParsedRows, receipt: Receipt, rejected: Sequence[int]
) -> int | None:
    if model.row_schema.task == "regression":
        return None
    wrong: Column
    scores = () if receipt.scores is None else receipt.scores
    if receipt.predicted is None and receipt.rows is None and isinstance(parsed.rows, Batch):
        wrong = are_wrong(scores, parsed.rows.labels)
    else:
        labels: Sequence[Any] = parsed.labels
        if receipt.rows is not None:
            labels = [labels[row] for row in receipt.rows]
        if receipt.predicted is not None:
            wrong = [p != text for p, text in zip(receipt.predicted, labels, strict=True)]
        else:
            wrong = are_wrong(scores, labels)
    return count(where_not(receipt.rejected if rejected else None, wrong))


ByRow = tuple[list[float | None], list[Any], list[float | None] | None, Sequence[AnswerField]]
"""Scores, labels, probabilities and fields of features of the good rows, None in each where the
score is not finite; None for all probabilities of a model without them."""
State: TypeAlias = "Replica | LoadedVersion"
"""What predicts. It does not change while rows are scored."""


async def scored(
    model: Model,
    state: State,
    parsed: ParsedRows,
    batch: Batch,
    kept: "list[Kept] | None" = None,
    top: int = 0,
) -> Predicted | PredictedMany:
    """Predictions of a state of this model for one or several rows; of classes the `top` ones.

    What rows keep while they wait for their labels is added to `kept`.

    A batch that takes long is scored in a thread. The caller is inside `serving`.
    """
    scores, labels, probabilities, fields = await scored_rows(model, state, batch, kept, top)
    if parsed.single:
        probability = None if probabilities is None else probabilities[0]
        one = predicted_row(model, state.seq, scores[0], labels[0], probability)
        for field in fields:
            setattr(one, field.one, field.values[0])
        return one
    many = PredictedMany(
        model=model.record.id,
        seq=state.seq,
        scores=_values_by_row(parsed, scores),
        labels=_values_by_row(parsed, labels),
        probabilities=None if probabilities is None else _values_by_row(parsed, probabilities),
        rejected=len(parsed.errors) if parsed.errors else UNSET,
        errors=first_errors(parsed.errors),
    )
    for field in fields:
        setattr(many, field.many, _values_by_row(parsed, field.values))
    return many


def predicted_row(
    model: Model,
    seq: int,
    score: float | None,
    label: Any,
    probability: float | None,
    age_s: float | None = None,
) -> Predicted:
    """The answer to a prediction of one row; `age_s` of a stale state."""
    answered = Predicted(model.record.id, seq, score, label, probability)
    if age_s is not None:
        mark_stale(answered, age_s)
    return answered


def mark_stale(answered: Predicted | PredictedMany, age_s: float) -> None:
    """Say that the state that answered is stale."""
    answered.stale, answered.age_seconds = True, round(age_s, 3)


def state_headers(seq: int, chain: str, age_s: float | None) -> list[tuple[bytes, bytes]]:
    """The ETag of the state that answered, unless it is stale."""
    return [(b"etag", etag_of(seq, chain).encode())] if age_s is None else []


async def scored_rows(
    model: Model, state: State, batch: Batch, kept: "list[Kept] | None" = None, top: int = 0
) -> ByRow:
    """As `scored`, as columns."""
    if model.row_schema.task == "multiclass":
        score = partial(_by_class, state, kept, top)
    else:
        score = partial(_by_score, model, state, kept)
    span = start_child("score")
    try:
        slices = await model.replica.scored(score, batch)
    finally:
        if span is not None:
            span.end()
    return slices[0] if len(slices) == 1 else _joined(slices)


def _joined(slices: Sequence[ByRow]) -> ByRow:
    scores, labels, probabilities, fields = zip(*slices, strict=True)
    has_probabilities = probabilities[0] is not None
    return (
        list(chain.from_iterable(scores)),
        list(chain.from_iterable(labels)),
        list(chain.from_iterable(probabilities)) if has_probabilities else None,
        [
            same[0]._replace(values=list(chain.from_iterable(one.values for one in same)))
            for same in zip(*fields, strict=True)
        ],
    )


def _fields(
    state: State,
    scores: Sequence[float | None],
    scored: Scored,
    kept: "list[Kept] | None",
    of_learner: "ClassScores | Floats | None",
) -> list[AnswerField]:
    """What the features of the model add to the answer; `scores` are those of the answer.

    What rows keep while they wait for their labels is added to `kept`.
    """
    if kept is not None:
        kept.append(Kept(of_learner, state.parts.served(scored)))
    fields = [field for answers in state.parts.answers for field in answers(scored)]
    if None not in scores:
        return fields
    return [
        field._replace(
            values=[
                None if score is None else value
                for score, value in zip(scores, field.values, strict=True)
            ]
        )
        for field in fields
    ]


def _top_classes(
    predictions: "ClassScores", scores: Sequence[float | None], top: int
) -> list[list[TopClass] | None]:
    """Of each row the classes of largest score, equal ones in the order of their first rows."""
    of = predictions.probabilities
    order = np.argsort(-predictions.scores, axis=1, kind="stable")[:, :top].tolist()
    return [
        None
        if scores[row] is None
        else [
            TopClass(
                class_label(predictions.classes[one]),
                float(predictions.scores[row, one]),
                None if of is None else float(of[row, one]),
            )
            for one in best
        ]
        for row, best in enumerate(order)
    ]


def _by_score(model: Model, state: State, kept: "list[Kept] | None", batch: Batch) -> ByRow:
    learner = state.learner
    of_learner = None
    if kept is None:
        predictions = learner.predict(batch)
    else:
        predictions, of_learner = predict_waiting(learner, batch)
    scores = _finite(predictions)
    name = model.row_schema.class_name
    labels = [None if score is None else name(score) for score in scores]
    probabilities = learner.probabilities(predictions)
    fields: Sequence[AnswerField] = ()
    if kept is not None or state.parts.answers:
        scored = Scored(batch, predictions, probabilities, None)
        fields = _fields(state, scores, scored, kept, of_learner)
    if probabilities is None:
        return scores, labels, None, fields
    return scores, labels, _finite_with(scores, probabilities), fields


def _by_class(state: State, kept: "list[Kept] | None", top: int, batch: Batch) -> ByRow:
    """The best class of each row with its score and probability; in a field the `top` classes."""
    class_model: ClassModel = state.learner  # type: ignore[assignment]
    predictions = class_model.predict_classes(batch)
    best = predictions.best.tolist()
    scores = _finite(
        [float(predictions.scores[k, b]) if b >= 0 else 0.0 for k, b in enumerate(best)]
    )
    labels = [
        class_label(predictions.classes[b]) if b >= 0 and score is not None else None
        for b, score in zip(best, scores, strict=True)
    ]
    fields: Sequence[AnswerField] = ()
    if kept is not None or state.parts.answers:
        scored = Scored(batch, np.array(scores, np.float64), None, predictions)
        fields = _fields(state, scores, scored, kept, predictions)
    if top:
        fields = [*fields, AnswerField("top", "top", _top_classes(predictions, scores, top))]
    if predictions.probabilities is None:
        return scores, labels, None, fields
    of = predictions.probabilities
    probabilities = [float(of[k, b]) if b >= 0 else math.nan for k, b in enumerate(best)]
    return scores, labels, _finite_with(scores, probabilities), fields
