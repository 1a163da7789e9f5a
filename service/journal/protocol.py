"""Contract of the journal: what every store promises, method by method.

A journal contains models. A model has a spec, a log of entries, the idempotency keys of what it
learned, a few snapshots and cursors. An entry is one append: the records (samples and controls)
of one group of requests, in order. Each record has one `seq`, counted from 1 without gaps.

Errors are those of errors.py. ValueError means that the caller broke the contract; nothing was done
then either. Further parts of the contract: state_copies.py (copies, versions), pending_rows.py
(rows without labels), audit.py (audit log), rate_buckets.py (token buckets).

The values are msgspec structs: appends make many of them, and a frozen dataclass takes five times
as long to make.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from dualstream.service.journal.audit import Audited as Audited, AuditLog, Change as Change
from dualstream.service.journal.errors import (
    Conflict as Conflict,
    CursorMoved as CursorMoved,
    DurabilityTooLow as DurabilityTooLow,
    JournalError as JournalError,
    JournalUnavailable as JournalUnavailable,
    MissingPosition as MissingPosition,
    ModelChanged as ModelChanged,
    NonceForgotten as NonceForgotten,
    NotReplicated as NotReplicated,
    OutcomeUnknown as OutcomeUnknown,
    StoreTooNew as StoreTooNew,
    TooManyPendingRows as TooManyPendingRows,
    TooManyVersions as TooManyVersions,
    Trimmed as Trimmed,
    UnknownCopy as UnknownCopy,
    UnknownModel as UnknownModel,
)
from dualstream.service.journal.pending_rows import (
    AwaitingLabels as AwaitingLabels,
    NewPendingRow as NewPendingRow,
    Overdue as Overdue,
    PendingRow as PendingRow,
    PendingRows,
    RevisableLabel as RevisableLabel,
)
from dualstream.service.journal.rate_buckets import Lease as Lease, RateBuckets
from dualstream.service.journal.state_copies import (
    CopyUse as CopyUse,
    StateCopies,
    StoredCopy as StoredCopy,
    Version as Version,
)

ENTRY_BYTES = 1 << 20
"""Maximum bytes of entries in one answer, which contains at least one entry."""

ENTRY_OVERHEAD = 80
"""Bytes that an entry counts besides its body."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Limits per model: how long and how many keys, nonces, versions, copies, rows are kept."""

    key_ttl_s: float = 3600
    max_keys: int = 1_000_000
    nonces: int = 1000
    max_versions: int = 100
    unnamed_copy_s: float = 600
    remember_s: float = 86400
    max_remembered: int = 1_000_000
    remembered_bytes: int = 1 << 30
    audit_s: float = 400 * 86400


DEFAULT_LIMITS = Limits()


