"""Decode journal entries: batches of rows, controls, feature names, keys and ids."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dualstream.service.codecs import label_columns
from dualstream.service.journal.protocol import Entry
from dualstream.service.journal.record import (
    Control,
    CorruptRecord,
    Parts,
    RecordError,
    Rows,
    decode_merged,
    holds_control,
)
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.first_responses import KeyedRequests
from dualstream.service.replica.row_ids import NO_IDS, RowIds
from dualstream.solvers import Batch
from dualstream.solvers.rows.shared_ones import shared_ones

NamesSince = tuple[int, Sequence[tuple[int, str]]]
"""A log position, and (index, name) pairs of features known from it on."""


class Content(NamedTuple):
    """Content of consecutive entries.

    names     of features: (log position from which they are known, (index, name) pairs)
    records   those not yet applied; all rows between two controls form one batch
    requests  those with a key
    ids       of the rows, if a feature follows them
    """

    names: list[NamesSince]
    records: list[Batch | Control]
    requests: KeyedRequests
    ids: RowIds


def content_after(
    seq: int,
    entries: Sequence[Entry],
    dim: int,
    check: Callable[[Control], None],
    with_ids: bool,
    absent: AbsentSeqs,
    until: int | None = None,
) -> Content:
    """Decode consecutive entries for a model of width `dim` whose state is at `seq`.

    `until` is a seq inside the only entry: names that its later rows bring are left out.
    Every control passes `check` before anything is returned, including controls already applied.
    Raises CorruptRecord, UnknownRecord.
    """
    parts, blocks = decoded(entries)
    names: list[NamesSince] = []
    records: list[Batch | Control] = []
    run: list[Batch] = []
    first_seq = entries[0].first_seq
    block_seq, known = first_seq, max(0, seq + 1 - first_seq)
    for block in blocks:
        skipped = min(known, 1 if isinstance(block, Control) else len(block))
        known -= skipped
        if isinstance(block, Control):
            check(block)
            records += [Batch.concat(run)] if run else []
            records += [] if skipped else [block]
            run = []
            block_seq += 1
            continue
        names += names_by_entry(block, block_seq, entries, until)
        block_seq += len(block)
        if skipped < len(block):
            batch = as_batch(block, dim, block_seq - len(block), absent)
            run.append(batch[skipped:] if skipped else batch)
    records += [Batch.concat(run)] if run else []
    ids = RowIds.within(parts, first_seq) if with_ids else NO_IDS
    return Content(names, records, KeyedRequests(parts, first_seq), ids)


def names_by_entry(
    rows: Rows, first_seq: int, entries: Sequence[Entry], until: int | None = None
) -> list[NamesSince]:
    """Names in rows that begin at `first_seq`, each known from the beginning of its entry on.

    So the position does not depend on which entries are read together. With `until`, only names
    that rows up to this seq bring.
    """
    if not rows.names:
        return []
    starts = rows.name_starts or (0,) * len(rows.names)
    named = list(zip(starts, rows.names, strict=True))
    if until is not None:
        named = _named_before(rows, until + 1 - first_seq, named)
    begins = [entry.first_seq for entry in entries]
    found: dict[int, list[tuple[int, str]]] = {}
    for start, pair in named:
        since = begins[max(0, bisect_right(begins, first_seq + start) - 1)]
        found.setdefault(since, []).append(pair)
    return list(found.items())


def _named_before(
    rows: Rows, stop: int, named: Sequence[tuple[int, tuple[int, str]]]
) -> list[tuple[int, tuple[int, str]]]:
    """Names, with the first rows of their parts, that rows before `stop` bring.

    A part's name comes with the first of its rows that has the feature. Only the last part that
    begins before `stop` may end after it.
    """
    last = max((start for start, _ in named if start < stop), default=stop)
    if last == stop:
        return []
    indices = set(rows.indices[rows.indptr[last] : rows.indptr[min(stop, len(rows))]].tolist())
    return [
        (start, pair)
        for start, pair in named
        if start < last or (start == last and pair[0] in indices)
    ]


def as_batch(rows: Rows, dim: int, first_seq: int = 0, absent: AbsentSeqs | None = None) -> Batch:
    """Convert journalled rows to a learner's batch.

    absent  what the state lacks that learns them next; None: no row takes the place of another
    """
    if rows.labels is None:  # observed
        labels, weights = np.full(len(rows), np.nan), np.zeros(len(rows))
        columns = (rows.indptr, rows.indices, rows.values, labels, weights)
        return Batch.of_columns(*columns, dim, (), rows.served_scores, rows.served_parts)
    weights = shared_ones(len(rows)) if rows.weights is None else rows.weights
    before = None
    if rows.earlier is not None and absent is not None:
        before = absent.replaced(rows.earlier, range(first_seq, first_seq + len(rows)))
    labels, replaced, classes = label_columns(rows.labels, before)
    columns = (rows.indptr, rows.indices, rows.values, labels, weights)
    served = rows.served_scores, rows.served_parts
    return Batch.of_columns(*columns, dim, classes, *served, replaced)


def split_at(
    entries: Sequence[Entry], needs_own_run: Callable[[Control], bool]
) -> list[Sequence[Entry]]:
    """Split consecutive entries into runs: a control with `needs_own_run` is a run of its own."""
    alone = [
        n
        for n, entry in enumerate(entries)
        if holds_control(entry.body)
        and any(
            isinstance(block, Control) and needs_own_run(block) for block in decoded([entry])[1]
        )
    ]
    if not alone:
        return [entries]
    edges = sorted({0, len(entries), *alone, *(n + 1 for n in alone)})
    return [entries[first:last] for first, last in pairwise(edges)]


def decoded(entries: Sequence[Entry]) -> tuple[Parts, list[Rows | Control]]:
    """Decode consecutive entries. Raises RecordError, which names the entry."""
    try:
        parts, blocks = decode_merged(b"".join(entry.body for entry in entries))
        records = sum(1 if isinstance(block, Control) else len(block) for block in blocks)
        expected = entries[-1].seq + 1 - entries[0].first_seq
        if records != expected:
            raise CorruptRecord(f"{records} records instead of {expected}")
    except RecordError as error:
        if len(entries) == 1:
            raise type(error)(f"the entry at seq {entries[0].seq}: {error}") from error
        for entry in entries:
            decoded([entry])
        raise
    return parts, blocks
