"""Groups: requests that are committed together, as they are taken off the line; and their appends.

What waits joins in its order until a group holds enough. A control is a group of its own, and so
are rows that move a cursor.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from dualstream.service.clock import Clock
from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    Entry,
    Journal,
    JournalUnavailable,
    NonceForgotten,
    OutcomeUnknown,
    Part,
    Place,
)
from dualstream.service.replica.controls import copy_named_by
from dualstream.service.replica.receipts import Receipt, is_left
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import AnyRequest, ControlRequest, Request

# Requests join a group until it holds this much; a larger request is a group of its own.
GROUP_BYTES = 1024 * 1024
GROUP_ROWS = 4096
BULK_ROWS = 1000
"""So many rows take about as long to learn as to append."""

Line = deque[tuple[AnyRequest, "asyncio.Future[Receipt]"]]
"""Requests that wait for one model, and who waits for each."""


class Group(msgspec.Struct):
    """Requests that are committed together."""

    requests: list[AnyRequest]
    futures: "list[asyncio.Future[Receipt]]"
    parts: Sequence[Part]
    rows: int
    nonce: bytes
    began: float
    sent: "asyncio.Future[Appended] | None" = None
    """Its first append, where that is under way or answered."""
    appending: "asyncio.Task[Appended] | None" = None
    """Its append, where that was begun before the group in front of it was learned."""
    front: Place | None = None
    """Where the replica stands then, as long as that is still to come."""
    asked: Place | None = None
    """Behind what its append was asked for first."""


def next_group(line: Line, clock: Clock) -> Group:
    """Take the first requests off the line, on which there is one at least."""
    first, future = line.popleft()
    requests, futures, parts, rows = [first], [future], first.parts, _rows(first)
    if line and not _is_alone(first):
        parts, size = list(parts), _size(first)
        while line:
            following, future = line[0]
            size += _size(following)
            rows += _rows(following)
            if size > GROUP_BYTES or rows > GROUP_ROWS or _is_alone(following):
                rows -= _rows(following)
                break
            line.popleft()
            requests.append(following)
            futures.append(future)
            parts += following.parts
    return Group(requests, futures, parts, rows, clock.new_nonce(), clock.now())


def is_bulk(request: AnyRequest) -> bool:
    """Whether the request alone makes a group of rows in bulk."""
    return not _is_alone(request) and _rows(request) >= BULK_ROWS


def is_guarded(group: Group) -> bool:
    """Whether all of it has a key, or moves a cursor: it cannot be journalled twice."""
    first = group.requests[0]
    if isinstance(first, Request) and first.cursor is not None:
        return True
    return all([_is_guarded(request) for request in group.requests])


def _is_guarded(request: AnyRequest) -> bool:
    return request.key is not None or all([part.key is not None for part in request.parts])


def is_all_there(appended: Appended) -> bool:
    """Whether all of it is durable as asked, and stands under its own keys."""
    return appended.shortfall is None and not any(placed.conflict for placed in appended.placed)


def is_whole(group: Group, appended: Appended) -> bool:
    """Whether the append made an entry of these rows that follows the entries that it tells."""
    is_of_rows = not isinstance(group.requests[0], ControlRequest)
    is_told = appended.seq is not None and not appended.more
    return is_of_rows and is_told and not any(map(is_left, appended.placed))


def own_entry(group: Group, appended: Appended) -> Entry:
    """As the journal has it, but for the time, which is the store's."""
    assert appended.first_seq is not None
    assert appended.seq is not None
    body = b"".join([part.body for part in group.parts])
    return Entry(appended.first_seq, appended.seq, group.nonce, appended.chain, 0, body)


def _is_alone(request: AnyRequest) -> bool:
    """Whether the request is a group of its own."""
    return isinstance(request, ControlRequest) or request.cursor is not None


def _rows(request: AnyRequest) -> int:
    """How many rows it brings; a control brings none."""
    return len(request.rows) if isinstance(request, Request) else 0


def _size(request: AnyRequest) -> int:
    """Bytes of a request."""
    return sum([len(part.body) for part in request.parts])


FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


class Appending:
    """Appends the groups of one model, behind what its replica has seen."""

    __slots__ = ("_journal", "_clock", "_replica", "_timeout_s")

    def __init__(self, journal: Journal, replica: Replica, timeout_s: float, clock: Clock) -> None:
        self._journal = journal
        self._replica = replica
        self._timeout_s = timeout_s
        self._clock = clock

    def send(self, group: Group) -> "asyncio.Future[Appended]":
        """Append the group once; what is raised, too, is told by the future."""
        try:
            replica, first = self._replica, group.requests[0]
            cursor, copy, change, held = None, None, None, None
            if isinstance(first, Request):
                cursor = first.cursor
            else:  # the store has to hold the copy then
                copy, change, held = copy_named_by(first.control), first.change, first.held
            place = Place(replica.seq, replica.chain)
            if group.front is not None and group.front.seq > place.seq:
                place = group.front
            repeats = group.asked if cursor is None else None
            group.asked = repeats or place
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
        """Append the group, or go on with what is sent of it, until the outcome is known.

        Raises JournalUnavailable when nothing was done, OutcomeUnknown at the deadline, or where
        it comes so late that nobody can tell any more.
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
                if not is_guarded(group):
                    raise
                sent = group.asked = None  # it is asked for as if for the first time
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
