"""Group commit: what waits for one model goes into one append, one apply, many answers.

Requests keep their order. A control is a group of its own, so that it is answered for itself.
No timer and no added delay: while an append is on its way the next group gathers behind it.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from service.codecs import ListedRows, Rows, as_batch, class_texts
from service.controls import Order, Verdict, control_of
from service.journal.protocol import (
    Appended,
    Journal,
    JournalUnavailable,
    ModelChanged,
    OutcomeUnknown,
    Part,
    Placed,
)
from service.journal.record import Control, decode, encode_control, encode_rows
from service.outliving import outliving
from service.outside import REAL, Outside
from service.replica import Applied, Forked, Replica
from solvers import Outcome

log = logging.getLogger("dualstream.committer")

# Requests join a group until it holds this much; a larger request is a group of its own.
GROUP_BYTES = 1024 * 1024
GROUP_ROWS = 4096
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


@dataclass(slots=True)
class Request:
    """One learn request: one part, and beside it its rows."""

    part: Part
    rows: Rows

    @classmethod
    def of(cls, rows: Rows, key: bytes | None, fingerprint: bytes | None) -> Self:
        """A request of these rows, under the stored `key` if it has one."""
        names = rows.names if isinstance(rows, ListedRows) else []
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
        return cls(Part(body, len(rows), key, fingerprint), rows)


@dataclass(slots=True)
class ControlRequest:
    """One control: a part of one record, and beside it the control itself."""

    part: Part
    control: Control

    @classmethod
    def of(cls, order: Order, key: bytes | None = None) -> Self:
        """A request of this order, under the stored `key` if it has one."""
        given = control_of(order)
        plain = body = encode_control(given.kind, given.fields)
        fingerprint = None
        if key is not None:
            fingerprint = hashlib.sha256(plain).digest()[:16]
            body = encode_control(given.kind, given.fields, key=key, fingerprint=fingerprint)
        # As everyone else will read it: what is given may have its fields in another order.
        ((_, control),) = decode(plain)
        assert isinstance(control, Control)
        return cls(Part(body, 1, key, fingerprint), control)


AnyRequest = Request | ControlRequest


@dataclass(slots=True)
class Receipt:
    """Where a request stands in the journal and, if it was new, what learning it did."""

    placed: Placed
    scores: list[float] | None = None
    losses: list[float] | None = None
    predicted: list[str | None] | None = None
    """Multiclass: the class of each row as it was scored; None where no class was known."""
    rejected: list[bool] | None = None
    verdict: Verdict | None = None
    """What became of a control."""


class Committer:
    """Appends one model's requests in their order of arrival."""

    def __init__(
        self,
        journal: Journal,
        replica: Replica,
        append_timeout_s: float,
        on_group: Callable[[int, float], None] = lambda rows, seconds: None,
        on_fork: Callable[[str], None] = lambda model: None,
        on_advance: Callable[[int, int], None] = lambda before, after: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
        outside: Outside = REAL,
    ) -> None:
        self._journal = journal
        self._replica = replica
        self._append_timeout_s = append_timeout_s
        self._on_group = on_group
        self._on_fork = on_fork
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
            except Forked as fork:
                await self._rebuild(fork)
            self._on_advance(before, replica.seq)

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
            if not isinstance(error, OutcomeUnknown | JournalUnavailable | ModelChanged):
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
        size, rows = len(group[0][0].part.body), group[0][0].part.count
        while self._waiting and isinstance(group[0][0], Request):
            following = self._waiting[0][0]
            size += len(following.part.body)
            rows += following.part.count
            if size > GROUP_BYTES or rows > GROUP_ROWS or isinstance(following, ControlRequest):
                break
            group.append(self._waiting.popleft())
        return group

    async def _commit(self, requests: Sequence[AnyRequest]) -> list[Receipt]:
        nonce = self._outside.nonce()
        began = self._outside.clock()
        self._replica.watched[nonce] = None
        try:
            appended = await self._append(nonce, [request.part for request in requests])
            rows = sum(r.part.count for r in requests if isinstance(r, Request))
            self._on_group(rows, self._outside.clock() - began)
            new = [
                request
                for request, placed in zip(requests, appended.placed, strict=True)
                if not placed.duplicate and not placed.conflict
            ]
            applied = await self._apply(nonce, appended, new)
        finally:
            del self._replica.watched[nonce]
        if isinstance(applied, Verdict):
            return [Receipt(appended.placed[0], verdict=applied)]
        return _receipts(requests, appended.placed, applied)

    async def _append(self, nonce: bytes, parts: Sequence[Part]) -> Appended:
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
                    replica.id, replica.incarnation, nonce, replica.seq, parts
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
        self, nonce: bytes, appended: Appended, new: Sequence[AnyRequest]
    ) -> Applied | None:
        """Bring the replica past the append; what became of the new requests, None without any.

        Raises OutcomeUnknown when the journal has lost it again.
        """
        replica = self._replica
        try:
            if appended.entries:
                await replica.apply([e for e in appended.entries if e.seq > replica.seq])
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
        except Forked as fork:
            await self._rebuild(fork)
            self._check_kept(appended)
            return replica.watched[nonce]
        if isinstance(new[0], ControlRequest):
            return await replica.apply_own_control(appended.seq, appended.chain, new[0].control)
        own = [request.rows for request in new if isinstance(request, Request)]
        names = [pair for rows in own if isinstance(rows, ListedRows) for pair in rows.names]
        return await replica.apply_own(appended.seq, appended.chain, as_batch(own), names)

    def _check_kept(self, appended: Appended) -> None:
        """Raise OutcomeUnknown when the journal, just read to its end, ends before what it said."""
        if any(placed.seq > self._replica.seq for placed in appended.placed):
            raise OutcomeUnknown("the store has lost what it had appended")

    async def _rebuild(self, fork: Forked) -> None:
        """Throw the replica's state away for the journal's. Raises ModelChanged."""
        replica = self._replica
        replica.is_forked = True
        log.warning("%s; rebuilding it from the journal", fork)
        self._on_fork(replica.id)
        record = await self._journal.get(replica.id)
        if record.incarnation != replica.incarnation:
            raise ModelChanged(replica.id) from None
        await replica.rebuild(record, self._journal)


def _receipts(
    requests: Sequence[AnyRequest], placed: Sequence[Placed], outcome: Outcome | None
) -> list[Receipt]:
    """One receipt for each request, cut from the outcome of the whole group."""
    if outcome is None:
        return [Receipt(place) for place in placed]
    scores, losses = outcome.scores.tolist(), outcome.losses.tolist()
    rejected = outcome.rejected.tolist()
    predicted: list[str | None] | None = None
    if outcome.predicted is not None:
        places = outcome.predicted.tolist()
        predicted = [outcome.classes[place] if place >= 0 else None for place in places]
    receipts = []
    first = 0
    for request, place in zip(requests, placed, strict=True):
        if place.duplicate or place.conflict:
            receipts.append(Receipt(place))
            continue
        last = first + request.part.count
        receipts.append(
            Receipt(
                place,
                scores[first:last],
                losses[first:last],
                None if predicted is None else predicted[first:last],
                rejected[first:last],
            )
        )
        first = last
    return receipts
