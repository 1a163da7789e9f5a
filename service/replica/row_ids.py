"""Ids of rows among journal entries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dualstream.service.journal.record import ROW_KINDS, Parts


@dataclass(frozen=True, slots=True)
class RowIds:
    """Rows with an id among some entries.

    seqs  (n,) int64  seqs of the rows, ascending
    key               returns the stored key of row 0 .. n - 1
    """

    seqs: np.ndarray
    key: Callable[[int], bytes]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, bytes]]) -> "RowIds":
        """Create from (seq, key) pairs."""
        return cls(np.array([seq for seq, _ in rows], np.int64), lambda number: rows[number][1])

    @classmethod
    def within(cls, parts: Parts, first_seq: int) -> "RowIds":
        """Create from parts; the first part begins at `first_seq`."""
        if not parts.has_keys:
            return NO_IDS
        numbers = np.flatnonzero(np.isin(parts.key_kinds, ROW_KINDS))
        seqs = first_seq + np.cumsum(parts.counts) - parts.counts
        return cls(seqs[numbers], lambda number: parts.key(int(numbers[number])))


NO_IDS = RowIds.of(())


def names_a_row(key: bytes | None) -> bool:
    """Is this the key of a sample id, or of a late label's sample id?"""
    return key is not None and key[0] in ROW_KINDS
