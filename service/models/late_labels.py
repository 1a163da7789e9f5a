"""Late labels: predicted rows that wait in the store, and labels that come later.

A prediction may store its rows next to the journal, with the served scores. A later label is
journalled together with its row, under a key made of the sample's id. So it is learned once,
whichever client sends it and however often. A label that may be revised leaves its row in the
store, and another label of this row is journalled with the one that it replaces. Waiting rows are
not part of any state. If columns depend on earlier rows, the append that stores a row also journals
that it has entered them, and the row is learned with the columns that it was served with.
"""

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct, error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualstream.service.codecs import ListedRows
from dualstream.service.codecs.parsed_rows import inputs_alone, with_scores
from dualstream.service.concurrency import run_short_here
from dualstream.service.journal.protocol import (
    Journal,
    KeyEntry,
    NewPendingRow,
    Part,
    PendingRow,
    RevisableLabel,
)
from dualstream.service.journal.record import (
    Control,
    CorruptRecord,
    EarlierLabels,
    KeyKind,
    Rows,
    decode,
    encode_control,
    encode_opening,
    encode_rows,
    make_key,
)
from dualstream.service.models.model import Model
from dualstream.service.models.problems import key_reused
from dualstream.service.replica.first_responses import Answer, answer_without_rows
from dualstream.service.replica.requests import Receipt, Request, served_columns
from dualstream.solvers import Batch
from dualstream.solvers.evaluation import late_label_scores
from dualstream.solvers.evaluation.late_label_scores import MAX_SERVED_CLASSES
from dualstream.solvers.jit import Floats
from dualstream.wire.problem_json import Problem

if TYPE_CHECKING:
    from dualstream.solvers.online.class_choice import ClassScores

_LABEL = Struct("<d")
_STORED_LABEL = Struct("<qI")
_SERVED_CLASSES = "served-classes"
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

MAX_EARLIER_LABELS = 16
"""A revision has the last labels of its row: a rollback may leave any of them the newest."""

INLINE_ROWS = 100
"""More rows are encoded, and more labels joined with their rows, in a thread."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How the rows of a request wait: their label after `wait_s` is `label` (empty: none).

    revises  this label may be revised
    """

    label: bytes = b""
    wait_s: float = 0.0
    revises: bool = False

    @property
    def default(self) -> bytes:
        """The default label as it is stored: a byte that is 1 if it may be revised, the label."""
        return bytes((self.revises,)) + self.label if self.label else b""


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a request: its index, the sample's id, and the value that the learner sees."""

    index: int
    id: str
    y: float | str

    @property
    def key(self) -> bytes:
        return make_key(KeyKind.LABEL, self.id)

    @property
    def fingerprint(self) -> bytes:
        return _fingerprint_of(packed_label(self.y))


class Kept(NamedTuple):
    """What consecutive rows keep besides their scores.

    of_learner   scores of classes, or of members; None for other learners
    of_features  see StatePart.served; None if no feature keeps anything
    """

    of_learner: "ClassScores | Floats | None"
    of_features: Floats | None

    @property
    def numbers(self) -> Floats | None:
        """(n, m), as in records; without scores of classes."""
        both = [self.of_features, self.of_learner]
        columns = [one for one in both if isinstance(one, np.ndarray)]
        return np.hstack(columns) if columns else None


ServedClasses = tuple[Floats, Sequence[str], int]
"""Scores (K,) of the classes, the classes, and the index of the best one; -1 for none."""


class WaitingRow(NamedTuple):
    """A row that gets a label; `classes` if the model has classes.

    replaces  None if the label cannot be revised; else the stored label that it replaces, which is
              empty for the first one, and its seq as in RevisableLabel
    """

    row: Rows
    classes: ServedClasses | None
    replaces: tuple[bytes, int] | None = None


