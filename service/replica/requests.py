"""Requests to commit, what is new in a group of them, and their receipts.

A request holds rows to learn, as parts of an entry, or one control record. Its receipt holds its
log position and its outcome.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import msgspec

from dualstream.service.codecs import ListedRows, Rows, as_batch, class_texts
from dualstream.service.journal.audit import SERVER, Author, describe_fields
from dualstream.service.journal.protocol import (
    Change,
    CursorMove,
    LogPosition,
    OutcomeUnknown,
    Part,
    PartPosition,
)
from dualstream.service.journal.record import (
    Control,
    EarlierLabels,
    KeyKind,
    decode,
    encode_control,
    encode_opening,
    encode_rows,
    encode_sample,
    make_key,
)
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.controls import Order, control_of
from dualstream.service.replica.first_responses import Answer, FirstResponses, KeyedRequest
from dualstream.service.replica.outcomes import ControlOutcome, ControlOutcomes
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.row_ids import NO_IDS, RowIds, names_a_row
from dualstream.service.replica.row_sums import MIN_ARRAY_ROWS, Column
from dualstream.solvers import Batch, Outcome


class Request(msgspec.Struct):
    """One learn request: its encoded parts, its rows and its stored key.

    Each run of rows without an id is one part. Each row with an id is a part with its own key.
    """

    parts: list[Part]
    rows: Rows
    key: bytes | None = None
    names: Sequence[tuple[int, str]] = ()
    """(index, name) of features that the journal may not know yet."""
    cursor: CursorMove | None = None
    """Moved in the same step that journals the rows. Such rows form a group of their own."""
    on_journalled: Callable[[], None] | None = None
    """Called when all rows are journalled as requested, before they are learned."""
    earlier: Sequence[EarlierLabels] = ()
    """Labels before of each row; empty if no label may replace another."""
    is_followed: bool = False
    """May the client submit its next rows as soon as `on_journalled` is called?"""

    @classmethod
    def of(
        cls,
        rows: Rows,
        key: bytes | None,
        fingerprint: bytes | None,
        names: Sequence[tuple[int, str]] = (),
        is_whole: bool = False,
    ) -> Self:
        """Create a request of these rows, under the stored `key` if it has one.

        `names` are for rows in a Batch; ListedRows bring their own. A request with `is_whole` is
        journalled as a whole or not at all. Requests without row ids always are.
        """
        if isinstance(rows, ListedRows):
            if rows.ids:
                return cls(list(_parts(rows, key, fingerprint, is_whole)), rows, key, rows.names)
            names = rows.names
        observed = _are_observed(rows)
        body = encode_rows(
            rows.indptr,
            rows.indices,
            rows.values,
            None if observed else class_texts(rows),
            weights=None if observed else rows.weights,
            names=names,
            key=key,
            fingerprint=fingerprint,
            **(served_columns(rows, 0, len(rows)) if observed else {}),
        )
        return cls([Part(body, len(rows), key, fingerprint)], rows, key, names)


def _parts(
    rows: ListedRows, key: bytes | None, fingerprint: bytes | None, is_whole: bool
) -> Iterator[Part]:
    """Encode the parts of a request of which some rows have ids."""
    if key is not None and 0 in rows.ids:
        yield Part(encode_opening(key, fingerprint), 0, key, fingerprint, whole=is_whole)
    first = 0
    observed = _are_observed(rows)
    kind = KeyKind.OBSERVED if observed else KeyKind.SAMPLE
    own: bytes | None
    mark: bytes | None
    while first < len(rows):
        stop, id_ = first + 1, rows.ids.get(first)
        while id_ is None and stop < len(rows) and stop not in rows.ids:
            stop += 1
        columns = (
            rows.indptr[first : stop + 1],
            rows.indices,
            rows.values,
            None if observed else rows.labels[first:stop],
        )
        more: dict[str, Any] = {
            "weights": None if observed else rows.weights[first:stop],
            "names": rows.names_of(first, stop),
        }
        if observed:
            more |= served_columns(rows, first, stop)
        if id_ is not None:
            own = make_key(kind, id_)
            continues = key is not None
            body, mark = encode_sample(*columns, **more, key=own, continues=continues)
        else:
            own, mark = (None, None) if first else (key, fingerprint)
            continues = key is not None and own != key
            more |= {"key": own, "fingerprint": mark, "continues": continues}
            body = encode_rows(*columns, **more)
        # The journal groups parts by a request's key. Without a key, only the store knows that they
        # belong together.
        belongs = continues or (is_whole and first > 0)
        yield Part(body, stop - first, own, mark, belongs, is_whole and not belongs)
        first = stop


def served_columns(rows: Rows, first: int, stop: int) -> dict[str, Any]:
    """The scores that observed rows bring, as arguments of an encoder; mostly none."""
    scores: Any = rows.served if isinstance(rows, Batch) else rows.served_scores
    parts: Any = rows.served_parts
    if scores is None or not len(scores):
        return {}
    return {"served_scores": scores[first:stop], "served_parts": parts[first:stop]}


def _are_observed(rows: Rows) -> bool:
    """Have the rows of a request no labels? All have one, or none."""
    return len(rows) > 0 and rows.labels[0] != rows.labels[0]


def requested_by(order: Order, arrays: Arrays | None = None) -> bytes:
    """Bytes of what a client requested, if the order holds all of it."""
    given = control_of(order, arrays)
    return encode_control(given.kind, given.fields, given.arrays)


class ControlRequest(msgspec.Struct):
    """One control: the encoded part and the control itself."""

    parts: list[Part]
    control: Control
    by: Author | None = SERVER
    """Author in the audit log. None: the model's spec prescribes it, and it is not logged."""
    held: LogPosition | None = None
    """Position of the state that it was made from. If the journal lost it, the append fails."""

    @property
    def change(self) -> Change | None:
        """Entry for the audit log."""
        if self.by is None:
            return None
        return self.by.change(self.control.kind, **describe_fields(self.control.fields))

    @property
    def key(self) -> bytes | None:
        return self.parts[0].key

    @classmethod
    def of(
        cls,
        order: Order,
        key: bytes | None = None,
        requested: bytes | None = None,
        arrays: Arrays | None = None,
        by: Author | None = SERVER,
        held: LogPosition | None = None,
    ) -> Self:
        """Create a request of this order and its arrays, under the stored `key` if it has one.

        `requested` is what the client requested, if the order holds more than that. It
        distinguishes this request from another one under the same key.
        """
        plain = body = requested_by(order, arrays)
        fingerprint = None
        if key is not None:
            given = control_of(order, arrays)
            what = (given.kind, given.fields, given.arrays)
            fingerprint = hashlib.sha256(plain if requested is None else requested).digest()[:16]
            body = encode_control(*what, key=key, fingerprint=fingerprint)
        # Decode it as every reader will: field order may differ from `order`.
        ((_, control),) = decode(plain)
        assert isinstance(control, Control)
        return cls([Part(body, 1, key, fingerprint)], control, by, held)


