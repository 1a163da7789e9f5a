"""What a learn request is answered: the first time, and when it is repeated."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from service.answers import Answer, answer_without_rows
from service.codecs import Intake
from service.errors import MAX_ERRORS, Problem, RowError
from service.journal.protocol import Known
from service.model import Model
from service.receipts import Receipt
from service.requests import Request
from service.schemas import Duplicate, Learned
from service.tallies import Column, are_wrong, count, mean, places_where, where_not
from solvers import Batch

NOT_FINITE = "the update would not be finite"
PAUSED = "paused: the row waits in the journal until the model is resumed"
_ID_REUSED = "the id was used for another sample"


def answer_new(model: Model, intake: Intake, receipt: Receipt, with_scores: bool) -> Learned:
    """The answer to a request that was not known. Raises Problem 422 when none of it was taken."""
    assert receipt.scores is not None and receipt.losses is not None
    if (
        receipt.placed.count == 1 == intake.count
        and receipt.rejected is not None
        and not receipt.rejected[0]
    ):
        score, loss = float(receipt.scores[0]), float(receipt.losses[0])
        return _answer_one(model, intake, receipt, score, loss, with_scores)
    rejected = places_where(receipt.rejected)
    losses = where_not(receipt.rejected if rejected else None, receipt.losses)
    placed, mistakes = receipt.placed, _mistakes(model, intake, receipt, rejected)
    answer = Answer(placed.seq, placed.count, len(losses), mistakes, mean(losses), None)
    rows = range(len(intake.places)) if receipt.rows is None else receipt.rows
    errors = [*intake.errors, *_conflicts(intake, receipt.conflicts)]
    if not rows and not receipt.duplicates:
        raise refusal(intake, errors)
    errors += _not_learned(intake, rows, rejected, receipt.set_aside)
    told = _told(model, answer, len(errors), not rows and not receipt.conflicts)
    _add_rows(told, intake, rows, receipt.scores if with_scores else UNSET, receipt.duplicates)
    told.errors = first_errors(errors)
    return told


def _answer_one(
    model: Model, intake: Intake, receipt: Receipt, score: float, loss: float, with_score: bool
) -> Learned:
    """As `answer_new`, of a request whose only row was learned: most requests are of one."""
    (label,) = intake.labels
    mistakes = None
    if receipt.predicted is not None:
        mistakes = int(receipt.predicted[0] != label)
    elif model.door.task != "regression":
        mistakes = int((score >= 0) != (label == 1.0))
    placed = receipt.placed
    told = Learned(model.record.id, placed.seq, 1, 1, mistakes, 0.0 + loss, 0, False)
    if with_score:
        told.scores = _finite((score,))
    return told


def answer_again(
    model: Model, intake: Intake, receipt: Receipt, with_scores: bool, left: "LeftOut"
) -> Learned:
    """The first answer to a request with a key that is repeated, or as much as is kept of it."""
    placed = receipt.placed
    answer = first_answer(model, receipt)
    if answer is None:
        return Learned(model.record.id, placed.seq, placed.count, None, None, None, None, True)
    errors = [*intake.errors, *_conflicts(intake, left.conflicts)]
    if answer.rows is None:
        told = _told(model, answer, len(errors) + answer.count - answer.learned, True)
        told.scores = None if with_scores else UNSET
    else:
        errors += _not_learned(intake, left.rows, answer.rows.rejected, answer.rows.set_aside)
        told = _told(model, answer, len(errors), True)
        scores = answer.rows.scores if with_scores else UNSET
        _add_rows(told, intake, left.rows, scores, left.duplicates)
    told.errors = first_errors(errors)
    return told


def first_answer(model: Model, receipt: Receipt) -> Answer | None:
    """What is kept of the first answer; of one to rows that were all known nothing has to be."""
    if receipt.answer is not None or receipt.placed.count or not receipt.placed.duplicate:
        return receipt.answer
    return answer_without_rows(receipt.placed.seq, model.door.task)


class LeftOut:
    """Which rows of a repeated request were journalled the first time, and why others were not."""

    def __init__(self, request: Request, answer: Answer | None) -> None:
        self.rows: list[int] = []
        self.keys: list[bytes] = []
        """The stored keys of the rows left out."""
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

    def explain(self, known: Sequence[Known | None]) -> None:
        """Tell those that were learned before from those of other samples."""
        for (row, fingerprint), found in zip(self._left, known, strict=True):
            if found is not None and found.fingerprint != fingerprint:
                self.conflicts.append(row)
            else:
                self.duplicates.append((row, None if found is None else found.seq))


class RowsRefused(Problem):
    """422 for a request of which no row is taken."""

    def __init__(self, count: int, rejected: int, errors: Sequence[RowError]) -> None:
        detail = "the request holds no row"
        if errors:
            first = errors[0]
            line = f" (line {first.line})" if first.line is not None else ""
            detail = f"{rejected} of {count} rows refused; the first{line}: {first.reason}"
        super().__init__(422, "invalid-rows", detail, errors, rejected=rejected)
        self.rejected = rejected


def refusal(intake: Intake, errors: Sequence[RowError]) -> RowsRefused:
    """Of the rows of this body none is taken."""
    return RowsRefused(intake.count, len(errors), errors)


def by_place(intake: Intake, scores: Sequence[float]) -> list[float | None]:
    """One score for each row of the request, null for refused rows and what is not a number."""
    return spread(intake, _finite(scores))


def spread(intake: Intake, of_good_rows: Sequence[Any]) -> list[Any]:
    """One for each row of the request, null for refused rows."""
    told: list[Any] = [None] * intake.count
    for place, one in zip(intake.places, of_good_rows, strict=True):
        told[place] = one
    return told


def first_errors(errors: Sequence[RowError]) -> list[dict[str, Any]] | UnsetType:
    return [error.as_dict() for error in errors[:MAX_ERRORS]] if errors else UNSET


def _told(model: Model, answer: Answer, rejected: int, is_duplicate: bool) -> Learned:
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
    told: Learned,
    intake: Intake,
    rows: Sequence[int],
    scores: Column | UnsetType,
    duplicates: Sequence[tuple[int, int | None]] | Sequence[tuple[int, int]],
) -> None:
    """Tell of single rows; `rows` are the good ones that were journalled, which have `scores`."""
    if scores is not UNSET:
        told.scores = [None] * intake.count
        for row, score in zip(rows, _finite(scores), strict=True):
            told.scores[intake.places[row]] = score
    if duplicates:
        told.duplicates = [Duplicate(intake.places[row], seq) for row, seq in duplicates]


def _finite(scores: Column) -> list[float | None]:
    listed = scores.tolist() if isinstance(scores, np.ndarray) else scores
    return [score if math.isfinite(score) else None for score in listed]


def reasons(rows: int, rejected: Sequence[int], set_aside: int) -> list[str]:
    """Why these of so many rows were not learned; the last so many were set aside."""
    return [NOT_FINITE if place < rows - set_aside else PAUSED for place in rejected]


def _not_learned(
    intake: Intake, rows: Sequence[int], rejected: Sequence[int], set_aside: int
) -> list[RowError]:
    return [
        RowError(intake.places[rows[place]], "", reason)
        for place, reason in zip(rejected, reasons(len(rows), rejected, set_aside), strict=True)
    ]


def _conflicts(intake: Intake, rows: Sequence[int]) -> list[RowError]:
    if not rows:
        return []
    places = [intake.places[row] for row in rows]
    return [RowError(place, intake.id_pointer.format(place), _ID_REUSED) for place in places]


def _mistakes(
    model: Model, intake: Intake, receipt: Receipt, rejected: Sequence[int]
) -> int | None:
    if model.door.task == "regression":
        return None
    wrong: Column
    scores = () if receipt.scores is None else receipt.scores
    if receipt.predicted is None and receipt.rows is None and isinstance(intake.rows, Batch):
        wrong = are_wrong(scores, intake.rows.labels)
    else:
        labels: Sequence[Any] = intake.labels
        if receipt.rows is not None:
            labels = [labels[row] for row in receipt.rows]
        if receipt.predicted is not None:
            wrong = [p != text for p, text in zip(receipt.predicted, labels, strict=True)]
        else:
            wrong = are_wrong(scores, labels)
    return count(where_not(receipt.rejected if rejected else None, wrong))
