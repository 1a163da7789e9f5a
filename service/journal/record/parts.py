"""Table of the parts of a body, filled and read by kernels.

Most parts have one row, and one read brings some ten thousand parts. Making an object for each
would take longer than learning it.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from dualstream.service.journal.record import format as f, kernels as k
from dualstream.solvers.rows.shared_ones import shared_ones

LOOP_PARTS = 32
"""For up to this many parts, a Python loop is faster than NumPy."""
_VALUES, _WEIGHTS = 3 << f.VALUES_SHIFT, 3 << f.WEIGHTS_SHIFT


class Parts:
    """Headers of the parts of a body, made on access.

    table   (n, FIELDS) int64, see kernels.py
    totals  what `kernels.find_parts` returns for all parts
    """

    def __init__(
        self,
        body: bytes,
        bytes_: npt.NDArray[np.uint8],
        table: npt.NDArray[np.int64],
        totals: tuple[int, int, int, int],
    ):
        self.body, self._bytes, self.table = body, bytes_, table
        # From the kernel: for the few parts of a typical body, NumPy sums would take longer
        # than finding the parts.
        self._records, self._entries, keys, self._columns = totals
        self.has_keys = keys > 0

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> f.Header:
        part = self.table[number].tolist()
        mark = part[k.MARK]
        return f.Header(
            part[k.COUNT],
            self.key(number) if part[k.KEY] >= 0 else None,
            self.body[mark : mark + f.FINGERPRINT_BYTES] if mark >= 0 else None,
            bool(part[k.FLAGS] & f.CONTINUES),
        )

    def key(self, number: int) -> bytes:
        """The kind byte and the key of a part that has a key."""
        start, end = self.table[number, k.KEY : k.KEY_END + 1].tolist()
        return self.body[start:end]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """(n,): number of records of each part."""
        return self.table[:, k.COUNT]

    @property
    def continuing(self) -> npt.NDArray[np.bool_]:
        """(n,): does the part continue a keyed request of an earlier part?"""
        does: npt.NDArray[np.bool_] = self.table[:, k.FLAGS] & f.CONTINUES != 0
        return does

    @cached_property
    def key_kinds(self) -> npt.NDArray[np.int64]:
        """(n,): kind of each part's key, 0 if it has none."""
        at = self.table[:, k.KEY]
        return np.where(at >= 0, self._bytes[np.maximum(at, 0)], 0).astype(np.int64)

    def found(self, number: int) -> f.Found:
        """Offsets of a part's content."""
        start, end, flags, columns = self.table[number, : k.COUNT].tolist()
        return f.Found(self[number], flags, columns, start, end)

    def runs(self) -> Iterator[tuple[int, int, bool]]:
        """Runs of only plain or only other parts: (first, one past the last, is plain)."""
        if self._entries >= 0:
            if len(self):
                yield 0, len(self), True
            return
        is_plain = self.table[:, k.ENTRIES] >= 0
        ends = [*(np.flatnonzero(is_plain[1:] != is_plain[:-1]) + 1).tolist(), len(self)]
        first = 0
        for stop in ends if ends[0] else ():
            yield first, stop, bool(is_plain[first])
            first = stop

    def rows(self, first: int, stop: int) -> f.Rows | None:
        """Rows of plain parts, concatenated; None if all are empty.

        Raises CorruptRecord.
        """
        table = self.table[first:stop]
        if stop - first == len(self):
            count, entries, columns = self._records, self._entries, self._columns
        else:
            count, entries = int(table[:, k.COUNT].sum()), int(table[:, k.ENTRIES].sum())
            columns = int(np.bitwise_or.reduce(table[:, k.COLUMNS]))
        if count == 0:
            return None
        has_values, has_weights = columns & _VALUES, columns & _WEIGHTS
        values = np.empty(entries if has_values else 0)
        weights, labels = np.empty(count if has_weights else 0), np.empty(count)
        indptr, indices = np.empty(count + 1, np.int64), np.empty(entries, np.int32)
        scratch = np.empty(1, np.float32)
        wrong = k.take_rows(
            self._bytes, table, indptr, indices,
            values, values.view(np.uint8), labels, labels.view(np.uint8),
            weights, weights.view(np.uint8), scratch, scratch.view(np.uint8),
        )  # fmt: skip
        if wrong >= 0:
            raise f.CorruptRecord(f"an index above {f.MAX_INDEX}")
        if not has_values:
            values = shared_ones(entries)
        return f.Rows(indptr, indices, values, labels, weights if has_weights else None)


def find_parts(body: bytes) -> tuple[Parts, int]:
    """Find the parts of a body and verify their checksums; return them and where they end.

    That is the end of the body, or the beginning of the first part that is damaged or unknown.
    """
    bytes_ = np.frombuffer(body, np.uint8)
    table = np.empty((len(body) // k.SMALLEST, k.FIELDS), np.int64)
    parts_found = k.find_parts(bytes_, k.CRC_TABLES, table)
    count, end, records, entries, keys, columns, large = parts_found
    table = table[:count]
    if large:
        end = _first_damaged(body, table, end)
    return Parts(body, bytes_, table, (records, entries, keys, columns)), end


def _first_damaged(body: bytes, table: npt.NDArray[np.int64], end: int) -> int:
    """Offset of the first large part whose checksum does not match; `end` if all do."""
    if len(table) > LOOP_PARTS:
        table = table[table[:, k.END] - table[:, k.BEGIN] > k.LARGE]
    for part in table.tolist():
        begin, stop = part[k.BEGIN], part[k.END]
        is_large = stop - begin > k.LARGE
        if is_large and crc32c(body[begin:stop]) != int.from_bytes(body[stop : stop + 4], "little"):
            return int(begin)
    return end
