"""River's generators as streams, with fixed seeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from river.datasets import synth

from dualstream.solvers import Batch
from load_tests.streams.held_out import GENERATED

ROWS = 2 * GENERATED

GENERATORS: Mapping[str, Callable[[], Iterator]] = MappingProxyType(
    {
        "SEA, a tenth of the labels wrong": lambda: synth.SEA(0, seed=1, noise=0.1).take(ROWS),
        "Agrawal, function 1": lambda: synth.Agrawal(1, seed=1).take(ROWS),
        "RandomRBF": lambda: synth.RandomRBF(1, 1, 2, 10, 50).take(ROWS),
        "RandomRBFDrift": lambda: synth.RandomRBFDrift(1, 1, 2, 10, 50, 0.001, 10).take(ROWS),
        "Hyperplane, turning": lambda: synth.Hyperplane(
            1, n_features=10, n_drift_features=5, mag_change=0.001, noise_percentage=0.05
        ).take(ROWS),
        "Sine": lambda: synth.Sine(2, seed=1).take(ROWS),
        "Mixed": lambda: synth.Mixed(0, seed=1).take(ROWS),
        "RandomTree": lambda: synth.RandomTree(1, 1, n_classes=2).take(ROWS),
    }
)


def as_numbers(samples: Iterator) -> Batch:
    """River's samples of two classes."""
    rows = list(samples)
    labels = [1.0 if y in (1, True) else -1.0 for _, y in rows]
    return Batch.from_dense(dense_rows(x for x, _ in rows), np.array(labels))


def dense_rows(samples: Iterable[Mapping]) -> np.ndarray:
    """(n, columns) of River's rows, a text as a column for each of its values."""
    columns: dict[str, int] = {}
    rows = []
    for x in samples:
        row = {}
        for name, value in x.items():
            is_text = isinstance(value, str)
            index = columns.setdefault(f"{name}={value}" if is_text else str(name), len(columns))
            row[index] = 1.0 if is_text else float(value)
        rows.append(row)
    dense = np.zeros((len(rows), len(columns)))
    for at, row in enumerate(rows):
        dense[at, list(row)] = list(row.values())
    return dense
