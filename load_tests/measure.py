"""Paired measurements (A B A B ...), their medians and their spread."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
FEW_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One line of RESULTS.md: our figures, the peer's, and their ratio in each round."""

    what: str
    unit: str
    ours: list[float]
    peer: str
    theirs: list[float]
    gate: float | None = None
    goal: float | None = None
    smaller_is_better: bool = False
    notes: list[str] = field(default_factory=list)
    void: str = ""
    floor: float | None = None
    """The gate, or its second condition: the minimum of our own figure."""
    cpu: tuple[float, float] | None = None
    """CPU microseconds a row or request, ours and the peer's, each the least of the rounds."""

    @property
    def ratios(self) -> list[float]:
        """Ours divided by theirs, one ratio for each round."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def outcome(self) -> str:
        if self.void:
            return f"void: {self.void}"
        if self.gate is None and self.floor is None:
            return "no gate"
        if self.floor is not None and statistics.median(self.ours) < self.floor:
            return "gate MISSED"
        if self.gate is None:
            return "gate met"
        sign = -1 if self.smaller_is_better else 1
        if self.goal is not None and sign * self.ratio >= sign * self.goal:
            return "goal met"
        return "gate met" if sign * self.ratio >= sign * self.gate else "gate MISSED"

    def markdown(self) -> str:
        ratios = self.ratios
        gates = [] if self.gate is None else [f"{self.gate:g}x"]
        gates += [] if self.floor is None else [f"{_shown(self.floor)} {self.unit}"]
        gate = " and ".join(gates) or "-"
        gate += "" if self.goal is None else f" / {self.goal:g}x"
        cells = [
            self.what,
            f"{_shown(statistics.median(self.ours))} {self.unit}",
            f"{self.peer}: {_shown(statistics.median(self.theirs))}",
            f"**{self.ratio:.2f}x** ({min(ratios):.2f} to {max(ratios):.2f})",
            "-" if self.cpu is None else cpu_cell(*self.cpu),
            gate,
            self.outcome,
        ]
        return "| " + " | ".join(cells) + " |"


HEADING = (
    "| what | ours, median | peer, median | ratio, median (spread) | CPU, ours / peer | "
    "gate / goal | outcome |\n|---|---|---|---|---|---|---|"
)


def cpu_cell(ours: float, theirs: float) -> str:
    return f"{_shown(ours)} / {_shown(theirs)} us ({ours / theirs:.3f}x)"


def interleaved(
    sides: Mapping[str, Callable[[], float]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Each side's figures. Sides alternate, so that drift of the machine affects both."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            figures[name].append(measure())
    return figures


@contextmanager
def on_core(core: str) -> Iterator[None]:
    """Pin this process to one core for the time of the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(core)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def children_cpu_seconds() -> float:
    """CPU seconds of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processors() -> str:
    """Number and model name of this machine's CPUs."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0]}"


def machines(before: str) -> str:
    """The machines of stored figures, this one among them."""
    here = processors()
    return before if here in before else f"{before} and {here}"
