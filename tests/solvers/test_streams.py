"""The default single specification on real streams: predict, then learn, one pass, no tuning.

The protocol and the mistakes to meet stand in tests/golden/streams.json.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from load_tests.streams.data import FILES, stream
from solvers import make_learner, resolve_spec
from solvers._jit import DISABLED

STREAMS = json.loads((Path(__file__).parent.parent / "golden" / "streams.json").read_text())
FOLDER = os.environ.get("DUALSTREAM_DATA")


@pytest.mark.data
@pytest.mark.skipif(FOLDER is None, reason="DUALSTREAM_DATA names no folder with the data sets")
@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("name", FILES)
def test_untuned_default_meets_the_mistakes_of_the_reference(name):
    batch = stream(name)
    spec = {
        "algorithm": "dual_ascent",
        "loss": "logistic",
        "strength": 30,
        "window": "infinite",
        "scaling": "balanced",
        "average": None,
        "features": {"kind": "indexed", "dim": batch.dim},
    }
    reference = STREAMS["streams"][name]
    assert len(batch) == reference["rows"]
    outcome = make_learner(resolve_spec(spec)).learn(batch)
    wrong = (outcome.scores >= 0) != (batch.labels > 0)
    mistakes = 100.0 * float(wrong.mean())
    margins = np.clip(outcome.scores, -30.0, 30.0) * batch.labels
    log_loss = float(np.log1p(np.exp(-margins)).mean())
    expected, expected_log_loss = reference["prototype"]["single_papers"]
    assert abs(mistakes - expected) <= 0.3, (mistakes, expected)
    assert abs(log_loss - expected_log_loss) <= 0.01, (log_loss, expected_log_loss)
