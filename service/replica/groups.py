"""Groups of requests that are committed together, and what an append sends of them.

Waiting requests join a group in order until it is full. A control forms its own group, and so do
rows that move a cursor.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from dualstream.service.journal.protocol import Appended, AppendRequest, Entry, LogPosition, Part
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.controls import copy_named_by
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


def append_request(group: Group, model: str, incarnation: str, known: LogPosition) -> AppendRequest:
    """The append of a group, after the position `known`. A repetition names the first position."""
    first = group.requests[0]
    cursor, copy, change, held = None, None, None, None
    if isinstance(first, Request):
        cursor = first.cursor
    else:  # the store must hold the copy that the control names
        copy, change, held = copy_named_by(first.control), first.change, first.held
    repeats = group.first_known if cursor is None else None
    return AppendRequest(
        model, incarnation, group.nonce, known.seq, group.parts, cursor, copy, change, held, repeats
    )


def is_bulk(rows: int) -> bool:
    """Does learning this number of rows take about as long as appending them?"""
    return rows >= BULK_ROWS


def is_bulk_request(request: AnyRequest) -> bool:
    """Does the request alone fill a bulk group of rows?"""
    return not _forms_own_group(request) and is_bulk(_rows(request))


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
    return appended.shortfall is None and not any(
        position.conflict for position in appended.positions
    )


def is_whole(group: Group, appended: Appended) -> bool:
    """Did the append make one entry of these rows that follows the returned entries?"""
    is_of_rows = isinstance(group.requests[0], Request)
    is_linked = appended.seq is not None and not appended.more
    return is_of_rows and is_linked and not any(map(is_left, appended.positions))


def own_entry(group: Group, appended: Appended) -> Entry:
    """The group's journal entry. Its time is 0, because the store's time is not returned."""
    assert appended.first_seq is not None
    assert appended.seq is not None
    body = b"".join([part.body for part in group.parts])
    return Entry(appended.first_seq, appended.seq, group.nonce, appended.chain, 0, body)


def _forms_own_group(request: AnyRequest) -> bool:
    """Must the request form a group of its own?"""
    return isinstance(request, ControlRequest) or request.cursor is not None


def stores_rows(request: AnyRequest) -> bool:
    """Does the request store pending rows?"""
    return any([part.pending is not None for part in request.parts])


def _rows(request: AnyRequest) -> int:
    """Number of rows; 0 for a control."""
    return len(request.rows) if isinstance(request, Request) else 0


def _size(request: AnyRequest) -> int:
    """Size of the request in bytes."""
    return sum([len(part.body) for part in request.parts])
