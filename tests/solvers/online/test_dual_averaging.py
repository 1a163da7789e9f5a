"""RDA against golden numbers and a reference that computes every weight every time."""

import json

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from tests.solvers.conftest import GOLDEN
from tests.solvers.first_order_reference import dense
from tests.solvers.online.first_order_support import (
    COSINES,
    ELASTIC,
    INDEXED,
    L1,
    LOSSES,
    all_weights,
    iterates,
    weighted,
)

CELLS = json.loads((GOLDEN / "dual.json").read_text())["rda_200rows_onepass"]


@pytest.mark.parametrize("cell", CELLS)
def test_weights_are_the_golden_ones(cell, adult):
    loss, regularizer, _, prox = cell.split("/")
    learner = make_learner(
        {
            "algorithm": "rda",
            "loss": loss,
            "regularizer": L1 if regularizer == "l1" else ELASTIC,
            "schedule": {"kind": "sqrt", "gamma": 2.0},
            "prox": prox,
            "intercept": False,
            "features": INDEXED,
        }
    )
    learner.learn(adult[:200])
    golden = CELLS[cell]
    mean = learner.state()["gradient_sum"] / 200
    assert learner.weights[:10] == pytest.approx(golden["w10"], abs=1e-8)
    assert np.linalg.norm(learner.weights) == pytest.approx(golden["norm"], abs=1e-8)
    assert learner.weights @ COSINES == pytest.approx(golden["dot_cos"], abs=1e-8)
    assert np.linalg.norm(mean) == pytest.approx(golden["gbar_norm"], abs=1e-8)
    assert learner.nonzeros == golden["nnz"]


SPECS = [
    {"algorithm": "rda", "regularizer": L1, "features": INDEXED},
    {
        "algorithm": "rda",
        "regularizer": ELASTIC,
        "schedule": {"kind": "log", "sigma": 3.0},
        "features": INDEXED,
    },
    {
        "algorithm": "rda",
        "regularizer": {"kind": "l2", "sigma": 0.3},
        "prox": "xiao",
        "features": INDEXED,
    },
]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_lazy_weights_are_the_plain_ones(spec, loss, adult):
    spec, batch = spec | {"loss": loss}, weighted(adult[:300])
    expected = iterates(spec, batch)
    learner = make_learner(spec)
    scores = learner.learn(batch).scores
    assert all_weights(learner) == pytest.approx(expected[-1], rel=1e-9, abs=1e-12)
    before = np.vstack([np.zeros(124), expected[:-1]])
    assert scores == pytest.approx(np.sum(before * dense(batch, 1.0), axis=1), abs=1e-10)


def test_squared_loss_on_raw_rows_with_a_log_schedule_stays_finite(adult):
    # Its gradients are unbounded, against (2.16) of the thesis: it grows to 5e9 in 200 rows.
    learner = make_learner(
        SPECS[1] | {"loss": "squared", "schedule": {"kind": "log", "sigma": 0.1}}
    )
    for _ in range(4):
        learner.learn(adult)
    assert np.all(np.isfinite(all_weights(learner)))


@pytest.mark.parametrize("spec", SPECS[:2], ids=range(2))
def test_support_tells_when_the_signs_last_changed(spec, adult):
    batch, patterns = adult, [np.zeros(123)]
    patterns += list(np.sign(iterates(spec, batch)[:, :-1]))
    learner = make_learner(spec)
    for n in range(1, len(batch) + 1):
        learner.learn(batch[n - 1 : n])
        same = 0
        while same < n and np.array_equal(patterns[n - same - 1], patterns[n]):
            same += 1
        support = learner.support()
        assert support.unchanged_since == n - same
        assert np.array_equal(support.features, np.flatnonzero(patterns[n]) + 1)
        assert np.array_equal(np.sign(support.weights), patterns[n][support.features - 1])
    changes = [np.sum(a != b) for a, b in zip(patterns[1:], patterns[:-1], strict=True)]
    faded = np.sum(0.999 ** np.arange(len(changes) - 1, -1, -1) * changes)
    assert support.changes_per_1000 == pytest.approx(faded)


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
    assert whole.predict(batch[:9]).tobytes() == single.predict(batch[:9]).tobytes()


def test_row_of_weight_0_is_counted_and_changes_nothing_else(adult):
    learner, row = make_learner(SPECS[0]), adult[50:51]
    learner.learn(adult[:50])
    before, expected = learner.state(), learner.predict(row)
    nothing = Batch(row.indptr, row.indices, row.values, row.labels, np.zeros(1), 123)
    assert learner.learn(nothing).scores[0] == expected[0]
    after = learner.state()
    changed = [name for name in after if after[name].tobytes() != before[name].tobytes()]
    assert changed == ["samples"]


def test_row_whose_step_overflows_leaves_no_trace(adult):
    learner = make_learner(SPECS[0] | {"task": "regression", "loss": "squared"})
    learner.learn(adult[:50])
    before = learner.state()
    outcome = learner.learn(Batch.from_dense(np.full((1, 123), 1e100), [1e100], [1e100]))
    assert outcome.rejected[0] and np.isnan(outcome.scores[0])
    for name, array in learner.state().items():
        assert array.tobytes() == before[name].tobytes(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"regularizer": {"kind": "l1", "sigma": 1.0}},
        {"regularizer": {"kind": "l1", "lambda": -1.0}},
        {"regularizer": "entropy"},
        {"schedule": {"kind": "sqrt", "sigma": 1.0}},
        {"schedule": {"kind": "log", "sigma": 0.0}},
        {"prox": "nesterov"},
        {"stable": 100},
    ],
    ids=str,
)
def test_wrong_field_is_refused(fields):
    with pytest.raises(InvalidSpec):
        resolve_spec({"algorithm": "rda", "features": INDEXED} | fields)
