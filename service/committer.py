"""Group commit: what waits for one model goes into one append, one apply, many answers.

Requests keep their order. A control is a group of its own, so that it is answered for itself.
No timer and no added delay: while an append is on its way the next group gathers behind it.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from service.answers import Answer, Answers, Asked
from service.codecs import ListedRows, Rows, as_batch, class_texts
from service.controls import Order, Verdict, control_of, copy_named_by
from service.journal.protocol import (
    Appended,
    Journal,
    JournalUnavailable,
    ModelChanged,
    NotReplicated,
    OutcomeUnknown,
    Part,
    Placed,
    Trimmed,
    UnknownCopy,
)
from service.journal.record import (
    Control,
    KeyKind,
    decode,
    encode_control,
    encode_opening,
    encode_rows,
    make_key,
)
from service.outliving import outliving
from service.outside import REAL, Outside
from service.recovery import Forked
from service.replica import Applied, Replica
from service.retained import NOBODY, Named, names_a_row
from service.trail import Lost
from solvers import Outcome

log = logging.getLogger("dualstream.committer")

TOLD = (OutcomeUnknown, JournalUnavailable, ModelChanged, UnknownCopy)
"""Whoever submitted what fails so is told; there is nothing to look for in a log."""
# Requests join a group until it holds this much; a larger request is a group of its own.
GROUP_BYTES = 1024 * 1024
GROUP_ROWS = 4096
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


@dataclass(slots=True)
class Request:
    """One learn request: its parts, and beside them its rows and its stored key.

    Each run of rows without an id is a part, and each row that has an id, with its own key.
    """

    parts: list[Part]
    rows: Rows
    key: bytes | None = None
    names: Sequence[tuple[int, str]] = ()
    """Places and names of features that the journal may not know yet."""

    @property
    def part(self) -> Part:
        """The first one, where there is no other."""
        return self.parts[0]

    @classmethod
    def of(
        cls,
        rows: Rows,
        key: bytes | None,
        fingerprint: bytes | None,
        names: Sequence[tuple[int, str]] = (),
    ) -> Self:
        """A request of these rows, under the stored `key` if it has one.

        `names` come with rows that are a Batch; listed ones bring their own.
        """
        if isinstance(rows, ListedRows):
            if rows.ids:
                return cls(list(_parts(rows, key, fingerprint)), rows, key, rows.names)
            names = rows.names
        body = encode_rows(
            rows.indptr,
            rows.indices,
            rows.values,
            class_texts(rows),
            weights=rows.weights,
            names=names,
            key=key,
            fingerprint=fingerprint,
        )
        return cls([Part(body, len(rows), key, fingerprint)], rows, key, names)


def _parts(rows: ListedRows, key: bytes | None, fingerprint: bytes | None) -> Iterator[Part]:
    """The parts of a request of which some rows have ids."""
    if key is not None and 0 in rows.ids:
        yield Part(encode_opening(key, fingerprint), 0, key, fingerprint)
    first = 0
    while first < len(rows):
        stop = first + 1
        if first in rows.ids:
            own: bytes | None = make_key(KeyKind.SAMPLE, rows.ids[first])
            # Of its columns without names, which another worker may have told already.
            mark: bytes | None = hashlib.sha256(_encoded(rows, first, stop)).digest()[:16]
        else:
            while stop < len(rows) and stop not in rows.ids:
                stop += 1
            own, mark = (None, None) if first else (key, fingerprint)
        continues = key is not None and own != key
        body = _encoded(
            rows,
            first,
            stop,
            names=rows.names_of(first, stop),
            key=own,
            fingerprint=mark,
            continues=continues,
        )
        yield Part(body, stop - first, own, mark, continues)
        first = stop


def _encoded(rows: ListedRows, first: int, stop: int, **beside: Any) -> bytes:
    """The rows from `first` to before `stop`."""
    return encode_rows(
        rows.indptr[first : stop + 1],
        rows.indices,
        rows.values,
        rows.labels[first:stop],
        weights=rows.weights[first:stop],
        **beside,
    )


@dataclass(slots=True)
class ControlRequest:
    """One control: a part of one record, and beside it the control itself."""

    part: Part
    control: Control

    @property
    def parts(self) -> list[Part]:
        return [self.part]

    @property
    def key(self) -> bytes | None:
        return self.part.key

    @classmethod
    def of(cls, order: Order, key: bytes | None = None, asked: bytes | None = None) -> Self:
        """A request of this order, under the stored `key` if it has one.

        What the client has `asked` for tells it from another request under the key, where the
        order says more than that.
        """
        given = control_of(order)
        plain = body = encode_control(given.kind, given.fields)
        fingerprint = None
        if key is not None:
            fingerprint = hashlib.sha256(plain if asked is None else asked).digest()[:16]
            body = encode_control(given.kind, given.fields, key=key, fingerprint=fingerprint)
        # As everyone else will read it: what is given may have its fields in another order.
        ((_, control),) = decode(plain)
        assert isinstance(control, Control)
        return cls(Part(body, 1, key, fingerprint), control)


AnyRequest = Request | ControlRequest


@dataclass(slots=True)
class Receipt:
    """Where a request stands in the journal and, if it was new, what learning it did.

    What is told of each row is told of those that were journalled.
    """

    placed: Placed
    """Of the whole request: a duplicate, or in conflict, where its own key is."""
    scores: list[float] | None = None
    losses: list[float] | None = None
    predicted: list[str | None] | None = None
    """Multiclass: the class of each row as it was scored; None where no class was known."""
    rejected: list[bool] | None = None
    verdict: Verdict | None = None
    """What became of a control."""
    rows: list[int] | None = None
    """Which rows were journalled; None for all."""
    duplicates: Sequence[tuple[int, int]] = ()
    """Rows left out as their ids are known, and where they stand."""
    conflicts: Sequence[int] = ()
    """Rows left out as their ids are those of other samples."""
    answer: Answer | None = None
    """The first answer to a request with a key whose outcome is not at hand, if it is kept."""


class Committer:
    """Appends one model's requests in their order of arrival."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica,
        append_timeout_s: float,
        on_group: Callable[[int, float], None] = lambda rows, seconds: None,
        on_fork: Callable[[str], None] = lambda model: None,
        on_loss: Callable[[Lost], None] = lambda lost: None,
        on_advance: Callable[[int, int], None] = lambda before, after: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
        outside: Outside = REAL,
    ) -> None:
        self._journal = journal
        self._replica = replica
        self._append_timeout_s = append_timeout_s
        self._on_group = on_group
        self._on_fork = on_fork
        self._on_loss = on_loss
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._outside = outside
        self._waiting: deque[tuple[AnyRequest, asyncio.Future[Receipt]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        # Held by whoever moves the replica on: this committer's groups, or `refresh`.
        self._moving = asyncio.Lock()

    def submit(self, request: AnyRequest) -> "asyncio.Future[Receipt]":
        """Park the request; the future resolves when it is durable and applied."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return future

    async def refresh(self, seq: int | None = None) -> None:
        """Bring the replica to the journal's end, after the group that is under way.

        It goes on when its caller leaves: an entry half applied would be applied again. Nothing is
        asked of the store where the replica has reached `seq` by then.

        Raises JournalUnavailable, ModelChanged, UnknownModel.
        """
        await outliving(self._refresh(seq))

    async def _refresh(self, seq: int | None) -> None:
        try:
            await self._catch_up(seq)
        except Exception as error:
            self._on_failure(error)
            raise

    async def _catch_up(self, seq: int | None) -> None:
        replica = self._replica
        async with self._moving:
            if seq is not None and replica.seq >= seq:
                return
            before = replica.seq
            record = await self._journal.get(replica.id)
            if record.incarnation != replica.incarnation:
                raise ModelChanged(replica.id)
            try:
                replica.check_head(record)
                await replica.catch_up(self._journal)
            except (Forked, Trimmed) as cause:
                await self._rebuild(cause)
            self._on_advance(before, replica.seq)

    def tell_nobody(self) -> None:
        """Let go of those who were to hear of groups, forks, losses and failures."""
        self._on_group = lambda rows, seconds: None
        self._on_fork = lambda model: None
        self._on_loss = lambda lost: None
        self._on_advance = lambda before, after: None
        self._on_failure = lambda error: None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here, and nobody moves the replica."""
        return self._worker is None and not self._moving.locked()

    @contextlib.asynccontextmanager
    async def between_groups(self) -> AsyncIterator[None]:
        """While held, nobody moves the replica on: it stands between two groups."""
        async with self._moving:
            yield

    async def drain(self) -> None:
        """Wait until all that was submitted is answered, and nobody moves the replica."""
        while self._worker is not None:
            await asyncio.wait([self._worker])
        async with self._moving:
            pass

    async def _work(self) -> None:
        while self._waiting:
            await self._gather()
            async with self._moving:
                await self._work_on(self._next_group())
        self._worker = None

    async def _work_on(self, group: "list[tuple[AnyRequest, asyncio.Future[Receipt]]]") -> None:
        before = self._replica.seq
        try:
            receipts = await self._commit([request for request, _ in group])
            for (_, future), receipt in zip(group, receipts, strict=True):
                if not future.done():
                    future.set_result(receipt)
            self._on_advance(before, self._replica.seq)
        except Exception as error:
            self._on_failure(error)
            if isinstance(error, NotReplicated):
                self._on_advance(before, self._replica.seq)
            elif not isinstance(error, TOLD):
                log.exception("model %r: a group of %d failed", self._replica.id, len(group))
            for _, future in group:
                if not future.done():
                    future.set_exception(error)

    async def _gather(self) -> None:
        """Let requests join as long as each turn of the event loop brings more of them.

        Those that arrived together are handled one after the other; without this the first one
        would be a group of its own. Nobody waits for a request that is not there yet.
        """
        known = 0
        while known < len(self._waiting) < GROUP_ROWS:
            known = len(self._waiting)
            await asyncio.sleep(0)

    def _next_group(self) -> "list[tuple[AnyRequest, asyncio.Future[Receipt]]]":
        group = [self._waiting.popleft()]
        size, rows = _size(group[0][0])
        while self._waiting and isinstance(group[0][0], Request):
            following = self._waiting[0][0]
            its_size, its_rows = _size(following)
            size += its_size
            rows += its_rows
            if size > GROUP_BYTES or rows > GROUP_ROWS or isinstance(following, ControlRequest):
                break
            group.append(self._waiting.popleft())
        return group

    async def _commit(self, requests: Sequence[AnyRequest]) -> list[Receipt]:
        nonce = self._outside.nonce()
        began = self._outside.clock()
        self._replica.watched[nonce] = None
        try:
            parts = [part for request in requests for part in request.parts]
            appended = await self._append(nonce, parts, _copy_named_by(requests[0]))
            rows = sum(len(r.rows) for r in requests if isinstance(r, Request))
            self._on_group(rows, self._outside.clock() - began)
            placed = _by_request(requests, appended.placed)
            try:
                applied = await self._apply(nonce, appended, requests, placed)
            except JournalUnavailable as error:  # it is in the journal, all the same
                raise OutcomeUnknown(str(error)) from error
        finally:
            del self._replica.watched[nonce]
        if appended.shortfall is not None:
            raise NotReplicated(appended.shortfall)
        if isinstance(applied, Verdict):
            return [Receipt(appended.placed[0], verdict=applied)]
        return _receipts(requests, placed, applied, self._replica.answers)

    async def _append(
        self, nonce: bytes, parts: Sequence[Part], copy: str | None = None
    ) -> Appended:
        """Append until the outcome is known: the same nonce makes a repetition harmless.

        Raises JournalUnavailable when nothing was done, OutcomeUnknown at the deadline.
        """
        deadline = self._outside.clock() + self._append_timeout_s
        pause = FIRST_PAUSE_S
        unknown: OutcomeUnknown | None = None
        replica = self._replica
        while True:
            try:
                return await self._journal.append(
                    replica.id, replica.incarnation, nonce, replica.seq, parts, None, copy
                )
            except OutcomeUnknown as error:
                unknown = error
            except JournalUnavailable as error:
                if unknown is None:
                    raise
                unknown = OutcomeUnknown(str(error))
            if self._outside.clock() + pause > deadline:
                raise unknown
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _apply(
        self,
        nonce: bytes,
        appended: Appended,
        requests: Sequence[AnyRequest],
        placed: Sequence[Sequence[Placed]],
    ) -> Applied | None:
        """Bring the replica past the append; what became of what is new, None without any.

        Raises OutcomeUnknown when the journal has lost it again.
        """
        replica = self._replica
        try:
            if appended.entries:
                unseen = [e for e in appended.entries if e.seq > replica.seq]
                await replica.apply(unseen, self._journal)
            if appended.more:
                await replica.catch_up(self._journal)
            handed_over = replica.watched[nonce]
            if handed_over is not None:
                return handed_over
            if appended.seq is None and appended.more:
                self._check_kept(appended)
                return None
            # Nothing new: the answer tells the chain all the same. A replica that stands beyond
            # the append without having seen it is forked, too.
            follows = appended.first_seq in (None, replica.seq + 1)
            if not follows or appended.previous != replica.chain:
                raise Forked(
                    f"model {replica.id!r}: what was appended follows {appended.previous}, "
                    f"this replica stands at seq {replica.seq} with {replica.chain}"
                )
            if appended.seq is None:
                return None
        except (Forked, Trimmed) as cause:
            await self._rebuild(cause)
            self._check_kept(appended)
            return replica.watched[nonce]
        if isinstance(requests[0], ControlRequest):
            control = requests[0].control
            try:
                return await replica.apply_own_control(
                    appended.seq, appended.chain, control, self._journal
                )
            except Trimmed as cause:
                await self._rebuild(cause)
                self._check_kept(appended)
                return None
        own = _New()
        for request, places in zip(requests, placed, strict=True):
            assert isinstance(request, Request)
            own.add(request, places)
        return await replica.apply_own(
            appended.seq,
            appended.chain,
            as_batch(own.rows),
            own.names,
            own.asked,
            Named.of(own.named) if own.named else NOBODY,
        )

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown when the journal, just read to its end, ends before what it said."""
        if any(placed.seq > self._replica.seq for placed in appended.placed):
            raise OutcomeUnknown("the store has lost what it had appended")

    async def _rebuild(self, cause: Forked | Trimmed) -> None:
        """Throw the replica's state away for the journal's. Raises ModelChanged.

        One that was overtaken by the trimming may have been forked as well: nobody is served of
        it, either.
        """
        replica = self._replica
        replica.is_forked = True
        if isinstance(cause, Forked):
            log.warning("%s; rebuilding it from the journal", cause)
            self._on_fork(replica.id)
        else:
            log.warning(
                "model %r: %s, this replica stands at seq %d; loading it anew",
                replica.id,
                cause,
                replica.seq,
            )
        record = await self._journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id) from None
        lost = await replica.rebuild(record, self._journal)
        if isinstance(cause, Forked):
            self._on_loss(lost)


def _copy_named_by(request: AnyRequest) -> str | None:
    """The digest of the copy that a control restores, which the store has to hold then."""
    return copy_named_by(request.control) if isinstance(request, ControlRequest) else None


def _size(request: AnyRequest) -> tuple[int, int]:
    """Bytes and records of a request."""
    parts = request.parts
    if len(parts) == 1:
        return len(parts[0].body), parts[0].count
    return sum(len(part.body) for part in parts), sum(part.count for part in parts)


def _by_request(requests: Sequence[AnyRequest], placed: Sequence[Placed]) -> list[Sequence[Placed]]:
    """The places of a group's parts, request by request."""
    found = []
    at = 0
    for request in requests:
        found.append(placed[at : at + len(request.parts)])
        at += len(request.parts)
    return found


def _is_left(place: Placed) -> bool:
    return place.duplicate or place.conflict


class _New:
    """What a group brings into the journal: its rows, their names and ids, its keyed requests."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        self.named: list[tuple[int, bytes]] = []
        self.names: list[tuple[int, str]] = []
        self.asked: list[Asked] = []

    def add(self, request: Request, placed: Sequence[Placed]) -> None:
        if len(placed) == 1 and _is_left(placed[0]):
            return
        if len(placed) == 1 or not any(map(_is_left, placed)):
            self.rows.append(request.rows)
            self.names += request.names
        else:
            self._add_kept(request, placed)
        if isinstance(request.rows, ListedRows) and request.rows.ids:
            self._name(request, placed)
        if request.key is not None and not _is_left(placed[0]):
            self._ask(request, request.key, placed)

    def _name(self, request: Request, placed: Sequence[Placed]) -> None:
        for part, place in zip(request.parts, placed, strict=True):
            if part.key is not None and names_a_row(part.key) and not _is_left(place):
                self.named.append((place.first_seq, part.key))

    def _add_kept(self, request: Request, placed: Sequence[Placed]) -> None:
        """Of a request of which some parts were left out: the others."""
        rows = request.rows
        assert isinstance(rows, ListedRows)
        batch, first = as_batch([rows]), 0
        for part, place in zip(request.parts, placed, strict=True):
            stop = first + part.count
            if part.count and not _is_left(place):
                self.rows.append(batch[first:stop])
                self.names += rows.names_of(first, stop)
            first = stop

    def _ask(self, request: Request, key: bytes, placed: Sequence[Placed]) -> None:
        if len(placed) == 1:
            self.asked.append(Asked(key, placed[0].first_seq, placed[0].count))
            return
        kept = [
            (part, place)
            for part, place in zip(request.parts, placed, strict=True)
            if part.count and not _is_left(place)
        ]
        if kept:
            ids = tuple(part.key for part, _ in kept if part.key is not None and part.key != key)
            count = sum(part.count for part, _ in kept)
            self.asked.append(Asked(key, kept[0][1].first_seq, count, ids))


def _receipts(
    requests: Sequence[AnyRequest],
    placed: Sequence[Sequence[Placed]],
    outcome: Outcome | None,
    answers: Answers,
) -> list[Receipt]:
    """One receipt for each request, cut from the outcome of the whole group."""
    scores, losses, rejected = [], [], []
    predicted: list[str | None] | None = None
    if outcome is not None:
        scores, losses = outcome.scores.tolist(), outcome.losses.tolist()
        rejected = outcome.rejected.tolist()
        if outcome.predicted is not None:
            places = outcome.predicted.tolist()
            predicted = [outcome.classes[place] if place >= 0 else None for place in places]
    receipts = []
    first = 0
    for request, its_places in zip(requests, placed, strict=True):
        receipt = _placed_receipt(request, its_places)
        receipts.append(receipt)
        count = receipt.placed.count
        if _is_left(receipt.placed) or (count and outcome is None):
            if request.key is not None and not receipt.placed.conflict:
                receipt.answer = answers.find(request.key, receipt.placed.seq)
            continue
        last = first + count
        receipt.scores = scores[first:last]
        receipt.losses = losses[first:last]
        receipt.predicted = None if predicted is None else predicted[first:last]
        receipt.rejected = rejected[first:last]
        first = last
    return receipts


def _placed_receipt(request: AnyRequest, placed: Sequence[Placed]) -> Receipt:
    """Where a request stands as a whole, and which of its rows were left out."""
    of_key = isinstance(request, ControlRequest) or request.key is not None
    if (len(placed) == 1 and not _is_left(placed[0])) or (of_key and _is_left(placed[0])):
        return Receipt(placed[0])
    rows: list[int] = []
    duplicates: list[tuple[int, int]] = []
    conflicts: list[int] = []
    first = 0
    for part, place in zip(request.parts, placed, strict=True):
        stop = first + part.count
        if place.duplicate:
            duplicates.append((first, place.seq))
        elif place.conflict:
            conflicts.append(first)
        else:
            rows += range(first, stop)
        first = stop
    kept = [place for place in placed if not _is_left(place)]
    # Where nothing is new, up to where the rows that are known stand.
    seq = max((place.seq for place in kept or placed if not place.conflict), default=0)
    whole = Placed(seq + 1 - len(rows), seq, len(rows))
    journalled = rows if duplicates or conflicts else None
    return Receipt(whole, rows=journalled, duplicates=duplicates, conflicts=conflicts)
