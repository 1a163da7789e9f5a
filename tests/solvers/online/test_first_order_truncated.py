"""Truncated gradient and FOBOS: the lazy weights against those that are cut every time."""

import json
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from tests.solvers import first_order_reference as reference
from tests.solvers.conftest import GOLDEN
from tests.solvers.online.first_order_support import COSINES, INDEXED, LOSSES, all_weights, weighted

CELLS = json.loads((GOLDEN / "dual.json").read_text())[
    "l1_baselines_logistic_lam0.02_alpha0.05sqrt(2/t)"
]


@pytest.mark.parametrize("cell", CELLS)
def test_weights_are_the_golden_ones(cell, adult):
    learner = make_learner(
        {
            "algorithm": "fobos" if cell == "fobos" else "truncated_gradient",
            "lambda": 0.02,
            "gamma": 20.0,
            "intercept": False,
            "features": INDEXED,
        }
    )
    learner.learn(adult[:200])
    golden = CELLS[cell]
    assert learner.weights[:10] == pytest.approx(golden["w10"], abs=1e-8)
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["norm"], abs=1e-8)
    assert learner.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-8)
    assert learner.nonzeros == golden["nnz"]


SPECS = [
    {"algorithm": "fobos", "lambda": 0.03, "gamma": 3.0, "features": INDEXED},
    {"algorithm": "truncated_gradient", "lambda": 0.03, "gamma": 3.0, "features": INDEXED},
    {
        "algorithm": "truncated_gradient",
        "lambda": 0.05,
        "gamma": 2.0,
        "period": 7,
        "theta": 0.02,
        "features": INDEXED,
    },
    {
        "algorithm": "truncated_gradient",
        "lambda": 0.02,
        "gamma": 2.0,
        "period": 3,
        "theta": 0.2,
        "intercept": False,
        "features": INDEXED,
    },
    {
        "algorithm": "truncated_gradient",
        "lambda": 0.05,
        "gamma": 2.0,
        "theta": 0.0,
        "features": INDEXED,
    },
]


def test_lazy_cuts_are_the_plain_ones(adult, subtests):
    for loss, spec in product(LOSSES, SPECS):
        with subtests.test(loss=loss, spec=spec):
            spec, batch = spec | {"loss": loss}, weighted(adult)
            # Unit rows: otherwise squared losses diverge, and no two sums agree.
            norms = np.sqrt(np.add.reduceat(batch.values**2, batch.indptr[:-1]))
            values = batch.values / np.repeat(norms, np.diff(batch.indptr))
            batch = Batch(batch.indptr, batch.indices, values, batch.labels, batch.weights, 123)
            learner = make_learner(spec)
            for part in (batch[:123], batch[123:130], batch[130:]):
                learner.learn(part)
                n = learner.samples
                expected = reference.truncated(spec, batch[:n])
                assert all_weights(learner) == pytest.approx(expected, rel=1e-11, abs=1e-12)
                assert learner.predict(batch[:50]) == pytest.approx(
                    reference.dense(batch[:50], spec.get("intercept", True)) @ expected, abs=1e-11
                )


def test_period_1_without_theta_is_fobos(adult):
    fobos, truncated = make_learner(SPECS[0]), make_learner(SPECS[1] | {"period": 1})
    fobos.learn(adult)
    truncated.learn(adult)
    assert fobos.weights.tobytes() == truncated.weights.tobytes()


def test_weights_of_columns_not_seen_again_fall_to_0():
    learner = make_learner(
        {
            "algorithm": "fobos",
            "lambda": 0.1,
            "intercept": False,
            "features": {"kind": "indexed", "dim": 2},
        }
    )
    learner.learn(Batch.from_dense([[1.0, 0.0]], [1.0]))
    assert learner.weights[0] > 0.0
    learner.learn(Batch.from_dense(np.tile([0.0, 1.0], (100, 1)), np.ones(100)))
    assert learner.weights[0] == 0.0 and learner.nonzeros == 1


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_rows_one_by_one_and_a_restart_give_the_same_bits(spec, adult):
    batch = weighted(adult)
    whole, single, resumed = (make_learner(spec) for _ in range(3))
    outcome = whole.learn(batch)
    scores = np.concatenate([single.learn(batch[i : i + 1]).scores for i in range(len(batch))])
    resumed.learn(batch[:313])
    state = resumed.state()
    resumed = make_learner(spec)
    resumed.restore(state)
    resumed.learn(batch[313:])
    assert outcome.scores.tobytes() == scores.tobytes()
    for learner in (single, resumed):
        for name, array in whole.state().items():
            assert array.tobytes() == learner.state()[name].tobytes(), name


def test_row_whose_step_overflows_leaves_no_trace():
    learner = make_learner(
        {"algorithm": "fobos", "task": "regression", "features": {"kind": "indexed", "dim": 2}}
    )
    learner.learn(Batch.from_dense([[1.0, 2.0]], [1.0]))
    before = learner.state()
    outcome = learner.learn(Batch.from_dense([[1e100, 1.0]], [1e100], [1e100]))
    assert outcome.rejected[0] and np.isnan(outcome.scores[0])
    for name, array in learner.state().items():
        assert array.tobytes() == before[name].tobytes(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "fobos", "lambda": -1.0},
        {"algorithm": "fobos", "gamma": 0.0},
        {"algorithm": "fobos", "period": 3},
        {"algorithm": "truncated_gradient", "period": 0},
        {"algorithm": "truncated_gradient", "theta": -1.0},
    ],
    ids=str,
)
def test_wrong_field_is_refused(fields):
    with pytest.raises(InvalidSpec):
        resolve_spec(fields | {"features": INDEXED})
