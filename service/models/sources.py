"""Sources of a model: exactly-once learning of ordered sources by their offsets.

A source has a cursor in the journal, the offset of its next batch. The append that journals a
batch's rows compares and sets the cursor. So of two requests with the same batch, one is learned.
"""

import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from dualstream.service.codecs import without_rows
from dualstream.service.journal.audit import Author
from dualstream.service.journal.protocol import AppendRequest, CursorMove, CursorMoved, Journal
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import Receipt, Request
from dualstream.wire.problem_json import Problem, quoted
from dualstream.wire.sources import Offset, Source

PREFIX = "source:"
"""Of the names of their cursors."""
MAX_SOURCES = 1000
"""Sources of one model. Requests that arrive at once may create a few more."""


class SourceCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored value of a source's cursor.

    rows, refused  rows of its batches that passed the checks of a row, and those that did not
    updated_ms     wall clock of the worker that moved it, for display only
    lag            rows after the last batch, as its reader reported
    """

    next: Offset
    rows: int = 0
    refused: int = 0
    updated_ms: int = 0
    lag: int | None = None


class LearnedBatch(NamedTuple):
    """What became of a batch: the cursor after it, and the receipt of its append."""

    cursor: SourceCursor
    receipt: Receipt
    is_duplicate: bool


class Match(Enum):
    """How a batch relates to the cursor of its source."""

    NEXT = "next"
    LEARNED = "learned"
    ELSEWHERE = "elsewhere"


def match(cursor: SourceCursor | None, source: Source) -> Match:
    """Is the batch the next one, was it learned before, or neither?"""
    if cursor is None or cursor.next == source.from_:
        return Match.NEXT
    if isinstance(cursor.next, int) and source.is_numeric:
        assert source.to is not None
        return Match.LEARNED if source.to < cursor.next else Match.ELSEWHERE
    return Match.LEARNED if cursor.next == source.next else Match.ELSEWHERE


async def learn_batch(
    model: Model, source: Source, request: Request | None, rows: int, refused: int
) -> LearnedBatch:
    """Learn the rows of `request` if the batch is the next one of its source, and move the cursor.

    Without a request, the batch has no good row and only the cursor moves. `rows` and `refused`
    count the batch's good and bad rows. Raises Problem 409 if the cursor is elsewhere, if there is
    none and the batch is not the first one, or if the model has too many sources; what
    `Model.submit` raises.
    """
    journal, where = model.deps.journal, (model.record.id, model.record.incarnation)
    name = PREFIX + source.name
    stored = await journal.cursor(*where, name)
    while True:
        cursor = None if stored is None else decode_cursor(stored)
        match_kind = match(cursor, source)
        if cursor is None:
            if not source.first:
                raise _unknown(model, source)
            await _check_count(journal, where)
        elif match_kind is Match.ELSEWHERE:
            raise _moved(source, cursor)
        if match_kind is Match.NEXT:
            moved = _after(cursor, source, rows, refused)
            submitted = request or _without_rows(model)
            submitted.cursor = CursorMove(name, stored, encode_cursor(moved))
        else:
            # An append that changes nothing: it is answered once the first one is as durable as
            # required, and afterwards this replica includes the batch.
            assert cursor is not None
            moved, submitted = cursor, _without_rows(model)
            submitted.cursor = CursorMove(name, stored, stored)
        try:
            receipt = await model.submit(submitted)
        except CursorMoved as error:
            stored = error.value
            continue
        return LearnedBatch(moved, receipt, match_kind is Match.LEARNED)


def _after(cursor: SourceCursor | None, source: Source, rows: int, refused: int) -> SourceCursor:
    before = cursor or SourceCursor(source.following)
    return SourceCursor(
        source.following, before.rows + rows, before.refused + refused, _now_ms(), source.lag
    )


def _without_rows(model: Model) -> Request:
    return Request([], without_rows(model.row_schema))


def _moved(source: Source, cursor: SourceCursor) -> Problem:
    """Problem 409 with the offset that the source's next batch must begin at."""
    is_mixed = isinstance(cursor.next, int) != source.is_numeric
    kinds = {True: "integers", False: "texts"}
    why = (
        f"its offsets are {kinds[not source.is_numeric]}, and the batch has "
        f"{kinds[source.is_numeric]}"
        if is_mixed
        else f"the batch begins at {quoted(source.from_)}"
    )
    detail = (
        f"source {quoted(source.name)} is at offset {quoted(cursor.next)}, but {why}; nothing was"
        f" learned: continue at the offset in `cursor`"
    )
    return Problem(409, "source-moved", detail, source=source.name, cursor=cursor.next)


