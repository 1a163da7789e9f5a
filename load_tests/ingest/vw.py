"""Vowpal Wabbit's command line over a file in its own format."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from load_tests.measure import children_cpu_seconds

OPTIONS = ("--loss_function", "hinge")


def rows_per_s(
    file: Path, n: int, options: Sequence[str] = OPTIONS, spent: list[float] | None = None
) -> float:
    """Rows a second, not counting start-up: the time over an empty file is subtracted.

    Adds the CPU microseconds of a row to `spent`. Raises RuntimeError if it did not learn: Vowpal
    Wabbit takes unreadable lines as unlabelled.
    """
    nothing, cpu_of_nothing, _ = _run(Path("/dev/null"), options)
    seconds, cpu, said = _run(file, options)
    if spent is not None:
        spent.append(1e6 * (cpu - cpu_of_nothing) / n)
    learned = int(_figure("number of examples", said))
    loss = float(_figure("average loss", said))
    majority = float(_figure("best constant's loss", said))
    if learned != n or not loss < majority:
        raise RuntimeError(
            f"Vowpal Wabbit learned {learned} of {n} rows, mean loss {loss}, a constant's "
            f"{majority}"
        )
    return n / (seconds - nothing)


def _run(file: Path, options: Sequence[str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds, and what it prints."""
    command = [sys.executable, "-m", "vowpalwabbit", *options, "-d", str(file)]
    began, cpu = time.perf_counter(), children_cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, cpu = time.perf_counter() - began, children_cpu_seconds() - cpu
    return seconds, cpu, done.stderr + done.stdout


def _figure(name: str, said: str) -> str:
    match = re.search(rf"^{name} = (\S+)$", said, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"Vowpal Wabbit does not print its {name}: {said}")
    return match[1]
