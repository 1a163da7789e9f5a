"""`make bench`: run the benchmarks named, or all, and write RESULTS.md."""

import platform
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from load_tests.measure import FEW_ROUNDS, HEADING, ROUNDS, Row

BENCHMARKS = (
    "kernel",
    "http",
    "start",
    "learners",
    "portfolio",
    "recovery",
    "replicas",
    "many_models",
)
PACKAGES = ("numpy", "numba", "uvicorn", "fastapi", "scikit-learn", "river", "vowpalwabbit")
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(names: list[str]) -> None:
    rows: list[Row] = []
    sections: list[str] = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        module: Any = import_module(f"load_tests.{name}")
        found = []
        for row in module.rows():
            print(row.markdown(), flush=True)
            found.append(row)
        if hasattr(module, "about"):
            sections += ["", f"## {module.TITLE}", "", *table(found), "", *module.about()]
        else:
            rows += found
    if names:
        print("\n".join([machine(), *sections]))
    else:
        RESULTS.write_text(document(rows, sections))
        print(f"wrote {RESULTS}")


def document(rows: list[Row], sections: list[str]) -> str:
    lines = [
        "# Measured",
        "",
        f"`make bench` on {datetime.now(UTC):%Y-%m-%d}; {machine()}.",
        f"Sides take turns, {ROUNDS} rounds ({FEW_ROUNDS} for single learners); the ratio is the "
        "median of the rounds' ratios.",
        "",
        *table(rows),
        *sections,
        "",
    ]
    return "\n".join(lines)


def table(rows: list[Row]) -> list[str]:
    """The rows, and below them what is to be said of single ones."""
    notes = [f"- {row.what} against {row.peer}: {note}" for row in rows for note in row.notes]
    return [HEADING, *(row.markdown() for row in rows), *([""] if notes else []), *notes]


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in (
            "numpy",
            "numba",
            "uvicorn",
            "fastapi",
            "scikit-learn",
            "river",
            "vowpalwabbit",
        )
    )
    return (
        f"{len(names)} x {names[0]}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
