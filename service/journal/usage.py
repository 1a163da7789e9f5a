"""Storage usage of a model: bytes of its log and snapshots, age of its entries."""

from typing import Protocol

import msgspec


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


class UsageReports(Protocol):
    """Storage usage of a store's models."""

    async def usage(self, model: str, incarnation: str) -> Usage:
        """Return the model's storage usage. On SQLite the time grows with the number of entries.

        Raises ModelChanged.
        """
