"""What the journal's contract says of what a model takes in the store."""

from typing import Protocol

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a model's log and its snapshots take, and how old what is in the log is.

    log_bytes        of its entries (SQLite: their bodies; Redis: memory of the stream, about)
    snapshots_bytes  of the complete snapshots
    oldest_ms        when the first kept entry was appended, by the store's clock; None without any
    unsaved_ms       the same of the first entry that the newest snapshot lacks; None without any
    """

    log_bytes: int
    snapshots_bytes: int
    oldest_ms: int | None
    unsaved_ms: int | None


class UsageReports(Protocol):
    """The part of the journal's contract that tells sizes."""

    async def usage(self, model: str, incarnation: str) -> Usage:
        """Return what the model takes; on SQLite the time grows with the entries kept.

        Raises ModelChanged.
        """
