"""Online DC programming and its rivals against numbers of an independent NumPy reference."""

import json

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner
from tests.solvers.conftest import GOLDEN

FILE = json.loads((GOLDEN / "dc.json").read_text())
ALGORITHMS = {
    "Perceptron": "perceptron",
    "ROMMA": "romma",
    "ALMA": "alma",
    "PA": "passive_aggressive",
    "OGD": "ogd",
}
SURROGATES = {"PiL1": "pil1", "PiL2": "pil2", "Sig": "sigmoid"}
NAMES = {"rel_tau2": "relative_tau2", "eps": "epsilon"}


def spec_of(cell, dim):
    """A cell's specification in our words. The golden pil1 knows no ties but exact ones."""
    params = dict(cell["params"])
    spec = {"features": {"kind": "indexed", "dim": dim}, "intercept": False}
    if cell["algorithm"] in ALGORITHMS:
        if cell["algorithm"] == "PA":
            params["variant"] = params["variant"].lower()
        return spec | {"algorithm": ALGORITHMS[cell["algorithm"]]} | params
    version, surrogate = cell["algorithm"].split("_")
    step, horizon = params.pop("eta", "sqrtt"), params.pop("T", None)
    kind = {"kind": SURROGATES[surrogate]}
    if surrogate == "PiL1":
        kind["zero_tol"] = params.pop("zero_tol", 0.0)
    if surrogate == "PiL2":
        kind["relative_tau2"] = False
    spec |= {
        "algorithm": "dc",
        "inner": "complete" if version == "ODCA" else "one_step",
        "C": params.pop("C"),
        "step": "sqrt_t" if step == "sqrtt" else {"kind": "sqrt_T", "horizon": horizon},
        "surrogate": kind | {NAMES.get(name, name): value for name, value in params.items()},
    }
    return spec


def name_of(cell):
    return "-".join([cell["algorithm"], *map(str, cell["params"].values())])


RUNS = [cell for cell in FILE["a9a200"] if cell["algorithm"] != "OGD"]
STEPS = [cell for cell in FILE["steps"] if cell["algorithm"] != "OGD"]


@pytest.mark.parametrize("cell", RUNS, ids=name_of)
def test_a_pass_over_adult_is_the_golden_one(cell, adult):
    learner, batch = make_learner(spec_of(cell, 123)), adult[:200]
    out = learner.learn(batch)
    state, w = learner.state(), learner.weights
    tol = max(1e-7, 100 * cell["rounding_dev"])
    assert not out.rejected.any()
    assert np.count_nonzero((out.scores >= 0) != (batch.labels > 0)) == cell["mistakes"]
    assert np.count_nonzero(out.updated) == cell["changed"]
    assert w[:10] == pytest.approx(cell["w_head"], rel=0, abs=tol)
    assert np.linalg.norm(w) == pytest.approx(cell["norm_w"], rel=0, abs=tol * np.sqrt(123))
    assert w.sum() == pytest.approx(cell["sum_w"], rel=0, abs=tol * 123)
    if "inner_total" in cell:
        assert state["inner_steps"] == cell["inner_total"]
    if "norm_squared" in state:
        assert state["norm_squared"] == pytest.approx(w @ w, rel=1e-9)


@pytest.mark.parametrize("cell", STEPS, ids=lambda cell: f"{name_of(cell)}-{cell['note']}")
def test_a_step_at_a_branch_border_is_the_golden_one(cell):
    learner = make_learner(spec_of(cell, 2))
    state, w = learner.state(), np.array(cell["w"])
    state["v"] = np.append(w, 0.0)
    state["rounds"] = state["samples"] = np.array(cell["t"] - 1)
    for name in ("norm_squared", "norm_squared_peak"):
        if name in state:
            state[name] = np.array(w @ w)
    learner.restore(state)
    out = learner.learn(Batch.from_dense(cell["x"], cell["y"]))
    assert (1 if out.scores[0] >= 0 else -1) == cell["label"]
    assert learner.weights == pytest.approx(cell["w_new"], rel=1e-12, abs=1e-12)
    assert out.updated[0] == (cell["w"] != cell["w_new"])
    if "inner" in cell:
        assert learner.state()["inner_steps"] == cell["inner"]
