"""The journal: durable, ordered log of each model, in SQLite or Redis.

DESIGN.md has the design, protocol.py the contract.
"""

from typing import TYPE_CHECKING
from urllib.parse import unquote

from dualstream.service.journal.protocol import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from dualstream.service.journal.archive_access import ArchiveJournal

__all__ = ["Limits", "check_path", "make_journal", "open_journal", "sqlite_path"]


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
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from dualstream.service.journal.sqlite import SqliteJournal

        path = sqlite_path(url)
        if not path:
            raise ValueError(
                f"{url} has no file name; write sqlite:///file.db or sqlite:////path/file.db"
            )
        return SqliteJournal(path, durability, limits)
    if scheme.startswith("redis"):
        from dualstream.service.journal.redis import RedisJournal

        return RedisJournal(url, durability, limits, is_pinned=is_pinned)
    raise ValueError(
        f"unknown store scheme {scheme or url!r}; use sqlite:///file.db, redis://host:port/db,"
        " redis+sentinel:// or redis+cluster://"
    )


def check_path(url: str) -> None:
    """Raise ValueError if the URL names a SQLite file that can never be a store."""
    from dualstream.service.journal.sqlite import schema

    if path := sqlite_path(url):
        schema.check_path(path)


def sqlite_path(url: str) -> str | None:
    """The file of a SQLite store; None if the URL has none."""
    # Not by urlsplit: # and ? are characters of a file name.
    path = unquote(url.removeprefix("sqlite:///"))
    return path if path and url.startswith("sqlite:///") else None
