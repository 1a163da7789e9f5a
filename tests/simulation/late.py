"""Late labels: rows are predicted and kept pending, then labelled, some twice.

What the workers served and promised is recorded here. At the end it is compared with each row that
the journal has with its label.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualstream.service.codecs import as_batch
from dualstream.service.jobs.label_timeouts import DefaultLabels
from dualstream.service.journal.protocol import PartPosition
from dualstream.service.journal.record import KeyKind, Rows, make_key
from dualstream.service.models.late_labels import (
    Label,
    Labelled,
    ServedRows,
    Wait,
    learn_labels,
    packed_label,
    remember,
)
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import Receipt
from tests.simulation import models
from tests.simulation.log import Log

if TYPE_CHECKING:
    from tests.simulation.world import Worker, World

REMEMBER_S = 0.5
"""How long a row without a default label waits."""
DEFAULT_S = 0.05
"""How long one with a default label waits for another."""

TRIES = 4

Ask = Callable[[Callable[["Worker"], Awaitable[Any]]], Awaitable[Any]]
Row = tuple[str, int]
"""The incarnation of the model, and the tag of the row."""


@dataclass(frozen=True, slots=True)
class Told:
    """Response about one label: the seq of its row, or why it was not learned."""

    row: Row
    y: float
    seq: int | None
    outcome: str
    began: int


class LateNotes:
    """What workers served and promised, and the responses about labels."""

    def __init__(self) -> None:
        self.served: defaultdict[Row, set[tuple[int, float, bytes]]] = defaultdict(set)
        """Seq, score and features of each time that a row was to be remembered."""
        self.asked_at: dict[Row, float] = {}
        self.known_until: dict[Row, float] = {}
        """Of rows that were said to wait: when they may be forgotten."""
        self.got: list[Told] = []
        self.revised: set[Row] = set()
        """Rows whose labels may be revised."""
        self.revisions: list[tuple[Row, float, int, int]] = []
        """Their labels that were journalled: row, label, seq, and when it was sent."""


async def serve(worker: "Worker", model_id: str, tag: int, default: bool) -> None:
    """Predict the row of this tag and let it wait for its label, unless that is known."""
    notes, began = worker.world.notes, worker.world.scheduler.steps
    previous = notes.shown_by(worker)
    with worker.registry.pinned(model_id):
        model = await worker.model(model_id)
        kind, replica = worker.world.kind_of(model_id), model.replica
        rows, batch = models.named_row(tag, kind.width), models.rows_of(tag)[:1]
        columns = None
        if kind.has_history:
            async with replica.serving():
                learner: Any = replica.learner
                batch = columns = learner.as_served(as_batch([rows]))
                scores, seq, chain = learner._learner.predict(batch), replica.seq, replica.chain
        else:
            scores, seq, chain = await replica.predict(batch)
        notes.saw_prediction(worker, model, ("row", tag), seq, chain, scores, previous)
        row = model.record.incarnation, tag
        notes.late.served[row].add(
            (seq, float(scores[0]), _features_of(batch.indices, batch.values))
        )
        notes.late.asked_at.setdefault(row, worker.world.scheduler.now)
        wait = Wait(packed_label(models.default_of(tag)), DEFAULT_S) if default else Wait()
        served = ServedRows(rows, scores.tolist(), seq, columns)
        count = await remember(worker.connection, model, served, wait)
        _check_waits_or_known(worker, model, tag, None if count else began)
        if not count:
            return
        # As long as it waits, and for as long again it is known to have waited too long.
        asked_at = notes.late.asked_at[row]
        notes.late.known_until[row] = inf if default else asked_at + 2 * REMEMBER_S


def _check_waits_or_known(worker: "Worker", model: Model, tag: int, refused: int | None) -> None:
    """No row waits whose label is known, nor is one refused whose label is not.

    refused   when it was asked to be remembered, if it was not
    """
    notes, key = worker.world.notes, make_key(KeyKind.LABEL, str(tag))
    log = notes.log_of(model)
    if log is None:
        return
    if key in log.keys and key in log.waits:
        notes.problems.append(f"{log.id}: the row {tag} waits, and its label is known")
    # A label that was known then may have been lost since.
    is_waiting = worker.world.kind_of(log.id).has_history and key in log.waits
    if refused is not None and key not in log.keys and not is_waiting:
        if not any(step >= refused for step, _ in log.cuts):
            notes.problems.append(f"{worker.name} does not remember the row {tag}, of no label")


async def label(worker: "Worker", model_id: str, tag: int, y: float, keyed: bool) -> Labelled:
    """Bring the label of the row of this tag."""
    began = worker.world.scheduler.steps
    key = make_key(KeyKind.REQUEST, f"l{tag}{y:+}") if keyed else None
    mark = None if key is None else packed_label(y) * 2
    with worker.registry.pinned(model_id):
        model = await worker.model(model_id)
        got = await learn_labels(worker.connection, model, [Label(0, str(tag), y)], key, mark)
        _check_waits_or_known(worker, model, tag, None)
    if got.receipt is not None:
        worker.world.notes.saw_answer(worker, model, got.receipt, began)
    _note(worker, model, tag, y, got, began)
    return got


async def label_both(worker: "Worker", model_id: str, tags: tuple[int, int]) -> None:
    """Bring the labels of two rows under one key; of a repeat each is explained as the first time.

    What came behind the request, or waits by now, it did not find.
    """
    key, mark = make_key(KeyKind.REQUEST, f"l{tags}"), packed_label(1.0) * 2
    labels = [Label(index, str(tag), models.label_of(tag)) for index, tag in enumerate(tags)]
    with worker.registry.pinned(model_id):
        model = await worker.model(model_id)
        got = await learn_labels(worker.connection, model, labels, key, mark)
    if got.repeats is None:
        return
    seq, count = got.repeats
    left = [*got.duplicates, *got.conflicts]
    missed = [*got.unknown, *got.expired]
    is_behind = any(at > seq for _, at in left)
    if len(got.journalled) != count or count + len(left) + len(missed) != 2 or is_behind:
        problem = f"{worker.name} reports the labels {tags} up to {seq}: {got}"
        worker.world.notes.problems.append(problem)


async def revise(worker: "Worker", model_id: str, tag: int, y: float) -> None:
    """Bring a label that may be revised, and may replace another one."""
    began, late = worker.world.scheduler.steps, worker.world.notes.late
    with worker.registry.pinned(model_id):
        model = await worker.model(model_id)
        row = model.record.incarnation, tag
        late.revised.add(row)
        labels = [Label(0, str(tag), y)]
        got = await learn_labels(worker.connection, model, labels, revises=True)
    position = None if got.receipt is None else got.receipt.position
    if position is not None and position.count:
        late.revisions.append((row, y, position.seq, began))


def _note(worker: "Worker", model: Model, tag: int, y: float, got: Labelled, began: int) -> None:
    row = model.record.incarnation, tag
    notes = worker.world.notes
    seq, outcome = _said(got)
    if seq is not None:
        receipt = got.receipt if outcome == "new" else None
        receipt = receipt or Receipt(PartPosition(seq, seq, 1, duplicate=True))
        request = models.named_request(tag, model.replica.dim)
        notes.saw_acknowledged(model, tag, request, receipt, began)
    notes.late.got.append(Told(row, y, seq, outcome, began))
    if outcome == "expired":
        waited_s = worker.world.scheduler.now - notes.late.asked_at.get(row, 0.0)
        if waited_s < REMEMBER_S:
            notes.problems.append(f"{worker.name} let the row {tag} expire after {waited_s} s")
    log = notes.log_of(model)
    known_until = notes.late.known_until.get(row, 0.0)
    if outcome == "unknown" and worker.world.scheduler.now < known_until and log is not None:
        # Between the looks at the rows that wait and at the keys the store may lose a label. A row
        # that has entered the history is lost with the record of that.
        is_journalled = worker.world.kind_of(log.id).has_history
        if not any(is_journalled or step >= began for step, _ in log.cuts):
            notes.problems.append(f"{worker.name} does not know the row {tag}, which waits")


def _said(got: Labelled) -> tuple[int | None, str]:
    if got.repeats is not None:
        seq, count = got.repeats
        return seq if count else None, "repeated"
    receipt = got.receipt
    duplicates = [*got.duplicates, *(receipt.duplicates if receipt else ())]
    if duplicates:
        return duplicates[0][1], "duplicate"
    if got.conflicts or (receipt and receipt.conflicts):
        return None, "conflict"
    if receipt is not None:
        return receipt.position.seq, "new"
    return None, "unknown" if got.unknown else "expired"


async def sweep(worker: "Worker") -> None:
    """What the timer does."""
    await worker.startup.finished.wait()
    await DefaultLabels(worker.registry, worker.connection).sweep()


async def learn(world: "World", ask: Ask, model_id: str, tag: int) -> None:
    """A client's row and its label, from some worker each; `ask` is how it asks one of them."""
    chance = world.chance
    has_default, keyed = chance.random() < 0.3, chance.random() < 0.3
    await ask(lambda worker: serve(worker, model_id, tag, has_default))
    if world.kind_of(model_id).has_history and chance.random() < world.repeats:
        # It is scored again, and enters nothing.
        await ask(lambda worker: serve(worker, model_id, tag, has_default))
    await asyncio.sleep(chance.random() * chance.choice((0.0, 0.02, 0.1, 1.5)))
    y = models.label_of(tag)
    labels = [y]
    if chance.random() < world.repeats:
        labels.append(chance.choice((y, -y)))
    elif chance.random() < 0.1:
        labels = []  # it never comes
    for each in labels:
        for _ in range(TRIES):
            if await ask(lambda worker, y=each: label(worker, model_id, tag, y, keyed)):
                break
            await asyncio.sleep(chance.random() * chance.choice((0.01, 0.05)))


