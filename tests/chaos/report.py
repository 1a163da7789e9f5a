"""Reliability report: load_tests/RELIABILITY.md, written by the test runs.

A run makes a `Run`, counts during the run, and is recorded at its end, also when it fails:

    with recorded(Run("failover", "Sentinel, one primary, two replicas", seeds=[7])) as run:
        run.faults["primary killed"] += 1
        run.recovery_s.append(...)
        run.saw(report)  # of the history checker, for each model

Nothing is written unless DUALSTREAM_RELIABILITY names the file, as `make chaos` does. The file has
a table, which is read before it is written: a run replaces the line with its name and store and
keeps the others. A test with several rounds uses one `Run`.
"""

import os
import platform
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.history import HistoryBroken, Report

HEADING = """# Reliability tests

Written by `make chaos`. Columns: *acknowledged*, rows answered with 200; *lost*, acknowledged rows
that the journal does not have; *duplicated*, requests or samples journalled more than once;
*recovery*, seconds from the end of a fault to the next answer with 200 (in a storm, to each
client), median and maximum.

A power failure is simulated: what was synced survives; of the rest a seed chooses what survives
(SQLite: any 4 KiB; Redis: a prefix), according to strace. Not tested: disks or controllers that lie
about a sync, bit rot, file systems that lose file names, network file systems, clock jumps,
packet loss.
"""
COLUMNS = (
    "what",
    "store",
    "acknowledged",
    "faults",
    "lost",
    "duplicated",
    "recovery, s",
    "seeds",
    "outcome",
    "when, where",
)


@dataclass
class Run:
    """Result of one run.

    what, store    together name its line
    faults         number of faults of each kind
    recovery_s     seconds from a fault's end to the next answer with 200
    expects_loss   acknowledged rows may be lost (say so in `what`); losses are reported, not failed
    """

    what: str
    store: str
    seeds: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    recovery_s: list[float] = field(default_factory=list)
    expects_loss: bool = False
    failure: str = ""

    def saw(self, report: Report) -> None:
        """Add the history checker's report on one model."""
        self.acknowledged += report.acknowledged
        self.lost += sum(problem.startswith("lost") for problem in report.problems)
        self.duplicated += sum(problem.startswith("duplicated") for problem in report.problems)

    @property
    def outcome(self) -> str:
        if self.failure:
            return f"FAILED: {self.failure}"
        return "FAILED" if self.duplicated or (self.lost and not self.expects_loss) else "passed"

    def cells(self) -> list[str]:
        """Cells of the line, in the order of COLUMNS."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        times = self.recovery_s
        where = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        took = f"{statistics.median(times):.2f}, {max(times):.2f}" if times else "-"
        return [
            self.what,
            self.store,
            str(self.acknowledged),
            f"{self.faults.total()}: {faults}" if faults else "-",
            str(self.lost),
            str(self.duplicated),
            took,
            ", ".join(map(str, self.seeds)) or "-",
            self.outcome,
            f"{datetime.now(UTC):%Y-%m-%d}, {where}",
        ]


@contextmanager
def recorded(run: Run) -> Iterator[Run]:
    """Record the run at the end of the block; as failed if the block raises."""
    try:
        yield run
    except BaseException as error:
        if isinstance(error, HistoryBroken):
            run.saw(error.report)
        run.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise
    finally:
        position = os.environ.get("DUALSTREAM_RELIABILITY")
        if position:
            write(run, Path(position))


def write(run: Run, place: Path) -> None:
    """Put the run's line into the file, in place of its last one."""
    lines = read(place) if place.exists() else {}
    cells = [cell.replace("|", "/").replace("\n", " ") for cell in run.cells()]
    lines[cells[0], cells[1]] = cells
    table = [COLUMNS, ("---",) * len(COLUMNS), *(lines[name] for name in sorted(lines))]
    body = "\n".join("| " + " | ".join(row) + " |" for row in table)
    partial = place.with_suffix(".partial")
    partial.write_text(f"{HEADING}\n{body}\n")
    partial.rename(place)


def read(place: Path) -> dict[tuple[str, str], list[str]]:
    """Lines of the file by name and store."""
    lines = {}
    for line in place.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == len(COLUMNS) and cells[0] not in (COLUMNS[0], "---"):
            lines[cells[0], cells[1]] = cells
    return lines
