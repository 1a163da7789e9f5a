"""SGD, SPG and OGD against golden numbers and slow references."""

import json
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidRow, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.losses import loss_kernels as _steps
from dualstream.solvers.rows import scalar as _scalar
from tests.solvers import first_order_reference as reference
from tests.solvers.conftest import GOLDEN
from tests.solvers.online.first_order_support import COSINES, INDEXED, LOSSES, all_weights, weighted

CELLS = json.loads((GOLDEN / "dual.json").read_text())["sgd_spg_rho0.01_mu0.02"]


@pytest.mark.parametrize("cell", CELLS)
def test_weights_are_the_golden_ones(cell, adult):
    algorithm, loss = cell.split("/")
    batch, task = adult[:200], "binary"
    if loss == "squared":
        task, i = "regression", np.arange(200)
        labels = batch.labels * (1 + 0.05 * ((7 * i) % 11 - 5))
        batch = Batch(batch.indptr, batch.indices, batch.values, labels, batch.weights, batch.dim)
    learner = make_learner(
        {
            "algorithm": algorithm,
            "task": task,
            "loss": loss,
            "rho": 0.01,
            "mu": 0.02,
            "intercept": False,
            "features": INDEXED,
        }
    )
    learner.learn(batch)
    golden = CELLS[cell]
    assert learner.weights[:10] == pytest.approx(golden["w10"], abs=1e-8)
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["norm"], abs=1e-8)
    assert learner.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-8)
    assert learner.nonzeros == golden["nnz"]


def test_scaled_steps_are_the_plain_ones(adult, subtests):
    for loss, algorithm, average in product(
        LOSSES, ["sgd", "spg"], [None, {"kappa": 0.9}, {"kappa": 1.0}]
    ):
        with subtests.test(loss=loss, algorithm=algorithm, average=average):
            spec = {
                "algorithm": algorithm,
                "loss": loss,
                "rho": 2.0,
                "mu": 0.01,
                "average": average,
                "features": INDEXED,
            }
            # 400 steps of 0.98: the scale falls below 1e-3, and is taken into the weights.
            batch = weighted(adult)
            learner = make_learner(spec)
            learner.learn(batch)
            expected = reference.gradient_steps(spec, batch, algorithm == "spg")
            assert all_weights(learner) == pytest.approx(expected, rel=1e-11, abs=1e-12)


def test_ogd_takes_a_falling_step_where_the_margin_is_below_1(adult):
    spec = {"algorithm": "ogd", "C": 0.7, "features": INDEXED}
    batch = weighted(adult)
    learner = make_learner(spec)
    outcome = learner.learn(batch)
    assert all_weights(learner) == pytest.approx(reference.ogd(spec, batch), abs=1e-12)
    taken = (outcome.losses > 0) & (batch.weights > 0)
    assert np.array_equal(outcome.updated, taken)
    assert learner.certificate() is None
    assert learner.probabilities(outcome.scores) is None


SPECS = [
    {"algorithm": "sgd", "features": INDEXED, "average": {"kappa": 0.99}, "rho": 1.0},
    {"algorithm": "sgd", "features": INDEXED, "loss": "hinge"},
    {"algorithm": "spg", "features": INDEXED, "loss": "hinge", "rho": 2.0},
    {"algorithm": "ogd", "features": INDEXED},
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
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
    assert whole.samples == len(batch)
    assert whole.predict(batch[:9]).tobytes() == single.predict(batch[:9]).tobytes()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_row_beyond_all_numbers_leaves_no_trace(spec, adult):
    learner = make_learner(spec | {"task": "binary"})
    learner.learn(adult[:50])
    before = learner.state()
    huge = np.full((1, 123), 1e100)
    outcome = learner.learn(Batch.from_dense(huge, [-1.0], [1e100]))
    if outcome.rejected[0]:
        assert np.isnan(outcome.scores[0]) and np.isnan(outcome.losses[0])
        for name, array in learner.state().items():
            assert array.tobytes() == before[name].tobytes(), name
    for _ in range(4):
        learner.learn(Batch.from_dense(huge, [1.0], [1e100]))
        learner.learn(Batch.from_dense(1e-300 * huge, [-1.0]))
    assert np.all(np.isfinite(all_weights(learner)))


def test_row_whose_step_overflows_is_rejected():
    learner = make_learner(
        {
            "algorithm": "sgd",
            "task": "regression",
            "loss": "squared",
            "features": {"kind": "indexed", "dim": 2},
        }
    )
    huge = Batch.from_dense([[1e100, 0.0]], [1e100])
    rejected = [bool(learner.learn(huge).rejected[0]) for _ in range(3)]
    assert rejected == [False, True, True]
    assert learner.samples == 1


def test_row_of_weight_0_is_counted_and_changes_nothing_else(adult):
    learner = make_learner(SPECS[0])
    learner.learn(adult[:50])
    before, expected = learner.state(), learner.predict(adult[50:51])
    row = adult[50:51]
    outcome = learner.learn(
        Batch(row.indptr, row.indices, row.values, row.labels, np.zeros(1), 123)
    )
    assert outcome.scores[0] == expected[0]
    assert not outcome.updated[0] and not outcome.rejected[0]
    after = learner.state()
    changed = [name for name in after if after[name].tobytes() != before[name].tobytes()]
    assert changed == ["samples"]


def test_unknown_label_is_refused_before_any_row_is_learned(adult):
    learner = make_learner(SPECS[1])
    batch = Batch.from_dense(np.ones((2, 123)), [1.0, 2.0])
    with pytest.raises(InvalidRow):
        learner.learn(batch)
    assert learner.samples == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "sgd", "mu": 2.0, "rho": 0.5},
        {"algorithm": "sgd", "mu": 0.0},
        {"algorithm": "spg", "rho": -1.0},
        {"algorithm": "ogd", "C": 0.0},
        {"algorithm": "ogd", "task": "regression"},
        {"algorithm": "ogd", "loss": "hinge"},
        {"algorithm": "spg", "average": {"kappa": 2.0}},
    ],
    ids=str,
)
def test_wrong_field_is_refused(fields):
    with pytest.raises(InvalidSpec):
        resolve_spec(fields | {"features": INDEXED})


def test_average_is_off_unless_asked_for():
    assert (
        resolve_spec({"algorithm": "sgd", "loss": "hinge", "features": INDEXED})["average"] is None
    )


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_numbers_that_the_kernels_share(loss):
    loss = reference.loss_from({"loss": loss})
    rng = np.random.default_rng(1)
    for z, y, s in zip(
        rng.normal(size=50), rng.choice([-1.0, 1.0], 50), rng.random(50), strict=True
    ):
        argmin = _steps.dual_argmin(z, s, y, tuple(loss.numbers))
        assert argmin == _steps.dual_step(z, s, y, tuple(loss.numbers))[0]
        slopes = loss.slope(z + 1e-6, y) - loss.slope(z - 1e-6, y)
        curvature = _steps.loss_curvature(z, y, tuple(loss.numbers))
        assert curvature == pytest.approx(slopes / 2e-6, abs=1e-5)
        assert _scalar.shrink(z, s) == _scalar.soft(z, s)
