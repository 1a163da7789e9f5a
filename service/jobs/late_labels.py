"""Rows that wait for their labels, and the labels that find them.

A prediction may remember its rows beside the journal, with the scores that were served. A label
that comes later is journalled together with its row, under a key made of the sample's id: it is
learned once, whoever brings it and however often. No state knows of rows that wait.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from dualstream.service.codecs import ListedRows
from dualstream.service.journal.protocol import Journal, Known, Part, Remembered, ToRemember
from dualstream.service.journal.record import (
    KeyKind,
    Rows,
    decode,
    encode_opening,
    encode_rows,
    make_key,
)
from dualstream.service.models.model import Model
from dualstream.service.replica.first_responses import Answer, answer_without_rows
from dualstream.service.replica.receipts import Receipt
from dualstream.service.replica.requests import Request
from dualstream.solvers import why_not_as_served
from dualstream.wire.problems import Problem, key_reused

_LABEL = Struct("<d")


@dataclass(frozen=True, slots=True)
class Wait:
    """How rows of one request wait: `default` is the label that they have after `wait_s`."""

    default: bytes = b""
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Label:
    """A label as it was sent: its place in the request, the sample's id, what the learner sees."""

    place: int
    id: str
    y: float

    @property
    def key(self) -> bytes:
        return make_key(KeyKind.LABEL, self.id)

    @property
    def fingerprint(self) -> bytes:
        return hashlib.sha256(packed_label(self.y)).digest()[:16]


@dataclass(slots=True)
class Labelled:
    """What became of a request's labels."""

    receipt: Receipt | None = None
    """Of those that found rows that waited; None where nothing was submitted."""
    found: list[Label] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    """How long their rows had waited."""
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    """Places of labels that were learned before, and where these stand."""
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    """Those of samples that were labelled otherwise before."""
    unknown: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    answer: Answer | None = None
    """The first answer to a request with a key that is repeated, if it is kept ..."""
    repeats: tuple[int, int] | None = None
    """... and where that request ends, and how many rows of it were journalled."""
    journalled: dict[int, Label] = field(default_factory=dict)
    """Those labels, by the numbers of their rows among these."""

    def leave(self, label: Label, kept: Known) -> None:
        """Of what was labelled before, alike or otherwise."""
        is_same = kept.fingerprint == label.fingerprint
        (self.duplicates if is_same else self.conflicts).append((label.place, kept.seq))

    def miss(self, label: Label, row: Remembered | None) -> None:
        """Of what nothing is known, or that it has waited too long."""
        has_expired = row is not None and not row.body
        (self.expired if has_expired else self.unknown).append(label.place)


def packed_label(y: float) -> bytes:
    """A label as the learner sees it; 0 and -0 are one."""
    return _LABEL.pack(y + 0.0)


def check_may_wait(model: Model) -> None:
    """Raises Problem 409 where rows of the model cannot be scored as they were served."""
    why_not = why_not_as_served(model.replica.spec)
    if why_not is not None:
        detail = f"rows of model {model.record.id!r} cannot wait for their labels: {why_not}"
        raise Problem(409, "cannot-remember", detail)


async def remember(
    journal: Journal,
    model: Model,
    rows: ListedRows,
    scores: Sequence[float],
    seq: int,
    wait: Wait,
) -> int:
    """Remember rows, each of which has an id, as they were scored by the state at `seq`.

    Returns how many wait now: of the others the labels are known.

    Raises ModelChanged, TooManyRemembered, and what the store raises.
    """
    told = [
        ToRemember(
            make_key(KeyKind.LABEL, rows.ids[row]),
            encode_rows(
                rows.indptr[row : row + 2],
                rows.indices,
                rows.values,
                weights=rows.weights[row : row + 1],
                served_scores=[scores[row]],
                served_seqs=[seq],
                names=rows.names_of(row, row + 1),
            ),
            wait.default,
            wait.wait_s,
        )
        for row in range(len(rows))
    ]
    return await journal.remember(model.record.id, model.record.incarnation, told)


