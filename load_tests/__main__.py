"""`make bench`: run the named benchmarks, or all, and write their sections of RESULTS.md."""

import argparse
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from load_tests.measure import FEW_ROUNDS, HEADING, ROUNDS, Row, processors
from load_tests.sections import more_cpu, section, with_head, with_section

BENCHMARKS = (
    "kernel",
    "http",
    "start",
    "learners",
    "portfolio",
    "recovery",
    "second_worker",
    "costs",
    "many_models",
    "ingest",
    "flat_rows",
    "latency",
    "overload",
    "consume",
    "cutting_planes",
    "dask",
    "newcomer",
    "offline",
    "refit",
    "stalls",
    "tables",
    "tracing",
    "waiting",
)
FIRST = {"kernel", "http", "start", "learners"}
"""Those of the first table, which is written if all of them run."""
PACKAGES = ("numpy", "numba", "uvicorn", "fastapi", "scikit-learn", "river", "vowpalwabbit")
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(names: list[str], only: list[str]) -> bool:
    """Run the benchmarks. With `only`, run these groups of one benchmark and write nothing.

    Returns whether no row takes over a tenth more CPU against its peer than in RESULTS.md.
    """
    rows: list[Row] = []
    losses: list[str] = []
    first = set(FIRST) if FIRST <= set(names or BENCHMARKS) else set()
    for name in names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        module: Any = import_module(f"load_tests.{name}")
        matching = []
        for row in module.rows(*only):
            print(row.markdown(), *row.notes, sep="\n", flush=True)
            matching.append(row)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        title = getattr(module, "TITLE", "")
        losses += more_cpu(section(RESULTS.read_text(), title), table(matching))
        if hasattr(module, "about"):
            drawn = [module.draw(matching), ""] if hasattr(module, "draw") and not only else []
            lines = [*table(matching), "", *drawn, *module.about()]
            if only:
                print("\n".join([machine(), *lines]))
            else:  # at once, because a later benchmark may fail
                lines = [*about(names), "", *lines] if names else lines
                RESULTS.write_text(with_section(RESULTS.read_text(), title, lines))
        elif name in first:
            rows += matching
            first.remove(name)
            if not first:
                head = [*about(names), "", *table(rows)]
                RESULTS.write_text(with_head(RESULTS.read_text(), head))
    print(*losses, sep="\n")
    return not losses


def about(names: list[str]) -> list[str]:
    """How and when figures were measured."""
    command = f"python -m load_tests {' '.join(names)}" if names else "make bench"
    return [
        f"`{command}` on {datetime.now(UTC):%Y-%m-%d}; {machine()}.",
        f"The sides alternate for {ROUNDS} rounds ({FEW_ROUNDS} where noted). The ratio is the "
        "median of the rounds' ratios.",
    ]


def table(rows: list[Row]) -> list[str]:
    """The rows as a table, followed by the notes on single rows."""
    if not rows:
        return []
    notes = [f"- {row.what} against {row.peer}: {note}" for row in rows for note in row.notes]
    return [HEADING, *(row.markdown() for row in rows), *([""] if notes else []), *notes]


def machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{processors()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m load_tests", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--rows", nargs="+", default=[], help="groups of rows of one benchmark")
    given = parser.parse_args()
    if given.rows and len(given.names) != 1:
        parser.error("--rows needs one NAME")
    sys.exit(0 if main(given.names, given.rows) else 1)
