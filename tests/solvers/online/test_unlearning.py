"""Unlearning a retained row: against the definition, and nothing of the row remains."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    InvalidSpec,
    UnlearningError,
    dump,
    load,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from dualstream.solvers.protocols.unlearner import why_not_unlearn
from tests.solvers import reference
from tests.solvers.general_reference import REGULARIZERS, General, primal_map
from tests.solvers.online.dual_ascent_support import (
    WINDOWS,
    assert_same,
    bytes_of,
    rows_of,
    spec_of,
)
from tests.solvers.specs import DIM, FEATURES, SPECS, stream

MORE = {
    "multiclass": {"task": "multiclass", "retain": 20, "replay": {"steps": 1}},
    "norm-row": {"norm": "row", "loss": "hinge", "retain": 20},
    "fourier-multiclass": {
        "task": "multiclass",
        "map": {"kind": "fourier", "components": 7},
        "window": {"kind": "sliding", "length": 9},
        "norm": "row",
        "retain": 20,
    },
}
ALL = SPECS | {name: FEATURES | {"algorithm": "dual_ascent"} | spec for name, spec in MORE.items()}
ABLE = [name for name, spec in ALL.items() if why_not_unlearn(resolve_spec(spec)) is None]


def forget(slow, age, retain, make=lambda dashed: dashed):
    """The definition of unlearning, on the rows of the reference."""
    if slow.window[0] == "sliding":
        slow.rows = slow.rows[-retain:]
    at = len(slow.rows) - 1 - age
    if slow.window[0] == "exponential":
        for row in slow.rows[:at]:
            row[2] *= slow.window[1]  # it has one row less after it
    del slow.rows[at]
    slow.iterates = [make(slow.numerator() / slow.room())] if slow.rows else []


def play(learner, slow, batch, x, retain, steps, make):
    """Learn and unlearn in turn with both implementations; `steps` visits follow each row."""
    visits = iter(draw_visits(0, 0, 1000))
    done = 0
    for stop, ages in ((25, [0, 3, 5]), (30, [4, 0, 0]), (40, [6])):
        part = batch[done:stop]
        scores = learner.learn(part).scores
        for h, y, c in zip(x[done:stop], part.labels, part.weights, strict=True):
            slow.learn(np.append(h, 1.0), y, c)
            for _ in range(steps if c > 0.0 else 0):
                slow.visit(next(visits))
        np.testing.assert_allclose(scores, slow.scores[done:stop], rtol=1e-8, atol=1e-9)
        for age in ages:
            learner.unlearn(age)
            forget(slow, age, retain, make)
            assert_same(learner, slow)
        done = stop


def test_what_is_left_is_the_sum_over_the_other_rows(subtests):
    cases = product(WINDOWS.values(), LOSSES, [1000, 9])
    for number, (window, loss, retain) in enumerate(cases):
        kappa = (None, 0.8, 0.8, None)[number % 4]
        with subtests.test(retain=retain, kappa=kappa, window=window, loss=loss):
            batch, x = rows_of(40, regression=loss not in MARGIN_LOSSES)
            # The reference visits all rows, so visits are compared only if all rows are retained.
            steps = 2 if retain == 1000 else 0
            more = {"replay": {"steps": steps}} if steps else {}
            learner = make_learner(spec_of(loss, window, kappa, rho=0.05, retain=retain, **more))
            slow = reference.Reference(loss, window, 0.05, kappa or 0.0)
            play(learner, slow, batch, x, retain, steps, lambda dashed: dashed)


@pytest.mark.parametrize("kappa", [None, 0.8], ids=["last", "average"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_elastic_net_and_entropy_have_the_same_sum(window, kappa, subtests):
    for regularizer in REGULARIZERS.values():
        with subtests.test(regularizer=regularizer):
            batch, x = rows_of(40, regression=False)
            learner = make_learner(
                spec_of(
                    "squared_hinge", window, kappa, rho=0.2, retain=1000, regularizer=regularizer
                )
            )
            slow = General("squared_hinge", window, 0.2, kappa or 0.0, regularizer=regularizer)
            play(learner, slow, batch, x, 1000, 0, partial(primal_map, regularizer))


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("regularizer", ["l2", "elastic_net", "entropy"])
def test_with_every_row_unlearned_it_is_as_new(regularizer, loss, window):
    batch, _ = rows_of(30, weighted=False)
    spec = spec_of(loss, window, regularizer=regularizer, retain=30, average={"kappa": 0.9})
    learner, new = make_learner(spec), make_learner(spec)
    learner.learn(batch)
    for t in range(30):
        learner.unlearn(t % learner.retained)
        assert learner.certificate().gap >= 0.0
    assert learner.retained == 0 and learner.certificate().rows == 0
    fresh = new.state()
    for name, array in learner.state().items():
        if name != "samples":
            assert np.array_equal(array, fresh[name]), name
    assert learner.learn(batch).scores.tobytes() == new.learn(batch).scores.tobytes()


@pytest.mark.parametrize("retain", [40, 9])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_nothing_of_the_row_is_left_in_the_state(window, retain):
    odd = 0.123456789123
    x = rows_of(40, dim=7)[1]
    x[:, 6] = 0.0
    x[33] = [0, 0, odd, 0, 0, 0, odd / 3]
    batch = Batch.from_dense(x, np.where(np.arange(40) % 3 > 0, 1.0, -1.0))
    learner = make_learner(spec_of("hinge", window, 0.9, 7, retain=retain, replay={"steps": 1}))
    learner.learn(batch)
    marks = [np.float64(number).tobytes() for number in (odd, odd / 3)]
    assert all(mark in bytes_of(learner) for mark in marks)
    learner.unlearn(6)
    assert not any(mark in bytes_of(learner) for mark in marks)
    assert learner.weights[6] == 0.0


@pytest.mark.parametrize("name", ABLE)
def test_split_batches_equal_the_whole_and_restored_learner_continues(name):
    spec = ALL[name]
    batch = _stream(spec, 120)
    whole, rows, restored = (make_learner(spec) for _ in range(3))
    for stop, ages in ((60, [3, 0, 5]), (90, [1]), (120, [8, 2])):
        part = batch[stop - (60 if stop == 60 else 30) : stop]
        whole.learn(part)
        for i in range(len(part)):
            rows.learn(part[i : i + 1])
        restored.learn(part)
        for age in ages:
            for learner in (whole, rows, restored):
                learner.unlearn(age)
        arrays, _ = load(bytes_of(restored))
        restored = make_learner(spec)
        restored.restore(arrays)
        assert bytes_of(rows) == bytes_of(whole) == bytes_of(restored)
    assert 0 < whole.retained <= whole.spec["retain"]


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_rejected_row_does_not_bring_an_unlearned_one_back(task):
    spec = FEATURES | {"algorithm": "dual_ascent", "task": task, "strength": 1e-12, "retain": 20}
    batch, more = _stream(spec, 40), _stream(spec, 20, seed=1)
    values, weights = more.values.copy(), more.weights.copy()
    values[more.indptr[5] : more.indptr[6]], weights[5] = 1e100, 1e100
    huge = Batch(more.indptr, more.indices, values, more.labels, weights, more.dim, more.classes)
    learner, other = make_learner(spec), make_learner(spec)
    for one in (learner, other):
        one.learn(batch)
        one.unlearn(2)
    rejected = learner.learn(huge).rejected
    assert rejected.tolist() == [index == 5 for index in range(20)]
    other.learn(huge.take(~rejected))
    assert bytes_of(learner) == bytes_of(other)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("stage", [{"norm": "row"}, {"map": {"kind": "fourier", "components": 7}}])
def test_no_copy_of_what_was_before_is_kept_to_go_back_to(stage, task):
    spec = FEATURES | {"algorithm": "dual_ascent", "task": task, "retain": 20} | stage
    learner = make_learner(spec)
    learner.learn(_stream(spec, 40))
    rewind = getattr(learner._prefix, "_rewind", learner._prefix)
    assert rewind._saved is not None
    learner.unlearn(2)
    assert rewind._saved is None and not rewind._since


def test_unsupported_learner_names_the_reason(subtests):
    for name in [name for name in ALL if name not in ABLE]:
        with subtests.test(name=name):
            reason = why_not_unlearn(resolve_spec(ALL[name]))
            assert reason is not None
            named = (
                "portfolio",
                "balanced",
                "nystroem",
                "running",
                "prior",
                ALL[name]["algorithm"],
            )
            assert any(word in reason for word in named)


def test_all_algorithms_but_one_are_unsupported():
    algorithms = {ALL[name]["algorithm"] for name in ABLE}
    assert algorithms == {"dual_ascent"}
    for stage in ({"scaling": "balanced"}, {"norm": "running"}, {"map": "nystroem"}):
        try:
            spec = resolve_spec(FEATURES | {"algorithm": "dual_ascent"} | stage)
        except InvalidSpec:
            raise AssertionError(stage) from None
        assert why_not_unlearn(spec) is not None


def test_a_row_that_is_not_retained_cannot_be_unlearned():
    batch, _ = rows_of(30, weighted=False)
    learner = make_learner(spec_of(retain=10))
    learner.learn(batch)
    before = bytes_of(learner)
    for age in (-1, 10):
        with pytest.raises(ValueError, match="10 rows are retained"):
            learner.unlearn(age)
    assert bytes_of(learner) == before and learner.retained == 10


@pytest.mark.parametrize("kappa", [None, 0.9], ids=["last", "average"])
@pytest.mark.parametrize("regularizer", ["l2", "elastic_net"])
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_row_without_which_nothing_is_finite_stays(task, regularizer, kappa):
    spec = spec_of("logistic", rho=1e-10, regularizer=regularizer, average=None)
    spec |= {"task": task, "average": kappa and {"kappa": kappa}}
    x, y, c = np.ones((2, 6)), [1.0, 0.0], [1.0, 1e-300]
    batch = Batch.from_dense(x, y, c)
    if task == "multiclass":
        batch = Batch(
            batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, 6, ("a", "b")
        )
    learner = make_learner(spec)
    assert not learner.learn(batch).rejected.any()
    before = bytes_of(learner)
    with pytest.raises(UnlearningError):
        learner.unlearn(1)
    assert bytes_of(learner) == before


def _stream(spec, n, seed=0):
    """`specs.stream`, with three classes for the multiclass task."""
    batch = stream(spec, n, seed=seed)
    if spec.get("task") != "multiclass":
        return batch
    labels = np.arange(n, dtype=np.float64) % 3
    return Batch(
        batch.indptr, batch.indices, batch.values, labels, batch.weights, DIM, ("a", "b", "c")
    )


def test_states_differ_where_other_rows_are_unlearned():
    batch, _ = rows_of(20, weighted=False)
    states = set()
    for age in range(5):
        learner = make_learner(spec_of(rho=0.1))
        learner.learn(batch)
        learner.unlearn(age)
        states.add(dump(learner.state(), {}))
    assert len(states) == 5
