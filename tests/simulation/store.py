"""A journal in memory, as its server sees it: every call is one atomic step."""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from math import inf

import msgspec

from dualstream.service.journal.audit import AuditPosition
from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.deduplicate import (
    Deduplication,
    KeyEntry,
    RowLabel,
    check_parts,
    part_positions,
)
from dualstream.service.journal.protocol import (
    ENTRY_BYTES,
    ENTRY_OVERHEAD,
    Appended,
    AppendRequest,
    Audited,
    AwaitingLabels,
    Base,
    Change,
    Conflict,
    CursorMoved,
    Entry,
    Head,
    LogPosition,
    MissingPosition,
    ModelChanged,
    ModelRecord,
    NewPendingRow,
    NonceForgotten,
    Overdue,
    Part,
    PendingRow,
    Revision,
    Snapshot,
    StoredCopy,
    Trimmed,
    UnknownCopy,
    UnknownModel,
    Usage,
    Version,
)
from dualstream.service.journal.rate_buckets import Bucket, Lease, take
from tests.simulation.log import Log, Operation

KEPT_SNAPSHOTS = 2


class Store:
    """All models. `answer_bytes` bounds the entries of an answer: a small one makes many pages.

    clock, remember_s   in seconds: how long a row without a default label waits for its label
    most_nonces         number of nonces that are kept for each model
    """

    def __init__(
        self,
        answer_bytes: int = ENTRY_BYTES,
        clock: Callable[[], float] = lambda: 0.0,
        remember_s: float = inf,
    ) -> None:
        self.logs: dict[str, Log] = {}
        self.gone: list[Log] = []
        self.answer_bytes = answer_bytes
        self._clock, self._remember_s = clock, remember_s
        self.most_nonces: int | None = None
        self.identity: str | None = None
        self._created = self._changes = 0
        self._buckets: dict[str, Bucket] = {}

    def claim_identity(self, mine: str) -> str:
        self.identity = self.identity or mine
        return self.identity

    def adopt_identity(self, mine: str) -> None:
        self.identity = mine

    def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        if model in self.logs:
            return self.logs[model].record(), False
        self._created += 1
        log = self.logs[model] = Log(model, f"{self._created:032x}", spec, given)
        log.chain = first_chain(log.incarnation)
        log.stood[log.chain] = 0
        log.ends.append(log.chain)
        self._keep(log, log.seq, change)
        return log.record(), True

    def get(self, model: str) -> ModelRecord:
        if model not in self.logs:
            raise UnknownModel(model)
        return self.logs[model].record()

    def base(self, model: str) -> Base:
        record = self.get(model)
        snapshot = self.snapshot_get(model, record.incarnation)
        try:
            entries = self.read(model, record.incarnation, 0 if snapshot is None else snapshot.seq)
        except Trimmed:
            return Base(record, snapshot)
        return Base(record, snapshot, tuple(entries))

    def list(self, after: str = "", limit: int = 100) -> "list[ModelRecord]":
        ids = sorted(id for id in self.logs if id > after)[:limit]
        return [self.logs[id].record() for id in ids]

    def heads(self, models: Sequence[str]) -> "list[Head | None]":
        results = [self.logs.get(model) for model in models]
        return [
            None if log is None else Head(log.incarnation, log.seq, log.chain) for log in results
        ]

    def revision(self) -> Revision:
        """Another one once any log ends otherwise, or is another one's."""
        ends = sum(len(log.ends) for log in [*self.gone, *self.logs.values()])
        return self._created + len(self.gone), ends

    def count(self) -> int:
        return len(self.logs)

    def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: LogPosition | None = None,
    ) -> None:
        if model not in self.logs:
            raise UnknownModel(model)
        if incarnation not in (None, self.logs[model].incarnation):
            raise ModelChanged(model)
        log = self.logs[model]
        if at not in (None, LogPosition(log.seq, log.chain)):
            raise Conflict(f"model {model!r} is at seq {log.seq} {log.chain[:8]}")
        self._keep(log, log.seq, change)
        self.gone.append(self.logs.pop(model))

    def append(self, request: AppendRequest) -> Appended:
        nonce, known_seq, parts = request.nonce, request.known_seq, request.parts
        check_parts(nonce, parts)
        log = self.log(request.model, request.incarnation)
        done = self._done(log, nonce, parts, request.repeats)
        if done is None:
            done = self._append_new(log, request)
            if done.entry is not None or not parts:
                done.change = self._keep(log, done.seq, request.change)
        entries, more = self._between(log, known_seq, done.before)
        if known_seq < log.trimmed:
            entries, more = [], True
        is_new = done.seq > done.before
        return Appended(
            part_positions(parts, done.before, done.left),
            done.before + 1 if is_new else None,
            done.seq if is_new else None,
            done.previous,
            done.chain,
            tuple(entries),
            more,
        )

    def _done(
        self, log: Log, nonce: bytes, parts: Sequence[Part], repeats: LogPosition | None
    ) -> Operation | None:
        """What was done under this nonce, as far as it is kept or the log tells."""
        done, most = log.nonces.get(nonce), self.most_nonces
        if most is None or len(log.nonces) <= most or nonce in list(log.nonces)[-most:]:
            return done
        if repeats is None:
            return None
        if not log.holds(repeats):
            raise NonceForgotten(log.id)
        later = [entry for entry in log.entries if entry.seq > repeats.seq]
        for entry in later:
            if entry.nonce == nonce:
                if entry.seq - entry.first_seq + 1 != sum(part.count for part in parts):
                    raise NonceForgotten(log.id)
                return done
        return None

    def _append_new(self, log: Log, request: AppendRequest) -> Operation:
        nonce, parts = request.nonce, request.parts
        cursor, copy, kept = request.cursor, request.copy, request.held
        if cursor is not None:
            stands = log.cursors.get(cursor.name)
            if stands != cursor.expected:
                raise CursorMoved(cursor.name, stands)
        sorting = Deduplication(log.seq, log.waits.__contains__, partial(self._row_label, log))
        sorting.process(parts, log.keys.get)
        if kept is not None and sorting.seq > log.seq and not log.holds(kept):
            raise MissingPosition(log.id, kept.seq, kept.chain)
        if copy is not None and sorting.seq > log.seq:
            if copy not in log.stored:
                raise UnknownCopy(log.id, copy)
            log.uses[sorting.seq] = copy
        if cursor is not None and cursor.new is None:
            log.cursors.pop(cursor.name, None)
        elif cursor is not None:
            log.cursors[cursor.name] = cursor.new
        chain, entry = log.chain, None
        if sorting.seq > log.seq:
            chain = next_chain(log.chain, nonce)
            body = b"".join(sorting.kept)
            entry = Entry(log.seq + 1, sorting.seq, nonce, chain, 0, body)
            log.entries.append(entry)
            log.stood[chain], log.before[chain] = sorting.seq, log.chain
            log.died.pop(chain, None)
            log.ends.append(chain)
        for row in sorting.pending.values():
            self._wait(log, row)
        relabelled = {key: log.waits[key] for key in sorting.relabelled if key in log.waits}
        for key in relabelled:
            self._relabel(log, key, sorting.relabelled[key])
        labelled = [key for key in sorting.labels if key in log.waits and not log.waits[key].seq]
        done = Operation(
            nonce,
            request.known_seq,
            log.seq,
            sorting.seq,
            log.chain,
            chain,
            sorting.skipped,
            sorting.keys,
            cursor,
            entry,
            {key: log.waits.pop(key) for key in dict.fromkeys(labelled)},
            sorting.pending.keys(),
            relabelled,
            {key: log.keys[key] for key in sorting.keys if key in log.keys},
        )
        log.operations.append(done)
        log.nonces[nonce] = done
        log.keys.update(sorting.keys)
        log.seq, log.chain = sorting.seq, chain
        return done

    def _keep(self, log: Log, seq: int, change: Change | None) -> Audited | None:
        if change is None:
            return None
        self._changes += 1
        where = AuditPosition(_ms(self._clock()), self._changes, log.id)
        which = (str(where), where.time_ms, log.id, log.incarnation, seq)
        log.changes.append(Audited(*which, change))
        return log.changes[-1]

    def audit(
        self, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> "list[Audited]":
        logs = [log for log in (*self.gone, *self.logs.values()) if model in (None, log.id)]
        changes = [
            (AuditPosition.read(one.place).number, one) for log in logs for one in log.changes
        ]
        start = AuditPosition.read(after).number
        return [one for number, one in sorted(changes, key=_first) if number > start][:limit]

    def _between(
        self, log: Log, after: int, through: int, limit_bytes: int | None = None
    ) -> "tuple[list[Entry], bool]":
        """Entries with after < last seq <= through up to a limit; whether there are more."""
        limit = min(self.answer_bytes, limit_bytes or self.answer_bytes)
        results: list[Entry] = []
        size = 0
        for entry in log.entries:
            if not after < entry.seq <= through:
                continue
            size += len(entry.body) + ENTRY_OVERHEAD
            if results and size > limit:
                return results, True
            results.append(entry)
        return results, False

    def known(self, model: str, incarnation: str, keys: Sequence[bytes]) -> "list[KeyEntry | None]":
        log = self.log(model, incarnation)
        return [log.keys.get(key) for key in keys]

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
            kept = self._held(log)
            through = min(through, kept[-1 - behind].seq) if behind < len(kept) else 0
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
        if not log.holds(LogPosition(seq, chain)):
            raise MissingPosition(model, seq, chain)
        stored = self._held(log)
        if stored and stored[-1].seq >= seq + replaces:
            return False
        older = [kept for kept in stored if kept.seq < seq]
        log.snapshots = [*older, Snapshot(seq, chain, data)][-KEPT_SNAPSHOTS:]
        log.spoiled.discard(seq)
        log.covered = max(log.covered, seq)
        return True

    def _held(self, log: Log) -> "list[Snapshot]":
        return [kept for kept in log.snapshots if log.holds(kept)]

    def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        snapshots = self.log(model, incarnation).snapshots
        return snapshots[-1 - n] if n < len(snapshots) else None

    def snapshots(self, model: str, incarnation: str) -> "list[LogPosition]":
        return [
            LogPosition(s.seq, s.chain) for s in reversed(self.log(model, incarnation).snapshots)
        ]

    def usage(self, model: str, incarnation: str) -> Usage:
        log = self.log(model, incarnation)
        saved = max((kept.seq for kept in log.snapshots), default=0)
        times = [entry.time_ms for entry in log.entries]
        unsaved = [entry.time_ms for entry in log.entries if entry.seq > saved]
        return Usage(
            sum(len(entry.body) for entry in log.entries),
            sum(len(kept.data) for kept in log.snapshots),
            times[0] if times else None,
            unsaved[0] if unsaved else None,
        )

    def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        log = self.log(model, incarnation)
        if not any(kept.seq >= before for kept in self._held(log)):
            raise Conflict(f"the log of {model!r} contains no snapshot from seq {before} on")
        log.snapshots = [kept for kept in log.snapshots if kept.seq >= before]

    def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> "list[StoredCopy]":
        """All are whole here: a copy is put in one step."""
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
            raise Conflict(f"a version or a kept record of {model!r} refers to the copy {digest}")
        log.stored.pop(digest, None)

    def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        log = self.log(model, incarnation)
        previous = log.versions.get(version.name)
        if previous is not None and previous.digest != version.digest:
            raise Conflict(f"version {version.name!r} of {model!r} already names another state")
        if previous is not None:
            return previous, False
        position = LogPosition(version.seq, version.chain)
        if not version.created_ms and not log.holds(position):
            raise MissingPosition(model, version.seq, version.chain)
        if version.digest not in log.stored:
            raise UnknownCopy(model, version.digest)
        if not log.holds(position):
            log.misnamed.append(version.name)
        log.versions[version.name] = version
        self._keep(log, version.seq, change)
        return version, True

    def versions(self, model: str, incarnation: str) -> "list[Version]":
        result = self.log(model, incarnation).versions.values()
        return sorted(result, key=lambda version: (version.seq, version.name))

    def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        return self.log(model, incarnation).versions.get(name)

    def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        log = self.log(model, incarnation)
        previous = log.versions.pop(name, None)
        if previous is not None:
            self._collect(log, previous.digest)
            self._keep(log, log.seq, change)
        return previous is not None

    def _collect(self, log: Log, digest: str) -> None:
        """Delete a copy that nothing names."""
        if digest not in log.named:
            log.stored.pop(digest, None)

    def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        log = self.log(model, incarnation)
        latest = {row.key: row for row in rows}
        for key in list(latest):
            if self._row_label(log, key) is not None:
                del latest[key]
            elif key in log.keys:
                del latest[key]
                log.waits.pop(key, None)
        for row in latest.values():
            self._wait(log, row)
        return len(latest)

    def _wait(self, log: Log, row: NewPendingRow) -> None:
        now = self._clock()
        due_ms = _ms(now + (row.wait_s if row.default else self._remember_s))
        log.waits[row.key] = PendingRow(row.key, row.body, row.default, _ms(now), due_ms)

    def _row_label(self, log: Log, key: bytes) -> RowLabel | None:
        row = log.waits.get(key)
        if row is None or not row.seq or self._is_due(row):
            return None
        return RowLabel(row.label, row.seq)

    def _relabel(self, log: Log, key: bytes, new: RowLabel) -> None:
        due_ms = _ms(self._clock() + self._remember_s)
        changes = {"default": b"", "label": new.label, "seq": new.seq, "due_ms": due_ms}
        if log.waits[key].body:
            log.waits[key] = msgspec.structs.replace(log.waits[key], **changes)

    def forget_labelled(self, model: str, incarnation: str, key: bytes) -> None:
        log = self.log(model, incarnation)
        if key in log.waits and log.waits[key].seq:
            del log.waits[key]

    def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> "list[PendingRow | None]":
        log = self.log(model, incarnation)
        results = [log.waits.get(key) for key in keys]
        return [
            None if row is None or (row.seq and self._is_due(row)) else self._as_found(row)
            for row in results
        ]

    def _as_found(self, row: PendingRow) -> PendingRow:
        now_ms = _ms(self._clock())
        age_s = (now_ms - row.time_ms) / 1000
        body = row.body if row.default or row.due_ms > now_ms else b""
        return msgspec.structs.replace(row, body=body, age_s=age_s)

    def awaiting_labels(self) -> "list[AwaitingLabels]":
        logs = sorted((log.id, log) for log in self.logs.values() if log.waits)
        return [
            AwaitingLabels(
                id,
                log.incarnation,
                sum(row.body != b"" for row in log.waits.values()),
                any(self._is_due(row) for row in log.waits.values()),
            )
            for id, log in logs
        ]

    def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        log = self.log(model, incarnation)
        due = sorted((row.due_ms, row.key, row) for row in log.waits.values() if self._is_due(row))
        expired = 0
        for due_ms, key, row in due:
            if row.seq or not row.body:
                del log.waits[key]
            elif not row.default:
                again_ms = due_ms + _ms(self._remember_s)
                log.waits[key] = msgspec.structs.replace(row, body=b"", due_ms=again_ms)
                expired += 1
        return Overdue([row for *_, row in due if row.default][:limit], expired)

    def _is_due(self, row: PendingRow) -> bool:
        return row.due_ms <= _ms(self._clock())

    def lease(self, bucket: str, rate: int, needed: int, most: int) -> Lease:
        inputs = (rate, needed, most, _ms(self._clock()))
        self._buckets[bucket], lease = take(self._buckets.get(bucket), *inputs)
        return lease

    def scrub(self, model: str, incarnation: str) -> bool:
        self.log(model, incarnation)
        return True

    def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        return self.log(model, incarnation).cursors.get(name)

    def cursors(self, model: str, incarnation: str, prefix: str) -> dict[str, str]:
        result = self.log(model, incarnation).cursors
        return {name: result[name] for name in sorted(result) if name.startswith(prefix)}

    def log(self, model: str, incarnation: str) -> Log:
        """The model's log. Raises ModelChanged."""
        log = self.logs.get(model)
        if log is None or log.incarnation != incarnation:
            raise ModelChanged(model)
        return log


def _first(pair: tuple[int, Audited]) -> int:
    return pair[0]


def _ms(seconds: float) -> int:
    """Of the store's clock; what is infinite is further than anything."""
    return 2**62 if seconds == inf else round(1000 * seconds)
