"""`make bench`: run the benchmarks named, or all, and write RESULTS.md."""

import platform
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from load_tests.measure import FEW_ROUNDS, HEADING, ROUNDS, Row

BENCHMARKS = ("kernel", "http", "start", "learners")
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(names: list[str]) -> None:
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        for row in import_module(f"load_tests.{name}").rows():
            print(row.markdown(), flush=True)
            rows.append(row)
    if not names:
        RESULTS.write_text(document(rows))
        print(f"wrote {RESULTS}")


def document(rows: list[Row]) -> str:
    notes = [f"- {row.what} against {row.peer}: {note}" for row in rows for note in row.notes]
    lines = [
        "# Measured",
        "",
        f"`make bench` on {datetime.now(UTC):%Y-%m-%d}; {machine()}.",
        f"Sides take turns, {ROUNDS} rounds ({FEW_ROUNDS} for single learners); the ratio is the "
        "median of the rounds' ratios.",
        "",
        HEADING,
        *(row.markdown() for row in rows),
        "",
        *notes,
        "",
    ]
    return "\n".join(lines)


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("numpy", "numba", "uvicorn", "fastapi", "scikit-learn", "river")
    )
    return (
        f"{len(names)} x {names[0]}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
