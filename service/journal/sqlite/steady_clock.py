"""Clock of a SQLite store by which keys and waiting rows age. It only moves forward.

It follows the clock since boot, which all processes of the host share and which cannot be set, so
a jump of the wall clock in one process or in all of them changes no age. After a reboot, or when
the file comes to another host, the wall clock gives the time in between, at most MAX_GAP_MS.
"""

import time
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import msgspec

from dualstream.service.journal.sqlite.log import now_ms

MAX_GAP_MS = 3_600_000
"""Longest time that passes while the host is off. A wrong wall clock after a reboot is common."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NAME = "clock"


class _Kept(NamedTuple):
    """The store's clock as it was last written."""

    boot: str
    ahead_ms: int
    """The store's clock minus the clock since this boot."""
    last_ms: int
    """The store's clock and the wall clock when this was written."""
    wall_ms: int


_decode = msgspec.json.Decoder(_Kept).decode


def since_boot_ms() -> int:
    """The host's clock since boot."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def boot_id() -> str:
    """Name of the present boot; the same for all processes of the host."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return ""


class SteadyClock:
    """The clock of one store, in milliseconds."""

    def __init__(self) -> None:
        self._boot = boot_id()
        self._ahead_ms = now_ms() - since_boot_ms()

    def start(self, db: Connection) -> bool:
        """Continue the clock of the store. False: `write` it, as it is new or of another boot.

        A new store begins with the wall clock.
        """
        row = db.execute("SELECT value FROM store WHERE name = ?", (_NAME,)).fetchone()
        if row is None:
            return False
        kept = _decode(row[0])
        self._ahead_ms = kept.ahead_ms
        if kept.boot == self._boot and self.now_ms() >= kept.last_ms:
            return True
        gap_ms = min(max(0, now_ms() - kept.wall_ms), MAX_GAP_MS)
        self._ahead_ms = kept.last_ms + gap_ms - since_boot_ms()
        return False

    def write(self, db: Connection) -> None:
        """Write down how far the clock has come, for the next boot."""
        kept = _Kept(self._boot, self._ahead_ms, self.now_ms(), now_ms())
        db.execute(
            "INSERT OR REPLACE INTO store (name, value) VALUES (?, ?)",
            (_NAME, msgspec.json.encode(kept).decode()),
        )

    def now_ms(self) -> int:
        """The store's clock now."""
        return self._ahead_ms + since_boot_ms()

    def behind_ms(self) -> int:
        """The wall clock minus this clock, in whole seconds. Archives have times of the former."""
        return 1000 * round((now_ms() - self.now_ms()) / 1000)
