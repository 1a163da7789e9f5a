"""Metrics of several workers on one port, shared through a directory that their parent makes.

Counters and histograms live in memory-mapped files, one set per worker number. A worker that
replaces a dead one continues its files, so no sum falls and no file is left over. Each worker also
writes its present memory and lag to a small file every second.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client import values
from prometheus_client.multiprocess import MultiProcessCollector


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


class MetricsDirectory(NamedTuple):
    """The shared directory and this worker's number, which its replacement inherits."""

    directory: str
    number: int

    def keep_counts(self) -> None:
        """Keep all counters and histograms that are created after this call in files."""
        # prometheus_client reads only the variable, when a value is created.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self.directory  # noqa: TID251
        values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
            lambda: self.number
        )

    def counts(self) -> MultiProcessCollector:
        """Sums over all workers, including dead ones."""
        return MultiProcessCollector(None, self.directory)  # type: ignore[no-untyped-call]

    def publish(self, report: WorkerReport) -> None:
        """Replace the report of this worker atomically.

        Write errors are ignored: the parent may just have removed the directory.
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
                with contextlib.suppress(FileNotFoundError):  # its worker has just ended
                    found.append(_decode(path.read_bytes()))
        return found


def forget_worker(directory: str, number: int) -> None:
    """Delete the report of a dead worker. Its counters stay."""
    _report_path(directory, number).unlink(missing_ok=True)


def _report_path(directory: str, number: int) -> Path:
    return Path(directory, f"worker_{number}.now")