AnyRequest = Request | ControlRequest


class OutcomeForgotten(OutcomeUnknown):
    """The control is journalled, but its outcome is no longer kept."""

    def __init__(self, kind: str, seq: int) -> None:
        self.seq = seq
        super().__init__(
            f"the {kind} is journalled at seq {seq}, but whether it was refused there is not kept "
            "any more"
        )


class Receipt(msgspec.Struct):
    """Log position of a request and, if it was new, the outcome of learning it.

    Per-row fields cover the journalled rows. They are arrays if there are many rows.
    """

    position: PartPosition
    """Position of the whole request. `duplicate` and `conflict` refer to its own key."""
    scores: Column | None = None
    losses: Column | None = None
    predicted: list[str | None] | None = None
    """Multiclass: the class predicted before learning each row; None if no class was known."""
    rejected: Column | None = None
    set_aside: int = 0
    """Number of the last rows that were quarantined during a pause. They also count as rejected."""
    control_outcome: ControlOutcome | None = None
    """Outcome of a control; None for a repeated control, or if it is no longer kept."""
    rows: list[int] | None = None
    """Indices of the journalled rows; None for all."""
    duplicates: Sequence[tuple[int, int]] = ()
    """(index, seq) of rows left out because their ids are known."""
    conflicts: Sequence[int] = ()
    """Indices of rows left out because their ids belong to other samples."""
    answer: Answer | None = None
    """Kept first response, for a repeated request with a key."""


def by_request(
    requests: Sequence[AnyRequest], positions: Sequence[PartPosition]
) -> list[Sequence[PartPosition]]:
    """Split the positions of a group's parts by request."""
    if len(requests) == 1:
        return [positions]
    split = []
    at = 0
    for request in requests:
        split.append(positions[at : at + len(request.parts)])
        at += len(request.parts)
    return split


def is_left(position: PartPosition) -> bool:
    return position.duplicate or position.conflict or position.refused


class NewRows(NamedTuple):
    """New rows of a group, as a replica learns them.

    names     of features
    requests  those with a key
    named     rows with an id
    """

    batch: Batch
    names: Sequence[tuple[int, str]] = ()
    requests: Sequence[KeyedRequest] = ()
    ids: RowIds = NO_IDS


