"""Files with published results, whole and in their order."""

import io
import json
import lzma
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.io import arff

from dualstream.service.codecs import as_batch, parse_body
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.streams.data import stream
from load_tests.streams.held_out import svmguide1

FOLDER = "sgbr"


@dataclass(frozen=True)
class Published:
    """The least errors of six methods: the mean of 5 runs over the whole file."""

    mae: float
    rmse: float
    method: str
    """The method of the least MAE."""


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "abalone": Published(1.523, 2.163, "SOKNL"),
        "ailerons": Published(0.0387, 0.05493, "Oza(SGBT)"),
        "bike": Published(31.03, 47.32, "Oza(SGBT)"),
        "elevators": Published(0.002274, 0.003589, "SGBT(Oza)"),
        "fried": Published(1.265, 1.637, "Oza(SGBT)"),
        "House8L": Published(16886.0, 33601.0, "ARFReg"),
        "MetroTraffic": Published(1020.7, 1384.8, "SGBT(ARF)"),
        "DemandFnotNull": Published(19.05, 35.00, "SGBT(Oza)"),
    }
)
"""Gunasekara, Pfahringer, Gomes and Bifet, Gradient boosted bagging for evolving data stream
regression, Data Mining and Knowledge Discovery (2025), and its repository nuwangunasekara/SGBR."""

CLASSES: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        "elec2": partial(stream, "elec2"),
        "a9a": partial(stream, "a9a"),
        "ijcnn1": partial(stream, "ijcnn1"),
        "phishing": partial(stream, "phishing"),
        "svmguide1, shuffled": partial(svmguide1, True),
        "pageblocks, shuffled": partial(stream, "pageblocks"),
        "bananas": partial(stream, "bananas"),
        "spambase, shuffled": partial(stream, "spambase"),
    }
)
"""Two classes, -1 and 1. Files that are sorted by class are shuffled."""


@dataclass(frozen=True)
class Numbers:
    """A regression file: columns (n, d), a category as its number in the file's list."""

    columns: Floats
    categories: tuple[int, ...]
    targets: Floats

    def declared(self) -> dict[str, Any]:
        """Fields of the specification; with categories, the columns of flat rows."""
        width = self.columns.shape[1]
        if not self.categories:
            return {"features": {"kind": "indexed", "dim": width}}
        kinds = {f"c{at}": "category" if at in self.categories else "number" for at in range(width)}
        return {"columns": {"types": kinds}}

    def batch(self, spec: Mapping[str, Any]) -> Batch:
        """The rows as the model of a resolved specification with `declared` reads them."""
        if not self.categories:
            return Batch.from_dense(self.columns, np.ones(len(self.columns))).with_labels(
                self.targets
            )
        rows = [
            {
                f"c{at}": f"v{value:.0f}" if at in self.categories else value
                for at, value in enumerate(row)
                if not math.isnan(value)
            }
            | {"y": target}
            for row, target in zip(self.columns.tolist(), self.targets.tolist(), strict=True)
        ]
        parsed = parse_body(RowSchema(spec), None, json.dumps(rows).encode(), labelled=True)
        assert not parsed.errors
        return as_batch([parsed.rows])

    def different(self) -> "Numbers":
        """The rows that repeat no earlier one, in their order."""
        rows = np.column_stack([self.columns, self.targets])
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        return Numbers(self.columns[first], self.categories, self.targets[first])


def read(name: str) -> Numbers:
    """A file of the folder sgbr. Its last column is the target.

    Raises KeyError without the environment variable DUALSTREAM_DATA.
    """
    path = Path(os.environ["DUALSTREAM_DATA"]) / FOLDER / f"{name}.arff.xz"
    rows, head = arff.loadarff(io.StringIO(lzma.decompress(path.read_bytes()).decode()))
    nominal = [kind == "nominal" for kind in head.types()]
    columns = [
        numbered(rows[column], head[column][1]) if is_nominal else rows[column]
        for column, is_nominal in zip(head.names(), nominal, strict=True)
    ]
    categories = tuple(at for at, is_nominal in enumerate(nominal) if is_nominal)
    return Numbers(np.column_stack(columns[:-1]), categories, columns[-1])


def numbered(texts: np.ndarray, listed: tuple[str, ...]) -> Floats:
    positions = {text.encode(): float(at) for at, text in enumerate(listed)}
    return np.array([positions[text] for text in texts])


NUMBERS: Mapping[str, Callable[[], Numbers]] = MappingProxyType(
    {
        **{name: partial(read, name) for name in PUBLISHED},
        "abalone, no repeats": lambda: read("abalone").different(),
    }
)
