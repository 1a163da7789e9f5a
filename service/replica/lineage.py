"""Where a replica has come by: so that after a fork it can be told how much of it was lost."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple, Self

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Appended, Entry, Place

KEPT = 4096
"""So many of the last entries are remembered, at 16 bytes each."""
KEPT_OUTSIDE = 9
"""Of a model out of memory: more than it learns within the second or so that a failover loses."""


class Lost(NamedTuple):
    """Records that a replica had applied and the journal no longer holds.

    `kept` is the last seq up to which both agree. Where that lies before all that is remembered,
    the loss began further back: `is_all` is false, and `records` is the least that it can be.
    """

    records: int
    kept: int
    is_all: bool


class Lineage:
    """The ends of the last entries that a replica has applied: their seqs and chain values.

    It is bookkeeping of one process, no part of the state. Of a chain value its first 64 bits are
    kept. Whoever rebuilds a forked replica lets its trail give way to the new one, so that no loss
    is counted twice.
    """

    __slots__ = ("_chains", "_kept", "_uncertain_before", "_seqs", "has_diverged")

    def __init__(self, kept: int | None = KEPT) -> None:
        self._kept = kept
        self._seqs, self._chains = array("Q"), array("Q")
        # Of what lies before it nobody knows whether it is on the path that is the journal's.
        self._uncertain_before = 0
        self.has_diverged = False
        """Whether the journal is known not to go on from here."""

    @property
    def end(self) -> int:
        """The seq at the end of the last entry that was applied whole."""
        return self._seqs[-1]

    @property
    def start(self) -> int:
        """The seq at the end of the first entry that is remembered."""
        return self._seqs[0]

    @property
    def bytes_held(self) -> int:
        """What it takes of memory."""
        return getsizeof(self._seqs) + getsizeof(self._chains)

    def begin(self, seq: int, chain: str) -> None:
        """The replica stands at `seq` with `chain`, and nothing is known of what came before."""
        del self._seqs[:], self._chains[:]
        self.add(seq, chain)

    def add(self, seq: int, chain: str) -> None:
        """The replica stands at `seq` with `chain`, after an entry."""
        while self._seqs and self._seqs[-1] >= seq:
            del self._seqs[-1], self._chains[-1]
        self._seqs.append(seq)
        self._chains.append(int(chain[:16], 16))
        if self._kept is not None and len(self._seqs) > 2 * self._kept:
            self._trim(self._kept)

    def add_entries(self, entries: Sequence[Entry]) -> None:
        """The replica has applied these entries."""
        if self._kept is not None:
            entries = entries[-self._kept :]
        for entry in entries[:1]:
            self.add(entry.seq, entry.chain)
        self._seqs.extend([entry.seq for entry in entries[1:]])
        self._chains.extend([int(entry.chain[:16], 16) for entry in entries[1:]])
        if self._kept is not None and len(self._seqs) > 2 * self._kept:
            self._trim(self._kept)

    def includes(self, seq: int, chain: str) -> bool:
        """Whether an entry ended there, or lies further back than is remembered.

        Not where the paths parted further back than that: what was before may have been lost.
        """
        if seq < self._seqs[0]:
            return seq >= self._uncertain_before
        return self.holds(seq, chain)

    def holds(self, seq: int, chain: str) -> bool:
        """Whether it is remembered that an entry ended there."""
        return self._holds(seq, int(chain[:16], 16))

    def holds_chain(self, chain: str) -> bool:
        """Whether it is remembered that an entry, whichever, ended with this chain."""
        return int(chain[:16], 16) in self._chains

    def entries_after(self, seq: int) -> int:
        """How many entries end after `seq`, as far back as is remembered."""
        return len(self._seqs) - bisect_right(self._seqs, seq)

    def replace_with(self, other: Self) -> Lost:
        """Be the last part of `other`, the journal's from some place on; what of this one it lost.

        The next one that this gives way to loses only what was applied from here on.
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
        """What of this one is lost where `other` is the journal's last part, or all of it."""
        end = self._seqs[-1]
        for seq, chain in zip(reversed(self._seqs), reversed(self._chains), strict=True):
            if other._holds(seq, chain):
                return Lost(end - seq, seq, True)
        if other._seqs[0] > end and not self.has_diverged:
            return Lost(0, end, True)  # it was overtaken, and nothing says that it parted before
        # The paths part before both are known: the record at the first such place is lost.
        kept = min(max(self._seqs[0], other._seqs[0]), end) - 1
        return Lost(end - kept, kept, False)

    def trimmed(self, kept: int = KEPT) -> Self:
        """The last part of this one, as a replica keeps it, or as it is kept of one."""
        trail = type(self)(kept)
        trail._seqs, trail._chains = self._seqs[-kept:], self._chains[-kept:]
        return trail

    def _holds(self, seq: int, chain: int) -> bool:
        place = bisect_right(self._seqs, seq) - 1
        return place >= 0 and self._seqs[place] == seq and self._chains[place] == chain

    def _trim(self, kept: int) -> None:
        if len(self._seqs) > kept:
            del self._seqs[:-kept], self._chains[:-kept]


def contradicts(appended: Appended, place: Place) -> bool:
    """Whether an append that was asked behind `place` shows that the journal has lost that."""
    for entry in appended.entries:
        if entry.seq > place.seq:
            return not follows(entry, place.chain)
    if appended.entries or appended.more:
        return False
    goes_on = appended.first_seq in (None, place.seq + 1)
    return not goes_on or appended.previous != place.chain


def may_contradict(appended: Appended, place: Place, trail: Lineage) -> bool:
    """Whether what an append tells and what led to `place` differ, or may: the head tells.

    It was asked behind another place, or answers what was asked before; it may be older than what
    the replica has come by since, or tell of what that has lost. What lies before all that is
    remembered may be either.
    """
    for entry in appended.entries:
        if entry.seq > place.seq:
            is_next = entry.first_seq == place.seq + 1
            return not follows(entry, place.chain) if is_next else entry.first_seq <= place.seq
        if not trail.holds(entry.seq, entry.chain):
            return True
    if appended.seq is None or appended.first_seq is None:
        is_all = not appended.entries and not appended.more
        return is_all and not trail.holds_chain(appended.chain)
    if appended.seq <= place.seq:
        return not trail.holds(appended.seq, appended.chain)
    if appended.first_seq == place.seq + 1:
        return appended.previous != place.chain
    return appended.first_seq <= place.seq  # no entry ends in the midst of another


def follows(entry: Entry, chain: str) -> bool:
    """Whether the entry comes right behind one that ends with `chain`."""
    return next_chain(chain, entry.nonce) == entry.chain
