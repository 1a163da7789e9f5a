"""Quarantined rows: rows journalled during a pause, read from the journal again."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dualstream.service.concurrency import run_copy_in_thread
from dualstream.service.features.guard.state import Guarding
from dualstream.service.journal.protocol import Entry, Journal
from dualstream.service.journal.record import Control, Rows, decode_merged
from dualstream.service.replica.entries import NamesSince, as_batch, names_by_entry
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.row_ids import RowIds
from dualstream.service.replica.state import ModelState, PositionedState

READ_BYTES = 4 * 1024 * 1024
"""Bytes read at once, which bounds the memory for a quarantine of any size."""


class QuarantinedRows(NamedTuple):
    """Consecutive quarantined rows: begin .. end - 1 of `rows`.

    `first_seq` is the seq of the first of `rows`.
    """

    first_seq: int
    rows: Rows
    names: list[NamesSince]
    begin: int
    """Rows before this index, and from `end` on, are not quarantined."""
    end: int
    ids: RowIds
    """Rows with an id, of everything that was read."""


class LearnedCopy(NamedTuple):
    """A copy of a state that learned the quarantined rows, and their number."""

    state: ModelState
    rows: int


async def learn_in_copy(paused: PositionedState, journal: Journal) -> LearnedCopy:
    """Learn the quarantined rows in a copy of the state.

    The replica keeps its state and serves predictions. If the journal cannot be read to the end of
    the quarantine, nothing has changed.
    """
    async with paused.still():
        copy, learned = await run_copy_in_thread(paused.copied), 0
    guarding = copy.parts.find(Guarding)
    assert guarding is not None
    copy.parts.absent.learn_after(guarding.pauses.learned_through)
    async for some in read_quarantine(paused, journal):
        learned += await asyncio.to_thread(learn_quarantined, copy, some)
    return LearnedCopy(copy.state, learned)


async def read_quarantine(
    paused: PositionedState, journal: Journal
) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries that hold the quarantine, in order, one read at a time.

    Raises Trimmed. Raises Forked, at the end at the latest, if the journal holds other entries than
    the replica applied.
    """
    guarding = paused.parts.find(Guarding)
    assert guarding is not None
    after = guarding.pauses.held_from
    chain = paused.chain
    while after < paused.seq:
        some = await journal.read(paused.id, paused.incarnation, after, READ_BYTES)
        if not some:
            raise Forked(f"model {paused.id!r}: the journal ends at seq {after} already")
        whole = [entry for entry in some if entry.seq <= paused.seq]
        if whole:
            chain = whole[-1].chain
        after = some[-1].seq
        yield some
    if chain != paused.chain:
        raise Forked(f"model {paused.id!r}: the quarantine was replaced in the journal")


def learn_quarantined(resuming: PositionedState, entries: Sequence[Entry]) -> int:
    """Learn the quarantined rows of these entries. Return the number of rows learned."""
    guarding = resuming.parts.find(Guarding)
    assert guarding is not None
    learned = 0
    for some in quarantined_rows(entries, guarding.pauses.held_from, resuming.seq):
        resuming.keep_names(some.names)
        batch = as_batch(some.rows, resuming.dim, some.first_seq, resuming.parts.absent)
        batch = batch[some.begin : some.end]
        first_seq = some.first_seq + some.begin
        outcome = resuming.learn_rows(batch, first_seq)
        for on_ids in resuming.parts.on_ids:
            on_ids(some.ids, batch, first_seq, outcome)
        learned += len(batch) - int(np.count_nonzero(outcome.rejected))
    return learned


def quarantined_rows(entries: Sequence[Entry], after: int, until: int) -> Iterator[QuarantinedRows]:
    """Yield the rows at after + 1 .. until, in order, without controls."""
    parts, blocks = decode_merged(b"".join(entry.body for entry in entries))
    seq = entries[0].first_seq
    ids = RowIds.within(parts, seq)
    for block in blocks:
        first, seq = seq, seq + (1 if isinstance(block, Control) else len(block))
        if isinstance(block, Control):
            continue
        begin, end = max(0, after + 1 - first), min(len(block), until + 1 - first)
        if begin < end:
            names = names_by_entry(block, first, entries)
            yield QuarantinedRows(first, block, names, begin, end, ids)
