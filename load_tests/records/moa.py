"""MOA's ensembles, by its own command: predict, then learn, row by row."""

import csv
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.records.stored import LimitError

LEARNERS: Mapping[str, str] = MappingProxyType(
    {
        "moa_arf_30": "(meta.AdaptiveRandomForest -s 30)",
        "moa_leveraging_bag": "meta.LeveragingBag",
        "moa_sgbt": "meta.StreamingGradientBoostedTrees",
        "moa_srp": "meta.StreamingRandomPatches",
        "moa_srp_30": "(meta.StreamingRandomPatches -s 30)",
        "moa_srp_10": "(meta.StreamingRandomPatches -s 10)",
    }
)
"""Adaptive random forest with 30 trees; leveraging bagging and streaming gradient boosted trees
with the defaults; streaming random patches with its 100 trees, with 30 and with 10."""
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
    predicted, seconds = scores(learner, batch)
    wrong = (predicted > 0.0) != (batch.labels > 0.0)
    return 100.0 * float(wrong.mean()), 1e6 * seconds / len(batch)


def scores(learner: str, batch: Batch, seconds: float = -1.0) -> tuple[Floats, float]:
    """The class predicted for each row, -1 or 1, and the seconds of CPU, as for `errors`.

    There are fewer predictions than rows if `seconds` of CPU, when positive, were not enough.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, dump, classes = (Path(folder) / name for name in ("rows.arff", "dump", "classes"))
        write_arff(batch, rows)
        task = (
            f"EvaluatePrequential -l {LEARNERS[learner]} -s (ArffFileStream -f {rows})"
            f" -e BasicClassificationPerformanceEvaluator -f {len(batch)} -q {len(batch)}"
            f" -t {seconds:.0f} -d {dump} -o {classes}"
        )
        run_java(["-cp", os.environ[JAR], "moa.DoTask", task])
        with dump.open() as lines:
            whole = list(csv.DictReader(lines))
        used = float(whole[-1]["evaluation time (cpu seconds)"]) if whole else seconds
        predicted = np.loadtxt(classes, delimiter=",", usecols=0, ndmin=1)
    return np.where(predicted > 0.0, 1.0, -1.0), used


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
