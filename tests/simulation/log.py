"""A model's log in memory: the journal's contract, with extra information for tests.

Each write is kept as an operation, so that a failover to an older copy removes the last ones:
entries, nonces, keys and cursors together.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.deduplicate import KeyEntry, SkippedPart
from dualstream.service.journal.protocol import (
    Audited,
    CursorMove,
    Entry,
    LogPosition,
    ModelRecord,
    PendingRow,
    Snapshot,
    Version,
)


@dataclass(slots=True)
class Operation:
    """What one append did, and the answer that its nonce stands for."""

    nonce: bytes
    known: int
    """The position up to which its first sender knew the log."""
    before: int
    seq: int
    previous: str
    chain: str
    left: list[SkippedPart]
    keys: dict[bytes, KeyEntry]
    cursor: CursorMove | None
    entry: Entry | None
    let_go: dict[bytes, PendingRow]
    """Rows whose labels came."""
    kept: Collection[bytes] = ()
    """Keys of rows that began to wait."""
    relabelled: dict[bytes, PendingRow] = field(default_factory=dict)
    """Rows before they got a label that may be revised."""
    keys_before: dict[bytes, KeyEntry] = field(default_factory=dict)
    change: Audited | None = None


@dataclass(slots=True)
class Log:
    """One model: the journal's contract, with extra information for tests."""

    id: str
    incarnation: str
    spec: bytes
    given: bytes
    seq: int = 0
    chain: str = ""
    operations: list[Operation] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    nonces: dict[bytes, Operation] = field(default_factory=dict)
    keys: dict[bytes, KeyEntry] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    """The newest last."""
    cut: list[Entry] = field(default_factory=list)
    """Entries that were lost."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """When something was lost, and up to which seq it was not."""
    died: dict[str, int] = field(default_factory=dict)
    """Chain values that were lost, and when."""
    stood: dict[str, int] = field(default_factory=dict)
    """Each chain value that there ever was, and the seq that it stood at."""
    before: dict[str, str] = field(default_factory=dict)
    """The chain value that each of them followed."""
    ends: list[str] = field(default_factory=list)
    """The chain value at the log's end, each time that it became another one."""
    misnamed: list[str] = field(default_factory=list)
    """Versions of what the log did not hold when they were taken."""
    covered: int = 0
    """The largest seq of any snapshot ever put."""
    spoiled: set[int] = field(default_factory=set)
    """Seqs of snapshots that were changed."""
    trimmed: int = 0
    let_go: list[Entry] = field(default_factory=list)
    """Entries that were trimmed."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Copies by their digests."""
    ever_stored: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, Version] = field(default_factory=dict)
    waits: dict[bytes, PendingRow] = field(default_factory=dict)
    """Rows that wait for their labels, and those that have waited too long."""
    changes: list[Audited] = field(default_factory=list)
    uses: dict[int, str] = field(default_factory=dict)
    """Digests of the copies that kept entries name, by the last seq of these."""

    def record(self) -> ModelRecord:
        return ModelRecord(
            self.id, self.incarnation, self.spec, self.given, 0, self.seq, self.chain
        )

    @property
    def writes(self) -> tuple[int, int]:
        """Another value after each loss, and after each entry that came for the first time."""
        return len(self.stood), len(self.cuts)

    def was_cut_below(self, seq: int, since: int) -> bool:
        """Whether records up to `seq` were lost after a step."""
        return any(step >= since and kept < seq for step, kept in self.cuts)

    def lose(self, count: int, now: int, with_snapshots: bool) -> None:
        """Lose the last operations, and maybe the snapshots after them.

        If the log was trimmed, stop at a good snapshot: otherwise no process can load the model.
        """
        if self.trimmed and not self.good:
            return
        floor = max(self.good) if self.trimmed else 0
        count = min(count, sum(operation.before >= floor for operation in self.operations))
        if not count:
            return
        for operation in reversed(self.operations[-count:]):
            self.nonces.pop(operation.nonce, None)  # done twice, where it was forgotten
            for key in operation.keys:
                self.keys.pop(key, None)
            self.keys |= operation.keys_before
            if operation.cursor is not None:
                self._put_back(operation.cursor)
            if operation.entry is not None:
                self.cut.append(self.entries.pop())
                self.died[operation.chain] = now
                self.uses.pop(operation.seq, None)
            if operation.change is not None:
                self.changes.remove(operation.change)
            self.waits = operation.let_go | self.waits | operation.relabelled
            for key in operation.kept:
                self.waits.pop(key, None)
            self.seq, self.chain = operation.before, operation.previous
        del self.operations[-count:]
        self.cuts.append((now, self.seq))
        self.ends.append(self.chain)
        if with_snapshots:
            self.snapshots = [kept for kept in self.snapshots if kept.seq <= self.seq]

    @property
    def whole(self) -> list[Entry]:
        """All entries from the first one on, whether they are kept or were trimmed."""
        return self.let_go + self.entries

    def leading_to(self, chain: str, seq: int) -> Entry | None:
        """The entry that has the record at `seq` where this is the chain value of a later one."""
        while self.stood.get(before := self.before.get(chain, ""), 0) >= seq:
            chain = before
        return next((one for one in [*self.whole, *self.cut] if one.chain == chain), None)

    def leads_past(self, place: LogPosition, chain: str) -> bool:
        """Whether the records that end with this chain value go on from `place`, or end there."""
        entry = self.leading_to(chain, place.seq) if place.seq else None
        return entry is not None and entry.chain == place.chain

    @property
    def named(self) -> set[str]:
        """The digests of copies that a version or a kept entry names."""
        return {version.digest for version in self.versions.values()} | set(self.uses.values())

    @property
    def good(self) -> set[int]:
        """Seqs of the snapshots that the log holds and that were not damaged."""
        return {kept.seq for kept in self.snapshots if self.holds(kept)} - self.spoiled

    def holds(self, place: Snapshot | LogPosition) -> bool:
        """Whether the log leads on from there, or ends there."""
        if (place.seq, place.chain) == (self.seq, self.chain):
            return True
        return any(
            entry.first_seq == place.seq + 1 and entry.chain == next_chain(place.chain, entry.nonce)
            for entry in self.entries
        )

    def spoil(self, where: float) -> None:
        """Change a byte of the newest snapshot, unless no other would be good that is needed."""
        newest = self.snapshots[-1]
        is_needed = len(self.snapshots) > 1 or self.trimmed
        if is_needed and not self.good - {newest.seq}:
            return
        self.spoiled.add(newest.seq)
        data = bytearray(newest.data)
        data[int(where * len(data))] ^= 1
        self.snapshots[-1] = Snapshot(newest.seq, newest.chain, bytes(data))

    def _put_back(self, move: CursorMove) -> None:
        if move.expected is None:
            self.cursors.pop(move.name, None)
        else:
            self.cursors[move.name] = move.expected
