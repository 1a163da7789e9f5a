"""load_tests/RELIABILITY.md, written by the runs themselves.

A run makes a `Run`, counts while it goes on, and is recorded when it ends, however it ends:

    with recorded(Run("failover", "Sentinel, one primary, two replicas", seeds=[7])) as run:
        run.faults["primary killed"] += 1
        run.recovery_s.append(...)
        run.saw(report)  # the history checker's, of each model: acknowledged, lost, doubled

Nothing is written unless DUALSTREAM_RELIABILITY names the file, as `make chaos` does. The file is a
table, read back before it is written: a run replaces the line that has its name and its store, and
leaves the others. A test that runs several times sums up in one `Run`.
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
that the journal does not have; *doubled*, requests or samples journalled more than once;
*recovery*, seconds from the end of a fault to the next answer with 200 (in a storm, to each
client), median and maximum.

A power failure is simulated: what was synced survives; of the rest a seed chooses what does
(SQLite: any 4 KiB; Redis: a prefix), as strace saw it. Not tested: disks or controllers that lie
about a sync, bit rot, file systems that lose file names, network file systems, clock jumps,
packet loss.
"""
COLUMNS = (
    "what",
    "store",
    "acknowledged",
    "faults",
    "lost",
    "doubled",
    "recovery, s",
    "seeds",
    "verdict",
    "when, where",
)


@dataclass
class Run:
    """What one run did and found.

    what, store    together name its line
    faults         how often each kind of fault was made
    recovery_s     seconds from a fault's end to the next request answered 200
    expects_loss   acknowledged rows may be lost here (say so in `what`): they are told, no failure
    """

    what: str
    store: str
    seeds: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    recovery_s: list[float] = field(default_factory=list)
    expects_loss: bool = False
    failure: str = ""

    def saw(self, report: Report) -> None:
        """Add what the history checker found of one model."""
        self.acknowledged += report.acknowledged
        self.lost += sum(problem.startswith("lost") for problem in report.problems)
        self.doubled += sum(problem.startswith("doubled") for problem in report.problems)

    @property
    def verdict(self) -> str:
        if self.failure:
            return f"FAILED: {self.failure}"
        return "FAILED" if self.doubled or (self.lost and not self.expects_loss) else "held"

    def cells(self) -> list[str]:
        """The line's cells, in the order of COLUMNS."""
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
            str(self.doubled),
            took,
            ", ".join(map(str, self.seeds)) or "-",
            self.verdict,
            f"{datetime.now(UTC):%Y-%m-%d}, {where}",
        ]


@contextmanager
def recorded(run: Run) -> Iterator[Run]:
    """Record the run at the end of the block, as failed where it raises."""
    try:
        yield run
    except BaseException as error:
        if isinstance(error, HistoryBroken):
            run.saw(error.report)
        run.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise
    finally:
        place = os.environ.get("DUALSTREAM_RELIABILITY")
        if place:
            write(run, Path(place))


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
    """The lines of the file by what they tell of and on which store."""
    lines = {}
    for line in place.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == len(COLUMNS) and cells[0] not in (COLUMNS[0], "---"):
            lines[cells[0], cells[1]] = cells
    return lines
