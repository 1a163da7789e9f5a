"""The journal: what was acknowledged, in order, durable; the stores behind one contract."""

from urllib.parse import unquote, urlsplit

from service.journal.protocol import DEFAULT_LIMITS, Journal, Limits

__all__ = ["Limits", "make_journal", "open_journal"]


async def open_journal(
    url: str,
    durability: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Journal:
    """Open the store at `url` and return it, ready.

    sqlite:///file.db (relative), sqlite:////path/file.db (absolute), redis://host:port/db
    (rediss:// with TLS).
    `durability` is the least that is asked for; None asks for nothing.

    Raises ValueError for another URL, and what `Journal.open` raises.
    """
    journal = make_journal(url, durability, limits)
    await journal.open()
    return journal


def make_journal(url: str, durability: str | None, limits: Limits) -> Journal:
    """The store at `url`, not opened yet. Raises ValueError for another URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        from service.journal.sqlite import SqliteJournal

        path = unquote(parts.path.removeprefix("/"))
        if not url.startswith("sqlite:///") or not path:
            raise ValueError(
                f"{url} names no file: write sqlite:///file.db, or sqlite:////path/file.db"
            )
        return SqliteJournal(path, durability, limits)
    if parts.scheme in ("redis", "rediss"):
        from service.journal.redis import RedisJournal

        return RedisJournal(url, durability, limits)
    if parts.scheme in ("redis+sentinel", "redis+cluster"):
        raise ValueError(f"{parts.scheme}:// is not available in this version: use redis://")
    raise ValueError(
        f"no store for {parts.scheme or url}: known are sqlite:///file.db and redis://host:port/db"
    )
