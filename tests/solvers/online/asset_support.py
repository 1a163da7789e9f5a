"""ASSET on the data set Adult."""

import lzma
import os
from pathlib import Path

import pytest

from dualstream.solvers import Batch

needs_data = pytest.mark.skipif(
    "DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set"
)


def spec_of(dim, **fields):
    return {"algorithm": "asset", "features": {"kind": "indexed", "dim": dim}} | fields


def adult_rows(name):
    text = lzma.decompress((Path(os.environ["DUALSTREAM_DATA"]) / f"{name}.xz").read_bytes())
    return Batch.from_libsvm(text, 123).batch
