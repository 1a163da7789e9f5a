"""Metrics of several workers on one port, shared through a directory that their parent makes.

Counters and histograms live in memory-mapped files, one set per worker number. A worker that
replaces a dead one continues its files, so no sum falls and no file is left over. Each worker also
writes its present memory and lag to a small file every second.

The service does not depend on the directory. While it is full or removed, a worker counts in its
own memory and exports its own counts. Every second it tries to share them again.

The blocks of a mapped file are allocated before it is mapped. On a full disk the allocation fails
with an error; a write to a mapped block without space ends the process by SIGBUS.
"""

import contextlib
import logging
import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

log = logging.getLogger("dualstream.metrics")

_FIRST_BYTES = 1 << 16
_HEADER_BYTES = 8


class WorkerReport(msgspec.Struct, frozen=True, array_like=True):
    """Present memory and lag of a worker, and what its features report.

    lag       model -> seconds, records; only of models that lag
    reports   for each `ReportFamilies`: model -> values
    """

    cached: int
    cached_bytes: int
    budget_bytes: int
    is_store_available: bool
    lag: dict[str, tuple[float, int]]
    reports: list[dict[str, tuple[float, ...]]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerReport).decode


class MetricsDirectory:
    """The shared directory and this worker's number, which its replacement inherits."""

    def __init__(self, directory: str, number: int) -> None:
        self.directory, self.number = directory, number
        self.is_shared = True
        """Did other workers find the counters of this one, when it looked last?"""
        self._is_removed = False

    def keep_counts(self) -> None:
        """Keep all counters and histograms that are created after this call in files."""
        self._make()
        # prometheus_client reads only the variable, when a value is created.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self.directory  # noqa: TID251
        values.MmapedDict = CountsFile  # type: ignore[attr-defined, assignment]
        values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
            lambda: self.number
        )

    def counts(self, own: Collector) -> "SharedCounts":
        """Sums over all workers, including dead ones. `own` collects those of this process."""
        return SharedCounts(self, own)

    def remove(self) -> None:
        """Remove the directory for good: this process serves on while it drains.

        It is renamed first, so that no file can be added while the others are deleted.
        """
        self._is_removed = True
        removed = f"{self.directory}.{self.number}"
        with contextlib.suppress(OSError):
            os.rename(self.directory, removed)
            shutil.rmtree(removed, ignore_errors=True)

    def share_again(self) -> None:
        """Share the counters again if the directory was full or removed, and log a change."""
        if self._is_removed:
            return
        if not all(file.is_shared for file in CountsFile.open_files):
            self._make()
            for file in CountsFile.open_files:
                file.share_again()
        was_shared = self.is_shared
        self.is_shared = all(file.is_shared for file in CountsFile.open_files)
        if was_shared and not self.is_shared:
            log.error(
                "%s is full or cannot be written: /metrics of this worker has only its own counts;"
                " make room, or set TMPDIR to another directory",
                self.directory,
            )
        elif self.is_shared and not was_shared:
            log.warning("%s can be written again: /metrics sums over all workers", self.directory)

    def _make(self) -> None:
        """Make the directory, if it is missing."""
        with contextlib.suppress(OSError):
            os.makedirs(self.directory, mode=0o700)
        if self._is_removed:  # by now, in the thread that watches the parent
            self.remove()

    def publish(self, report: WorkerReport) -> None:
        """Replace the report of this worker atomically.

        Write errors are ignored: the next report follows in a second.
        """
        partial = Path(self.directory, f"worker_{self.number}.partial")
        with contextlib.suppress(OSError):
            partial.write_bytes(_encode(report))
            partial.replace(_report_path(self.directory, self.number))

    def others(self) -> list[WorkerReport]:
        """The last reports of the other workers."""
        own = _report_path(self.directory, self.number)
        reports = []
        for path in sorted(Path(self.directory).glob("worker_*.now")):
            if path != own:
                # Its worker has just ended, or it is damaged.
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    reports.append(_decode(path.read_bytes()))
        return reports


class SharedCounts(Collector):
    """Counters of all workers, or of this one while they are not shared."""

    def __init__(self, metrics_dir: MetricsDirectory, own: Collector) -> None:
        self._metrics_dir, self._own = metrics_dir, own

    def collect(self) -> Iterator[Metric]:
        if self._metrics_dir.is_shared:
            try:
                files = MultiProcessCollector(None, self._metrics_dir.directory)  # type: ignore[no-untyped-call]
                yield from list(files.collect())  # type: ignore[no-untyped-call]
                return
            except Exception as error:  # a file of another worker is removed or damaged
                log.error("the counters of all workers cannot be read: %r", error)
        yield from self._own.collect()


def make_shared() -> str:
    """Make the shared directory. On failure the workers try again every second."""
    try:
        return tempfile.mkdtemp(prefix="dualstream-workers-")
    except OSError as error:
        directory = os.path.join("/tmp", f"dualstream-workers-{secrets.token_hex(8)}")  # noqa: S108
        log.error("no directory for metrics: %s; trying %s", error, directory)
        return directory


def forget_worker(directory: str, number: int) -> None:
    """Delete the report of a dead worker. Its counters stay."""
    with contextlib.suppress(OSError):
        _report_path(directory, number).unlink(missing_ok=True)


def _report_path(directory: str, number: int) -> Path:
    return Path(directory, f"worker_{number}.now")


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
