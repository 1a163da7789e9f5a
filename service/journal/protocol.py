"""The journal's contract: what every store promises, method by method.

A journal holds models. A model has a spec, a log of entries, the idempotency keys of what it
learned, a few snapshots and cursors. An entry is one append: the records (samples and controls)
of one group of requests, in order. Each record takes one `seq`, counted from 1 without gaps.

Errors are those of `errors.py`. `ValueError` means that the caller broke the contract; nothing was
done then either. What the contract says of full copies of states stands in `copies.py`, of rows
that wait for their labels in `remembering.py`, of sizes in `usage.py`, of the log of who changed
what in `audit.py`, of rates that processes share in `leasing.py`.

The values are msgspec structs (frozen and slotted, as a dataclass would be): one is made for each
part of each append, and a frozen dataclass takes five times as long.
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
    ModelChanged as ModelChanged,
    NonceForgotten as NonceForgotten,
    NotHeld as NotHeld,
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
)
from dualstream.service.journal.rate_buckets import Lease as Lease, RateBuckets
from dualstream.service.journal.state_copies import (
    CopyUse as CopyUse,
    StateCopies,
    StoredCopy as StoredCopy,
    Version as Version,
)
from dualstream.service.journal.usage import Usage as Usage, UsageReports

ENTRY_BYTES = 1 << 20
"""How many bytes of entries one answer brings, at most (but one entry at least)."""

ENTRY_OVERHEAD = 80
"""What an entry counts for besides its body."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How long and how many keys, nonces, versions, unnamed copies, rows that wait for labels, dead
    messages and audited changes are kept.

    Per model; of dead messages about the last so many.
    """

    key_ttl_s: float = 3600
    max_keys: int = 1_000_000
    nonces: int = 1000
    max_versions: int = 100
    unnamed_copy_s: float = 600
    max_dead: int = 10_000
    remember_s: float = 86400
    max_remembered: int = 100_000
    remembered_bytes: int = 64 * 1024 * 1024
    audit_s: float = 400 * 86400


DEFAULT_LIMITS = Limits()


class Part(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records of one request: what is journalled, or left out, together.

    body         the encoded part (`record.encode_rows`, `record.encode_control`)
    count        the records in it
    key          kind byte and key (`record.make_key`), or None
    fingerprint  16 bytes that tell one payload under `key` from another, or None
    continues    the part belongs to the request that an earlier part of the group opened
    whole        the part opens a request that is journalled whole or not at all; told to the store
                 alone, the body says nothing of it

    A request with a key (request or chunk) is opened by a part that carries this key; its other
    parts follow, carry `continues`, and may have a key of their own (sample id, label, refit).
    When its first row has a key of its own, an empty part (count 0) with the request's key opens
    it. An empty part never makes an entry by itself; where no other part follows, nothing but its
    key is new: that is known from then on, as of a request whose rows were all known. Parts of a
    request without a key do not carry `continues`: each of them stands alone, unless the first one
    is `whole`.

    Of a `whole` request nothing is journalled, and no key of it kept, when a part of it is in
    conflict, be it with another part of the same request. What is known with the same payload is
    no conflict: it is left out as ever.
    """

    body: bytes
    count: int
    key: bytes | None = None
    fingerprint: bytes | None = None
    continues: bool = False
    whole: bool = False


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where one part stands: its records have the seqs first_seq .. seq.

    A duplicate has the original's place, and a part of a duplicate request that whole request's
    (count: the records journalled for it). `conflict`: the key is known with another fingerprint,
    nothing of this part, or for a request's key of this request, was journalled; the place is the
    known one's. `refused`: the part is of a `whole` request some parts of which are in conflict,
    and nothing of it was journalled; these alone have `conflict`, too. Where nothing stands (an
    empty part; a request of which every record was a duplicate; what was refused, or is in conflict
    with what was), count is 0 and first_seq is seq + 1.
    """

    first_seq: int
    seq: int
    count: int
    duplicate: bool = False
    conflict: bool = False
    refused: bool = False


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One append as the journal keeps it: records first_seq .. seq, one after the other in body.

    chain = sha1hex(the chain before, 40 characters + nonce), see `chain.py`. time_ms is the
    store's clock.
    """

    first_seq: int
    seq: int
    nonce: bytes
    chain: str
    time_ms: int
    body: bytes


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append did.

    placed           one per part
    first_seq, seq   of the own entry; None when nothing was new
    previous, chain  the chain before and after; equal when nothing was new
    entries          those after `known_seq` and before the own entry, the first ones up to 1 MiB,
                     at least one if there is any and nothing else is told by `more`
    more             there are further entries between the last of `entries` and the own one, or
                     rows after `known_seq` are no longer kept (then `read` raises Trimmed); or
                     nothing was known, and there is a snapshot to begin from
    shortfall        why it is less durable than was asked for: fewer replicas have it; else None
    """

    placed: tuple[Placed, ...]
    first_seq: int | None
    seq: int | None
    previous: str
    chain: str
    entries: tuple[Entry, ...]
    more: bool
    shortfall: str | None = None


class Known(NamedTuple):
    """What is kept under a key: the last seq, the number of records, the fingerprint."""

    seq: int
    records: int
    fingerprint: bytes | None


class CursorMove(msgspec.Struct, frozen=True, gc=False):
    """Compare and set of one cursor: `expected` is None where it was never set."""

    name: str
    expected: str | None
    new: str


class ModelRecord(msgspec.Struct, frozen=True, gc=False):
    """A model as the store knows it: its spec in full and as given, and its log's head.

    `incarnation` is random per creation, and of the spec that the model was made with (chain.py).
    Before the first entry, seq is 0 and chain is sha1hex(incarnation).
    """

    id: str
    incarnation: str
    spec: bytes
    given: bytes
    created_ms: int
    seq: int
    chain: str


class Head(msgspec.Struct, frozen=True, gc=False):
    """Where the log of a model ends, and of which of the models that had the id."""

    incarnation: str
    seq: int
    chain: str


Revision = tuple[int, int]
"""To be compared with others that the same journal told: only whether they are equal counts."""


class Announced(msgspec.Struct, frozen=True, gc=False):
    """An append to `model` that ends at `seq`; without a model, that any of them may have moved."""

    model: str | None = None
    seq: int = 0


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A state's bytes after the record `seq`, with the chain there.

    `where` names the key or the file that holds it, for whoever has to look there.
    """

    seq: int
    chain: str
    data: bytes
    where: str = ""


