"""O-DCA against numbers written by an independent NumPy reference."""

import json

import numpy as np
import pytest

from dualstream.solvers import make_learner
from dualstream.solvers.losses.losses import MARGIN_LOSSES
from dualstream.solvers.online.dual_ascent import learner as dual_ascent
from tests.solvers import reference
from tests.solvers.conftest import GOLDEN

NUMBERS = json.loads((GOLDEN / "dual.json").read_text())
CELLS, REPLAYS = NUMBERS["odca"], NUMBERS["odca_replay"]
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


@pytest.mark.parametrize("cell", CELLS)
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


@pytest.mark.parametrize("cell", CELLS)
def test_averaged_weights_are_the_golden_ones(cell, adult):
    golden, learner = CELLS[cell], learner_of(cell, adult, {"kappa": 0.9})
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["avg_norm"], abs=1e-8)
    assert learner.weights @ COSINES == pytest.approx(golden["avg_dot_cos"], abs=1e-8)
    assert learner.certificate().primal == pytest.approx(golden["primal_avg"], abs=1e-8)


@pytest.mark.parametrize("cell", REPLAYS)
def test_replays_in_the_golden_order_are_the_golden_ones(cell, adult, monkeypatch):
    golden, steps = REPLAYS[cell], int(cell.split("/R")[1])

    def draw(seed, first, count):
        row, step = np.divmod(np.arange(first, first + count), steps)
        n = row + 1
        b = np.minimum(n, 60) if cell.startswith("sliding") else n
        return ((31 * n + 17 * (step + 1)) % b + 0.5) / b

    monkeypatch.setattr(dual_ascent, "draw_visits", draw)
    learner = learner_of(cell, adult, replay={"steps": steps})
    certificate = learner.certificate()
    found = {
        "norm": np.linalg.norm(learner.weights),
        "dot_cos": learner.weights @ COSINES,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
    }
    for name, value in found.items():
        assert value == pytest.approx(golden[name], rel=1e-8, abs=1e-8), name
