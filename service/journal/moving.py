"""The part of the journal's contract by which a model moves from one store to another.

What is read here together with the rest of the contract is all that a store keeps of a model. It is
written into a model that is *staged*: nobody finds it until it is whole. A staged model goes by a
name and an incarnation of its own, under which what is written of copies, versions and snapshots
may be written too. Whoever knew the model before it was staged cannot write to it any more.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from service.journal._placing import Left
from service.journal.audit import Audited
from service.journal.chain import first_chain
from service.journal.copies import CopyUse
from service.journal.protocol import Entry, Journal, ModelRecord, Place, Remembered

MOVED = "moved"
"""The cursor in which a migration leaves what it needs to know later, told by `cursor` alone."""


class KeptKey(msgspec.Struct, frozen=True, gc=False):
    """A key that is known, what stands under it, and when it came by the store's clock."""

    key: bytes
    seq: int
    records: int
    fingerprint: bytes | None
    time_ms: int


class KeptAppend(msgspec.Struct, frozen=True, gc=False):
    """What an append of this nonce was answered: the seqs and the chain before it, what it left."""

    nonce: bytes
    before: int
    seq: int
    previous: str
    left: Sequence[Left]


class Staged(msgspec.Struct, frozen=True, gc=False):
    """A model that nobody finds yet: what it goes by, and where its log ends.

    chain is empty where the log before it was trimmed and no entry came yet.
    """

    name: str
    incarnation: str
    seq: int
    chain: str

    @property
    def own(self) -> tuple[str, str]:
        """The name and the incarnation under which it is written to."""
        return self.name, self.incarnation


def chain_at_start(record: ModelRecord, trimmed: int) -> str:
    """The chain before the first entry after `trimmed`, empty where it is not known."""
    if trimmed == record.seq:
        return record.chain
    return "" if trimmed else first_chain(record.incarnation)


class Movable(Journal, Protocol):
    """A journal of which models can be taken, and into which they can be put, as they are."""

    async def identity(self) -> str | None:
        """Return the numeric identity in force, None where there is none."""

    async def kept_keys(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[KeptKey], int | None]:
        """Return some of the known keys, the oldest first, and where to go on, None at the end.

        `start` is 0 or where to go on. Expired keys may be among them.

        Raises ModelChanged.
        """

    async def kept_appends(self, model: str, incarnation: str) -> Sequence[KeptAppend]:
        """Return what is kept under nonces, the oldest first.

        Raises ModelChanged.
        """

    async def cursors(self, model: str, incarnation: str) -> Mapping[str, str]:
        """Return where all cursors stand, but for MOVED: it is of this store, and no other.

        Raises ModelChanged.
        """

    async def kept_rows(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[Remembered], int | None]:
        """Return some of the rows that wait, and where to go on, None at the end.

        `start` is 0 or where to go on. Those that have expired, or are known to have, are among
        them.

        Raises ModelChanged.
        """

    async def stage_rows(
        self, staged: str, incarnation: str, rows: Sequence[Remembered], are_first: bool
    ) -> None:
        """Let these rows wait, as they are; in place of what is there where they are the first.

        Raises ModelChanged.
        """

    async def stage(
        self,
        record: ModelRecord,
        trimmed: int,
        there: Place | None = None,
        is_anew: bool = False,
    ) -> Staged:
        """Stage a model of the record's id, incarnation, specs and time; or go on with it. Atomic.

        Its log begins after `trimmed`. One that is staged already goes on where it stands, and
        one of this incarnation that all can see, and whose log ends at `there`, is staged again.
        What was staged of another incarnation is thrown away, and a log that does not begin after
        `trimmed`; with `is_anew` whatever was staged. So are copies and snapshots that were never
        finished, of which nobody can tell whose they are. Nothing of all that stays in files.

        Raises Conflict where all can see a model of this id that is another one, or that does not
        end `there`; it stays as it is.
        """

    async def stage_entries(
        self, staged: str, incarnation: str, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        """Add entries to the log, as they are, all or none; `uses` are those of them.

        Raises ModelChanged; Conflict where they do not follow from the log's end.
        """

    async def stage_keys(
        self, staged: str, incarnation: str, start: int, keys: Sequence[KeptKey]
    ) -> None:
        """Keep these keys after the first `start`; with 0 they are the first ones.

        Raises ModelChanged; Conflict where there are not so many.
        """

    async def stage_rest(
        self,
        staged: str,
        incarnation: str,
        appends: Sequence[KeptAppend],
        cursors: Mapping[str, str],
    ) -> None:
        """Keep what stands under nonces, and the cursors; in place of what is there.

        Raises ModelChanged.
        """

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        """Add to the log of changes, with their times, those that it does not have.

        They are given in the order in which they were made, and are told with those that are there
        in the order of their times. Changes that are there and come behind may have other places
        then.
        """

    async def unstage(self, record: ModelRecord) -> None:
        """Let all see the model of this record, which is staged, or is there already. Atomic.

        Raises ModelChanged; Conflict where the log does not end as the record says.
        """

    async def settle(self) -> None:
        """Return once all that was written lies where the store keeps it: of a file, on the disk;
        of a server, with every replica that follows it.

        Raises JournalUnavailable; NotReplicated where a replica does not say so in time.
        """
