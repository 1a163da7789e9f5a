"""O-DCA against numbers written by an independent NumPy reference."""

import numpy as np
import pytest

from dualstream.solvers.online.dual_ascent import learner as dual_ascent
from tests.solvers.golden_cells import COSINES, NUMBERS, learner_of

CELLS, REPLAYS = NUMBERS["odca"], NUMBERS["odca_replay"]


@pytest.mark.parametrize("cell", CELLS)
def test_last_iterate_and_certificate_are_the_golden_ones(cell, adult):
    golden, learner = CELLS[cell], learner_of(cell, adult)
    weights, certificate, duals = (
        learner.weights,
        learner.certificate(),
        learner.state()["ring_duals"],
    )
    result = {
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
    result["lam_first5"] = duals[:5]
    for name, value in result.items():
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
    result = {
        "norm": np.linalg.norm(learner.weights),
        "dot_cos": learner.weights @ COSINES,
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
    }
    for name, value in result.items():
        assert value == pytest.approx(golden[name], rel=1e-8, abs=1e-8), name
