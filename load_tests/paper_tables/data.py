"""The data sets of the papers, as far as they are at hand: files named by DUALSTREAM_DATA."""

import csv
import gzip
import lzma
import os
from pathlib import Path

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats


def folder() -> Path:
    """The folder of the data sets. Exits with a hint if DUALSTREAM_DATA is not set."""
    path = os.environ.get("DUALSTREAM_DATA")
    if not path:
        raise SystemExit("set DUALSTREAM_DATA to the folder that holds the data sets")
    return Path(path)


def libsvm(name: str, dim: int) -> Batch:
    """A file of LIBSVM text, or its .xz, with its own labels."""
    path = folder() / name
    packed = path.with_name(name + ".xz")
    text = lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    return Batch.from_libsvm(text, dim).batch


def signed(batch: Batch, positive: set[float]) -> Batch:
    """Labels 1 for these classes and -1 for all others."""
    return batch.with_labels(np.where(np.isin(batch.labels, list(positive)), 1.0, -1.0))


def dense(batch: Batch) -> Floats:
    """(n, dim)"""
    out = np.zeros((len(batch), batch.dim))
    rows = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
    out[rows, batch.indices] = batch.values
    return out


def adult() -> Batch:
    """a9a: the 32,561 training rows of UCI's Adult."""
    return signed(libsvm("a9a", 123), {1.0})


def adult_test() -> Batch:
    return signed(libsvm("a9a.t", 123), {1.0})


def diabetes() -> Batch:
    """diabetes, each column scaled to [-1, 1]."""
    raw = libsvm("diabetes", 8)
    x = dense(raw)
    low, high = x.min(axis=0), x.max(axis=0)
    return Batch.from_dense(2.0 * (x - low) / (high - low) - 1.0, raw.labels)


def svmguide1() -> Batch:
    both = Batch.concat([libsvm("svmguide1", 4), libsvm("svmguide1.t", 4)])
    return signed(both, {1.0})


def arrhythmia() -> tuple[Floats, Floats]:
    """arrhythmia: missing values are column means; 1 for class 1, -1 for all others."""
    with (folder() / "arrhythmia.csv").open() as file:
        rows = [[np.nan if v == "?" else float(v) for v in row] for row in csv.reader(file)]
    table = np.array(rows)
    x = table[:, :-1]
    x = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    return x, np.where(table[:, -1] == 1.0, 1.0, -1.0)


def sixes_and_sevens(of: str = "train") -> Batch:
    """MNIST's images of the digits 6 (-1) and 7 (1), pixels from 0 to 255; `of` train or t10k."""
    with gzip.open(folder() / f"{of}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder() / f"{of}-labels-idx1-ubyte.gz") as file:
        digits = np.frombuffer(file.read(), np.uint8, offset=8)
    chosen = (digits == 6) | (digits == 7)
    return Batch.from_dense(
        pixels[chosen].astype(np.float64), np.where(digits[chosen] == 7, 1.0, -1.0)
    )
