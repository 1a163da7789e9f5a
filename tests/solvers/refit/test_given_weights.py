"""Weights that were computed elsewhere, as the result of a refit."""

import numpy as np
import pytest

from dualstream.solvers import Batch, RefitError, make_learner, resolve_spec
from dualstream.solvers.refit.given_weights import given_weights, why_not_set_weights
from dualstream.solvers.refit.refit import enter_refit
from tests.solvers.refit.support import DIM, FEATURES, SPECS, every, rows_of, served

PLACES, WEIGHTS = [1, 4, 7], [0.5, -1.25, 2.0]


@every
def test_the_scores_are_those_of_the_definition_and_learning_continues(name):
    learner = make_learner(SPECS[name] | FEATURES)
    is_regression = learner.spec["task"] == "regression"
    learner.learn(rows_of(is_regression=is_regression)[0])
    intercept = 0.75 if learner.spec["intercept"] else 0.0
    assert why_not_set_weights(learner.spec) is None
    arrays = given_weights(learner.spec, PLACES, WEIGHTS, intercept, 160)
    assert enter_refit(learner, arrays) is None and learner.samples == 160
    x = np.random.default_rng(4).standard_normal((9, DIM))
    scores = learner.predict(Batch.from_dense(x, np.ones(9)))
    assert scores == pytest.approx(x[:, PLACES] @ WEIGHTS + intercept, abs=1e-12)
    again = make_learner(learner.spec)
    again.restore(learner.state())
    for one in (learner, again):
        one.learn(rows_of(40, 1, is_regression)[0])
    assert np.array_equal(served(learner), served(again))
    assert not np.array_equal(learner.weights[PLACES], WEIGHTS)


def test_asset_takes_its_next_step_size_from_the_gap():
    """D = sqrt(2 gap / lambda); without a gap D_Z, as a new learner."""
    spec = resolve_spec({"algorithm": "asset", "lambda": 0.02, **FEATURES})
    wrong = Batch.from_dense(np.ones((1, DIM)), [0.0])
    moved = []
    # A gap counts as at least a thousandth of the objective.
    for bounds, gap in (((0.5, 1e-9), 0.0005), ((0.5, 0.01), 0.01), ((0.5, 0.1), 0.1), (None, 0.5)):
        learner = make_learner(spec)
        enter_refit(learner, given_weights(spec, PLACES, WEIGHTS, 0.0, 160, bounds))
        assert float(learner.state()["distance"]) == pytest.approx(np.sqrt(2 * gap / 0.02))
        learner.learn(wrong)
        moved.append(abs(learner.weights[PLACES] - WEIGHTS).max())
    assert all(np.diff(moved) > 0.0)


def test_weights_that_a_learner_cannot_serve_are_refused():
    asset = resolve_spec({"algorithm": "asset", "lambda": 1.0, **FEATURES})
    bound = resolve_spec({"algorithm": "asset", "bound": 1.0, **FEATURES})
    none = resolve_spec({"algorithm": "sgd", "intercept": False, **FEATURES})
    for spec, intercept, why in (
        (asset, 0.0, "the ball of radius"),
        (bound, 1.5, "the intercept within `bound`"),
        (none, 0.5, "no intercept"),
    ):
        with pytest.raises(RefitError, match=why):
            given_weights(spec, PLACES, WEIGHTS, intercept, 10)