@dataclass(slots=True)
class Labelled:
    """The outcome of each label of a request."""

    receipt: Receipt | None = None
    """Of the labels whose rows waited. None if there was nothing to submit."""
    found: list[Label] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    """How long those of these rows had waited that get their first label."""
    revised: int = 0
    """How many labels replaced others."""
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    """Indices of labels that were learned before, with the seq of each."""
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    """Indices of labels of samples that have another label, with its seq."""
    unknown: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    answer: Answer | None = None
    """The first response to a repeated request with a key, if it is kept."""
    repeats: tuple[int, int] | None = None
    """The last seq of that request, and its number of journalled rows."""
    journalled: dict[int, Label] = field(default_factory=dict)
    """Labels of that request that were journalled, by row index."""

    def add_known(self, label: Label, kept: KeyEntry) -> None:
        """A sample that has a label already: the same (duplicate) or another (conflict)."""
        is_same = kept.fingerprint == label.fingerprint
        (self.duplicates if is_same else self.conflicts).append((label.index, kept.seq))

    def add_missing(self, label: Label, row: PendingRow | None) -> None:
        """A sample that is unknown, or whose row has expired."""
        has_expired = row is not None and not row.body
        (self.expired if has_expired else self.unknown).append(label.index)


def packed_label(y: float | str) -> bytes:
    """Bytes of a label as the learner sees it, or of a class. 0 and -0 are equal."""
    return y.encode() if isinstance(y, str) else _LABEL.pack(y + 0.0)


def _fingerprint_of(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:16]


def _first_stored(label: Label) -> bytes:
    """A label as it is stored with a labelled row."""
    packed = packed_label(label.y)
    return _STORED_LABEL.pack(0, len(packed)) + packed


def _stored_label(label: Label, replaces: tuple[bytes, int]) -> bytes:
    """A label and its row's earlier ones as they are stored, newest first, with seqs as in Rows."""
    stored = [_first_stored(label)]
    for seq, packed in _earlier_labels(*replaces):
        stored += (_STORED_LABEL.pack(seq, len(packed)), packed)
    return b"".join(stored)


def _earlier_labels(stored: bytes, seq: int) -> list[tuple[int, bytes]]:
    """Stored labels of a row whose newest one has this seq, with seqs as in Rows."""
    labels, at = list[tuple[int, bytes]](), 0
    try:
        while at < len(stored) and len(labels) < MAX_EARLIER_LABELS:
            seq_of, size = _STORED_LABEL.unpack_from(stored, at)
            begin, at = at + _STORED_LABEL.size, at + _STORED_LABEL.size + size
            labels.append((seq_of if seq_of > 0 else seq + seq_of, stored[begin:at]))
    except StructError as error:
        raise CorruptRecord(f"the label of a stored row is damaged: {error}") from error
    return labels


def _unpacked_label(model: Model, packed: bytes) -> float | str:
    if model.row_schema.task == "multiclass":
        return packed.decode()
    y: float = _LABEL.unpack(packed)[0]
    return y


def check_may_wait(model: Model) -> None:
    """Raise Problem 409 if the learner cannot score rows as they were served."""
    why_not = late_label_scores.why_not_as_served(model.replica.spec)
    if why_not is not None:
        raise _cannot_wait(model, why_not)


def _cannot_wait(model: Model, why_not: str) -> Problem:
    detail = f"rows of model {model.record.id!r} cannot wait for their labels: {why_not}"
    return Problem(409, "cannot-remember", detail)


class ServedRows(NamedTuple):
    """Rows with ids, and what the state at `seq` made of them.

    columns  the rows as the learner saw them; None unless columns depend on earlier rows
    kept     what consecutive rows keep besides their scores
    """

    rows: ListedRows
    scores: Sequence[float]
    seq: int
    columns: Batch | None = None
    kept: Sequence[Kept] = ()

    def waiting(self, wait: Wait) -> list[NewPendingRow]:
        """The rows as they are stored. With the columns as served, they keep their inputs."""
        rows, seq = self.rows, self.seq
        entries = (rows.indptr, rows.indices, rows.values)
        if self.columns is not None:
            entries = _with_inputs(self.columns, rows)
        indptr, indices, values = entries
        parts = [part for one in self.kept if one.numbers is not None for part in one.numbers]
        class_scores = [
            part
            for one in self.kept
            if one.of_learner is not None and not isinstance(one.of_learner, np.ndarray)
            for part in _encoded_classes(one.of_learner)
        ]
        return [
            NewPendingRow(
                make_key(KeyKind.LABEL, rows.ids[row]),
                encode_rows(
                    indptr[row : row + 2],
                    indices,
                    values,
                    weights=rows.weights[row : row + 1],
                    served_scores=[self.scores[row]],
                    served_seqs=[seq],
                    served_parts=[parts[row]] if parts else None,
                    names=rows.names_of(row, row + 1),
                )
                + (class_scores[row] if class_scores else b""),
                wait.default,
                wait.wait_s,
            )
            for row in range(len(rows))
        ]


