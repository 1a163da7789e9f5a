"""Checks of a store's URL that need no learners, so a start makes them before it compiles any."""

import errno
import os
from tempfile import TemporaryFile
from urllib.parse import unquote

_HEADER = b"SQLite format 3\0"
_FOR_GOOD = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a path that do not pass by themselves, unlike a full disk."""


def sqlite_path(url: str) -> str | None:
    """The file of a SQLite store; None if the URL has none."""
    # Not by urlsplit: # and ? are characters of a file name.
    path = unquote(url.removeprefix("sqlite:///"))
    return path if path and url.startswith("sqlite:///") else None


def check_url(url: str) -> None:
    """Raise ValueError for an unknown scheme, and for SQLite without a file name."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        if not sqlite_path(url):
            raise ValueError(
                f"{url} has no file name; write sqlite:///file.db or sqlite:////path/file.db"
            )
    elif not scheme.startswith("redis"):
        raise ValueError(
            f"unknown store scheme {scheme or url!r}; use sqlite:///file.db,"
            " redis://host:port/db, redis+sentinel:// or redis+cluster://"
        )


def check_store(url: str) -> None:
    """Raise ValueError if the URL can never be one of a store. Creates nothing."""
    check_url(url)
    if not (path := sqlite_path(url)):
        return
    at = os.path.dirname(path) or "."
    try:
        with TemporaryFile(dir=at):
            pass  # SQLite creates its WAL in the folder
        if os.path.exists(at := path):
            with open(path, "r+b") as file:
                if file.read(len(_HEADER)) not in (b"", _HEADER):
                    raise ValueError(
                        f"store {path}: not a SQLite database; choose another with --store"
                    )
    except OSError as wrong:
        if wrong.errno in _FOR_GOOD:
            where = "" if at == path else f"{at}: "
            raise ValueError(
                f"store {path}: {where}{wrong.strerror}; choose another with --store"
            ) from None
