"""A journal in memory, as its server sees it: every call is one atomic step.

What a write did is kept as an operation, so that a failover to a copy that was behind takes the
last ones away: entries, nonces, keys and cursors together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from service.journal._placing import Known, Left, Sorting, check_parts, placed
from service.journal.chain import first_chain, next_chain
from service.journal.inputs import InputMove
from service.journal.protocol import (
    ENTRY_BYTES,
    ENTRY_OVERHEAD,
    Appended,
    AwaitingLabels,
    Conflict,
    CursorMove,
    CursorMoved,
    Entry,
    ModelChanged,
    ModelRecord,
    NotHeld,
    Overdue,
    Part,
    Place,
    Remembered,
    Snapshot,
    StoredCopy,
    ToRemember,
    Trimmed,
    UnknownCopy,
    UnknownModel,
    Version,
)

KEPT_SNAPSHOTS = 2


@dataclass(slots=True)
class Operation:
    """What one append did, and the answer that its nonce stands for."""

    nonce: bytes
    before: int
    seq: int
    previous: str
    chain: str
    left: list[Left]
    keys: dict[bytes, Known]
    cursor: CursorMove | None
    entry: Entry | None
    let_go: dict[bytes, Remembered]
    """Rows whose labels came."""


@dataclass(slots=True)
class Log:
    """A model: what the contract tells of it, and what a test wants to know beside that."""

    id: str
    incarnation: str
    spec: bytes
    given: bytes
    seq: int = 0
    chain: str = ""
    operations: list[Operation] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    nonces: dict[bytes, Operation] = field(default_factory=dict)
    keys: dict[bytes, Known] = field(default_factory=dict)
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
    waits: dict[bytes, Remembered] = field(default_factory=dict)
    """Rows that wait for their labels: here for ever."""
    uses: dict[int, str] = field(default_factory=dict)
    """Digests of the copies that kept entries name, by the last seq of these."""

    def record(self) -> ModelRecord:
        return ModelRecord(
            self.id, self.incarnation, self.spec, self.given, 0, self.seq, self.chain
        )

    def was_cut_below(self, seq: int, since: int) -> bool:
        """Whether records up to `seq` were lost after a step."""
        return any(step >= since and kept < seq for step, kept in self.cuts)

    def lose(self, count: int, now: int, with_snapshots: bool) -> None:
        """Lose the last operations, and the snapshots that stand on them or not.

        Where the log was trimmed, not further than a snapshot stands that is good: nobody could
        make the model again.
        """
        floor = max(self.good) if self.trimmed else 0
        count = min(count, sum(operation.before >= floor for operation in self.operations))
        if not count:
            return
        for operation in reversed(self.operations[-count:]):
            del self.nonces[operation.nonce]
            for key in operation.keys:
                self.keys.pop(key, None)
            if operation.cursor is not None:
                self._put_back(operation.cursor)
            if operation.entry is not None:
                self.cut.append(self.entries.pop())
                self.died[operation.chain] = now
                self.uses.pop(operation.seq, None)
            self.waits = operation.let_go | self.waits
            self.seq, self.chain = operation.before, operation.previous
        del self.operations[-count:]
        self.cuts.append((now, self.seq))
        if with_snapshots:
            self.snapshots = [kept for kept in self.snapshots if kept.seq <= self.seq]

    @property
    def whole(self) -> list[Entry]:
        """All entries from the first one on, whether they are kept or were trimmed."""
        return self.let_go + self.entries

    @property
    def named(self) -> set[str]:
        """The digests of copies that a version or a kept entry names."""
        return {version.digest for version in self.versions.values()} | set(self.uses.values())

    @property
    def good(self) -> set[int]:
        """The seqs of the snapshots that the log holds and nobody has changed."""
        return {kept.seq for kept in self.snapshots if self.holds(kept)} - self.spoiled

    def holds(self, place: Snapshot | Place) -> bool:
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
            del self.cursors[move.name]
        else:
            self.cursors[move.name] = move.expected


class Store:
    """All models. `answer_bytes` bounds the entries of an answer: a small one makes many pages."""

    def __init__(self, answer_bytes: int = ENTRY_BYTES) -> None:
        self.logs: dict[str, Log] = {}
        self.gone: list[Log] = []
        self.answer_bytes = answer_bytes
        self.identity: str | None = None
        self._created = 0

    def claim_identity(self, mine: str) -> str:
        self.identity = self.identity or mine
        return self.identity

    def adopt_identity(self, mine: str) -> None:
        self.identity = mine

    def create(self, model: str, spec: bytes, given: bytes) -> tuple[ModelRecord, bool]:
        if model in self.logs:
            return self.logs[model].record(), False
        self._created += 1
        log = self.logs[model] = Log(model, f"{self._created:032x}", spec, given)
        log.chain = first_chain(log.incarnation)
        log.stood[log.chain] = 0
        return log.record(), True

    def get(self, model: str) -> ModelRecord:
        if model not in self.logs:
            raise UnknownModel(model)
        return self.logs[model].record()

    def list(self, after: str = "", limit: int = 100) -> "list[ModelRecord]":
        ids = sorted(id for id in self.logs if id > after)[:limit]
        return [self.logs[id].record() for id in ids]

    def count(self) -> int:
        return len(self.logs)

    def delete(self, model: str, incarnation: str | None = None) -> None:
        if model not in self.logs:
            raise UnknownModel(model)
        if incarnation not in (None, self.logs[model].incarnation):
            raise ModelChanged(model)
        self.gone.append(self.logs.pop(model))

    def append(
        self,
        model: str,
        incarnation: str,
        nonce: bytes,
        known_seq: int,
        parts: Sequence[Part],
        cursor: CursorMove | None = None,
        copy: str | None = None,
    ) -> Appended:
        check_parts(nonce, parts)
        if isinstance(cursor, InputMove):
            raise ValueError("this store has no inputs")
        log = self.log(model, incarnation)
        done = log.nonces.get(nonce)
        if done is None:
            done = self._append_new(log, nonce, parts, cursor, copy)
        entries, more = self._between(log, known_seq, done.before)
        if known_seq < log.trimmed:
            entries, more = [], True
        is_new = done.seq > done.before
        return Appended(
            placed(parts, done.before, done.left),
            done.before + 1 if is_new else None,
            done.seq if is_new else None,
            done.previous,
            done.chain,
            tuple(entries),
            more,
        )

    def _append_new(
        self,
        log: Log,
        nonce: bytes,
        parts: Sequence[Part],
        cursor: CursorMove | None,
        copy: str | None,
    ) -> Operation:
        if cursor is not None:
            stands = log.cursors.get(cursor.name)
            if stands != cursor.expected:
                raise CursorMoved(cursor.name, stands)
        sorting = Sorting(log.seq)
        sorting.sort(parts, log.keys.get)
        if copy is not None and sorting.seq > log.seq:
            if copy not in log.stored:
                raise UnknownCopy(log.id, copy)
            log.uses[sorting.seq] = copy
        if cursor is not None:
            log.cursors[cursor.name] = cursor.new
        chain, entry = log.chain, None
        if sorting.seq > log.seq:
            chain = next_chain(log.chain, nonce)
            body = b"".join(sorting.kept)
            entry = Entry(log.seq + 1, sorting.seq, nonce, chain, 0, body)
            log.entries.append(entry)
            log.stood[chain] = sorting.seq
            log.died.pop(chain, None)
        done = Operation(
            nonce,
            log.seq,
            sorting.seq,
            log.chain,
            chain,
            sorting.left,
            sorting.keys,
            cursor,
            entry,
            {key: log.waits.pop(key) for key in sorting.labels if key in log.waits},
        )
        log.operations.append(done)
        log.nonces[nonce] = done
        log.keys.update(sorting.keys)
        log.seq, log.chain = sorting.seq, chain
        return done

    def _between(
        self, log: Log, after: int, through: int, limit_bytes: int | None = None
    ) -> "tuple[list[Entry], bool]":
        """Entries with after < last seq <= through up to a limit; whether there are more."""
        limit = min(self.answer_bytes, limit_bytes or self.answer_bytes)
        found: list[Entry] = []
        size = 0
        for entry in log.entries:
            if not after < entry.seq <= through:
                continue
            size += len(entry.body) + ENTRY_OVERHEAD
            if found and size > limit:
                return found, True
            found.append(entry)
        return found, False

    def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> "list[Entry]":
        log = self.log(model, incarnation)
        if after < log.trimmed:
            raise Trimmed(log.trimmed + 1)
        return self._between(log, after, log.seq, limit_bytes)[0]

    def trim(self, model: str, incarnation: str, through: int, behind: int | None = None) -> None:
        log = self.log(model, incarnation)
        if behind is not None:
            held = self._held(log)
            through = min(through, held[-1 - behind].seq) if behind < len(held) else 0
        gone = [entry for entry in log.entries if entry.seq <= through]
        if gone:
            log.let_go += gone
            log.entries = log.entries[len(gone) :]
            log.trimmed = gone[-1].seq
        freed = {log.uses.pop(seq) for seq in list(log.uses) if seq <= log.trimmed}
        for digest in freed:
            self._collect(log, digest)

    def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        log = self.log(model, incarnation)
        if not log.holds(Place(seq, chain)):
            raise NotHeld(model, seq, chain)
        held = self._held(log)
        if held and held[-1].seq >= seq + replaces:
            return False
        older = [kept for kept in held if kept.seq < seq]
        log.snapshots = [*older, Snapshot(seq, chain, data)][-KEPT_SNAPSHOTS:]
        log.spoiled.discard(seq)
        log.covered = max(log.covered, seq)
        return True

    def _held(self, log: Log) -> "list[Snapshot]":
        return [kept for kept in log.snapshots if log.holds(kept)]

    def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        snapshots = self.log(model, incarnation).snapshots
        return snapshots[-1 - n] if n < len(snapshots) else None

    def snapshots(self, model: str, incarnation: str) -> "list[Place]":
        return [Place(s.seq, s.chain) for s in reversed(self.log(model, incarnation).snapshots)]

    def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        log = self.log(model, incarnation)
        if not any(kept.seq >= before for kept in self._held(log)):
            raise Conflict(f"the log of {model!r} holds no snapshot from seq {before} on")
        log.snapshots = [kept for kept in log.snapshots if kept.seq >= before]

    def copies(self, model: str, incarnation: str) -> "list[StoredCopy]":
        stored = self.log(model, incarnation).stored.items()
        return [StoredCopy(digest, len(data)) for digest, data in sorted(stored)]

    def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        log = self.log(model, incarnation)
        log.stored.setdefault(digest, data)
        log.ever_stored[digest] = data
        return digest

    def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        return self.log(model, incarnation).stored.get(digest)

    def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        log = self.log(model, incarnation)
        if digest in log.named:
            raise Conflict(f"a version or a kept record of {model!r} names the copy {digest}")
        log.stored.pop(digest, None)

    def version_put(self, model: str, incarnation: str, version: Version) -> tuple[Version, bool]:
        log = self.log(model, incarnation)
        known = log.versions.get(version.name)
        if known is not None and known.digest != version.digest:
            raise Conflict(f"version {version.name!r} of {model!r} is another state")
        if known is not None:
            return known, False
        place = Place(version.seq, version.chain)
        if not version.created_ms and not log.holds(place):
            raise NotHeld(model, version.seq, version.chain)
        if version.digest not in log.stored:
            raise UnknownCopy(model, version.digest)
        log.versions[version.name] = version
        return version, True

    def versions(self, model: str, incarnation: str) -> "list[Version]":
        found = self.log(model, incarnation).versions.values()
        return sorted(found, key=lambda version: (version.seq, version.name))

    def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        return self.log(model, incarnation).versions.get(name)

    def version_delete(self, model: str, incarnation: str, name: str) -> bool:
        log = self.log(model, incarnation)
        known = log.versions.pop(name, None)
        if known is not None:
            self._collect(log, known.digest)
        return known is not None

    def _collect(self, log: Log, digest: str) -> None:
        """Let go of a copy unless it is named."""
        if digest not in log.named:
            log.stored.pop(digest, None)

    def remember(self, model: str, incarnation: str, rows: Sequence[ToRemember]) -> None:
        log = self.log(model, incarnation)
        log.waits |= {row.key: Remembered(row.key, row.body, row.default, 0, 0) for row in rows}

    def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> "list[Remembered | None]":
        log = self.log(model, incarnation)
        return [log.waits.get(key) for key in keys]

    def awaiting_labels(self) -> "list[AwaitingLabels]":
        logs = sorted((log.id, log) for log in self.logs.values() if log.waits)
        return [AwaitingLabels(id, log.incarnation, len(log.waits), False) for id, log in logs]

    def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        self.log(model, incarnation)
        return Overdue((), 0)

    def scrub(self, model: str, incarnation: str) -> bool:
        self.log(model, incarnation)
        return True

    def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        return self.log(model, incarnation).cursors.get(name)

    def log(self, model: str, incarnation: str) -> Log:
        """The model's log. Raises ModelChanged."""
        log = self.logs.get(model)
        if log is None or log.incarnation != incarnation:
            raise ModelChanged(model)
        return log
