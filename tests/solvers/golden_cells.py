"""Learners of the golden values of dual ascent."""

import json

import numpy as np

from dualstream.solvers import make_learner
from dualstream.solvers.losses.loss_table import MARGIN_LOSSES
from tests.solvers import reference
from tests.solvers.conftest import GOLDEN

NUMBERS = json.loads((GOLDEN / "dual.json").read_text())
WINDOWS = {
    "infinite": "infinite",
    "exponential": {"kind": "exponential", "beta": 0.98},
    "sliding": {"kind": "sliding", "length": 60},
}
REGULARIZERS = {"l2": "l2", "elastic": {"kind": "elastic_net", "delta": 0.5}, "kl": "entropy"}
COSINES = np.cos(np.arange(1, 124))


def golden_rows(loss, adult):
    """The first 200 rows; for losses of regression with labels of their own."""
    batch = adult[:200]
    if loss in MARGIN_LOSSES:
        return batch
    return batch.with_labels(batch.labels * (1 + 0.05 * ((7 * np.arange(200)) % 11 - 5)))


def learner_of(cell, adult, average=None, **more):
    """The learner of a cell `window/loss/regularizer` after the first 200 rows."""
    window, loss, regularizer, *_ = [*cell.split("/"), "l2"]
    learner = make_learner(
        {
            "task": "binary" if loss in MARGIN_LOSSES else "regression",
            "loss": reference.loss_spec(loss) if loss == "huber" else loss,
            "regularizer": REGULARIZERS[regularizer],
            "rho": 0.1 if regularizer == "kl" else 0.01,
            "window": WINDOWS[window],
            "average": average,
            **more,
            "intercept": False,
            "features": {"kind": "indexed", "dim": 123},
        }
    )
    learner.learn(golden_rows(loss, adult))
    return learner
