"""Checks of the SQLite file: was it removed or replaced, and did every sync succeed?

While a check fails, nothing is written, so that no answer promises what the disk does not have.
"""

import logging
import os

from dualstream.service.journal.protocol import JournalUnavailable

log = logging.getLogger("dualstream.sqlite")

_SUFFIXES = "", "-wal", "-shm"


class SyncFailed(JournalUnavailable):
    """The operating system could not write the file or its write-ahead log to the disk."""


class FileChecks:
    """Why a SQLite file may not be written to now, if there is a reason."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._opened: dict[str, tuple[int, int]] = {}
        self._moved: str | None = None
        self.failed_sync: str | None = None
        """Error of the last sync. After it, the kernel takes unwritten pages for written."""

    def opened(self) -> None:
        """Remember which files are open. Call this once all connections are."""
        for suffix in _SUFFIXES:
            if (found := _identity(self._path + suffix)) is not None:
                self._opened[self._path + suffix] = found

    def look(self) -> None:
        """Compare the files at the path with the open ones."""
        for path, identity in self._opened.items():
            if self._moved is None and (found := _identity(path)) != identity:
                how = "removed" if found is None else "replaced by another file"
                self._moved = (
                    f"SQLite: {path} was {how} while the server had it open; what is learned now "
                    "is lost, so the server refuses to learn. Restore the file and restart the "
                    "server"
                )
                log.error("%s", self._moved)

    def sync_failed(self, error: Exception) -> SyncFailed:
        """Note a failed sync or checkpoint."""
        if self.failed_sync is None:
            log.error("SQLite cannot write %s to the disk: %s", self._path, error)
        self.failed_sync = str(error)
        return SyncFailed(self._why_not_synced())

    def checkpointed(self) -> None:
        """All content of the write-ahead log is in the file and on the disk."""
        if self.failed_sync is not None:
            log.warning("SQLite has written %s to the disk again", self._path)
        self.failed_sync = None

    def check(self) -> None:
        """Raise JournalUnavailable if the file may not be written to."""
        if self._moved is not None:
            raise JournalUnavailable(self._moved)
        if self.failed_sync is not None:
            raise SyncFailed(self._why_not_synced())

    def _why_not_synced(self) -> str:
        return (
            f"SQLite cannot write {self._path} to the disk: {self.failed_sync}; nothing is "
            "learned until a checkpoint succeeds; check the disk"
        )


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at this path; None without a file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
