"""Recently applied (seq, chain) pairs. They detect forks and count lost records."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple, Self

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Appended, Entry, LogPosition

KEPT = 4096
"""Number of remembered entries, 16 bytes each."""
KEPT_OUTSIDE = 9
"""Entries remembered of an evicted model: more than a failover usually loses."""


class Forked(Exception):
    """The journal does not continue from the replica: entries were lost or replaced."""


class Lost(NamedTuple):
    """Records that a replica applied and the journal no longer holds.

    `kept` is the last seq on which both agree. If it lies before the remembered entries, `is_all`
    is false and `records` is a lower bound.
    """

    records: int
    kept: int
    is_all: bool


class Lineage:
    """Ends of the last entries that a replica applied: seq and the first 64 bits of chain.

    This is bookkeeping of one process and not part of the state. A rebuild replaces a forked
    replica's lineage by the new one, so that every loss is counted once.
    """

    __slots__ = ("_chains", "_kept", "_uncertain_before", "_seqs", "has_diverged")

    def __init__(self, kept: int | None = KEPT) -> None:
        self._kept = kept
        self._seqs, self._chains = array("Q"), array("Q")
        # Entries before this seq may or may not be in the journal.
        self._uncertain_before = 0
        self.has_diverged = False
        """Does the journal certainly not continue from here?"""

    @property
    def end(self) -> int:
        """Seq at the end of the last entry applied whole."""
        return self._seqs[-1]

    @property
    def start(self) -> int:
        """Seq at the end of the first remembered entry."""
        return self._seqs[0]

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        return getsizeof(self._seqs) + getsizeof(self._chains)

    def begin(self, seq: int, chain: str) -> None:
        """Start at this position and forget everything before it."""
        del self._seqs[:], self._chains[:]
        self.add(seq, chain)

    def add(self, seq: int, chain: str) -> None:
        """Add the end of an applied entry."""
        while self._seqs and self._seqs[-1] >= seq:
            del self._seqs[-1], self._chains[-1]
        self._seqs.append(seq)
        self._chains.append(int(chain[:16], 16))
        if self._kept is not None and len(self._seqs) > 2 * self._kept:
            self._trim(self._kept)

    def add_entries(self, entries: Sequence[Entry]) -> None:
        """Add the ends of applied entries."""
        if self._kept is not None:
            entries = entries[-self._kept :]
        for entry in entries[:1]:
            self.add(entry.seq, entry.chain)
        self._seqs.extend([entry.seq for entry in entries[1:]])
        self._chains.extend([int(entry.chain[:16], 16) for entry in entries[1:]])
        if self._kept is not None and len(self._seqs) > 2 * self._kept:
            self._trim(self._kept)

    def includes(self, seq: int, chain: str) -> bool:
        """Did an entry end at this position, or does the position predate the memory?

        False before a divergence that predates the memory: those entries may be lost.
        """
        if seq < self._seqs[0]:
            return seq >= self._uncertain_before
        return self.holds(seq, chain)

    def holds(self, seq: int, chain: str) -> bool:
        """Is it remembered that an entry ended at this position?"""
        return self._holds(seq, int(chain[:16], 16))

    def holds_chain(self, chain: str) -> bool:
        """Is it remembered that some entry ended with this chain?"""
        return int(chain[:16], 16) in self._chains

    def entries_after(self, seq: int) -> int:
        """Number of remembered entries that end after `seq`."""
        return len(self._seqs) - bisect_right(self._seqs, seq)

    def replace_with(self, other: Self) -> Lost:
        """Become the last part of `other`, the journal's lineage. Return what is lost.

        A later call counts only entries added after this one.
        """
        lost = self.lost_in(other)
        self._seqs, self._chains = other._seqs[:], other._chains[:]
        self.has_diverged = False
        self._uncertain_before = self._seqs[0]
        if self._kept is not None:
            self._kept = KEPT
            self._trim(KEPT)
        return lost

    def lost_in(self, other: Self) -> Lost:
        """Records of this lineage that `other`, the journal's lineage, does not have."""
        end = self._seqs[-1]
        for seq, chain in zip(reversed(self._seqs), reversed(self._chains), strict=True):
            if other._holds(seq, chain):
                return Lost(end - seq, seq, True)
        if other._seqs[0] > end and not self.has_diverged:
            return Lost(0, end, True)  # the journal is ahead, and no divergence is known
        # The two diverge before both are known. At least the record at the first common known seq
        # is lost.
        kept = min(max(self._seqs[0], other._seqs[0]), end) - 1
        return Lost(end - kept, kept, False)

    def trimmed(self, kept: int = KEPT) -> Self:
        """Copy of the last `kept` entries."""
        lineage = type(self)(kept)
        lineage._seqs, lineage._chains = self._seqs[-kept:], self._chains[-kept:]
        return lineage

    def _holds(self, seq: int, chain: int) -> bool:
        index = bisect_right(self._seqs, seq) - 1
        return index >= 0 and self._seqs[index] == seq and self._chains[index] == chain

    def _trim(self, kept: int) -> None:
        if len(self._seqs) > kept:
            del self._seqs[:-kept], self._chains[:-kept]


def contradicts(appended: Appended, position: LogPosition) -> bool:
    """Does the answer to an append made after `position` show that the journal lost `position`?"""
    for entry in appended.entries:
        if entry.seq > position.seq:
            return not follows(entry, position.chain)
    if appended.entries or appended.more:
        return False
    goes_on = appended.first_seq in (None, position.seq + 1)
    return not goes_on or appended.previous != position.chain


def may_contradict(appended: Appended, position: LogPosition, lineage: Lineage) -> bool:
    """May an append's answer disagree with the history that led to `position`?

    The append was made after another log position, or was answered earlier. It may be older than
    the replica, or describe entries lost since. A position before the remembered entries cannot be
    decided and counts as a disagreement. The head decides.
    """
    for entry in appended.entries:
        if entry.seq > position.seq:
            is_next = entry.first_seq == position.seq + 1
            return (
                not follows(entry, position.chain) if is_next else entry.first_seq <= position.seq
            )
        if not lineage.holds(entry.seq, entry.chain):
            return True
    if appended.seq is None or appended.first_seq is None:
        is_all = not appended.entries and not appended.more
        return is_all and not lineage.holds_chain(appended.chain)
    if appended.seq <= position.seq:
        return not lineage.holds(appended.seq, appended.chain)
    if appended.first_seq == position.seq + 1:
        return appended.previous != position.chain
    return appended.first_seq <= position.seq  # no entry ends in the middle of another


def follows(entry: Entry, chain: str) -> bool:
    """Does the entry directly follow one that ends with `chain`?"""
    return next_chain(chain, entry.nonce) == entry.chain
