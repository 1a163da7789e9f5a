"""Primal averages of RDA, truncated gradient, FOBOS and SGD with lambda |w|_1.

The learners sum weights lazily; the reference computes every weight after every row.
"""

from itertools import product

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.online import lazy_average
from tests.solvers import first_order_reference as reference
from tests.solvers.online.first_order_support import (
    ELASTIC,
    INDEXED,
    L1,
    all_weights,
    iterates,
    weighted,
)

RDA = {"algorithm": "rda", "features": INDEXED}
LOG = {"kind": "log", "sigma": 3.0}
STEPS = {"lambda": 0.03, "gamma": 3.0, "features": INDEXED}
CUT = STEPS | {"algorithm": "truncated_gradient"}
SPECS = {
    "rda-l1": RDA | {"regularizer": L1},
    "rda-l1-fast": RDA | {"regularizer": {"kind": "l1", "lambda": 0.05}, "loss": "hinge"},
    "rda-elastic_net-log": RDA | {"regularizer": ELASTIC, "schedule": LOG},
    "rda-l2-xiao": RDA | {"regularizer": {"kind": "l2", "sigma": 0.3}, "prox": "xiao"},
    "rda-no-intercept": RDA | {"regularizer": L1, "intercept": False},
    "fobos": STEPS | {"algorithm": "fobos"},
    "fobos-l2": STEPS | {"algorithm": "fobos", "lambda": 0.0, "sigma": 0.4},
    "fobos-elastic_net": STEPS | {"algorithm": "fobos", "sigma": 3.0, "loss": "squared_hinge"},
    "truncated_gradient": CUT,
    "truncated_gradient-theta": CUT | {"period": 7, "theta": 0.02, "lambda": 0.05, "gamma": 2.0},
    "truncated_gradient-far": CUT | {"period": 3, "theta": 0.2, "intercept": False},
    "truncated_gradient-0": CUT | {"theta": 0.0},
    "sgd_l1": STEPS | {"algorithm": "sgd_l1"},
    "sgd_l1-hinge": STEPS | {"algorithm": "sgd_l1", "loss": "hinge", "intercept": False},
}


@pytest.fixture(params=SPECS)
def spec(request):
    return SPECS[request.param]


def unit_rows(batch):
    norms = np.sqrt(np.add.reduceat(batch.values**2, batch.indptr[:-1]))
    values = batch.values / np.repeat(norms, np.diff(batch.indptr))
    return Batch(batch.indptr, batch.indices, values, batch.labels, batch.weights, batch.dim)


def every_iterate(spec, batch):
    if spec["algorithm"] == "rda":
        return iterates(spec, batch)
    return reference.truncated_iterates({"loss": "logistic"} | spec, batch)


def test_averages_are_the_plain_ones(spec, adult, monkeypatch, subtests):
    for kappa, window in product([1.0, 0.9, 1e-3], [256, 5]):
        with subtests.test(kappa=kappa, window=window):
            monkeypatch.setattr(lazy_average, "window_of", lambda width, window=window: window)
            batch = unit_rows(weighted(adult))
            expected = reference.averages(every_iterate(spec, batch), batch.weights, kappa)
            learner = make_learner(spec | {"average": {"kappa": kappa}})
            scores = [
                learner.learn(batch[start : start + 100]).scores for start in range(0, 500, 100)
            ]
            assert all_weights(learner) == pytest.approx(expected[-1], rel=1e-9, abs=1e-11)
            x = reference.dense(batch, spec.get("intercept", True))
            before = np.vstack([np.zeros(124), expected[:-1]])
            assert np.concatenate(scores) == pytest.approx(np.sum(before * x, axis=1), abs=1e-10)
            assert learner.predict(batch) == pytest.approx(x @ expected[-1], abs=1e-10)


def test_weights_that_never_left_0_are_0_exactly_in_the_average(spec, adult):
    batch = unit_rows(adult)
    result = every_iterate(spec, batch)
    learner = make_learner(spec | {"average": {"kappa": 1.0}})
    learner.learn(batch)
    never = np.flatnonzero(~result.any(axis=0)[:-1])
    assert len(never) > 3 and not learner.weights[never].any()
    if spec["algorithm"] == "rda":
        support = learner.support()
        assert support.features.tolist() == (np.flatnonzero(learner.weights) + 1).tolist()
        plain = make_learner(spec)
        plain.learn(batch)
        # The iterates, whose history this is, are those of the learner without an average.
        assert support.unchanged_since == plain.support().unchanged_since


