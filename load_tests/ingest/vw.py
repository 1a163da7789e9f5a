"""Vowpal Wabbit's command line over a file in its own format."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

OPTIONS = ("--loss_function", "hinge")


def rows_per_s(file: Path, n: int, options: Sequence[str] = OPTIONS) -> float:
    """Rows a second, not counting start-up: the time over an empty file is subtracted.

    Raises RuntimeError if it did not learn: Vowpal Wabbit takes unreadable lines as unlabelled.
    """
    nothing, _ = _run(Path("/dev/null"), options)
    seconds, said = _run(file, options)
    learned = int(_figure("number of examples", said))
    loss = float(_figure("average loss", said))
    majority = float(_figure("best constant's loss", said))
    if learned != n or not loss < majority:
        raise RuntimeError(
            f"Vowpal Wabbit learned {learned} of {n} rows, mean loss {loss}, a constant's "
            f"{majority}"
        )
    return n / (seconds - nothing)


def _run(file: Path, options: Sequence[str]) -> tuple[float, str]:
    command = [sys.executable, "-m", "vowpalwabbit", *options, "-d", str(file)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, done.stderr + done.stdout


def _figure(name: str, said: str) -> str:
    match = re.search(rf"^{name} = (\S+)$", said, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"Vowpal Wabbit does not print its {name}: {said}")
    return match[1]
