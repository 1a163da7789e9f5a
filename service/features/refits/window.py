"""Refit window of a model that retains no rows: the last learned rows, read from the journal.

No state depends on this read: a refit enters the model as numbers.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dualstream.service.journal.protocol import Entry, Journal, Trimmed
from dualstream.service.journal.record import Control, Rows, decode_merged
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.entries import as_batch
from dualstream.service.replica.replica import Replica
from dualstream.solvers import Batch

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of rows that are kept. Older rows are dropped."""


async def last_rows(
    journal: Journal,
    replica: Replica,
    until: int,
    rows: int,
    run: Callable[..., Awaitable[Any]],
    is_cancelled: Callable[[], bool],
) -> Batch | None:
    """The learned rows among the last `rows` records up to seq `until`.

    `run` decodes in a thread. None if there are no rows, or if cancelled. Raises what the read
    raises, except Trimmed: trimmed records are left out.
    """
    window = Window(replica.dim, until)
    after = max(0, until - rows)
    while after < until and not is_cancelled():
        try:
            entries = await journal.read(replica.id, replica.incarnation, after)
        except Trimmed as trimmed:
            after = max(after, trimmed.kept_from - 1)
            window = Window(replica.dim, until)  # avoids a gap
            continue
        if not entries:
            break
        await run(window.add, entries, after)
        after = entries[-1].seq
    batch: Batch | None = await run(window.batch)
    return None if is_cancelled() else batch


class Window:
    """Rows of width `dim` by their seq, of records up to `until`."""

    def __init__(self, dim: int, until: int) -> None:
        self._dim, self._until = dim, until
        self._runs: deque[tuple[int, Batch, int]] = deque()
        self._revised: dict[int, tuple[int, Rows]] = {}
        """Journalled rows with revised labels, and the first seq, by the first seq of their run."""
        self._bytes = 0
        self._rollbacks: list[tuple[int, int]] = []

    def add(self, entries: Sequence[Entry], after: int) -> None:
        """Add the records after seq `after` of the next entries."""
        body = b"".join(entry.body for entry in entries)
        seq = entries[0].first_seq
        for block in decode_merged(body)[1]:
            if isinstance(block, Control):
                if after < seq <= self._until:
                    self._add_control(seq, block)
                seq += 1
                continue
            skipped = max(0, after + 1 - seq)
            batch = as_batch(block, self._dim)[skipped : max(0, self._until + 1 - seq)]
            if len(batch):
                size = batch.indices.nbytes + batch.values.nbytes
                self._runs.append((seq + skipped, batch, size))
                if block.earlier is not None:
                    self._revised[seq + skipped] = seq, block
                self._bytes += size
            seq += len(block)
        while self._bytes > MAX_BYTES and len(self._runs) > 1:
            first, _, size = self._runs.popleft()
            self._revised.pop(first, None)
            self._bytes -= size

    def _add_control(self, seq: int, control: Control) -> None:
        if control.kind == "rollback":
            self._rollbacks.append((seq, control.fields["seq"]))
        elif control.kind != "refit":
            # The rows do not show which of them were learned around this control.
            self._runs.clear()
            self._revised.clear()
            self._bytes = 0

    def batch(self) -> Batch | None:
        """The rows that are part of the state at `until`, in order. None if there are none."""
        batches, absent, end = [], AbsentSeqs(), 0
        begin = self._runs[0][0] if self._runs else 1
        for first, last in self._spans():
            first = max(first, begin)
            absent.add(end + 1, first - 1)
            end = max(end, last)
            for seq, batch, _ in self._runs:
                if seq in self._revised:
                    first_seq, block = self._revised[seq]
                    rows = as_batch(block, self._dim, first_seq, absent)
                    batch = rows[seq - first_seq :][: len(batch)]
                part = batch[max(0, first - seq) : max(0, last + 1 - seq)]
                if len(part):
                    batches.append(part)
        return Batch.concat(batches) if batches else None

    def _spans(self) -> list[tuple[int, int]]:
        """Seq ranges of the records that led to the state, oldest first.

        A rollback excludes the records between its target and itself.
        """
        spans, end = [], self._until
        for seq, named in reversed(self._rollbacks):
            if seq <= end:
                spans.append((seq + 1, end))
                end = named
        return [(1, end), *reversed(spans)]
