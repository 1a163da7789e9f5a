"""The journal: durable, ordered log of each model, in SQLite or Redis.

DESIGN.md has the design, protocol.py the contract.
"""

from typing import TYPE_CHECKING

from dualstream.service.journal.protocol import DEFAULT_LIMITS, Limits
from dualstream.service.journal.store_url import check_url, sqlite_path

if TYPE_CHECKING:
    from dualstream.service.journal.archive_access import ArchiveJournal

__all__ = ["Limits", "make_journal", "open_journal", "sqlite_path"]


async def open_journal(
    url: str, durability: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> "ArchiveJournal":
    """Open the store at `url` and return it, ready for use.

    URLs: sqlite:///file.db (relative), sqlite:////path/file.db (absolute); redis://,
    redis+sentinel:// and redis+cluster:// as described in redis/address.py. `durability` is the
    lowest acceptable level; None accepts any.

    Raises ValueError for another URL, and what `Journal.open` raises.
    """
    journal = make_journal(url, durability, limits)
    try:
        await journal.open()
    except BaseException:
        await journal.close()
        raise
    return journal


def make_journal(
    url: str, durability: str | None, limits: Limits, is_pinned: bool = False
) -> "ArchiveJournal":
    """Return the store at `url`, not opened yet. Raises ValueError for an unknown URL.

    With `is_pinned`, the store raises JournalUnavailable after a failover instead of continuing
    on the new primary, which may lack acknowledged writes.
    """
    check_url(url)
    if path := sqlite_path(url):
        from dualstream.service.journal.sqlite import SqliteJournal

        return SqliteJournal(path, durability, limits)
    from dualstream.service.journal.redis import RedisJournal

    return RedisJournal(url, durability, limits, is_pinned=is_pinned)
