"""The journal: what was acknowledged, in order, durable; the stores behind one contract."""

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dualstream.service.journal.protocol import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from dualstream.service.journal.transfer import TransferJournal

__all__ = ["Limits", "make_journal", "open_journal", "sqlite_path"]


async def open_journal(
    url: str,
    durability: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> "TransferJournal":
    """Open the store at `url` and return it, ready.

    sqlite:///file.db (relative), sqlite:////path/file.db (absolute); redis://, redis+sentinel://
    and redis+cluster:// as `redis/address.py` says.
    `durability` is the least that is asked for; None asks for nothing.

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
) -> "TransferJournal":
    """The store at `url`, not opened yet. Raises ValueError for another URL.

    With `is_pinned`, a server that takes another's place meanwhile is not gone on with: what was
    written and acknowledged may be lost with the other, and it is JournalUnavailable.
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from dualstream.service.journal.sqlite import SqliteJournal

        path = sqlite_path(url)
        if not path:
            raise ValueError(
                f"{url} names no file: write sqlite:///file.db, or sqlite:////path/file.db"
            )
        return SqliteJournal(path, durability, limits)
    if scheme.startswith("redis"):
        from dualstream.service.journal.redis import RedisJournal

        return RedisJournal(url, durability, limits, is_pinned=is_pinned)
    raise ValueError(
        f"no store for {scheme or url}: known are sqlite:///file.db, redis://host:port/db,"
        " redis+sentinel:// and redis+cluster://"
    )


def sqlite_path(url: str) -> str | None:
    """The file of a SQLite store; None where the URL names none."""
    path = unquote(urlsplit(url).path.removeprefix("/"))
    return path if path and url.startswith("sqlite:///") else None