def _with_inputs(columns: Batch, rows: ListedRows) -> tuple[list[int], list[int], list[float]]:
    """Entries of `columns`, each row followed by the inputs of the same row in `rows`."""
    pointers, all_indices, all_values = (
        columns.indptr.tolist(), columns.indices.tolist(), columns.values.tolist()
    )  # fmt: skip
    indptr, indices, values = [0], list[int](), list[float]()
    for row in range(len(rows)):
        begin, end = pointers[row : row + 2]
        indices += all_indices[begin:end]
        values += all_values[begin:end]
        begin, end = rows.indptr[row : row + 2]
        first = bisect_left(rows.indices, columns.dim, begin, end)
        indices += rows.indices[first:end]
        values += rows.values[first:end]
        indptr.append(len(indices))
    return indptr, indices, values


async def remember(journal: Journal, model: Model, served: ServedRows, wait: Wait) -> int:
    """Store rows that were served.

    Returns the number of rows that wait now. The others have labels already. Rows of a model whose
    columns depend on earlier rows are observed in the same step; one that waits already, or has its
    label, is neither observed nor stored again, nor counted.

    Raises Problem 409 if there are too many classes, ModelChanged, TooManyPendingRows, and what the
    store raises.
    """
    classes = getattr(served.kept[0].of_learner, "classes", ()) if served.kept else ()
    if len(classes) > MAX_SERVED_CLASSES:
        raise _cannot_wait(model, f"it has more than {MAX_SERVED_CLASSES} classes")
    is_short = len(served.rows) <= INLINE_ROWS
    if served.columns is None:
        waiting = await run_short_here(is_short, served.waiting, wait)
        return await journal.remember(model.record.id, model.record.incarnation, waiting)
    entering = inputs_alone(model.row_schema, served.rows)
    if model.replica.parts.follows_observed:
        of_features = [one.of_features for one in served.kept if one.of_features is not None]
        with_scores(entering, np.array(served.scores), np.concatenate(of_features))
    request = await run_short_here(is_short, _observing, entering, served.waiting(wait))
    receipt = await model.submit(request)
    return receipt.position.count


def _observing(entering: ListedRows, waiting: Sequence[NewPendingRow]) -> Request:
    """A request that journals what enters of each row, and stores the row for its label."""
    parts = []
    for row, pending in enumerate(waiting):
        columns = entering.indptr[row : row + 2], entering.indices, entering.values
        body = encode_rows(*columns, **served_columns(entering, row, row + 1))
        parts.append(Part(body, 1, pending.key, pending=pending))
    return Request(parts, entering)


async def learn_labels(
    journal: Journal,
    model: Model,
    labels: Sequence[Label],
    key: bytes | None = None,
    fingerprint: bytes | None = None,
    revises: bool = False,
) -> Labelled:
    """Learn the labels whose rows wait. A request with a stored `key` is learned once.

    revises  these labels may be revised, and may replace others

    Raises Problem 422 if the key was used for another request, ModelChanged, RecordError, and
    what an append raises.
    """
    record, is_short = model.record, len(labels) <= INLINE_ROWS
    keys = await run_short_here(is_short, lambda: [label.key for label in labels])
    # In this order: a waiting row is deleted, or gets its label, in the same step in which its key
    # becomes known.
    waiting = await journal.remembered(record.id, record.incarnation, keys)
    entries = await model.known([*keys, *([] if key is None else [key])])
    first = None if key is None else entries[-1]
    if first is None:
        arguments = labels, waiting, entries, revises
        labelled, rows = await run_short_here(is_short, _look_up, *arguments)
        if not rows and (key is None or not labelled.duplicates):
            return labelled
        # If all labels are known, journal the key alone: another request must not use it.
        request = await run_short_here(
            is_short, request_of, model, labelled.found, rows, key, fingerprint
        )
        labelled.receipt = await model.submit(request)
        positions = labelled.receipt.position
        if positions.conflict:
            raise key_reused()
        if not positions.duplicate:
            journalled = labelled.receipt.rows
            new = rows if journalled is None else [rows[row] for row in journalled]
            labelled.revised = sum(1 for row in new if row.replaces and row.replaces[0])
            return labelled
        # Another worker has just learned the same request.
        seq, count, answer = positions.seq, positions.count, labelled.receipt.answer
        entries = await model.known(keys)
    else:
        if first.fingerprint != fingerprint:
            raise key_reused()
        seq, count, *_ = first
        await model.refresh(seq)
        assert key is not None
        answer = model.replica.first_responses.find(key, seq)
    if not count:
        answer = answer_without_rows(seq, model.row_schema.task)
    return _explained(labels, waiting, entries, (seq, count), answer)