class Part(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records of one request that are journalled, or skipped, together.

    body         the encoded part (`record.encode_rows`, `record.encode_control`)
    count        number of records in it
    key          kind byte and key (`record.make_key`), or None
    fingerprint  16 bytes that identify the payload under `key`, or None
    continues    the part belongs to the request that an earlier part of the group opened
    whole        the part opens a request that is journalled completely or not at all; only the
                 store sees this flag, the body does not contain it
    pending      a row to store as pending if the part is journalled, or None; `key` is that of its
                 future label, too, and only a guard: the append does not store it, so the label can
                 still be learned. If the label is known under any fingerprint, or a row is already
                 stored under its key, expired ones included, the part is skipped as a duplicate
    revisable    of a part with the key of a label: the label, whose row stays stored, or None. If
                 the row is labelled, the part is journalled only if it replaces that label of that
                 seq. It is a duplicate if it has that label, and else in conflict. So is a part
                 that replaces a label of a row that is not labelled. Not in an all-or-nothing
                 request

    A request with a key (request or chunk) is opened by a part that carries this key. Its other
    parts follow with `continues`, and may have keys of their own (sample id, label, refit). If the
    first row has a key of its own, an empty part (count 0) with the request's key opens the
    request. An empty part alone never makes an entry. If no other part follows, only its key is
    stored, as for a request whose rows were all known. Parts of a request without a key do not
    carry `continues`: each is independent, unless the first one is `whole`.

    If a part of a `whole` request is in conflict, also with another part of the same request,
    nothing of the request is journalled and none of its keys is stored. A known key with the same
    fingerprint is no conflict; the part is skipped as usual.
    """

    body: bytes
    count: int
    key: bytes | None = None
    fingerprint: bytes | None = None
    continues: bool = False
    whole: bool = False
    pending: NewPendingRow | None = None
    revisable: RevisableLabel | None = None


class PartPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of one part: its records have the seqs first_seq .. seq.

    duplicate  the part was journalled before; the position is the original's, or for a part of a
               duplicate request that of the whole request, with its number of records as count
    conflict   the key is known with another fingerprint, so nothing of the part (for a request's
               key: of the request) was journalled; the position is the known one's
    refused    the part belongs to a `whole` request with a conflict, so it was not journalled;
               only the parts in conflict have `conflict`, too

    If there are no records (an empty part, a request with only duplicates, a refused part, a
    duplicate of a pending row, whose position the store does not keep), count is 0 and first_seq
    is seq + 1.
    """

    first_seq: int
    seq: int
    count: int
    duplicate: bool = False
    conflict: bool = False
    refused: bool = False


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored append: the records first_seq .. seq, concatenated in body.

    chain = sha1hex(previous chain, 40 characters + nonce), see chain.py. time_ms is the store's
    clock.
    """

    first_seq: int
    seq: int
    nonce: bytes
    chain: str
    time_ms: int
    body: bytes


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Result of an append.

    positions        of the parts, in their order
    first_seq, seq   of the new entry; None if nothing was new
    previous, chain  chain before and after; equal if nothing was new
    entries          entries after `known_seq` and before the new one, up to 1 MiB but at least one,
                     unless `more` has another reason
    more             entries are missing between the last of `entries` and the new one; or rows
                     after `known_seq` are no longer kept (`read` raises Trimmed); or `known_seq` is
                     0 and there is a snapshot to start from
    shortfall        why durability is lower than requested (too few replicas), else None
    """

    positions: tuple[PartPosition, ...]
    first_seq: int | None
    seq: int | None
    previous: str
    chain: str
    entries: tuple[Entry, ...]
    more: bool
    shortfall: str | None = None


class KeyEntry(NamedTuple):
    """Stored value of a key: last seq, number of records, fingerprint."""

    seq: int
    records: int
    fingerprint: bytes | None


class CursorMove(msgspec.Struct, frozen=True, gc=False):
    """Compare-and-set of one cursor; `expected` is None if it has no value.

    A `new` of None deletes the cursor.
    """

    name: str
    expected: str | None
    new: str | None


class ModelRecord(msgspec.Struct, frozen=True, gc=False):
    """A stored model: its spec, complete and as given, and the head of its log.

    `incarnation` is unique per creation and contains a digest of the spec (chain.py). Before the
    first entry, seq is 0 and chain is sha1hex(incarnation).
    """

    id: str
    incarnation: str
    spec: bytes
    given: bytes
    created_ms: int
    seq: int
    chain: str


class Head(msgspec.Struct, frozen=True, gc=False):
    """End of a model's log, with the incarnation of the model."""

    incarnation: str
    seq: int
    chain: str


Revision = tuple[int, int]
"""Opaque; comparable for equality with other revisions of the same journal object."""


class Announced(msgspec.Struct, frozen=True, gc=False):
    """An append to `model` that ends at `seq`. Without a model: any log may have changed."""

    model: str | None = None
    seq: int = 0


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """Serialized state after the record `seq`, with the chain there.

    `where` names the key or row that contains it, for error messages.
    """

    seq: int
    chain: str
    data: bytes
    where: str = ""


class Base(msgspec.Struct, frozen=True, gc=False):
    """What a replica starts from: the model, its newest snapshot, and the first entries after it.

    Unchecked: the snapshot may be damaged, the entries may not follow it. There may be more
    entries in the store than these.
    """

    record: ModelRecord
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """A log position: the record `seq`, and the chain there."""

    seq: int
    chain: str


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Storage that a model's log and snapshots take, and the age of its entries.

    log_bytes        entries (SQLite: their bodies; Redis: memory of the stream, estimated)
    snapshots_bytes  complete snapshots
    oldest_ms        append time of the first kept entry, by the store's clock; None if there is
                     none
    unsaved_ms       append time of the first entry after the newest snapshot; None if absent
    """

    log_bytes: int
    snapshots_bytes: int
    oldest_ms: int | None
    unsaved_ms: int | None


class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """One append to the log of `model`; see `Journal.append` for the fields."""

    model: str
    incarnation: str
    nonce: bytes
    known_seq: int
    parts: Sequence[Part]
    cursor: CursorMove | None = None
    copy: str | None = None
    change: Change | None = None
    held: LogPosition | None = None
    repeats: LogPosition | None = None


class Journal(StateCopies, PendingRows, AuditLog, RateBuckets, Protocol):
    """A store of models and their logs.

    One object serves one process and one event loop; any number of processes may share a store.
    Every method but `open`, `close` and `durability` raises JournalUnavailable if the store cannot
    be used. Every method with `incarnation` or `staged` raises ModelChanged if the model has
    another incarnation. Every method that writes raises OutcomeUnknown if the answer was lost;
    those other than `append` raise NotReplicated if fewer replicas than requested have the write.
    `append` can be repeated blindly with its nonce; the other methods are safe to repeat because
    they compare first.
    """

    async def open(self) -> None:
        """Connect, and create the tables of a new store. Can be called again after a failure.

        Raises JournalUnavailable, DurabilityTooLow, StoreTooNew.
        """

    async def close(self) -> None:
        """Close connections and threads."""

    async def ping(self, writes: bool = False) -> None:
        """Return if the store answers and has the requested durability.

        With `writes`, the store also writes something: a full one answers but takes no appends.

        Raises JournalUnavailable, DurabilityTooLow.
        """

    def durability(self) -> str:
        """The store's actual durability, read at the last connect.

        SQLite: `normal` (a power cut may lose the last appends, a killed process loses none) or
        `full`. Redis: `memory`, `everysec` or `always`, the lowest of all servers; or
        `replicated:N` if requested.
        """

    def log_name(self, model: str) -> str:
        """Name of the model's log in the store, for error messages.

        Redis: its key. SQLite: the file and the table.
        """

    def spec_name(self, model: str) -> str:
        """Name of the model's spec in the store, as in `log_name`."""

    async def claim_identity(self, mine: str) -> str:
        """Return the numeric identity in force; sets it to `mine` if there was none. Atomic."""

    async def identity(self) -> str | None:
        """Return the numeric identity in force, or None. Writes nothing."""

    async def adopt_identity(self, mine: str) -> None:
        """Set the numeric identity. Atomic."""

    async def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        """Create the model and return (it, True), or return the existing one and False. Atomic."""

    async def get(self, model: str) -> ModelRecord:
        """Return the model with the head of its log.

        Raises UnknownModel.
        """

    async def base(self, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        """Return what a replica starts from.

        Read in one step, with the entries of a `read`, none if that raises Trimmed. Redis has at
        most 64 KiB of entries, and reads a snapshot of several parts afterwards, without entries.

        Raises UnknownModel; ModelChanged if the model is replaced in between.
        """

    async def heads(self, models: Sequence[str]) -> Sequence[Head | JournalUnavailable | None]:
        """Return the heads of these models' logs, None for unknown models.

        If some of several servers cannot be used, their models have the error instead. Not atomic:
        each head is of its own moment.
        """

    async def revision(self) -> Revision | None:
        """Return a value that changes when any process, this one included, commits.

        While it is equal, everything in the store is unchanged. None if the store does not count
        its commits (Redis).

        Raises JournalUnavailable.
        """

    def announcements(self) -> AsyncGenerator[Announced, None]:
        """Yield appends of other processes while the caller iterates.

        The first announcement has no model and comes once the connection listens. From then on,
        each acknowledged append of another journal is followed, within a fraction of a second, by
        an announcement of its model at this seq or later, or by one without a model. Appends of
        this journal may be announced, too. Announcements may be duplicated, late, or name unknown
        models, and are lost if the appending process dies first, so poll `heads` now and then.
        Redis uses a connection of its own.

        Raises JournalUnavailable if the connection breaks; iterate again then.
        """

    async def count(self) -> int:
        """Return the number of models (Redis: may include one that is being deleted)."""

    async def replace(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        spec: bytes,
        given: bytes,
        change: Change | None = None,
    ) -> ModelRecord:
        """Delete the model and create it with another spec, in one atomic step. Nothing is kept.

        Raises UnknownModel; Conflict if the model is not at incarnation, seq and chain.
        """

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: LogPosition | None = None,
    ) -> None:
        """Delete the model and everything that belongs to it, except its audited changes.

        Atomic: from one moment on the model is unknown, and an append with its incarnation raises
        ModelChanged. Large data is deleted afterwards in bounded steps.

        Raises UnknownModel; ModelChanged if `incarnation` is given and differs; Conflict if the log
        does not end at the given position `at`.
        """

    def append(self, request: AppendRequest) -> Awaitable[Appended]:
        """Append the new parts as one durable entry; return the position of each part.

        One atomic step, all or nothing:

        1. Check the incarnation.
        2. If the nonce is known, return the first result. The last 1,000 nonces are kept; a
           repeated append has the same parts. With `repeats`, the log position after which the
           append was first sent, the log is searched for a nonce that is no longer kept.
        3. Compare and set `cursor`.
        4. Skip parts whose key is known, also from the same group. A request's key is checked
           first, once for the whole request. A `whole` request with a conflict is skipped
           completely.
        5. Join the remaining parts to one entry, with its seqs, chain and the store's time.
        6. Store the keys, for an hour by the store's clock and up to a million. A request's key is
           stored once at least one of its records was journalled or known.
        7. Store the pending rows of journalled parts, under the limits of `remember`.
        8. Keep the rows of journalled labels that are revisable, as labelled rows. Delete other
           waiting rows under the keys of the labels, new or known.

        `copy` is the digest of an existing copy, which is kept as long as the entry. With `held`, a
        new entry requires that the log continues from this position or ends there: a control made
        from a state must not follow another state.

        If nothing is new, there is no entry, but cursor, nonce and request key are stored.
        Appends are announced to other processes: Redis publishes "<model> <seq>" on the channel
        `ds:appends` (`ds:appends:DB` in another database than 0), of appends in quick succession
        only the last; in SQLite `PRAGMA data_version` changes.

        Raises JournalUnavailable (nothing was done), OutcomeUnknown (repeat with the same nonce),
        ModelChanged, CursorMoved, UnknownCopy, MissingPosition, TooManyPendingRows (nothing was
        done); NonceForgotten, with `repeats`, if the log cannot show whether the append was done;
        ValueError for parts that break the rules of `Part`.
        """

    async def known(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[KeyEntry | None]:
        """Return the stored value of each key, None for unknown ones.

        This is what an append finds at this moment. Writes nothing.
        """

    async def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> Sequence[Entry]:
        """Return the entries whose last seq is > `after`, in order, up to `limit_bytes`.

        Each entry counts its body and 80 bytes; at least one is returned if there is any. An entry
        with `after` in its middle is returned completely.

        Returns a list, or a `Page` (page.py), which is parsed on first access and raises
        CorruptRecord then. `end_of` and `size_of` work on both without parsing, so that the next
        read can be sent before.

        Raises Trimmed if rows after `after` are gone.
        """

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        """Delete whole entries whose last seq is <= `through`, in bounded steps.

        With `behind`, nothing after the newest snapshot (0) or the one before it (1) is deleted, of
        the snapshots that the log contains; without such a snapshot nothing is. Copies that only
        deleted entries referred to are deleted, and copies without a name for ten minutes, whose
        writers died.
        """

    async def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        """Store a snapshot; return False if there is one of this seq or a newer one.

        With `replaces`, it replaces one of this seq. The snapshot is written in chunks of up to 1
        MiB, between which other work proceeds; readers see it once it is complete. The two newest
        are kept, of those from which the log still continues. Incomplete snapshots up to this seq,
        left by dead writers, are deleted.

        Raises MissingPosition if the log does not contain `chain` at `seq`, unless it is trimmed
        past `seq` and has a newer snapshot.
        """

    async def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        """Return the newest snapshot (n = 0) or the one before it (n = 1), or None."""

    async def snapshots(self, model: str, incarnation: str) -> Sequence[LogPosition]:
        """Return the positions of the kept snapshots, newest first."""

    async def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        """Delete the snapshots of a seq < `before`, including incomplete ones.

        Raises Conflict, and deletes nothing, if there is no snapshot at or after
        `before` that the log contains.
        """

    async def usage(self, model: str, incarnation: str) -> Usage:
        """Return the model's storage usage. On SQLite the time grows with the number of entries."""

    async def scrub(self, model: str, incarnation: str) -> bool:
        """Remove all traces of trimmed and deleted data of the model from keys and files.

        Returns False if that is not possible now: readers still use the data, or there are more
        entries than one step can rewrite. Not covered: what the Redis server keeps elsewhere (its
        append-only file until the next rewrite, replicas, backups).
        """

    async def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        """Return the value of the cursor, None if it has none."""

    async def cursors(self, model: str, incarnation: str, prefix: str) -> dict[str, str]:
        """Return the values of the cursors whose names begin with `prefix`, by name, sorted."""

    # Last, because it shadows the type `list` in what follows.
    async def list(self, after: str = "", limit: int = 100) -> list[ModelRecord]:
        """Return up to `limit` models with an id > `after`, ordered by id (code points).

        Not atomic with creation and deletion: each model is of the moment when it was read.
        """
