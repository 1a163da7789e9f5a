"""Reading and writing whole models, for archives (`dualstream dump`, `dualstream restore`).

Reading works while servers write: `position` is one moment, and the caller omits what is later.
A restored model is *staged*: it has an incarnation of its own, no reader finds it, and `show` makes
it visible in one atomic step. Copies, versions and snapshots of a staged model are written by the
usual methods, under its staged name and incarnation.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from secrets import token_hex
from typing import NamedTuple, Protocol

import msgspec

from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import Entry, Journal, ModelRecord, PendingRow
from dualstream.service.journal.state_copies import CopyUse


class KeptKey(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key, its stored value, and when it was stored by the store's clock."""

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
    """A new incarnation for a staged model; no visible model has such a one."""
    return f"staged:{token_hex(8)}"


def chain_at_start(record: ModelRecord, trimmed: int) -> str:
    """The chain before the first entry after `trimmed`; empty if unknown."""
    if trimmed == record.seq:
        return record.chain
    return "" if trimmed else first_chain(record.incarnation)


class ArchiveJournal(Journal, Protocol):
    """A journal that can read and write whole models."""

    async def position(self, model: str) -> Position:
        """Return record, first kept entry and cursors of the model at one moment.

        Raises UnknownModel.
        """

    def kept_keys(self, model: str, incarnation: str) -> AsyncIterator[Sequence[KeptKey]]:
        """Yield pages of keys, oldest first. Expired keys may be included.

        Every key that is kept throughout the iteration is in one of the pages.
        """

    def kept_rows(self, model: str, incarnation: str) -> AsyncIterator[Sequence[PendingRow]]:
        """Yield pages of pending rows, expired ones included, each row once.

        Every row that is stored throughout the iteration is in one of the pages.
        """

    async def stage(self, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]) -> Staged:
        """Stage a model whose log begins after `trimmed`; replaces a staged model of the same id.

        Raises Conflict if a visible model has this id.
        """

    async def stage_entries(
        self, staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        """Append entries, all or none; `uses` lists the copies to which they refer.

        Raises Conflict if they do not follow the end of the log.
        """

    async def stage_keys(self, staged: Staged, keys: Sequence[KeptKey]) -> None:
        """Add keys, oldest first."""

    async def stage_rows(self, staged: Staged, rows: Sequence[PendingRow]) -> None:
        """Add pending rows."""

    async def show(self, staged: Staged, record: ModelRecord) -> None:
        """Make a staged model visible, with this record. Atomic.

        Raises Conflict if its log does not end as the record says, or if a visible
        model has this id.
        """

    async def discard(self, staged: Staged) -> None:
        """Delete a staged model. Does nothing if it is gone."""

    async def settle(self) -> None:
        """Return once all writes are on disk (SQLite) or on every replica (Redis).

        Raises JournalUnavailable; NotReplicated if a replica does not confirm in time.
        """