async def learn_labels(
    journal: Journal,
    model: Model,
    labels: Sequence[Label],
    key: bytes | None = None,
    fingerprint: bytes | None = None,
) -> Labelled:
    """Learn what these labels find; a request with a stored `key` once.

    Raises Problem 422 where the key was used for another request, ModelChanged, RecordError, and
    what an append raises.
    """
    record = model.record
    keys = [label.key for label in labels]
    # In this order: a row that is gone went in one step with a key becoming known.
    waiting = await journal.remembered(record.id, record.incarnation, keys)
    known = await model.known([*keys, *([] if key is None else [key])])
    first = None if key is None else known[-1]
    if first is None:
        told, rows = _look_up(labels, waiting, known)
        if not rows and (key is None or not told.duplicates):
            return told
        # Where all are known, the key alone: so that it is not used for another request.
        request = request_of(model.row_schema.dim, told.found, rows, key, fingerprint)
        told.receipt = await model.submit(request)
        place = told.receipt.placed
        if place.conflict:
            raise key_reused()
        if not place.duplicate:
            return told
        # The same request came by another way, meanwhile.
        seq, count, answer = place.seq, place.count, told.receipt.answer
        known = await model.known(keys)
    else:
        if first.fingerprint != fingerprint:
            raise key_reused()
        seq, count, *_ = first
        await model.refresh(seq)
        assert key is not None
        answer = model.replica.answers.find(key, seq)
    if not count:
        answer = answer_without_rows(seq, model.row_schema.task)
    return _explained(labels, waiting, known, (seq, count), answer)


def _look_up(
    labels: Sequence[Label], waiting: Sequence[Remembered | None], known: Sequence[Known | None]
) -> tuple[Labelled, list[Rows]]:
    """What is known of these labels, and the rows of those that are not, where they wait."""
    told, rows = Labelled(), []
    for label, row, kept in zip(labels, waiting, known, strict=False):
        if kept is not None:
            told.leave(label, kept)
        elif row is None or not row.body:
            told.miss(label, row)
        else:
            told.found.append(label)
            told.delays_s.append(row.age_s)
            rows.append(_row_of(row))
    return told, rows


def _explained(
    labels: Sequence[Label],
    waiting: Sequence[Remembered | None],
    known: Sequence[Known | None],
    repeats: tuple[int, int],
    answer: Answer | None,
) -> Labelled:
    """What became of the labels of a request that is repeated, as far as it is kept.

    Its rows stand together and end with it. What stands there is its own, the first time that it
    asks for it, and what stands before was known to it. What came behind it, or waits now, it did
    not find.
    """
    told = Labelled(answer=answer, repeats=repeats)
    seq, count = repeats
    for label, row, kept in zip(labels, waiting, known, strict=False):
        if kept is None or kept.seq > seq:
            told.miss(label, row)
            continue
        number = kept.seq - (seq - count + 1)
        is_own = number >= 0 and number not in told.journalled
        if is_own and kept.fingerprint == label.fingerprint:
            told.journalled[number] = label
        else:
            told.leave(label, kept)
    return told


async def learn_defaults(model: Model, due: Sequence[Remembered]) -> Receipt:
    """Learn the default labels of rows whose wait is over; those that have labels are let go of.

    Raises RecordError, and what an append raises.
    """
    labels = [
        Label(place, row.key[1:].decode(), _LABEL.unpack(row.default)[0])
        for place, row in enumerate(due)
    ]
    return await model.submit(
        request_of(model.row_schema.dim, labels, [_row_of(row) for row in due])
    )


def request_of(
    dim: int,
    labels: Sequence[Label],
    found: Sequence[Rows],
    key: bytes | None = None,
    fingerprint: bytes | None = None,
) -> Request:
    """The request that journals labels with the rows that waited for them, each under its key.

    dim  the width of the rows
    """
    rows = ListedRows([0], [], [], [], [], dim)
    parts = []
    if key is not None:
        parts.append(Part(encode_opening(key, fingerprint), 0, key, fingerprint))
    for number, (label, row) in enumerate(zip(labels, found, strict=True)):
        columns = (row.indptr, row.indices, row.values, [label.y])
        mark, continues = label.fingerprint, key is not None
        body = encode_rows(
            *columns,
            weights=row.weights,
            served_scores=row.served_scores,
            served_seqs=row.served_seqs,
            names=row.names,
            key=label.key,
            fingerprint=mark,
            continues=continues,
        )
        parts.append(Part(body, 1, label.key, mark, continues))
        _add(rows, label, row)
        rows.ids[number] = label.id
    return Request(parts, rows, key, rows.names)


def _add(rows: ListedRows, label: Label, row: Rows) -> None:
    assert row.served_scores is not None
    rows.indices += row.indices.tolist()
    rows.values += row.values.tolist()
    rows.indptr.append(len(rows.indices))
    rows.labels.append(label.y)  # type: ignore[arg-type]
    rows.weights.append(1.0 if row.weights is None else float(row.weights[0]))
    rows.served_scores.append(float(row.served_scores[0]))
    rows.names += row.names
    rows.name_ends.append(len(rows.names))


def _row_of(row: Remembered) -> Rows:
    ((_, found),) = decode(row.body)
    assert isinstance(found, Rows)
    return found