class LateRow(NamedTuple):
    """A row as the journal has it; what it was served with where its label came late.

    earlier  the labels before, with their seqs
    """

    tag: int
    y: float
    served_seq: int | None
    score: float
    features: bytes = b""
    earlier: Sequence[tuple[int, float | str]] = ()


def late_rows(rows: Rows, first_seq: int, kind: models.Kind) -> Iterator[tuple[int, LateRow]]:
    """Each row by its seq, the first one of `first_seq`."""
    seqs, scores = rows.served_seqs, rows.served_scores
    for index, tag in enumerate(models.tags_of(rows)):
        y = float(rows.labels[index])  # type: ignore[index]
        late = LateRow(tag, y, None, 0.0)
        if seqs is not None and seqs[index] >= 0:
            begin, end = rows.indptr[index : index + 2]
            end -= 3 if kind.has_history else 0
            features = _features_of(rows.indices[begin:end], rows.values[begin:end])
            before = () if rows.earlier is None else rows.earlier[index]
            earlier = [(seq if seq > 0 else first_seq + index + seq, old) for seq, old in before]
            late = LateRow(tag, y, int(seqs[index]), float(scores[index]), features, earlier)  # type: ignore[index]
        yield first_seq + index, late


def _features_of(indices: Any, values: Any) -> bytes:
    """The entries of a row as bytes."""
    return np.asarray(indices, np.int64).tobytes() + np.asarray(values, np.float64).tobytes()