class Base(msgspec.Struct, frozen=True, gc=False):
    """What a replica begins from: the model, its newest snapshot, and the first entries after it.

    All as of one moment. Nothing here says that the snapshot is good, or that the entries follow
    from it. Where `entries` is None, the model alone is told.
    """

    record: ModelRecord
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] | None = None


class Place(msgspec.Struct, frozen=True, gc=False):
    """A place in a log: the record `seq`, and the chain there."""

    seq: int
    chain: str


class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """One append to the log of `model`; `Journal.append` tells what each of these does."""

    model: str
    incarnation: str
    nonce: bytes
    known_seq: int
    parts: Sequence[Part]
    cursor: CursorMove | None = None
    copy: str | None = None
    change: Change | None = None
    held: Place | None = None
    repeats: Place | None = None


class Journal(StateCopies, PendingRows, UsageReports, AuditLog, RateBuckets, Protocol):
    """A store of models and their logs.

    One object serves one process and one event loop; any number of processes may use the same
    store. Every method but `open`, `close` and `durability` raises JournalUnavailable when the
    store cannot be used, and every method that writes raises OutcomeUnknown when the answer was
    lost; those other than `append` raise NotReplicated where fewer replicas than were asked for
    have what was written. Only `append` can be repeated blindly; the others are safe to repeat
    because they compare first.
    """

    async def open(self) -> None:
        """Connect, and make the store ready where it is new; may be called again after a failure.

        Raises JournalUnavailable, DurabilityTooLow, StoreTooNew.
        """

    async def close(self) -> None:
        """Let go of connections and threads. What was acknowledged stays."""

    async def ping(self) -> None:
        """Return when the store answers, and is as durable as was asked for.

        Raises JournalUnavailable, DurabilityTooLow.
        """

    def durability(self) -> str:
        """What the store really keeps, as it was read at the last connect.

        SQLite: `normal` (a power cut may take the last appends, a killed process takes none) or
        `full`. Redis: `memory`, `everysec` or `always`, of several servers the least; or
        `replicated:N`, if it was asked for.
        """

    def log_name(self, model: str) -> str:
        """What the model's log is called in the store, for whoever has to look at it there.

        Redis: its key. SQLite: the file and the table.
        """

    def spec_name(self, model: str) -> str:
        """As `log_name`, of its spec."""

    async def claim_identity(self, mine: str) -> str:
        """Return the numeric identity in force, `mine` where the store had none. Atomic."""

    async def identity(self) -> str | None:
        """Return the numeric identity in force, None where the store has none. Writes nothing."""

    async def adopt_identity(self, mine: str) -> None:
        """Put `mine` in force. Atomic."""

    async def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        """Create the model and return (it, True), or return the existing one and False. Atomic."""

    async def get(self, model: str) -> ModelRecord:
        """Return the model with its log's head.

        Raises UnknownModel.
        """

    async def base(self, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        """Return what a replica begins from, as far as the store tells it in one step.

        SQLite: all; the entries are those of a `read`, None where that would raise Trimmed. Redis:
        the model.

        Raises UnknownModel.
        """

    async def heads(self, models: Sequence[str]) -> Sequence[Head | JournalUnavailable | None]:
        """Return where the logs of these models end, None for each that is unknown.

        Where a store has several servers and some of them cannot be used, the error stands in
        place of each head that they would have told. Not atomic: each stands as it stood when it
        was read.
        """

    async def revision(self) -> Revision | None:
        """Return what is another one once anybody, this journal too, has committed anything.

        While it stays the same, so does everything that the store tells. None where a store does
        not count its commits: Redis.

        Raises JournalUnavailable.
        """

    def announcements(self) -> AsyncGenerator[Announced, None]:
        """Tell of appends by others while the caller iterates.

        The first one names no model and comes as soon as it listens: each append by another journal
        that is acknowledged after it is followed, within a fraction of a second, by an announcement
        of its model at its seq or later, or by one that names no model. Appends of this journal may
        be announced, too. Redis: it has a connection of its own.
        Announcements may come twice, late, and for models that this store does not hold; where
        whoever appended died in between they may be missing, so ask for `heads` now and then.

        Raises JournalUnavailable when the connection breaks; iterate anew then.
        """

    async def count(self) -> int:
        """Return the number of models (Redis: one that is just being deleted may count)."""

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

        Raises UnknownModel; Conflict when it does not stand at incarnation, seq and chain.
        """

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: Place | None = None,
    ) -> None:
        """Delete the model and all that belongs to it; what is large goes in bounded steps after.
        What was changed of it stays in the log of changes.

        Atomic: from one moment on the model is unknown, and an appender that still holds its
        incarnation gets ModelChanged.

        Raises UnknownModel; ModelChanged when `incarnation` is given and is another one; Conflict
        when the log does not end `at` the place that is given.
        """

    def append(self, request: AppendRequest) -> Awaitable[Appended]:
        """Make the new ones of `request.parts` durable as one entry, all or none.

        Say where each stands.

        One atomic step that checks the incarnation; answers a repeated nonce (the last 1,000 are
        kept; a repeat carries the same parts) as the first time, looking for one that is no longer
        kept in the log behind `repeats`, the place behind which it was asked for first; compares
        and sets `cursor`;
        leaves out what is known by its key, within the group too, a request's key being checked
        first and once for the whole request, and with it the rest of a `whole` request of which a
        part is in conflict; joins what is left to one entry; gives it seqs, chain
        and the store's time; keeps the keys (for an hour by the store's clock, and the last
        million; a request's key once at least one of its records was journalled or known); lets go
        of the rows that waited under the keys of its labels, new or known. With
        `copy`, the digest of one that has to be there, the entry keeps this copy as long as it is
        kept itself. With `held` nothing new enters unless the log leads on from this place, or ends
        there: what was made of a state does not come behind another one.

        When nothing is new there is no entry, but cursor, nonce and request key are kept.
        The append is announced to other processes: "<model> <seq>" is published on Redis's channel
        `ds:appends`, of many appends that follow one another the last; with SQLite
        `PRAGMA data_version` changes.

        Raises JournalUnavailable (nothing was done), OutcomeUnknown (repeat with the same nonce),
        ModelChanged, CursorMoved, UnknownCopy, NotHeld; NonceForgotten, with `repeats`, where the
        log does not tell whether it was done; ValueError for parts that break the rules of `Part`,
        and for an `InputMove` (`inputs.py`) where the store has no inputs.
        """

    async def known(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[Known | None]:
        """Return what is kept under each of these keys, None for one that is not known.

        It is what an append would find now; nothing is kept for it.

        Raises ModelChanged.
        """

    async def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> Sequence[Entry]:
        """Return the entries whose last seq is > `after`, in order, up to `limit_bytes`.

        Each counts for its body and 80 bytes; at least one is returned if there is any. One
        with `after` in its middle is returned whole.

        It is a list, or where parsing takes long a `Page` (`pages.py`), which is parsed when it is
        looked at and raises CorruptRecord then; `end_of` and `size_of` tell of both how far they
        reach without a look, so that the next read can be on its way before.

        Raises ModelChanged; Trimmed when rows after `after` are gone.
        """

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        """Let go of whole entries whose last seq is <= `through`, in bounded steps.

        With `behind`, no further than the newest snapshot (0) or the one before it (1), of those
        that the log holds; nothing goes where there is none. With the entries go the copies that
        only they have named, and those that nothing has named for ten minutes: whoever wrote
        these has died before the next step.

        Raises ModelChanged.
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
        """Keep a snapshot; False when one of this seq or a newer one is there already.

        With `replaces`, it takes the place of one of this seq.
        Written in parts of up to 1 MiB, between which other work goes on; readers see it from
        one moment on. The two newest are kept, of those that the log still leads on from. What
        writers that died have left of snapshots up to this seq is removed.

        Raises ModelChanged; Conflict when the log does not hold `chain` at `seq`.
        """

    async def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        """Return the newest snapshot (n = 0) or the one before it (n = 1), None where none is.

        Raises ModelChanged.
        """

    async def snapshots(self, model: str, incarnation: str) -> Sequence[Place]:
        """Return where the kept snapshots stand, the newest first.

        Raises ModelChanged.
        """

    async def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        """Let go of the snapshots of a seq < `before`, those being written included.

        Raises ModelChanged; Conflict, and nothing goes, where no snapshot from there on is held.
        """

    async def scrub(self, model: str, incarnation: str) -> bool:
        """Leave nothing in keys and files of what was trimmed, dropped and deleted of the model.

        False where that is not possible now: readers hold on to what is to go, or more entries are
        kept than can be written anew in one step. What the store's server has written elsewhere
        (Redis's append-only file until its next rewrite, replicas, backups) is not its business.

        Raises ModelChanged.
        """

    async def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        """Return where the cursor stands, None where it was never set.

        Raises ModelChanged.
        """

    # Last, because below its name means this method.
    async def list(self, after: str = "", limit: int = 100) -> list[ModelRecord]:
        """Return up to `limit` models with an id > `after`, in order of id (by code points).

        Not atomic with creation and deletion: each model is as it stood when it was read.
        """
