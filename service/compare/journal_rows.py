"""The labelled rows of a model's journal, as they are encoded. Read-only."""

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dualstream.client import BadInput
from dualstream.service.compare.file_rows import FileRows, OnRead, check_rows
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.service.journal import open_journal, sqlite_path
from dualstream.service.journal.protocol import Journal, JournalError, ModelRecord
from dualstream.service.journal.record import RecordError, Rows
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.entries import as_batch, decoded
from dualstream.service.replica.point_in_time import kept_from
from dualstream.service.replica.spec import check_spec, read_spec
from dualstream.solvers import Batch, resolve_spec
from dualstream.solvers.jit import Flags
from dualstream.solvers.rows import intercept
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.wire.plural import plural

_WHY_LEFT_OUT = {
    "observed": "have no label",
    "revised": "revise the label of an earlier row",
    "late": "got their labels late, and keep the history with which they were served",
}


def read_journal(store: str, model: str, on_read: OnRead | None = None) -> FileRows:
    """The labelled rows that the journal still has, in their order. Raises BadInput."""
    path = sqlite_path(store)
    if path is not None and not Path(path).exists():
        raise BadInput(f"no store at {path}; give its URL with --store")
    try:
        return asyncio.run(_read(store, model, on_read))
    except (JournalError, RecordError, ValueError) as wrong:
        raise wrong if isinstance(wrong, BadInput) else BadInput(str(wrong)) from None


async def _read(store: str, model: str, on_read: OnRead | None) -> FileRows:
    journal = await open_journal(store)
    try:
        record = await journal.get(model)
        check_spec(record)
        spec = read_spec(record.given)
        first = await kept_from(journal, record)
        resolved = resolve_spec(spec)
        rows = StoredRows(
            inputs_of(resolved).row_width, intercept.width_of(resolved["features"]), {}
        )
        left_out = Counter[str]()
        with closing(rows):
            await _append(journal, record, first - 1, rows, resolved, left_out, on_read)
            rows.finish()
    finally:
        await journal.close()
    read = FileRows(spec, rows, None, why_no_table="a journal has encoded rows")
    check_rows(f"the journal of {model!r}", read, resolved)
    count = f"{plural(len(rows), 'labelled row')}, of records {first:,} to {record.seq:,}"
    read.notes.append(f"the journal of {model!r} has {count}; peers get them as they are encoded")
    if first > 1:
        advice = "a server keeps more with KEEP_RECORDS"
        read.notes.append(f"the journal begins at seq {first:,}, not at 1: {advice}")
    for kind, why in _WHY_LEFT_OUT.items():
        if number := left_out[kind]:
            read.notes.append(f"rows that {why} are left out: {number:,}")
    if number := left_out["rollback"]:
        read.notes.append(f"rollbacks are left out, and rows that they took back count: {number:,}")
    return read


async def _append(
    journal: Journal,
    record: ModelRecord,
    seq: int,
    rows: StoredRows,
    resolved: dict[str, Any],
    left_out: Counter[str],
    on_read: OnRead | None,
) -> None:
    """Add the rows of all records after `seq`."""
    absent, has_history = AbsentSeqs(), bool(resolved.get("history"))
    absent.add(1, seq)
    while seq < record.seq:
        entries = await journal.read(record.id, record.incarnation, seq)
        if not entries:
            break
        for block in decoded(entries)[1]:
            if not isinstance(block, Rows):
                left_out[block.kind] += 1
                seq += 1
                continue
            batch = as_batch(block, rows.dim, seq + 1, absent)
            seq += len(block)
            chosen = _chosen(batch, has_history, left_out)
            rows.append(batch if chosen.all() else batch.take(chosen), {}, None)
        if on_read is not None:
            on_read(seq, rows.appended)


def _chosen(batch: Batch, has_history: bool, left_out: Counter[str]) -> Flags:
    """(n,): rows with a first label."""
    observed = np.isnan(batch.labels)
    revised = np.zeros(len(batch), np.bool_)
    if batch.replaced is not None:
        revised = ~observed & ~np.isnan(batch.replaced)
    late = np.zeros(len(batch), np.bool_)
    if has_history and batch.served is not None:
        late = ~observed & ~revised & ~np.isnan(batch.served)
    for kind, flags in (("observed", observed), ("revised", revised), ("late", late)):
        if count := int(np.count_nonzero(flags)):
            left_out[kind] += count
    return ~(observed | revised | late)