def _look_up(
    labels: Sequence[Label],
    waiting: Sequence[PendingRow | None],
    entries: Sequence[KeyEntry | None],
    revises: bool,
) -> tuple[Labelled, list[WaitingRow]]:
    """The outcome of known and missing labels, and the rows of the others."""
    labelled, rows = Labelled(), list[WaitingRow]()
    # Labels of this request by id, if they may be revised: as they are stored, and the number of
    # labels before that are journalled. A label that its row has already is not.
    latest: dict[str, tuple[bytes, int]] = {}
    journalled = 0
    for label, row, kept in zip(labels, waiting, entries, strict=False):
        is_labelled = row is not None and row.seq > 0
        if is_labelled and kept is None:
            assert row is not None
            kept = _label_before(row, row.seq)
        is_revision = revises and (is_labelled or label.id in latest)
        if kept is not None and not is_revision:
            labelled.add_known(label, kept)
        elif row is None or not row.body:
            labelled.add_missing(label, row)
        else:
            labelled.found.append(label)
            if not is_revision:
                labelled.delays_s.append(max(0.0, row.age_s))  # the store's clock may go back
            replaces = None
            if revises:
                stored, number = latest.get(label.id, (b"", 0))
                replaces = (stored, number - journalled) if stored else (row.label, row.seq)
                if not replaces[0].startswith(_first_stored(label)):
                    latest[label.id] = _stored_label(label, replaces), journalled
                    journalled += 1
            rows.append(_row_of(row, replaces))
    return labelled, rows


def _explained(
    labels: Sequence[Label],
    waiting: Sequence[PendingRow | None],
    entries: Sequence[KeyEntry | None],
    repeats: tuple[int, int],
    answer: Answer | None,
) -> Labelled:
    """The outcome of the labels of a repeated request, as far as it is known.

    The rows of the request are consecutive and end at the position in `repeats`. A label
    within this span belongs to the request, at its first occurrence. A label before the span
    was known to the request. A label after the span, or a row that waits now, was missing. A label
    that was revised since is no longer within the span. But the answer has the ids of the rows, and
    a labelled row its earlier labels.
    """
    labelled = Labelled(answer=answer, repeats=repeats)
    seq, count = repeats
    ids = () if answer is None or answer.rows is None else answer.rows.ids
    numbers = defaultdict[bytes, list[int]](list)
    for number, key in enumerate(ids):
        numbers[key].append(number)
    latest = dict[bytes, KeyEntry | None]()
    for label, row, kept in zip(labels, waiting, entries, strict=False):
        before = latest.setdefault(label.key, _label_before(row, seq - count))
        if before is not None and before.fingerprint == label.fingerprint:
            labelled.add_known(label, before)
            continue
        if numbers.get(label.key):
            number = numbers[label.key].pop(0)
            labelled.journalled[number] = label
            latest[label.key] = KeyEntry(seq - count + 1 + number, 1, label.fingerprint)
            continue
        if kept is None or kept.seq > seq:
            kept = _label_before(row, seq) or before
        if kept is None:
            labelled.add_missing(label, row)
            continue
        number = kept.seq - (seq - count + 1)
        is_own = number >= 0 and number not in labelled.journalled
        if is_own and kept.fingerprint == label.fingerprint:
            labelled.journalled[number] = label
        else:
            labelled.add_known(label, kept)
    return labelled


