"""How the workers of one port publish the same: a directory of theirs, made by their parent.

Counters and histograms are kept in files, one set for each worker's number. The worker that takes
a dead one's place goes on in its files, so that no sum falls and no file is left over. What a
worker tells of itself now (memory, lag) it writes to a small file each second.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client import values
from prometheus_client.multiprocess import MultiProcessCollector


class WorkerReport(msgspec.Struct, frozen=True, array_like=True):
    """What a worker tells of itself now.

    lag          model -> seconds, records; of those models alone that are behind
    references   model -> lower bound, gap, regret, its rows, seconds since it was found
    """

    held: int
    held_bytes: int
    budget_bytes: int
    is_store_available: bool
    lag: dict[str, tuple[float, int]]
    references: dict[str, tuple[float, float, float, int, float]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkerReport).decode


class Sharing(NamedTuple):
    """A worker's place among the others: its number is that of whoever it takes the place of."""

    directory: str
    number: int

    def keep_counts(self) -> None:
        """Let every counter and histogram made from now on in this process live in its files."""
        # The library reads it when a value is made, and nothing else.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self.directory  # noqa: TID251
        values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
            lambda: self.number
        )

    def counts(self) -> MultiProcessCollector:
        """The sums over all workers, those that are no more included."""
        return MultiProcessCollector(None, self.directory)  # type: ignore[no-untyped-call]

    def publish(self, report: WorkerReport) -> None:
        """In one step: who reads meanwhile finds this or what was report before.

        Where it cannot be written, the server goes on: its parent may just have removed it.
        """
        partial = Path(self.directory, f"worker_{self.number}.partial")
        with contextlib.suppress(OSError):
            partial.write_bytes(_encode(report))
            partial.replace(_report_path(self.directory, self.number))

    def others(self) -> list[WorkerReport]:
        """What the other workers have report last."""
        own = _report_path(self.directory, self.number)
        found = []
        for path in sorted(Path(self.directory).glob("worker_*.now")):
            if path != own:
                with contextlib.suppress(FileNotFoundError):  # its worker has just ended
                    found.append(_decode(path.read_bytes()))
        return found


def forget_worker(directory: str, number: int) -> None:
    """A worker has ended: what it said of itself does not hold any more, what it counted does."""
    _report_path(directory, number).unlink(missing_ok=True)


def _report_path(directory: str, number: int) -> Path:
    return Path(directory, f"worker_{number}.now")
