"""The parts of a body as a table, which kernels fill and read.

A part that holds a single row is the rule, and there are some ten thousands of them in what is read
at once: an object for each would take longer than to learn it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from dualstream.service.journal.record import format as f, kernels as k
from dualstream.solvers.core.ones import shared_ones

FEW = 32
"""So many parts are sooner looked at one by one than by sums of numpy's."""
_VALUES, _WEIGHTS = 3 << f.VALUES_SHIFT, 3 << f.WEIGHTS_SHIFT


class Parts(Sequence[f.Header]):
    """The headers of the parts of a body, made when they are asked for.

    table     (n, FIELDS) int64, see `_kernels.py`
    together  what `find_parts` there tells of all parts
    """

    def __init__(
        self,
        body: bytes,
        bytes_: npt.NDArray[np.uint8],
        table: npt.NDArray[np.int64],
        together: tuple[int, int, int, int],
    ):
        self.body, self._bytes, self.table = body, bytes_, table
        # Few parts are the rule while another process appends: there each sum of numpy's would
        # take longer than to find them all.
        self._records, self._entries, keys, self._columns = together
        self.has_keys = keys > 0

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, number: int) -> f.Header: ...
    @overload
    def __getitem__(self, number: slice) -> list[f.Header]: ...
    def __getitem__(self, number: int | slice) -> f.Header | list[f.Header]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        part = self.table[number].tolist()
        mark = part[k.MARK]
        return f.Header(
            part[k.COUNT],
            self.key(number) if part[k.KEY] >= 0 else None,
            self.body[mark : mark + f.FINGERPRINT_BYTES] if mark >= 0 else None,
            bool(part[k.FLAGS] & f.CONTINUES),
        )

    def key(self, number: int) -> bytes:
        """The kind byte and the key of a part that has one."""
        start, end = self.table[number, k.KEY : k.KEY_END + 1].tolist()
        return self.body[start:end]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """(n,): the records of each part."""
        return self.table[:, k.COUNT]

    @property
    def continuing(self) -> npt.NDArray[np.bool_]:
        """(n,): which parts belong to the keyed request that an earlier one opened."""
        does: npt.NDArray[np.bool_] = self.table[:, k.FLAGS] & f.CONTINUES != 0
        return does

    @cached_property
    def key_kinds(self) -> npt.NDArray[np.int64]:
        """(n,): the kind of each part's key, 0 where it has none."""
        at = self.table[:, k.KEY]
        return np.where(at >= 0, self._bytes[np.maximum(at, 0)], 0).astype(np.int64)

    def found(self, number: int) -> f.Found:
        """Where the content of a part stands."""
        start, end, flags, columns = self.table[number, : k.COUNT].tolist()
        return f.Found(self[number], flags, columns, start, end)

    def runs(self) -> Iterator[tuple[int, int, bool]]:
        """Runs of parts that are all plain or all not: the first, the one after the last."""
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
        """The rows of plain parts, joined; None where they are all empty.

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
            raise f.CorruptRecord(f"an index over {f.MAX_INDEX}")
        if not has_values:
            values = shared_ones(entries)
        return f.Rows(indptr, indices, values, labels, weights if has_weights else None)


def find_parts(body: bytes) -> Parts | None:
    """The parts of a body, their checksums checked; None where it is damaged or not known."""
    bytes_ = np.frombuffer(body, np.uint8)
    table = np.empty((len(body) // k.SMALLEST, k.FIELDS), np.int64)
    found = k.find_parts(bytes_, k.CRC_TABLES, table)
    count, end, records, entries, keys, columns, large = found
    table = table[:count]
    if end < len(body) or (large and not _are_intact(body, table)):
        return None
    return Parts(body, bytes_, table, (records, entries, keys, columns))


def _are_intact(body: bytes, table: npt.NDArray[np.int64]) -> bool:
    """Whether the large ones of these parts have their checksum."""
    if len(table) > FEW:
        table = table[table[:, k.END] - table[:, k.BEGIN] > k.LARGE]
    for part in table.tolist():
        begin, end = part[k.BEGIN], part[k.END]
        is_large = end - begin > k.LARGE
        if is_large and crc32c(body[begin:end]) != int.from_bytes(body[end : end + 4], "little"):
            return False
    return True