def _unknown(model: Model, source: Source) -> Problem:
    """Problem 409: to learn this batch would leave out all rows of the source before it."""
    detail = (
        f"model {model.record.id!r} does not know the source {quoted(source.name)}; nothing was"
        " learned: begin at its first row, and send that batch with the parameter `first`"
    )
    return Problem(409, "unknown-source", detail, source=source.name)


async def read_sources(model: Model) -> dict[str, SourceCursor]:
    """The cursors of all sources by name. Raises ModelChanged, JournalUnavailable."""
    record = model.record
    cursors = await model.deps.journal.cursors(record.id, record.incarnation, PREFIX)
    return {name.removeprefix(PREFIX): decode_cursor(text) for name, text in cursors.items()}


async def set_source(model: Model, source: str, offset: Offset, author: Author) -> SourceCursor:
    """Set the next offset of a source; its counts stay. Logged as a change.

    Raises Problem 409 if the model has too many sources, and what an append raises.
    """

    def put(cursor: SourceCursor | None) -> SourceCursor:
        before = cursor or SourceCursor(offset)
        return msgspec.structs.replace(before, next=offset, updated_ms=_now_ms(), lag=None)

    moved = await _change(model, source, put, author, "source_set")
    assert moved is not None
    return moved


async def forget_source(model: Model, source: str, author: Author) -> None:
    """Delete the cursor of a source. Logged as a change. Raises Problem 404, what an append
    raises."""

    def drop(cursor: SourceCursor | None) -> None:
        if cursor is None:
            detail = f"model {model.record.id!r} has no source {quoted(source)}"
            raise Problem(404, "unknown-source", detail)

    await _change(model, source, drop, author, "source_forget")


async def _change(
    model: Model,
    source: str,
    change: Callable[[SourceCursor | None], SourceCursor | None],
    author: Author,
    action: str,
) -> SourceCursor | None:
    """Compare-and-set until no other request came first."""
    journal, where = model.deps.journal, (model.record.id, model.record.incarnation)
    name = PREFIX + source
    stored = await journal.cursor(*where, name)
    while True:
        before = None if stored is None else decode_cursor(stored)
        after = change(before)
        if before is None:
            await _check_count(journal, where)
        move = CursorMove(name, stored, None if after is None else encode_cursor(after))
        detail = {"source": source, "before": None if before is None else before.next}
        if after is not None:
            detail["next"] = after.next
        request = AppendRequest(
            *where,
            model.clock.new_nonce(),
            model.replica.seq,
            (),
            move,
            change=author.change(action, **detail),
        )
        try:
            await journal.append(request)
        except CursorMoved as moved:
            stored = moved.value
            continue
        return after


async def _check_count(journal: Journal, where: tuple[str, str]) -> None:
    if len(await journal.cursors(*where, PREFIX)) >= MAX_SOURCES:
        detail = (
            f"model {where[0]!r} has {MAX_SOURCES} sources; forget one with"
            " DELETE /models/{id}/sources/{name}"
        )
        raise Problem(409, "too-many-sources", detail)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def encode_cursor(cursor: SourceCursor) -> str:
    return msgspec.json.encode(cursor).decode()


decode_cursor = msgspec.json.Decoder(SourceCursor).decode
