"""O-DCA against numbers written by an independent NumPy reference."""

import json

import numpy as np
import pytest

from solvers import Batch, make_learner
from tests.solvers.conftest import GOLDEN

CELLS = json.loads((GOLDEN / "dual.json").read_text())["odca"]
WINDOWS = {
    "infinite": "infinite",
    "exponential": {"kind": "exponential", "beta": 0.98},
    "sliding": {"kind": "sliding", "length": 60},
}
COSINES = np.cos(np.arange(1, 124))


def learner_of(cell, adult, average=None):
    """The learner of a cell `window/loss/regularizer` after the first 200 rows."""
    window, loss, _ = cell.split("/")
    batch, task = adult[:200], "binary"
    if loss == "squared":
        task, i = "regression", np.arange(200)
        labels = batch.labels * (1 + 0.05 * ((7 * i) % 11 - 5))
        batch = Batch(batch.indptr, batch.indices, batch.values, labels, batch.weights, batch.dim)
    learner = make_learner(
        {
            "task": task,
            "loss": loss,
            "rho": 0.01,
            "window": WINDOWS[window],
            "average": average,
            "intercept": False,
            "features": {"kind": "indexed", "dim": 123},
        }
    )
    learner.learn(batch)
    return learner


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.endswith("/l2")])
def test_last_iterate_and_certificate_are_the_golden_ones(cell, adult):
    golden, learner = CELLS[cell], learner_of(cell, adult)
    weights, certificate, duals = (
        learner.weights,
        learner.certificate(),
        learner.state()["ring_duals"],
    )
    found = {
        "w10": weights[:10],
        "norm": np.linalg.norm(weights),
        "dot_cos": weights @ COSINES,
        "nnz": learner.nonzeros,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
        "lam_last5": duals[-5:],
        "Delta": learner.state()["delta"],
    }
    if cell.startswith("sliding"):
        duals = learner_of(cell, adult[:5]).state()["ring_duals"]
    found["lam_first5"] = duals[:5]
    for name, value in found.items():
        assert value == pytest.approx(golden[name], rel=1e-8, abs=1e-8), name


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.endswith("/l2")])
def test_averaged_weights_are_the_golden_ones(cell, adult):
    golden, learner = CELLS[cell], learner_of(cell, adult, {"kappa": 0.9})
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["avg_norm"], abs=1e-8)
    assert learner.weights @ COSINES == pytest.approx(golden["avg_dot_cos"], abs=1e-8)
    assert learner.certificate().primal == pytest.approx(golden["primal_avg"], abs=1e-8)
