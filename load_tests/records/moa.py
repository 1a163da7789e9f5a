"""MOA's ensembles, by its own command: predict, then learn, row by row."""

import csv
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dualstream.solvers import Batch
from load_tests.paper_tables import data
from load_tests.records.stored import LimitError

LEARNERS: Mapping[str, str] = MappingProxyType(
    {
        "moa_arf_30": "(meta.AdaptiveRandomForest -s 30)",
        "moa_leveraging_bag": "meta.LeveragingBag",
        "moa_sgbt": "meta.StreamingGradientBoostedTrees",
    }
)
"""Adaptive random forest with 30 trees; leveraging bagging and streaming gradient boosted trees
with the defaults."""
VERSION = {"MOA": "24.07 (the jar of capymoa 0.15.1)"}
JAR = "MOA_JAR"
"""The environment variable with the path of moa.jar; the package capymoa contains one."""
GIGABYTES, MINUTES = 6, 15
"""Limits of one run: heap and wall clock."""
OUT_OF_MEMORY = 3
"""Java's exit code with ExitOnOutOfMemoryError."""


def errors(learner: str, batch: Batch) -> tuple[float, float]:
    """Percent of errors over all rows, and microseconds of CPU a row, without garbage collection.

    Raises LimitError at a limit, KeyError without MOA_JAR, CalledProcessError if Java fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, dump = Path(folder) / "rows.arff", Path(folder) / "dump.csv"
        write_arff(batch, rows)
        task = (
            f"EvaluatePrequential -l {LEARNERS[learner]} -s (ArffFileStream -f {rows})"
            f" -e BasicClassificationPerformanceEvaluator -f {len(batch)} -q {len(batch)} -d {dump}"
        )
        run_java(["-cp", os.environ[JAR], "moa.DoTask", task])
        with dump.open() as lines:
            last = list(csv.DictReader(lines))[-1]
    correct = float(last["classifications correct (percent)"])
    seconds = float(last["evaluation time (cpu seconds)"])
    return 100.0 - correct, 1e6 * seconds / len(batch)


def run_java(arguments: list[str]) -> None:
    command = ["java", f"-Xmx{GIGABYTES}g", "-XX:+ExitOnOutOfMemoryError", *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired as error:
        raise LimitError(f"over {MINUTES} minutes") from error
    except subprocess.CalledProcessError as error:
        if error.returncode == OUT_OF_MEMORY:
            raise LimitError(f"over {GIGABYTES} GB") from error
        raise


def write_arff(batch: Batch, path: Path) -> None:
    """All columns as numbers, the label as the last one."""
    names = "".join(f"@attribute x{column} numeric\n" for column in range(batch.dim))
    with path.open("w") as lines:
        lines.write(f"@relation rows\n{names}@attribute label {{0,1}}\n@data\n")
        for row, label in zip(data.dense(batch), batch.labels, strict=True):
            lines.write(",".join(f"{value:.10g}" for value in row) + f",{int(label > 0.0)}\n")
