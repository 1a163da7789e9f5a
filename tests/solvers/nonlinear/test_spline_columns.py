"""Splines of classes that share columns and knots, against models that learn alone."""

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, make_learner
from dualstream.solvers.nonlinear.splines import Splines
from tests.solvers.nonlinear.class_streams import clusters, learner_of_classes
from tests.solvers.nonlinear.streams import learner_of

MEMBERS = [{"kind": "prior"}, {"algorithm": "splines", "name": "splines"}, {"algorithm": "net"}]
"""A member of SHARED makes the portfolio one of classes.py."""
INDEX, N, WIDTH = 1, 2600, 300


def wide_rows():
    """More features than columns, whose frequencies change; rows of weight 0, and late classes."""
    rng = np.random.default_rng(0)
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], N, p=[0.2, 0.2, 0.5, 0.1])
    batch, x = clusters(N, 4, dim=4, late=1500)
    wide = np.zeros((N, WIDTH))
    wide[:, 250:254] = x
    wide[np.arange(N), rng.integers(0, 100, N) + 100 * (np.arange(N) > 1200)] += 1.0
    return Batch.from_dense(wide, None, weights).with_labels(batch.labels, batch.classes)


def of_class(state, owner):
    prefix = f"{owner}.crew.{INDEX}."
    return {name[len(prefix) :]: a for name, a in state.items() if name.startswith(prefix)}


@pytest.mark.slow
def test_splines_that_share_columns_are_those_of_models_alone():
    batch = wide_rows()
    learner, at = learner_of_classes(WIDTH, members=MEMBERS), 0
    for size in (1, 40, 700, 1, 1, 900, N):
        learner.learn(batch[at : at + size])
        at += size
        if size == 700:
            state, learner = learner.state(), make_learner(learner.spec)
            learner.restore(state)
    state = learner.state()
    assert len(learner.classes) == 4
    for owner, name in [
        ("none", None),
        *((str(k), name) for k, name in enumerate(learner.classes)),
    ]:
        mine = batch.labels == (batch.classes.index(name) if name else -1.0)
        alone = learner_of(WIDTH, algorithm="splines")._learner
        alone.learn(batch.with_labels(np.where(mine, 1.0, -1.0)))
        expected, result = alone.state(), of_class(state, owner)
        assert expected.keys() == result.keys()
        assert [k for k in expected if expected[k].tobytes() != result[k].tobytes()] == []
    assert expected["weights"].any() and expected["n_knots"].max() > 2


def test_models_share_one_set_of_columns():
    batch, _ = clusters(300, 3)
    learner = learner_of_classes(3, members=MEMBERS)
    learner.learn(batch)
    rest = learner._rest
    results = [
        one._members._separate[INDEX]._learner for one in (rest.none_of_them, *rest.learners)
    ]
    assert all(isinstance(one, Splines) for one in results)
    assert len({id(one._columns) for one in results}) == 1


@pytest.mark.parametrize("name", ["knots", "ring", "counts"])
def test_a_state_whose_classes_have_other_columns_is_refused(name):
    batch, _ = clusters(300, 3)
    learner, other = (learner_of_classes(3, members=MEMBERS) for _ in range(2))
    learner.learn(batch)
    other.restore(learner.state())
    state = learner.state()
    array = state[f"2.crew.{INDEX}.{name}"]
    array[:1] = array[:1] + 1 if name == "counts" else array[1:2]
    if name == "knots":
        array[:1] = array[:1] - np.arange(array.shape[1] - 1, -1, -1.0)
    with pytest.raises(CorruptState, match="differ"):
        other.restore(state)
    assert np.array_equal(other.predict(batch[:20]), learner.predict(batch[:20]))