@pytest.mark.parametrize("window", [256, 5])
def test_rows_one_by_one_and_a_restart_give_the_same_bits(spec, window, adult, monkeypatch):
    monkeypatch.setattr(lazy_average, "window_of", lambda width, window=window: window)
    spec, batch = spec | {"average": {"kappa": 0.99}}, weighted(adult)
    whole, single, resumed = (make_learner(spec) for _ in range(3))
    outcome = whole.learn(batch)
    scores = [single.learn(batch[i : i + 1]).scores for i in range(len(batch))]
    resumed.learn(batch[:313])
    state = resumed.state()
    resumed = make_learner(spec)
    resumed.restore(state)
    resumed.learn(batch[313:])
    assert outcome.scores.tobytes() == np.concatenate(scores).tobytes()
    for learner in (single, resumed):
        for name, array in whole.state().items():
            assert array.tobytes() == learner.state()[name].tobytes(), name


def test_averaging_does_not_change_the_iterates(spec, adult):
    plain, averaged = make_learner(spec), make_learner(spec | {"average": {"kappa": 1.0}})
    off = make_learner(spec | {"average": {"kappa": 0.0}})
    for learner in (plain, averaged, off):
        learner.learn(adult)
    for name, array in plain.state().items():
        assert array.tobytes() == off.state()[name].tobytes(), name
        # With sigma, an average has weights brought up to date more often.
        if "sigma" not in spec or spec["algorithm"] == "rda":
            assert array.tobytes() == averaged.state()[name].tobytes(), name
    assert len(averaged.state()) == len(plain.state()) + 4


def test_row_with_too_large_a_step_leaves_no_trace(spec):
    learner = make_learner(
        {"algorithm": spec["algorithm"], "task": "regression", "average": {}}
        | {"features": {"kind": "indexed", "dim": 2}}
    )
    learner.learn(Batch.from_dense([[1.0, 2.0], [0.5, 0.0]], [1.0, -1.0]))
    before = learner.state()
    outcome = learner.learn(Batch.from_dense([[1e60, 1.0]], [1e90]))
    assert outcome.rejected[0] and np.isnan(outcome.scores[0])
    for name, array in learner.state().items():
        assert array.tobytes() == before[name].tobytes(), name


def test_damaged_sums_are_refused(spec, adult, subtests):
    for name, value in [
        ("average_sums", np.zeros((50, 3))),
        ("average_sums", np.full((257, 3), np.inf)),
        ("average", np.array([257.0, 1.0, 1.0])),
        ("average", np.array([49.5, 1.0, 1.0])),
        ("average", np.array([50.0, 0.0, 1.0])),
        ("average", np.array([50.0, 1.0, -1.0])),
        ("seen", np.full(124, 1e9)),
        ("seen", np.full(124, 0.5)),
    ]:
        with subtests.test(name=name, value=value):
            learner = make_learner(spec | {"average": {"kappa": 0.9}})
            learner.learn(adult[:50])
            with pytest.raises(CorruptState, match=name.split("_")[0]):
                learner.restore(learner.state() | {name: value})


def test_refit_restarts_the_average(adult):
    learner = make_learner(SPECS["fobos"] | {"average": {"kappa": 1.0}})
    learner.learn(adult)
    weights = np.linspace(-1.0, 1.0, 124)
    learner.take_weights(weights[None, :], np.zeros(1), 500)
    assert all_weights(learner).tolist() == weights.tolist()
    learner.learn(adult[:1])
    current = make_learner(SPECS["fobos"])
    current.learn(adult)
    current.take_weights(weights[None, :], np.zeros(1), 500)
    current.learn(adult[:1])
    half = (weights + all_weights(current)) / 2
    assert all_weights(learner) == pytest.approx(half, abs=1e-12)


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "rda_plus", "average": {"kappa": 1.0}},
        {"algorithm": "rda", "average": {"kappa": 1.5}},
        {"algorithm": "fobos", "average": {"from": 5}},
        {"algorithm": "fobos", "sigma": -1.0},
        {"algorithm": "truncated_gradient", "sigma": 1.0},
        {"algorithm": "sgd_l1", "period": 3},
    ],
    ids=str,
)
def test_wrong_field_is_refused(fields):
    with pytest.raises(InvalidSpec):
        resolve_spec(fields | {"features": INDEXED})


def test_specifications_without_the_options_do_not_have_them():
    for algorithm in ("rda", "fobos", "truncated_gradient"):
        bare = {"algorithm": algorithm, "features": INDEXED}
        inputs = {"average": None} | ({"sigma": 0} if algorithm == "fobos" else {})
        assert "average" not in resolve_spec(bare) and "sigma" not in resolve_spec(bare)
        assert resolve_spec(bare | inputs) == resolve_spec(bare)
