"""Learners behind the columns of a history: what they see, and the contract of a learner."""

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, make_learner, resolve_spec
from dualstream.solvers.rows.columns.inputs import inputs_of
from tests.solvers.support import as_bytes

COLUMNS = {"types": {"at": {"kind": "time", "parts": ["age"]}, "card": "ignore", "x": "number"}}
HISTORY = [
    {
        "by": "card",
        "time": "at",
        "of": "x",
        "stats": ["count", "mean", "label_mean"],
        "half_life": "1h",
        "labels": 2,
    },
    {"of": "x", "stats": ["last", "change"]},
]
SPECS = {
    "sgd": {"algorithm": "sgd"},
    "regression": {"algorithm": "dual_ascent", "task": "regression"},
    "classes": {"algorithm": "sgd", "task": "multiclass"},
    "portfolio": {"members": "full"},
}


def spec_of(name, **more):
    columns = {"columns": COLUMNS} if more else {}
    return resolve_spec(SPECS[name] | {"features": {"kind": "hashed", "bits": 14}} | columns | more)


def stream(spec, count=80, seed=1):
    """Rows of a few cards; one in five has no label, one in nine weight 0."""
    rng, inputs = np.random.default_rng(seed), inputs_of(spec)
    indptr, indices, values = [0], [], []
    for n in range(count):
        row = {3: rng.normal(), inputs.index_of_key("card"): float(rng.integers(1, 5))}
        row[inputs.index_of_time("at")] = 1e9 + 60.0 * n
        row[inputs.index_of_value("x")] = row[3]
        indices += row
        values += row.values()
        indptr.append(len(indices))
    observed = rng.random(count) < 0.2
    labels = np.where(observed, np.nan, (rng.random(count) < 0.4) * 1.0)
    weights = np.where(observed | (rng.random(count) < 0.1), 0.0, 1.0)
    classes = ('"a"', '"b"') if spec["task"] == "multiclass" else ()
    arrays = np.array(indptr), np.array(indices, np.int32), np.array(values)
    return Batch(*arrays, labels, weights, inputs.row_width, classes), observed


@pytest.mark.parametrize("name", SPECS)
def test_the_learner_sees_labelled_rows_with_their_columns(name):
    spec = spec_of(name, history=HISTORY)
    learner, stages, plain = make_learner(spec), make_learner(spec), make_learner(spec_of(name))
    batch, observed = stream(spec)
    outcome = learner.learn(batch)
    assert outcome.observed.tolist() == observed.tolist()
    seen = stages.history.learn(batch)
    expected = plain.learn(seen.take(~observed))
    assert outcome.scores[~observed].tobytes() == expected.scores.tobytes()
    assert np.isnan(outcome.scores[observed]).all() and outcome.rejected[observed].all()
    assert learner.observed == observed.sum() and learner.samples == plain.samples
    request, _ = stream(spec, 9, seed=2)
    scores = plain.predict(learner.as_served(request))
    assert learner.predict(request).tobytes() == scores.tobytes()


@pytest.mark.parametrize("name", SPECS)
def test_a_batch_equals_its_rows_and_a_restored_learner_continues(name):
    spec = spec_of(name, history=HISTORY)
    whole, single = make_learner(spec), make_learner(spec)
    batch, _ = stream(spec)
    whole.learn(batch)
    for n in range(len(batch)):
        if n == 30:
            other = make_learner(spec)
            other.learn(stream(spec, 5, seed=3)[0])
            other.restore(single.state())
            single = other
        before = as_bytes(single.state())
        single.predict(batch[n : n + 1])
        assert as_bytes(single.state()) == before
        single.learn(batch[n : n + 1])
    assert as_bytes(whole.state()) == as_bytes(single.state())


@pytest.mark.parametrize("broken", ["observed", "ages.newest", "history.numbers", "core.rows"])
def test_a_damaged_state_is_refused_and_changes_nothing(broken):
    spec = spec_of("sgd", history=HISTORY)
    learner, other = make_learner(spec), make_learner(spec)
    learner.learn(stream(spec)[0])
    other.learn(stream(spec, seed=7)[0])
    state, before = other.state(), as_bytes(learner.state())
    name = next(name for name in state if name == broken or name.startswith(broken[:5]))
    with pytest.raises(CorruptState):
        learner.restore(state | {name: np.full(np.shape(state[name]), np.nan)})
    assert as_bytes(learner.state()) == before
    learner.restore(state)
    assert as_bytes(learner.state()) == as_bytes(state)


def test_a_window_of_a_refit_counts_the_history_from_its_first_row():
    spec = spec_of("sgd", history=HISTORY)
    learner, fresh = make_learner(spec), make_learner(spec)
    learner.learn(stream(spec, seed=3)[0])
    before = as_bytes(learner.state())
    batch, observed = stream(spec)
    seen, _ = learner.window(batch)
    expected = fresh.history.learn(batch).take(~observed)
    assert seen.values.tobytes() == expected.values.tobytes()
    assert as_bytes(learner.state()) == before
