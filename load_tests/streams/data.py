"""The 13 streams of tests/golden/streams.json, in the orders that its protocol names."""

import gzip
import hashlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dualstream.solvers import Batch
from load_tests.paper_tables import data

FILES: Mapping[str, str] = MappingProxyType(
    {
        "a9a": "a9a",
        "a9a.t": "a9a.t",
        "elec2": "elec2",
        "ijcnn1": "ijcnn1",
        "phishing": "phishing",
        "spambase": "spambase",
        "reuters": "reuters.trn",
        "rcv1_small": "rcv1_small",
        "diabetes": "diabetes",
        "rphishing": "river_phishing",
        "bananas": "river_bananas",
        "pageblocks": "page-blocks",
        "mnist": "train-images-idx3-ubyte.gz",
    }
)
SHUFFLED = ("spambase", "pageblocks")
WIDEST = 50_000
DIGITS = 20_000


def stream(name: str) -> Batch:
    """One of the 13, with labels -1 and 1. Exits where DUALSTREAM_DATA is not set."""
    if name == "mnist":
        return digits()
    rows = libsvm(FILES[name], {1.0} if name == "pageblocks" else None)
    return shuffled(rows) if name in SHUFFLED else rows


def libsvm(name: str, positive: set[float] | None = None) -> Batch:
    """A file in its order, as wide as its last column. Positive: these labels, or all above 0."""
    rows = data.libsvm(name, WIDEST)
    width = int(rows.indices.max()) + 1
    rows = rows.with_rows(rows.indptr, rows.indices, rows.values, width)
    if positive is not None:
        return data.signed(rows, positive)
    return rows.with_labels(np.where(rows.labels > 0.0, 1.0, -1.0))


def digest(rows: Batch, before: bytes = b"") -> str:
    """16 hexadecimal digits that depend on `before` and on all entries and labels."""
    hasher = hashlib.sha256(before)
    for column in (rows.indptr, rows.indices, rows.values, rows.labels):
        hasher.update(column.tobytes())
    return hasher.hexdigest()[:16]


def shuffled(rows: Batch) -> Batch:
    """Rows in the one random order that all shuffled streams share."""
    return rows.take(np.random.default_rng(0).permutation(len(rows)))


def digits() -> Batch:
    """MNIST's first training images, pixels from 0 to 255; 5 to 9 against 0 to 4."""
    images = (data.folder() / FILES["mnist"]).read_bytes()
    labels = (data.folder() / "train-labels-idx1-ubyte.gz").read_bytes()
    pixels = np.frombuffer(gzip.decompress(images), np.uint8, offset=16).reshape(-1, 784)
    kinds = np.frombuffer(gzip.decompress(labels), np.uint8, offset=8)[:DIGITS]
    return Batch.from_dense(pixels[:DIGITS].astype(np.float64), np.where(kinds >= 5, 1.0, -1.0))