def _label_before(row: PendingRow | None, seq: int) -> KeyEntry | None:
    """The newest label of a labelled row up to `seq`, as far as it is stored."""
    for at, label in _earlier_labels(row.label, row.seq) if row is not None else ():
        if at <= seq:
            return KeyEntry(at, 1, _fingerprint_of(label))
    return None


async def learn_defaults(model: Model, due: Sequence[PendingRow]) -> Receipt:
    """Learn the default labels of overdue rows. Rows that have labels are deleted.

    Raises RecordError, and what an append raises.
    """

    def request() -> Request:
        labels = [
            Label(index, row.key[1:].decode(), _unpacked_label(model, row.default[1:]))
            for index, row in enumerate(due)
        ]
        rows = [_row_of(row, (b"", 0) if row.default[0] else None) for row in due]
        return request_of(model, labels, rows)

    return await model.submit(await run_short_here(len(due) <= INLINE_ROWS, request))


def request_of(
    model: Model,
    labels: Sequence[Label],
    labelled_rows: Iterable[WaitingRow],
    key: bytes | None = None,
    fingerprint: bytes | None = None,
) -> Request:
    """A request that journals each label with its waiting row, under the key of its sample."""
    rows = ListedRows([0], [], [], [], [], model.row_schema.row_width)
    as_served, parts = late_label_scores.as_served(model.replica.spec), []
    before = list[EarlierLabels]()
    if key is not None:
        parts.append(Part(encode_opening(key, fingerprint), 0, key, fingerprint))
    for number, (label, waiting) in enumerate(zip(labels, labelled_rows, strict=True)):
        row, classes, replaces = waiting
        served_parts: Any = row.served_parts
        if classes is not None and isinstance(label.y, str):
            of_features = () if served_parts is None else served_parts[0].tolist()
            losses = as_served.losses_of_classes(*classes, label.y)
            served_parts = [(*of_features, *losses)]
        if served_parts is not None:
            rows.served_parts.append(tuple(served_parts[0]))
        columns: Any = (row.indptr, row.indices, row.values, [label.y])
        mark, continues = label.fingerprint, key is not None
        earlier = _earlier_labels(*replaces) if replaces else []
        before.append([(seq, _unpacked_label(model, packed)) for seq, packed in earlier])
        body = encode_rows(
            *columns,
            weights=row.weights,
            served_scores=row.served_scores,
            served_seqs=row.served_seqs,
            served_parts=served_parts,
            earlier=before[-1:],
            names=row.names,
            key=label.key,
            fingerprint=mark,
            continues=continues,
        )
        stays = None
        if replaces is not None:
            mine = _first_stored(label)
            stays = RevisableLabel(mine, _stored_label(label, replaces)[len(mine) :], *replaces)
        parts.append(Part(body, 1, label.key, mark, continues, revisable=stays))
        _add(rows, label, row)
        rows.ids[number] = label.id
    return Request(parts, rows, key, rows.names, earlier=before if any(before) else ())


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


def _row_of(pending: PendingRow, replaces: tuple[bytes, int] | None = None) -> WaitingRow:
    """Raises RecordError."""
    (_, row), *rest = decode(pending.body)
    assert isinstance(row, Rows)
    return WaitingRow(row, _decoded_classes(rest[0][1]) if rest else None, replaces)


def stored_scores(served: "ClassScores") -> np.ndarray:
    """Scores of all classes as rows keep them while they wait."""
    return np.clip(served.scores, -_LARGEST_FLOAT32, _LARGEST_FLOAT32).astype("<f4")


def _encoded_classes(served: "ClassScores") -> Iterator[bytes]:
    """A record of the class scores of each row."""
    for row, best in zip(stored_scores(served), served.best.tolist(), strict=True):
        fields = {"classes": served.classes, "best": best, "scores": row.tobytes()}
        yield encode_control(_SERVED_CLASSES, fields)


def _decoded_classes(content: Rows | Control | None) -> ServedClasses:
    if not isinstance(content, Control) or content.kind != _SERVED_CLASSES:
        raise CorruptRecord("a waiting row is followed by something else than its class scores")
    fields = content.fields
    scores = np.frombuffer(fields["scores"], "<f4").astype(np.float64)
    return scores, fields["classes"], fields["best"]
