"""The part of the journal's contract that dumps models into archives and restores them.

Reading needs no quiet store: `position` is one moment, and a caller leaves out what is later.
A restored model is *staged*: it has an incarnation of its own, no reader finds it, and `show` makes
it visible in one atomic step. StateCopies, versions and snapshots of a staged model are written by the
usual methods, under its staged name and incarnation.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from secrets import token_hex
from typing import NamedTuple, Protocol

import msgspec

from dualstream.service.journal.audit import Audited
from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import Entry, Journal, ModelRecord, PendingRow
from dualstream.service.journal.state_copies import CopyUse


class KeptKey(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key, what it stands for, and when it came by the store's clock."""

    key: bytes
    seq: int
    records: int
    fingerprint: bytes | None
    time_ms: int


class Position(NamedTuple):
    """A model at one moment. `trimmed` is the last seq whose entry is no longer kept."""

    record: ModelRecord
    trimmed: int
    cursors: Mapping[str, str]


class Staged(NamedTuple):
    """The name and the incarnation of a staged model."""

    name: str
    incarnation: str


def staged_incarnation() -> str:
    """An incarnation that no model has, another one for each restore."""
    return f"staged:{token_hex(8)}"


def chain_at_start(record: ModelRecord, trimmed: int) -> str:
    """The chain before the first entry after `trimmed`, empty if it is unknown."""
    if trimmed == record.seq:
        return record.chain
    return "" if trimmed else first_chain(record.incarnation)


class TransferJournal(Journal, Protocol):
    """A journal whose models can be read whole, and written whole."""

    async def position(self, model: str) -> Position:
        """Return record, first kept entry and cursors of the model, as of one moment.

        Raises UnknownModel.
        """

    def kept_keys(self, model: str, incarnation: str) -> AsyncIterator[Sequence[KeptKey]]:
        """Yield pages of the keys, oldest first. Expired keys can be among them.

        A key that is kept from the first page to the last is in one of them.

        Raises ModelChanged.
        """

    async def kept_rows(self, model: str, incarnation: str) -> Sequence[PendingRow]:
        """Return all pending rows, expired ones included, in the order of their keys.

        Raises ModelChanged.
        """

    async def stage(self, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]) -> Staged:
        """Stage a model whose log begins after `trimmed`, in place of a staged one of its id.

        Raises Conflict if a visible model has this id.
        """

    async def stage_entries(
        self, staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        """Add entries to the log, all or none; `uses` names the copies that they need.

        Raises ModelChanged; Conflict if they do not follow the log's end.
        """

    async def stage_keys(self, staged: Staged, keys: Sequence[KeptKey]) -> None:
        """Add keys, oldest first.

        Raises ModelChanged.
        """

    async def stage_rows(self, staged: Staged, rows: Sequence[PendingRow]) -> None:
        """Add pending rows.

        Raises ModelChanged.
        """

    async def show(self, staged: Staged, record: ModelRecord) -> None:
        """Make a staged model visible, as this record says. Atomic.

        Raises ModelChanged; Conflict if its log does not end as the record says, or if a visible
        model has this id.
        """

    async def discard(self, staged: Staged) -> None:
        """Delete a staged model. Does nothing if it is gone."""

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        """Add to the audit log the changes that it lacks, with their times.

        They are given in the order in which they were made, and are merged with those that are
        there in the order of their times. Later changes can get other places then.
        """

    async def settle(self) -> None:
        """Return once all writes are where the store keeps them: on the disk of a file; on every
        replica of a server.

        Raises JournalUnavailable; NotReplicated if a replica does not confirm in time.
        """
