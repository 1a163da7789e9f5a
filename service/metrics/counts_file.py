"""File of counters that several processes read, for prometheus_client.

The blocks of the file are allocated before it is mapped. On a full disk the allocation fails with
an error; a write to a mapped block without space ends the process by SIGBUS.
"""

import contextlib
import logging
import mmap
import os
from typing import ClassVar

from prometheus_client.mmap_dict import MmapedDict

log = logging.getLogger("dualstream.metrics")

_FIRST_BYTES = 1 << 16
_HEADER_BYTES = 8


class CountsFile(MmapedDict):
    """Counters of a worker in a mapped file, or in its memory while no file can be made."""

    open_files: "ClassVar[list[CountsFile]]" = []
    """Those of this process: one per kind of metric."""

    def __init__(self, filename: str) -> None:
        self._fname = filename
        self._f: int | None = None  # type: ignore[assignment]
        self._positions: dict[str, int] = {}
        try:
            self._map_present_file()
            for key, _, _, position in self._read_all_values():  # type: ignore[no-untyped-call]
                self._positions[key] = position
        except (OSError, RuntimeError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s is damaged; its counters begin at 0: %s", filename, error)
            self._positions.clear()
            self._used = _HEADER_BYTES
            self._move(self._used.to_bytes(_HEADER_BYTES, "little"), _FIRST_BYTES)
        self.open_files.append(self)

    @property
    def is_shared(self) -> bool:
        """Do other workers find this file at its path?"""
        if self._f is None:
            return False
        try:
            return os.path.samestat(os.stat(self._fname), os.fstat(self._f))
        except OSError:
            return False

    def share_again(self) -> None:
        """Move the counters to a new file if the present one is removed or could not be made."""
        if not self.is_shared:
            self._move(self._m[: self._used], self._capacity)

    def _map_present_file(self) -> None:
        descriptor = os.open(self._fname, os.O_RDWR | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            _allocate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self._f, self._m, self._capacity = descriptor, mapped, size
        self._used = int.from_bytes(mapped[:4], "little")
        if not _HEADER_BYTES <= self._used <= size:
            raise ValueError(f"{self._used} of {size} bytes are used")

    def _move(self, content: bytes, capacity: int) -> None:
        """Continue with this content in a new file, or in memory if none can be made."""
        self.close()
        partial = f"{self._fname}.partial"
        try:
            self._f, self._m = _mapped(partial, capacity)
            self._m[: len(content)] = content
            os.replace(partial, self._fname)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                os.unlink(partial)
            self._m = mmap.mmap(-1, capacity)
            self._m[: len(content)] = content
        self._capacity = capacity

    def _init_value(self, key: str) -> None:
        # The base class enlarges the file without allocating blocks.
        while self._used + len(key.encode()) + 64 > self._capacity:
            self._move(self._m[: self._used], 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the descriptor. The mapping stays."""
        if self._f is not None:
            os.close(self._f)
            self._f = None


def _mapped(path: str, capacity: int) -> tuple[int, mmap.mmap]:
    """A new file of this size, mapped, all of whose blocks are allocated. Raises OSError."""
    if os.lstat(os.path.dirname(path)).st_uid != os.geteuid():
        raise PermissionError(f"{os.path.dirname(path)} belongs to another user")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        _allocate(descriptor, capacity)
        return descriptor, mmap.mmap(descriptor, capacity)
    except BaseException:
        os.close(descriptor)
        raise


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    elif missing := size - os.fstat(descriptor).st_size:
        os.pwrite(descriptor, bytes(missing), size - missing)