def new_of(
    requests: Sequence[AnyRequest], positions: Sequence[Sequence[PartPosition]], absent: AbsentSeqs
) -> NewRows:
    """Collect the new rows of requests; at least one row is new.

    absent  what the state lacks that learns them next
    """
    first = requests[0]
    if len(requests) == 1 and len(first.parts) == 1 and first.parts[0].key is None:
        assert isinstance(first, Request)
        return NewRows(as_batch((first.rows,)), first.names)  # without a key no row is a duplicate
    rows: list[Rows] = []
    names: list[tuple[int, str]] = []
    keyed: list[KeyedRequest] = []
    named: list[tuple[int, bytes]] = []
    for request, its_positions in zip(requests, positions, strict=True):
        assert isinstance(request, Request)
        if len(its_positions) == 1 and request.parts[0].key is None:  # most requests
            rows.append(request.rows)  # without a key no row is a duplicate
            names += request.names
            continue
        kept = _new_parts(request, its_positions)
        if not kept:
            continue
        if request.earlier:
            assert isinstance(request.rows, ListedRows)
            seqs = [0] * len(request.rows)
            for row, _, position in kept:
                seqs[row] = position.first_seq
            request.rows.replaced = absent.replaced(request.earlier, seqs) or []
        if not any(map(is_left, its_positions)):
            rows.append(request.rows)
            names += request.names
        else:
            assert isinstance(request.rows, ListedRows)
            batch = as_batch([request.rows])
            for begin, part, _ in kept:
                rows.append(batch[begin : begin + part.count])
                names += request.rows.names_of(begin, begin + part.count)
        ids = [
            (position.first_seq, part.key)
            for _, part, position in kept
            if part.key is not None and part.pending is None and names_a_row(part.key)
        ]
        named += ids
        if request.key is not None and not is_left(its_positions[0]):
            count = sum(part.count for _, part, _ in kept)
            keys = tuple(key for _, key in ids)
            keyed.append(KeyedRequest(request.key, kept[0][2].first_seq, count, keys))
    return NewRows(as_batch(rows), names, keyed, RowIds.of(named) if named else NO_IDS)


def _new_parts(
    request: Request, positions: Sequence[PartPosition]
) -> list[tuple[int, Part, PartPosition]]:
    """Parts with new rows, each with the index of its first row and its position."""
    firsts = accumulate([part.count for part in request.parts], initial=0)
    return [
        (first, part, position)
        for first, part, position in zip(firsts, request.parts, positions, strict=False)
        if part.count and not is_left(position)
    ]


def receipts_of(
    requests: Sequence[AnyRequest],
    positions: Sequence[Sequence[PartPosition]],
    outcome: Outcome | None,
    first_responses: FirstResponses,
) -> list[Receipt]:
    """Return one receipt per request, split from the outcome of the whole group."""
    scores: Column = []
    losses: Column = []
    rejected: Column = []
    predicted: list[str | None] | None = None
    if outcome is not None:
        scores, losses, rejected = outcome.scores, outcome.losses, outcome.rejected
        if len(scores) < MIN_ARRAY_ROWS * len(requests):
            scores, losses, rejected = scores.tolist(), losses.tolist(), rejected.tolist()
        if outcome.predicted is not None:
            classes = outcome.predicted.tolist()
            predicted = [outcome.classes[index] if index >= 0 else None for index in classes]
    receipts = []
    first = 0
    for request, its_positions in zip(requests, positions, strict=True):
        receipt = _receipt_of(request, its_positions)
        receipts.append(receipt)
        count = receipt.position.count
        if is_left(receipt.position) or (count and outcome is None):
            if request.key is not None and not receipt.position.conflict:
                receipt.answer = first_responses.find(request.key, receipt.position.seq)
            continue
        last = first + count
        receipt.scores = scores[first:last]
        receipt.losses = losses[first:last]
        receipt.predicted = None if predicted is None else predicted[first:last]
        receipt.rejected = rejected[first:last]
        if outcome is not None and outcome.set_aside is not None:
            # A pause ends at a control, which is never inside a request.
            receipt.set_aside = int(outcome.set_aside[first:last].sum())
        first = last
    return receipts


def receipt_of_control(
    request: ControlRequest,
    position: PartPosition,
    outcome: ControlOutcome | None,
    control_outcomes: ControlOutcomes,
) -> Receipt:
    """Return the receipt of a control.

    Without an `outcome` the replica passed the control by loading a snapshot; then the snapshot's
    kept outcomes answer.
    """
    if outcome is None and not is_left(position):
        outcome = control_outcomes.of(position.seq, request.control)
    return Receipt(position, control_outcome=outcome)


def _receipt_of(request: AnyRequest, positions: Sequence[PartPosition]) -> Receipt:
    """Receipt with the position of the whole request and its rows that were left out."""
    of_key = isinstance(request, ControlRequest) or request.key is not None
    is_of_key = of_key and is_left(positions[0]) and not positions[0].refused
    if is_of_key or (len(positions) == 1 and not is_left(positions[0])):
        return Receipt(positions[0])
    rows: list[int] = []
    duplicates: list[tuple[int, int]] = []
    conflicts: list[int] = []
    first = 0
    for part, position in zip(request.parts, positions, strict=True):
        stop = first + part.count
        if position.duplicate:
            duplicates.append((first, position.seq))
        elif position.conflict:
            conflicts.append(first)
        elif not position.refused:
            rows += range(first, stop)
        first = stop
    # A part that only opens the request has no rows.
    kept = [position for position in positions if not is_left(position) and position.count]
    # If nothing is new, use the last seq of the known rows.
    known = [position for position in positions if position.duplicate]
    seq = max(
        (position.seq for position in kept or known or positions if not position.conflict),
        default=0,
    )
    whole = PartPosition(seq + 1 - len(rows), seq, len(rows))
    journalled = rows if duplicates or conflicts else None
    return Receipt(whole, rows=journalled, duplicates=duplicates, conflicts=conflicts)
