"""Metrics of several workers on one port, shared through a directory that their parent makes.

Counters and histograms live in memory-mapped files, one set per worker number. A worker that
replaces a dead one continues its files, so no sum falls and no file is left over. Each worker also
writes its present memory and lag to a small file every second.

The service does not depend on the directory. While it is full or removed, a worker counts in its
own memory and exports its own counts. Every second it tries to share them again.
"""

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from dualstream.service.metrics.counts_file import CountsFile

log = logging.getLogger("dualstream.metrics")


class WorkerReport(msgspec.Struct, frozen=True, array_like=True):
    """Present memory, lag and references of a worker.

    lag          model -> seconds, records; only of models that lag
    references   model -> lower bound, gap, regret, its rows, seconds since it was found
    """

    cached: int
    cached_bytes: int
    budget_bytes: int
    is_store_available: bool
    lag: dict[str, tuple[float, int]]
    references: dict[str, tuple[float, float, float, int, float]]


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
        """Remove the directory for good: this process serves on while it drains."""
        self._is_removed = True
        shutil.rmtree(self.directory, ignore_errors=True)

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
        found = []
        for path in sorted(Path(self.directory).glob("worker_*.now")):
            if path != own:
                # Its worker has just ended, or it is damaged.
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    found.append(_decode(path.read_bytes()))
        return found


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
