"""The default single specification on real streams: predict, then learn, one pass, no tuning.

The protocol and the mistakes to meet stand in tests/golden/streams.json.
"""

import gzip
import json
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from solvers import Batch, make_learner, resolve_spec
from solvers._jit import DISABLED

STREAMS = json.loads((Path(__file__).parent.parent / "golden" / "streams.json").read_text())
FOLDER = os.environ.get("DUALSTREAM_DATA")
FILES = {
    "a9a": "a9a.xz",
    "a9a.t": "a9a.t.xz",
    "elec2": "elec2.xz",
    "ijcnn1": "ijcnn1.xz",
    "phishing": "phishing.xz",
    "spambase": "spambase",
    "reuters": "reuters.trn.xz",
    "rcv1_small": "rcv1_small.xz",
    "diabetes": "diabetes",
    "rphishing": "river_phishing",
    "bananas": "river_bananas",
    "pageblocks": "page-blocks",
    "mnist": "train-images-idx3-ubyte.gz",
}
SHUFFLED = ("spambase", "pageblocks")
WIDTH = 50_000


def read(name: str) -> Batch:
    assert FOLDER is not None
    path = Path(FOLDER) / FILES[name]
    if name == "mnist":
        return digits(path)
    content = path.read_bytes()
    text = lzma.decompress(content) if path.suffix == ".xz" else content
    found = Batch.from_libsvm(text, WIDTH)
    assert not found.bad
    labels = found.batch.labels
    positive = labels == 1.0 if name == "pageblocks" else labels > 0
    batch = found.batch.with_labels(np.where(positive, 1.0, -1.0), ())
    if name in SHUFFLED:
        batch = batch.take(np.random.default_rng(0).permutation(len(batch)))
    return batch


def digits(path: Path, rows: int = 20_000) -> Batch:
    """The first training images; 5 to 9 against 0 to 4."""
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16)
    labels = gzip.decompress((path.parent / "train-labels-idx1-ubyte.gz").read_bytes())
    kinds = np.frombuffer(labels, np.uint8, offset=8)[:rows]
    x = pixels.reshape(-1, 784)[:rows].astype(np.float64)
    return Batch.from_dense(x, np.where(kinds >= 5, 1.0, -1.0))


@pytest.mark.data
@pytest.mark.skipif(FOLDER is None, reason="DUALSTREAM_DATA names no folder with the data sets")
@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("name", FILES)
def test_untuned_default_meets_the_mistakes_of_the_reference(name):
    batch = read(name)
    spec = {
        "algorithm": "dual_ascent",
        "loss": "logistic",
        "strength": 30,
        "window": "infinite",
        "scaling": "balanced",
        "average": None,
        "features": {"kind": "indexed", "dim": batch.dim},
    }
    stream = STREAMS["streams"][name]
    assert len(batch) == stream["rows"]
    outcome = make_learner(resolve_spec(spec)).learn(batch)
    wrong = (outcome.scores >= 0) != (batch.labels > 0)
    mistakes = 100.0 * float(wrong.mean())
    margins = np.clip(outcome.scores, -30.0, 30.0) * batch.labels
    log_loss = float(np.log1p(np.exp(-margins)).mean())
    expected, expected_log_loss = stream["prototype"]["single_papers"]
    assert abs(mistakes - expected) <= 0.3, (mistakes, expected)
    assert abs(log_loss - expected_log_loss) <= 0.01, (log_loss, expected_log_loss)