def late_problems(log: Log, late: LateNotes, rows: Mapping[int, LateRow]) -> Iterator[str]:
    """Rows with late labels are as they were served and at the seq in the response.

    rows   all that the journal has, by seq
    """
    yield from _revised_problems(log, late, rows)
    standing = {row.tag: (seq, row) for seq, row in rows.items()}
    for row in rows.values():
        if row.served_seq is None:
            continue
        served = row.served_seq, row.score, row.features
        if served not in late.served[log.incarnation, row.tag]:
            yield f"{log.id}: the row {row.tag} was not served {row.score} at {row.served_seq}"
        if abs(row.y) != 1.0:
            yield f"{log.id}: the row {row.tag} has label {row.y}"
    for got in late.got:
        incarnation, tag = got.row
        if incarnation != log.incarnation or any(step >= got.began for step, _ in log.cuts):
            continue
        seq, row = standing.get(tag, (None, None))
        if got.outcome == "conflict" and (row is None or row.y == got.y):
            yield f"{log.id}: the row {tag} was said to have another label than {got.y}"
        if got.seq is not None and (got.seq != seq or row is None or row.y != got.y):
            yield f"{log.id}: label {got.y} of {tag} is not at {got.seq}: {got.outcome}, {row}"
    for waiting in log.waits.values():
        if waiting.default:
            yield f"{log.id}: {waiting.key!r} has no default label yet"


def _revised_problems(log: Log, late: LateNotes, rows: Mapping[int, LateRow]) -> Iterator[str]:
    """Each label replaces the one before of its row, and is another one."""
    labels: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for seq in sorted(rows):
        row = rows[seq]
        if (log.incarnation, row.tag) in late.revised:
            before = labels[row.tag]
            if [row.y] == [y for _, y in before[:1]] or list(row.earlier) != before[:16]:
                yield f"{log.id}: at {seq}, {row.y} replaces {row.earlier} and not {before}"
            before.insert(0, (seq, row.y))
    for (incarnation, tag), y, seq, began in late.revisions:
        if incarnation != log.incarnation or any(step >= began for step, _ in log.cuts):
            continue
        late_row = rows.get(seq)
        if late_row is None or (late_row.tag, late_row.y) != (tag, y):
            yield f"{log.id}: the label {y} of {tag} is not at {seq}: {late_row}"


def history_problems(
    log: Log, rows: Mapping[int, LateRow], observed: Mapping[int, int]
) -> Iterator[str]:
    """A row that waits has entered the history, and so has one with a late label, before that.

    The record that it entered may be lost after the waiting row is read, and before its label is
    journalled.

    observed   seqs of observed rows, by their tags
    """
    for seq, row in rows.items():
        has_entered = observed.get(row.tag, seq) < seq
        if row.served_seq is not None and not has_entered and not log.cuts:
            yield f"{log.id}: the row {row.tag} has its label at {seq}, and did not enter before"
    for waiting in log.waits.values():
        if int(waiting.key[1:]) not in observed:
            yield f"{log.id}: {waiting.key!r} waits, and has not entered"
