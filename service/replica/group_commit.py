"""Groups of requests that are committed together, and their appends.

Waiting requests join a group in order until it is full. A control forms its own group, and so do
rows that move a cursor.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    Entry,
    Journal,
    JournalUnavailable,
    LogPosition,
    NonceForgotten,
    OutcomeUnknown,
    Part,
)
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.controls import copy_named_by
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import (
    AnyRequest,
    ControlRequest,
    Receipt,
    Request,
    is_left,
)

# Limits of a group. A larger request forms a group of its own.
GROUP_BYTES = 1024 * 1024
GROUP_ROWS = 4096
BULK_ROWS = 1000
"""Learning this many rows takes about as long as appending them."""

RequestQueue = deque[tuple[AnyRequest, "asyncio.Future[Receipt]"]]
"""Waiting requests of one model, each with its future."""


class Group(msgspec.Struct):
    """Requests that are committed together."""

    requests: list[AnyRequest]
    futures: "list[asyncio.Future[Receipt]]"
    parts: Sequence[Part]
    rows: int
    nonce: bytes
    began: float
    sent: "asyncio.Future[Appended] | None" = None
    """First append, in flight or answered."""
    appending: "asyncio.Task[Appended] | None" = None
    """Append that began before the group in front was learned."""
    front: LogPosition | None = None
    """Position of the replica once the group in front is learned, until then."""
    first_known: LogPosition | None = None
    """Log position that the first append of this group was based on."""

    @property
    def size(self) -> int:
        """Bytes of its entry."""
        return sum([len(part.body) for part in self.parts])


def next_group(queue: RequestQueue, clock: Clock) -> Group:
    """Remove the next group from a queue that is not empty."""
    first, future = queue.popleft()
    requests, futures, parts, rows = [first], [future], first.parts, _rows(first)
    if queue and not _forms_own_group(first):
        parts, size = list(parts), _size(first)
        while queue:
            following, future = queue[0]
            size += _size(following)
            rows += _rows(following)
            if size > GROUP_BYTES or rows > GROUP_ROWS or _forms_own_group(following):
                rows -= _rows(following)
                break
            queue.popleft()
            requests.append(following)
            futures.append(future)
            parts += following.parts
    return Group(requests, futures, parts, rows, clock.new_nonce(), clock.now())


def is_bulk(request: AnyRequest) -> bool:
    """Does the request alone fill a bulk group of rows?"""
    return not _forms_own_group(request) and _rows(request) >= BULK_ROWS


def is_repeatable(group: Group) -> bool:
    """Can the group be appended twice without being journalled twice?

    True if every part has a key, or if the group moves a cursor.
    """
    first = group.requests[0]
    if isinstance(first, Request) and first.cursor is not None:
        return True
    return all([_is_repeatable(request) for request in group.requests])


def _is_repeatable(request: AnyRequest) -> bool:
    return request.key is not None or all([part.key is not None for part in request.parts])


def is_complete(appended: Appended) -> bool:
    """Is the whole append as durable as requested, and free of key conflicts?"""
    return appended.shortfall is None and not any(placed.conflict for placed in appended.placed)


def is_whole(group: Group, appended: Appended) -> bool:
    """Did the append make one entry of these rows that follows the returned entries?"""
    is_of_rows = not isinstance(group.requests[0], ControlRequest)
    is_linked = appended.seq is not None and not appended.more
    return is_of_rows and is_linked and not any(map(is_left, appended.placed))


def own_entry(group: Group, appended: Appended) -> Entry:
    """The group's journal entry. Its time is 0, because the store's time is not returned."""
    assert appended.first_seq is not None
    assert appended.seq is not None
    body = b"".join([part.body for part in group.parts])
    return Entry(appended.first_seq, appended.seq, group.nonce, appended.chain, 0, body)


def _forms_own_group(request: AnyRequest) -> bool:
    """Must the request form a group of its own?"""
    return isinstance(request, ControlRequest) or request.cursor is not None


def _rows(request: AnyRequest) -> int:
    """Number of rows; 0 for a control."""
    return len(request.rows) if isinstance(request, Request) else 0


def _size(request: AnyRequest) -> int:
    """Size of the request in bytes."""
    return sum([len(part.body) for part in request.parts])


FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


class Appending:
    """Appends one model's groups after the entries that its replica has applied."""

    __slots__ = ("_journal", "_clock", "_replica", "_timeout_s")

    def __init__(self, journal: Journal, replica: Replica, timeout_s: float, clock: Clock) -> None:
        self._journal = journal
        self._replica = replica
        self._timeout_s = timeout_s
        self._clock = clock

    def send(self, group: Group) -> "asyncio.Future[Appended]":
        """Append the group once. The future also carries errors."""
        try:
            replica, first = self._replica, group.requests[0]
            cursor, copy, change, held = None, None, None, None
            if isinstance(first, Request):
                cursor = first.cursor
            else:  # the store must hold the copy that the control names
                copy, change, held = copy_named_by(first.control), first.change, first.held
            place = replica.place
            if group.front is not None and group.front.seq > place.seq:
                place = group.front
            repeats = group.first_known if cursor is None else None
            group.first_known = repeats or place
            request = AppendRequest(
                replica.id,
                replica.incarnation,
                group.nonce,
                place.seq,
                group.parts,
                cursor,
                copy,
                change,
                held,
                repeats,
            )
            return asyncio.ensure_future(self._journal.append(request))
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def until_known(self, group: Group) -> Appended:
        """Append the group, or await its append in flight, until the outcome is known.

        Repeats an append of unknown outcome with the same nonce. Raises JournalUnavailable when
        nothing was done. Raises OutcomeUnknown at the deadline, or when the store no longer
        remembers the nonce.
        """
        sent, group.sent = group.sent, None
        began = self._clock.now() if sent is None else group.began
        deadline = began + self._timeout_s
        pause = FIRST_PAUSE_S
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return await (self.send(group) if sent is None else sent)
            except NonceForgotten:
                if not is_repeatable(group):
                    raise
                # The keys prevent duplicates, so append as if for the first time.
                sent = group.first_known = None
                continue
            except OutcomeUnknown as error:
                unknown = error
            except JournalUnavailable as error:
                if unknown is None:
                    raise
                unknown = OutcomeUnknown(str(error))
            sent = None
            if self._clock.now() + pause > deadline:
                raise unknown
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
